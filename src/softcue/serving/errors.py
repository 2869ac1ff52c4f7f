"""Everything that gets no answer, by a short code, and the HTTP status of each code.

What a client sent is never part of what it is told: bodies of errors stay small, and logs free of texts.
"""

from __future__ import annotations

from collections.abc import Sequence

from softcue.errors import SoftcueError

STATUSES = {
    "malformed": 400,  # no JSON
    "empty": 400,  # no body, no inputs
    "unauthorised": 401,
    "unknown_task": 404,
    "wrong_backbone": 409,
    "too_large": 413,  # bytes
    "too_many": 413,  # inputs
    "media_type": 415,
    "invalid": 422,  # readable, but it makes no sense
    "too_long": 422,  # a text that would have to be cut
    "broken_cue": 422,
    "busy": 429,
    "loading": 503,
    "draining": 503,
    "failed": 503,  # the pass over these rows raised an error, twice
    "deadline": 504,
}
RETRY_AFTER = {"busy": 1, "loading": 2, "draining": 2, "failed": 1}  # seconds, for codes that pass
MOST_RETRY_AFTER = 10
MESSAGE_LIMIT = 400


class RequestError(SoftcueError):
    """A request or one of its items that gets no answer.

    Example:
        >>> refusal = RequestError("too_long", setting="text", expected="at most 128 tokens", fix="shorten it")
        >>> refusal.status, refusal.message
        (422, 'text: expected at most 128 tokens; shorten it')
    """

    def __init__(self, code: str, *, setting: str, expected: str, fix: str, retry_after: int | None = None) -> None:
        super().__init__(setting=setting, got=code, expected=expected, fix=fix)
        self.code = code
        self.retry_after = retry_after or RETRY_AFTER.get(code)  # seconds
        self.status = STATUSES[code]

    @property
    def message(self) -> str:
        """What was expected and what to do, without the value received."""
        return f"{self.setting}: expected {self.expected}; {self.fix}"[:MESSAGE_LIMIT]

    def again(self) -> RequestError:
        """The same, for someone else: an exception that is kept would gather tracebacks."""
        return RequestError(
            self.code, setting=self.setting, expected=self.expected, fix=self.fix, retry_after=self.retry_after
        )

    def as_dict(self) -> dict[str, object]:
        """For JSON.

        Example:
            >>> RequestError("busy", setting="server", expected="room", fix="try again").as_dict()
            {'status': 429, 'code': 'busy', 'message': 'server: expected room; try again'}
        """
        return {"status": self.status, "code": self.code, "message": self.message}


def invalid(error: SoftcueError) -> RequestError:
    """A user's error as a refusal of the item that has it.

    Example:
        >>> from softcue.errors import DataError
        >>> invalid(DataError(setting="row 1", got="a secret", expected="two texts", fix="pass a pair")).message
        'row 1: expected two texts; pass a pair'
    """
    return RequestError("invalid", setting=error.setting, expected=error.expected, fix=error.fix)


def unknown_task() -> RequestError:
    """No loaded cue has the name asked for."""
    return RequestError("unknown_task", setting="task", expected="the name of a loaded cue", fix="see GET /v1/tasks")


def busy(limit: int, what: str = "examples in flight", expected_seconds: float = 0.0) -> RequestError:
    """There is no room for more; there should be when half of what takes so long is done.

    Example:
        >>> busy(512, expected_seconds=12.4).retry_after
        6
    """
    retry_after = min(MOST_RETRY_AFTER, max(RETRY_AFTER["busy"], round(expected_seconds / 2)))
    return RequestError(
        "busy", setting="server", expected=f"fewer than {limit} {what}", fix="try again later", retry_after=retry_after
    )


def deadline_exceeded() -> RequestError:
    """The deadline came before the answer."""
    return RequestError("deadline", setting="server", expected="an answer in time", fix="try again with fewer inputs")


def check_characters(texts: Sequence[str], limit: int) -> None:
    """Refuse texts that are too long before anything is done with them."""
    if sum(map(len, texts)) > limit:
        raise RequestError(
            "too_long", setting="text", expected=f"at most {limit:,} characters", fix="shorten or split it"
        )


def draining() -> RequestError:
    """The engine finishes what it has and takes nothing new."""
    return RequestError(
        "draining", setting="server", expected="one that is not stopping", fix="try another, or try again"
    )
