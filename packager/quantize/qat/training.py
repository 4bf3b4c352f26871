"""The training loop: one for one process, several devices and several machines.

Keras 3's `fit` does not run under MultiWorkerMirroredStrategy, so this is a loop of its own. Every
process draws the same order of samples from the seed and takes its replicas' rows of each global
batch; the losses are therefore those of one process on the same batches.
"""

from __future__ import annotations

import hashlib
import math
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from packager.errors import ConfigError, ConversionError
from packager.quantize.qat.calibration import calibrate
from packager.quantize.qat.checkpoints import Checkpoints
from packager.quantize.qat.data import Data, Outcome, split
from packager.quantize.qat.losses import Objective
from packager.quantize.qat.settings import Qat
from packager.quantize.qat.twin import quantize_model, weighted_of

Array = np.ndarray[Any, Any]
Progress = Callable[[dict[str, Any]], None]

_CALIBRATION = 256
_LOST = (
    tf.errors.UnavailableError,
    tf.errors.AbortedError,
    tf.errors.CancelledError,
    tf.errors.DeadlineExceededError,
    tf.errors.InternalError,
)


def _equal_on_replicas(make: Any, **arguments: Any) -> Any:
    """Lets a replica assign statistics: they are computed over all replicas, and so are equal."""
    if arguments.get("aggregation") in (None, tf.VariableAggregation.NONE):
        arguments["aggregation"] = tf.VariableAggregation.ONLY_FIRST_REPLICA
    return make(**arguments)


class Training:
    """One training.

    Args:
        model: The float model.
        settings: How to train.
        data: The samples.
        objective: What to minimise.
        strategy: Of `tf.distribute`.
        checkpoints: Where an interrupted training goes on from; None: nowhere.
        progress: Called with what the user sees.
        rules: As `quantize_model` takes them.
    """

    def __init__(
        self,
        model: Any,
        settings: Qat,
        data: Data,
        objective: Objective,
        strategy: Any,
        checkpoints: Checkpoints | None = None,
        progress: Progress = lambda event: None,
        rules: Any = None,
    ) -> None:
        self._settings = settings
        self._data = data
        self._objective = objective
        self._strategy = strategy
        self._checkpoints = checkpoints
        self._progress = progress
        self._train, self._held = split(data.count, settings.seed)
        self._batch = self._global_batch()
        self._steps = len(self._train) // self._batch
        keras.utils.set_random_seed(settings.seed)
        # Ranges are found, and files written, outside of the strategy's variables.
        self._plain = quantize_model(model, rules, require_integer=settings.require_integer)
        self._calibrate()
        with strategy.scope(), tf.variable_creator_scope(_equal_on_replicas):
            keras.config.set_dtype_policy(settings.precision)
            self._twin = quantize_model(model, rules)
            keras.config.set_dtype_policy("float32")
            self._twin.set_weights(self._plain.get_weights())
            self._optimizer = self._make_optimizer()
            self._optimizer.build(self._twin.trainable_variables)
        if strategy.num_replicas_in_sync > 1:
            for layer in weighted_of(self._twin):
                if layer.norm is not None:
                    layer.norm.synchronized = True
        self._step: Any = None

    def run(self) -> Outcome:
        """Trains, or goes on where a checkpoint ended.

        Raises:
            ConversionError: Another worker was lost.
        """
        state = self._first_state()
        outcome = Outcome(self._plain, state["history"], state["best_epoch"])
        outcome.resumed_at = state["step"]
        try:
            self._all_epochs(state, outcome)
        except _LOST as error:
            if self._strategy.num_replicas_in_sync == 1:
                raise
            raise ConversionError(
                f"training stopped in step {state['step'] + 1}: another worker was lost or could"
                f" not go on ({type(error).__name__})",
                hint="start all workers again: the training goes on from its last checkpoint",
            ) from error
        self._plain.set_weights(state["best"])
        outcome.best_epoch = state["best_epoch"]
        return outcome

    def _global_batch(self) -> int:
        replicas: int = self._strategy.num_replicas_in_sync
        wanted = self._settings.batch_size
        if wanted % replicas:
            raise ConfigError(
                f"qat: the batch size {wanted} cannot be divided among {replicas} replicas",
                hint=f"give a multiple of {replicas}: --qat-batch-size",
            )
        return max(replicas, min(wanted, len(self._train) // replicas * replicas))

    def _make_optimizer(self) -> Any:
        optimizer = keras.optimizers.Adam(self._settings.learning_rate)
        if self._settings.precision == "mixed_float16":
            return keras.optimizers.LossScaleOptimizer(optimizer)
        return optimizer

    def _calibrate(self) -> None:
        arrays = self._data.calibration
        if arrays is None:
            rows = self._train[:: max(1, len(self._train) // _CALIBRATION)][:_CALIBRATION]
            arrays = [array[rows] for array in self._data.inputs]
        packed = keras.tree.pack_sequence_as(self._plain._inputs_struct, list(arrays))
        calibrate(self._plain, packed)

    def _first_state(self) -> dict[str, Any]:
        """The state before the first step, or that of the checkpoint."""
        stored = self._checkpoints.load() if self._checkpoints else None
        self._agree(stored["step"] if stored else 0)
        if stored:
            self._twin.set_weights(stored["weights"])
            for variable, value in zip(self._optimizer.variables, stored["optimizer"], strict=True):
                variable.assign(value)
            self._progress({"resumed": stored["step"], "of": self._steps * self._settings.epochs})
            return stored
        loss, metric = self._evaluate()
        first = {"epoch": 0, "val_loss": loss, "val_metric": metric}
        self._tell_epoch(first)
        weights = self._twin.get_weights()
        return {
            "step": 0, "history": [first], "best_epoch": 0, "best_loss": loss, "best": weights,
            "sums": [0.0, 0.0],
        }  # fmt: skip

    def _agree(self, step: int) -> None:
        """Refuses workers that train something else, or would go on from different steps.

        Raises:
            ConfigError: They were given different things, or share no folder of checkpoints.
        """
        same = self._fingerprint()
        if self._strategy.num_replicas_in_sync == 1:
            return

        def gather() -> Any:
            context = tf.distribute.get_replica_context()
            return context.all_gather(tf.constant([[step, same]], tf.int64), axis=0)

        found = self._strategy.experimental_local_results(
            self._strategy.run(tf.function(gather, autograph=False))
        )[0].numpy()
        if len(set(found[:, 1].tolist())) > 1:
            raise ConfigError(
                "qat: the workers do not train the same model on the same samples in the same way",
                hint="give all workers the same model, --train, --calibration and --qat-… values",
            )
        if len(set(found[:, 0].tolist())) > 1:
            raise ConfigError(
                f"qat: the workers hold checkpoints of different steps {found[:, 0].tolist()}",
                hint="give all workers one shared folder: --qat-checkpoints DIR",
            )

    def _fingerprint(self) -> int:
        """A number that depends on settings, weights, first ranges and samples."""
        here: dict[str, Any] = {"gpus": (), "gpu_memory_limit": None, "gpu_memory_growth": False}
        settings = replace(self._settings, log_device_placement=False, **here)
        digest = hashlib.sha256(repr(settings).encode())
        for array in (*self._plain.get_weights(), *self._data.inputs, *self._data.wanted):
            digest.update(np.ascontiguousarray(array[:64] if array.ndim else array).tobytes())
        return int.from_bytes(digest.digest()[:7], "big")

    def _all_epochs(self, state: dict[str, Any], outcome: Outcome) -> None:
        for epoch in range(state["step"] // self._steps, self._settings.epochs):
            frozen = epoch >= self._settings.frozen_from
            self._step = self._traced_step(frozen)
            order = np.random.default_rng((self._settings.seed, 2, epoch)).permutation(self._train)
            start = time.perf_counter()
            before = state["step"]
            while state["step"] < (epoch + 1) * self._steps:
                place = state["step"] - epoch * self._steps
                rows = order[place * self._batch : (place + 1) * self._batch]
                if not self._one_step(np.sort(rows), state, outcome, epoch):
                    return
            self._end_epoch(epoch, state, (time.perf_counter() - start, state["step"] - before))

    def _one_step(self, rows: Array, state: dict[str, Any], outcome: Outcome, epoch: int) -> bool:
        """Trains on one global batch; False where the loss is no number any more."""
        inputs, wanted = self._distributed(rows)
        loss, right = (float(value) for value in self._step(inputs, wanted))
        outcome.losses.append(loss)
        if not math.isfinite(loss):
            outcome.stopped = (
                f"the loss became {loss} in step {state['step'] + 1} (epoch {epoch + 1});"
                f" kept the best state before it, of epoch {state['best_epoch']}"
            )
            return False
        state["step"] += 1
        state["sums"][0] += loss
        state["sums"][1] += right / self._batch
        done = state["step"] - epoch * self._steps
        if done < self._steps and state["step"] % self._settings.checkpoint_steps == 0:
            self._save(state)
        self._progress(
            {
                "step": state["step"],
                "of": self._steps * self._settings.epochs,
                "epoch": epoch + 1,
                "loss": state["sums"][0] / done,
                **self._named("", state["sums"][1] / done),
            }
        )
        return True

    def _end_epoch(self, epoch: int, state: dict[str, Any], took: tuple[float, int]) -> None:
        loss, metric = self._evaluate()
        entry = {
            "epoch": epoch + 1,
            "loss": state["sums"][0] / self._steps,
            "metric": state["sums"][1] / self._steps,
            "val_loss": loss,
            "val_metric": metric,
            "seconds": round(took[0], 3),
            "steps": took[1],
        }
        state["history"].append(entry)
        state["sums"] = [0.0, 0.0]
        if loss < state["best_loss"]:
            state["best_loss"], state["best_epoch"] = loss, epoch + 1
            state["best"] = self._twin.get_weights()
        self._save(state)
        self._tell_epoch(entry)

    def _tell_epoch(self, entry: dict[str, Any]) -> None:
        shown = (
            {"loss": entry["loss"], **self._named("", entry["metric"])} if "loss" in entry else {}
        )
        held = {"val_loss": entry["val_loss"], **self._named("val_", entry["val_metric"])}
        self._progress(
            {
                "epoch_done": entry["epoch"], "epochs": self._settings.epochs,
                "seconds": entry.get("seconds", 0.0), **shown, **held,
            }
        )  # fmt: skip

    def _named(self, prefix: str, value: float) -> dict[str, float]:
        return {f"{prefix}{self._objective.metric}": value} if self._objective.metric else {}

    def _save(self, state: dict[str, Any]) -> None:
        if self._checkpoints is None:
            return
        optimizer = [np.asarray(variable.value) for variable in self._optimizer.variables]
        self._checkpoints.save(
            {**state, "weights": self._twin.get_weights(), "optimizer": optimizer}
        )

    def _distributed(self, rows: Array) -> tuple[Any, Any]:
        """One global batch, each replica's rows with it."""
        each = self._batch // self._strategy.num_replicas_in_sync

        def mine(context: Any) -> Any:
            place = context.replica_id_in_sync_group * each
            chosen = rows[place : place + each]
            return tuple(
                tuple(tf.constant(np.ascontiguousarray(array[chosen])) for array in arrays)
                for arrays in (self._data.inputs, self._data.wanted)
            )

        found: tuple[Any, Any] = self._strategy.experimental_distribute_values_from_function(mine)
        return found

    def _traced_step(self, frozen: bool) -> Any:
        """The compiled step; another one once the normalizations' statistics are frozen."""
        layers = [layer for layer in weighted_of(self._twin) if layer.norm is not None]
        if self._step is not None and all(x.statistics_frozen == frozen for x in layers):
            return self._step
        for layer in layers:
            layer.statistics_frozen = frozen

        def step(inputs: Any, wanted: Any) -> tuple[Any, Any]:
            found = self._strategy.run(self._on_replica, (inputs, wanted))
            total = tf.distribute.ReduceOp.SUM
            return tuple(self._strategy.reduce(total, value, axis=None) for value in found)

        return tf.function(step, autograph=False)

    def _on_replica(self, inputs: Any, wanted: Any) -> tuple[Any, Any]:
        variables = self._twin.trainable_variables
        with tf.GradientTape() as tape:
            given = self._call(inputs, training=True)
            loss = tf.reduce_sum(self._objective.loss(wanted, given)) / self._batch
            if self._twin.losses:
                penalty = tf.add_n(self._twin.losses)
                loss += tf.cast(penalty, loss.dtype) / self._strategy.num_replicas_in_sync
            scaled = self._optimizer.scale_loss(loss)
        gradients = tape.gradient(scaled, [variable.value for variable in variables])
        self._optimizer.apply(gradients, variables)
        return loss, tf.reduce_sum(self._objective.scores(wanted, given))

    def _call(self, inputs: Any, *, training: bool) -> list[Any]:
        packed = keras.tree.pack_sequence_as(self._twin._inputs_struct, list(inputs))
        return [
            tf.cast(y, tf.float32) if y.dtype.is_floating else y
            for y in keras.tree.flatten(self._twin(packed, training=training))
        ]

    def _evaluate(self) -> tuple[float, float]:
        """Loss and metric of the held-out samples, as the int8 file would give them."""
        self._plain.set_weights(self._twin.get_weights())
        if not hasattr(self, "_judge"):
            self._judge = tf.function(self._judged, autograph=False, reduce_retracing=True)
        sums = np.zeros(2)
        for start in range(0, len(self._held), 64):
            rows = self._held[start : start + 64]
            inputs, wanted = (
                tuple(tf.constant(np.ascontiguousarray(array[rows])) for array in arrays)
                for arrays in (self._data.inputs, self._data.wanted)
            )
            sums += [float(value) for value in self._judge(inputs, wanted)]
        loss, metric = sums / len(self._held)
        return float(loss), float(metric)

    def _judged(self, inputs: Any, wanted: Any) -> tuple[Any, Any]:
        packed = keras.tree.pack_sequence_as(self._plain._inputs_struct, list(inputs))
        given = keras.tree.flatten(self._plain(packed, training=False))
        loss = tf.reduce_sum(self._objective.loss(wanted, given))
        return loss, tf.reduce_sum(self._objective.scores(wanted, given))
