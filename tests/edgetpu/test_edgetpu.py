"""The Edge TPU: what is predicted against what the real compiler did, and its log."""

import json
import shutil
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from packager import tflite_file
from packager.bundle import Artifact, Runtime
from packager.console import Reporter
from packager.edgetpu import build, checker, compiler, log, operators, rules
from packager.edgetpu.operators import Operator, Tensor, Verdict
from packager.errors import ConversionError, EnvironmentLacks, UnsupportedError
from tests.conftest import SHARED, packager

CORAL = SHARED / "coral"
PAIRS = (
    {p["name"]: p for p in json.loads((CORAL / "mapping.json").read_text())["pairs"]}
    if CORAL.is_dir()
    else {}
)
COMPILER = Path(__file__).with_name("stand_in_compiler.py")


def wrong(name, without=()):
    """Operators that are placed, and on the wrong side."""
    found = checker.check(CORAL / f"{name}.tflite", without)
    on_cpu = set(PAIRS[name]["cpu_operator_indices"])
    placed = [op for op in found.operators if op.where != checker.UNKNOWN]
    assert len(found.operators) == PAIRS[name]["ops_total"]
    return found, [op for op in placed if (op.where == checker.CPU) != (op.index in on_cpu)]


@pytest.mark.parametrize("name", PAIRS)
def test_agrees_with_the_real_compiler(name, shared):
    found, differing = wrong(name)
    assert differing == []
    assert found.count(checker.UNKNOWN) == 0
    assert found.compiles == "yes"
    assert found.count(checker.TPU) == PAIRS[name]["edgetpu_count"]
    assert all(op.reason and op.source for op in found.operators if op.where == checker.CPU)


@pytest.mark.parametrize("name", PAIRS)
def test_without_what_one_model_showed_it_is_right_or_unknown(name, shared):
    found, differing = wrong(name, without=(name,))
    assert differing == []
    # Knowing nothing would be right, too.
    assert found.count(checker.UNKNOWN) <= 0.2 * len(found.operators)


def test_the_evidence_names_models_that_exist(shared):
    named = {r.model for r in rules.RESIZES} | set(rules.SEEN.values())
    named |= {model for rule in rules.TABLE.values() for model in rule.seen.values()}
    assert named <= set(PAIRS)


def test_the_parameters_are_those_of_the_file(shared):
    name = "mobilenet_v1_0.25_128_quant"
    size = (CORAL / f"{name}.tflite").stat().st_size
    found = checker.check(CORAL / f"{name}.tflite")
    assert 0.85 * size < found.parameter_bytes < size
    assert found.cached


def test_more_parameters_than_the_chip_has_room_for_are_streamed(monkeypatch, shared):
    monkeypatch.setattr(checker, "ON_CHIP_BYTES", 400_000)
    assert not checker.check(CORAL / "mobilenet_v1_0.25_128_quant.tflite").cached


def tensor(shape=(1, 8, 8, 4), dtype="int8", index=0, values=None, scales=1, zero_point=0):
    if values is not None:
        values = np.asarray(values)
    return Tensor(index, dtype, tuple(shape), scales, zero_point, values, False, False)


def operator(name, inputs, outputs, version=1, **options):
    return Operator(0, name, version, tuple(inputs), tuple(outputs), options, "")


SAME = ([tensor()], [tensor(index=1)])
AXIS = tensor((1,), "int32", values=[3], scales=0)
ZEROS = tensor(values=[3], zero_point=3)
CASES = [
    (operator("ADD", *SAME, version=2), "yes", ""),
    (operator("ADD", [tensor(dtype="float32")], [tensor()]), "no", "float32"),
    (operator("RELU", [tensor((2, 8, 8, 4))], [tensor((2, 8, 8, 4))]), "no", "innermost three"),
    (operator("RELU", [tensor((1, 2, 8, 8, 4))], [tensor((1, 2, 8, 8, 4))]), "no", "innermost"),
    (operator("AVERAGE_POOL_2D", *SAME, fusedActivationFunction=1), "no", "fused"),
    (operator("CONV_2D", *SAME, dilationWFactor=2, dilationHFactor=1), "no", "dilation"),
    (operator("FULLY_CONNECTED", [tensor((1, 4))], [tensor((1, 4))], version=4), "yes", ""),
    (operator("FULLY_CONNECTED", [tensor((1, 4))], [tensor((1, 4))], version=5), "no", "version 5"),
    (operator("FULLY_CONNECTED", [tensor((4, 4))], [tensor((4, 4))]), "no", "one dimension"),
    (
        operator("FULLY_CONNECTED", [tensor((1, 4)), tensor((4, 4), scales=4, values=[1])],
                 [tensor((1, 4))], version=4),
        "unknown", "scale for each channel",
    ),
    (operator("MEAN", [tensor((1, 8, 8, 6)), AXIS], [tensor((1, 8, 8, 1))]), "no", "of 4"),
    (operator("MEAN", [tensor(), AXIS], [tensor((1, 8, 8, 1))]), "yes", ""),
    (operator("SOFTMAX", [tensor((1, 20000))], [tensor((1, 20000))]), "no", "16,000"),
    (operator("SOFTMAX", [tensor((1, 4, 4))], [tensor((1, 4, 4))]), "no", "more than one dim"),
    (operator("PACK", *SAME, axis=0), "no", "batch"),
    (operator("SQUEEZE", *SAME, squeezeDims=[1]), "no", "leading"),
    (operator("PRELU", [tensor(), tensor((8, 8, 4), values=[1])], [tensor()]), "no", "alpha"),
    (operator("RESIZE_BILINEAR", [tensor()], [tensor((1, 16, 16, 4))], version=2), "yes", ""),
    (operator("RESIZE_BILINEAR", [tensor()], [tensor((1, 64, 64, 4))]), "unknown", "8 times"),
    (operator("RESIZE_BILINEAR", [tensor()], [tensor((1, 160, 160, 4))]), "no", "20 times"),
    (operator("RESIZE_NEAREST_NEIGHBOR", *SAME, version=3), "no", "version 3"),
    (operator("CONCATENATION", [tensor(), ZEROS], [tensor()]), "yes", ""),
    (operator("CONCATENATION", [tensor(), tensor(values=[3])], [tensor()]), "no", "all zeros"),
    (operator("ADD", *SAME, version=7), "unknown", "no source tells"),
    # An operator that no table has: nothing is documented, so nothing is claimed.
    (operator("HARD_SWISH", *SAME), "unknown", "not in the table"),
    (operator("SomebodysOp", *SAME), "unknown", "not in the table"),
]  # fmt: skip


@pytest.mark.parametrize(("op", "verdict", "text"), CASES)
def test_each_rule(op, verdict, text):
    found = rules.judge(op)
    assert (found.verdict, text in found.reason) == (Verdict(verdict), True), found
    assert found.source
    assert found.advice or verdict == "yes"


def test_float_files_and_free_axes_do_not_compile(digits_bundle):
    found = checker.check(digits_bundle / "tflite/digits.float32.tflite")
    assert (found.compiles, found.count(checker.TPU)) == ("no", 0)
    assert "not quantized" in found.reason
    model = tflite_file.read(digits_bundle / "tflite/digits.int8.tflite")
    model.subgraphs[0].tensors[model.subgraphs[0].inputs[0]].shapeSignature = [-1, 28, 28, 1]
    assert checker.predict(model).compiles == "no"


def test_uint8_ends_answer_the_same(digits_bundle, tmp_path):
    """A QUANTIZE at each end moves the zero point by 128 and nothing else."""
    from packager.children import Child
    from packager.quantize.plan import Plan

    base = digits_bundle / "tflite/digits.float32.tflite"
    np.save(tmp_path / "image.npy", np.random.default_rng(0).random((6, 28, 28, 1), np.float32))
    files = {}
    with Child("packager.quantize.worker") as litert:
        litert.call("calibrate", "x", model=base, samples=tmp_path, ranges=tmp_path / "r")
        for uint8 in (False, True):
            files[uint8] = tmp_path / f"{uint8}.tflite"
            answer = litert.call(
                "quantize", "x", model=base, target=files[uint8], mode="edgetpu",
                ranges=tmp_path / "r", plan=Plan(dense="per_tensor", uint8_io=uint8).to_json(),
            )  # fmt: skip
            dtype = "uint8" if uint8 else "int8"
            assert [end["dtype"] for end in answer["io"]] == [dtype, dtype]
    assert checker.check(files[True]).count(checker.TPU) == 16
    assert checker.check(files[False]).count(checker.TPU) == 14
    assert outputs(files[True], tmp_path) == outputs(files[False], tmp_path)


def outputs(path, folder):
    """Real outputs of the device runner, as text."""
    from packager.verify import runners

    target = folder / f"{path.stem}-out"
    target.mkdir()
    (folder / "in").mkdir(exist_ok=True)
    shutil.copy(folder / "image.npy", folder / "in/image.npy")
    runners.edge().run(path, folder / "in", target)
    return np.load(target / "digit.npy").tolist()


WHOLE = """Edge TPU Compiler version 16.0.384591198
Started a compilation timeout timer of 180 seconds.

Model compiled successfully in 96 ms.

Input model: x.tflite
Input size: 7.02MiB
Output model: x_edgetpu.tflite
Output size: 7.14MiB
On-chip memory used for caching model parameters: 80.00KiB
On-chip memory remaining for caching model parameters: 6.04MiB
Off-chip memory used for streaming uncached model parameters: 0.00B
Number of Edge TPU subgraphs: 1
Total number of operations: 14
Operation log: x_edgetpu.log

Operator                       Count      Status

CONV_2D                        8          Mapped to Edge TPU
SOFTMAX                        6          Mapped to Edge TPU
Compilation child process completed within timeout period.
Compilation succeeded!
"""
PARTLY = """Edge TPU Compiler version 15.0.340273435

Model compiled successfully in 1291 ms.

Input size: 512.00B
On-chip memory available for caching model parameters: 7.67MiB
Number of Edge TPU subgraphs: 1
Total number of operations: 191
Operation log: x_edgetpu.log

Model successfully compiled but not all operations are supported by the Edge TPU. A percentage of
the model will instead run on the CPU, which is slower.
Number of operations that will run on Edge TPU: 1
Number of operations that will run on CPU: 190
See the operation log file for individual operation details.

Operator                       Count      Status

"""


def test_the_log_of_a_model_that_is_mapped_as_a_whole():
    found = log.parse(WHOLE)
    assert (found.version, found.compiled, found.compile_ms) == ("16.0.384591198", True, 96)
    assert (found.operations, found.on_edge_tpu, found.on_cpu, found.subgraphs) == (14, 14, 0, 1)
    assert found.sizes == {
        "input_bytes": round(7.02 * 2**20), "output_bytes": round(7.14 * 2**20),
        "cached_bytes": 80 * 1024, "remaining_bytes": round(6.04 * 2**20), "streamed_bytes": 0,
    }  # fmt: skip
    assert [(m.op, m.count, m.mapped) for m in found.mapping] == [
        ("CONV_2D", 8, True), ("SOFTMAX", 6, True),
    ]  # fmt: skip
    assert found.error == ""


@pytest.mark.parametrize("status", log.STATUSES)
def test_every_documented_status_is_read(status):
    found = log.parse(PARTLY + f"RESIZE_BILINEAR                3          {status}\n")
    assert (found.on_edge_tpu, found.on_cpu, found.operations) == (1, 190, 191)
    assert found.sizes["remaining_bytes"] == round(7.67 * 2**20)
    assert found.mapping == (log.Mapping("RESIZE_BILINEAR", 3, status),)
    assert found.mapping[0].known
    assert found.mapping[0].mapped == (status == "Mapped to Edge TPU")


def test_a_status_that_nobody_documented_is_kept_and_marked():
    (line,) = log.parse(PARTLY + "ADD            1      Something else\n").mapping
    assert (line.status, line.known, line.mapped) == ("Something else", False, False)


@pytest.mark.parametrize(
    ("printed", "error", "retry"),
    [
        (
            "Invalid model: x.tflite\nModel not quantized\n",
            "Invalid model: x.tflite; Model not q",
            0,
        ),
        ("Internal compiler error. Aborting! \n", "Internal compiler error. Aborting!", 1),
        ("ERROR: Didn't find op for builtin opcode 'X' version '9'\n", "ERROR: Didn't find op", 0),
        ("Started a compilation timeout timer of 180 seconds.\n", "no model and no reason", 0),
    ],
)
def test_failures(printed, error, retry):
    found = log.parse(f"Edge TPU Compiler version 16.0.384591198\n{printed}")
    assert not found.compiled
    assert error in found.error
    assert found.worth_a_retry == bool(retry)


@pytest.fixture
def stand_in(tmp_path, monkeypatch):
    """Puts the stand-in on PATH; the function that is returned says what each run does."""
    binaries, orders = tmp_path / "bin", tmp_path / "orders"
    binaries.mkdir()
    orders.mkdir()
    program = binaries / compiler.PROGRAM
    program.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{COMPILER}" "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(binaries), prepend=":")
    monkeypatch.setenv("STAND_IN", str(orders))

    def say(*runs):
        for number, text in enumerate(runs, 1):
            (orders / str(number)).write_text(text)
        return orders

    return say


@pytest.fixture
def model(tmp_path):
    path = tmp_path / "x.tflite"
    path.write_bytes(b"0123456789")
    (tmp_path / "out").mkdir()
    return path


def test_compiles(stand_in, model, tmp_path):
    orders = stand_in(WHOLE)
    made = compiler.compile_file(model, tmp_path / "out")
    assert made.path.is_file() and made.log.on_edge_tpu == 14
    ran = (orders / "ran.1").read_text()
    assert ran == f"--show_operations --out_dir {tmp_path / 'out'} {model}"


def test_an_internal_error_is_tried_once_more(stand_in, model, tmp_path):
    orders = stand_in("Internal compiler error. Aborting! \nexit 1", WHOLE)
    assert compiler.compile_file(model, tmp_path / "out").log.compiled
    assert len(list(orders.glob("ran.*"))) == 2


@pytest.mark.parametrize("order", [f"signal {signal.SIGSEGV:d}", "Internal compiler error\nexit 1"])
def test_crashing_twice_is_an_error(stand_in, model, tmp_path, order):
    orders = stand_in(order)
    with pytest.raises(ConversionError, match="twice"):
        compiler.compile_file(model, tmp_path / "out")
    assert len(list(orders.glob("ran.*"))) == 2


def test_a_refusal_is_not_tried_again(stand_in, model, tmp_path):
    orders = stand_in("Invalid model: x.tflite\nModel not quantized\nexit 1")
    with pytest.raises(UnsupportedError, match="Model not quantized"):
        compiler.compile_file(model, tmp_path / "out")
    assert len(list(orders.glob("ran.*"))) == 1


def test_it_may_not_take_for_ever(stand_in, model, tmp_path):
    stand_in("sleep 60")
    with pytest.raises(ConversionError, match=r"more than 0 s|more than 1 s"):
        compiler.compile_file(model, tmp_path / "out", timeout_s=0.5)


def test_no_compiler(monkeypatch, model, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentLacks, match="not installed"):
        compiler.compile_file(model, tmp_path / "out")


@pytest.fixture
def job(digits_bundle, tmp_path):
    """A build under way that has made the file for the Edge TPU."""
    folder = tmp_path / "bundle"
    (folder / "tflite").mkdir(parents=True)
    shutil.copy(digits_bundle / "tflite/digits.int8.tflite", folder / "tflite/m.edgetpu.tflite")
    artifact = Artifact(build.INPUT, "tflite/m.edgetpu.tflite", Runtime("tflite"))
    (tmp_path / "work").mkdir()
    return SimpleNamespace(
        artifacts=[artifact], folder=folder, work=tmp_path / "work", edgetpu={},
        reporter=Reporter(quiet=True), manifest=SimpleNamespace(name="m"),
    )  # fmt: skip


def test_the_compiled_file_joins_the_bundle(stand_in, job):
    stand_in(WHOLE.replace("SOFTMAX", "MAX_POOL_2D"))
    build.finish(job)
    assert [a.id for a in job.artifacts] == [build.INPUT, build.COMPILED]
    assert (job.folder / "tflite/m.int8_edgetpu.tflite").stat().st_size == job.artifacts[
        1
    ].size_bytes
    # What the compiler decides otherwise is told: the file has 5 convolutions.
    said = " ".join(job.reporter.warnings)
    assert "CONV_2D: predicted 5 of 5 on the Edge TPU, the compiler maps 8" in said
    assert job.edgetpu["compiler"]["differences"]


def test_without_a_compiler_the_prediction_stays(job, monkeypatch, tmp_path):
    monkeypatch.setenv("PATH", str(tmp_path))
    build.finish(job)
    assert [a.id for a in job.artifacts] == [build.INPUT]
    assert job.edgetpu["compiles"] == "yes" and "compiler" not in job.edgetpu
    assert "is not installed" in job.reporter.warnings[0]


def test_a_refusal_loses_the_compiled_file_only(stand_in, job):
    stand_in("Invalid model\nModel not quantized\nexit 1")
    build.finish(job)
    assert [a.id for a in job.artifacts] == [build.INPUT]
    assert "Model not quantized" in job.edgetpu["compiler"]["error"]


def test_explain_edgetpu_on_a_file_and_on_a_bundle(digits_bundle, shared, tmp_path):
    name = "deeplabv3_mnv2_dm05_pascal_quant"
    ran = packager("explain", "--edgetpu", CORAL / f"{name}.tflite", "--json")
    assert ran.code == 0, ran.err
    assert ran.json["counts"] == {"edge tpu": 64, "cpu": 8, "unknown": 0}
    ran = packager("explain", "--edgetpu", CORAL / f"{name}.tflite")
    assert "64 of 72 operators" in ran.out and "resize in steps of 2" in ran.out
    assert "litert-torch#384" in packager("explain", "--edgetpu", digits_bundle).out
    (tmp_path / "x.tflite").write_bytes(b"no model")
    ran = packager("explain", "--edgetpu", tmp_path / "x.tflite")
    assert ran.code == 1 and "is no .tflite file" in ran.err


def test_operators_show_their_attributes(shared):
    model = tflite_file.read(CORAL / "keras_lstm_mnist_ptq.tflite")
    lstm = next(op for op in operators.read(model) if "LSTM" in op.name)
    assert any(t.is_state for t in lstm.inputs)
    assert {t.dtype for t in lstm.activations} == {"int8"}
