"""Runs the SavedModel or Keras model of a bundle: a class, and two commands for machines.

    python engine.py run BUNDLE --inputs DIR --outputs DIR [--batch 32]
    python engine.py verify BUNDLE [--artifact ID] [--record FILE] [--allow-model-code]

Standard output is one JSON document; everything else goes to standard error. Exit codes: 0 ok,
1 failure, 2 usage, 3 a golden sample left its tolerance, 4 the environment lacks something.
TensorFlow is imported by `Engine.load`, not with this module.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import time
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

if not __package__:
    # Run as a script: the folder above holds this package.
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from packager_server import eager_model, saved_model
from packager_server.codes import ServeError
from packager_server.model import DEFAULT_SIGNATURE, Model, Signature, TensorInfo
from packager_server.reader import (
    Array,
    EngineError,
    Json,
    check_files,
    check_runtime,
    choose_artifacts,
    compare_golden,
    find_bundle,
    finite_only,
    first_line,
    golden_input,
    inside,
    map_inputs,
    npy_path,
    outcome,
    read_json,
    read_manifest,
)

DEFAULT_BATCH = 32


@dataclass(frozen=True)
class TensorSpec:
    """One input or output of a signature.

    Attributes:
        name: The name in the signature.
        dtype: NumPy's name of the dtype; `object` for strings.
        shape: Sizes with the batch axis, None where free; None when the rank is unknown.
    """

    name: str
    dtype: str
    shape: tuple[int | None, ...] | None

    def accepts(self, shape: tuple[int, ...]) -> bool:
        """Whether an array of `shape` (with the batch axis) fits."""
        if self.shape is None:
            return True
        pairs = zip(self.shape, shape, strict=False)
        return len(shape) == len(self.shape) and all(own in (None, given) for own, given in pairs)


class Engine:
    """One signature of a model, called with NumPy arrays by name.

    Attributes:
        inputs: The signature's inputs by name.
        outputs: The signature's outputs by name.
        version: TensorFlow's version.
    """

    def __init__(self, model: Model, signature: Signature, version: str) -> None:
        self._model = model
        self._name = signature.name
        self.inputs = _specs(signature.inputs)
        self.outputs = _specs(signature.outputs)
        self.version = version

    @classmethod
    def load(cls, folder: str | Path, signature: str = DEFAULT_SIGNATURE) -> Engine:
        """Loads the SavedModel in `folder`, in the way that the server runs it.

        Raises:
            EngineError: No SavedModel there, a damaged one, no such signature, or no TensorFlow.
        """
        folder = Path(folder)
        if not (folder / "saved_model.pb").is_file():
            raise EngineError(f"{folder}: no SavedModel here: saved_model.pb is missing")
        tensorflow = import_tensorflow()
        try:
            model = saved_model.load(folder)
        # TensorFlow answers damaged files with many unrelated exception types.
        except Exception as error:
            raise EngineError(
                f"{folder}: TensorFlow cannot load this SavedModel: {first_line(error)}",
                hint="Copy or build the bundle again; `verify` names a file that changed.",
            ) from error
        if signature not in model.signatures:
            names = ", ".join(sorted(model.signatures)) or "none"
            raise EngineError(f"{folder}: no signature {signature!r}; it has: {names}", exit_code=2)
        return cls(model, model.signatures[signature], str(tensorflow.__version__))

    @classmethod
    def load_keras(cls, bundle: Path, manifest: Json, *, allow_code: bool) -> Engine:
        """Loads the Keras model of a bundle; see `eager_model.load`.

        Raises:
            EngineError: It cannot be loaded; exit code 4 where code must be allowed first.
        """
        if not allow_code and (code := eager_model.named_code(manifest)):
            raise EngineError(
                f"the model is code, {code}: give --allow-model-code if you trust it", exit_code=4
            )
        import_tensorflow()
        import keras

        try:
            model = eager_model.load(str(bundle), manifest, allow_code=allow_code)
        except ServeError as error:
            raise EngineError(str(error)) from error
        # The model's own code may raise anything.
        except Exception as error:
            raise EngineError(f"{bundle}: Keras cannot load it: {first_line(error)}") from error
        return cls(model, model.signatures[DEFAULT_SIGNATURE], str(keras.__version__))

    def predict(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Runs one batch.

        Args:
            inputs: By input name, arrays with a batch axis and the input's dtype; one float
                width is converted to another, nothing else is.

        Returns:
            By output name, arrays with a batch axis and the output's dtype.

        Raises:
            EngineError: A missing or unknown name, a wrong dtype or shape, or an op that failed.
        """
        self._check_names(inputs)
        feed = {name: self._fit(name, inputs[name]) for name in self.inputs}
        try:
            return self._model.run(self._name, feed, tuple(self.outputs))
        except ServeError as error:
            raise EngineError(f"the model failed on this input: {first_line(error)}") from error

    def _check_names(self, inputs: Mapping[str, Array]) -> None:
        if set(inputs) != set(self.inputs):
            message = f"the inputs are {sorted(self.inputs)}, received {sorted(inputs)}"
            raise EngineError(message, exit_code=2)

    def _fit(self, name: str, value: Array) -> Array:
        spec = self.inputs[name]
        value = np.asarray(value)
        expected = np.dtype(spec.dtype)
        both_float = value.dtype.kind == "f" and expected.kind == "f"
        if value.dtype != expected and not (both_float or expected.kind == "O"):
            raise EngineError(
                f"input {name!r}: expected {spec.dtype}, received {value.dtype}", exit_code=2
            )
        if not spec.accepts(value.shape):
            raise EngineError(
                f"input {name!r}: expected shape {spec.shape}, received {value.shape}", exit_code=2
            )
        return value.astype(expected, copy=False)


def import_tensorflow() -> Any:
    """Returns the TensorFlow module, with its start-up messages turned off.

    Raises:
        EngineError: It is not installed or does not start (exit code 4).
    """
    try:
        return saved_model.import_tensorflow()
    # A broken installation also ends in other errors: a missing library, a NumPy that is too old.
    except Exception as error:
        raise EngineError(
            f"TensorFlow cannot be imported: {first_line(error)}",
            hint="pip install 'packager[server]'",
            exit_code=4,
        ) from error


def _specs(infos: Mapping[str, TensorInfo]) -> dict[str, TensorSpec]:
    def numpy_name(dtype: str) -> str:
        return "object" if dtype == "string" else dtype

    return {
        name: TensorSpec(name=name, dtype=numpy_name(info.dtype), shape=info.shape)
        for name, info in sorted(infos.items())
    }


def run(engine: Engine, inputs: Path, outputs: Path, batch: int = DEFAULT_BATCH) -> int:
    """Runs all samples of `inputs/<name>.npy` and writes `outputs/<name>.npy`.

    Both are memory-mapped. Inputs are `[N, ...]`, already preprocessed; outputs are float32
    `[N, ...]`. A model with a fixed batch is run with that one; its last batch is filled up.

    Returns:
        N.

    Raises:
        EngineError: A file is missing, unreadable or does not fit the signature, or a tensor's
            name leads to another folder.
    """
    arrays, count = map_inputs(inputs, engine.inputs)
    outputs.mkdir(parents=True, exist_ok=True)
    sinks: dict[str, Array] = {}
    fixed = _fixed_batch(engine)
    for start in range(0, count, fixed or batch):
        stop = min(start + (fixed or batch), count)
        chunk = {name: _filled(array[start:stop], fixed) for name, array in arrays.items()}
        for name, value in engine.predict(chunk).items():
            rows = _batch_rows(name, value, stop - start, fixed)
            if name not in sinks:
                sinks[name] = _open_output(npy_path(outputs, name), (count, *rows.shape[1:]))
            if sinks[name].shape[1:] != rows.shape[1:]:
                raise EngineError(f"output {name!r} changes its shape from batch to batch")
            sinks[name][start:stop] = rows
    for sink in sinks.values():
        if isinstance(sink, np.memmap):
            sink.flush()
    return count


def _fixed_batch(engine: Engine) -> int | None:
    firsts = [spec.shape[0] for spec in engine.inputs.values() if spec.shape]
    return next((first for first in firsts if first is not None), None)


def _filled(rows: Array, fixed: int | None) -> Array:
    missing = 0 if fixed is None else fixed - len(rows)
    return np.concatenate([rows, np.repeat(rows[-1:], missing, axis=0)]) if missing else rows


def _batch_rows(name: str, value: Array, count: int, fixed: int | None) -> Array:
    if value.ndim == 0 or len(value) != (fixed or count):
        raise EngineError(f"output {name!r}: no batch axis in its shape {value.shape}")
    if value.dtype.kind not in "biuf":
        raise EngineError(f"output {name!r}: expected numbers, received {value.dtype}")
    return value[:count]


def _open_output(path: Path, shape: tuple[int, ...]) -> Array:
    # A file without a single value cannot be memory-mapped.
    if 0 in shape:
        np.save(path, np.zeros(shape, np.float32))
        return np.zeros(shape, np.float32)
    array: Array = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=shape)
    return array


def verify(
    bundle: Path,
    *,
    artifact: str | None = None,
    also: tuple[Path, Path] | None = None,
    allow_code: bool = False,
) -> tuple[Json, Json]:
    """Checks the hashes and runs the bundle's model on the golden samples.

    Args:
        bundle: The folder of the bundle.
        artifact: Only this artifact; default: each SavedModel and Keras model of the bundle.
        also: Folders of inputs and outputs for `run`, to spare a second start of TensorFlow.
        allow_code: Run code that the bundle names.

    Returns:
        The answer that docs/bundle.md describes, and the values that were computed, flat, by
        artifact, sample and output.

    Raises:
        EngineError: The manifest or the golden samples cannot be read.
    """
    manifest = read_manifest(bundle)
    files = check_files(bundle, manifest.get("files") or {})
    golden = read_json(inside(bundle, manifest["golden"]["path"]))
    runtime: Json = {"name": "tensorflow", "version": None}
    results: list[Json] = []
    values: Json = {}
    for chosen in choose_artifacts(manifest["artifacts"], artifact):
        try:
            if chosen["runtime"]["kind"] == eager_model.KIND:
                package = "keras"
                engine = Engine.load_keras(bundle, manifest, allow_code=allow_code)
            else:
                package = "tensorflow"
                engine = Engine.load(inside(bundle, chosen["path"]))
            runtime = {"name": package, "version": engine.version}
            check_runtime(package, engine.version, chosen)
            values[chosen["id"]] = _run_golden(engine, bundle, manifest["inputs"], golden)
            result = compare_golden(bundle, golden, chosen["id"], values[chosen["id"]])
            if also is not None:
                run(engine, *also)
        except EngineError as error:
            result = outcome("skipped" if error.exit_code == 4 else "failed", reason=str(error))
        results.append({"id": chosen["id"], **result})
    machine = {"system": platform.system(), "machine": platform.machine()}
    answer = {"runner": "server", "runtime": runtime, "machine": machine, "files": files}
    return {**answer, "artifacts": results}, values


def _run_golden(engine: Engine, bundle: Path, inputs: list[Json], golden: Json) -> Json:
    values: Json = {}
    for sample in golden["samples"]:
        feed = {
            spec["name"]: golden_input(inside(bundle, sample["inputs"][spec["name"]]), spec)
            for spec in inputs
        }
        outputs = engine.predict(feed)
        values[sample["id"]] = {
            name: value.astype(np.float64).ravel().tolist() for name, value in outputs.items()
        }
    return values


def _run_command(arguments: argparse.Namespace) -> tuple[Json, int]:
    engine = Engine.load(arguments.model, arguments.signature)
    started = time.perf_counter()
    count = run(engine, arguments.inputs, arguments.outputs, arguments.batch)
    seconds = round(time.perf_counter() - started, 3)
    runtime = {"name": "tensorflow", "version": engine.version}
    return {"count": count, "seconds": seconds, "runtime": runtime}, 0


def _verify_command(arguments: argparse.Namespace) -> tuple[Json, int]:
    bundle = find_bundle(arguments.bundle)
    also = (arguments.inputs, arguments.outputs) if arguments.inputs else None
    answer, values = verify(
        bundle, artifact=arguments.artifact, also=also, allow_code=arguments.allow_model_code
    )
    if arguments.record is not None:
        arguments.record.write_text(json.dumps(finite_only(values)), encoding="utf-8")
    return answer, _exit_code(answer)


def _exit_code(answer: Json) -> int:
    failed = [one for one in answer["artifacts"] if one["status"] == "failed"]
    if answer["files"]["problems"] or any(one["samples"] == 0 for one in failed):
        return 1
    if failed:
        return 3
    return 4 if {one["status"] for one in answer["artifacts"]} == {"skipped"} else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="engine", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--debug", action="store_true", help="show tracebacks")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    one = commands.add_parser("run", help="run a SavedModel on .npy files")
    one.add_argument("model", type=Path, help="a bundle or another SavedModel folder")
    one.add_argument("--inputs", type=Path, required=True, help="folder of <input name>.npy")
    one.add_argument("--outputs", type=Path, required=True, help="folder for <output name>.npy")
    one.add_argument("--batch", type=_positive, default=DEFAULT_BATCH)
    one.add_argument("--signature", default=DEFAULT_SIGNATURE)
    one.set_defaults(command=_run_command)
    one = commands.add_parser("verify", help="check a bundle and its golden samples")
    one.add_argument("bundle", type=Path)
    one.add_argument("--artifact", help="only this artifact")
    one.add_argument("--record", type=Path, help="write the computed values here")
    one.add_argument("--allow-model-code", action="store_true", help="run code that it names")
    one.add_argument("--inputs", type=Path, help="also run it, as `run` does; with --outputs")
    one.add_argument("--outputs", type=Path)
    one.set_defaults(command=_verify_command)
    return parser


def _positive(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"expected a positive integer, received {text!r}")
    return int(text)


def _guarded(arguments: argparse.Namespace) -> tuple[Json | None, int]:
    """Runs the chosen command; an error becomes text on standard error and an exit code."""
    try:
        command: Callable[[argparse.Namespace], tuple[Json, int]] = arguments.command
        return command(arguments)
    # Beside our own, errors come from damaged files and full disks; no traceback helps a user.
    except Exception as error:
        if arguments.debug:
            traceback.print_exception(error)
        text, code = _explain(error)
    print(text, file=sys.stderr)
    return None, code


def _explain(error: Exception) -> tuple[str, int]:
    if isinstance(error, EngineError):
        return f"error: {error}" + (f"\nhint: {error.hint}" if error.hint else ""), error.exit_code
    if isinstance(error, KeyError):
        return f"error: the bundle is damaged: its JSON files lack {error}", 1
    return f"error: {type(error).__name__}: {first_line(error)}", 1


def main(argv: list[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    arguments = _parser().parse_args(argv)
    # Native code of TensorFlow may print: standard output must stay one JSON document.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)
        answer, code = _guarded(arguments)
        if answer is not None:
            answers.write(json.dumps(answer) + "\n")
    return code


if __name__ == "__main__":
    sys.exit(main())
