"""Noise belongs to a row's position in the global batch, however the batch is split."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from softcue.randomness import (
    RowDropout,
    TokenNoise,
    batch_positions,
    begin_section,
    draws_of_pass,
    hashed_uniform,
    row_draws,
    rows_of_global_batch,
    step_keys,
    text_key,
    uniform_like,
)

NUM_ROWS = 6
SPLITS = [[[0, 1, 2], [3, 4, 5]], [[5, 0], [2], [4, 1, 3]], [[3], [0], [1], [5], [2], [4]]]


def compute_split(compute: Callable[[Tensor], Tensor], values: Tensor, micro_batches: Sequence[list[int]]) -> Tensor:
    """Compute each micro-batch from the same seed, and put the rows back in order."""
    result = torch.zeros_like(values)
    for positions in micro_batches:
        torch.manual_seed(7)
        with rows_of_global_batch(positions, len(values)):
            result[positions] = compute(values[positions])
    return result


@pytest.mark.parametrize("micro_batches", SPLITS)
def test_noise_follows_rows_into_micro_batches(micro_batches: list[list[int]]) -> None:
    values = torch.zeros(NUM_ROWS, 3, 4)
    torch.manual_seed(7)
    whole = uniform_like(values)
    assert torch.equal(compute_split(uniform_like, values, micro_batches), whole)
    assert len(set(whole.flatten().tolist())) == whole.numel()  # all rows and values differ
    assert whole.min() >= 0 and whole.max() < 1


@pytest.mark.parametrize("micro_batches", SPLITS)
def test_dropout_in_micro_batches_equals_dropout_of_the_whole_batch(micro_batches: list[list[int]]) -> None:
    values = torch.randn(NUM_ROWS, 50)
    dropout = RowDropout(0.4)
    torch.manual_seed(7)
    whole = dropout(values)
    assert torch.equal(compute_split(dropout, values, micro_batches), whole)
    assert 0 < (whole == 0).sum() < whole.numel()


def test_dropout_drops_its_share_and_scales_the_others() -> None:
    dropped = RowDropout(0.25)(torch.ones(200, 100))
    assert dropped.unique().tolist() == [0.0, pytest.approx(1 / 0.75)]
    assert float((dropped == 0).float().mean()) == pytest.approx(0.25, abs=0.02)


def test_dropout_outside_training_or_of_no_share_returns_the_values() -> None:
    values = torch.randn(3, 4)
    before = torch.get_rng_state()
    assert RowDropout(0.5).eval()(values) is values
    assert RowDropout(0.0)(values) is values
    assert torch.equal(torch.get_rng_state(), before)  # nothing was drawn


HOST = torch.device("cpu")


@pytest.mark.parametrize("micro_batches", SPLITS)
def test_draws_belong_to_rows(micro_batches: list[list[int]]) -> None:
    torch.manual_seed(7)
    draws = row_draws(NUM_ROWS, HOST)
    whole = torch.stack([draws.uniform(4), draws.uniform(4)], dim=1)  # [B 2 4]
    for positions in micro_batches:
        torch.manual_seed(7)
        with rows_of_global_batch(positions, NUM_ROWS):
            draws = row_draws(len(positions), HOST)
            again = torch.stack([draws.uniform(4), draws.uniform(4)], dim=1)
        torch.manual_seed(7)
        with rows_of_global_batch(range(NUM_ROWS), NUM_ROWS):
            draws = row_draws(NUM_ROWS, HOST)
            together = torch.stack([draws.uniform(4), draws.uniform(4)], dim=1)
        assert torch.equal(again, together[positions])
    assert len({tuple(values.flatten().tolist()) for values in whole}) == NUM_ROWS
    assert len(whole.flatten().unique()) == whole.numel()


def test_draws_of_rows_follow_the_seed_and_draw_once_from_it() -> None:
    draws = []
    for num_rows in (1, NUM_ROWS):
        torch.manual_seed(7)
        first = row_draws(num_rows, HOST).uniform(2)[0]
        draws.append((first.tolist(), torch.rand(3).tolist()))
    assert draws[0] == draws[1]  # the number of rows changes neither the noise nor what is drawn later
    torch.manual_seed(8)
    assert row_draws(1, HOST).uniform(2)[0].tolist() != draws[0][0]


def test_draws_in_a_batch_differ_from_place_to_place() -> None:
    values = torch.zeros(2, 8)
    with rows_of_global_batch([0, 1], 2):
        drawn = [uniform_like(values), uniform_like(values)]
        for _ in range(2):
            with draws_of_pass():
                for section in (0, 1):
                    begin_section(section)
                    drawn += [uniform_like(values), uniform_like(values)]
        drawn.append(uniform_like(values))
    assert len(torch.stack(drawn).flatten().unique()) == 16 * len(drawn)


def test_a_section_draws_the_same_however_much_was_drawn_before_it() -> None:
    """So a layer that runs again in a copy of its context has its noise again, and so have the layers behind it."""
    values, drawn = torch.zeros(2, 8), []
    for num_before in (0, 3):
        torch.manual_seed(7)
        with rows_of_global_batch([0, 1], 2):
            with draws_of_pass():
                begin_section(0)
                for _ in range(num_before):
                    uniform_like(values)
                begin_section(1)
                inside = uniform_like(values)
            drawn.append(torch.cat([inside, uniform_like(values)]))
    assert torch.equal(drawn[0], drawn[1])


def test_hashed_numbers_are_uniform_and_independent() -> None:
    numbers = hashed_uniform(step_keys(torch.arange(64, dtype=torch.int32), 5), 4096)  # [64 4096]
    counts = torch.histc(numbers, bins=64, min=0, max=1)
    expected = numbers.numel() / 64
    chi_square = float(((counts - expected) ** 2 / expected).sum())
    assert 25 < chi_square < 115  # 63 degrees of freedom: between the 1e-5 tails
    centred = (numbers - 0.5) * 12**0.5
    for correlations in (centred @ centred.T / 4096, centred[:, :64].T @ centred[:, :64] / 64):
        off_diagonal = correlations - correlations.diag().diag()
        assert float(off_diagonal.abs().max()) < 5.5 / (4096 if correlations is correlations.T else 64) ** 0.5


def test_dropped_attention_weights_follow_rows_queries_keys_and_heads() -> None:
    tokens = torch.arange(6).expand(3, -1)
    noise = TokenNoise(0.5, seed=3, rows=torch.arange(3), tokens=tokens)
    dropped = noise.drop_weights(torch.ones(3, 4, 6, 6), place=0)
    assert float((dropped == 0).float().mean()) == pytest.approx(0.5, abs=0.06)
    for axis in range(4):
        first, second = dropped.select(axis, 0), dropped.select(axis, 1)
        assert not torch.equal(first, second)
    prompt_alone = noise.drop_weights(torch.ones(3, 4, 2, 6), place=0)
    assert torch.equal(prompt_alone, dropped[:, :, :2])


def test_the_key_of_a_text_depends_on_seed_and_tokens_alone() -> None:
    first = text_key(0, [5, 6])
    assert text_key(0, (5, 6)) == first and 0 <= first < 2**31
    others = [text_key(1, [5, 6]), text_key(0, [6, 5]), text_key(0, [56]), text_key(0, [])]
    assert first not in others


def test_positions_are_those_of_the_batch_itself_outside_a_global_batch() -> None:
    assert batch_positions(2) == (range(2), 2)
    with rows_of_global_batch([4, 1], total=5):
        assert batch_positions(2) == ([4, 1], 5)
        assert batch_positions(3) == (range(3), 3)  # a batch of other rows, such as an evaluation
        with rows_of_global_batch([0], total=1):
            assert batch_positions(1) == ([0], 1)
        assert batch_positions(2) == ([4, 1], 5)
    with pytest.raises(RuntimeError, match="stop"), rows_of_global_batch([0, 1], total=9):
        raise RuntimeError("stop")
    assert batch_positions(2) == (range(2), 2)
