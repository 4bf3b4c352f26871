"""What the version manager is told, and what it tells."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from packager_server.codes import Code
from packager_server.model import Model
from packager_server.storage import VersionPolicy

State = Literal["START", "LOADING", "AVAILABLE", "UNLOADING", "END"]


@dataclass(frozen=True)
class ModelConfig:
    """One model to serve.

    Attributes:
        name: As in the URL.
        base_path: The folder of its version folders.
        policy: Which versions.
        labels: Version numbers by label.
    """

    name: str
    base_path: str
    policy: VersionPolicy = field(default_factory=VersionPolicy)
    labels: dict[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class Lifecycle:
    """When versions are looked for, tried again and given up.

    Attributes:
        poll_wait_s: Seconds between two looks; 0 looks once, negative never.
        load_retries: How often a failed load is tried again, besides when its folder changes.
        retry_wait_s: Seconds between two tries.
        resource_preserving: Unload before loading: less memory, and a gap in between.
        always_present: Keep the last version when all folders are gone.
        labels_for_unavailable: Labels may name versions that are not loaded.
    """

    poll_wait_s: float = 1.0
    load_retries: int = 5
    retry_wait_s: float = 60.0
    resource_preserving: bool = False
    always_present: bool = False
    labels_for_unavailable: bool = False


@dataclass(frozen=True)
class VersionStatus:
    """What the status of a model says about one version."""

    version: int
    state: State
    code: Code = Code.OK
    message: str = ""


@dataclass(frozen=True)
class Loaded:
    """A loaded model and what its bundle says about it; the manifest is empty without a bundle."""

    model: Model
    manifest: Mapping[str, Any] = field(default_factory=dict)


Loader = Callable[[ModelConfig, int, str], Loaded]
