"""Known attacks on programs that open models, by number: each is refused and leaves no trace.

CVE-2025-0649, deep JSON in a request, is in tests/server/test_json.py, pictures are in
tests/test_preprocess.py and tests/edge/test_pictures.py; docs/security.md says what does not apply.
"""

import base64
import marshal
import stat
import zipfile

import h5py
import numpy as np
import pytest

from packager.children import Child
from packager.errors import ModelError, PackagerError
from packager.loaders import guards, keras_file, tf_symbols
from packager.loaders.model_file import identify
from tests.loaders import hostile

pytestmark = pytest.mark.tf


@pytest.fixture
def trace(tmp_path):
    """The file that a payload makes where it works."""
    return tmp_path / "trace"


@pytest.fixture(scope="module")
def keras():
    """What opens models of Keras 3: with Keras, in a child process."""
    with Child("packager.loaders.worker") as child:
        yield child


def call_lambda(trace):
    return hostile.layer("Lambda", "pwn", {"function": hostile.leaving(trace)}, hostile.tensor("x"))


def call_lambda_by_path(trace):
    """As `keras.layers` + `.Lambda`, so that the class is not called Lambda."""
    return {**call_lambda(trace), "module": "keras", "class_name": "layers.Lambda"}


def call_popen(trace):
    return hostile.called("subprocess", "Popen", ["touch", str(trace)])


def call_system(trace):
    return hostile.called("os", "system", f"touch {trace}")


def call_get_file(trace):
    origin = {"origin": "file:///etc/hostname", "cache_dir": str(trace.parent)}
    return hostile.called("keras.utils", "get_file", "trace", **origin, cache_subdir="")


def call_tfsm(trace):
    place = {"filepath": str(trace.parent), "call_endpoint": "serve"}
    return hostile.layer("TFSMLayer", "pwn", place, hostile.tensor("x"))


def call_vocabulary(trace):
    secret = trace.with_name("secret.txt")
    secret.write_text("hush\n")
    return hostile.layer("StringLookup", "pwn", {"vocabulary": str(secret)}, hostile.tensor("x"))


UNSAFE = hostile.called("keras.config", "enable_unsafe_deserialization")
CODE = [
    ("CVE-2024-3660", ".keras", lambda trace: [call_lambda(trace)]),
    ("CVE-2024-3660", ".keras", lambda trace: [call_lambda_by_path(trace)]),
    ("CVE-2025-1550", ".keras", lambda trace: [call_popen(trace)]),
    ("CVE-2025-1550", ".keras", lambda trace: [call_system(trace)]),
    ("CVE-2025-8747", ".keras", lambda trace: [call_get_file(trace)]),
    ("CVE-2025-9906", ".keras", lambda trace: [UNSAFE, call_lambda(trace)]),
    ("CVE-2025-9905", ".h5", lambda trace: [call_lambda(trace)]),
    ("CVE-2025-12058", ".keras", lambda trace: [call_vocabulary(trace)]),
    ("CVE-2025-12058", ".h5", lambda trace: [call_vocabulary(trace)]),
    # get_file is also the way to CVE-2025-12060, the paths of a tar file that it unpacks.
    ("CVE-2025-12060", ".h5", lambda trace: [call_get_file(trace)]),
    ("CVE-2026-1462", ".keras", lambda trace: [call_tfsm(trace)]),
    ("CVE-2026-1462", ".h5", lambda trace: [call_tfsm(trace)]),
]


def written(path, layers, version="3.15.1"):
    write = hostile.archive if path.suffix == ".keras" else hostile.h5
    return write(path, hostile.model(*layers), version=version)


@pytest.mark.parametrize(("number", "suffix", "layers"), CODE)
def test_code_is_refused_before_keras_and_by_keras(keras, trace, tmp_path, number, suffix, layers):
    path = written(tmp_path / f"m{suffix}", layers(trace))
    with pytest.raises(ModelError, match="when the model is opened") as caught:
        identify(str(path))
    assert caught.value.exit_code == 2
    assert "--allow-unsafe-code" in caught.value.hint
    # The second line of defence, without the first.
    found = identify(str(path), allow_unsafe_code=True)
    with pytest.raises(PackagerError):
        keras.call("open", "opening", source=path, format=found.format, saved_by=found.saved_by)
    assert suffix == ".h5" or keras_file.read(path) is None
    assert not trace.exists(), number


@pytest.mark.parametrize(("number", "suffix", "layers"), CODE)
def test_an_older_version_s_name_changes_nothing(trace, tmp_path, number, suffix, layers):
    """tf-keras, which opens such files, runs an .h5 file's code even in its safe mode."""
    path = written(tmp_path / f"m{suffix}", layers(trace), version="2.15.0")
    with pytest.raises(ModelError, match="when the model is opened"):
        identify(str(path))
    assert not trace.exists(), number


def test_the_payloads_work(keras, trace, tmp_path):
    """Where the user allows it, they run: or these tests would prove nothing."""
    path = written(tmp_path / "m.keras", [call_lambda(trace)])
    open_it = {"source": path, "format": "keras3", "saved_by": "keras 3"}
    keras.call("open", "opening", **open_it, allow_unsafe_code=True)
    assert trace.exists()


# That these run in tf-keras is shown in tests/soak/test_payloads.py.
def keras2_lambda(trace):
    code = base64.b64encode(marshal.dumps(hostile.leaving_code(trace))).decode()
    config = {"function": [code, None, None], "function_type": "lambda", "arguments": {}}
    config |= {"module": "__main__", "output_shape": None, "output_shape_type": "raw"}
    config |= {"output_shape_module": None}
    return hostile.keras2_layer("Lambda", "pwn", config, "x")


def keras2_write(trace):
    entry = ["_CONSTANT_VALUE", -1, str(trace), {"contents": "x"}]
    return {**hostile.keras2_operator("io.write_file"), "inbound_nodes": [entry]}


def keras2_imports(trace):
    module = {"module": "antigravity", "class_name": "function", "config": "f"}
    return hostile.keras2_layer("Dense", "pwn", {"units": 4, "activation": module}, "x")


@pytest.mark.parametrize("suffix", [".keras", ".h5"])
@pytest.mark.parametrize("make", [keras2_lambda, keras2_write, keras2_imports])
def test_code_in_the_form_of_keras_2(trace, tmp_path, make, suffix):
    """An operator of TensorFlow is stored by its name, and runs while tf-keras opens the file."""
    write = hostile.archive if suffix == ".keras" else hostile.h5
    path = write(tmp_path / f"m{suffix}", hostile.keras2(make(trace)), version="2.15.0")
    with pytest.raises(ModelError, match="when the model is opened"):
        identify(str(path))


def test_a_class_of_one_s_own_is_named_by_its_module(tmp_path):
    layer = {**hostile.keras2_layer("Mine", "pwn", {}, "x"), "module": "mine.layers"}
    path = hostile.h5(tmp_path / "m.h5", hostile.keras2(layer), version="2.15.0")
    with pytest.raises(ModelError, match=r"'pwn' is of the Python module 'mine\.layers'") as caught:
        identify(str(path))
    assert "--custom-objects mine.layers" in caught.value.hint
    assert identify(str(path), own_modules=["mine"]).format == "keras_h5"
    hostile.h5(path, hostile.keras2({**layer, "module": "__main__"}), version="2.15.0")
    assert identify(str(path)).format == "keras_h5"


@pytest.mark.parametrize(
    ("symbol", "expected"),
    [
        *((name, True) for name in ("math.add", "__operators__.getitem", "concat", "cast",
          "expand_dims", "nn.relu6", "compat.v1.transpose", "compat.v1.depth_to_space", "reshape",
          "image.resize", "keras.backend.dot", "raw_ops.AddV2", "linalg.matmul", "reduce_mean")),
        *((name, False) for name in ("io.write_file", "io.gfile.remove", "compat.v1.write_file",
          "compat.v1.py_func", "py_function", "numpy_function", "load_op_library", "print",
          "raw_ops.WriteFile", "keras.utils.get_file", "data.TextLineDataset", "saved_model.load",
          "summary.write", "debugging.enable_check_numerics", "", "raw_ops.", "keras.", "nn2.x")),
    ],
)  # fmt: skip
def test_functions_that_only_compute(symbol, expected):
    assert tf_symbols.only_computes(symbol) is expected


def link(group, secret):
    group["0"] = h5py.ExternalLink(str(secret), "/data")


def storage(group, secret):
    group.create_dataset("0", (4, 4), "f4", external=[(str(secret), 0, 64)])


def virtual(group, secret):
    layout = h5py.VirtualLayout((4, 4), "f4")
    layout[:] = h5py.VirtualSource(secret, "data", (4, 4))
    group.create_virtual_dataset("0", layout)


def with_weights(path, change):
    """A model file of the kind that the name says; `change` gets a group inside its weights."""

    def inside(group):
        change(group.create_group("deep"))

    if path.name.endswith(".weights.h5"):
        path.write_bytes(hostile.weights(inside))
    elif path.suffix == ".h5":
        hostile.h5(path, hostile.model(), inside)
    else:
        hostile.archive(path, hostile.model(), stored=hostile.weights(inside))
    if path.name.startswith("stored"):
        repack(path)
    return path


@pytest.mark.parametrize("change", [link, storage, virtual])
@pytest.mark.parametrize("kind", ["m.keras", "stored.keras", "m.h5", "m.weights.h5"])
def test_cve_2026_1669_parts_in_other_files(tmp_path, kind, change):
    secret = tmp_path / "secret.h5"
    with h5py.File(secret, "w") as file:
        file["data"] = np.ones((4, 4), np.float32)
    path = with_weights(tmp_path / kind, lambda group: change(group, secret))
    with pytest.raises(ModelError, match=r"/deep/0 lies in another file or leads nowhere"):
        identify(str(path), architecture="package.module:function" if "weights" in kind else "")


def repack(path):
    """Writes an archive without compression, as Keras does."""
    with zipfile.ZipFile(path) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    with zipfile.ZipFile(path, "w", zipfile.ZIP_STORED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)


def huge(group):
    group.create_dataset("0", (10**6, 10**6), "f4", chunks=(64, 64), compression="gzip")


@pytest.mark.parametrize("kind", ["m.keras", "stored.keras", "m.h5"])
def test_cve_2026_0897_shapes_without_data(tmp_path, kind):
    path = with_weights(tmp_path / kind, huge)
    with pytest.raises(ModelError, match=r"claim to hold 400\d{10}"):
        identify(str(path))


def test_groups_that_hold_one_another_end(tmp_path):
    """64 groups, each twice in the one before it: 2 ** 64 paths, and back to the first."""

    def change(group):
        before = group
        for _ in range(64):
            inner = before.create_group("a")
            before["b"] = inner
            before = inner
        before["c"] = group

    path = hostile.archive(tmp_path / "m.keras", hostile.model(), stored=hostile.weights(change))
    assert identify(str(path)).format == "keras3"


@pytest.mark.parametrize(
    "name", ["../trace", "assets/../../trace", "/trace", "assets\\..\\..\\trace", "C:/trace"]
)
def test_ghsa_hqp4_2352_xf5r_paths_out_of_an_archive(trace, tmp_path, name):
    path = hostile.archive(tmp_path / "m.keras", hostile.model(), [(name, "x")])
    with pytest.raises(ModelError, match="leads out of it"):
        identify(str(path))
    assert not trace.exists()


def test_a_link_in_an_archive(tmp_path):
    member = zipfile.ZipInfo("assets/secret")
    member.external_attr = (stat.S_IFLNK | 0o777) << 16
    path = hostile.archive(tmp_path / "m.keras", hostile.model(), [(member, "/etc/hostname")])
    with pytest.raises(ModelError, match="'assets/secret' leads out of it"):
        identify(str(path))


def test_two_members_of_one_name(tmp_path):
    with pytest.warns(UserWarning, match="Duplicate name"):
        path = hostile.archive(tmp_path / "m.keras", hostile.model(), [("config.json", "{}")])
    with pytest.raises(ModelError, match="two of its members have one name"):
        identify(str(path))


def test_an_archive_that_expands_without_measure(tmp_path, monkeypatch):
    members = [(f"assets/{number}", bytes(2**20)) for number in range(5)]
    path = hostile.archive(tmp_path / "m.keras", hostile.model(), members)
    assert identify(str(path)).format == "keras3"
    monkeypatch.setattr(guards, "FLOOR_BYTES", 2**22)  # of 256 MB, to be quick
    with pytest.raises(ModelError, match=r"claim to hold 5\d{6}"):
        identify(str(path))


def test_the_model_that_these_tests_change_is_one(keras, tmp_path):
    for path in (written(tmp_path / "m.keras", []), written(tmp_path / "m.h5", [])):
        for _ in range(2):
            found = identify(str(path))
            opened = keras.call(
                "open", "opening", source=path, format=found.format, saved_by=found.saved_by
            )
            assert opened["parameters"] == 20
            if path.suffix == ".h5":
                break
            assert keras_file.read(path) is not None
            repack(path)
    found = identify(str(hostile.h5(tmp_path / "2.h5", hostile.keras2(), version="2.9.0")))
    assert found.is_keras2
