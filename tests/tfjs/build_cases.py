"""Builds small Keras models, their inputs and their outputs; run as a child process.

    python build_cases.py FOLDER [NAME…]

writes, for each case, FOLDER/NAME/ with the layer graph, in.N.npy and out.N.npy, and
FOLDER/cases.json with the names, the inputs and, for a refused case, what its reason mentions.
"""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from folding_cases import folding_cases
from layer_cases import layer_cases
from operator_cases import operator_cases
from recurrent_cases import recurrent_cases
from whole_models import Case, whole_models

BATCH = 5
# Inputs of these cases have a mean that is large against their spread.
FAR = "normalization"


def cases() -> Iterator[Case]:
    for group in (
        layer_cases, recurrent_cases, operator_cases, whole_models, folding_cases,
    ):  # fmt: skip
        yield from group()


def shake(model: Any, random: Any) -> None:
    """Gives all weights values of a trained model's size."""
    import numpy as np

    for weight in model.weights:
        name = weight.path.rpartition("/")[2]
        values = np.asarray(weight)
        if not str(weight.dtype).startswith("float") or not np.isfinite(values).all():
            continue
        if name in ("mean", "variance") or ("zero_mean" in weight.path and name == "moving_mean"):
            continue
        if name in ("moving_variance", "gamma"):
            weight.assign(random.uniform(0.5, 2.0, weight.shape))
        else:
            fan_in = max(1, int(np.prod(weight.shape[:-1])))
            weight.assign(random.normal(0.0, 1.0 / np.sqrt(fan_in), weight.shape))


def inputs_of(model: Any, name: str, random: Any) -> list[Any]:
    found = []
    for tensor in model.inputs:
        shape = (BATCH, *[11 if size is None else size for size in tensor.shape[1:]])
        if tensor.dtype.startswith("float"):
            centre, spread = (100.0, 3.0) if name.startswith(FAR) else (0.1, 1.0)
            found.append(random.normal(centre, spread, shape).astype("float32"))
        elif tensor.dtype == "bool":
            found.append(random.integers(0, 2, shape).astype(bool))
        else:
            found.append(random.integers(0, 20, shape).astype(tensor.dtype))
    return found


def describe(number: int, case: Case, target: Path) -> dict[str, Any]:
    """Builds one case and writes its files."""
    import keras
    import numpy as np

    from packager.loaders import keras_graph, layer_graph

    # Names start anew; collecting garbage each time would take most of the run.
    keras.utils.clear_session(free_memory=False)
    random = np.random.default_rng(number)
    model = case.build()
    shake(model, random)
    layer_graph.save(keras_graph.layer_graph(model), target)
    inputs = inputs_of(model, case.name, random)
    why_no_graph = write_graph(model, target / "tfjs") if case.refused else ""
    outputs = [] if why_no_graph else keras.tree.flatten(model(inputs, training=False))
    for kind, arrays in (("in", inputs), ("out", outputs)):
        for i, array in enumerate(arrays):
            np.save(target / f"{kind}.{i}.npy", np.asarray(array))
    ends = {"inputs": len(inputs), "outputs": len(outputs)}
    return {"name": case.name, "refused": case.refused, "no_graph": why_no_graph, **ends}


def write_graph(model: Any, folder: Path) -> str:
    """Writes a graph model of what the layers format cannot say; returns why it cannot, either."""
    from packager.errors import PackagerError
    from packager.loaders import keras3
    from packager.targets import saved_model, tfjs_graph_writer

    try:
        opened = keras3.open_model(model, "the case", "callable", "keras")
        shapes = {end.name: saved_model.free_batch(end) for end in opened.inputs}
        function = saved_model.concrete_function(opened, shapes)
        card = {
            "inputs": [{"name": end.name} for end in opened.inputs],
            "outputs": [{"name": end.name} for end in opened.outputs],
        }
        tfjs_graph_writer.write(opened, function, folder, card=card)
    except PackagerError as error:
        return error.message
    return ""


def main(folder: Path, names: list[str]) -> None:
    every = list(cases())
    twice = [name for name, count in Counter(case.name for case in every).items() if count > 1]
    assert twice == [], f"several cases are called {twice}"
    listed = []
    for number, case in enumerate(every):
        if names and case.name not in names:
            continue
        try:
            listed.append(describe(number, case, folder / case.name))
        except Exception as error:
            raise RuntimeError(f"case {case.name} cannot be built") from error
    (folder / "cases.json").write_text(json.dumps(listed), encoding="utf-8")
    (folder / "exported.txt").write_text("\n".join(exported()), encoding="utf-8")


def exported() -> list[str]:
    """All classes that keras.layers offers."""
    import keras

    return [name for name, value in vars(keras.layers).items() if isinstance(value, type)]


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
