"""Errors of requests: a short code for each, and the HTTP status of each code.

An error message never quotes what the client sent. Error bodies stay small, and logs hold no texts.
"""

from __future__ import annotations

from softcue.errors import SoftcueError

STATUSES = {
    "malformed": 400,  # not JSON
    "empty": 400,  # no body, or no inputs
    "unauthorised": 401,
    "unknown_task": 404,
    "wrong_backbone": 409,
    "too_large": 413,  # bytes
    "too_many": 413,  # inputs
    "media_type": 415,
    "invalid": 422,  # JSON that does not fit the schema, or an input that the cue cannot read
    "too_long": 422,  # a text that would have to be cut
    "broken_cue": 422,
    "busy": 429,
    "loading": 503,
    "draining": 503,
    "failed": 503,  # the forward pass over these rows raised an error, twice
    "deadline": 504,
}
RETRY_AFTER = {"busy": 1, "loading": 2, "draining": 2, "failed": 1}  # seconds, for temporary errors
MAX_RETRY_AFTER = 10
MESSAGE_LIMIT = 400


class RequestError(SoftcueError):
    """A request, or one of its inputs, that gets no prediction.

    Example:
        >>> error = RequestError("too_long", setting="text", expected="at most 128 tokens", fix="shorten it")
        >>> error.status, error.message
        (422, 'text: expected at most 128 tokens; shorten it')
    """

    def __init__(self, code: str, *, setting: str, expected: str, fix: str, retry_after: int | None = None) -> None:
        super().__init__(setting=setting, got=code, expected=expected, fix=fix)
        self.code = code
        self.retry_after = retry_after or RETRY_AFTER.get(code)  # seconds
        self.status = STATUSES[code]

    @property
    def message(self) -> str:
        """The expected value and the next step, without the value received."""
        return f"{self.setting}: expected {self.expected}; {self.fix}"[:MESSAGE_LIMIT]

    def copy(self) -> RequestError:
        """A new error with the same content: raising a stored exception again would collect tracebacks."""
        return RequestError(
            self.code, setting=self.setting, expected=self.expected, fix=self.fix, retry_after=self.retry_after
        )

    def as_dict(self) -> dict[str, object]:
        """The error for JSON.

        Example:
            >>> RequestError("busy", setting="server", expected="room", fix="try again").as_dict()
            {'status': 429, 'code': 'busy', 'message': 'server: expected room; try again'}
        """
        return {"status": self.status, "code": self.code, "message": self.message}


def invalid(error: SoftcueError) -> RequestError:
    """A user's error as the error of one input.

    Example:
        >>> from softcue.errors import DataError
        >>> invalid(DataError(setting="row 1", got="a secret", expected="two texts", fix="pass a pair")).message
        'row 1: expected two texts; pass a pair'
    """
    return RequestError("invalid", setting=error.setting, expected=error.expected, fix=error.fix)


def unknown_task() -> RequestError:
    """No loaded cue has the requested name."""
    return RequestError("unknown_task", setting="task", expected="the name of a loaded cue", fix="see GET /v1/tasks")


def busy(limit: int, unit: str = "examples in flight", expected_seconds: float = 0.0) -> RequestError:
    """There is no room for more work. The client should come back when half of the current work is done.

    Example:
        >>> busy(512, expected_seconds=12.4).retry_after
        6
    """
    retry_after = min(MAX_RETRY_AFTER, max(RETRY_AFTER["busy"], round(expected_seconds / 2)))
    return RequestError(
        "busy", setting="server", expected=f"fewer than {limit} {unit}", fix="try again later", retry_after=retry_after
    )


def deadline_exceeded() -> RequestError:
    """The deadline came before the prediction."""
    return RequestError(
        "deadline", setting="server", expected="a prediction in time", fix="try again with fewer inputs"
    )


def draining() -> RequestError:
    """The engine finishes its work and accepts nothing new."""
    return RequestError(
        "draining", setting="server", expected="one that is not stopping", fix="try another, or try again"
    )


def pass_failed() -> RequestError:
    """The forward pass raised an error that the client cannot fix."""
    return RequestError(
        "failed", setting="server", expected="a pass without an error", fix="try again; the server's log has the reason"
    )
