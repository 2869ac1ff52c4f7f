from __future__ import annotations

import itertools

import pytest

from softcue.training.batches import BUCKET, EpochBatches, micro_batches, stream_seed

LENGTHS = [(7 * number) % 41 + 1 for number in range(333)]


def test_every_row_comes_once_per_epoch() -> None:
    batches = list(EpochBatches(LENGTHS, 16, seed=1, epoch=2))
    assert sorted(row for batch in batches for row in batch) == list(range(len(LENGTHS)))
    assert {len(batch) for batch in batches[:-1]} <= {16, 333 % 16}


def test_order_depends_on_seed_and_epoch_alone() -> None:
    first = list(EpochBatches(LENGTHS, 16, seed=1, epoch=2))
    assert first == list(EpochBatches(LENGTHS, 16, seed=1, epoch=2))
    assert first != list(EpochBatches(LENGTHS, 16, seed=1, epoch=3))
    assert first != list(EpochBatches(LENGTHS, 16, seed=2, epoch=2))


def test_buckets_keep_padding_small() -> None:
    def padding(batches: list[list[int]]) -> int:
        return sum(
            max(LENGTHS[row] for row in batch) * len(batch) - sum(LENGTHS[row] for row in batch) for batch in batches
        )

    shuffled = [list(range(start, min(start + 16, 333))) for start in range(0, 333, 16)]
    assert padding(list(EpochBatches(LENGTHS, 16, 0, 0))) < 0.2 * padding(shuffled)
    assert BUCKET > 1


@pytest.mark.parametrize("world_size", [1, 2, 3])
@pytest.mark.parametrize("micro", [0, 1, 2, 5])
def test_processes_share_a_batch_without_loss_or_overlap(world_size: int, micro: int) -> None:
    shares = [micro_batches([3] * 11, rank, world_size, micro) for rank in range(world_size)]
    assert sorted(place for share in shares for piece in share for place in piece) == list(range(11))
    if micro:
        assert all(len(piece) <= micro for share in shares for piece in share)


def test_a_process_may_be_left_without_rows() -> None:
    assert micro_batches([5], rank=1, world_size=2) == []


def test_pieces_stay_within_the_token_budget_unless_one_row_is_longer() -> None:
    pieces = micro_batches(LENGTHS, rank=0, world_size=1, max_rows=10, max_tokens=64)
    assert [place for piece in pieces for place in piece] == list(range(len(LENGTHS)))
    for piece in pieces:
        assert len(piece) <= 10
        assert len(piece) == 1 or len(piece) * max(LENGTHS[place] for place in piece) <= 64
    # no piece could have taken the next row, too
    for piece, following in itertools.pairwise(pieces):
        longer = [*piece, following[0]]
        assert len(longer) > 10 or len(longer) * max(LENGTHS[place] for place in longer) > 64


def test_streams_have_seeds_of_their_own() -> None:
    seeds = {stream_seed(seed, name, step) for seed in range(5) for name in ("order", "step") for step in range(50)}
    assert len(seeds) == 500
