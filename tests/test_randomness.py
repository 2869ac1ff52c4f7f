"""Noise belongs to a row's position in the global batch, however the batch is split."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor

from softcue.randomness import (
    RowDropout,
    batch_positions,
    row_generators,
    rows_of_global_batch,
    text_generator,
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


@pytest.mark.parametrize("micro_batches", SPLITS)
def test_generators_belong_to_rows(micro_batches: list[list[int]]) -> None:
    torch.manual_seed(7)
    whole = [torch.rand(4, generator=generator) for generator in row_generators(NUM_ROWS)]
    for positions in micro_batches:
        torch.manual_seed(7)
        with rows_of_global_batch(positions, NUM_ROWS):
            generators = row_generators(len(positions))
        for position, generator in zip(positions, generators, strict=True):
            assert torch.equal(torch.rand(4, generator=generator), whole[position])
    assert len({tuple(values.tolist()) for values in whole}) == NUM_ROWS


def test_generators_of_rows_follow_the_seed_and_draw_once_from_it() -> None:
    draws = []
    for num_rows in (1, NUM_ROWS):
        torch.manual_seed(7)
        first = torch.rand(2, generator=row_generators(num_rows)[0])
        draws.append((first.tolist(), torch.rand(3).tolist()))
    assert draws[0] == draws[1]  # the number of rows changes neither the noise nor what is drawn later
    torch.manual_seed(8)
    assert torch.rand(2, generator=row_generators(1)[0]).tolist() != draws[0][0]


def test_a_generator_of_a_text_depends_on_seed_and_tokens_alone() -> None:
    def draw(seed: int, ids: Sequence[int]) -> list[float]:
        return torch.rand(3, generator=text_generator(seed, ids)).tolist()

    torch.manual_seed(0)
    first = draw(0, [5, 6])
    torch.manual_seed(1)
    assert draw(0, (5, 6)) == first
    assert draw(1, [5, 6]) != first
    assert draw(0, [6, 5]) != first
    assert draw(0, [56]) != first and draw(0, []) != first


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
