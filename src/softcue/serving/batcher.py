"""The queue before the backbone: a bounded number of examples, and batches of rows of like length, whatever their cue.

There is no timer: whoever is free to run a batch gets one at once, of what is there. The oldest row is always in it.
With it go rows of at most twice or half its length: first those that have waited longer than the age bound, oldest
first, then the nearest in length, so that little is padded; beyond eight rows only while padding stays below 15 %.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from softcue.serving.jobs import Job, Row
from softcue.serving.refusals import Refusal, busy, draining
from softcue.tokens import TOKENS_AT_ONCE

ROWS_READY = 1024  # rows that wait prepared; more would not make better batches
CHARACTERS_AT_ONCE = 100_000  # prepared before the next batch: a few long texts must not keep all others waiting
ROWS_WORTH_PADDING = 8  # so many rows keep a processor busy: further ones must not cost much padding
MOST_PADDED = 1.15  # tokens with padding, by those without
SHORT = 16  # tokens: shorter rows count as this long, their padding costs nothing worth a batch of their own


@dataclass(frozen=True)
class Limits:
    """How much is taken in, and how much goes into a batch."""

    max_in_flight: int = 512  # examples that wait or run
    token_budget: int = TOKENS_AT_ONCE  # of a batch: prompt, text and padding
    max_rows: int = 64  # of a batch
    max_age: float = 5.0  # seconds after which rows go before younger ones of a better length


def chosen(waiting: Sequence[Row], now: float, limits: Limits) -> list[Row]:
    """The next batch, from rows in the order of arrival: the oldest, its ensemble, and what goes well with it."""
    oldest = waiting[0]
    others = [row for row in waiting[1:] if _goes_with(row, oldest)]
    too_old = now - limits.max_age

    def place(row: Row) -> int:  # the sort keeps the order of arrival among equals
        if row.job.group is oldest.job.group:
            return -2
        return -1 if row.job.arrived < too_old else abs(row.length - oldest.length)

    others.sort(key=place)
    batch, longest, total = [oldest], oldest.length, oldest.length
    for row in others[: limits.max_rows - 1]:
        longest, total = max(longest, row.length), total + row.length
        padded = (len(batch) + 1) * longest
        is_wasteful = len(batch) >= ROWS_WORTH_PADDING and padded > MOST_PADDED * total
        if padded > limits.token_budget or (is_wasteful and row.job.group is not oldest.job.group):
            break
        batch.append(row)
    return batch


def _goes_with(row: Row, oldest: Row) -> bool:
    if row.job.decoding != oldest.job.decoding:
        return False
    short, long = sorted((max(SHORT, row.length), max(SHORT, oldest.length)))
    return row.job.group is oldest.job.group or long <= 2 * short


class Batcher:
    """Jobs in, rows out. Anyone may put jobs; one thread prepares and takes rows."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.num_in_flight = 0
        self.is_draining = False
        self._changed = threading.Condition()
        self._arrived: deque[Job] = deque()
        self._waiting: list[Row] = []  # in the order of arrival; only the taking thread changes it

    @property
    def num_waiting(self) -> int:
        """Jobs that are not prepared yet, and rows that are."""
        return len(self._arrived) + len(self._waiting)

    def put(self, jobs: Sequence[Job], seconds: float = 0.0) -> None:
        """Take jobs in, all or none; where there is no room, wait so long for it."""
        limit = self.limits.max_in_flight
        if len(jobs) > limit:
            raise Refusal("too_many", "inputs", f"at most {limit} examples, each cue of an ensemble counted",
                          "send fewer at a time")  # fmt: skip
        with self._changed:
            timeout = None if math.isinf(seconds) else seconds
            has_room = self._changed.wait_for(
                lambda: self.is_draining or self.num_in_flight + len(jobs) <= limit, timeout
            )
            if self.is_draining:
                raise draining()
            if not has_room:
                raise busy(limit)
            self.num_in_flight += len(jobs)
            self._arrived.extend(jobs)
            self._changed.notify_all()

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

    def arrived(self) -> list[Job] | None:
        """Some jobs that came since; waits for one where no row is left to run. None: all is done, none will come."""
        jobs: list[Job] = []
        with self._changed:
            self._changed.wait_for(lambda: self._arrived or self._waiting or self.is_draining)
            size = 0
            while self._arrived and size < CHARACTERS_AT_ONCE and len(self._waiting) + len(jobs) < ROWS_READY:
                jobs.append(self._arrived.popleft())
                size += sum(map(len, jobs[-1].example.texts))
            is_over = self.is_draining and not jobs and not self._waiting
        return None if is_over else jobs

    def add(self, rows: Sequence[Row]) -> None:
        """Prepared rows, in the order of arrival."""
        self._waiting += rows

    def take(self) -> tuple[list[Row], list[Job]]:
        """The next batch, and jobs that are out of time or dropped, none of whose rows is in it."""
        now = time.monotonic()
        gone = {row.job: None for row in self._waiting if row.job.is_dropped or row.job.deadline <= now}
        left = [row for row in self._waiting if row.job not in gone and not row.job.result.done()]
        batch = chosen(left, now, self.limits) if left else []
        taken = set(batch)
        self._waiting = [row for row in left if row not in taken]
        return batch, [job for job in gone if not job.result.done()]
