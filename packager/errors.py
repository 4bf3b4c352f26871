"""The exceptions that reach a user, each with a hint and an exit code.

    PackagerError                exit 1  something failed
    ├── UsageError               exit 2  the command, configuration or data is not usable
    │   ├── ConfigError                  package.yaml or a flag
    │   ├── DataError                    calibration, evaluation or label data
    │   └── ModelError                   the model file cannot be opened or is refused
    │       ├── NoExactFormError         Keras 3 has no exact form of something in a Keras 2 model
    │       └── NoReferenceError         tf-keras cannot open a Keras 2 model
    ├── ConversionError          exit 1  an artifact could not be made
    │   ├── UnsupportedError             a layer or op has no exact form in the target
    │   └── ChildCrashed                 the child process died
    ├── BundleError              exit 1  a bundle is damaged or cannot be written
    ├── GateFailed               exit 3  a measured value is outside its gate
    └── EnvironmentLacks         exit 4  a package, program or device is missing

Every error says what, where, why (the message) and what to do (the hint).
"""

from __future__ import annotations

import errno
import re

_STORAGE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EACCES, errno.EPERM, errno.EROFS)
_COLOURS = re.compile(r"\x1b\[[0-9;]*m")


class PackagerError(Exception):
    """Base of all errors that a user can meet.

    Attributes:
        message: What failed, where (file, layer, op) and why.
        hint: The command or change that fixes it; empty when there is none.
    """

    exit_code = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint


class UsageError(PackagerError):
    """The command line, configuration or data cannot be used as given."""

    exit_code = 2


class ConfigError(UsageError):
    """`package.yaml` or a flag holds a value that cannot be used."""


class DataError(UsageError):
    """A calibration, evaluation or label source cannot be used."""

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message, hint=hint or "correct the data that the message names")


class ModelError(UsageError):
    """The model cannot be opened, or opening it is refused."""


class NoExactFormError(ModelError):
    """Something in a Keras 2 model has no exact form in Keras 3; tf-keras may still run it."""


class NoReferenceError(ModelError):
    """tf-keras cannot open a Keras 2 model, so nothing says what it computes."""


class ConversionError(PackagerError):
    """An artifact could not be made from the model."""


class UnsupportedError(ConversionError):
    """The model holds a layer or op that has no exact form in the target format."""


class ChildCrashed(ConversionError):
    """A child process ended without an answer."""


class BundleError(PackagerError):
    """A bundle is damaged, incomplete or cannot be written."""


class GateFailed(PackagerError):
    """A measured value lies outside its quality gate."""

    exit_code = 3


class EnvironmentLacks(PackagerError):
    """A package, program or device that is needed is missing."""

    exit_code = 4


def brief(error: BaseException, limit: int = 400) -> str:
    """Returns another library's error as one line: its class and text, without colours."""
    text = " ".join(_COLOURS.sub("", str(error)).split())
    return f"{type(error).__name__}: {text[:limit]}" + ("…" if len(text) > limit else "")


def storage_hint(error: BaseException) -> str:
    """Returns what to do where an error is about space or permission; empty where it is not."""
    # TensorFlow's errors have the system's text and no number.
    told = isinstance(error, OSError) and error.errno in _STORAGE
    if told or "No space left on device" in str(error):
        return (
            "make room or permission below the output folder and the folder for temporary files"
            " (TMPDIR)"
        )
    return ""


def by_name(name: str) -> type[PackagerError]:
    """Returns the error class called `name`, or `PackagerError` if there is none.

    Child processes send errors as a class name and a text; this is the way back.
    """
    found = globals().get(name)
    if isinstance(found, type) and issubclass(found, PackagerError):
        return found
    return PackagerError
