"""Settings, samples' digest, checkpoints and the display of training; no TensorFlow."""

import json

import numpy as np
import pytest

from packager import config
from packager.console import Reporter
from packager.errors import ConfigError
from packager.quantize.qat import checkpoints, devices
from packager.quantize.qat.checkpoints import Checkpoints
from packager.quantize.qat.process import Display
from packager.quantize.qat.settings import Qat
from packager.targets import select


def test_a_file_and_flags(tmp_path):
    file = tmp_path / "package.yaml"
    file.write_text(
        "model: m.keras\ntrain: {source: t.npz, limit: 9}\n"
        "qat: {epochs: 5, loss: distill, gpus: [0, 1], checkpoints: c}\n"
    )
    read = config.load(file)
    assert read.train.source == str(tmp_path / "t.npz")
    expected = Qat(epochs=5, loss="distill", gpus=(0, 1), checkpoints=tmp_path / "c")
    assert read.qat == expected
    merged = config.merge(read, {"qat": {"epochs": 7, "gpus": "2,3", "strategy": None}})
    assert (merged.qat.epochs, merged.qat.gpus, merged.qat.loss) == (7, (2, 3), "distill")
    again = tmp_path / "again.yaml"
    again.write_text(merged.to_yaml(tmp_path))
    assert config.load(again).qat == merged.qat


def test_a_build_without_training_has_no_section(tmp_path):
    given = config.from_flags({"model": {"source": "m.keras"}})
    assert "qat:" not in given.to_yaml(tmp_path)


@pytest.mark.parametrize(
    "section",
    [{"epochs": 0}, {"loss": "huber"}, {"strategy": "tpu"}, {"gpus": "a"}, {"learning_rate": -1},
     {"batchsize": 3}],
)  # fmt: skip
def test_wrong_settings_are_refused(section):
    with pytest.raises(ConfigError, match=f"qat.{next(iter(section))}"):
        config.from_flags({"model": {"source": "m.keras"}, "qat": section})


def test_the_last_third_is_frozen():
    assert [Qat(epochs=n).frozen_from for n in (1, 2, 3, 6, 10)] == [1, 2, 2, 4, 7]
    assert Qat(epochs=9, freeze_bn_epoch=0).frozen_from == 0


def test_the_artifact_needs_training_samples():
    with pytest.raises(ConfigError, match="tflite/qat_int8 needs training samples"):
        select(["tflite/qat_int8"], calibrated=True)
    ids = [target.id for target in select([], calibrated=True, trained=True).targets]
    assert "tflite/qat_int8" in ids
    assert "tflite/qat_int8" not in [t.id for t in select(["tflite"], calibrated=True).targets]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{", "TF_CONFIG cannot be used"),
        ('{"cluster": {"worker": ["a:1"]}, "task": {"type": "worker", "index": 1}}', "no task"),
        ('{"cluster": {"ps": ["a:1"]}, "task": {"type": "ps", "index": 0}}', "no task ps 0"),
        ('{"cluster": {"worker": ["a:1"]}}', "cannot be used"),
    ],
)
def test_a_wrong_tf_config_is_refused(monkeypatch, text, words):
    monkeypatch.setenv("TF_CONFIG", text)
    with pytest.raises(ConfigError, match=words):
        devices.cluster()


def test_who_is_the_chief(monkeypatch):
    def chief(kind, index, cluster):
        task = {"type": kind, "index": index}
        monkeypatch.setenv("TF_CONFIG", json.dumps({"cluster": cluster, "task": task}))
        return devices.is_chief("multiworker")

    alone = {"worker": ["a:1", "b:1"]}
    assert [chief("worker", i, alone) for i in (0, 1)] == [True, False]
    headed = {"chief": ["c:1"], "worker": ["a:1"]}
    assert chief("chief", 0, headed)
    assert not chief("worker", 0, headed)
    assert devices.is_chief("mirrored")


def state(step):
    arrays = [np.arange(3.0), np.float32(2)]
    return {"step": step, "history": [{"epoch": 0, "val_loss": 0.5}], "best_epoch": 0,
            "weights": arrays, "best": arrays, "optimizer": [np.int64(4)]}  # fmt: skip


def test_a_checkpoint_comes_back(tmp_path):
    folder = tmp_path / "deep" / "er"
    Checkpoints(folder, "one").save(state(7))
    found = Checkpoints(folder, "one").load()
    assert (found["step"], found["history"]) == (7, [{"epoch": 0, "val_loss": 0.5}])
    np.testing.assert_array_equal(found["weights"][0], np.arange(3.0))
    assert found["optimizer"][0] == 4
    assert [path.name for path in folder.iterdir()] == ["checkpoint.npz"]
    checkpoints.remove(folder)
    assert not folder.exists()


def test_another_trainings_checkpoint_and_a_damaged_one_are_none(tmp_path):
    Checkpoints(tmp_path, "one").save(state(7))
    assert Checkpoints(tmp_path, "two").load() is None
    file = tmp_path / "checkpoint.npz"
    file.write_bytes(file.read_bytes()[:200])
    assert Checkpoints(tmp_path, "one").load() is None
    assert Checkpoints(tmp_path / "nowhere", "one").load() is None


def test_only_the_chief_writes(tmp_path):
    Checkpoints(tmp_path, "one", writes=False).save(state(1))
    assert not list(tmp_path.iterdir())


def test_epochs_are_shown(capsys):
    with Display(Reporter()) as display:
        display.show({"resumed": 12, "of": 30})
        display.show({"step": 13, "of": 30, "epoch": 2, "loss": 0.5})
        display.show({"epoch_done": 2, "epochs": 3, "seconds": 1.5, "loss": 0.25,
                      "accuracy": 0.9, "val_loss": 0.5, "val_accuracy": 0.875})  # fmt: skip
    shown = capsys.readouterr().err
    assert "go on after step 12 of 30" in shown
    assert "epoch 2/3" in shown
    assert "loss 0.2500, accuracy 0.9000, val_loss 0.5000, val_accuracy 0.8750" in shown
