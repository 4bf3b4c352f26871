"""The training process: opens the model, trains its twin and writes the converter's file.

Run as `python -m packager.quantize.qat.worker`; see `packager.children`.
"""

from __future__ import annotations

import dataclasses
import os
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

from packager.children import serve, tell
from packager.errors import DataError, UnsupportedError
from packager.loaders.worker import Worker
from packager.quantize.qat import devices
from packager.quantize.qat.settings import Qat


class Trainer:
    """Holds the strategy and the opened model between requests."""

    def __init__(self) -> None:
        self.loader = Worker()
        self._settings = Qat()
        self._strategy: Any = None

    def start(self, settings: dict[str, Any]) -> list[str]:
        """Sets up devices and strategy, before anything else; returns the devices' names."""
        given: dict[str, Any] = {
            k: tuple(v) if isinstance(v, list) else v for k, v in settings.items()
        }
        self._settings = dataclasses.replace(Qat(), **given)
        with _watched(self._settings, "waiting for the other workers"):
            self._strategy, found = devices.start(self._settings)
        return found

    def train(
        self,
        samples: str,
        answer: dict[str, Any],
        checkpoints: str | None,
        digest: str,
        calibration: str | None = None,
    ) -> dict[str, Any]:
        """Trains the twin of the opened model.

        Args:
            samples: Folder of `<input>.npy` `[N, ...]`, and `targets.npy` for a labelled loss.
            answer: `task`, `activations` of the outputs, `threshold`, `labelled`.
            checkpoints: Folder of the checkpoint.
            digest: What the training depends on.
            calibration: Folder of `<input>.npy` for the first ranges.
        """
        from packager.quantize.qat import losses
        from packager.quantize.qat.checkpoints import Checkpoints
        from packager.quantize.qat.data import Data
        from packager.quantize.qat.training import Training

        opened = self.loader.opened
        if opened.keras_model is None:
            raise UnsupportedError(
                "quantization-aware training needs the model's Keras layers, and a SavedModel has"
                " none",
                hint="give the .keras or .h5 file that it was exported from",
            )
        inputs, wanted = self._samples(Path(samples), labelled=answer["labelled"])
        task, activations, threshold = answer["task"], answer["activations"], answer["threshold"]
        objective = (
            losses.labelled(task, activations[0], threshold)
            if answer["labelled"]
            else losses.distilled(activations, task, threshold)
        )
        chief = devices.is_chief(self._settings.strategy)
        stored = Checkpoints(Path(checkpoints), digest, writes=chief) if checkpoints else None
        ranges = [np.load(Path(calibration) / f"{end.name}.npy") for end in opened.inputs] if (
            calibration
        ) else None  # fmt: skip
        with _watched(self._settings, "training") as alive:

            def progress(event: dict[str, Any]) -> None:
                alive()
                if chief:
                    tell(event)

            training = Training(
                opened.keras_model, self._settings, Data(inputs, wanted, ranges), objective,
                self._strategy, stored, progress,
            )  # fmt: skip
            outcome = training.run()
        self._outcome = outcome
        return {
            "objective": objective.name,
            "metric": objective.metric,
            "history": outcome.history,
            "best_epoch": outcome.best_epoch,
            "stopped": outcome.stopped,
            "resumed_at": outcome.resumed_at,
            "losses": outcome.losses,
            "chief": chief,
        }

    def write(self, tflite: str, keras_file: str) -> dict[str, Any]:
        """Writes the converter's int8 file and the float model; returns the ends' names."""
        from packager.quantize.qat.exporting import strip, write_tflite
        from packager.quantize.qat.twin import twin_of
        from packager.targets.tflite import fixed_shape

        twin, opened = self._outcome.twin, self.loader.opened
        inputs = [end.name for end in opened.inputs]
        outputs = [end.name for end in opened.outputs]
        shapes = [fixed_shape(end, self._input_shapes) for end in opened.inputs]
        write_tflite(twin, Path(tflite), inputs, outputs, shapes)
        strip(twin).save(keras_file)
        floats = [f"{name} ({kind})" for name, kind in twin_of(twin).float_layers]
        return {"inputs": inputs, "outputs": outputs, "float_layers": floats}

    def shapes(self, input_shapes: dict[str, list[int]]) -> None:
        """Fixed shapes of the device file's inputs, from `--input-shape`."""
        self._input_shapes = input_shapes

    def _samples(self, folder: Path, *, labelled: bool) -> tuple[list[Any], list[Any]]:
        """Inputs, and what the outputs should be: targets, or the float model's outputs."""
        opened = self.loader.opened
        inputs = [np.load(folder / f"{end.name}.npy", mmap_mode="r") for end in opened.inputs]
        if labelled:
            return inputs, [np.load(folder / "targets.npy")]
        taught = folder / "taught"
        if not taught.is_dir():
            taught.mkdir()
            self.loader.predict(str(folder), str(taught))
        wanted = [np.load(taught / f"{end.name}.npy", mmap_mode="r") for end in opened.outputs]
        if any(not np.isfinite(values).all() for values in wanted):
            raise DataError("the float model's outputs on the training samples are not finite")
        return inputs, wanted


class _watched:
    """Ends this process with a message when a distributed step does not come to its end.

    TensorFlow's collective operations may wait without end for a worker that is gone.
    """

    def __init__(self, settings: Qat, what: str) -> None:
        self._on = settings.strategy == "multiworker"
        self._limit = settings.worker_timeout
        self._what = what
        self._last = time.monotonic()
        self._done = threading.Event()

    def __enter__(self) -> Any:
        if self._on:
            threading.Thread(target=self._watch, daemon=True).start()
        return self._alive

    def __exit__(self, *error: object) -> None:
        self._done.set()

    def _alive(self) -> None:
        self._last = time.monotonic()

    def _watch(self) -> None:
        while not self._done.wait(1):
            if time.monotonic() - self._last > self._limit:
                tell({"fatal": f"no progress for {self._limit} s while {self._what}"})
                os._exit(1)


if __name__ == "__main__":
    trainer = Trainer()
    serve(
        {
            "start": trainer.start,
            "open": trainer.loader.open,
            "shapes": trainer.shapes,
            "train": trainer.train,
            "write": trainer.write,
        }
    )
