"""The queue before the backbone: a bounded number of examples, and batches of rows of like length, whatever their cue.

There is no timer: whoever is free to run a batch gets one at once, of what is there. The oldest row is always in it,
and with it go rows near it in length, as many as are worth it: together they share what a pass costs by itself, but are
padded to the longest. Where the balance lies is measured (`Backbone.pass_tokens`).
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from softcue.serving.engine.requests import RequestRow, Row
from softcue.serving.errors import RequestError, busy, draining

ROWS_ENOUGH, ROWS_READY = 128, 1024  # prepared rows: with more no others are prepared, so many are at most
CHARACTERS_AT_ONCE = 100_000  # prepared before the next batch: a few long texts must not keep all others waiting
NEIGHBOURS = 64  # rows on either side in length that are looked at for a batch, if it may not be larger


@dataclass(frozen=True)
class Limits:
    """How much is taken in, and how much goes into a batch."""

    max_in_flight: int = 512  # examples that wait or run
    token_budget: int | None = None  # of a batch: prompt, text and padding; None is what suits the device
    max_rows: int = 64  # of a batch
    max_age: float = 5.0  # seconds after which rows may go before younger ones of a better length


def chosen(waiting: Sequence[Row], now: float, limits: Limits, pass_tokens: float) -> list[Row]:
    """The next batch, from rows in the order of arrival: the oldest, its ensemble, and what goes well with them.

    The rows near them in length are divided into batches that take the least time altogether; theirs is the next. Once
    a batch can be filled with rows beyond the age bound, only those are looked at.
    """
    oldest = waiting[0]
    budget = oldest.job.model.tokens_at_once if limits.token_budget is None else limits.token_budget
    num_passes = 1 + (oldest.job.model.readout.max_target_length if oldest.job.decoding else 0)
    alike = [row for row in waiting if row.job.decoding == oldest.job.decoding]

    def fits(num_rows: int, longest: int) -> bool:
        return num_rows <= limits.max_rows and num_rows * longest <= budget

    own = _Unit(oldest.length, [oldest])
    for row in alike[1:]:
        if row.job.group is oldest.job.group:
            if not fits(len(own.rows) + 1, longest := max(own.length, row.length)):
                return own.rows
            own = _Unit(longest, [*own.rows, row])

    others = [_Unit(row.length, [row]) for row in alike if row.job.group is not oldest.job.group]
    overdue = [unit for unit in others if unit.rows[0].job.arrived < now - limits.max_age]
    if len(overdue) >= limits.max_rows or sum(map(_length, overdue)) >= budget:
        others = overdue
    others.reverse()
    others.sort(key=_length)  # of equals the oldest come last, next to their own
    place = bisect_right(others, own.length, key=_length)
    reach = max(NEIGHBOURS, limits.max_rows)
    below, above = others[max(0, place - reach) : place], others[place : place + reach]
    return _divided(below, own, above, num_passes * pass_tokens, fits)


class _Unit(NamedTuple):
    """Rows that stay together."""

    length: int
    rows: list[Row]


def _length(unit: _Unit) -> int:
    return unit.length


def _divided(
    below: Sequence[_Unit], own: _Unit, above: Sequence[_Unit], pass_tokens: float, fits: Callable[[int, int], bool]
) -> list[Row]:
    """The batch of a unit among its neighbours in length, divided so that all of them take the least time.

    A batch takes `pass_tokens` and its tokens with padding. What the units up to each one take at least is found from
    what those before its batch take.
    """
    units = [*below, own, *above]
    least, begins = [0.0], []
    for end, (width, _) in enumerate(units, 1):
        best, begin, num_rows = math.inf, end - 1, 0
        for start in range(end - 1, -1, -1):
            num_rows += len(units[start].rows)
            is_alone = start == end - 1
            # Further apart than a pass of their own would cost them, rows never share one.
            if not is_alone and (not fits(num_rows, width) or width - units[start].length > pass_tokens):
                break
            taken = least[start] + pass_tokens + num_rows * width
            if taken <= best:  # of equals the larger batch
                best, begin = taken, start
        least.append(best)
        begins.append(begin)
    end = len(units)
    while (begin := begins[end - 1]) > len(below):
        end = begin
    return [row for unit in units[begin:end] for row in unit.rows]


class Batcher:
    """Jobs in, rows out. Anyone may put jobs; one thread prepares and takes rows."""

    def __init__(self, limits: Limits, pass_tokens: float) -> None:
        self.limits, self.pass_tokens = limits, pass_tokens
        self.num_in_flight = 0
        self.is_draining = False
        self.answer_seconds = 0.0  # at the pace of late
        self._changed = threading.Condition()
        self._arrived: deque[RequestRow] = deque()
        self._waiting: list[Row] = []  # in the order of arrival; only the taking thread changes it

    @property
    def num_waiting(self) -> int:
        """Jobs that are not prepared yet, and rows that are."""
        return len(self._arrived) + len(self._waiting)

    @property
    def expected_seconds(self) -> float:
        """How long what waits and runs will take, at the pace of late."""
        return self.num_in_flight * self.answer_seconds

    def put(self, jobs: Sequence[RequestRow], seconds: float = 0.0) -> None:
        """Take jobs in, all or none; where there is no room, wait so long for it."""
        limit = self.limits.max_in_flight
        if len(jobs) > limit:
            raise RequestError(
                "too_many",
                setting="inputs",
                expected=f"at most {limit} examples, each cue of an ensemble counted",
                fix="send fewer at a time",
            )
        with self._changed:
            timeout = None if math.isinf(seconds) else seconds
            has_room = self._changed.wait_for(
                lambda: self.is_draining or self.num_in_flight + len(jobs) <= limit, timeout
            )
            if self.is_draining:
                raise draining()
            if not has_room:
                raise busy(limit, expected_seconds=self.expected_seconds)
            self.num_in_flight += len(jobs)
            self._arrived.extend(jobs)
            self._changed.notify_all()

    def answered(self, num_answers: int, seconds: float) -> None:
        """So many answers in this time, everything counted."""
        now, known = seconds / num_answers, self.answer_seconds
        self.answer_seconds = min(now, 0.8 * known + 0.2 * now) if known else now  # a slow moment is no pace

    def drain(self) -> None:
        """Take nothing new; what is here is finished."""
        with self._changed:
            self.is_draining = True
            self._changed.notify_all()

    def release(self) -> None:
        """One job has its result."""
        with self._changed:
            self.num_in_flight -= 1
            self._changed.notify_all()

    def arrived(self) -> list[RequestRow] | None:
        """Some jobs that came since; waits for one where no row is left to run. None: all is done, none will come."""
        jobs: list[RequestRow] = []
        with self._changed:
            self._changed.wait_for(lambda: self._arrived or self._waiting or self.is_draining)
            size = 0
            if len(self._waiting) >= ROWS_ENOUGH:  # only those that give their place back
                now = time.monotonic()
                jobs = [job for job in self._arrived if job.is_gone(now)]
                self._arrived = deque(job for job in self._arrived if job not in jobs)
                return jobs
            while self._arrived and size < CHARACTERS_AT_ONCE and len(self._waiting) + len(jobs) < ROWS_READY:
                jobs.append(self._arrived.popleft())
                size += sum(map(len, jobs[-1].example.texts))
            is_over = self.is_draining and not jobs and not self._waiting
        return None if is_over else jobs

    def add(self, rows: Sequence[Row]) -> None:
        """Prepared rows, in the order of arrival."""
        self._waiting += rows

    def take(self) -> tuple[list[Row], list[RequestRow]]:
        """The next batch, and jobs that are out of time or dropped, none of whose rows is in it."""
        now = time.monotonic()
        gone = {row.job: None for row in self._waiting if row.job.is_gone(now)}
        left = [row for row in self._waiting if row.job not in gone and not row.job.result.done()]
        batch = chosen(left, now, self.limits, self.pass_tokens) if left else []
        taken = set(batch)
        self._waiting = [row for row in left if row not in taken]
        return batch, [job for job in gone if not job.result.done()]
