"""Turns a trained Keras or TensorFlow model into one verified bundle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from packager.pipeline import BuildResult

__all__ = ["__version__", "build"]
__version__ = "0.1.0"


def build(model: str, *, quiet: bool = True, **options: Any) -> BuildResult:
    """Builds a bundle, as `packager build` does.

    Args:
        model: A path, or `package.module:function`.
        quiet: Show warnings only; False shows each stage on standard error.
        **options: The keys of `package.yaml`: `name`, `version`, `output`, `task`, `labels`,
            `preprocess`, `calibration`, `evaluation`, `targets`, `gates`, `golden`, `force`;
            and `architecture`, `signature`, `custom_objects`, `input_shape`, `allow_unsafe_code`,
            `allow_op` of its `model`.

    Returns:
        The bundle's folder, its manifest, and what failed.

    Raises:
        PackagerError: Nothing was published, and why.

    Example:
        >>> import packager
        >>> result = packager.build("model.keras", preprocess="0..1")  # doctest: +SKIP
        >>> result.manifest.artifact("tflite/float16").size_bytes  # doctest: +SKIP
        187344
    """
    # Imported here, so that `import packager` stays light.
    from packager import pipeline
    from packager.config import from_flags
    from packager.console import Reporter

    keys = ("architecture", "signature", "custom_objects", "input_shape", "allow_unsafe_code",
            "allow_op")  # fmt: skip
    section = {key: options.pop(key) for key in keys if key in options}
    config = from_flags({"model": {"source": model, **section}, **options})
    return pipeline.run(config, Reporter(quiet=quiet))
