"""Errors of requests: a short code for each, and the HTTP status of each code.

An error message quotes neither texts nor values that the client sent. Error bodies stay small, and logs hold no texts.
"""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

from softcue.errors import SoftcueError

STATUSES = {
    "malformed": 400,  # not JSON
    "empty": 400,  # no body, or no inputs
    "unauthorised": 401,
    "no_admin_key": 403,  # the server has none, so nobody may change its cues
    "unknown_task": 404,
    "slow_head": 408,  # request line and headers did not come in time
    "wrong_backbone": 409,
    "too_large": 413,  # bytes
    "too_many": 413,  # inputs
    "long_address": 414,
    "media_type": 415,
    "invalid": 422,  # JSON that does not fit the schema, or an input that the cue cannot read
    "too_long": 422,  # a text that would have to be cut
    "broken_cue": 422,
    "busy": 429,
    "large_head": 431,  # request line and headers
    "loading": 503,
    "draining": 503,
    "failed": 503,  # the forward pass over these rows raised an error, twice
    "deadline": 504,
}
RETRY_AFTER = {"busy": 1, "loading": 2, "draining": 2, "failed": 1}  # seconds, for temporary errors
MAX_RETRY_AFTER = 10
MESSAGE_LIMIT = 400
MAX_NAMES = 5  # cues that a message lists


class RequestError(SoftcueError):
    """A request, or one of its inputs, that gets no prediction.

    Example:
        >>> error = RequestError("too_long", setting="text", expected="at most 128 tokens", fix="shorten it")
        >>> error.status, error.message
        (422, 'text: expected at most 128 tokens; shorten it')
        >>> RequestError("loading", setting="server", problem="it is loading", fix="try again").message
        'server: it is loading; try again'
    """

    def __init__(
        self,
        code: str,
        *,
        setting: str,
        fix: str,
        expected: str = "",
        problem: str = "",
        retry_after: int | None = None,
    ) -> None:
        """Pass `expected`, or `problem` where a statement is clearer than what was expected."""
        super().__init__(setting=setting, got=code, expected=expected or problem, fix=fix)
        self.code = code
        self.problem = problem or f"expected {expected}"
        self.retry_after = retry_after or RETRY_AFTER.get(code)  # seconds
        self.status = STATUSES[code]

    @property
    def message(self) -> str:
        """The problem and the next step, without the value received."""
        return f"{self.setting}: {self.problem}; {self.fix}"[:MESSAGE_LIMIT]

    def __str__(self) -> str:
        """The message and the code."""
        return f"{self.message} ({self.code})"

    def copy(self) -> RequestError:
        """A new error with the same content: raising a stored exception again would collect tracebacks."""
        return RequestError(
            self.code, setting=self.setting, problem=self.problem, fix=self.fix, retry_after=self.retry_after
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


def unknown_task(name: str, loaded_names: Iterable[str], problem: str = "no loaded cue has this name") -> RequestError:
    """No loaded cue has the requested name. The message has names of loaded cues, and not the requested one.

    Example:
        >>> unknown_task("ticket", ["tickets", "urgency"]).message
        "task: no loaded cue has this name; did you mean 'tickets'? loaded: tickets, urgency"
        >>> unknown_task("ticket", []).message
        'task: no loaded cue has this name; no cue is loaded at all, see "broken" in GET /v1/tasks'
    """
    names = sorted(loaded_names)
    close = get_close_matches(name[:MESSAGE_LIMIT], names, n=1)
    hint = f"did you mean '{close[0]}'? " if close else ""
    more = f" and {len(names) - MAX_NAMES} more, see GET /v1/tasks" if len(names) > MAX_NAMES else ""
    fix = f"{hint}loaded: {', '.join(names[:MAX_NAMES])}{more}"
    if not names:
        fix = 'no cue is loaded at all, see "broken" in GET /v1/tasks'
    return RequestError("unknown_task", setting="task", problem=problem, fix=fix)


def no_admin_key() -> RequestError:
    """Nobody may load or unload cues, because the server was started without an admin key."""
    return RequestError(
        "no_admin_key",
        setting="server",
        problem="no admin key is configured, so cues cannot be loaded or unloaded",
        fix="start it with the environment variable SOFTCUE_ADMIN_KEY or with --admin-key-file FILE",
    )


def busy(limit: int, unit: str = "examples in flight", expected_seconds: float = 0.0) -> RequestError:
    """There is no room for more work. The client should come back when half of the current work is done.

    Example:
        >>> busy(512, expected_seconds=12.4).retry_after
        6
    """
    problem = f"it has no room for this request beside those it works on; its limit is {limit} {unit}"
    return _try_later(problem, expected_seconds)


def too_slow(deadline: float, expected_seconds: float) -> RequestError:
    """The work that is already accepted would take longer than the deadline of a new request.

    Example:
        >>> too_slow(30, 41.7).message
        'server: the work it has accepted takes about 42 s, longer than the deadline of 30 s; try again in 10 s'
    """
    problem = (
        f"the work it has accepted takes about {expected_seconds:.0f} s, longer than the deadline of {deadline:g} s"
    )
    return _try_later(problem, expected_seconds)


def _try_later(problem: str, expected_seconds: float) -> RequestError:
    retry_after = min(MAX_RETRY_AFTER, max(RETRY_AFTER["busy"], round(expected_seconds / 2)))
    return RequestError(
        "busy", setting="server", problem=problem, fix=f"try again in {retry_after} s", retry_after=retry_after
    )


def deadline_exceeded() -> RequestError:
    """The deadline came before the prediction."""
    return RequestError(
        "deadline",
        setting="server",
        problem="the deadline passed before the prediction was there",
        fix="try again, or send fewer or shorter inputs",
    )


def load_deadline_exceeded() -> RequestError:
    """The folder of a cue did not answer in time."""
    return RequestError(
        "deadline",
        setting="cue folder",
        problem="the cue was not loaded in time; what was loaded before stays",
        fix="check the file system of the cues folder, and see GET /v1/tasks",
    )


def inference_ended() -> RequestError:
    """An inference thread has ended, so that no request will have a prediction before a restart."""
    return RequestError(
        "failed", setting="server", problem="an inference thread has ended", fix="see its log, then restart it"
    )


def draining() -> RequestError:
    """The engine finishes its work and accepts nothing new."""
    return RequestError(
        "draining",
        setting="server",
        problem="it is stopping and accepts nothing new",
        fix="try again when it has restarted, or call another server",
    )


def pass_failed() -> RequestError:
    """The forward pass raised an error that the client cannot fix."""
    return RequestError(
        "failed",
        setting="server",
        problem="the model failed on this input",
        fix="try again; the server's log has the reason",
    )
