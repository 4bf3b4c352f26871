"""What packager makes of Keras 2's layers, in each format that Keras 2 saved.

    python -m tests.loaders.keras2_verdicts FOLDER

writes `docs/keras2-layers.md` from a FOLDER that `keras2_models.py FOLDER all` filled.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from packager import opening
from packager.children import Child, scratch
from packager.config import Model
from packager.console import Reporter
from packager.errors import ConversionError, ModelError
from packager.loaders.model_file import identify
from packager.loaders.names import sanitise
from tests.conftest import ROOT, loaded

SUFFIXES = (".h5", ".keras", "")
TABLE = ROOT / "docs" / "keras2-layers.md"
# They are bases of other classes, or cannot be saved.
NOT_ALONE = {
    "AbstractRNNCell": "a base class",
    "BaseRandomLayer": "a base class",
    "DenseFeatures": "needs feature columns of TensorFlow 1, which are saved as a SavedModel only",
    "InputLayer": "part of every model",
    "Layer": "a base class",
    "PreprocessingLayer": "a base class",
    "StackedRNNCells": "inside RNN",
    "Wrapper": "a base class",
}
_HEAD = """# Keras 2 layers

What packager does with a model of Keras 2 that has this layer, by the format that it was saved in.
`make docs-tables` writes this page from one small model per line, made by tf-keras, and a test
keeps it true: the opened model's outputs equal tf-keras' within 1e-5 of the largest magnitude.

- **rebuilt**: opened as a Keras 3 model, compared with tf-keras.
- **exported**: Keras 3 has no exact form; tf-keras exports it, so there is no `tfjs/layers`.
- **signature**: taken by its signature; there are no layers, so there is no `tfjs/layers`.
- **refused**: the error names the layer and the reason.

| classes | case | `.h5` | `.keras` | SavedModel |
|---|---|---|---|---|
"""


def close(ours: np.ndarray, theirs: np.ndarray, limit: float = 1e-5) -> None:
    """Asserts equality up to a share of the largest magnitude; infinite values are equal."""
    assert ours.shape == theirs.shape
    finite = np.isfinite(theirs)
    np.testing.assert_array_equal(ours[~finite], theirs[~finite])
    difference = np.abs(ours[finite].astype(np.float64) - theirs[finite]).max(initial=0.0)
    assert difference <= limit * max(1.0, np.abs(theirs[finite]).max(initial=0.0))


class Judge:
    """Opens the small models and compares them.

    Attributes:
        source: The TensorFlow child.
        old: The tf-keras child.
    """

    def __enter__(self) -> Judge:
        self.source = Child("packager.loaders.worker")
        self.old = Child("packager.loaders.tf_keras_worker")
        return self

    def __exit__(self, *_: object) -> None:
        self.source.close()
        self.old.close()

    def verdict(self, path: Path) -> str:
        """Returns `rebuilt`, `exported` or `signature`, or the reason of a refusal.

        Raises:
            AssertionError: It opens and computes something else.
        """
        try:
            found = identify(str(path))
            with scratch("keras2") as work:
                reporter = Reporter(quiet=True)
                opened = self._open(found, work, reporter)
                self._compare(path, opened, work)
        except ModelError as error:
            return f"refused: {error.message.partition(': ')[2]}"
        if found.format == "saved_model":
            return "signature"
        stages = [stage.name for stage in reporter.stages]
        return "exported" if "export it with tf-keras" in stages else "rebuilt"

    def instead(self, path: Path, cell: str) -> str:
        """What is found instead of a cell of the table; empty when the cell is true."""
        try:
            found = _cell(self.verdict(path))
        except (AssertionError, ConversionError) as error:
            found = str(error) or type(error).__name__
        return "" if found == cell else found

    def _open(self, found, work, reporter):
        arguments = (Model(source=found.source), found, self.source)
        if found.is_keras2:
            return opening.open_keras2(*arguments, self.old, work, reporter)
        return opening.open_source(*arguments, work, reporter)

    def run(self, opened, arrays, work):
        """Runs the opened model on arrays in the order of its inputs; returns its outputs."""
        for name in ("in", "out"):
            (work / name).mkdir()
        for end, value in zip(opened["inputs"], arrays, strict=True):
            np.save(work / "in" / f"{end['name']}.npy", value)
        self.source.call("predict", "running", inputs=work / "in", outputs=work / "out")
        return [np.load(work / "out" / f"{end['name']}.npy") for end in opened["outputs"]]

    def _compare(self, path, opened, work):
        names = json.loads((path.parent / "classes.json").read_text())["inputs"][path.stem]
        with loaded(path.parent / f"{path.stem}.npz") as stored:
            given = [stored[f"x{i}"] for i in range(len(names))]
            theirs = [stored[f"y{i}"] for i in range(len(opened["outputs"]))]
        # A signature's inputs have no order of their own.
        by_name = dict(zip(sanitise(names, "input"), given, strict=True))
        several = len(given) > 1
        arrays = [by_name[end["name"]] for end in opened["inputs"]] if several else given
        for ours, wanted in zip(self.run(opened, arrays, work), theirs, strict=True):
            close(ours, wanted)


def judge(folder: Path, names: Iterable[str]) -> dict[str, dict[str, str]]:
    """Verdicts by case and format; a format that was not written is left out."""
    with Judge() as judges:
        return {
            name: {
                suffix: judges.verdict(folder / f"{name}{suffix}")
                for suffix in SUFFIXES
                if (folder / f"{name}{suffix}").exists()
            }
            for name in names
        }


def classes_of(folder: Path) -> dict[str, list[str]]:
    """The classes of layers in each case, those that every model has aside."""
    found = json.loads((folder / "classes.json").read_text())["cases"]
    common = {"InputLayer", "Sequential", "Functional"}
    return {name: [c for c in classes if c not in common] for name, classes in found.items()}


def _cell(verdict: str) -> str:
    return verdict.replace("|", "\\|")


def row(name: str, classes: list[str], verdicts: dict[str, str]) -> str:
    """One line of the table."""
    cells = [_cell(verdicts[suffix]) for suffix in SUFFIXES]
    return f"| {', '.join(classes)} | {name} | {' | '.join(cells)} |"


def documented() -> dict[str, list[str]]:
    """The cells of the table by case, in the order of `SUFFIXES`."""
    lines = [line for line in TABLE.read_text().splitlines() if line.startswith("| ")]
    rows = [line.strip("| ").split(" | ") for line in lines[1:]]
    return {cells[1]: cells[2:] for cells in rows}


def main(folder: Path) -> None:
    """Writes the table."""
    classes = classes_of(folder)
    verdicts = judge(folder, classes)
    rows = [row(name, classes[name], verdicts[name]) for name in sorted(classes)]
    alone = [f"\n`{name}` is not here: {why}." for name, why in sorted(NOT_ALONE.items())]
    TABLE.write_text(_HEAD + "\n".join(rows) + "\n" + "".join(alone) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
