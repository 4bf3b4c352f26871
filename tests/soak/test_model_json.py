"""Damaged TF.js models in the JavaScript runner: an answer or an error with a text, in time."""

import contextlib
import copy
import json
import os
import random
import subprocess

import numpy as np
import pytest

from packager import assets
from tests.test_faults import build
from tests.test_properties import paths, replaced

COUNT = max(2, 100 // int(os.environ.get("PACKAGER_SOAK_DIVISOR", "1")))
TIME_LIMIT_S = 60
VALUES = (None, True, -1, 0, 2**40, 1e308, "", "../x", "\0", "Dense", [], {}, [[]], [-1], {"a": 1})


@pytest.mark.soak
@pytest.mark.node
def test_damaged_models(tmp_path):
    folder = build(tmp_path).path / "tfjs" / "layers"
    document = json.loads((folder / "model.json").read_text())
    (tmp_path / "in").mkdir()
    np.save(tmp_path / "in" / "image.npy", np.zeros((1, 28, 28, 1), np.float32))
    command = [assets.node(), assets.node_runner(), "run", folder / "model.json"]
    command += ["--inputs", tmp_path / "in", "--outputs", tmp_path / "out"]
    # TF.js waits for ever where a layer's node is none of the model's; packager's deadline ends it.
    chosen = random.Random(5)
    codes = []
    for number in range(COUNT):
        changed = copy.deepcopy(document)
        if number:
            place = chosen.choice(paths(document)[1:])
            changed = replaced(changed, place, chosen.choice(VALUES), chosen.random() < 0.3)
        (folder / "model.json").write_text(json.dumps(changed))
        with contextlib.suppress(subprocess.TimeoutExpired):
            ran = subprocess.run(
                command, capture_output=True, text=True, timeout=TIME_LIMIT_S, check=False
            )
            codes.append(ran.returncode)
            assert ran.returncode in (0, 1), (place, ran.stderr)
            if ran.returncode:
                assert ran.stderr.strip(), place
            else:
                assert json.loads(ran.stdout)["count"] == 1
    assert codes[0] == 0
    assert len(codes) >= 0.9 * COUNT
