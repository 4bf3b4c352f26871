"""Writes a model as a TF.js graph model. Runs in the TensorFlow child."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import packager
from packager.errors import ConversionError
from packager.loaders.opened import OpenedModel
from packager.targets import (
    tfjs_graph_check,
    tfjs_graph_freeze,
    tfjs_graph_fuse,
    tfjs_graph_replace,
    tfjs_graph_topology,
)
from packager.targets import tfjs_graph_rewrite as rewrite
from packager.targets.tfjs_files import SHARD_BYTES, WrittenTfjs, write_model
from packager.targets.tfjs_graph_freeze import Frozen
from packager.targets.tfjs_weights import Rule


@dataclass(frozen=True)
class WrittenGraph:
    """What was written.

    Attributes:
        files: The files.
        fused: How many operators of each fused kind the graph has.
    """

    files: WrittenTfjs
    fused: dict[str, int]


def write(
    opened: OpenedModel,
    function: Any,
    folder: Path,
    *,
    card: Mapping[str, Any],
    rules: Sequence[Rule] = (),
    shard_bytes: int = SHARD_BYTES,
) -> WrittenGraph:
    """Writes a model as `model.json` and shards.

    Inputs and outputs are bound by name, and the batch axis stays free.

    Args:
        opened: The model.
        function: Its concrete function, with a free batch.
        folder: Where the files go; made when it is missing.
        card: Embedded as `userDefinedMetadata.packager`.
        rules: Which weights to store in fewer bits.
        shard_bytes: Largest size of a shard.

    Raises:
        ConfigError: A rule matches no weight, or two match the same one.
        UnsupportedError: TF.js lacks an operator or computes it differently; names it.
        ConversionError: TensorFlow cannot freeze the model.
    """
    frozen = optimize(tfjs_graph_freeze.freeze(opened, function))
    tfjs_graph_check.check(frozen.graph)
    rewrite.name_ends(frozen.graph, [end.name for end in opened.inputs])
    found = tfjs_graph_topology.describe(frozen.graph, opened.inputs, opened.outputs, frozen.tables)
    metadata = {
        "packager": dict(card),
        # With it, `predict` answers tensors by the outputs' names.
        "structuredOutputKeys": [end.name for end in opened.outputs],
    }
    more = {"modelInitializer": found.initializer} if found.initializer else {}
    files = write_model(
        folder,
        topology=found.topology,
        weights=found.weights,
        model_format="graph-model",
        converted_by=f"packager {packager.__version__}",
        metadata=metadata,
        rules=rules,
        shard_bytes=shard_bytes,
        more={"signature": found.signature, **more},
    )
    counts = Counter(node.op for body in frozen.graph.bodies() for node in body.nodes.values())
    return WrittenGraph(files, {op: n for op, n in sorted(counts.items()) if "Fused" in op})


def reasons_against(opened: OpenedModel, function: Any) -> list[str]:
    """Tells why a model cannot become a TF.js graph model, without writing anything.

    Returns:
        One sentence per operator with its name, place and reason; empty when it can.
    """
    try:
        frozen = optimize(tfjs_graph_freeze.freeze(opened, function))
    except ConversionError as error:
        return [error.message]
    return list(dict.fromkeys(tfjs_graph_check.reasons_against(frozen.graph)))


def optimize(frozen: Frozen) -> Frozen:
    """Rewrites a frozen graph for inference, in place; returns it."""
    graph = frozen.graph
    rewrite.simplify(graph)
    rewrite.separate_lists(graph)
    tfjs_graph_fuse.merge_padding(graph)
    tfjs_graph_fuse.make_depthwise(graph)
    tfjs_graph_fuse.fuse(graph)
    tfjs_graph_fuse.split_groups(graph)
    tfjs_graph_replace.replace(graph)
    rewrite.drop_unused_functions(graph)
    return frozen
