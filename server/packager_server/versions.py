"""Keeps the wanted versions of each model loaded while requests run.

One background thread lists the folders, loads what is new, and unloads what is no longer wanted
once its last request has ended. Requests hold a version by a `Lease`, so that none is cut off and
none sees two versions.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterable

from packager_server import storage
from packager_server.codes import Code, ServeError
from packager_server.lifecycle import (
    Lifecycle,
    Loaded,
    Loader,
    ModelConfig,
    State,
    VersionStatus,
)

log = logging.getLogger(__name__)

# When the server stops, a version's last request gets this long.
_LAST_WAIT_S = 5.0


class _Version:
    """One version of a model, from the first look to the end. Guarded by the manager's lock."""

    def __init__(self, number: int, path: str) -> None:
        self.number = number
        self.path = path
        self.state: State = "START"
        self.code = Code.OK
        self.message = ""
        self.loaded: Loaded | None = None
        self.users = 0
        self.attempts = 0
        self.retry_at = 0.0
        self.seen: object = None

    def status(self) -> VersionStatus:
        return VersionStatus(self.number, self.state, self.code, self.message)


class _Served:
    """A configured model and its versions."""

    def __init__(self, config: ModelConfig) -> None:
        self.config = config
        self.versions: dict[int, _Version] = {}
        self.labels: dict[str, int] = {}
        self.wanted = True
        self.looked = False

    def newest(self) -> _Version | None:
        available = [one for one in self.versions.values() if one.state == "AVAILABLE"]
        return max(available, key=lambda one: one.number, default=None)


class Lease:
    """A loaded version that stays loaded until `release`."""

    def __init__(
        self, manager: VersionManager, name: str, version: _Version, loaded: Loaded
    ) -> None:
        self._manager = manager
        self._version = version
        self._loaded = loaded
        self.name = name
        self.version = version.number
        self.path = version.path
        self.model = loaded.model
        self.manifest = loaded.manifest

    def share(self) -> Lease:
        """Returns a second lease on the same version, even if it is to be unloaded."""
        self._manager._hold(self._version)
        return Lease(self._manager, self.name, self._version, self._loaded)

    def release(self) -> None:
        """Lets the version be unloaded again. To be called once."""
        self._manager._release(self._version)


class VersionManager:
    """Loads, switches and unloads versions; answers which one a request gets."""

    def __init__(self, loader: Loader, lifecycle: Lifecycle | None = None) -> None:
        self._loader = loader
        self._lifecycle = lifecycle or Lifecycle()
        self._models: dict[str, _Served] = {}
        self._configured = False
        self._changed = threading.Condition()
        self._working = threading.Lock()
        self._stopping = threading.Event()
        self._wake = threading.Event()
        self._thread = threading.Thread(target=self._run, name="versions", daemon=True)

    def start(self, configs: Iterable[ModelConfig]) -> None:
        """Begins to load the models in the background."""
        self._set(configs)
        self._thread.start()

    def stop(self) -> None:
        """Ends the background thread and closes every model."""
        self._stopping.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join()
        with self._working:
            for served in self._models.values():
                for version in list(served.versions.values()):
                    self._unload(served, version, _LAST_WAIT_S)

    def reload(self, configs: Iterable[ModelConfig]) -> None:
        """Replaces the configuration and returns when its versions are loaded or have failed.

        Raises:
            ServeError: A label names a version that is not available; then no label changes.
        """
        self._set(configs)
        self.poll()
        self._assign_labels(strict=True)

    def poll(self) -> None:
        """Looks at the folders of all models once, and loads and unloads what follows from it."""
        with self._working:
            for served in list(self._models.values()):
                self._reconcile(served)
        self._assign_labels(strict=False)

    def ready(self) -> bool:
        """Whether every configured model has a version that answers."""
        with self._changed:
            wanted = [served for served in self._models.values() if served.wanted]
            return self._configured and all(served.newest() for served in wanted)

    def names(self) -> list[str]:
        """Returns the configured models."""
        with self._changed:
            return sorted(name for name, served in self._models.items() if served.wanted)

    def knows(self, name: str) -> bool:
        """Whether a model of this name is or was configured."""
        return name in self._models

    def acquire(self, name: str, version: int | None = None, label: str | None = None) -> Lease:
        """Returns a lease on a version: the newest, the numbered or the labelled one.

        Raises:
            ServeError: The model, version or label is unknown or not loaded.
        """
        with self._changed:
            served = self._models.get(name)
            if label is not None:
                version = self._labelled(served, label)
            if served is None:
                found = None
            elif version is None:
                found = served.newest()
            else:
                found = served.versions.get(version)
            if found is None or found.state != "AVAILABLE" or found.loaded is None:
                wanted = f"Latest({name})" if version is None else f"Specific({name}, {version})"
                raise ServeError(f"Servable not found for request: {wanted}", Code.NOT_FOUND)
            found.users += 1
            return Lease(self, name, found, found.loaded)

    def _labelled(self, served: _Served | None, label: str) -> int:
        if not self._configured:
            raise ServeError("Model labels does not init yet.", Code.UNAVAILABLE)
        if served is None or label not in served.labels:
            raise ServeError(f"Unrecognized servable version label: {label}")
        return served.labels[label]

    def _hold(self, version: _Version) -> None:
        with self._changed:
            version.users += 1

    def _release(self, version: _Version) -> None:
        with self._changed:
            version.users -= 1
            if version.users == 0 and version.state == "UNLOADING":
                self._changed.notify_all()

    def status(self, name: str, version: int | None = None) -> list[VersionStatus]:
        """Returns the state of each version, newest first.

        Raises:
            ServeError: The model or version is unknown.
        """
        with self._changed:
            served = self._models.get(name)
            if served is None or not served.versions:
                message = f"Could not find any versions of model {name}"
                raise ServeError(message, Code.NOT_FOUND)
            if version is not None and version not in served.versions:
                message = f"Could not find version {version} of model {name}"
                raise ServeError(message, Code.NOT_FOUND)
            numbers = sorted(served.versions, reverse=True) if version is None else [version]
            return [served.versions[number].status() for number in numbers]

    def _set(self, configs: Iterable[ModelConfig]) -> None:
        given = {config.name: config for config in configs}
        with self._changed:
            for name, served in self._models.items():
                served.wanted = name in given
            for name, config in given.items():
                served = self._models.setdefault(name, _Served(config))
                served.config = config
                served.looked = False

    def _assign_labels(self, *, strict: bool) -> None:
        with self._changed:
            chosen: dict[str, dict[str, int]] = {}
            for name, served in self._models.items():
                labels = served.config.labels if served.wanted else {}
                chosen[name] = {k: v for k, v in labels.items() if self._may_label(served, k, v)}
                missing = sorted(set(labels) - set(chosen[name]))
                if missing and strict:
                    raise ServeError(
                        f"Request to assign label {missing[0]} to version {labels[missing[0]]} of "
                        f"model {name}, which is not currently available for inference",
                        Code.FAILED_PRECONDITION,
                    )
            for name, labels in chosen.items():
                self._models[name].labels = labels
            self._configured = True

    def _may_label(self, served: _Served, label: str, version: int) -> bool:
        found = served.versions.get(version)
        available = found is not None and found.state == "AVAILABLE"
        return available or self._lifecycle.labels_for_unavailable or label in served.labels

    def _run(self) -> None:
        wait = self._lifecycle.poll_wait_s
        while not self._stopping.is_set():
            try:
                self.poll()
            # A folder that misbehaves in a new way must not end the looking for ever.
            except Exception:
                log.exception("looking for versions failed")
            self._wake.wait(wait if wait > 0 else None)

    def _aspired(self, served: _Served) -> dict[int, str] | None:
        """Returns the versions that should be loaded; None when nothing is to change."""
        if not served.wanted:
            return {}
        if served.looked and self._lifecycle.poll_wait_s <= 0:
            return None
        served.looked = True
        found = storage.list_versions(served.config.base_path)
        if found is None:
            return None
        chosen = served.config.policy.choose(found)
        if not chosen and self._lifecycle.always_present:
            return None
        if not chosen:
            log.warning("%s: no version in %s", served.config.name, served.config.base_path)
        return chosen

    def _reconcile(self, served: _Served) -> None:
        aspired = self._aspired(served)
        if aspired is None:
            return
        if self._lifecycle.resource_preserving:
            self._unload_others(served, aspired)
        for number, path in aspired.items():
            if self._stopping.is_set():
                return
            if self._should_load(served.versions.get(number), path):
                self._load(served, number, path)
        answers = any(
            served.versions[n].state == "AVAILABLE" for n in aspired if n in served.versions
        )
        if answers or not aspired:
            self._unload_others(served, aspired)

    def _should_load(self, version: _Version | None, path: str) -> bool:
        if version is None or version.path != path:
            return True
        if version.state == "AVAILABLE":
            return False
        if version.code == Code.OK or version.seen != storage.fingerprint(path):
            return True
        due = time.monotonic() >= version.retry_at
        return due and version.attempts <= self._lifecycle.load_retries

    def _load(self, served: _Served, number: int, path: str) -> None:
        old = served.versions.get(number)
        version = _Version(number, path)
        version.attempts = 1
        if old is not None and old.path == path and old.code != Code.OK:
            version.attempts = old.attempts + 1
        version.seen = storage.fingerprint(path)
        version.state = "LOADING"
        with self._changed:
            if old is None or old.state != "AVAILABLE":
                served.versions[number] = version
        started = time.monotonic()
        try:
            loaded = self._loader(served.config, number, path)
        # TensorFlow answers damaged models with many unrelated exception types.
        except Exception as error:
            self._failed(served, version, error)
            return
        with self._changed:
            version.loaded, version.state = loaded, "AVAILABLE"
            served.versions[number] = version
        seconds = time.monotonic() - started
        log.info("%s version %d is available after %.1f s", served.config.name, number, seconds)
        if old is not None and old.state == "AVAILABLE":
            self._close(served, old)

    def _failed(self, served: _Served, version: _Version, error: Exception) -> None:
        code = error.code if isinstance(error, ServeError) else Code.UNKNOWN
        with self._changed:
            version.state, version.code, version.message = "END", code, _text(error)
            version.retry_at = time.monotonic() + self._lifecycle.retry_wait_s
        log.error(
            "%s version %d cannot be loaded: %s",
            served.config.name, version.number, version.message,
        )  # fmt: skip

    def _unload_others(self, served: _Served, aspired: dict[int, str]) -> None:
        for number, version in list(served.versions.items()):
            if number not in aspired:
                self._unload(served, version)

    def _unload(self, served: _Served, version: _Version, longest_s: float | None = None) -> None:
        if version.state == "AVAILABLE":
            self._close(served, version, longest_s)

    def _close(self, served: _Served, version: _Version, longest_s: float | None = None) -> None:
        """Waits for the last request of a version, then frees it."""
        with self._changed:
            version.state = "UNLOADING"
            if not self._changed.wait_for(lambda: version.users == 0, longest_s):
                # Freeing a model under a running request could crash; the process ends anyway.
                log.warning(
                    "%s version %d still runs a request", served.config.name, version.number
                )
                return
            loaded, version.loaded, version.state = version.loaded, None, "END"
        if loaded is not None:
            loaded.model.close()
        log.info("%s version %d is unloaded", served.config.name, version.number)


def _text(error: Exception) -> str:
    text = error.message if isinstance(error, ServeError) else str(error)
    return text.strip() or type(error).__name__
