"""Imports what the user named as `module` or `module:function`."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from packager.errors import UsageError, brief

_LIBRARIES = ("keras", "tf_keras", "tensorflow")


def load_module(name: str, error: type[UsageError]) -> ModuleType:
    """Imports a module from the working folder or Python's path.

    Args:
        name: The module.
        error: What to raise.

    Raises:
        UsageError: The given class; importing failed.
    """
    # `python -m packager` has the working folder on its path, the installed command has not.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        return importlib.import_module(name)
    # The module is the user's code: it may raise anything, and leave.
    except (Exception, SystemExit) as failure:
        raise error(
            f"the module {name!r} cannot be imported: {brief(failure)}",
            hint="run packager in the folder that holds it, or set PYTHONPATH",
        ) from failure


def load_function(spec: str, error: type[UsageError]) -> Callable[[], Any]:
    """Imports `package.module:function`.

    Raises:
        UsageError: The given class; there is no such module or function in it.
    """
    module, _, name = spec.partition(":")
    function = getattr(load_module(module, error), name, None)
    if not callable(function):
        raise error(f"{spec}: {module} has no function {name!r}", hint="check its spelling")
    found: Callable[[], Any] = function
    return found


def load_objects(modules: Sequence[str], error: type[UsageError]) -> dict[str, Any]:
    """Imports modules and returns their public classes and functions by name.

    What they import from Keras or TensorFlow is not their own.
    """
    objects: dict[str, Any] = {}
    for name in modules:
        for key, value in vars(load_module(name, error)).items():
            home = str(getattr(value, "__module__", "")).partition(".")[0]
            if callable(value) and not key.startswith("_") and home not in _LIBRARIES:
                objects[key] = value
    return objects
