"""What an interrupted training goes on from: one file, replaced as a whole."""

from __future__ import annotations

import contextlib
import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

_LISTS = ("weights", "best", "optimizer")
NAME = "checkpoint.npz"


class Checkpoints:
    """The checkpoint of one training.

    Args:
        folder: Where it is; made when it is needed.
        digest: What the training depends on: model, samples, settings. The checkpoint of another
            training is not used.
        writes: This process writes; of several workers, the chief.
    """

    def __init__(self, folder: Path, digest: str, *, writes: bool = True) -> None:
        self._path = folder / NAME
        self._digest = digest
        self._writes = writes

    def load(self) -> dict[str, Any] | None:
        """Returns what `save` was given, or None where there is no such checkpoint."""
        try:
            with self._path.open("rb") as file, np.load(file, allow_pickle=False) as stored:
                state: dict[str, Any] = json.loads(str(stored["state"]))
                if state.pop("digest") != self._digest:
                    return None
                counts = state.pop("counts")
                for name in _LISTS:
                    state[name] = [stored[f"{name}.{i}"] for i in range(counts[name])]
                return state
        # A file that cannot be read is none: it holds nothing that training cannot do again.
        except (OSError, ValueError, KeyError, zipfile.BadZipFile):
            return None

    def save(self, state: dict[str, Any]) -> None:
        """Writes a state: plain values, and the lists of arrays that `_LISTS` names."""
        if not self._writes:
            return
        plain = {key: value for key, value in state.items() if key not in _LISTS}
        counts = {name: len(state[name]) for name in _LISTS}
        text = json.dumps({**plain, "counts": counts, "digest": self._digest})
        arrays = {
            f"{name}.{number}": array for name in _LISTS for number, array in enumerate(state[name])
        }
        self._path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self._path.with_name(f".{NAME}.{os.getpid()}")
        with temporary.open("wb") as file:
            np.savez(file, state=np.array(text), **arrays)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(self._path)


def remove(folder: Path) -> None:
    """Removes a training's checkpoint, and its folder where nothing else is in it."""
    for path in (folder / NAME, *folder.glob(f".{NAME}.*")):
        path.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        folder.rmdir()
