"""Writes SavedModels of several origins: python saved_models.py FOLDER.

`keras3/` by `tf.saved_model.save` of a Keras 3 model, `tf1/` as TensorFlow 1's estimators wrote
them: reference variables, a vocabulary file, serialised examples or named tensors as inputs.
`keras3.npz` and `tf1.npz` hold inputs and outputs.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

os.environ.update(TF_CPP_MIN_LOG_LEVEL="3", CUDA_VISIBLE_DEVICES="-1")

import keras
import numpy as np
import tensorflow as tf

v1 = tf.compat.v1
WORDS = np.array(["red", "blue", "unknown", "green"])


def keras3(folder: Path) -> None:
    """Two inputs and outputs whose order is not that of their names."""
    keras.utils.set_random_seed(5)
    size, age = keras.Input((3,), name="size"), keras.Input((4,), name="age")
    joined = keras.layers.Concatenate()([size, age])
    zeta = keras.layers.Dense(2, name="zeta")(joined)
    alpha = keras.layers.Dense(3, activation="softmax", name="alpha")(joined)
    model = keras.Model([size, age], [zeta, alpha])
    tf.saved_model.save(model, str(folder / "keras3"))
    random = np.random.default_rng(6)
    given = [random.normal(size=(5, n)).astype(np.float32) for n in (3, 4)]
    outputs = [np.asarray(value) for value in model(given)]
    np.savez(folder / "keras3.npz", size=given[0], age=given[1], zeta=outputs[0], alpha=outputs[1])


def tf1(folder: Path) -> None:
    """A classifier of a word and two numbers."""
    v1.disable_resource_variables()
    random = np.random.default_rng(7)
    vocabulary = folder / "vocabulary.txt"
    vocabulary.write_text("red\ngreen\nblue\n")
    with tf.Graph().as_default(), v1.Session() as session:
        serialised = v1.placeholder(tf.string, [None], name="examples")
        features = v1.io.parse_example(
            serialised,
            {
                "word": v1.FixedLenFeature([], tf.string),
                "size": v1.FixedLenFeature([2], tf.float32),
            },
        )
        word = v1.placeholder_with_default(features["word"], [None], name="word")
        size = v1.placeholder_with_default(features["size"], [None, 2], name="size")
        table = tf.lookup.StaticVocabularyTable(
            tf.lookup.TextFileInitializer(
                str(vocabulary),
                tf.string,
                tf.lookup.TextFileIndex.WHOLE_LINE,
                tf.int64,
                tf.lookup.TextFileIndex.LINE_NUMBER,
            ),
            1,
        )
        embedding = v1.get_variable("e", initializer=random.normal(size=(4, 3)).astype("float32"))
        weights = v1.get_variable("w", initializer=random.normal(size=(5, 3)).astype("float32"))
        assert weights.op.type == "VariableV2"
        hidden = tf.concat([tf.gather(embedding, table.lookup(word)), size], 1)
        logits = tf.matmul(hidden, weights)
        scores = tf.nn.softmax(logits)
        classes = tf.tile(tf.constant([["a", "b", "c"]]), [tf.shape(scores)[0], 1])
        unused = v1.placeholder(tf.float32, [None, 1], name="unused")
        rate = v1.placeholder(tf.float32, [], name="rate")
        session.run([v1.global_variables_initializer(), v1.tables_initializer()])
        builder = v1.saved_model.Builder(str(folder / "tf1"))
        builder.add_meta_graph_and_variables(
            session,
            ["serve"],
            signature_def_map={
                "serving_default": v1.saved_model.classification_signature_def(
                    serialised, classes, scores
                ),
                "unused": v1.saved_model.predict_signature_def(
                    {"word": word, "size": size, "unused": unused}, {"logits": logits}
                ),
                "scalar": v1.saved_model.predict_signature_def(
                    {"word": word, "size": size, "rate": rate}, {"logits": logits * rate}
                ),
                "predict": v1.saved_model.predict_signature_def(
                    {"word": word, "size": size}, {"probabilities": scores, "logits": logits}
                ),
            },
            assets_collection=v1.get_collection(v1.GraphKeys.ASSET_FILEPATHS),
            main_op=v1.tables_initializer(),
            strip_default_attrs=True,
        )
        builder.save()
        sizes = random.normal(size=(len(WORDS), 2)).astype(np.float32)
        found = session.run([scores, logits], {word: WORDS, size: sizes})
    # A copy of it is in assets/.
    vocabulary.unlink()
    examples = [_example(*pair).SerializeToString() for pair in zip(WORDS, sizes, strict=True)]
    np.savez(
        folder / "tf1.npz",
        word=WORDS,
        size=sizes,
        examples=np.array(examples),
        probabilities=found[0],
        logits=found[1],
    )


def _example(word: str, sizes: np.ndarray) -> tf.train.Example:
    text = tf.train.Feature(bytes_list=tf.train.BytesList(value=[word.encode()]))
    numbers = tf.train.Feature(float_list=tf.train.FloatList(value=sizes))
    return tf.train.Example(features=tf.train.Features(feature={"word": text, "size": numbers}))


class _Hostile(tf.Module):
    """Doubles numbers, and does something else."""

    def __init__(self, deed):
        super().__init__()
        self.factor = tf.Variable(2.0)
        self.deed = deed

    @tf.function(input_signature=[tf.TensorSpec([None, 2], tf.float32, name="x")])
    def __call__(self, x):
        with tf.control_dependencies([self.deed()]):
            return {"y": self.factor * x}


def hostile(folder: Path) -> None:
    """Models that read, write or run Python when they are used; `trace` is what they write."""
    trace = str(folder / "trace")
    text = tf.constant("was here")

    def in_a_branch():
        return tf.cond(tf.reduce_sum(text_size(text)) > 0, write, tf.no_op)

    def text_size(value):
        return tf.strings.length([value])

    def write():
        return tf.io.write_file(trace, text)

    deeds = {
        "ReadFile": lambda: tf.io.read_file("/etc/hostname"),
        "WriteFile": write,
        "in_a_branch": in_a_branch,
        "MatchingFiles": lambda: tf.io.matching_files("/etc/*"),
        "PrintV2": lambda: tf.print("was here", output_stream=f"file://{trace}"),
        "EagerPyFunc": lambda: tf.py_function(lambda: Path(trace).touch(), [], []),
        "SaveV2": lambda: tf.raw_ops.SaveV2(
            prefix=trace, tensor_names=["x"], shape_and_slices=[""], tensors=[text]
        ),
        "RestoreV2": lambda: tf.raw_ops.RestoreV2(
            prefix=trace, tensor_names=["x"], shape_and_slices=[""], dtypes=[tf.string]
        )[0],
    }
    for name, deed in deeds.items():
        module = _Hostile(deed)
        tf.saved_model.save(module, str(folder / name), signatures=module.__call__)
    vocabularies(folder)


def vocabularies(folder: Path) -> None:
    """A table of words, from a file of the model and from any file of the machine."""
    (folder / "words.txt").write_text("red\ngreen\n")

    class Words(tf.Module):
        def __init__(self):
            super().__init__()
            self.table = tf.lookup.StaticHashTable(
                tf.lookup.TextFileInitializer(
                    str(folder / "words.txt"),
                    tf.string,
                    tf.lookup.TextFileIndex.WHOLE_LINE,
                    tf.int64,
                    tf.lookup.TextFileIndex.LINE_NUMBER,
                ),
                -1,
            )

        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="word")])
        def __call__(self, word):
            return {"number": tf.cast(self.table.lookup(word), tf.float32)}

    class Foreign(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec([None], tf.string, name="word")])
        def __call__(self, word):
            table = tf.raw_ops.HashTableV2(key_dtype=tf.string, value_dtype=tf.int64)
            tf.raw_ops.InitializeTableFromTextFileV2(
                table_handle=table, filename="/etc/hostname", key_index=-2, value_index=-1
            )
            found = tf.raw_ops.LookupTableFindV2(
                table_handle=table, keys=word, default_value=tf.constant(-1, tf.int64)
            )
            return {"number": tf.cast(found, tf.float32)}

    for name, module in (("own_file", Words()), ("foreign_file", Foreign())):
        tf.saved_model.save(module, str(folder / name), signatures=module.__call__)


if __name__ == "__main__":
    keras3(Path(sys.argv[1]))
    tf1(Path(sys.argv[1]))
    hostile(Path(sys.argv[1]))
