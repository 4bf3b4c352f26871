"""Flask as in most tutorials: `model.predict` in the handler."""

import keras
from common import FOLDER, images_of
from flask import Flask, jsonify, request
from flask.typing import ResponseReturnValue

app = Flask(__name__)
model = keras.saving.load_model(f"{FOLDER}/model.keras")


@app.post("/v1/models/m:predict")
def predict() -> ResponseReturnValue:
    answer = model.predict(images_of(request.get_json(force=True)), verbose=0)
    return jsonify(predictions=answer.tolist())
