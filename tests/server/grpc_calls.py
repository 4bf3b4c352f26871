"""Calls a server with the stubs of tensorflow-serving-api: python grpc_calls.py ADDRESS CALLS.json

A call is {"rpc": NAME, "request": JSON of the message, "inputs": {...}}, or {"configure": [...]}.
One JSON line answers each.
"""

import json
import sys
from pathlib import Path

import grpc
import numpy as np
import tensorflow as tf
from google.protobuf import json_format
from grpc_health.v1 import health_pb2, health_pb2_grpc
from tensorflow_serving.apis import (
    classification_pb2,
    get_model_metadata_pb2,
    get_model_status_pb2,
    inference_pb2,
    model_management_pb2,
    model_service_pb2_grpc,
    predict_pb2,
    prediction_service_pb2_grpc,
    regression_pb2,
)

LIMIT_S = 60
REQUESTS = {
    "Predict": predict_pb2.PredictRequest,
    "Classify": classification_pb2.ClassificationRequest,
    "Regress": regression_pb2.RegressionRequest,
    "MultiInference": inference_pb2.MultiInferenceRequest,
    "GetModelMetadata": get_model_metadata_pb2.GetModelMetadataRequest,
    "GetModelStatus": get_model_status_pb2.GetModelStatusRequest,
    "HandleReloadConfigRequest": model_management_pb2.ReloadConfigRequest,
    "Check": health_pb2.HealthCheckRequest,
}


def array(value):
    if value["dtype"] == "string":
        return np.array([one.encode() for one in value["values"]], object).reshape(value["shape"])
    return np.array(value["values"], value["dtype"]).reshape(value["shape"])


def plain(value):
    found = tf.make_ndarray(value)
    values = [v.decode() if isinstance(v, bytes) else v for v in found.ravel().tolist()]
    return {"dtype": str(found.dtype), "shape": list(found.shape), "values": values}


def configure(stubs, models):
    request = model_management_pb2.ReloadConfigRequest()
    request.config.model_config_list.SetInParent()
    for name, folder, labels in models:
        entry = request.config.model_config_list.config.add(name=name, base_path=folder)
        entry.model_platform = "tensorflow"
        for label, version in labels.items():
            entry.version_labels[label] = version
    return stubs["HandleReloadConfigRequest"](request, timeout=LIMIT_S)


def one(stubs, call):
    if "configure" in call:
        return json_format.MessageToDict(configure(stubs, call["configure"]))
    request = json_format.ParseDict(call["request"], REQUESTS[call["rpc"]]())
    for name, value in call.get("inputs", {}).items():
        request.inputs[name].CopyFrom(tf.make_tensor_proto(array(value)))
    metadata = tuple(call.get("metadata", {}).items())
    limit = call.get("timeout", LIMIT_S)
    answer = stubs[call["rpc"]](request, timeout=limit, metadata=metadata)
    found = json_format.MessageToDict(answer, preserving_proto_field_name=True)
    if call["rpc"] == "Predict":
        found["outputs"] = {name: plain(value) for name, value in answer.outputs.items()}
    return found


def main(address, calls):
    channel = grpc.insecure_channel(address, options=[("grpc.max_receive_message_length", -1)])
    services = (
        prediction_service_pb2_grpc.PredictionServiceStub(channel),
        model_service_pb2_grpc.ModelServiceStub(channel),
        health_pb2_grpc.HealthStub(channel),
    )
    stubs = {name: value for service in services for name, value in vars(service).items()}
    for call in calls:
        try:
            answer = {"code": "OK", "answer": one(stubs, call)}
        except grpc.RpcError as error:
            answer = {"code": error.code().name, "text": error.details()}
        print(json.dumps(answer), flush=True)


main(sys.argv[1], json.loads(Path(sys.argv[2]).read_text()))
