"""Models of a few lines, so that everything but TensorFlow can be tested without it."""

import threading

import numpy as np
from packager_server.codes import ServeError
from packager_server.core import ServingCore
from packager_server.lifecycle import Loaded, ModelConfig
from packager_server.model import Signature, TensorInfo, signature_json


class FakeModel:
    """Calls `function(inputs) -> outputs`; counts what happens to it."""

    def __init__(self, function, inputs, outputs, names=("serving_default",)):
        self._function = function
        self.signatures = {
            name: Signature(
                name,
                {key: TensorInfo(*value) for key, value in inputs.items()},
                {key: TensorInfo(*value) for key, value in outputs.items()},
            )
            for name in names
        }
        self.batches = []
        self.closed = False

    def run(self, signature, inputs, outputs):
        assert not self.closed, "a closed model was run"
        self.batches.append({name: value.shape for name, value in inputs.items()})
        found = self._function(inputs)
        return {name: found[name] for name in outputs}

    def metadata(self):
        return {name: signature_json(one) for name, one in self.signatures.items()}

    def close(self):
        self.closed = True


def identity(dtypes, names=("serving_default",)):
    """Every output is the input of the same name; shapes of any rank."""
    infos = {name: (dtype, None) for name, dtype in dtypes.items()}
    return FakeModel(dict, infos, infos, names)


def constant(inputs, outputs, names=("serving_default",)):
    infos = {name: (dtype, None) for name, dtype in inputs.items()}
    kinds = {name: ("float32", None) for name in outputs}
    return FakeModel(lambda _: outputs, infos, kinds, names)


def scaled(factor=2.0, shape=(None, 2)):
    """One float input `x`, one output `y`; refuses negative numbers and waits for `gate`."""

    def function(inputs):
        model.gate.wait()
        if (inputs["x"] < 0).any():
            raise ServeError("negative numbers are refused")
        return {"y": inputs["x"] * np.float32(factor)}

    model = FakeModel(function, {"x": ("float32", shape)}, {"y": ("float32", shape)})
    model.gate = threading.Event()
    model.gate.set()
    return model


class Folders:
    """A base path whose versions are loaded from a table, by folder name."""

    def __init__(self, base, models=None):
        self.base = base
        self.models = dict(models or {})
        self.loads = []
        for name in self.models:
            (base / name).mkdir(parents=True)

    def add(self, name, model):
        self.models[name] = model
        (self.base / name).mkdir(parents=True)
        return model

    def remove(self, name):
        (self.base / name).rmdir()

    def __call__(self, config, number, path):
        self.loads.append(number)
        model = self.models[path.rpartition("/")[2]]
        if isinstance(model, Exception):
            raise model
        return model if isinstance(model, Loaded) else Loaded(model)


def core_with(folder, models, name="m", **settings):
    """A running core that holds `models` (by version) as model `name`."""
    folders = Folders(folder / name, {str(key): model for key, model in models.items()})
    core = ServingCore(lambda metrics: folders, **settings)
    core.versions.reload([ModelConfig(name, str(folders.base))])
    return core
