"""Freezes a model's function for TF.js: variables and look-up tables become constants.

Runs in the TensorFlow child.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from packager.errors import ConversionError, UnsupportedError, brief
from packager.loaders.opened import OpenedModel
from packager.targets.graph_ir import Array, Graph, Node, Ref, from_graph_def, parse

# Passes of TensorFlow's graph optimizer. Its arithmetic pass would join the sum of a residual block
# with a bias, which then fits no convolution: 10 more operators in MobileNetV2, and none fewer.
_PASSES = ("pruning", "function", "constfold", "common_subgraph_elimination", "dependency")
_FIND = ("LookupTableFindV2", "LookupTableSizeV2")


@dataclass(frozen=True)
class Table:
    """A look-up table's contents, `[N]` each, and the node that stands for it."""

    name: str
    keys: Array
    values: Array


@dataclass(frozen=True)
class Frozen:
    """A graph without variables, and the tables that it looks things up in."""

    graph: Graph
    tables: tuple[Table, ...]


def freeze(opened: OpenedModel, function: Any) -> Frozen:
    """Freezes and optimizes a concrete function.

    Args:
        opened: The model.
        function: Its concrete function, whose inputs are named after the model's.

    Raises:
        UnsupportedError: It refers to something else than variables and look-up tables.
        ConversionError: TensorFlow cannot freeze it.
    """
    from tensorflow.python.framework import convert_to_constants

    try:
        # Control flow stays in functions: TF.js runs these as they are, while loops among edges
        # cost it a search for what can run next.
        frozen = convert_to_constants.convert_variables_to_constants_v2(
            function, lower_control_flow=False, aggressive_inlining=True
        )
    except Exception as error:
        raise ConversionError(f"TensorFlow cannot freeze the model: {brief(error)}") from error
    captured = {parse(inner.name)[0]: outer for outer, inner in function.graph.captures}
    placeholders = [parse(tensor.name)[0] for tensor in frozen.inputs]
    # Dictionaries enter and leave a traced function in the order of their sorted keys.
    given = dict(
        zip(
            sorted(end.name for end in opened.inputs),
            (name for name in placeholders if name not in captured),
            strict=True,
        )
    )
    made = dict(
        zip(
            sorted(end.name for end in opened.outputs),
            (parse(tensor.name) for tensor in frozen.outputs),
            strict=True,
        )
    )
    inputs = [given[end.name] for end in opened.inputs]
    outputs = {end.name: made[end.name] for end in opened.outputs}
    optimized = _optimize(frozen.graph, [ref[0] for ref in outputs.values()])
    graph = from_graph_def(optimized, inputs, outputs)
    _name_weights(graph, _variables(opened, function))
    tables = tuple(
        _table(graph, name, captured[name])
        for name in placeholders
        if name in captured and name in graph.nodes
    )
    return Frozen(graph, tables)


def _variables(opened: OpenedModel, function: Any) -> dict[str, str]:
    """Names of the model's variables by what stands for them in the function."""
    handles = {id(v.handle): v for v in opened.variables if hasattr(v, "handle")}
    found = {}
    for outer, inner in function.graph.captures:
        variable = handles.get(id(outer))
        if variable is not None:
            name = str(getattr(variable, "path", variable.name)).partition(":")[0]
            found[parse(inner.name)[0]] = name
    return found


def _name_weights(graph: Graph, variables: dict[str, str]) -> None:
    """Names constants after the variables that they were, as far as they are still there."""
    names = {}
    for placeholder, variable in variables.items():
        for name in (placeholder, placeholder.removesuffix("/resource")):
            if name in graph.nodes and graph.nodes[name].op == "Const":
                names[name] = variable
    graph.rename(names)


def _optimize(graph: Any, fetched: Sequence[str]) -> Any:
    """Runs TensorFlow's optimizer as if for a graphics card.

    For processors it makes operators of its own, which TF.js does not have; fusing is done
    afterwards, for TF.js.
    """
    from tensorflow.core.protobuf import config_pb2, device_properties_pb2
    from tensorflow.python.grappler import cluster, tf_optimizer
    from tensorflow.python.training import saver

    device = device_properties_pb2.NamedDevice(name="/GPU:0")
    device.properties.type = "GPU"
    device.properties.environment["architecture"] = "4"
    config = config_pb2.ConfigProto()
    rewriter = config.graph_options.rewrite_options
    rewriter.optimizers[:] = _PASSES
    rewriter.meta_optimizer_iterations = rewriter.TWO
    # Else it leaves graphs of fewer than 4 nodes alone.
    rewriter.min_graph_nodes = -1
    for name in fetched:  # how the optimizer learns what must stay
        graph.add_to_collection("train_op", graph.get_operation_by_name(name))
    graph_def = graph.as_graph_def()
    _let_inline(graph_def)
    meta_graph = saver.export_meta_graph(
        graph_def=graph_def, graph=graph, collection_list=["train_op"]
    )
    machine = cluster.Cluster(devices=[device])
    return tf_optimizer.OptimizeGraph(config, meta_graph, cluster=machine)


def _let_inline(graph_def: Any) -> None:
    """Lets the optimizer inline what is meant to be compiled by XLA, as Keras' grouped Conv2D."""
    for holder in (*graph_def.node, *graph_def.library.function):
        for key in ("_XlaMustCompile", "_noinline"):
            holder.attr.pop(key, None)


def _table(graph: Graph, name: str, handle: Any) -> Table:
    """Reads a table's contents and puts a node that TF.js knows in its place."""
    import tensorflow as tf

    users = [node for node in graph.consumers().get((name, 0), []) if node.op in _FIND]
    finders = [node for node in users if "Tin" in node.attrs]
    if not finders:
        raise UnsupportedError(
            f"the model refers to the resource {name!r}, which is no look-up table outside of"
            " control flow",
            hint="TF.js has variables and look-up tables only; the SavedModel keeps the rest:"
            " --only saved_model",
        )
    types = finders[0].attrs["Tin"], finders[0].attrs["Tout"]
    keys, values = (
        found.numpy()
        for found in tf.raw_ops.LookupTableExportV2(
            table_handle=handle,
            Tkeys=tf.dtypes.as_dtype(types[0].type),
            Tvalues=tf.dtypes.as_dtype(types[1].type),
        )
    )
    attrs = {"key_dtype": types[0], "value_dtype": types[1]}
    graph.nodes[name] = Node(name, "HashTableV2", attrs=attrs)
    _restore_shapes(graph, finders)
    order = np.argsort(keys, kind="stable")
    return Table(name, keys[order], values[order])


def _restore_shapes(graph: Graph, finders: Sequence[Node]) -> None:
    """TF.js' tables answer a flat list, TensorFlow's an array of the keys' shape."""
    moved: dict[Ref, Ref] = {}
    reshapes: list[Node] = []
    for node in finders:
        if node.op != "LookupTableFindV2":
            continue
        shape = graph.add(Node(f"{node.name}/keys_shape", "Shape", [node.inputs[1]]))
        inputs = [(node.name, 0), (shape.name, 0)]
        reshape = graph.add(Node(f"{node.name}/shaped", "Reshape", inputs, shapes=node.shapes))
        moved[(node.name, 0)] = (reshape.name, 0)
        reshapes.append(reshape)
    originals = {id(node): list(node.inputs) for node in reshapes}
    graph.redirect(moved)
    for node in reshapes:
        node.inputs = originals[id(node)]
