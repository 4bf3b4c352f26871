"""Saves the SavedModels that the replay cases describe: python make_replay_models.py FOLDER.

FOLDER/models.json holds a list of model descriptions; number N becomes FOLDER/N/VERSION.
"""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import tensorflow as tf

FOLDER = Path(sys.argv[1])
FIXTURES = Path(sys.argv[2])


def array(tensor):
    values, shape = tensor["values"], tensor["shape"]
    if tensor["dtype"] == "string":
        return np.array([value.encode() for value in values], object).reshape(shape)
    if tensor["dtype"] == "complex64":
        return np.array([complex(*value) for value in values], "complex64").reshape(shape)
    return np.array([float(value) for value in values]).astype(tensor["dtype"]).reshape(shape)


def save(path, functions):
    module = tf.Module()
    module.kept = list(functions.values())
    tf.saved_model.save(module, str(path), signatures=functions)


def save_described(path, model):
    specs = {name: tf.TensorSpec(None, dtype, name=name) for name, dtype in model["inputs"].items()}
    outputs = {name: array(tensor) for name, tensor in model.get("outputs", {}).items()}

    def run(**inputs):
        if outputs:
            return {name: tf.identity(tf.constant(value)) for name, value in outputs.items()}
        return {name: tf.identity(value) for name, value in inputs.items()}

    concrete = tf.function(run).get_concrete_function(**specs)
    save(path, dict.fromkeys(model["signatures"], concrete))


def save_keras(path):
    import keras

    model = keras.Sequential(
        [keras.Input((1,), name="x"), keras.layers.Activation("linear", name="y")]
    )
    run = tf.function(lambda x: {"y": model(x)})
    spec = tf.TensorSpec([None, 1], tf.float32, name="x")
    save(path, {"serving_default": run.get_concrete_function(x=spec)})


def save_two_signatures(path):
    spec = tf.TensorSpec(None, tf.float32, name="x")
    one = tf.function(lambda x: {"y": tf.constant(1.0)}).get_concrete_function(x=spec)
    two = tf.function(lambda x: {"y": tf.constant(2.0)}).get_concrete_function(x=spec)
    save(path, {"serving_default": one, "custom_signature_key": two})


def make(folder, model):
    for version in model.get("versions", []):
        path = folder / str(version)
        if model["kind"] in ("identity", "constant", "examples"):
            save_described(path, model)
        elif model["kind"].startswith("half_plus"):
            name = model.get("path", model["name"]).split("/")[-1]
            source = FIXTURES / name / f"{version:08}"
            if not source.is_dir():
                source = FIXTURES / "saved_model_half_plus_two_cpu" / f"{version:08}"
            shutil.copytree(source, folder / f"{version:08}")
        elif "Keras Sequential" in model["build"]:
            save_keras(path)
        elif "two tf.functions" in model["build"]:
            save_two_signatures(path)


def save_eager(folder):
    """A bundle without a graph: a .keras file, and what it answers."""
    import keras

    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((4,), name="x"), keras.layers.Dense(3, name="y")])
    model.layers[0].bias.assign([0.5, -1.0, 2.0])
    (folder / "1" / "keras").mkdir(parents=True)
    model.save(folder / "1" / "keras" / "model.keras")
    manifest = {
        "schema": 1,
        "inputs": [{"name": "x", "shape": [None, 4], "dtype": "float32"}],
        "outputs": [{"name": "y", "shape": [None, 3], "dtype": "float32"}],
        "artifacts": [{"id": "keras", "path": "keras/model.keras", "runtime": {"kind": "keras"}}],
    }
    (folder / "1" / "manifest.json").write_text(json.dumps(manifest))
    x = np.random.default_rng(1).normal(size=(5, 4)).astype(np.float32)
    answer = {"x": x.tolist(), "y": np.asarray(model(x)).tolist()}
    (folder / "answer.json").write_text(json.dumps(answer))


def save_with_warmup(folder):
    """Version 1 with a request that works, version 2 with one that names no input of the model."""
    from tensorflow_serving.apis import prediction_log_pb2

    for version, name in (("1", "x"), ("2", "other")):
        path = folder / version
        shutil.copytree(FIXTURES / "saved_model_half_plus_two_cpu" / "00000123", path)
        log = prediction_log_pb2.PredictionLog()
        log.predict_log.request.inputs[name].CopyFrom(tf.make_tensor_proto(np.float32([1.0])))
        (path / "assets.extra").mkdir()
        with tf.io.TFRecordWriter(
            str(path / "assets.extra" / "tf_serving_warmup_requests")
        ) as file:
            file.write(log.SerializeToString())


def save_python(folder):
    """Models whose `call` is Python, and what they answer."""
    from tests.server import python_models

    folder.mkdir()
    python_models.save(folder)


save_with_warmup(FOLDER / "warmup")
save_python(FOLDER / "python")
save_eager(FOLDER / "eager")
for number, description in enumerate(json.loads((FOLDER / "models.json").read_text())):
    (FOLDER / str(number)).mkdir()
    make(FOLDER / str(number), description)
