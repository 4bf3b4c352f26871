"""The training loop: strategies, checkpoints, what goes wrong. Each starts TensorFlow: soak."""

import json
import os
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from packager.children import Child
from packager.errors import ChildCrashed, ConfigError, PackagerError
from tests.conftest import DIGITS, ROOT, packager
from tests.quantize import bad_layer

pytestmark = [pytest.mark.tf, pytest.mark.soak, pytest.mark.whole]

LABELS = {
    "task": "classification",
    "activations": ["softmax"],
    "threshold": None,
    "labelled": True,
}
SETTINGS = {"epochs": 2, "batch_size": 32, "learning_rate": 5e-4, "loss": "labels", "seed": 0}


@pytest.fixture(scope="session")
def made(once):
    def make(folder):
        script = ROOT / "tests" / "quantize" / "make_qat_models.py"
        done = subprocess.run(
            [sys.executable, script, folder], capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr

    return once("qat-models", make)


class Run:
    """One training process, asked to train."""

    def __init__(self, made, *, environment=None, checkpoints=None, answer=LABELS, **settings):
        self.events = []
        self.child = Child(
            "packager.quantize.qat.worker", environment=environment or {}, trusted=True
        )
        self.child.on_event = self.events.append
        self.pending = [
            self.child.submit("start", "starting", settings={**SETTINGS, **settings}),
            self.child.submit(
                "open", "opening", source=made / "tiny.keras", format="keras3", saved_by="keras"
            ),
            self.child.submit(
                "train", "training", samples=made / "samples", answer=answer,
                checkpoints=checkpoints, digest="test",
            ),
        ]  # fmt: skip

    def result(self):
        try:
            return [pending.result() for pending in self.pending][-1]
        finally:
            self.child.close(at_once=True)


def cluster(count=2):
    """TF_CONFIG of each process on loopback."""
    addresses = []
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
        addresses.append(f"127.0.0.1:{each.getsockname()[1]}")
    for each in sockets:
        each.close()
    return [
        {"TF_CONFIG": json.dumps(
            {"cluster": {"worker": addresses}, "task": {"type": "worker", "index": index}}
        )}
        for index in range(count)
    ]  # fmt: skip


@pytest.fixture(scope="session")
def alone(made):
    return Run(made).result()


def same(one, other):
    """The losses of all steps; they move by far more than they may differ."""
    assert len(one["losses"]) == len(other["losses"]) == 2 * (198 // 32)
    assert np.ptp(one["losses"]) > 0.05
    # Sums in another order move values over a rounding border (up to 4e-5 of the loss was seen, or
    # nothing), and the next steps with them; with SGD in place of Adam the second step differs by
    # 1e-7, the weights by 1e-6. Normalizations of each replica alone move it by 1.4e-2.
    np.testing.assert_allclose(one["losses"][0], other["losses"][0], rtol=2e-4)
    np.testing.assert_allclose(one["losses"], other["losses"], rtol=0.06)
    np.testing.assert_allclose(*(run["history"][-1]["val_loss"] for run in (one, other)), rtol=0.03)


@pytest.mark.parametrize("strategy", ["mirrored", "central_storage"])
def test_two_devices_have_the_losses_of_one(made, alone, strategy):
    same(alone, Run(made, strategy=strategy, logical_cpus=2).result())


def test_two_processes_have_the_losses_of_one(made, alone, tmp_path):
    shared = tmp_path / "shared"
    runs = [
        Run(made, environment=each, strategy="multiworker", checkpoints=shared)
        for each in cluster()
    ]
    results = [run.result() for run in runs]
    for result in results:
        same(alone, result)
    assert [result["chief"] for result in results] == [True, False]
    assert not runs[1].events  # the chief alone shows and writes
    assert [path.name for path in shared.iterdir()] == ["checkpoint.npz"]


def test_workers_with_other_settings_are_refused(made, tmp_path):
    runs = [
        Run(made, environment=each, strategy="multiworker", learning_rate=rate)
        for each, rate in zip(cluster(), (1e-3, 2e-3), strict=True)
    ]
    for run in runs:
        with pytest.raises(ConfigError, match="do not train the same"):
            run.result()


def test_a_killed_worker_ends_the_job_and_a_restart_resumes(made, alone, tmp_path):
    shared = tmp_path / "shared"

    def begin(epochs):
        return [
            Run(made, environment=each, strategy="multiworker", checkpoints=shared, epochs=epochs,
                checkpoint_steps=2, worker_timeout=60)
            for each in cluster()
        ]  # fmt: skip

    chief, other = begin(40)
    wait_for(shared / "checkpoint.npz")
    os.kill(other.child._process.pid, signal.SIGKILL)
    killed = time.monotonic()
    with pytest.raises(PackagerError) as raised:
        chief.result()
    assert time.monotonic() - killed < 150
    # The message, or the end of the process that `process.py` explains.
    lost = "another worker was lost" in raised.value.message
    assert lost or isinstance(raised.value, ChildCrashed)
    other.child.close(at_once=True)
    stored = steps_in(shared)
    assert stored >= 2
    chief, other = begin(40)
    for _ in range(50):
        chief.events.extend(read_event(chief))
        if any("step" in event for event in chief.events):
            break
    assert chief.events[0]["resumed"] == steps_in(shared) >= stored
    for run in (chief, other):
        run.child.close(at_once=True)


def wait_for(path):
    end = time.monotonic() + 200
    while not path.exists():
        assert time.monotonic() < end, f"{path} was not written"
        time.sleep(0.05)


def steps_in(folder):
    with np.load(folder / "checkpoint.npz") as stored:
        return json.loads(str(stored["state"]))["step"]


def read_event(run):
    """One more event of a process that is still training."""
    line = json.loads(run.child._process.stdout.readline())
    return [line["event"]] if "event" in line else []


def test_an_interrupted_training_ends_as_if_it_had_not_been(made, alone, tmp_path):
    run = Run(made, checkpoints=tmp_path, checkpoint_steps=1)
    wait_for(tmp_path / "checkpoint.npz")
    run.child.close(at_once=True)
    at = steps_in(tmp_path)
    assert 0 < at < 12
    result = Run(made, checkpoints=tmp_path, checkpoint_steps=1).result()
    assert result["resumed_at"] == at
    np.testing.assert_allclose(result["losses"], alone["losses"][at:], rtol=0.06)
    assert [entry["epoch"] for entry in result["history"]] == [0, 1, 2]
    losses = [[entry["val_loss"] for entry in run["history"]] for run in (result, alone)]
    np.testing.assert_allclose(*losses, rtol=0.06)


def test_an_interrupted_build_goes_on(made, tmp_path):
    command = [
        sys.executable, "-m", "packager", "build", made / "tiny.keras", "--task", "classification",
        "--train", made / "train.npz", "--qat-epochs", "30", "--qat-checkpoint-steps", "3",
        "--only", "tflite/qat_int8", "--output", tmp_path, "--no-verify",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as first:
        wait_for(tmp_path / ".tiny.qat" / "checkpoint.npz")
        first.send_signal(signal.SIGINT)
        _, errors = first.communicate(timeout=60)
    assert first.returncode == 130
    assert "the same command goes on from its checkpoint" in errors
    assert [path.name for path in tmp_path.iterdir()] == [".tiny.qat"]
    again = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    assert again.returncode == 0, again.stderr
    assert "checkpoint found" in again.stderr
    assert "epoch 30/30" in again.stderr
    assert not (tmp_path / ".tiny.qat").exists()


def test_the_seed_decides(made, alone):
    np.testing.assert_allclose(Run(made).result()["losses"], alone["losses"], rtol=0.06)
    assert not np.allclose(Run(made, seed=1).result()["losses"], alone["losses"], rtol=0.06)


def test_a_loss_that_is_no_number_stops_and_keeps_the_best(made):
    result = Run(made, learning_rate=1e38).result()
    assert "the loss became" in result["stopped"]
    assert result["best_epoch"] == 0
    assert np.isfinite([entry["val_loss"] for entry in result["history"]]).all()


def test_distilling_needs_no_labels(made):
    result = Run(made, answer={**LABELS, "labelled": False}).result()
    assert result["objective"] == "distillation"
    assert result["metric"] == "agreement"
    assert result["history"][result["best_epoch"]]["val_metric"] >= 0.85
    assert np.mean(result["losses"][6:]) < 0.7 * np.mean(result["losses"][:6])


def test_a_batch_that_cannot_be_divided_is_refused(made):
    with pytest.raises(ConfigError, match="cannot be divided among 2 replicas"):
        Run(made, strategy="mirrored", logical_cpus=2, batch_size=33).result()


@pytest.mark.parametrize("precision", ["mixed_bfloat16", "mixed_float16"])
def test_half_precision_learns_the_same(made, alone, precision):
    result = Run(made, precision=precision).result()
    assert not np.allclose(result["losses"], alone["losses"], rtol=1e-4)
    np.testing.assert_allclose(result["losses"], alone["losses"], atol=0.05)


def test_no_worker_comes(made):
    run = Run(made, environment=cluster()[0], strategy="multiworker", worker_timeout=20)
    begun = time.monotonic()
    with pytest.raises(ChildCrashed, match="the process that was starting died"):
        run.result()
    assert time.monotonic() - begun < 120


@pytest.mark.parametrize(
    ("file", "flags", "words"),
    [
        ("unlabelled", ("--qat-loss", "labels"), "no labels in it"),
        ("out_of_range", (), "class numbers from 1 to 10"),
        ("wrong_shape", (), "expects float32 [28, 28, 1], received"),
    ],
)
def test_wrong_samples_are_refused_before_the_work(made, tmp_path, file, flags, words):
    ran = packager(
        "build", made / "tiny.keras", "--task", "classification", "--train", made / f"{file}.npz",
        *flags, "--output", tmp_path, "--only", "tflite/qat_int8",
    )  # fmt: skip
    assert ran.code == 2
    assert words in ran.err
    assert not list(tmp_path.rglob("*.tflite"))


def test_a_keras2_layer_without_an_exact_form_is_named(tmp_path):
    script = ROOT / "tests/loaders/keras2_models.py"
    command = [sys.executable, script, "--only", tmp_path, "local2d"]
    subprocess.run(command, capture_output=True, check=True)
    with np.load(tmp_path / "local2d.npz") as stored:
        np.savez(tmp_path / "train.npz", x=np.repeat(stored["x0"], 20, axis=0))
    ran = packager(
        "build", tmp_path / "local2d.h5", "--train", tmp_path / "train.npz", "--output", tmp_path,
        "--only", "tflite/qat_int8", "--only", "tflite/float32", "--json",
    )  # fmt: skip
    assert ran.code == 1, ran.err
    assert [a["id"] for a in ran.json["artifacts"]] == ["tflite/float32"]
    (refused,) = ran.json["refused"]
    assert "needs layers of Keras 3" in refused["reason"]
    assert "is a LocallyConnected2D, which has no exact form" in refused["reason"]
    assert "tflite/int8 needs no training" in refused["hint"]


def test_require_integer(made, tmp_path):
    common = (
        "build", made / "elu.keras", "--task", "classification", "--train", made / "train.npz",
        "--qat-epochs", "1", "--only", "tflite/qat_int8", "--output", tmp_path, "--no-verify",
    )  # fmt: skip
    refused = packager(*common, "--require-integer")
    assert refused.code == 1
    assert "these layers have no int8 form: 'elu' (ELU)" in refused.err
    kept = packager(*common)
    assert kept.code == 0, kept.err
    assert "(ELU) has no int8 form and stays float" in kept.err


def test_a_build_has_the_int8_file_and_the_float_model(made, tmp_path):
    ran = packager(
        "build", made / "tiny.keras", "--task", "classification", "--train", made / "train.npz",
        "--evaluation", ROOT / "examples/digits/data/evaluation.npz", "--preprocess", "0..1",
        "--qat-epochs", "1", "--only", "tflite/qat_int8", "--output", tmp_path, "--json",
        # A net that is sure of little changes some answers, most for the better.
        "--min-agreement", "0.8",
    )  # fmt: skip
    assert ran.code == 0, ran.err
    (artifact,) = ran.json["artifacts"]
    assert artifact["quantization"] == {
        "mode": "qat_int8", "integer_op_share": 1.0, "float_ops": []
    }  # fmt: skip
    assert artifact["gate"]["status"] == "passed"
    assert artifact["metrics"]["drop"] <= 0.01
    bundle = tmp_path / "tiny" / "1"
    record = json.loads((bundle / "qat" / "training.json").read_text())
    assert [entry["epoch"] for entry in record["history"]] == [0, 1]
    assert (bundle / "qat" / "tiny.keras").stat().st_size > 1000
    assert "epoch 1/1" in ran.err
    assert not list(tmp_path.glob(".*"))
    again = packager("verify", bundle)
    assert again.code == 0, again.err


def auto(model, folder, *flags):
    """Builds with `--auto --train`; answers what was printed, and what the ladder tried."""
    data = DIGITS / "data"
    ran = packager(
        "build", model, "--task", "classification", "--preprocess", "0..1", "--name", "m",
        "--only", "tflite/int8", "--only", "tflite/qat_int8", "--auto", "--require-integer",
        "--calibration", data / "calibration.npz", "--evaluation", data / "evaluation.npz",
        "--train", data / "train.npz", "--qat-epochs", 3, "--qat-learning-rate", 3e-3,
        "--max-drop", 0.01, "--output", folder, "--json", *flags,
    )  # fmt: skip
    (bundle,) = (folder / "m").iterdir()
    report = json.loads((bundle / "report/report.json").read_text())
    return ran, bundle, report["measured"]["auto"]["tflite/int8"]


@pytest.fixture(scope="session")
def worse(made, once):
    """The small net with every other channel of its first layer a hundred times the others."""

    def make(folder):
        bad_layer.in_keras_file(
            made / "tiny.keras", folder / "m.keras", "batch_normalization", "depthwise_conv2d"
        )

    return once("qat-worse", make) / "m.keras"


def test_auto_trains_where_nothing_else_keeps_the_gates(worse, tmp_path):
    # int8 loses 38 points and more, and int16 layers make the file too large.
    ran, bundle, climb = auto(worse, tmp_path, "--max-bytes", 7460, "--min-agreement", 0.5)
    assert ran.code == 0, ran.err
    (artifact,) = ran.json["artifacts"]
    assert (artifact["id"], artifact["gate"]["status"]) == ("tflite/qat_int8", "passed")
    (refused,) = ran.json["refused"]
    assert refused["id"] == "tflite/int8"
    assert refused["reason"].endswith("limit 7460), and tflite/qat_int8 does")
    assert not list(bundle.rglob("*.int8.tflite"))
    *below, last = climb["steps"]
    assert {step["rung"] for step in below} == {"calibration", "layers"}
    assert not any(step["holds"] for step in below)
    assert (last["rung"], last["holds"], last["plan"]) == ("training", True, None)
    assert climb["chosen"] == len(below)
    assert climb["reason"] == "quantization-aware training keeps the gates"
    assert last["metrics"]["accuracy"] == pytest.approx(artifact["metrics"]["accuracy"], abs=0.005)
    assert last["size_bytes"] == artifact["size_bytes"] and last["latency_ms"] > 0
    again = packager("verify", bundle)
    assert again.code == 0, again.err


def test_auto_keeps_all_for_a_look_where_training_does_not_help(worse, tmp_path):
    # Answers that differ from the float net's in a fifth of the samples, most for the better.
    ran, bundle, climb = auto(worse, tmp_path, "--max-bytes", 7460, "--qat-epochs", 1)
    assert ran.code == 3 and bundle.name == "1.rejected"
    assert [a["id"] for a in ran.json["artifacts"]] == ["tflite/int8", "tflite/qat_int8"]
    assert climb["steps"][-1]["rung"] == "training" and not climb["steps"][-1]["holds"]
    assert climb["reason"].startswith("nothing that was tried keeps the gates")


def test_auto_does_not_train_where_int8_keeps_the_gates(made, tmp_path):
    ran, bundle, climb = auto(made / "tiny.keras", tmp_path, "--min-agreement", 0.9)
    assert ran.code == 0, ran.err
    assert [a["id"] for a in ran.json["artifacts"]] == ["tflite/int8"]
    (refused,) = ran.json["refused"]
    assert refused["id"] == "tflite/qat_int8"
    assert refused["reason"] == "tflite/int8 keeps the gates already, so nothing was trained"
    assert "epoch" not in ran.err and not (bundle / "qat").exists()
    assert climb["reason"] == "int8, min_max keeps the gates; nothing was trained"
