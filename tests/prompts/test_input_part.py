"""The part of a contextualised prompt that the input changes, against a literal re-computation."""

from __future__ import annotations

import math

import pytest
import torch
from tolerance import LITERAL_FLOAT64, ONE_SUM_FLOAT32
from torch import Tensor

from softcue.prompts import VIP, ContextShape, InputPart, LossWeights
from softcue.prompts.contextualizer import Contextualizer
from softcue.types import Instance

N, D, DECAY, GAIN, SCALE = 2, 8, 0.5, 0.3, 0.7
pytestmark = pytest.mark.numeric


def batches() -> list[Tensor]:
    """P^c of three steps: large where it belongs to the token, small where the row changes it."""
    generator = torch.Generator().manual_seed(0)
    token = torch.randn(N, D, generator=generator, dtype=torch.float64) * 30
    return [token + torch.randn(rows, N, D, generator=generator, dtype=torch.float64) for rows in (4, 3, 5)]


def literal_mean_and_variance(contexts: list[Tensor], token: int) -> tuple[list[float], float]:
    """Running mean (of each value) and variance (over all values) of a token, number by number."""
    mean, variance = [0.0] * D, 0.0
    for step, context in enumerate(contexts):
        rows = [[float(number) for number in row[token]] for row in context]
        own = [math.fsum(row[place] for row in rows) / len(rows) for place in range(D)]
        spread = math.fsum((row[place] - own[place]) ** 2 for row in rows for place in range(D)) / (len(rows) * D)
        share = 1.0 if step == 0 else 1 - DECAY
        mean = [before + share * (now - before) for before, now in zip(mean, own, strict=True)]
        variance += share * (spread - variance)
    return mean, variance


def learned(contexts: list[Tensor], num_pieces: int = 1) -> InputPart:
    """A part that has seen the steps, each in one or several micro-batches."""
    part = InputPart(N, D, DECAY, GAIN).double()
    for context in contexts:
        totals = part.zero_statistics()
        for piece in context.chunk(num_pieces):
            for name, value in part.statistics(piece).items():
                totals[name] += value
        part.update_state(totals, rows=torch.tensor(len(context), dtype=torch.float64))
    return part


def test_z_is_the_distance_from_the_running_mean_in_units_of_the_running_spread() -> None:
    contexts = batches()
    part = learned(contexts)
    z = part(contexts[-1])
    for token in range(N):
        mean, variance = literal_mean_and_variance(contexts, token)
        for row, context in enumerate(contexts[-1]):
            expected = [(float(context[token, place]) - mean[place]) / math.sqrt(variance) for place in range(D)]
            LITERAL_FLOAT64.assert_close(z[row, token], torch.tensor(expected, dtype=torch.float64))


def test_micro_batches_give_what_the_whole_batch_gives() -> None:
    whole, pieces = learned(batches()), learned(batches(), num_pieces=3)
    LITERAL_FLOAT64.assert_close(pieces.mean, whole.mean)
    LITERAL_FLOAT64.assert_close(pieces.variance, whole.variance)


def test_before_the_first_step_nothing_is_added() -> None:
    assert not InputPart(N, D, DECAY, GAIN).double()(batches()[0]).any()


def test_a_single_row_moves_the_mean_and_leaves_the_spread() -> None:
    contexts = batches()
    part, before = learned(contexts), learned(contexts)
    part.update_state(part.statistics(contexts[0][:1]), rows=torch.tensor(1.0, dtype=torch.float64))
    assert torch.equal(part.variance, before.variance)
    LITERAL_FLOAT64.assert_close(part.mean, before.mean + (1 - DECAY) * (contexts[0][0] - before.mean))


def test_the_prompt_is_p_and_the_gain_times_z_in_units_of_scale() -> None:
    shape = ContextShape(D, 8, 1, 2, 0.0, SCALE)
    part = InputPart(N, D, DECAY, GAIN)
    encoder = VIP(torch.randn(N, D), 0, shape, None, True, LossWeights(), torch.zeros(0, D), part)
    assert isinstance(encoder.contextualizer, Contextualizer)
    encoder.contextualizer.initialize(torch.Generator().manual_seed(1))
    instance = Instance(torch.randn(4, 5, D), torch.ones(4, 5))
    encoder.train()
    encoder.update_state(encoder(instance).statistics, epoch_begins=False)
    context = encoder.contextualize(instance)
    mean, spread = context.mean(0), context.var(0, unbiased=False).mean(1).sqrt()
    expected = encoder.prompt + GAIN * SCALE * (context - mean) / spread.unsqueeze(1)
    ONE_SUM_FLOAT32.assert_close(encoder(instance).tokens, expected)
