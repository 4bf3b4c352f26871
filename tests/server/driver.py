"""Runs many engine commands in one process, so that TensorFlow is imported once.

    python driver.py SERVER_FOLDER REQUESTS.json

A request is `{"argv": [...]}` for `engine.main`, or `{"predict": {...}, "model": FOLDER}` for
`Engine.predict`; the answers go to standard output, one JSON line each.
"""

import contextlib
import json
import os
import sys
import tempfile
from pathlib import Path

import numpy as np

sys.path.insert(0, sys.argv[1])
from packager_server import saved_model
from packager_server.codes import ServeError
from packager_server.engine import Engine, main
from packager_server.reader import EngineError


@contextlib.contextmanager
def captured(descriptor):
    """Collects what is written to a file descriptor, also by native code."""
    saved = os.dup(descriptor)
    with tempfile.TemporaryFile() as file:
        os.dup2(file.fileno(), descriptor)
        texts = []
        try:
            yield texts
        finally:
            os.dup2(saved, descriptor)
            os.close(saved)
            file.seek(0)
            texts.append(file.read().decode())


def command(argv):
    with captured(1) as out, captured(2) as err:
        try:
            code = main(argv)
        except SystemExit as error:
            code = error.code
        sys.stderr.flush()
    return {"code": code, "out": out[0], "err": err[0]}


def predict(model, signature, inputs):
    try:
        engine = Engine.load(model, signature)
        arrays = {name: np.array(value, dtype) for name, (value, dtype) in inputs.items()}
        outputs = engine.predict(arrays)
    except EngineError as error:
        return {"code": error.exit_code, "err": str(error)}
    specs = {name: [spec.dtype, spec.shape] for name, spec in engine.inputs.items()}
    return {
        "code": 0,
        "inputs": specs,
        "outputs": {name: [value.tolist(), str(value.dtype)] for name, value in outputs.items()},
    }


def both_ways(folder, inputs):
    """Runs a model as the server does, and by the public functions that replace it if need be."""
    answers = []
    for functions in (False, True):
        model = saved_model.load(folder, saved_model.LoadOptions(signature_functions=functions))
        found = {"type": type(model).__name__}
        for name, signature in sorted(model.signatures.items()):
            arrays = {key: np.array(value, dtype) for key, (value, dtype) in inputs.items()}
            try:
                outputs = model.run(name, arrays, tuple(signature.outputs))
                found[name] = {key: value.tolist() for key, value in outputs.items()}
            except ServeError as error:
                found[name] = error.code.name
        found["inputs"] = {
            key: [info.dtype, info.shape]
            for key, info in model.signatures["serving_default"].inputs.items()
        }
        found["metadata"] = sorted(set(model.metadata()) - {"__saved_model_init_op"})
        model.close()
        answers.append(found)
    return answers


def answer(request):
    if "both_ways" in request:
        return both_ways(request["both_ways"], request["inputs"])
    if "argv" in request:
        return command(request["argv"])
    return predict(
        request["model"], request.get("signature", "serving_default"), request["predict"]
    )


for request in json.loads(Path(sys.argv[2]).read_text(encoding="utf-8")):
    print(json.dumps(answer(request)), flush=True)
