"""Flask with the SavedModel's signature, on gunicorn's threads."""

from common import Signature, images_of
from flask import Flask, jsonify, request
from flask.typing import ResponseReturnValue

app = Flask(__name__)
model = Signature()


@app.post("/v1/models/m:predict")
def predict() -> ResponseReturnValue:
    return jsonify(predictions=model(images_of(request.get_json(force=True))).tolist())
