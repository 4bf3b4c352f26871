"""Results from other machines: what runners, devices, browsers and `packager bench` write."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from packager import bundle
from packager.errors import UsageError

Json = dict[str, Any]

# The newest version of each schema that is understood. A document without `schema` is what a
# runner's `verify` answers (docs/bundle.md).
SCHEMAS = {"packager.device": 1, "packager-browser-results": 1, "packager-bench": 1}
_HINT = (
    "make it on the device: python run.py verify BUNDLE --json > device.json; in the web app:"
    " Export results"
)
# What is too large for a report.
_DROPPED = ("values",)
_MACHINE_KEYS = (
    "board", "system", "machine", "architecture", "cpu", "browser", "cpus", "node",
)  # fmt: skip


def read(path: Path, folder: Path, document: Json) -> Json:
    """Reads one document and checks that it is about this bundle.

    Args:
        path: The file.
        folder: The bundle's folder.
        document: The bundle's report.

    Raises:
        UsageError: It is something else, of a newer schema, or about another bundle.
    """
    result = bundle.read_json(path)
    _check_shape(result, path)
    _check_schema(result, path)
    _check_bundle(result, path, folder, document)
    artifacts = [{k: v for k, v in a.items() if k not in _DROPPED} for a in result["artifacts"]]
    return {**result, "artifacts": artifacts}


def merged(results: list[Json], result: Json) -> list[Json]:
    """Adds a document; one of the same kind from the same place is replaced."""
    return [r for r in results if not _same_place(r, result)] + [result]


def machine_name(machine: Json) -> str:
    """What a person calls the machine: the board or system, processor, browser."""
    parts = [
        f"{machine[key]} CPUs" if key == "cpus" else str(machine[key])
        for key in _MACHINE_KEYS
        if machine.get(key)
    ]
    parts = parts or [str(value) for value in machine.values()]
    return ", ".join(dict.fromkeys(parts)) or "not named"


def runtime_name(entry: Json, result: Json) -> str:
    """What ran an artifact: package, version and number of threads, as far as they are known."""
    runtime = entry.get("title") or entry.get("runtime") or result.get("runtime") or {}
    # A browser's entry names it by a text.
    parts = (
        [str(value) for value in runtime.values() if value]
        if isinstance(runtime, dict)
        else [str(runtime)]
    )
    threads = entry.get("threads")
    if threads:
        parts.append(f"{threads} thread{'s' if threads != 1 else ''}")
    return " ".join(parts)


def by_status(result: Json) -> dict[str, list[str]]:
    """Artifacts by status, each once."""
    found: dict[str, list[str]] = {}
    for entry in result["artifacts"]:
        ids = found.setdefault(str(entry["status"]), [])
        ids += [] if entry["id"] in ids else [str(entry["id"])]
    return found


def latency(entry: Json) -> dict[str, float] | None:
    """The times of an artifact's entry, ms: `p50` and what else was measured; None without."""
    found = entry.get("latency_ms")
    if isinstance(found, dict) and isinstance(found.get("p50"), (int, float)):
        return {k: float(v) for k, v in found.items() if isinstance(v, (int, float))}
    flat = {
        k.removesuffix("_ms"): float(entry[k])
        for k in ("p50_ms", "p90_ms", "p99_ms")
        if isinstance(entry.get(k), (int, float))
    }
    return flat if "p50" in flat else None


def memory(entry: Json) -> float | None:
    """The memory of an artifact's entry, bytes: of the process, or of the browser's runtime."""
    found = entry.get("peak_memory_bytes", entry.get("memory_bytes"))
    return float(found) if isinstance(found, (int, float)) else None


def _check_shape(result: Any, path: Path) -> None:
    types: Json = {
        "runner": str,
        "runtime": (dict, type(None)),
        "machine": dict,
        "artifacts": list,
    }
    is_answer = isinstance(result, dict) and all(
        key in result and isinstance(result[key], kind) for key, kind in types.items()
    )
    if not is_answer or not all(
        isinstance(a, dict) and {"id", "status"} <= set(a) for a in result["artifacts"]
    ):
        raise UsageError(f"{path} is not the JSON answer of a runner's verify", hint=_HINT)


def _check_schema(result: Json, path: Path) -> None:
    schema = result.get("schema")
    if schema is None:
        return
    name, version = (
        (schema.get("name"), schema.get("version")) if isinstance(schema, dict) else (schema, None)
    )
    if name not in SCHEMAS or not isinstance(version, int):
        raise UsageError(f"{path} has the unknown schema {schema!r}", hint=_HINT)
    if version > SCHEMAS[name]:
        raise UsageError(
            f"{path} has {name} of version {version}; this packager reads up to {SCHEMAS[name]}",
            hint="pip install --upgrade packager",
        )


def _check_bundle(result: Json, path: Path, folder: Path, document: Json) -> None:
    identity = result.get("bundle")
    here = f"{document['name']}/{document['version']}"
    known = {artifact["id"] for artifact in document["artifacts"]}
    foreign = sorted({str(a["id"]) for a in result["artifacts"]} - known)
    if foreign:
        raise UsageError(
            f"{path} is about other artifacts than {here}: {', '.join(foreign)}",
            hint="merge it into the bundle that was verified",
        )
    if not isinstance(identity, dict) or "manifest_sha256" not in identity:
        return
    if identity["manifest_sha256"] != manifest_sha256(folder):
        other = f"{identity.get('name')}/{identity.get('version')}"
        same = " of another build" if other == here else ""
        raise UsageError(
            f"{path} is about the bundle {other}{same}, not about {here} in {folder}",
            hint="merge it into the bundle that was verified; the manifest's hash tells them apart",
        )


def manifest_sha256(folder: Path) -> str:
    """The hash that identifies a bundle."""
    return hashlib.sha256((folder / bundle.MANIFEST).read_bytes()).hexdigest()


def _same_place(one: Json, other: Json) -> bool:
    keys = ("runner", "runtime", "machine", "schema")
    return all(one.get(key) == other.get(key) for key in keys)
