from __future__ import annotations

import itertools
import random
import threading
import time
from collections.abc import Iterator, Sequence
from typing import Any

import pytest
from serving_cues import TITLES
from tiny import tiny
from toy import EXAMPLES, make_model

from softcue.backbones.loading.autotune import PASS_TOKENS
from softcue.serving.engine.batcher import Batcher, Limits, _batch_of, choose_batch
from softcue.serving.engine.requests import BatchRow, Options, RequestRow
from softcue.serving.errors import RequestError
from softcue.types import TokenizedRow


def request_row(arrived: float = 0.0, **more: Any) -> RequestRow:
    model = make_model(tiny("bert"))
    return RequestRow(None, model, EXAMPLES[0], Options(), arrived=arrived, **more)  # type: ignore[arg-type]


def rows(*lengths: int, arrived: float = 0.0) -> list[BatchRow]:
    return [
        BatchRow(request_row(arrived + number * 1e-3), 0, TokenizedRow((), None, 0), length)
        for number, length in enumerate(lengths)
    ]


def lengths(batch: Sequence[BatchRow]) -> list[int]:
    return sorted(row.length for row in batch)


def test_length_counts_the_prompt() -> None:
    assert BatchRow.of(request_row(), 0, TokenizedRow((1, 2, 3), None, 0)).length == 3 + 4


def test_length_leaves_out_a_prompt_that_is_run_once_for_all_rows() -> None:
    model = make_model(tiny("gpt2"))
    assert BatchRow.of(RequestRow(None, model, EXAMPLES[0], Options()), 0, TokenizedRow((1, 2, 3), None, 0)).length == 3  # type: ignore[arg-type]


@pytest.mark.parametrize(("case", "settings"), [("m-idpg-phm", {}), ("prompt-tuning", {"insert_at": "end"})])
def test_length_counts_a_prompt_that_every_row_has_by_itself(case: str, settings: dict[str, Any]) -> None:
    model = make_model(tiny("gpt2"), case, readout={"name": "label-words"}, **settings)
    assert (
        BatchRow.of(RequestRow(None, model, EXAMPLES[0], Options()), 0, TokenizedRow((1, 2, 3), None, 0)).length
        == 3 + 4
    )  # type: ignore[arg-type]


def test_length_counts_what_may_be_written() -> None:
    model = make_model(tiny("gpt2"), task=TITLES, readout={"max_new_tokens": 6})
    writing = RequestRow(None, model, EXAMPLES[0], Options())  # type: ignore[arg-type]
    assert BatchRow.of(writing, 0, TokenizedRow((1, 2, 3), None, 0)).length == 3 + 4 + 6


def test_rows_arrive_when_they_are_put_and_not_when_they_are_made() -> None:
    batcher = Batcher(Limits(), PASS_TOKENS)
    made_first, made_later = request_row(arrived=1.0), request_row(arrived=2.0)
    batcher.put([made_later])
    batcher.put([made_first])
    assert 2.0 < made_later.arrived <= made_first.arrived


def test_oldest_row_goes_with_those_nearest_in_length() -> None:
    limits = Limits(max_rows=3)
    assert lengths(choose_batch(rows(40, 90, 42, 80, 39, 500), 0.0, limits, PASS_TOKENS)) == [39, 40, 42]


def test_token_budget_counts_padding() -> None:
    assert lengths(choose_batch(rows(40, 40, 50, 40), 0.0, Limits(token_budget=150), PASS_TOKENS)) == [40, 40, 40]
    assert lengths(choose_batch(rows(40, 50, 50, 40), 0.0, Limits(token_budget=149), PASS_TOKENS)) == [40, 40]


def test_a_row_longer_than_the_budget_runs_alone() -> None:
    assert lengths(choose_batch(rows(500, 500), 0.0, Limits(token_budget=100), PASS_TOKENS)) == [500]


def test_rows_share_what_a_pass_costs_unless_padding_costs_more() -> None:
    waiting = rows(100, 8, 90, 250, 30)
    assert lengths(choose_batch(waiting, 0.0, Limits(), pass_tokens=0.0)) == [100]
    assert lengths(choose_batch(waiting, 0.0, Limits(), pass_tokens=50.0)) == [90, 100]
    assert lengths(choose_batch(waiting, 0.0, Limits(token_budget=16384), pass_tokens=10_000.0)) == [
        8,
        30,
        90,
        100,
        250,
    ]
    assert (
        len(choose_batch(rows(*[40] * 20, *[43] * 20), 0.0, Limits(), pass_tokens=0.0)) == 20
    )  # of one length at any cost


def divisions(waiting: Sequence[BatchRow]) -> Iterator[list[list[BatchRow]]]:
    """All ways to cut rows into runs."""
    for cuts in itertools.product([False, True], repeat=len(waiting) - 1):
        runs = [[waiting[0]]]
        for row, is_cut in zip(waiting[1:], cuts, strict=True):
            runs.append([row]) if is_cut else runs[-1].append(row)
        yield runs


@pytest.mark.parametrize("pass_tokens", [0.0, 7.0, 30.0, 200.0, 5000.0])
@pytest.mark.parametrize("seed", range(5))
def test_all_rows_together_take_the_least_time(pass_tokens: float, seed: int) -> None:
    draws, limits = random.Random(seed), Limits(max_rows=5, token_budget=400)
    left = rows(*(draws.randint(5, 120) for _ in range(9)))

    def time_of(runs: Sequence[Sequence[BatchRow]]) -> float:
        return sum(pass_tokens + len(run) * max(lengths(run)) for run in runs)

    def is_allowed(runs: Sequence[Sequence[BatchRow]]) -> bool:
        return all(len(run) == 1 or (len(run) <= 5 and len(run) * max(lengths(run)) <= 400) for run in runs)

    in_order = sorted(left, key=lambda row: row.length)
    least = min(map(time_of, filter(is_allowed, divisions(in_order))))
    batches = []
    while left:
        batches.append(choose_batch(left, 0.0, limits, pass_tokens))
        assert left[0] in batches[-1]
        left = [row for row in left if row not in batches[-1]]
    assert is_allowed(batches)
    assert time_of(batches) == pytest.approx(least)


def least_time(units: Sequence[tuple[int, int]], limits: Limits, pass_tokens: float) -> float:
    """The least time of units of rising length, (length, rows) each: every start of every batch is tried."""
    budget = limits.token_budget or 0
    costs = [0.0]
    for end in range(1, len(units) + 1):
        width, options = units[end - 1][0], []
        for start in range(end - 1, -1, -1):
            num_rows = sum(size for _, size in units[start:end])
            fits = num_rows <= limits.max_rows and num_rows * width <= budget
            if start < end - 1 and (not fits or width - units[start][0] > pass_tokens):
                break
            options.append(costs[start] + pass_tokens + num_rows * width)
        costs.append(min(options))
    return costs[-1]


@pytest.mark.parametrize("seed", range(40))
def test_many_rows_are_divided_so_that_all_take_the_least_time(seed: int) -> None:
    draws = random.Random(seed)
    limits = Limits(max_rows=draws.choice([3, 8, 64]), token_budget=draws.choice([200, 1024, 16384]))
    pass_tokens = draws.choice([0.0, 3.5, 25.0, 150.0, 4000.0])
    longest = draws.choice([12, 60, 400])
    units = sorted((draws.randint(3, longest), 1) for _ in range(60))
    place = draws.randrange(60)
    if draws.random() < 0.5:
        units[place] = (units[place][0], 3)  # an ensemble
    lengths, sizes = [length for length, _ in units], [size for _, size in units]
    start, end = _batch_of(place, lengths, sizes, pass_tokens, limits.max_rows, limits.token_budget or 0)
    assert start <= place < end
    batch = units[start:end]
    cost = pass_tokens + sum(size for _, size in batch) * batch[-1][0]
    rest = least_time(units[:start], limits, pass_tokens) + least_time(units[end:], limits, pass_tokens)
    assert cost + rest == pytest.approx(least_time(units, limits, pass_tokens))


def test_of_equal_rows_the_oldest_go() -> None:
    waiting = rows(*[40] * 6)
    assert {row.request_row for row in choose_batch(waiting, 0.0, Limits(max_rows=3), PASS_TOKENS)} == {
        row.request_row for row in waiting[:3]
    }


def test_rows_that_write_count_a_pass_for_each_token() -> None:
    model = make_model(tiny("gpt2"), task=TITLES, readout={"max_new_tokens": 50})
    request_rows = [RequestRow(None, model, EXAMPLES[0], Options()) for _ in range(2)]  # type: ignore[arg-type]
    waiting = [
        BatchRow(row, 0, TokenizedRow((), None, 0), length) for row, length in zip(request_rows, (100, 20), strict=True)
    ]
    assert lengths(choose_batch(waiting, 0.0, Limits(), pass_tokens=10.0)) == [20, 100]
    assert lengths(choose_batch(rows(100, 20), 0.0, Limits(), pass_tokens=10.0)) == [100]


def test_cues_of_an_ensemble_share_a_batch_whatever_their_length() -> None:
    waiting = rows(40, 40, 40, 400)
    waiting[3].request_row.group = waiting[0].request_row.group
    assert lengths(choose_batch(waiting, 0.0, Limits(max_rows=2), PASS_TOKENS)) == [40, 400]


def test_beams_count_as_rows_of_their_own() -> None:
    model = make_model(tiny("gpt2"), task=TITLES, readout={"max_new_tokens": 6, "decoding": "beam", "num_beams": 3})
    writing = RequestRow(None, model, EXAMPLES[0], Options())  # type: ignore[arg-type]
    assert BatchRow.of(writing, 0, TokenizedRow((1, 2, 3), None, 0)).length == 3 * (3 + 4 + 6)


def prepared_elsewhere(batcher: Batcher, prepared: list[BatchRow]) -> None:
    """Rows that another thread prepared before it took its batch."""
    batcher._waiting += prepared


def test_only_some_jobs_are_prepared_before_the_next_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softcue.serving.engine.batcher.CHARACTERS_AT_ONCE", 2 * len(EXAMPLES[0].texts[0]))
    monkeypatch.setattr("softcue.serving.engine.batcher.ROWS_READY", 3)
    batcher = Batcher(Limits(), PASS_TOKENS)
    batcher.put([request_row() for _ in range(6)])
    assert len(batcher.take_arrived() or []) == 2  # limited by characters
    prepared_elsewhere(batcher, rows(5, 5))
    assert len(batcher.take_arrived() or []) == 1  # limited by rows
    prepared_elsewhere(batcher, rows(5))
    assert batcher.take_arrived() == []
    assert len(batcher.exchange([])[0]) == 3
    assert len(batcher.take_arrived() or []) == 2
    batcher.drain()
    assert len(batcher.take_arrived() or []) == 1
    for _ in range(4):  # all that were taken
        batcher.exchange([])
    assert batcher.take_arrived() is None


def test_jobs_that_come_while_enough_rows_wait_are_prepared_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softcue.serving.engine.batcher.ROWS_ENOUGH", 2)
    batcher = Batcher(Limits(max_rows=1), PASS_TOKENS)
    prepared_elsewhere(batcher, rows(5, 5))
    batcher.put([request_row()])
    assert batcher.take_arrived() == []
    batcher.put([request_row()])
    batcher.exchange([])
    assert len(batcher.take_arrived() or []) == 2


def test_whoever_leaves_gives_the_place_back_while_enough_rows_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softcue.serving.engine.batcher.ROWS_ENOUGH", 1)
    batcher = Batcher(Limits(), PASS_TOKENS)
    prepared_elsewhere(batcher, rows(5))
    left, late, good = request_row(), request_row(deadline=time.monotonic() - 1), request_row()
    left.is_dropped = True
    batcher.put([left, good, late])
    assert batcher.take_arrived() == [left, late]
    assert batcher.take_arrived() == []
    batcher.exchange([])
    assert batcher.take_arrived() == [good]


def test_idle_threads_share_the_rows_that_wait() -> None:
    batcher = Batcher(Limits(), PASS_TOKENS)
    batcher.num_idle = 1
    batcher.put([request_row() for _ in range(5)])
    assert len(batcher.take_arrived() or []) == 3
    assert len(batcher.exchange(rows(5, 5, 5))[0]) == 3  # two others have arrived
    batcher.num_idle = 0
    assert len(batcher.take_arrived() or []) == 2
    assert len(batcher.exchange(rows(5, 5))[0]) == 2


def test_prepared_rows_are_shared_too() -> None:
    batcher = Batcher(Limits(max_rows=2), PASS_TOKENS)
    batcher.num_idle = 2
    assert len(batcher.exchange(rows(5, 5, 5))[0]) == 1
    batcher.num_idle = 0
    assert len(batcher.exchange([])[0]) == 2


@pytest.mark.parametrize(("num_rows", "expected"), [(40, 40), (100, 64), (300, 150)])
def test_one_of_several_threads_takes_only_its_part_of_a_burst(num_rows: int, expected: int) -> None:
    batcher = Batcher(Limits(max_rows=64), PASS_TOKENS, num_threads=2)  # the other one runs a batch
    batcher.put([request_row() for _ in range(num_rows)])
    assert len(batcher.take_arrived() or []) == expected


def test_the_cues_of_an_ensemble_are_prepared_together_and_divided_among_idle_threads() -> None:
    batcher = Batcher(Limits(), PASS_TOKENS)
    batcher.num_idle = 1
    ensemble = [request_row() for _ in range(4)]
    for row in ensemble:
        row.group = ensemble[0]
    batcher.put([*ensemble, request_row()])
    assert batcher.take_arrived() == ensemble
    prepared = [BatchRow(row, 0, TokenizedRow((1,), None, 0), 5) for row in ensemble]
    assert [row.request_row for row in batcher.exchange(prepared)[0]] == ensemble[:3]  # of five rows that wait


def test_a_thread_that_waits_is_idle() -> None:
    batcher = Batcher(Limits(), PASS_TOKENS)
    taken: list[object] = []
    threads = [threading.Thread(target=lambda: taken.append(batcher.take_arrived())) for _ in range(2)]
    for thread in threads:
        thread.start()
    while batcher.num_idle < 2:
        time.sleep(0.001)
    first, second = request_row(), request_row()
    batcher.put([first, second])
    for thread in threads:
        thread.join(20)
    assert sorted(map(str, taken)) == sorted(map(str, [[first], [second]])) and batcher.num_idle == 0


def test_a_thread_stays_while_another_one_prepares_the_last_rows_of_a_drain() -> None:
    batcher = Batcher(Limits(max_rows=2), PASS_TOKENS)
    batcher.put([request_row() for _ in range(3)])
    assert len(batcher.take_arrived() or []) == 3
    batcher.drain()
    batches: list[int] = []

    def help_with_the_rest() -> None:
        while batcher.take_arrived() is not None:
            batches.append(len(batcher.exchange([])[0]))

    helper = threading.Thread(target=help_with_the_rest)
    helper.start()
    while not batcher.num_idle:
        time.sleep(0.001)
    assert len(batcher.exchange(rows(5, 5, 5))[0]) == 2
    helper.join(20)
    assert batches == [1] and batcher.take_arrived() is None


def test_rows_that_another_thread_prepared_later_keep_their_place() -> None:
    batcher = Batcher(Limits(max_rows=1), PASS_TOKENS)
    batcher.exchange(rows(5, 6, arrived=2.0))
    [early] = rows(7, arrived=1.0)
    assert [row.length for row in batcher.exchange([early])[0]] == [7]


def test_nothing_is_prepared_after_a_failure() -> None:
    batcher = Batcher(Limits(), PASS_TOKENS)
    prepared_elsewhere(batcher, rows(5))
    batcher.fail()
    assert batcher.take_arrived() is None


def test_batches_that_finish_nothing_count_in_the_time_of_a_prediction() -> None:
    batcher = Batcher(Limits(), PASS_TOKENS)
    batcher.put([request_row()])
    for _ in range(3):
        batcher.record_speed(0, 2.0)  # windows of a long text
    batcher.record_speed(1, 1.0)
    assert batcher.expected_seconds == 7.0
    batcher.record_speed(2, 1.0)
    assert batcher.expected_seconds == 0.5


def test_rows_beyond_the_age_bound_go_first_once_they_fill_a_batch() -> None:
    limits = Limits(max_rows=2, max_age=1.0)
    waiting = [*rows(40, 79, 50), *rows(40, arrived=5.0)]
    assert lengths(choose_batch(waiting, 5.5, limits, PASS_TOKENS)) == [40, 50]
    assert lengths(choose_batch(waiting, 0.5, limits, PASS_TOKENS)) == [40, 40]


def test_rows_that_write_have_batches_of_their_own() -> None:
    model = make_model(tiny("gpt2"), task=TITLES, readout={"max_new_tokens": 6})
    writing = BatchRow(RequestRow(None, model, EXAMPLES[0], Options()), 0, TokenizedRow((), None, 0), 40)  # type: ignore[arg-type]
    forward_pass = rows(40, 40)
    assert choose_batch([writing, *forward_pass], 0.0, Limits(), PASS_TOKENS) == [writing]
    assert choose_batch([forward_pass[0], writing, forward_pass[1]], 0.0, Limits(), PASS_TOKENS) == forward_pass[::-1]


def test_room_is_bounded_and_given_back() -> None:
    batcher = Batcher(Limits(max_in_flight=3), PASS_TOKENS)
    first = request_row()
    batcher.put([first, request_row()])
    with pytest.raises(RequestError, match="busy"):
        batcher.put([request_row(), request_row()])
    assert batcher.num_in_flight == 2  # all or none
    batcher.put([request_row()])
    batcher.release(first)
    batcher.put([request_row()])
    with pytest.raises(RequestError, match="too_many"):
        batcher.put([request_row()] * 4)


def test_retry_after_is_half_of_the_expected_time() -> None:
    batcher = Batcher(Limits(max_in_flight=8), PASS_TOKENS)
    batcher.put([request_row() for _ in range(8)])
    for seconds, retry_after in ((0.0, 1), (0.1, 1), (1.5, 6), (60.0, 10)):
        batcher.prediction_seconds = seconds
        with pytest.raises(RequestError) as caught:
            batcher.put([request_row()])
        assert caught.value.retry_after == retry_after


def test_a_slow_moment_is_no_pace() -> None:
    batcher = Batcher(Limits(), PASS_TOKENS)
    batcher.record_speed(10, 1.0)
    assert batcher.prediction_seconds == 0.1
    batcher.record_speed(1, 100.0)
    assert batcher.prediction_seconds > 0.1
    batcher.record_speed(10, 0.5)
    assert batcher.prediction_seconds == 0.05


def test_whoever_can_wait_gets_room_when_there_is_some() -> None:
    batcher = Batcher(Limits(max_in_flight=1), PASS_TOKENS)
    batcher.put([first := request_row()])
    threading.Timer(0.05, batcher.release, [first]).start()
    batcher.put([request_row()], seconds=10)
    assert batcher.num_in_flight == 1
    with pytest.raises(RequestError, match="busy"):
        batcher.put([request_row()], seconds=0.01)


def test_there_is_no_timer() -> None:
    batcher = Batcher(Limits(), PASS_TOKENS)
    batcher.put([request_row()])
    began = time.monotonic()
    assert len(batcher.take_arrived() or []) == 1
    assert len(batcher.exchange(rows(10))[0]) == 1
    assert time.monotonic() - began < 1


def test_dropped_and_late_rows_are_never_in_a_batch() -> None:
    batcher = Batcher(Limits(), PASS_TOKENS)
    now = time.monotonic()
    late, dropped, good = request_row(deadline=now - 1), request_row(), request_row()
    dropped.is_dropped = True
    batch, gone = batcher.exchange([BatchRow(row, 0, TokenizedRow((), None, 0), 10) for row in (late, dropped, good)])
    assert [row.request_row for row in batch] == [good]
    assert gone == [late, dropped]
    assert batcher.exchange([]) == ([], [])


def test_draining_takes_nothing_new_and_ends_when_all_is_taken() -> None:
    batcher = Batcher(Limits(), PASS_TOKENS)
    batcher.put([request_row()])
    batcher.drain()
    with pytest.raises(RequestError, match="draining"):
        batcher.put([request_row()])
    assert len(batcher.take_arrived() or []) == 1
    assert len(batcher.exchange(rows(10))[0]) == 1
    assert batcher.take_arrived() is None
