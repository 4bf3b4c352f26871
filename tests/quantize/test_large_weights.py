"""Large weights pass by the converter and are the same numbers in the file."""

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from packager.targets import tflite
from tests.conftest import ROOT, TIME_LIMIT_S

pytestmark = pytest.mark.tf

FILL = """
import json, sys
from pathlib import Path
from types import SimpleNamespace
from packager import tflite_file
from packager.quantize import filled
folder = Path(sys.argv[1])
found = {}
for name, answer in json.loads((folder / "answers.json").read_text()).items():
    model = tflite_file.read(folder / f"{name}.outside.tflite")
    found[name] = filled.fill(model, answer["weights"], folder / f"{name}.weights")
    ops = [tflite_file.operator_name(model.operatorCodes[o.opcodeIndex])
           for o in model.subgraphs[0].operators]
    assert "FILL" not in ops or found[name], ops
    tflite_file.write(model, folder / f"{name}.filled.tflite")
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def converted(once):
    def make(folder):
        run([ROOT / "tests/quantize/make_large.py", folder])
        (folder / "missing.json").write_text(run(["-c", FILL, folder]))

    folder = once("large-weights", make)
    answers = json.loads((folder / "answers.json").read_text())
    return folder, answers, json.loads((folder / "missing.json").read_text())


def run(arguments):
    done = subprocess.run(
        [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True,
        timeout=TIME_LIMIT_S, check=False, env={"PYTHONPATH": str(ROOT), "PATH": "/usr/bin:/bin"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def outputs(path, inputs):
    from ai_edge_litert.interpreter import Interpreter

    interpreter = Interpreter(str(path))
    interpreter.allocate_tensors()
    found = []
    for sample in inputs:
        interpreter.set_tensor(interpreter.get_input_details()[0]["index"], sample[None])
        interpreter.invoke()
        found.append(interpreter.get_tensor(interpreter.get_output_details()[0]["index"])[0])
    return np.stack(found)


@pytest.mark.parametrize(
    ("name", "layouts"),
    [
        ("mixed", ["conv", "conv", "depthwise", "transposed", "transposed"]),
        ("embedding", ["same", "transposed"]),
        ("shared", ["transposed"]),
    ],
)
def test_the_file_computes_what_the_whole_conversion_does(converted, name, layouts):
    folder, answers, missing = converted
    assert sorted(weight["layout"] for weight in answers[name]["weights"]) == layouts
    assert missing[name] == []
    same_answers(folder / f"{name}.filled.tflite", folder / f"{name}.whole.tflite", name)


def test_what_the_converter_changes_is_found_and_goes_through_it(converted):
    folder, answers, missing = converted
    assert len(answers["normalised"]["weights"]) == 3
    assert missing["normalised"] == [0, 2]
    assert len(answers["again"]["weights"]) == 1
    assert missing["again"] == []
    same_answers(folder / "again.filled.tflite", folder / "normalised.whole.tflite", "again")


def same_answers(filled: Path, whole: Path, name: str) -> None:
    rng = np.random.default_rng(0)
    inputs = {
        "embedding": rng.integers(0, 1000, (4, 12), dtype=np.int32),
        "shared": rng.normal(size=(4, 280)).astype(np.float32),
    }.get(name, rng.normal(size=(4, 16, 16, 32)).astype(np.float32))
    ours, theirs = outputs(filled, inputs), outputs(whole, inputs)
    assert np.ptp(theirs) > 0.01
    assert np.abs(ours - theirs).max() <= 1e-6 * np.abs(theirs).max()
    assert abs(filled.stat().st_size / whole.stat().st_size - 1) < 0.02


def test_where_no_weight_stays_outside_nothing_is_read_of_them(tmp_path):
    """A second conversion with all weights inside leaves no folder of values to be hashed."""
    asked = []

    class Source:
        def submit(self, method, stage, **given):
            asked.append(given["inside"])
            return SimpleNamespace(result=lambda: {"inputs": [], "outputs": [], "weights": []})

    class Litert:
        def call(self, method, stage, **given):
            asked.append(given.get("values"))
            return {"missing": [0]} if given["weights"] else {"ops": {}}

    values = tmp_path / tflite._WEIGHTS
    values.mkdir()
    config = SimpleNamespace(model=SimpleNamespace(input_shape={}))
    job = SimpleNamespace(work=tmp_path, source=Source(), litert=Litert(), config=config)
    ends = {"inputs": [], "outputs": [], "weights": [{"number": 1.5, "layout": "conv"}]}
    assert tflite._complete_base(job, tmp_path / "base", ends) == {"ops": {}}
    assert asked == [values, [0], None]
    assert not values.exists()
