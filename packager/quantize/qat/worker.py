"""The training process: opens the model, trains its twin and writes the converter's file.

Run as `python -m packager.quantize.qat.worker`; see `packager.handlers`.
"""

from __future__ import annotations

import dataclasses
import faulthandler
from pathlib import Path
from typing import Any

import numpy as np

from packager.errors import DataError, UnsupportedError
from packager.handlers import serve, tell
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
        with _Watch(self._settings):
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
        from packager.quantize.qat.checkpoints import Checkpoints
        from packager.quantize.qat.data import Data
        from packager.quantize.qat.training import Training

        opened = self.loader.opened
        if opened.keras_model is None:
            raise _without_layers(opened.no_layers)
        inputs, wanted = self._samples(Path(samples), labelled=answer["labelled"])
        objective = _objective(answer)
        chief = devices.is_chief(self._settings.strategy)
        stored = Checkpoints(Path(checkpoints), digest, writes=chief) if checkpoints else None
        ranges = [np.load(Path(calibration) / f"{end.name}.npy") for end in opened.inputs] if (
            calibration
        ) else None  # fmt: skip
        with _Watch(self._settings) as watch:

            def progress(event: dict[str, Any]) -> None:
                watch.alive()
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
        from packager.targets.tflite_convert import fixed_shape

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


def _without_layers(reason: str) -> UnsupportedError:
    if reason:
        return UnsupportedError(
            f"quantization-aware training needs layers of Keras 3. {reason}",
            hint="replace it by layers of docs/qat.md, save the model again and train it there;"
            " tflite/int8 needs no training",
        )
    return UnsupportedError(
        "quantization-aware training needs the model's Keras layers, and a SavedModel has none",
        hint="give the .keras or .h5 file that it was exported from",
    )


def _objective(answer: dict[str, Any]) -> Any:
    from packager.quantize.qat import losses

    task, activations, threshold = answer["task"], answer["activations"], answer["threshold"]
    if answer["labelled"]:
        return losses.labelled(task, activations[0], threshold)
    return losses.distilled(activations, task, threshold)


class _Watch:
    """Ends this process when a distributed training makes no progress.

    TensorFlow's collective operations, and its first meeting of the workers, may wait without end
    for one that is gone, and hold Python's lock meanwhile; faulthandler's timer needs no lock. The
    parent says what has happened.
    """

    def __init__(self, settings: Qat) -> None:
        self._limit = settings.worker_timeout if settings.strategy == "multiworker" else 0

    def __enter__(self) -> _Watch:
        self.alive()
        return self

    def __exit__(self, *error: object) -> None:
        faulthandler.cancel_dump_traceback_later()

    def alive(self) -> None:
        """Starts the time again."""
        if self._limit:
            faulthandler.dump_traceback_later(self._limit, exit=True)


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
