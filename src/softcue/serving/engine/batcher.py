"""The queue before the backbone: a bounded number of examples, and batches of rows of similar length from any cue.

There is no timer: when an inference thread is free, it takes a batch of the rows that wait. The oldest row is always
in it. Rows of a similar length join it while that saves time: together they share the fixed cost of a pass, but they
are padded to the longest row. The fixed cost is measured (`Backbone.pass_tokens`).
"""

from __future__ import annotations

import math
import threading
import time
from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, islice, takewhile
from operator import attrgetter

from softcue.serving.engine.requests import BatchRow, RequestRow
from softcue.serving.errors import RequestError, busy, draining, inference_ended

ROWS_ENOUGH = 128  # prepared rows; while this many wait, no more are prepared
ROWS_READY = 1024  # prepared rows at most, with those that one thread prepares
CHARACTERS_AT_ONCE = 100_000  # prepared before the next batch: a few long texts must not delay all other rows
NEIGHBOURS = 64  # rows considered on either side in length, unless a batch may be larger


@dataclass(frozen=True)
class Limits:
    """Limits of the queue and of a batch.

    Example:
        softcue.Engine("minilm", "cues", softcue.Limits(max_in_flight=2048, passes_at_once=None))
    """

    max_in_flight: int = 512  # examples that wait or run
    token_budget: int | None = None  # of a batch: prompt, text and padding; None: the device's default
    max_rows: int = 64  # of a batch
    max_age: float = 5.0  # seconds after which rows may go before younger rows of a better length
    passes_at_once: int | None = 1  # batches that run at a time; None: what is fastest on the device


def choose_batch(waiting: Sequence[BatchRow], now: float, limits: Limits, pass_tokens: float) -> list[BatchRow]:
    """The next batch, from rows in the order of arrival: the oldest row, its ensemble, and rows that fit with them.

    The rows of similar length are divided into the batches that take the least time in total; the next batch is the
    one with the oldest row. Once overdue rows can fill a batch, only overdue rows are considered.
    """
    oldest = waiting[0]
    request_row = oldest.request_row
    model, decoding, group = request_row.model, request_row.decoding, request_row.group
    budget = model.tokens_at_once if limits.token_budget is None else limits.token_budget
    num_passes = 1 + (model.readout.max_target_length if decoding else 0)
    candidates = [row for row in islice(waiting, 1, None) if row.request_row.decoding == decoding]
    first = [oldest]
    for row in [row for row in candidates if row.request_row.group is group]:
        longest = max(row.length, *map(_length, first))
        if len(first) + 1 > limits.max_rows or (len(first) + 1) * longest > budget:
            return first
        first.append(row)
    others = [row for row in candidates if row.request_row.group is not group]
    width = max(map(_length, first))

    overdue = list(takewhile(lambda row: row.request_row.arrived < now - limits.max_age, others))
    if len(overdue) >= limits.max_rows or sum(map(_length, overdue)) >= budget:
        others = overdue
    others.reverse()
    others.sort(key=_length)  # among equal lengths the oldest come last, next to the first unit
    place = bisect_right(others, width, key=_length)
    reach = max(NEIGHBOURS, limits.max_rows)
    below, above = others[max(0, place - reach) : place], others[place : place + reach]
    lengths = [*map(_length, below), width, *map(_length, above)]
    sizes = [1] * len(lengths)
    sizes[len(below)] = len(first)
    start, end = _batch_of(len(below), lengths, sizes, num_passes * pass_tokens, limits.max_rows, budget)
    return [*below[start:], *first, *above[: end - len(below) - 1]]


_length, _arrival = attrgetter("length"), attrgetter("request_row.arrived")


def _batch_of(
    place: int, lengths: Sequence[int], sizes: Sequence[int], pass_tokens: float, max_rows: int, budget: int
) -> tuple[int, int]:
    """The batch of one unit, from unit to unit, in the division of units of rising length that takes the least time.

    A batch costs `pass_tokens` plus its tokens with padding. With n rows in the units before unit s and least cost f(s)
    of dividing them, the least cost up to unit e is the least f(s) + pass_tokens + (n(e) - n(s)) * length(e) over all
    starts s of its last batch. A start that is better than an earlier one stays better for all longer units, so
    starts wait in a queue until their time comes, and each enters and leaves it once.
    """
    num_units = len(lengths)
    num_before = [0, *accumulate(sizes)]  # n
    # Where a batch up to each unit may start at the earliest: more rows would be too many, or cost more in padding
    # than a pass of their own. And the end from which on a batch cannot start at a unit any more.
    ends = [num_units + 1] * (num_units + 1)
    earliest = 0
    for end, (width, total) in enumerate(zip(lengths, islice(num_before, 1, None), strict=True), start=1):
        num_rows = total - num_before[earliest]
        while earliest < end - 1 and (
            num_rows > max_rows or num_rows * width > budget or width - lengths[earliest] > pass_tokens
        ):
            ends[earliest] = end
            earliest += 1
            num_rows = total - num_before[earliest]
    least_costs, starts = [0.0], [0] * (num_units + 1)
    queue, times = [0], [0]  # starts, and the end from which on each is the best one
    head = 0
    for end, (width, total) in enumerate(zip(lengths, islice(num_before, 1, None), strict=True), start=1):
        while head + 1 < len(queue) and times[head + 1] <= end:
            head += 1
        starts[end] = best = queue[head]
        cost = least_costs[best] + pass_tokens + (total - num_before[best]) * width
        least_costs.append(cost)
        while True:  # the new start `end` comes behind the last one in the queue
            last = queue[-1]
            # Better once a row more costs more than the difference; at equal cost the larger batch is better.
            limit = (cost - least_costs[last]) / (total - num_before[last])
            time = bisect_right(lengths, limit) + 1
            if time > ends[last]:
                time = ends[last]
            if time <= times[-1] and len(queue) - 1 > head:
                queue.pop()
                times.pop()
                continue
            queue.append(end)
            times.append(time if time > end else end + 1)
            break
    end = num_units
    while (start := starts[end]) > place:
        end = start
    return start, end


class Batcher:
    """A queue of request rows. Any thread may put request rows; the threads that run batches prepare and take them.

    Such a thread calls `take_arrived`, prepares these rows, and gives them to `exchange`, which returns a batch.
    """

    def __init__(self, limits: Limits, pass_tokens: float, num_threads: int = 1) -> None:
        self.limits, self.pass_tokens = limits, pass_tokens
        self.num_in_flight = 0
        self._num_threads = num_threads  # that run batches
        self.num_idle = 0  # of them, waiting in `take_arrived`
        self._num_preparing = 0  # of them, between `take_arrived` and `exchange`
        self.is_draining = False
        self.has_failed = False  # an inference thread has ended with an error: no row will be run
        self.prediction_seconds = 0.0  # of one prediction, lately
        self._unfinished_seconds = 0.0  # of batches since the last prediction was finished
        self._changed = threading.Condition()
        self._arrived: deque[RequestRow] = deque()
        self._in_flight: set[RequestRow] = set()
        self._waiting: list[BatchRow] = []  # prepared, in the order of arrival

    @property
    def num_waiting(self) -> int:
        """Request rows that are not prepared yet, and batch rows that are."""
        return len(self._arrived) + len(self._waiting)

    @property
    def expected_seconds(self) -> float:
        """The time until all examples in flight have their result, from the recent speed."""
        return self.num_in_flight * self.prediction_seconds

    def put(self, rows: Sequence[RequestRow], seconds: float = 0.0) -> None:
        """Add request rows, all or none; wait up to `seconds` for room."""
        limit = self.limits.max_in_flight
        if len(rows) > limit:
            raise RequestError(
                "too_many",
                setting="inputs",
                expected=f"at most {limit} examples, each cue of an ensemble counted",
                fix="send fewer at a time",
            )
        with self._changed:
            timeout = None if math.isinf(seconds) else seconds
            has_room = self._changed.wait_for(
                lambda: self.is_draining or self.has_failed or self.num_in_flight + len(rows) <= limit, timeout
            )
            if self.has_failed:
                raise inference_ended()
            if self.is_draining:
                raise draining()
            if not has_room:
                raise busy(limit, expected_seconds=self.expected_seconds)
            now = time.monotonic()
            for row in rows:  # not when they were made: a long request waits here for room
                row.arrived = now
            self.num_in_flight += len(rows)
            self._in_flight.update(rows)
            self._arrived.extend(rows)
            self._changed.notify_all()

    def record_speed(self, num_predictions: int, seconds: float) -> None:
        """Update the time of one prediction. A faster time counts at once, a slower one by a fifth.

        The time of batches that finish nothing, as those of a long text's first windows, counts with the next one.
        """
        with self._changed:
            self._unfinished_seconds += seconds
            if not num_predictions:
                return
            latest, average = self._unfinished_seconds / num_predictions, self.prediction_seconds
            self._unfinished_seconds = 0.0
            self.prediction_seconds = min(latest, 0.8 * average + 0.2 * latest) if average else latest

    def drain(self) -> None:
        """Accept nothing new; rows that are here are finished."""
        with self._changed:
            self.is_draining = True
            self._changed.notify_all()

    def fail(self) -> list[RequestRow]:
        """Accept nothing new, because nothing will be run any more; returns all rows that have no result yet."""
        with self._changed:
            self.has_failed = True
            self._changed.notify_all()
            return list(self._in_flight)

    def release(self, *rows: RequestRow) -> None:
        """Count request rows as finished."""
        with self._changed:
            self._in_flight.difference_update(rows)
            self.num_in_flight -= len(rows)
            self._changed.notify_all()

    def take_arrived(self) -> list[RequestRow] | None:
        """Some request rows to prepare; waits for one if no row is left to run. None: there will be none any more.

        Few rows are divided among idle threads and the caller, and of many, others than the caller get a part too.
        """
        rows: list[RequestRow] = []
        with self._changed:
            self.num_idle += 1
            self._changed.wait_for(
                lambda: (
                    self._arrived or self._waiting or self.has_failed or (self.is_draining and not self._num_preparing)
                )
            )
            self.num_idle -= 1
            if self.has_failed or not (self._arrived or self._waiting):
                return None
            self._num_preparing += 1
            if len(self._waiting) >= ROWS_ENOUGH:  # only rows that are over, which make room for others
                now = time.monotonic()
                rows = [row for row in self._arrived if row.is_dropped or row.deadline <= now]
                if rows:
                    over = set(rows)
                    self._arrived = deque(row for row in self._arrived if row not in over)
                return rows
            num_characters = 0
            part = max(self.limits.max_rows, -(-self.num_waiting // self._num_threads))
            most = min(ROWS_READY, part, self._share()) - len(self._waiting)
            while self._arrived and num_characters < CHARACTERS_AT_ONCE:
                # The cues of an ensemble are prepared together: they may read the same sentence vector.
                if len(rows) >= most and not (rows and self._arrived[0].group is rows[-1].group):
                    break
                rows.append(self._arrived.popleft())
                num_characters += sum(map(len, rows[-1].example.texts))
        return rows

    def exchange(self, prepared: Sequence[BatchRow]) -> tuple[list[BatchRow], list[RequestRow]]:
        """Add prepared rows; return the next batch, and request rows that are over, none of whose rows is in it.

        Few rows are divided among idle threads and the caller.
        """
        now = time.monotonic()
        with self._changed:
            self._num_preparing -= 1
            self._waiting += prepared
            self._waiting.sort(key=_arrival)  # another thread may have prepared later rows meanwhile
            waiting = [row for row in self._waiting if row.request_row.result is None]
            over = {
                row.request_row: None
                for row in waiting
                if row.request_row.is_dropped or row.request_row.deadline <= now
            }
            left = [row for row in waiting if row.request_row not in over] if over else waiting
            limits = replace(self.limits, max_rows=min(self.limits.max_rows, self._share())) if left else self.limits
            batch = choose_batch(left, now, limits, self.pass_tokens) if left else []
            taken = set(batch)
            self._waiting = [row for row in left if row not in taken]
            self._changed.notify_all()
        return batch, list(over)

    def _share(self) -> int:
        """The rows that wait, divided by the idle threads and the caller, rounded up."""
        return -(-self.num_waiting // (self.num_idle + 1))
