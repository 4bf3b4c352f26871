"""Delegates: the plumbing, with a stand-in in the place of libedgetpu. No Edge TPU is tested."""

import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.tf
SOURCE = Path(__file__).with_name("stand_in_delegate.c")


@pytest.fixture(scope="session")
def library(once):
    """The stand-in, under the name of Coral's library; needs a C compiler."""

    def make(folder):
        command = ["cc", "-shared", "-fPIC", "-o", folder / "libedgetpu.so.1", SOURCE]
        subprocess.run(command, check=True)

    return once("delegate", make) / "libedgetpu.so.1"


@pytest.fixture
def coral(bundle, change_manifest):
    """The bundle with a file for the Edge TPU: here a copy of the int8 file."""
    name = "tflite/digits.int8_edgetpu.tflite"
    shutil.copy(bundle / "tflite/digits.int8.tflite", bundle / name)

    def edit(manifest):
        int8 = next(a for a in manifest["artifacts"] if a["id"] == "tflite/int8")
        manifest["artifacts"].append({**int8, "id": "tflite/int8_edgetpu", "path": name})

    change_manifest(edit)
    return bundle


def test_library_and_options_reach_the_interpreter(program, bundle, library, tmp_path):
    log = tmp_path / "log"
    picture = bundle / "golden/000.image.png"
    flag = f"{library}:log={log}:level=a:b=c,d"
    answer = program("predict", bundle, picture, "--json", "--delegate", flag)
    assert answer.code == 0, answer.err
    written = log.read_text().splitlines()
    assert written == [f"log={log}", "level=a", "b=c,d", "prepared"]
    plain = program("predict", bundle, picture, "--json")
    assert answer.lines == plain.lines


def test_an_edge_tpu_by_device(program, coral, library, tmp_path):
    log = tmp_path / "log"
    environment = {"LD_LIBRARY_PATH": str(library.parent), "STAND_IN_LOG": str(log)}
    picture = coral / "golden/000.image.png"
    answer = program("predict", coral, picture, "--json", "--edgetpu", "usb:0", **environment)
    assert answer.code == 0, answer.err
    assert log.read_text().splitlines() == ["device=usb:0", "prepared"]
    report = program("info", coral, "--json", "--edgetpu", "pci:0").json
    assert (report["default"], report["why"]) == ("tflite/int8_edgetpu", "asked for")
    chosen = {entry["id"]: entry["delegate"] for entry in report["artifacts"]}
    assert chosen["tflite/int8_edgetpu"] == ["libedgetpu.so.1", {"device": "pci:0"}]
    assert chosen["tflite/int8"] is None


def test_without_the_library(program, coral):
    picture = coral / "golden/000.image.png"
    answer = program("predict", coral, picture, "--json", "--edgetpu", "any")
    assert (answer.code, answer.out) == (4, "")
    assert "delegate libedgetpu.so.1" in answer.err and "install.sh --edgetpu" in answer.err
    assert "Traceback" not in answer.err
    fallen = program("predict", coral, picture, "--json", "--edgetpu", "any", "--fallback-cpu")
    assert fallen.code == 0
    assert "libedgetpu.so.1" in fallen.err and "using the CPU" in fallen.err
    plain = program("predict", coral, picture, "--json", "--artifact", "tflite/int8")
    assert fallen.lines == plain.lines


def test_a_device_that_is_missing(program, bundle, library):
    picture = bundle / "golden/000.image.png"
    answer = program("predict", bundle, picture, "--delegate", f"{library}:fail=no such device")
    assert answer.code == 4
    assert "no such device" in answer.err and "Traceback" not in answer.err


def test_verify_skips_what_this_machine_cannot_run(command, coral, change_manifest):
    change_manifest(lambda manifest: manifest.pop("files"))
    answer = command("verify", coral)
    assert answer.code == 0
    by_id = {entry["id"]: entry for entry in answer.json["artifacts"]}
    assert by_id["tflite/int8_edgetpu"]["status"] == "skipped"
    assert by_id["tflite/int8"]["status"] == "passed"


def test_a_bundle_without_a_file_for_it(command, bundle):
    for flags in ((), ("--artifact", "tflite/int8")):
        answer = command("info", bundle, "--edgetpu", "any", *flags)
        assert answer.code == 4
        assert "no file made for the Edge TPU" in answer.err
    answer = command("info", bundle, "--edgetpu", "any", "--fallback-cpu", "--json")
    assert answer.json["default"] == "tflite/int8"
    assert "using the CPU" in answer.err


def test_corals_own_file_without_its_delegate(command, shared):
    file = shared / "coral/mobilenet_v1_0.25_128_quant_edgetpu.tflite"
    answer = command("predict", file, shared / "data/images/cat.jpg")
    assert answer.code == 4
    assert "libedgetpu.so.1" in answer.err


def test_a_compiled_file_under_another_name(command, shared, tmp_path):
    file = shutil.copy(
        shared / "coral/mobilenet_v1_0.25_128_quant_edgetpu.tflite", tmp_path / "a.tflite"
    )
    answer = command("predict", file, shared / "data/images/cat.jpg")
    assert answer.code == 4
    assert "needs an Edge TPU's delegate" in answer.err
    assert answer.out == ""
