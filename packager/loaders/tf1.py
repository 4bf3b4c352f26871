"""Turns the reference variables of TensorFlow 1 SavedModels into constants. Runs in the child.

TensorFlow 2 loads such a model, but loses the variables when it is saved or converted again.
Everything else stays: look-up tables, their assets and initializers, all signatures.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from packager.errors import ModelError, brief
from packager.loaders import saved_model_file

_VARIABLES = ("Variable", "VariableV2")
_CHANGES = ("Assign", "AssignAdd", "AssignSub", "ScatterAdd", "ScatterSub", "ScatterUpdate")


def without_variables(source: str) -> str:
    """Writes a copy with constants instead of reference variables, where there are any.

    Args:
        source: The SavedModel's folder.

    Returns:
        The folder to load: the copy, or `source` itself.

    Raises:
        ModelError: The variables cannot be read, or a signature changes them.
    """
    from tensorflow.core.protobuf import saved_model_pb2

    # TensorFlow 2 has no such variables, and its files may be large.
    if saved_model_file.has_objects(Path(source)):
        return source
    model = saved_model_pb2.SavedModel()
    model.ParseFromString((Path(source) / "saved_model.pb").read_bytes())
    graphs = [g for g in model.meta_graphs if "serve" in g.meta_info_def.tags] or model.meta_graphs
    if not graphs or not any(node.op in _VARIABLES for node in graphs[0].graph_def.node):
        return source
    _freeze(source, graphs[0])
    del model.meta_graphs[:]
    model.meta_graphs.append(graphs[0])
    # Assets of the copy are read again when the model is saved, so the folder stays.
    folder = Path(tempfile.mkdtemp())
    (folder / "saved_model.pb").write_bytes(model.SerializeToString())
    for name in ("assets", "assets.extra"):
        if (Path(source) / name).is_dir():
            shutil.copytree(Path(source) / name, folder / name)
    return str(folder)


def _freeze(source: str, meta: Any) -> None:
    """Replaces the variables of a meta graph, and drops what saves and restores them."""
    nodes = {node.name: node for node in meta.graph_def.node}
    signatures = [s for s in meta.signature_def.values() if s.outputs]
    # An input that no output reads is part of the signature, too.
    ends = [_node(t.name) for s in signatures for t in (*s.outputs.values(), *s.inputs.values())]
    tables = list(meta.collection_def["table_initializer"].node_list.value)
    assets = list(meta.collection_def["asset_filepaths"].node_list.value)
    needed = _needed(nodes, [*ends, *map(_node, tables), *map(_node, assets)])
    for node in (nodes[name] for name in needed):
        changed = nodes.get(_node(node.input[0])) if node.op in _CHANGES and node.input else None
        if changed is not None and changed.op in _VARIABLES:
            raise ModelError(
                f"{source}: the operation {node.name!r} ({node.op}) changes the variable"
                f" {changed.name!r}, so that an answer depends on those before it",
                hint="export a signature that only reads its variables",
            )
    values = _values(
        source,
        list(meta.meta_info_def.tags),
        [name for name in needed if nodes[name].op in _VARIABLES],
    )
    kept = [_constant(nodes[name], values) for name in nodes if name in needed]
    del meta.graph_def.node[:]
    meta.graph_def.node.extend(kept)
    meta.ClearField("saver_def")
    for name in list(meta.collection_def):
        if name not in ("table_initializer", "asset_filepaths", "saved_model_assets"):
            del meta.collection_def[name]
    _initialise_tables(meta, tables)
    # A signature that only sets something up, such as __saved_model_init_op, has no outputs.
    for name in [n for n, s in meta.signature_def.items() if not s.outputs]:
        del meta.signature_def[name]


def _initialise_tables(meta: Any, tables: list[str]) -> None:
    """Makes one operation of the tables' initializers, which the loader runs."""
    if not tables:
        return
    group = meta.graph_def.node.add(name="packager_init_tables", op="NoOp")
    group.input.extend(f"^{_node(name)}" for name in tables)
    meta.collection_def["saved_model_main_op"].node_list.value.append(group.name)


def _values(source: str, tags: list[str], variables: list[str]) -> dict[str, Any]:
    import tensorflow as tf

    try:
        with tf.Graph().as_default(), tf.compat.v1.Session() as session:
            tf.compat.v1.saved_model.loader.load(session, tags, source)
            found: dict[str, Any] = session.run({name: f"{name}:0" for name in variables})
    except Exception as error:
        raise ModelError(
            f"{source}: its variables cannot be read: {brief(error)}",
            hint="check that variables/ was copied completely",
        ) from error
    return found


def _constant(node: Any, values: dict[str, Any]) -> Any:
    import tensorflow as tf
    from tensorflow.core.framework import node_def_pb2

    if node.name not in values:
        return node
    constant = node_def_pb2.NodeDef(name=node.name, op="Const")
    constant.attr["dtype"].CopyFrom(node.attr["dtype"])
    constant.attr["value"].tensor.CopyFrom(tf.make_tensor_proto(values[node.name]))
    return constant


def _needed(nodes: dict[str, Any], ends: Iterable[str]) -> set[str]:
    """Names of the nodes that some others are computed from."""
    found: set[str] = set()
    waiting = [name for name in ends if name in nodes]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting.extend(_node(given) for given in nodes[name].input)
    return found


def _node(tensor: str) -> str:
    """The node's name of `node:0` or `^node`."""
    return tensor.removeprefix("^").partition(":")[0]
