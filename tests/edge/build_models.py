"""Child process of the edge tests: builds small .tflite files and the bundle around them.

The stored values come from a bare `tf.lite.Interpreter` and arithmetic written down here, not
from the runner that the tests check.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"

import keras
import numpy as np
import tensorflow as tf
import tf_keras
from ai_edge_litert import schema_py_generated as schema
from litert_quantizer import quantizer, recipe
from PIL import Image

from packager.preprocess import preprocess

CARD_MARK = b"PACKAGER_CARD\0"
IMAGE_INPUT = {
    "name": "image",
    "source_name": "image",
    "shape": [None, 12, 12, 1],
    "dtype": "float32",
    "image": {
        "width": 12,
        "height": 12,
        "channels": "gray",
        "resize": "pillow:bilinear",
        "fit": "crop",
        "pad_value": 0,
        "scale": [2 / 255],
        "offset": [-1.0],
    },
}
LABELS = ["zero", "one", "two", "three", "four"]


def digits_model():
    """A convolutional net with depthwise and residual parts; its weights are seeded."""
    keras.utils.set_random_seed(7)
    image = keras.Input((12, 12, 1), name="image", batch_size=1)
    x = keras.layers.Conv2D(8, 3, strides=2, activation="relu", use_bias=True)(image)
    y = keras.layers.DepthwiseConv2D(3, padding="same", activation="relu")(x)
    x = keras.layers.Add()([x, y])
    x = keras.layers.Flatten()(x)
    digit = keras.layers.Dense(5, activation="softmax", name="digit")(x)
    model = keras.Model(image, digit)
    kernel, bias = model.get_layer("digit").get_weights()
    # Scores that spread over the whole range, as those of a trained model do.
    model.get_layer("digit").set_weights([kernel * 8, bias])
    return model


def converter_of(folder, function, signature, variables=()):
    """Converts through a tf.Module, so that the signature keeps its names."""
    module = tf.Module()
    module.weights = list(variables)
    module.serve = tf.function(lambda **inputs: function(inputs))
    concrete = module.serve.get_concrete_function(**signature)
    tf.saved_model.save(module, str(folder), signatures={"serving_default": concrete})
    return tf.lite.TFLiteConverter.from_saved_model(str(folder))


def with_card(content, card):
    """Embeds the card as a metadata buffer, named as docs/bundle.md says."""
    import flatbuffers

    model = schema.ModelT.InitFromObj(schema.Model.GetRootAs(content))
    text = json.dumps(card, ensure_ascii=False).encode()
    buffer = schema.BufferT()
    buffer.data = list(CARD_MARK + len(text).to_bytes(4, "little") + text)
    model.buffers.append(buffer)
    metadata = schema.MetadataT()
    metadata.name, metadata.buffer = "PACKAGER_CARD", len(model.buffers) - 1
    model.metadata = [*(model.metadata or []), metadata]
    builder = flatbuffers.Builder(1024)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())


def quantized(content, name, samples):
    """Makes an int8 or int16 file of a float one."""
    q = quantizer.Quantizer(content)
    q.load_quantization_recipe(getattr(recipe, name)())
    result = q.calibrate({"serving_default": [{"image": sample[None]} for sample in samples]})
    return bytes(q.quantize(result).quantized_model)


def with_uint8_ends(converter, samples):
    """TensorFlow's own int8 conversion, with uint8 input and output."""
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ({"image": sample[None]} for sample in samples)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    converter.inference_input_type = converter.inference_output_type = tf.uint8
    return converter.convert()


def bare_values(content, x):
    """What a plain script computes: quantize, invoke, dequantize."""
    interpreter = tf.lite.Interpreter(model_content=content)
    interpreter.allocate_tensors()
    (source,), (target,) = interpreter.get_input_details(), interpreter.get_output_details()
    scale, zero = source["quantization"]
    if scale:
        limits = np.iinfo(source["dtype"])
        ratio = x.astype(np.float64) / float(scale)
        x = np.sign(ratio) * np.floor(np.abs(ratio) + 0.5) + zero
        x = np.clip(x, limits.min, limits.max)
    interpreter.set_tensor(source["index"], x[None].astype(source["dtype"]))
    interpreter.invoke()
    y = interpreter.get_tensor(target["index"])[0]
    scale, zero = target["quantization"]
    return ((y.astype(np.float64) - zero) * float(scale)).astype(np.float32) if scale else y


def write_golden_images(root, rng):
    """Smooth colour pictures of several sizes, so that resizing and cropping matter."""
    names = []
    for number, (w, h) in enumerate([(20, 16), (12, 12), (31, 17), (9, 40)]):
        coarse = rng.integers(0, 256, (4, 4, 3), dtype=np.uint8)
        name = f"golden/{number:03d}.image.png"
        Image.fromarray(coarse).resize((w, h), Image.Resampling.BICUBIC).save(root / name)
        names.append(name)
    return names


def artifact(mode, dtype, status):
    kind = {"kind": "tflite", "min_version": {"ai-edge-litert": "1.4.0", "tensorflow": "2.16"}}
    return {
        "id": f"tflite/{mode}",
        "path": f"tflite/digits.{mode}.tflite",
        "runtime": kind,
        "io": [],
        "batch": 1,
        "quantization": {"mode": mode},
        "gate": {"status": status, "checks": []},
        "unknown_key": dtype,
    }


def build_bundle(root, work):
    """Writes NAME/VERSION with float32, int8, int16x8 and uint8 files and golden samples."""
    rng = np.random.default_rng(11)
    for folder in ("tflite", "golden/outputs"):
        (root / folder).mkdir(parents=True)
    model = digits_model()
    signature = {"image": tf.TensorSpec((1, 12, 12, 1), tf.float32, name="image")}

    def function(inputs):
        return {"digit": model(inputs["image"], training=False)}

    weights = [variable.value for variable in model.variables]
    converter = converter_of(work / "digits", function, signature, weights)
    float32 = converter.convert()
    names = write_golden_images(root, rng)
    x = np.stack([preprocess(root / name, IMAGE_INPUT) for name in names])
    calibration = [*x, *rng.uniform(-1, 1, (20, 12, 12, 1)).astype(np.float32)]
    card = {
        "schema": 1,
        "name": "digits",
        "version": 2,
        "task": "classification",
        "threshold": None,
        "inputs": [IMAGE_INPUT],
        "outputs": [
            {
                "name": "digit",
                "source_name": "digit",
                "shape": [None, 5],
                "dtype": "float32",
                "activation": "softmax",
            }
        ],
        "labels": LABELS,
        "tools": {},
    }
    contents = {
        "float32": float32,
        "int8": quantized(float32, "static_wi8_ai8", calibration),
        "int16x8": quantized(float32, "static_wi8_ai16", calibration),
        "uint8": with_uint8_ends(converter, calibration),
    }
    contents = {mode: with_card(content, card) for mode, content in contents.items()}
    for mode, content in contents.items():
        (root / f"tflite/digits.{mode}.tflite").write_bytes(content)
    values = {mode: np.stack([bare_values(c, i) for i in x]) for mode, c in contents.items()}
    # One artifact's values are kept as rows of an array, as those of large outputs are.
    np.save(root / "golden/outputs/int8.digit.npy", values["int8"])
    source = model.predict(x, batch_size=1, verbose=0)
    write_samples(root, names, source, values)
    artifacts = [artifact(mode, mode, "passed") for mode in contents]
    artifacts.append({"id": "saved_model", "path": ".", "runtime": {"kind": "saved_model"}})
    golden = {"path": "golden/samples.json", "count": len(x), "synthetic": False}
    files = {
        path.relative_to(root).as_posix(): {
            "bytes": path.stat().st_size,
            "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
        }
        for path in sorted(root.rglob("*"))
        if path.is_file()
    }
    manifest = {**card, "artifacts": artifacts, "golden": golden, "files": files, "new": {"a": 1}}
    (root / "manifest.json").write_text(json.dumps(manifest, indent=1))


def write_samples(root, names, source, values):
    samples = []
    for i, name in enumerate(names):
        stored = {f"tflite/{mode}": {"digit": rows[i].tolist()} for mode, rows in values.items()}
        stored["tflite/int8"] = {"digit": {"npy": "golden/outputs/int8.digit.npy", "index": i}}
        sample = {"id": f"{i:03d}", "inputs": {"image": name}}
        samples.append({**sample, "outputs": {"digit": source[i].tolist()}, "artifacts": stored})
    allowed = {"float32": 1e-6, "int8": 0.004, "int16x8": 1e-4, "uint8": 0.004}
    tolerances = {f"tflite/{mode}": {"digit": value} for mode, value in allowed.items()}
    document = {"schema": 1, "synthetic": False, "samples": samples, "tolerances": tolerances}
    (root / "golden/samples.json").write_text(json.dumps(document))


def build_two(folder, work):
    """Two inputs and two outputs whose sorted names are not the order of the model's own."""

    def function(inputs):
        a, b = inputs["a"], inputs["b"]
        return {"total": tf.reduce_sum(b * 3.0, -1) - tf.reduce_sum(a, -1), "double": a * 2.0}

    signature = {name: tf.TensorSpec((1, 4), tf.float32, name=name) for name in ("b", "a")}
    (folder / "two.tflite").write_bytes(converter_of(work / "two", function, signature).convert())


def build_lstm(folder, work):
    """A fused LSTM, which keeps its state between calls unless it is reset."""
    tf_keras.utils.set_random_seed(3)
    steps = tf_keras.Input((6, 2), batch_size=1, name="steps")
    model = tf_keras.Model(steps, tf_keras.layers.LSTM(4)(steps))

    def function(inputs):
        return {"state": model(inputs["steps"], training=False)}

    signature = {"steps": tf.TensorSpec((1, 6, 2), tf.float32, name="steps")}
    content = converter_of(work / "lstm", function, signature, model.variables).convert()
    (folder / "lstm.tflite").write_bytes(content)
    x = np.random.default_rng(5).normal(size=(3, 6, 2)).astype(np.float32)
    np.savez(folder / "lstm.npz", x=x, y=np.stack([model(row[None]).numpy()[0] for row in x]))


if __name__ == "__main__":
    out = Path(sys.argv[1])
    scratch = out / "work"
    (out / "loose").mkdir(parents=True)
    build_bundle(out / "digits" / "2", scratch)
    build_two(out / "loose", scratch)
    build_lstm(out / "loose", scratch)
