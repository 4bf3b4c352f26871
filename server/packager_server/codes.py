"""The status codes that both protocols share, and the one exception that carries them."""

from __future__ import annotations

from enum import IntEnum

# Longer texts are cut, as TensorFlow Serving does in gRPC's trailers.
MESSAGE_LIMIT = 1024


class Code(IntEnum):
    """The canonical status codes, numbered as in gRPC."""

    OK = 0
    CANCELLED = 1
    UNKNOWN = 2
    INVALID_ARGUMENT = 3
    DEADLINE_EXCEEDED = 4
    NOT_FOUND = 5
    ALREADY_EXISTS = 6
    PERMISSION_DENIED = 7
    RESOURCE_EXHAUSTED = 8
    FAILED_PRECONDITION = 9
    ABORTED = 10
    OUT_OF_RANGE = 11
    UNIMPLEMENTED = 12
    INTERNAL = 13
    UNAVAILABLE = 14
    DATA_LOSS = 15
    UNAUTHENTICATED = 16

    @property
    def http(self) -> int:
        """The HTTP status that TensorFlow Serving answers for this code."""
        return _HTTP[self]


_HTTP = {
    Code.OK: 200,
    Code.CANCELLED: 499,
    Code.UNKNOWN: 500,
    Code.INVALID_ARGUMENT: 400,
    Code.DEADLINE_EXCEEDED: 504,
    Code.NOT_FOUND: 404,
    Code.ALREADY_EXISTS: 409,
    Code.PERMISSION_DENIED: 403,
    Code.RESOURCE_EXHAUSTED: 429,
    Code.FAILED_PRECONDITION: 400,
    Code.ABORTED: 409,
    Code.OUT_OF_RANGE: 400,
    Code.UNIMPLEMENTED: 501,
    Code.INTERNAL: 500,
    Code.UNAVAILABLE: 503,
    Code.DATA_LOSS: 500,
    Code.UNAUTHENTICATED: 401,
}


class ServeError(Exception):
    """A request or a model failed in a way that its client or operator can act on.

    Attributes:
        message: The text of the answer.
        code: Its status code.
        http: The HTTP status, where it is not the one that belongs to `code` (413, 415).
    """

    def __init__(
        self, message: str, code: Code = Code.INVALID_ARGUMENT, *, http: int | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.http = code.http if http is None else http
