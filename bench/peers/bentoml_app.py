"""BentoML with its adaptive batching."""

import bentoml
import numpy as np
from common import Signature


@bentoml.service(workers=1, traffic={"timeout": 60})
class Digits:
    """One batchable method."""

    def __init__(self) -> None:
        self.model = Signature()

    @bentoml.api(batchable=True, max_batch_size=64, max_latency_ms=1000, route="/predict")
    def predict(self, instances: np.ndarray) -> np.ndarray:
        return self.model(np.asarray(instances, np.float32))
