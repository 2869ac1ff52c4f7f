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


class Refusal(SoftcueError):  # noqa: N818 - it is a result as often as it is raised
    """A request or one of its items that gets no answer.

    Example:
        >>> refusal = Refusal("too_long", "text", "at most 128 tokens", "shorten it")
        >>> refusal.status, refusal.message
        (422, 'text: expected at most 128 tokens; shorten it')
    """

    def __init__(
        self, code: str, setting: str, expected: str, next_step: str, retry_after: int | None = None
    ) -> None:  # fmt: skip
        super().__init__(setting, code, expected, next_step)
        self.code = code
        self.retry_after = retry_after or RETRY_AFTER.get(code)  # seconds
        self.status = STATUSES[code]

    @property
    def message(self) -> str:
        """What was expected and what to do, without the value received."""
        return f"{self.setting}: expected {self.expected}; {self.next_step}"[:MESSAGE_LIMIT]

    def again(self) -> Refusal:
        """The same, for someone else: an exception that is kept would gather tracebacks."""
        return Refusal(self.code, self.setting, self.expected, self.next_step, self.retry_after)

    def as_dict(self) -> dict[str, object]:
        """For JSON.

        Example:
            >>> Refusal("busy", "server", "room", "try again").as_dict()
            {'status': 429, 'code': 'busy', 'message': 'server: expected room; try again'}
        """
        return {"status": self.status, "code": self.code, "message": self.message}


def invalid(error: SoftcueError) -> Refusal:
    """A user's error as a refusal of the item that has it.

    Example:
        >>> from softcue.errors import DataError
        >>> invalid(DataError("row 1", "a secret", "two texts", "pass a pair")).message
        'row 1: expected two texts; pass a pair'
    """
    return Refusal("invalid", error.setting, error.expected, error.next_step)


def unknown_task() -> Refusal:
    """No loaded cue has the name asked for."""
    return Refusal("unknown_task", "task", "the name of a loaded cue", "see GET /v1/tasks")


def busy(limit: int, what: str = "examples in flight", expected_seconds: float = 0.0) -> Refusal:
    """There is no room for more; there should be when half of what takes so long is done.

    Example:
        >>> busy(512, expected_seconds=12.4).retry_after
        6
    """
    retry_after = min(MOST_RETRY_AFTER, max(RETRY_AFTER["busy"], round(expected_seconds / 2)))
    return Refusal("busy", "server", f"fewer than {limit} {what}", "try again later", retry_after)


def too_late() -> Refusal:
    """The deadline came before the answer."""
    return Refusal("deadline", "server", "an answer in time", "try again with fewer inputs")


def check_characters(texts: Sequence[str], limit: int) -> None:
    """Refuse texts that are too long before anything is done with them."""
    if sum(map(len, texts)) > limit:
        raise Refusal("too_long", "text", f"at most {limit:,} characters", "shorten or split it")


def draining() -> Refusal:
    """The engine finishes what it has and takes nothing new."""
    return Refusal("draining", "server", "one that is not stopping", "try another, or try again")
