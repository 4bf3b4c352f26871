"""Talks to a server with ovmsclient, without TensorFlow: python ovms_calls.py REST GRPC MODEL."""

import json
import sys

import numpy as np
from ovmsclient import make_grpc_client, make_http_client


def input_dtypes(metadata):
    """The client gives REST's answer as it is, and gRPC's rearranged."""
    if "inputs" not in metadata:
        signatures = metadata["metadata"]["signature_def"]["signature_def"]
        metadata = signatures["serving_default"]
    return {key: value["dtype"] for key, value in metadata["inputs"].items()}


rest, grpc, name = sys.argv[1:]
found = {}
for kind, client in (("rest", make_http_client(rest)), ("grpc", make_grpc_client(grpc))):
    # Without a version the client sends 0: "the newest" to OpenVINO's server, not to this one.
    version = {"model_version": 123}
    status = client.get_model_status(model_name=name, **version)
    metadata = client.get_model_metadata(model_name=name, **version)
    inputs = {"x": np.array([1.0, 2.0, 5.0], np.float32)}
    answer = client.predict(inputs=inputs, model_name=name, **version)
    try:
        client.predict(inputs=inputs, model_name="missing")
        refused = ""
    except Exception as error:
        refused = type(error).__name__
    found[kind] = {
        "status": {str(key): value["state"] for key, value in status.items()},
        "inputs": input_dtypes(metadata),
        "answer": np.asarray(answer["y"] if isinstance(answer, dict) else answer).tolist(),
        "refused": refused,
    }
print(json.dumps(found))
