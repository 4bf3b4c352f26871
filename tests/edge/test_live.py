"""watch and serve as a user starts them: real processes that are stopped by a signal."""

import contextlib
import io
import json
import os
import queue
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

pytestmark = pytest.mark.tf
ROOT = Path(__file__).resolve().parents[2]
RUNNER = ROOT / "edge" / "run.py"
DEADLINE_S = 60


class Live:
    """A running command; its lines arrive in a queue."""

    def __init__(self, *arguments, **environment):
        self.process = subprocess.Popen(
            [sys.executable, RUNNER, *map(str, arguments)], stdout=subprocess.PIPE,
            stderr=subprocess.PIPE, text=True, env={**os.environ, **environment},
        )  # fmt: skip
        self.out, self.err = queue.Queue(), queue.Queue()
        ends = ((self.process.stdout, self.out), (self.process.stderr, self.err))
        self.pumps = [threading.Thread(target=self._pump, args=end, daemon=True) for end in ends]
        for pump in self.pumps:
            pump.start()

    @staticmethod
    def _pump(stream, lines):
        with stream:
            for line in stream:
                lines.put(line)
        lines.put(None)

    def answer(self):
        line = self.out.get(timeout=DEADLINE_S)
        assert line is not None, list(iter(self.err.get, None))
        return json.loads(line)

    def stop(self, number=signal.SIGTERM):
        self.process.send_signal(number)
        return self.end()

    def end(self):
        """Returns the exit code and what was written to standard error."""
        code = self.process.wait(timeout=DEADLINE_S)
        return code, "".join(iter(lambda: self.err.get(timeout=DEADLINE_S), None))


@pytest.fixture
def live():
    with contextlib.ExitStack() as stack:

        def start(*arguments, **environment):
            started = Live(*arguments, **environment)
            for pump in started.pumps:
                stack.callback(pump.join, DEADLINE_S)
            stack.callback(started.process.wait)
            stack.callback(started.process.kill)
            return started

        yield start


@pytest.fixture
def expected(command, bundle):
    """The answers of `predict` to the golden pictures."""
    return command("predict", bundle, bundle / "golden", "--json").lines


def mjpeg(bundle, path, count=3, thumbnail=False):
    """Writes golden pictures as JPEGs one after another, and returns them."""
    frames = []
    for number in range(count):
        content = io.BytesIO()
        with Image.open(bundle / f"golden/{number:03d}.image.png") as picture:
            picture.convert("RGB").save(content, "JPEG", quality=95)
        frame = content.getvalue()
        if thumbnail:
            # A comment that holds a whole JPEG, as the EXIF data of a camera do.
            inner = b"\xff\xfe" + (len(frame) + 2).to_bytes(2, "big") + frame
            frame = frame[:2] + inner + frame[2:]
        frames.append(frame)
    path.write_bytes(b"".join(frames))
    return frames


class TestWatch:
    @pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
    def test_new_files_of_a_folder(self, live, bundle, expected, tmp_path, number):
        folder = tmp_path / "in"
        folder.mkdir()
        shutil.copy(bundle / "golden/000.image.png", folder / "a.png")
        watching = live("watch", bundle, folder)
        first = watching.answer()
        assert first["file"] == str(folder / "a.png")
        assert first["top"] == expected[0]["top"]
        (folder / "notes.txt").write_text("no picture")
        (folder / "bad.png").write_text("no picture")
        assert "cannot be read" in watching.answer()["error"]
        shutil.copy(bundle / "golden/001.image.png", folder / "b.png")
        assert watching.answer()["top"] == expected[1]["top"]
        # The same name with another picture is another file.
        shutil.copy(bundle / "golden/002.image.png", folder / "a.png")
        assert watching.answer()["top"] == expected[2]["top"]
        code, err = watching.stop(number)
        assert code == 0
        assert "Traceback" not in err

    def test_a_file_that_is_still_written_is_left_alone(self, live, bundle, expected, tmp_path):
        content = (bundle / "golden/000.image.png").read_bytes()
        folder = tmp_path / "in"
        folder.mkdir()
        watching = live("watch", bundle, folder)
        with (folder / "slow.png").open("wb") as file:
            for start in range(0, len(content), len(content) // 8):
                file.write(content[start : start + len(content) // 8])
                file.flush()
                time.sleep(0.1)
        assert watching.answer()["top"] == expected[0]["top"]
        assert watching.stop()[0] == 0

    def test_thresholds_and_hits(self, live, bundle, expected, tmp_path):
        scores = [line["score"] for line in expected]
        limit = (min(scores) + max(scores)) / 2
        hits = tmp_path / "hits"
        watching = live(
            "watch", bundle, bundle / "golden", "--threshold", limit, "--save-hits", hits
        )
        wanted = [line for line in expected if line["score"] >= limit]
        assert 0 < len(wanted) < len(expected)
        for line in wanted:
            assert watching.answer()["score"] == line["score"]
        assert watching.stop()[0] == 0
        names = [Path(line["file"]).name for line in wanted]
        assert sorted(path.name for path in hits.iterdir()) == names
        for name in names:
            assert (hits / name).read_bytes() == (bundle / "golden" / name).read_bytes()

    @pytest.mark.parametrize("thumbnail", [False, True])
    def test_frames_of_a_file(self, command, bundle, tmp_path, thumbnail):
        frames = mjpeg(bundle, tmp_path / "a.mjpeg", thumbnail=thumbnail)
        for number, frame in enumerate(frames):
            (tmp_path / f"{number}.jpg").write_bytes(frame)
        camera = ("--camera", tmp_path / "a.mjpeg", "--fps", "1000")
        answer = command("watch", bundle, *camera, "--save-hits", tmp_path / "hits")
        assert answer.code == 0
        files = [tmp_path / f"{number}.jpg" for number in range(len(frames))]
        wanted = command("predict", bundle, *files, "--json").lines
        assert [line["top"] for line in answer.lines] == [line["top"] for line in wanted]
        assert [line["file"] for line in answer.lines] == ["frame 0", "frame 1", "frame 2"]
        kept = sorted((tmp_path / "hits").iterdir())
        assert [path.read_bytes() for path in kept] == frames

    def test_frames_per_second_are_limited(self, command, bundle, tmp_path, runner, monkeypatch):
        mjpeg(bundle, tmp_path / "a.mjpeg", count=4)
        slept = []
        monkeypatch.setattr(runner.time, "sleep", slept.append)
        command("watch", bundle, "--camera", tmp_path / "a.mjpeg", "--fps", "2")
        assert len(slept) == 4
        assert all(0 < seconds <= 0.5 for seconds in slept)

    def test_a_camera_that_vanishes(self, live, bundle, tmp_path):
        frames = mjpeg(bundle, tmp_path / "a.mjpeg")
        (tmp_path / "cut.mjpeg").write_bytes(b"".join(frames)[:-10])
        watching = live("watch", bundle, "--camera", tmp_path / "cut.mjpeg")
        for _ in range(2):
            assert "label" in watching.answer()
        code, err = watching.end()
        assert code == 1
        assert "cut.mjpeg gives no more pictures" in err
        os.mkfifo(tmp_path / "pipe")
        watching = live("watch", bundle, "--camera", tmp_path / "pipe")
        with (tmp_path / "pipe").open("wb") as pipe:
            pipe.write(frames[0])
            pipe.flush()
            assert "label" in watching.answer()
        code, err = watching.end()
        assert code == 1
        assert "pipe gives no more pictures" in err and "Traceback" not in err

    def test_a_pipe_that_is_silent_is_stopped(self, live, bundle, tmp_path):
        frames = mjpeg(bundle, tmp_path / "a.mjpeg")
        os.mkfifo(tmp_path / "pipe")
        watching = live("watch", bundle, "--camera", tmp_path / "pipe")
        with (tmp_path / "pipe").open("wb") as pipe:
            pipe.write(frames[0])
            pipe.flush()
            watching.answer()
            assert watching.stop()[0] == 0

    def test_a_full_disk(self, command, bundle, tmp_path, runner, monkeypatch):
        mjpeg(bundle, tmp_path / "a.mjpeg", count=2)

        def full(path, content):
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(runner, "write_whole", full)
        camera = ("--camera", tmp_path / "a.mjpeg", "--save-hits", tmp_path)
        answer = command("watch", bundle, *camera)
        assert answer.code == 1
        assert len(answer.lines) == 2
        assert answer.err.count("cannot be kept: [Errno 28] No space left on device") == 2

    def test_a_folder_that_vanishes(self, live, bundle, tmp_path):
        folder = tmp_path / "in"
        folder.mkdir()
        shutil.copy(bundle / "golden/000.image.png", folder)
        watching = live("watch", bundle, folder)
        watching.answer()
        shutil.rmtree(folder)
        code, err = watching.end()
        assert code == 1
        assert "No such file" in err and "Traceback" not in err

    def test_usage(self, command, bundle, tmp_path):
        assert command("watch", bundle).code == 2
        assert command("watch", bundle, tmp_path, "--camera").code == 2
        assert command("watch", bundle, tmp_path, "--fps", "0").code == 2


# Stand-ins for the modules of cameras: what run.py calls, with pictures from a file.
STAND_INS = {
    "cv2": """
import numpy as np, os
class VideoCapture:
    def __init__(self, source):
        self.left = list(np.load(os.environ["PICTURES"])) if source == 3 else []
    def read(self):
        return (True, self.left.pop(0)[:, :, ::-1]) if self.left else (False, None)
    def release(self):
        print("released", file=__import__("sys").stderr)
""",
    "picamera2": """
import numpy as np, os
class Picamera2:
    def __init__(self):
        self.left = list(np.load(os.environ["PICTURES"]))
    def create_video_configuration(self, main):
        assert main == {"format": "BGR888"}
        return main
    def configure(self, configuration): pass
    def start(self): pass
    def capture_array(self): return self.left[0]
    def close(self):
        print("released", file=__import__("sys").stderr)
""",
}


class TestCameras:
    @pytest.fixture
    def modules(self, bundle, tmp_path):
        for name, text in STAND_INS.items():
            (tmp_path / name).mkdir()
            (tmp_path / name / f"{name}.py").write_text(text)
        with Image.open(bundle / "golden/000.image.png") as picture:
            np.save(tmp_path / "p.npy", np.stack([np.asarray(picture.convert("RGB"))] * 2))
        return {
            name: {"PYTHONPATH": str(tmp_path / name), "PICTURES": str(tmp_path / "p.npy")}
            for name in STAND_INS
        }

    def test_opencv(self, live, bundle, modules, expected):
        watching = live("watch", bundle, "--camera", "3", **modules["cv2"])
        for _ in range(2):
            assert watching.answer()["top"] == expected[0]["top"]
        code, err = watching.end()
        assert code == 1
        assert "released" in err and "camera 3 gives no pictures" in err

    def test_picamera2_is_taken_when_it_is_there(self, live, bundle, modules, expected, tmp_path):
        hits = tmp_path / "hits"
        watching = live("watch", bundle, "--camera", "--save-hits", hits, **modules["picamera2"])
        for _ in range(3):
            assert watching.answer()["top"] == expected[0]["top"]
        code, err = watching.stop()
        assert (code, "released" in err) == (0, True)
        kept = np.asarray(Image.open(min(hits.iterdir())))
        np.testing.assert_array_equal(kept, np.load(tmp_path / "p.npy")[0])

    def test_picamera2_that_vanishes(self, live, bundle, modules, expected, tmp_path):
        module = tmp_path / "picamera2/picamera2.py"
        text = module.read_text()
        text = text.replace(
            "return self.left[0]", "return self.left.pop() if self.left else gone()"
        )
        module.write_text(text + "\ndef gone():\n    raise RuntimeError('Camera timed out')\n")
        watching = live("watch", bundle, "--camera", **modules["picamera2"])
        for _ in range(2):
            assert watching.answer()["top"] == expected[0]["top"]
        code, err = watching.end()
        assert code == 1
        assert "released" in err and "Camera timed out" in err and "Traceback" not in err

    def test_no_camera_at_all(self, command, bundle):
        answer = command("watch", bundle, "--camera", "0")
        assert answer.code == 4
        assert "cannot be used" in answer.err and "apt install" in answer.err


class TestServe:
    @pytest.fixture
    def address(self, live, bundle):
        return self.start(live, bundle)

    def start(self, live, *arguments):
        serving = live("serve", *arguments, "--port", "0")
        while line := serving.err.get(timeout=DEADLINE_S):
            found = re.search(r"(http://127\.0\.0\.1:\d+)/predict", line)
            if found:
                return serving, found[1]
        raise AssertionError(serving.end())

    def post(self, address, body):
        try:
            with urllib.request.urlopen(address, body, timeout=DEADLINE_S) as answer:
                return answer.status, json.load(answer)
        except urllib.error.HTTPError as error:
            with error:
                return error.code, json.load(error)

    def test_a_picture(self, address, bundle, expected):
        _, base = address
        for line in expected:
            status, found = self.post(f"{base}/predict", Path(line["file"]).read_bytes())
            assert status == 200
            assert found == {"model": "digits", "version": 2, **found}
            assert found["top"] == line["top"]

    def test_tensors_as_tensorflow_serving_has_them(self, address, runner, bundle):
        opened = runner.open_target(str(bundle))
        model = runner.Model(opened, opened.artifact(), runner.parse(["info", str(bundle)]))
        x = np.random.default_rng(2).uniform(-1, 1, (3, 12, 12, 1)).astype(np.float32)
        expected = [model({"image": row})["digit"].tolist() for row in x]
        url = f"{address[1]}/v1/models/digits:predict"
        for body, answer in (
            ({"instances": x.tolist()}, {"predictions": expected}),
            ({"instances": [{"image": r} for r in x.tolist()]}, {"predictions": expected}),
            ({"inputs": x.tolist()}, {"outputs": expected}),
            ({"inputs": {"image": x.tolist()}}, {"outputs": expected}),
        ):
            assert self.post(url, json.dumps(body).encode()) == (200, answer)

    def test_several_inputs_and_outputs(self, live, built):
        _, base = self.start(live, built / "loose/two.tflite")
        body = {"instances": [{"b": [1, 1, 1, 1], "a": [1, 2, 3, 4]}]}
        status, found = self.post(f"{base}/v1/models/model:predict", json.dumps(body).encode())
        row = {"total": 2.0, "double": [2.0, 4.0, 6.0, 8.0]}
        assert (status, found) == (200, {"predictions": [row]})
        body = {"inputs": {"b": [[1, 1, 1, 1]] * 2, "a": [[1, 2, 3, 4]]}}
        status, found = self.post(f"{base}/v1/models/model:predict", json.dumps(body).encode())
        assert status == 400 and "number of samples" in found["error"]
        body = {"inputs": {"b": [[1, 1, 1, 1]], "a": [[1, 2, 3, 4]]}}
        status, found = self.post(f"{base}/v1/models/model:predict", json.dumps(body).encode())
        assert found == {"outputs": {name: [value] for name, value in row.items()}}

    def test_bad_requests(self, bundle, address):
        serving, base = address
        tensors = "/v1/models/digits:predict"
        cases = [("/predict", b"no picture", 400), ("/predict", b"", 400), ("/nothing", b"{}", 404)]
        bodies = [
            b"{", b"[1]", b'{"instances": 1}', b'{"instances": [[1, 2]]}', b'{"inputs": 3}',
            b'{"instances": [[[1], [1, 2]]]}', b'{"instances": ["/etc/passwd"]}', b'{"other": 1}',
            b'{"instances": [{"image": "/etc/passwd"}]}', b'{"instances": [{"other": 1}]}',
        ]  # fmt: skip
        for path, body, status in [*cases, *((tensors, body, 400) for body in bodies)]:
            found_status, found = self.post(base + path, body)
            assert (found_status, list(found)) == (status, ["error"]), body
        picture = (bundle / "golden/000.image.png").read_bytes()
        assert self.post(f"{base}/predict", picture)[0] == 200
        code, err = serving.stop()
        assert code == 0
        assert "Traceback" not in err

    def test_a_body_that_is_too_large(self, address):
        request = urllib.request.Request(f"{address[1]}/predict", method="POST")
        request.add_header("Content-Length", str(1 << 40))
        with pytest.raises(urllib.error.HTTPError) as error:
            urllib.request.urlopen(request, timeout=DEADLINE_S)
        with error.value:
            assert error.value.code == 413
