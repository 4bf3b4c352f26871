"""JSON in and out: the parser and writer cases, and what they leave open."""

import json

import numpy as np
import pytest
import rapidjson
from hypothesis import given, settings
from hypothesis import strategies as st
from packager_server import examples_json, json_numbers, json_text, predict_json, quick_json, rest
from packager_server.codes import Code, ServeError
from packager_server.model import Signature, TensorInfo

from tests.server import replay

FLOATS = ("float32", "float64")


def signature(**inputs):
    infos = {name: TensorInfo(*value) for name, value in inputs.items()}
    return Signature("serving_default", infos, {"y": TensorInfo("float32", None)})


def read(text, **inputs):
    body = text.encode() if isinstance(text, str) else text
    return predict_json.tensors(predict_json.parse(body), signature(**inputs))


# ------------------------------------------------------------------ replay


@pytest.mark.parametrize("case", replay.load_cases("url_parser"), ids=lambda case: case["id"])
def test_url_cases(case):
    request, expected = case["request"], case["expect"]["parsed"]
    found = rest.parse_target(request["method"], request["path"])
    assert found == rest.Route(
        expected["model_name"], expected["model_version"], expected["model_version_label"],
        expected["method"], expected["model_subresource"],
    )  # fmt: skip


def write(request):
    if request["writer"] == "error":
        return rest.error_body(request["message"])
    if request["writer"] == "classification":
        return examples_json.classification_answer(request["results"])
    assert request["writer"] == "regression"
    return examples_json.regression_answer(np.array(request["results"], np.float32))


@pytest.mark.parametrize("case", replay.load_cases("writer"), ids=lambda case: case["id"])
def test_writer_cases(case):
    expect = case["expect"]
    if "json" in expect:
        assert json.loads(write(case["request"])) == expect["json"]
        return
    with pytest.raises(ServeError) as caught:
        write(case["request"])
    assert caught.value.http == expect["status"]
    assert all(text in caught.value.message for text in expect["text_contains"])


def plain(features):
    def value(kind, one):
        if kind == "bytes_list":
            return one.decode()
        if kind == "float_list" and not np.isfinite(one):
            return json_numbers.float_texts(np.array([one], np.float64))[0]
        return one

    return {
        name: {feature.kind: [value(feature.kind, one) for one in feature.values]}
        for name, feature in features.items()
    }


@pytest.mark.parametrize("case", replay.load_cases("request_parser"), ids=lambda case: case["id"])
def test_request_parser_cases(case):
    verb = case["request"]["path"].rpartition(":")[2]
    found = examples_json.parse(replay.body_bytes(case["request"]), verb)
    assert found.signature_name == case["expect"]["signature_name"]
    assert plain(found.context) == case["expect"]["context"]
    assert [plain(one) for one in found.examples] == case["expect"]["examples"]


# ------------------------------------------------------------------ parser


@pytest.mark.parametrize(
    "text",
    [
        "", "  ", "nothing", "{", '{"a"', '{"a":', '{"a":}', '{"a":1', '{"a":1,', '{"a":1 "b":2}',
        "[1", "[1,", "[1 2]", '"open', '"\\x"', '"\\u12g4"', "{1:2}", "1e400", "-", "+1",
        "tru",
    ],
)  # fmt: skip
def test_messages_are_rapidjsons(text):
    """The same C++ parser is the oracle; a newer one than TensorFlow Serving's quotes brackets."""
    with pytest.raises(ServeError) as ours:
        json_text.parse(text.encode())
    with pytest.raises(rapidjson.JSONDecodeError) as theirs:
        rapidjson.loads(text)
    message = str(theirs.value).split(": ", 1)[1].replace("'", "").rstrip(".")
    assert ours.value.message.startswith(f"JSON Parse error: {message}")


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1, "a": 2}', {"a": 1}),
        ('{"b": 0, "a": 1, "a": 2}', {"b": 0, "a": 1}),
        ("[Inf, -Inf, Infinity, -Infinity]", [np.inf, -np.inf, np.inf, -np.inf]),
        ('["Inf", "a\\"Inf", "Infinity"]', ["Inf", 'a"Inf', "Infinity"]),
        ("\ufeff[1]", [1]),
        ("[1] and more", [1]),
        ("[1e-400, -0.0]", [0.0, -0.0]),
    ],
)
def test_tolerance(text, value):
    assert json_text.parse(text.encode()) == value


def test_deep_nesting_is_an_error_and_not_a_crash():
    for text in ("[" * 100_000, '{"a":' * 100_000, "[" * 100_000 + "]" * 100_000):
        with pytest.raises(ServeError, match="nested too deeply"):
            json_text.parse(text.encode())
    deep = '{"instances": ' + "[" * 300 + "1" + "]" * 300 + "}"
    with pytest.raises(ServeError, match="more than 254 deep"):
        read(deep, x=("float32", None))


# ------------------------------------------------------------------ tensors

NARROW = [("int8", 300, 44), ("uint8", -1, 255), ("int16", 70_000, 4464), ("uint16", -1, 65535)]


@pytest.mark.parametrize(("dtype", "sent", "received"), NARROW)
def test_narrow_integers_wrap_as_in_tensorflow_serving(dtype, sent, received):
    found, rows = read(f'{{"instances": [{sent}]}}', x=(dtype, (None,)))
    assert (found["x"].dtype, found["x"].tolist(), rows) == (dtype, [received], True)


@pytest.mark.parametrize(
    ("dtype", "low", "high"),
    [
        ("int32", -(2**31), 2**31 - 1), ("uint32", 0, 2**32 - 1),
        ("int64", -(2**63), 2**63 - 1), ("uint64", 0, 2**64 - 1),
    ],
)  # fmt: skip
def test_wide_integers_are_range_checked(dtype, low, high):
    found, _ = read(f'{{"instances": [{low}, {high}]}}', x=(dtype, (None,)))
    assert found["x"].tolist() == [low, high] and found["x"].dtype == dtype
    for bad in (low - 1, high + 1, "1.0", "1e2", "true", "null", '"1"'):
        with pytest.raises(ServeError, match=f"is not of expected type: {dtype}"):
            read(f'{{"instances": [{bad}]}}', x=(dtype, (None,)))


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("bad", ["true", "null", '"1"', '{"b64": "AA=="}', "[1, false]"])
def test_floats_refuse_other_types(dtype, bad):
    for shape in ((None,), (None, 2)):
        with pytest.raises(ServeError, match=r"is not of expected type|incorrect level"):
            read(f'{{"instances": [{bad}]}}', x=(dtype, shape))


def test_booleans_and_strings():
    found, _ = read('{"instances": [true, false]}', x=("bool", (None,)))
    assert found["x"].tolist() == [True, False]
    with pytest.raises(ServeError, match="expected type: bool"):
        read('{"instances": [1]}', x=("bool", (None,)))
    found, _ = read('{"instances": ["é", {"b64": "AP8"}, {"b64": " AP8=\\n"}]}', x=("string", None))
    assert found["x"].tolist() == ["é".encode(), b"\0\xff", b"\0\xff"]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ('{"instances": [{"b64": "-_"}]}', "Unable to base64 decode"),
        ('{"instances": [{"b64": "AAAAA"}]}', "Unable to base64 decode"),
        ('{"instances": ["\\ud800"]}', "surrogate pair"),
        ('{"instances": [1]}', "not of expected type: string"),
        ('{"inputs": [[{"b64": "AA", "c": 1}]]}', "base64 data"),
    ],
)
def test_bad_strings(body, message):
    with pytest.raises(ServeError, match=message):
        read(body, x=("string", None))


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("{}", "Missing 'inputs' or 'instances' key"),
        ("[1]", "Is not object"),
        ('{"instances": 5}', "Expecting 'instances' to be an list/array"),
        ('{"instances": []}', "No values in 'instances' array"),
        ('{"instances": [[1, [2]]]}', "found at incorrect level|unexpected size"),
        ('{"instances": [[[1], [2, 3]]]}', "Encountered list at unexpected size: 2"),
        ('{"instances": [[1, 2], {"x": 1}]}', "Expecting value/list but got object at item 1"),
        ('{"instances": [{"x": 1}, {}]}', "keys must be equal to: x"),
        ('{"inputs": {"z": 1}}', "Missing named input: x in 'inputs' object."),
        ('{"signature_name": 5, "instances": [1]}', "'signature_name' key must be a string"),
        ('{"signature_name": null, "instances": [1]}', "'signature_name' key must be a string"),
    ],
)
def test_refusals(body, message):
    with pytest.raises(ServeError, match=message):
        read(body, x=("float32", None))


def test_several_inputs():
    inputs = {"a": ("float32", None), "b": ("int32", None)}
    found, _ = read('{"instances": [{"a": [1, 2.5], "b": 3}, {"b": 4, "a": [5, 6]}]}', **inputs)
    assert found["a"].tolist() == [[1.0, 2.5], [5.0, 6.0]] and found["b"].tolist() == [3, 4]
    for body, message in (
        ('{"instances": [1]}', "instances is a plain list"),
        ('{"inputs": [1]}', "inputs is a plain value/list"),
        ('{"instances": [{"a": 1}]}', "keys must be equal to: a,b"),
    ):
        with pytest.raises(ServeError, match=message):
            read(body, **inputs)


def test_unsupported_dtypes_differ_by_format():
    for body, code in (('{"instances": [1]}', 3), ('{"inputs": [1]}', Code.UNIMPLEMENTED)):
        with pytest.raises(ServeError, match="half") as caught:
            read(body, x=("float16", None))
        assert caught.value.code == code


# ------------------------------------------------------------------ the quick way

numbers = st.one_of(
    st.integers(-(2**53), 2**53), st.floats(allow_nan=False, allow_infinity=False, width=64)
)


@given(
    st.lists(st.integers(1, 3), min_size=1, max_size=3), st.data(),
    st.sampled_from(FLOATS), st.booleans(), st.booleans(),
)  # fmt: skip
@settings(max_examples=150, deadline=None)
def test_the_quick_way_reads_what_the_general_way_reads(shape, data, dtype, rows, named):
    size = int(np.prod(shape))
    flat = data.draw(st.lists(numbers, min_size=size, max_size=size))
    nest = np.array(flat, object).reshape(shape).tolist()
    document = {"instances" if rows else "inputs": nest}
    if named:
        document["signature_name"] = "serving_default"
    text = json.dumps(document, indent=data.draw(st.sampled_from([None, 1])))
    declared = (None, *shape[1:])
    quick = quick_json.read(text.encode())
    assert quick is not None
    fast = quick.array({"x": TensorInfo(dtype, declared)})["x"]
    # An input of unknown rank takes the general way.
    slow, was_rows = read(text, x=(dtype, None))
    assert was_rows == rows == quick.rows
    assert fast.shape == slow["x"].shape == tuple(shape) and fast.dtype == dtype
    np.testing.assert_array_equal(fast, slow["x"])


@pytest.mark.parametrize(
    "body",
    [
        '{"instances": [[1, 2], [3]]}', '{"instances": [[1, 2, 3]]}', '{"instances": [1, 2]}',
        '{"instances": [[[1, 2]]]}', '{"instances": [[]]}', '{"instances": []}',
        '{"instances": [[1, 2],]}', '{"instances": [[1, 2]], "instances": [[3, 4]]}',
        '{"instances": [[1, 2]], "inputs": [[1, 2]]}', '{"instanc": [[1, 2]]}',
        '{"instances": [[1, true]]}', '{"instances": [["1", 2]]}', '{"instances": [[1, null]]}',
        '{"in1stances": [[1, 2]]}', '{"instances ": [[1, 2]]}', '{"instances": [[1, NaN]]}',
        '{"signature_name": 5, "instances": [[1, 2]]}', '{"instances": {"x": [[1, 2]]}}',
        '[{"instances": [[1, 2]]}]', '{"instances": [[1 2]]}', '{"instances": [[1, 2]]} x',
    ],
)  # fmt: skip
def test_the_quick_way_leaves_everything_else_alone(body):
    quick = quick_json.read(body.encode())
    assert quick is None or quick.array({"x": TensorInfo("float32", (None, 2))}) is None


# ------------------------------------------------------------------ writer


@given(st.lists(st.floats(width=32), min_size=1, max_size=30))
@settings(max_examples=200, deadline=None)
def test_float32_texts_give_the_value_back(values):
    array = np.array(values, np.float32)
    for text, value in zip(json_numbers.float_texts(array), array, strict=True):
        back = np.float32(float(text))
        assert back == value or (np.isnan(back) and np.isnan(value))
        assert np.signbit(back) == np.signbit(value) or np.isnan(value)


@given(st.lists(st.floats(width=64), min_size=1, max_size=30))
@settings(max_examples=200, deadline=None)
def test_float64_texts_give_the_value_back(values):
    array = np.array(values, np.float64)
    found = np.array([float(text) for text in json_numbers.float_texts(array)])
    np.testing.assert_array_equal(found, array)


@pytest.mark.parametrize("shape", [(), (1,), (2, 3), (1, 1, 1), (2, 0), (0, 2), (2, 0, 3), (3, 1)])
def test_nesting(shape):
    array = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    assert json.loads(json_numbers.tensor_text("y", array)) == array.tolist()
    if shape:
        rows = [json.loads(text) for text in json_numbers.row_texts("y", array)]
        assert rows == array.tolist()


def test_bytes_that_are_no_text_name_the_way_out():
    array = np.array([b"\xff"], object)
    with pytest.raises(ServeError, match="'y_bytes'"):
        json_numbers.tensor_text("y", array)
    assert json_numbers.tensor_text("y_bytes", array) == '[{"b64": "/w=="}]'


@pytest.mark.parametrize("dtype", ["float16", "complex64"])
def test_dtypes_without_a_json_form(dtype):
    with pytest.raises(ServeError, match="Failed to write JSON value for tensor type"):
        predict_json.answer({"y": np.zeros(2, dtype)}, rows=True)


@pytest.mark.parametrize("method", ["GET", "POST", "PUT"])
@pytest.mark.parametrize(
    "target",
    [
        "/v1/", "/v1/models/", "/v1/models/a/", "/v1/models/a/b", "/v1/models/a:predict/",
        "/v1/models/a/versions/x", "/v1/models/a/versions/", "/v1/models/a/labels/",
    ],
)  # fmt: skip
def test_malformed_targets(method, target):
    with pytest.raises(ServeError, match="Malformed request"):
        rest.parse_target(method, target)


def test_targets_ignore_case_and_verbs_are_lower():
    found = rest.parse_target("POST", "/V1/Models/M/Versions/0007:PREDICT")
    assert found == rest.Route("M", 7, None, "predict")
