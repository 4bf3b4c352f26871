"""Makes one layer of a network bad for int8 on purpose, without changing what it computes.

Every other channel of a layer's output is scaled by a factor, and the next layer's weights undo
it. In float that changes nothing but rounding. In int8 one scale serves all channels of the
output, and the small ones are left with few steps.
"""

import io
import shutil
import zipfile

import numpy as np


def in_keras_file(source, target, layer, reader, factor=100.0):
    """Edits a `.keras` file; `layer` is a BatchNormalization, followed by at most a ReLU.

    Args:
        source: The file.
        target: The file to write.
        layer: Name of the normalization whose channels are scaled.
        reader: Name of the only convolution that reads it.
        factor: The scale.
    """
    import h5py

    with zipfile.ZipFile(source) as archive, zipfile.ZipFile(target, "w") as out:
        for item in archive.infolist():
            content = archive.read(item)
            if item.filename == "model.weights.h5":
                stream = io.BytesIO(content)
                with h5py.File(stream, "r+") as weights:
                    for name, axis, change in (
                        (f"{layer}/vars/0", -1, factor),
                        (f"{layer}/vars/1", -1, factor),
                        (f"{reader}/vars/0", -2, 1 / factor),
                    ):
                        dataset = weights[f"layers/{name}"]
                        values = np.moveaxis(dataset[...], axis, -1)
                        values[..., ::2] *= change
                        dataset[...] = np.moveaxis(values, -1, axis)
                content = stream.getvalue()
            out.writestr(item, content)


def in_tflite_file(source, target, writer, reader, factor=100.0):
    """Edits a float `.tflite` file; `writer` and `reader` are operator numbers.

    Args:
        source: The file.
        target: The file to write.
        writer: A DEPTHWISE_CONV_2D or CONV_2D with a bias and at most a ReLU.
        reader: The only CONV_2D that reads it.
        factor: The scale.
    """
    from packager import tflite_file

    model = tflite_file.read(source)
    graph = model.subgraphs[0]

    def edit(operator, place, axis, change):
        tensor = graph.tensors[graph.operators[operator].inputs[place]]
        buffer = model.buffers[tensor.buffer]
        values = np.frombuffer(np.asarray(buffer.data, np.uint8).tobytes(), np.float32)
        values = np.moveaxis(values.reshape(tensor.shape).copy(), axis, -1)
        values[..., ::2] *= change
        values = np.ascontiguousarray(np.moveaxis(values, -1, axis))
        buffer.data = np.frombuffer(values.tobytes(), np.uint8)

    kernel = graph.tensors[graph.operators[writer].inputs[1]].shape
    is_depthwise = kernel[0] == 1 and len(kernel) == 4
    edit(writer, 1, -1 if is_depthwise else 0, factor)
    edit(writer, 2, -1, factor)
    edit(reader, 1, -1, 1 / factor)
    tflite_file.write(model, target)


def in_bundle(source, target, writer, reader, factor=100.0):
    """Copies a bundle and edits its float32 TFLite file; its hashes no longer fit."""
    shutil.copytree(source, target)
    (file,) = (target / "tflite").glob("*.float32.tflite")
    in_tflite_file(file, file, writer, reader, factor)
