"""What stands before every request: bearer tokens, CORS and request ids."""

from __future__ import annotations

import hmac
from collections.abc import Mapping
from dataclasses import dataclass

from packager_server import rest
from packager_server.codes import Code, ServeError
from packager_server.rest import Response

# Probes must work without a secret.
OPEN_PATHS = ("/healthz", "/readyz")
_CORS_HEADERS = (
    ("Access-Control-Allow-Origin", "*"),
    ("Access-Control-Allow-Methods", "POST, GET"),
    ("Access-Control-Allow-Headers", "Content-Type"),
)
_LONGEST_ID = 128


@dataclass(frozen=True)
class Guard:
    """Checks requests before anything else looks at them.

    Attributes:
        tokens: Accepted bearer tokens; empty lets everybody in.
        cors: Let pages of other origins call the server.
        open_paths: Paths that need no token.
    """

    tokens: tuple[bytes, ...] = ()
    cors: bool = False
    open_paths: tuple[str, ...] = OPEN_PATHS

    def check(self, method: str, target: str, headers: Mapping[bytes, bytes]) -> Response | None:
        """Returns the answer to a request that goes no further, or None.

        Args:
            method: The HTTP method.
            target: The raw request target.
            headers: Lower-case names.
        """
        if method == "OPTIONS" and self.cors:
            return _preflight(headers)
        if target.split("?")[0] in self.open_paths:
            return None
        if self.accepts(headers.get(b"authorization", b"")):
            return None
        message = "A valid bearer token is needed: Authorization: Bearer TOKEN"
        error = rest.error_response(ServeError(message, Code.UNAUTHENTICATED))
        return Response(error.status, error.body, headers=(("WWW-Authenticate", "Bearer"),))

    def accepts(self, authorization: bytes) -> bool:
        """Whether the value of an Authorization header carries an accepted token."""
        scheme, _, token = authorization.partition(b" ")
        # All tokens are compared: the time tells nothing about which one was nearly right.
        same = [hmac.compare_digest(token.strip(), known) for known in self.tokens]
        return not self.tokens or (scheme.lower() == b"bearer" and any(same))

    def response_headers(self, headers: Mapping[bytes, bytes]) -> list[tuple[bytes, bytes]]:
        """Returns the headers that every answer to this request gets."""
        found = []
        request_id = headers.get(b"x-request-id")
        if request_id is not None:
            found.append((b"x-request-id", request_id[:_LONGEST_ID]))
        if self.cors and b"origin" in headers:
            found.append((b"access-control-allow-origin", b"*"))
        return found


def _preflight(headers: Mapping[bytes, bytes]) -> Response:
    origin = headers.get(b"origin", b"")
    if not origin.startswith((b"http://", b"https://")):
        return Response(400, b"")
    return Response(200, b"", headers=_CORS_HEADERS)
