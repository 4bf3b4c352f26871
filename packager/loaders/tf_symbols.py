"""Which of TensorFlow's functions only compute; Keras 2 stores them in a model by their names."""

from __future__ import annotations

from packager.loaders.saved_model_ops import safe_ops

# Modules of `tf` that hold nothing but arithmetic on tensors.
_MODULES = frozenset(
    {
        "__operators__", "bitwise", "dtypes", "image", "linalg", "math", "nn", "quantization",
        "ragged", "random", "sets", "signal", "sparse", "strings",
    }
)  # fmt: skip
_KERAS_MODULES = frozenset({"activations", "backend", "losses", "metrics"})
# Functions of `tf` itself that are not called as the operation that they run.
_FUNCTIONS = """
    argmax argmin argsort batch_gather batch_to_space_nd boolean_mask broadcast_dynamic_shape
    broadcast_static_shape clip_by_average_norm clip_by_global_norm clip_by_norm confusion_matrix
    constant convert_to_tensor count_nonzero divide ensure_shape eye fft fft2d fft3d fftnd floordiv
    floormod histogram_fixed_width_bins ifft ifft2d ifft3d ifftnd irfftnd is_tensor lbeta linspace
    log_sigmoid logical_xor matmul matrix_transpose meshgrid multiply negative norm ones realdiv
    reduce_all reduce_any reduce_logsumexp reduce_max reduce_mean reduce_min reduce_prod reduce_sum
    repeat rfftnd saturate_cast scalar_mul searchsorted sequence_mask sort space_to_batch_nd
    sparse_transpose subtract tensor_scatter_nd_add tensor_scatter_nd_max tensor_scatter_nd_min
    tensor_scatter_nd_sub tensor_scatter_nd_update tensordot to_double to_float to_int32 to_int64
    truediv truncatediv truncatemod unstack unsorted_segment_mean unsorted_segment_sqrt_n
    where_v2 zeros"""


def only_computes(symbol: str) -> bool:
    """Whether a function neither reads, writes, connects nor runs Python.

    Args:
        symbol: Its public name without `tf`: `math.add`, `compat.v1.transpose`.
    """
    for prefix in ("compat.v1.", "compat.v2."):
        symbol = symbol.removeprefix(prefix)
    parts = symbol.split(".")
    if len(parts) == 1:
        as_op = "".join(part.capitalize() for part in symbol.split("_"))
        return symbol in _FUNCTIONS.split() or _is_safe_op(as_op)
    if parts[0] == "raw_ops":
        return _is_safe_op(parts[1])
    return parts[0] in _MODULES or (parts[0] == "keras" and parts[1] in _KERAS_MODULES)


def _is_safe_op(name: str) -> bool:
    return name in safe_ops() or f"{name}V2" in safe_ops()
