"""A rewritten graph as TF.js reads it: `modelTopology` and weights by name."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from packager.errors import UnsupportedError
from packager.loaders.opened import End
from packager.targets.graph_ir import Array, Graph, Node, Ref
from packager.targets.tfjs_graph_freeze import Table

# What TF.js knows of data types; it computes in float32, int32, bool and complex64.
_SPELLED = {
    "float16": "DT_FLOAT", "bfloat16": "DT_FLOAT", "float32": "DT_FLOAT", "float64": "DT_FLOAT",
    "int8": "DT_INT32", "uint8": "DT_INT32", "int16": "DT_INT32", "uint16": "DT_INT32",
    "int32": "DT_INT32", "int64": "DT_INT32", "bool": "DT_BOOL", "string": "DT_STRING",
    "complex64": "DT_COMPLEX64", "resource": "DT_RESOURCE", "variant": "DT_VARIANT",
}  # fmt: skip
_STORED = {"f": "float32", "V": "float32", "i": "int32", "u": "int32", "b": "bool"}
# Operators for which a bound beyond int32 means no bound.
_CLAMPED = ("StridedSlice", "Slice")
_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True)
class Description:
    """The parts of `model.json` that a graph makes.

    Attributes:
        topology: `modelTopology`.
        signature: `signature`.
        initializer: `modelInitializer`, which fills the tables; empty without tables.
        weights: All constants, in the file's order.
    """

    topology: dict[str, Any]
    signature: dict[str, Any]
    initializer: dict[str, Any]
    weights: dict[str, Array]


def describe(
    graph: Graph, inputs: Sequence[End], outputs: Sequence[End], tables: Sequence[Table]
) -> Description:
    """Describes a graph whose ends bear the model's names.

    Raises:
        UnsupportedError: An integer constant needs more than 32 bits.
    """
    weights: dict[str, Array] = {}
    library = [_function(name, body, weights) for name, body in graph.functions.items()]
    nodes = _nodes(graph, weights, "")
    shapes = {end.name: end for end in inputs}
    for node in nodes:
        if node["name"] in shapes and node["op"] == "Placeholder":
            node["attr"]["shape"] = {"shape": _shape(shapes[node["name"]].shape)}
    topology = {
        "node": nodes,
        "library": {"function": library},
        "versions": {"producer": 1},
    }
    signature = {
        "inputs": {end.name: _end(end, (end.name, 0)) for end in inputs},
        "outputs": {end.name: _end(end, graph.outputs[end.name]) for end in outputs},
    }
    return Description(topology, signature, _initializer(tables, weights), weights)


def _end(end: End, ref: Ref) -> dict[str, Any]:
    return {
        "name": f"{ref[0]}:{ref[1]}",
        "dtype": _SPELLED[end.dtype],
        "tensorShape": _shape(end.shape),
    }


def _shape(shape: Sequence[int | None]) -> dict[str, Any]:
    return {"dim": [{"size": "-1" if size is None else str(size)} for size in shape]}


def _nodes(body: Graph, weights: dict[str, Array], prefix: str) -> list[dict[str, Any]]:
    """Describes the nodes; constants of functions get the function's name before theirs.

    TF.js keeps the weights of all functions in one table.
    """
    names = {n.name: prefix + n.name for n in body.nodes.values() if n.value is not None}
    users = body.consumers()
    described = []
    for node in body.sorted_nodes():
        if prefix and node.name in body.inputs:
            continue
        name = names.get(node.name, node.name)
        entry: dict[str, Any] = {"name": name, "op": node.op}
        if node.inputs:
            entry["input"] = [_edge(names, ref) for ref in node.inputs]
        entry["attr"] = {key: _attribute(value) for key, value in node.attrs.items()}
        if node.value is not None:
            array = _stored(node, users.get((node.name, 0), []))
            entry["attr"] = _constant(array)
            weights[name] = array
        described.append(entry)
    return described


def _edge(names: Mapping[str, str], ref: Ref) -> str:
    name = names.get(ref[0], ref[0])
    return f"{name}:{ref[1]}" if ref[1] else name


def _function(name: str, body: Graph, weights: dict[str, Array]) -> dict[str, Any]:
    nodes = _nodes(body, weights, f"{name}/")
    constants = {n.name: f"{name}/{n.name}" for n in body.nodes.values() if n.value is not None}
    arguments = [
        {"name": argument, "type": _argument_type(body.nodes[argument])} for argument in body.inputs
    ]
    return {
        "signature": {
            "name": name,
            "inputArg": arguments,
            "outputArg": [{"name": output} for output in body.outputs],
        },
        "nodeDef": nodes,
        "ret": {output: _edge(constants, ref) for output, ref in body.outputs.items()},
    }


def _argument_type(node: Node) -> str:
    return _spell(node.attrs["dtype"].type)


def _spell(number: int) -> str:
    import tensorflow as tf

    return _SPELLED[tf.dtypes.as_dtype(number).name]


def _attribute(value: Any) -> dict[str, Any]:
    from google.protobuf import json_format

    kind = value.WhichOneof("value")
    if kind == "type":
        return {"type": _spell(value.type)}
    if kind == "list" and value.list.type:
        return {"list": {"type": [_spell(each) for each in value.list.type]}}
    found: dict[str, Any] = json_format.MessageToDict(value)
    return found


def _constant(array: Array) -> dict[str, Any]:
    dtype = {"float32": "DT_FLOAT", "int32": "DT_INT32", "bool": "DT_BOOL", "object": "DT_STRING"}
    spelled = dtype.get(array.dtype.name, "DT_COMPLEX64")
    tensor = {"dtype": spelled, "tensorShape": _shape(array.shape)}
    return {"dtype": {"type": spelled}, "value": {"tensor": tensor}}


def _stored(node: Node, users: Sequence[Node]) -> Array:
    """A constant in a data type of TF.js."""
    array = np.asarray(node.value)
    if array.dtype.kind in "OSU":
        return array.astype(object)
    if array.dtype.kind == "c":
        return array.astype(np.complex64)
    if array.dtype.kind in "iu" and array.dtype.itemsize > 4:
        if users and all(user.op in _CLAMPED for user in users):
            array = array.clip(_INT32.min, _INT32.max)
        elif array.size and (array.min() < _INT32.min or array.max() > _INT32.max):
            raise UnsupportedError(
                f"the integer constant {node.name!r} needs 64 bits; TF.js has 32",
                hint="leave TF.js out: --only saved_model --only tflite",
            )
    return array.astype(_STORED[array.dtype.kind])


def _initializer(tables: Sequence[Table], weights: dict[str, Array]) -> dict[str, Any]:
    """The graph that TF.js runs once, to fill the tables; it finds them by their nodes' names."""
    nodes = []
    for table in tables:
        parts = {"keys": table.keys, "values": table.values}
        edges = [table.name]
        spelled = []
        for part, array in parts.items():
            node = Node(f"{table.name}/{part}", "Const", value=array)
            weights[node.name] = _stored(node, [])
            constant = _constant(weights[node.name])
            nodes.append({"name": node.name, "op": "Const", "attr": constant})
            edges.append(node.name)
            spelled.append(constant["dtype"])
        kinds = {"key_dtype": spelled[0], "value_dtype": spelled[1]}
        nodes.append({"name": table.name, "op": "HashTableV2", "attr": kinds})
        types = {"Tin": spelled[0], "Tout": spelled[1]}
        fill = {"name": f"{table.name}/fill", "op": "LookupTableImportV2", "input": edges}
        nodes.append({**fill, "attr": types})
    return {"node": nodes, "versions": {"producer": 1}} if nodes else {}
