"""The taxonomy of errors, and the one table that maps it to HTTP.

Raise where the fault is known, map once at the boundary (`to_http`); never log and raise.

    CpRayError
    +- InvalidRequest      400, 404, 413, 422: the caller can mend it; names the field
    +- Unauthorized        401
    +- Overloaded          429 (this tenant) or 503 (everybody): carries Retry-After
    +- EngineError         502: the engine took the request and failed
    |  +- EngineGone           : it is dead or hangs; before the first token another one is asked
    +- EngineUnavailable   503: no replica could take it
    +- IndexUnavailable    never reaches a client: the request passes through
    +- StoreUnavailable    never reaches a client: Redis is down or late, go on without it
    +- WireError           never reaches a client: a message that cannot be read is a gap
    +- ConfigError         at start, on the command line
    +- InvariantError      500: our own fault
"""

from __future__ import annotations


class CpRayError(Exception):
    """Base of all errors raised on purpose."""

    status = 500
    kind = "server_error"

    def __init__(self, message: str, *, param: str | None = None, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.param = param
        self.code = code


class InvalidRequest(CpRayError):
    """The request cannot be served as it is; `param` names the field, the message the fix."""

    status = 400
    kind = "invalid_request_error"

    def __init__(
        self,
        message: str,
        *,
        param: str | None = None,
        code: str | None = None,
        status: int = 400,
    ) -> None:
        super().__init__(message, param=param, code=code)
        self.status = status


class Unauthorized(CpRayError):
    """The bearer key is missing or unknown."""

    status = 401
    kind = "authentication_error"


class Overloaded(CpRayError):
    """A bounded queue is full; try again after `retry_after_s`."""

    status = 503
    kind = "overloaded_error"

    def __init__(self, message: str, *, retry_after_s: int = 1, status: int = 503) -> None:
        super().__init__(message, code="overloaded")
        self.retry_after_s = retry_after_s
        self.status = status


class EngineError(CpRayError):
    """The engine accepted the request and failed on it."""

    status = 502
    kind = "engine_error"


class EngineGone(EngineError):
    """The engine of this replica is dead or hangs: nothing it has will come, another may serve."""


class EngineUnavailable(CpRayError):
    """No replica could take the request."""

    status = 503
    kind = "engine_unavailable_error"


class IndexUnavailable(CpRayError):
    """The index is down or late; the request passes through."""


class StoreUnavailable(CpRayError):
    """Redis is down, late or full; callers go on without what it holds."""


class WireError(CpRayError):
    """A message of unknown version, or one that cannot be decoded: counted, treated as a gap."""


class ConfigError(CpRayError):
    """A setting, file or missing package stops the start; the message says what to do."""


class InvariantError(CpRayError):
    """A stated invariant does not hold."""


def to_http(error: CpRayError) -> tuple[int, dict[str, str], dict[str, dict[str, str | None]]]:
    """Status, headers and OpenAI-shaped body of an error."""
    headers = {"retry-after": str(error.retry_after_s)} if isinstance(error, Overloaded) else {}
    if isinstance(error, EngineUnavailable):
        headers = {"retry-after": "1"}
    body = {
        "error": {
            "message": error.message,
            "type": error.kind,
            "param": error.param,
            "code": error.code,
        }
    }
    return error.status, headers, body
