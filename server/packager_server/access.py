"""The access log: one line for each request, as text or as JSON."""

from __future__ import annotations

import json
import logging
import time
from dataclasses import asdict, dataclass

log = logging.getLogger("packager_server.access")


@dataclass(frozen=True)
class Access:
    """What is logged of a request."""

    method: str
    target: str
    status: int
    seconds: float
    client: str = ""
    request_id: str = ""
    model: str = ""


@dataclass(frozen=True)
class AccessLog:
    """Writes accesses to the logger `packager_server.access`."""

    as_json: bool = False

    def write(self, entry: Access) -> None:
        """Logs one request; what a client sent is escaped, so that it cannot forge a line."""
        if self.as_json:
            fields = {"time": round(time.time(), 3), **asdict(entry)}
            log.info("%s", json.dumps(fields))
            return
        milliseconds = entry.seconds * 1000
        log.info(
            "%s %s %r %d %.1f ms %s", entry.client or "-", entry.method, entry.target, entry.status,
            milliseconds, ascii(entry.request_id) if entry.request_id else "-",
        )  # fmt: skip
