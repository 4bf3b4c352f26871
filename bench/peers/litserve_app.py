"""LitServe with its batching."""

import sys

import litserve
import numpy as np
from common import Signature, images_of


class Digits(litserve.LitAPI):
    """Decodes to arrays, runs one merged batch, answers lists."""

    def setup(self, device: str) -> None:
        self.model = Signature()

    def decode_request(self, request: dict[str, list[object]]) -> np.ndarray:
        return images_of(request)[0]

    def batch(self, inputs: list[np.ndarray]) -> np.ndarray:
        return np.stack(inputs)

    def predict(self, images: np.ndarray) -> np.ndarray:
        return self.model(images)

    def unbatch(self, output: np.ndarray) -> list[np.ndarray]:
        return list(output)

    def encode_response(self, output: np.ndarray) -> dict[str, list[object]]:
        return {"predictions": [output.tolist()]}


if __name__ == "__main__":
    api = Digits(max_batch_size=64, batch_timeout=0.002, api_path="/v1/models/m:predict")
    litserve.LitServer(api, accelerator="cpu", workers_per_device=1).run(
        host="127.0.0.1", port=int(sys.argv[1]), log_level="error", generate_client_file=False
    )
