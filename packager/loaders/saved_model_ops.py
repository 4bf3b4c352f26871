"""Which operations a SavedModel's graph and functions hold, read without TensorFlow.

A model is a program: it runs operations when it is loaded and when it is used, and some of them
read and write files, open connections or run Python. safe_ops.txt lists those of TensorFlow's
registry that only compute. The numbers here are field numbers of saved_model.proto,
meta_graph.proto, graph.proto, node_def.proto, function.proto and attr_value.proto.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from packager.errors import ModelError
from packager.loaders.saved_model_file import mapped, walk

# Checkpoints are read and written by these; only the saver may use them.
SAVER_OPS = frozenset(
    {
        "MergeV2Checkpoints", "Restore", "RestoreSlice", "RestoreV2", "Save", "SaveSlices",
        "SaveV2", "ShardedFilename", "ShardedFilespec",
    }
)  # fmt: skip
_SAVER_FUNCTION = re.compile(r"__inference__traced_(save|restore)_\d+")
# These read a vocabulary: one of the model's own files, whose path the loader fills in.
_ASSET_OPS = frozenset({"InitializeTableFromTextFile", "InitializeTableFromTextFileV2"})
# SavedModel.meta_graphs, and below MetaGraphDef: graph_def.node, graph_def.library.function,
# signature_def (a map: its value is field 2), saver_def.restore_op_name, asset_file_def, and where
# TensorFlow 1 has the latter: in the value of collection_def, any_list.value.value.
_META_GRAPHS = (2,)
_NODES = (2, 1)
_FUNCTIONS = (2, 2, 1)
_SIGNATURE_OUTPUTS = (5, 2, 2, 2, 1)
_RESTORE_OP = (3, 3)
_ASSETS = (6,)
_COLLECTIONS = (4,)
_COLLECTED = (2, 5, 1, 2)
_SHOWN = 5
_Named = TypeVar("_Named")


@dataclass(frozen=True)
class _Node:
    name: str
    op: str
    inputs: tuple[str, ...]
    calls: tuple[str, ...]


def check(folder: Path, allowed: Collection[str] = ()) -> None:
    """Refuses a SavedModel whose operations could do more than compute.

    Args:
        folder: The SavedModel.
        allowed: Names of further operations that the user trusts.

    Raises:
        ModelError: It holds other operations, which are named.
        ValueError: The file is not the protocol buffer that it should be.
    """
    found: dict[str, str] = {}
    for graph in walk(mapped(folder / "saved_model.pb"), _META_GRAPHS):
        found |= _unsafe(graph, frozenset(allowed))
    if found:
        shown = ", ".join(f"{op} (in {where})" for op, where in sorted(found.items())[:_SHOWN])
        more = f" and {len(found) - _SHOWN} more" if len(found) > _SHOWN else ""
        flags = " ".join(f"--allow-op {op}" for op in sorted(found))
        raise ModelError(
            f"{folder}: the model holds operations that can do more than compute, such as reading"
            f" or writing files, or that are not TensorFlow's own: {shown}{more}",
            hint=f"if you trust where it comes from, add {flags}",
        )


@functools.cache
def safe_ops() -> frozenset[str]:
    """The operations that only compute."""
    return frozenset(Path(__file__).with_name("safe_ops.txt").read_text("utf-8").split())


def _unsafe(graph: memoryview, allowed: frozenset[str]) -> dict[str, str]:
    """The operations of one graph that are refused, with a place where each is used."""
    nodes = _by_name((node.name, node) for node in map(_node, walk(graph, _NODES)))
    functions = _by_name(map(_function, walk(graph, _FUNCTIONS)))
    # An operation may be the name of a function of the library.
    known = safe_ops() | allowed | functions.keys()
    savers = {name for name in functions if _SAVER_FUNCTION.fullmatch(name)}
    used = {call for name, body in functions.items() if name not in savers for call in _calls(body)}
    assets = set(_assets(graph))
    found = _foreign_files(nodes, functions, assets)
    found = {op: where for op, where in found.items() if op not in allowed}
    for name, body in functions.items():
        is_saver = name in savers and name not in used
        found |= _outside(body, known | SAVER_OPS if is_saver else known, f"the function {name}")
    restore = _one(graph, _RESTORE_OP)
    scope = restore.rpartition("/")[0]
    served = _reached(nodes, _texts(graph, _SIGNATURE_OUTPUTS))
    for node in nodes.values():
        of_saver = node.name not in served and (
            savers.intersection(node.calls) or (scope and node.name.startswith(f"{scope}/"))
        )
        mine = known | SAVER_OPS if of_saver else known - savers
        found |= _outside([node], mine, "the graph")
        if node.name in served and savers.intersection(node.calls):
            found[node.op] = f"the signature, which calls {node.calls[0]}"
    return found


def _outside(nodes: Iterable[_Node], known: Collection[str], where: str) -> dict[str, str]:
    return {node.op: where for node in nodes if node.op not in known and node.op not in _ASSET_OPS}


def _foreign_files(
    nodes: dict[str, _Node], functions: dict[str, list[_Node]], assets: set[str]
) -> dict[str, str]:
    """The operations of `_ASSET_OPS` that are told a path by a constant of the graph."""
    bodies = {"": nodes} | {name: {n.name: n for n in body} for name, body in functions.items()}
    readers: dict[str, str] = dict.fromkeys(_ASSET_OPS, "")
    found: dict[str, str] = {}
    waiting = list(readers)
    while waiting:
        called = waiting.pop()
        for name, body in bodies.items():
            for node in body.values():
                if called != node.op and called not in node.calls:
                    continue
                paths = [_origin(body, each) for each in node.inputs]
                if any(p in body and body[p].op == "Const" and p not in assets for p in paths):
                    found[readers[called] or called] = (
                        f"the function {name}" if name else "the graph"
                    )
                elif name and name not in readers:
                    # The path is an argument: whoever calls the function gives it.
                    readers[name] = readers[called] or called
                    waiting.append(name)
    return found


def _assets(graph: memoryview) -> Iterator[str]:
    """The nodes whose values the loader replaces by the path of a file in assets/."""
    found = list(walk(graph, _ASSETS))
    # As TensorFlow does, which looks into one of the two places only.
    for entry in () if found else walk(graph, _COLLECTIONS):
        if _one(entry, (1,)) == "saved_model_assets":
            found += walk(entry, _COLLECTED)
    for asset in found:
        # AssetFileDef: tensor_info.name, filename
        parts = _one(asset, (2,)).split("/")
        if ".." not in parts and parts[0]:
            yield _one(asset, (1, 1)).partition(":")[0]


def _origin(body: dict[str, _Node], tensor: str) -> str:
    """The node that a tensor comes from, through operations that change nothing."""
    name = tensor.lstrip("^").partition(":")[0]
    while name in body and body[name].op in ("Identity", "PlaceholderWithDefault"):
        name = body[name].inputs[0].partition(":")[0]
    return name


def _calls(nodes: Iterable[_Node]) -> Iterator[str]:
    for node in nodes:
        yield from (node.op, *node.calls)


def _reached(nodes: dict[str, _Node], outputs: Iterable[str]) -> set[str]:
    """The nodes that the signatures' outputs need."""
    waiting = [name.partition(":")[0] for name in outputs]
    reached: set[str] = set()
    while waiting:
        name = waiting.pop()
        if name in nodes and name not in reached:
            reached.add(name)
            waiting += (each.lstrip("^").partition(":")[0] for each in nodes[name].inputs)
    return reached


def _node(message: memoryview) -> _Node:
    # NodeDef: name, op, input, attr (a map) -> AttrValue.func.name, AttrValue.list.func.name
    calls = (*_texts(message, (5, 2, 10, 1)), *_texts(message, (5, 2, 1, 9, 1)))
    return _Node(
        _one(message, (1,)),
        _one(message, (2,)),
        tuple(_texts(message, (3,))),
        calls,
    )


def _function(message: memoryview) -> tuple[str, list[_Node]]:
    # FunctionDef: signature (OpDef) -> name, node_def
    return _one(message, (1, 1)), [_node(each) for each in walk(message, (3,))]


def _one(message: memoryview, path: tuple[int, ...]) -> str:
    """A text that is there once at most: of several, TensorFlow would take another than we."""
    found = list(_texts(message, path))
    if len(found) > 1:
        raise ValueError(f"{found[:2]} where there is one text")
    return found[0] if found else ""


def _by_name(pairs: Iterable[tuple[str, _Named]]) -> dict[str, _Named]:
    """A dictionary of what must have a name of its own."""
    found: dict[str, _Named] = {}
    for name, value in pairs:
        if name in found:
            raise ValueError(f"two nodes or functions are called {name!r}")
        found[name] = value
    return found


def _texts(message: memoryview, path: tuple[int, ...]) -> Iterator[str]:
    return (bytes(value).decode("utf-8", "replace") for value in walk(message, path))
