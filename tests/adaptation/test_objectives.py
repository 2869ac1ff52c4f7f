"""The objectives' lengths and draws. Their rows are compared with literal code in tests/paper/test_pretraining.py."""

from __future__ import annotations

import pytest
import torch

from softcue.adaptation import AdaptationConfig
from softcue.adaptation.objectives import (
    PrefixLM,
    chunk_length_for,
    corrupted_lengths,
    make_objective,
    random_lengths,
    sentinel_ids,
)
from softcue.errors import BackboneError, ConfigurationError

SENTINELS = tuple(range(999, 899, -1))
T5_VOCABULARY = {f"<extra_id_{number}>": 999 - number for number in range(100)}


def seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_prefix_lm_splits_at_every_point_about_as_often() -> None:
    chunk = torch.arange(100, 106)
    counts = dict.fromkeys(range(1, 6), 0)
    for seed in range(500):
        source, target = PrefixLM(6)(chunk, seeded(seed))
        assert torch.equal(torch.cat([source, target]), chunk)
        counts[len(source)] += 1
    assert min(counts.values()) > 60  # 100 of each on average; a standard deviation is 9


def test_sources_of_t5s_length_come_from_its_published_chunks() -> None:
    assert chunk_length_for(512, 0.15, 3.0) == 568
    assert corrupted_lengths(568, 0.15, 3.0) == (512, 114)
    # the same by trying every length
    for source_length in (8, 20, 64, 100, 256, 513):
        fitting = [length for length in range(2, 700) if corrupted_lengths(length, 0.15, 3.0)[0] <= source_length]
        assert chunk_length_for(source_length, 0.15, 3.0) == max(fitting)


def test_the_lengths_of_spans_vary_and_have_the_mean() -> None:
    lengths = [length for seed in range(50) for length in random_lengths(85, 28, seeded(seed))]
    assert sum(lengths) / len(lengths) == 85 / 28
    assert {1, 2, 3, 4, 5, 6} <= set(lengths)
    assert min(lengths) == 1


def test_sentinels_are_found_in_the_order_of_their_numbers_also_as_mt5_spells_them() -> None:
    assert sentinel_ids(T5_VOCABULARY | {"extra": 3, "<extra_id_x>": 4}) == list(SENTINELS)
    assert sentinel_ids({"▁<extra_id_0>": 7, "▁<extra_id_1>": 6}) == [7, 6]


def test_chunks_of_each_objective_have_t5s_length() -> None:
    assert make_objective(AdaptationConfig(), T5_VOCABULARY, "t5").chunk_length == 511
    config = AdaptationConfig(objective="span-corruption")
    assert make_objective(config, T5_VOCABULARY, "t5").chunk_length == 568


def test_span_corruption_needs_sentinels_and_enough_of_them() -> None:
    config = AdaptationConfig(objective="span-corruption")
    with pytest.raises(BackboneError, match=r"objective: got 'span-corruption on bart'.*`objective=prefix-lm`"):
        make_objective(config, {"word": 0}, "bart")
    with pytest.raises(ConfigurationError, match="at most 20 dropped spans"):
        make_objective(config, dict(list(T5_VOCABULARY.items())[:20]), "t5")
