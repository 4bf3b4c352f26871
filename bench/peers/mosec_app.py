"""Mosec with its batching."""

import numpy as np
from common import Signature, images_of
from mosec import Server, Worker


class Digits(Worker):
    """JSON in and out by the default mixin; gets a list of requests."""

    def __init__(self) -> None:
        self.model = Signature()

    def forward(self, data: list[dict[str, list[object]]]) -> list[dict[str, list[object]]]:
        answer = self.model(np.concatenate([images_of(one) for one in data]))
        return [{"predictions": [row]} for row in answer.tolist()]


if __name__ == "__main__":
    server = Server()
    server.append_worker(Digits, num=1, max_batch_size=64, max_wait_time=2)
    server.run()
