"""The TF.js artifact of the digits bundle in a real page, with the JavaScript that is shipped."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import numpy as np
import pytest

from tests.browser.watched_page import SITE, WEB, Watched

pytestmark = [pytest.mark.browser, pytest.mark.tf, pytest.mark.node]

ID = "tfjs/layers"
RUN = "([base, id, backend]) => window.runGolden(base, id, backend)"


@pytest.fixture
def open_golden(
    open_page: Callable[..., Watched], serve: Callable[[dict[str, Path]], str]
) -> Callable[[Path], Watched]:
    """Opens the page of golden samples for a bundle, which is served as /bundle/."""
    if not (WEB / "vendor" / "VERSIONS.json").exists():
        pytest.skip("web/vendor is missing: run make vendor")

    def open_(bundle: Path) -> Watched:
        root = serve({"site": SITE, "web": WEB, "bundle": bundle})
        watched = open_page(f"{root}/site/golden.html")
        watched.page.wait_for_function("window.isReady === true")
        return watched

    return open_


@pytest.mark.parametrize("backend", ["cpu", "wasm"])
def test_golden_samples_give_the_stored_values(
    digits_bundle: Path, open_golden: Callable[[Path], Watched], backend: str
) -> None:
    golden = json.loads((digits_bundle / "golden/samples.json").read_text(encoding="utf-8"))
    watched = open_golden(digits_bundle)
    answer = watched.page.evaluate(RUN, ["/bundle/", ID, backend])
    assert (answer["described"]["backend"], answer["tensors"]) == (backend, 0)
    assert answer["refusal"] == ""
    assert len(golden["samples"]) == len(answer["values"]) > 8
    allowed = golden["tolerances"][ID]
    for sample in golden["samples"]:
        for name, stored in sample["artifacts"][ID].items():
            values = np.array(answer["values"][sample["id"]][name])
            assert np.ptp(stored) > 0.5
            assert np.abs(values - stored).max() <= allowed[name], sample["id"]
    assert watched.problems == []
    (host,) = {urlsplit(address).netloc for address in watched.requests}
    assert host.startswith("127.0.0.1:")
    assert any(address.endswith(".wasm") for address in watched.requests) == (backend == "wasm")


def test_a_changed_shard_is_refused_in_the_page(
    digits_bundle: Path, open_golden: Callable[[Path], Watched], tmp_path: Path
) -> None:
    bundle = Path(shutil.copytree(digits_bundle, tmp_path / "bundle"))
    shard = next((bundle / "tfjs/layers").glob("weights-*"))
    content = bytearray(shard.read_bytes())
    content[100] ^= 1
    shard.write_bytes(content)
    page: Any = open_golden(bundle).page
    message = page.evaluate(
        "(arguments) => window.runGolden(...arguments).then(() => 'it ran', (e) => e.message)",
        ["/bundle/", ID, "cpu"],
    )
    assert message.startswith(f"tfjs/layers/{shard.name} is changed or damaged")
