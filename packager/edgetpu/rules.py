"""Which operators the Edge TPU compiler maps: the documented table, and what was seen.

Rules look at attributes only, never at names of models or tensors. Every entry cites its source;
what no source tells is `unknown`. The compiler is closed, and its last release is 16.0 of 2021.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from packager.edgetpu.operators import Judgement, Operator, Tensor, Verdict
from packager.op_versions import INT8_VERSIONS

# The table of operations on Coral's page "TensorFlow models on the Edge TPU", with the limits of
# each, and the page's section "Model requirements".
CORAL = "Coral: TensorFlow models on the Edge TPU, supported operations"
REQUIREMENTS = "Coral: TensorFlow models on the Edge TPU, model requirements"
# Files before and after the compiler, google-coral/test_data@104342d.
PAIRS = "google-coral/test_data, before and after the compiler: "
MOBILENET = "mobilenet_v1_0.25_128_quant"
LSTM = "keras_lstm_mnist_ptq"
SPLIT_CONCAT = "split_concat"
CITYSCAPES = "deeplab_mobilenet_edgetpu_slim_cityscapes_quant"
PASCAL = "deeplabv3_mnv2_dm05_pascal_quant"
MOVENET = "movenet_single_pose_lightning_ptq"
POSENET = "posenet_mobilenet_v1_075_353_481_16_quant_decoder"

# A limit answers None where it holds, else the reason and what to change.
Broken = tuple[str, str] | None
Limit = Callable[[Operator], Broken]
_EIGHT_BIT = ("int8", "uint8")
_FUSED = "put the activation in a layer of its own, after the pooling or concatenation"


@dataclass(frozen=True)
class Rule:
    """One operator of the documented table.

    Attributes:
        limit: Its documented limit.
        source: Where it is documented.
        seen: Versions above the one that int8 needs, each with the model that it was mapped in.
        refused_from: The first version that is known to be refused, with its source.
    """

    limit: Limit | None = None
    source: str = CORAL
    seen: dict[int, str] = field(default_factory=dict)
    refused_from: tuple[int, str] | None = None


@dataclass(frozen=True)
class Resize:
    """A RESIZE_BILINEAR that was seen: how much it enlarges each side, and whether it mapped."""

    model: str
    ratio: float
    mapped: bool


# "Depending on input/output size, this operation might not be mapped": no limit is documented.
RESIZES = (
    Resize(CITYSCAPES, 1.0, True),
    Resize(CITYSCAPES, 513 / 33, False),
    Resize(PASCAL, 33.0, False),
    Resize(MOVENET, 2.0, True),
)


def _fused(op: Operator) -> Broken:
    fused = op.options.get("fusedActivationFunction")
    return ("it has a fused activation function", _FUSED) if fused else None


def _concatenation(op: Operator) -> Broken:
    constants = [t for t in op.inputs if t.values is not None]
    zeros = all((t.values == t.zero_point).all() for t in constants if t.values is not None)
    if constants and not (len(op.inputs) == 2 and zeros):
        return "a constant input is allowed beside one other, and all zeros", "pad instead"
    return _fused(op)


def _convolution(op: Operator) -> Broken:
    if op.options.get("dilationWFactor", 1) != op.options.get("dilationHFactor", 1):
        return "its dilation differs between height and width", "dilate both sides equally"
    return None


def _fully_connected(op: Operator) -> Broken:
    if op.options.get("weightsFormat"):
        return "its weights have a shuffled format", "convert again with the default format"
    if op.options.get("keepNumDims") or _used_axes(op.outputs[0]) > 1:
        return (
            "its output has more than one dimension",
            "flatten before the Dense layer, or use a 1x1 convolution",
        )
    return None


def _mean(op: Operator) -> Broken:
    axes, rank = op.constant(1), len(op.inputs[0].shape)
    if axes is None:
        return "its axes are computed", "use fixed axes"
    axes = [a % rank for a in axes]
    if 0 in axes and op.inputs[0].shape[0] > 1:
        return "it reduces the batch", "reduce the spatial axes only"
    if rank == 4 and 3 in axes and op.inputs[0].shape[3] % 4:
        return "it reduces channels whose number is no multiple of 4", "use a multiple of 4"
    return None


def _not_batch_axis(op: Operator) -> Broken:
    axis = op.options.get("axis", 0)
    if op.name == "SPLIT":
        given = op.constant(0)
        axis = given[0] if given else 0
    rank = max(1, len(op.outputs[0].shape))
    if axis % rank == 0 and rank == 4:
        return "it works on the batch dimension", "use another axis"
    return None


def _pad(op: Operator) -> Broken:
    paddings = op.constant(1)
    if paddings is None:
        return "its padding is computed", "use a fixed padding"
    if len(paddings) == 8 and any(paddings[:2]):
        return "it pads the batch dimension", "pad height and width only"
    return None


def _reduce(op: Operator) -> Broken:
    axes, rank = op.constant(1), max(1, len(op.inputs[0].shape))
    if axes is not None and any(a % rank == 0 for a in axes) and rank == 4:
        return "it reduces the batch dimension", "reduce other axes"
    return None


def _prelu(op: Operator) -> Broken:
    if _used_axes(op.inputs[1]) > 1:
        return "its alpha has more than one dimension", "PReLU(shared_axes=[1, 2])"
    return None


def _softmax(op: Operator) -> Broken:
    if _used_axes(op.inputs[0]) > 1:
        return "its input has more than one dimension", "flatten before the softmax"
    if max(op.inputs[0].shape, default=0) > 16_000:
        return "it has more than 16,000 elements", "apply the softmax on the host"
    return None


def _squeeze(op: Operator) -> Broken:
    dims = [int(d) for d in op.options.get("squeezeDims") or []]
    if dims != list(range(len(dims))):
        return "it squeezes other than leading dimensions", "use Reshape"
    return None


def _strided_slice(op: Operator) -> Broken:
    strides = op.constant(3)
    if strides is None or any(s != 1 for s in strides):
        return "its strides are not all 1", "use MaxPooling2D(1, strides) or slice with step 1"
    if op.options.get("ellipsisMask") or op.options.get("newAxisMask"):
        return "it has an ellipsis or a new axis", "slice with explicit ranges"
    return None


def _used_axes(tensor: Tensor) -> int:
    return sum(n > 1 for n in tensor.shape)


_ISSUE_V5 = "google-coral/edgetpu issues: Dense on 3-D input, 'Operation version not supported'"
_ISSUE_RNN = "google-coral/edgetpu issues: RESIZE_NEAREST_NEIGHBOR v3, 'version not supported'"
TABLE: dict[str, Rule] = {
    **dict.fromkeys(
        (
            "ADD", "LOGISTIC", "L2_NORMALIZATION", "MAXIMUM", "MINIMUM", "MUL", "QUANTIZE",
            "RELU", "RELU6", "RELU_N1_TO_1", "EXPAND_DIMS", "SUB", "TANH", "RSQRT",
            "SPACE_TO_DEPTH", "SLICE", "SUM", "SQUARED_DIFFERENCE", "TRANSPOSE",
            "TRANSPOSE_CONV", "MIRROR_PAD", "RESHAPE",
        ),
        Rule(),
    ),
    "AVERAGE_POOL_2D": Rule(_fused),
    "MAX_POOL_2D": Rule(_fused),
    "CONCATENATION": Rule(_concatenation),
    "CONV_2D": Rule(_convolution),
    "DEPTHWISE_CONV_2D": Rule(_convolution),
    "FULLY_CONNECTED": Rule(_fully_connected, refused_from=(5, _ISSUE_V5)),
    "UNIDIRECTIONAL_SEQUENCE_LSTM": Rule(),
    "MEAN": Rule(_mean),
    "PACK": Rule(_not_batch_axis),
    "PAD": Rule(_pad),
    "PRELU": Rule(_prelu),
    "REDUCE_MAX": Rule(_reduce),
    "REDUCE_MIN": Rule(_reduce),
    "RESIZE_BILINEAR": Rule(seen={3: MOVENET}),
    "RESIZE_NEAREST_NEIGHBOR": Rule(refused_from=(3, _ISSUE_RNN)),
    "SOFTMAX": Rule(_softmax),
    "SPLIT": Rule(_not_batch_axis),
    "SQUEEZE": Rule(_squeeze),
    "STRIDED_SLICE": Rule(_strided_slice),
}  # fmt: skip
# Not in the table, but seen mapped.
SEEN = {"TILE": CITYSCAPES}


def judge(op: Operator, without: Collection[str] = ()) -> Judgement:
    """Says whether an operator by itself can run on the Edge TPU.

    Args:
        op: The operator.
        without: Models whose evidence must not count; a test leaves each out in turn.
    """
    for check in (_by_type, _by_rank):
        found = check(op)
        if found is not None:
            return found
    rule = TABLE.get(op.name)
    if rule is None:
        return _unlisted(op, without)
    broken = rule.limit(op) if rule.limit is not None else None
    if rule.refused_from is not None and op.version >= rule.refused_from[0]:
        advice = broken[1] if broken else "use the target edgetpu, which writes older versions"
        text = f"version {op.version} of {op.name} is refused"
        return Judgement(Verdict.NO, text, rule.refused_from[1], advice)
    if broken is not None:
        return Judgement(Verdict.NO, f"{op.name}: {broken[0]}", rule.source, broken[1])
    return _by_version(op, rule, without) or _by_size(op, without) or _yes(rule.source)


def _yes(source: str) -> Judgement:
    return Judgement(Verdict.YES, "", source)


def _by_type(op: Operator) -> Judgement | None:
    for tensor in op.activations:
        if tensor.dtype not in _EIGHT_BIT:
            return Judgement(
                Verdict.NO,
                f"it works on {tensor.dtype}; only int8 and uint8 are mapped",
                REQUIREMENTS,
                "quantize the whole model to int8 (--require-integer), and move what needs"
                " other types behind the model",
            )
        if tensor.is_free:
            text = f"{op.name} has a dimension that is not fixed"
            return Judgement(Verdict.NO, text, REQUIREMENTS, "convert with a batch of 1")
    return None


def _by_rank(op: Operator) -> Judgement | None:
    for tensor in op.activations:
        if any(n > 1 for n in tensor.shape[:-3]):
            return Judgement(
                Verdict.NO,
                f"{op.name}: more than the innermost three dimensions of {list(tensor.shape)} are"
                " larger than 1",
                REQUIREMENTS,
                "use a batch of 1 and at most three dimensions beside it",
            )
    return None


def _unlisted(op: Operator, without: Collection[str]) -> Judgement:
    model = SEEN.get(op.name)
    if model is not None and model not in without:
        return _yes(PAIRS + model)
    return Judgement(
        Verdict.UNKNOWN,
        f"{op.name} is not in the table of supported operations; some that are not were mapped",
        CORAL,
        "replace it by an operation of the table, or expect the CPU from here on",
    )


def _by_version(op: Operator, rule: Rule, without: Collection[str]) -> Judgement | None:
    known = max(1, INT8_VERSIONS.get(op.name, 1))
    known = max([known, *(v for v, model in rule.seen.items() if model not in without)])
    if op.version > known:
        text = f"version {op.version} of {op.name}: no source tells whether it is accepted"
        return Judgement(Verdict.UNKNOWN, text, CORAL, "use the target edgetpu")
    if op.name == "FULLY_CONNECTED" and len(op.inputs) > 1 and op.inputs[1].scales > 1:
        return Judgement(
            Verdict.UNKNOWN,
            "FULLY_CONNECTED has a scale for each channel; a report says that such files do not"
            " compile",
            "google-ai-edge/litert-torch#384",
            "use the target edgetpu: Dense weights with one scale",
        )
    return None


def _by_size(op: Operator, without: Collection[str]) -> Judgement | None:
    if op.name not in ("RESIZE_BILINEAR", "RESIZE_NEAREST_NEIGHBOR"):
        return None
    before, after = op.inputs[0].shape, op.outputs[0].shape
    ratio = max(b / a for a, b in zip(before[1:3], after[1:3], strict=True))
    seen = [r for r in RESIZES if r.model not in without and op.name == "RESIZE_BILINEAR"]
    fine = max((r.ratio for r in seen if r.mapped), default=0.0)
    refused = min((r.ratio for r in seen if not r.mapped), default=math.inf)
    if ratio <= fine:
        return None
    is_refused = ratio >= refused
    return Judgement(
        Verdict.NO if is_refused else Verdict.UNKNOWN,
        f"{op.name} enlarges {ratio:.3g} times: "
        + (
            f"{refused:.3g} times was not mapped"
            if is_refused
            else "whether it is mapped depends on the size, and no limit is documented"
        ),
        CORAL + "; " + PAIRS + "deeplab, movenet" if is_refused else CORAL,
        "resize in steps of 2, or on the host",
    )
