"""tf-keras runs the payloads of tests/loaders/test_cves.py: refusing them is needed."""

import pytest

from packager.children import Child
from packager.errors import PackagerError
from tests.loaders import hostile
from tests.loaders.test_cves import keras2_lambda, keras2_write


@pytest.mark.soak
@pytest.mark.tf
def test_tf_keras_would_run_them(tmp_path):
    trace = tmp_path / "trace"
    with Child("packager.loaders.tf_keras_worker") as child:
        for make in (keras2_lambda, keras2_write):
            path = hostile.h5(tmp_path / "m.h5", hostile.keras2(make(trace)), version="2.9.0")
            try:
                child.call(
                    "open", "opening", source=path, format="keras_h5", architecture="",
                    custom_objects=[], unsafe=False,
                )  # fmt: skip
            except PackagerError:
                assert make is keras2_write
            assert trace.exists(), make
            trace.unlink()
