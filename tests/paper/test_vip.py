"""VIP (Bhardwaj et al. 2022) against literal re-computations of the paper (literal_vip.py)."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from paper import literal_prompt_tuning, literal_vip
from paper.gradients import assert_same_with_gradients
from paper.literal_vip import (
    Drop,
    EncoderLayerWeights,
    contextualise,
    dedicated_codes,
    draw,
    mean_of_codes,
    multinomial,
    smoothed,
    squared_distance,
    unchanged,
)
from tiny import tiny_float64
from tolerance import LITERAL_FLOAT64, ONE_SUM_FLOAT32
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from toy import EXAMPLES, make_model

from softcue.inputs.collate import collate
from softcue.prompts import VIP, VIPIDP, ContextShape, LossWeights, Quantizer, QuantizerShape
from softcue.prompts.contextualizer import Contextualizer, EncoderLayer, RowNoise
from softcue.prompts.quantizer import perplexity
from softcue.prompts.vip import commitment, noise_resilience
from softcue.randomness import RowDraws, batch_positions, hashed_uniform, row_draws, rows_of_global_batch
from softcue.types import Instance, Prompt

D, INNER, HEADS = 8, 8, 2  # width, the contextualiser's width and heads
N, K, M = 3, 6, 5  # VIP tokens, codes (no more than D: draws can be read off their mean), draws
SIDES = ["right", "left"]
EVALUATIONS = ["expectation", "sample", "argmax"]
LENGTHS = [4, 1, 6, 3, 5]
PIECES = [[0, 3], [1], [4, 2]]  # an uneven share of five rows, out of order
SHAPE = QuantizerShape(
    codes=K,
    draws=M,
    temperature=8.0,
    is_relative=False,
    tokens=0,
    evaluation="expectation",
    sample_seed=3,
    rule="vqvae",
    decay=0.9,
    epsilon=1e-5,
    reset_below=0.0,
    fill_after=1,
)


# --- our numbers in the paper's equations ----------------------------------------------------------------------------


def mean_pair_distance(codes: Tensor, num_blocks: int = 1) -> float:
    """Over all ordered pairs that one token may take, those of a code and itself included: K^2, or n (K/n)^2."""
    every = [squared_distance(code, other) for block in codes.chunk(num_blocks) for code in block for other in block]
    assert len(every) == len(codes) ** 2 / num_blocks
    return math.fsum(every) / len(every)


def temperature_of(quantizer: Quantizer) -> float:
    if not quantizer.shape.is_relative:
        return quantizer.shape.temperature
    return quantizer.shape.temperature * mean_pair_distance(quantizer.codebook, quantizer.shape.tokens or 1)


def codes_of(quantizer: Quantizer, token: int) -> list[int]:
    """The codes that a token may take."""
    shape = quantizer.shape
    return dedicated_codes(token, shape.tokens, shape.codes) if shape.tokens else list(range(shape.codes))


def literal_logits(quantizer: Quantizer, vector: Tensor, token: int) -> list[float]:
    return literal_vip.logits(vector, quantizer.codebook, temperature_of(quantizer), codes_of(quantizer, token))


def literal_codes(quantizer: Quantizer, vectors: Tensor, noise: Sequence[Tensor]) -> list[list[list[int]]]:
    """Equation 4: row, token, draw."""
    codes = []
    for row, numbers in zip(vectors, noise, strict=True):
        shares = [multinomial(literal_logits(quantizer, vector, token)) for token, vector in enumerate(row)]
        codes.append(
            [[draw(distribution, float(u)) for u in line] for distribution, line in zip(shares, numbers, strict=True)]
        )
    return codes


def literal_evaluation(quantizer: Quantizer, vector: Tensor, token: int, noise: Tensor) -> Tensor:
    """P^q outside training, of one vector. [D]"""
    logits = literal_logits(quantizer, vector, token)
    if quantizer.shape.evaluation == "argmax":
        return mean_of_codes(quantizer.codebook, [logits.index(max(logits))])
    shares = multinomial(logits)
    if quantizer.shape.evaluation == "sample":
        return mean_of_codes(quantizer.codebook, [draw(shares, float(u)) for u in noise[token]])
    return literal_vip.expectation(quantizer.codebook, shares)


def literal_context(context: Contextualizer, prompt: Tensor, text: Tensor, drop: Drop = unchanged) -> Tensor:
    """P^c of one row; the scale of words is ours: inputs are divided by it, outputs multiplied. [n D]"""
    layers = []
    for layer in context.layers:
        assert isinstance(layer, EncoderLayer)
        query, key, value = zip(layer.attend.weight.chunk(3), layer.attend.bias.chunk(3), strict=True)
        others = [(part.weight, part.bias) for part in (layer.merge, layer.up, layer.down, *layer.norms)]
        layers.append(EncoderLayerWeights(query, key, value, *others))  # type: ignore[arg-type]
    project, back = ((part.weight, part.bias) for part in (context.project, context.back))
    shape = context.shape
    states = contextualise(prompt / shape.scale, text / shape.scale, project, layers, back, shape.heads, drop)
    return states * shape.scale


def drop_by(draws: RowDraws, share: float) -> Drop:
    """Dropout of one row: a share of the values becomes zero, the others grow, so that their mean stays."""

    def drop(values: Tensor) -> Tensor:
        if not share:
            return values
        if values.ndim == 2:  # states [Q X]
            return draws.noise(torch.arange(len(values)).unsqueeze(0), share).drop(values.unsqueeze(0), 0)[0]
        weights = values.permute(2, 0, 1).unsqueeze(0)  # attention weights [Q S H] -> [1 H Q S]
        noise = draws.noise(torch.arange(values.shape[1]).unsqueeze(0), share)
        return noise.drop_weights(weights, 0)[0].permute(1, 2, 0)

    return drop


def assert_like(actual: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    torch.testing.assert_close(actual.double(), expected.double(), rtol=tolerance, atol=tolerance)


# --- helpers ---------------------------------------------------------------------------------------------------------


def quantizer_of(**changes: Any) -> Quantizer:
    shape = replace(SHAPE, **changes)
    return Quantizer(shape, 2 * torch.randn(shape.codes, D))


def draws_of(seed: int, num_rows: int) -> RowDraws:
    torch.manual_seed(seed)
    return row_draws(num_rows, torch.device("cpu"))


def draws_by_row(seed: int, num_rows: int) -> list[RowDraws]:
    """The same random numbers, row by row."""
    draws = draws_of(seed, num_rows)
    return [RowDraws(draws.seed, row) for row in draws.rows.split(1)]


def sample_noise(seed: int, num_tokens: int, num_draws: int) -> Tensor:
    """The noise of a drawn evaluation, which all rows share."""
    return hashed_uniform(torch.tensor([seed], dtype=torch.int32), num_tokens * num_draws).view(num_tokens, num_draws)


def noise_of(seed: int, num_rows: int, draws: int = M) -> list[Tensor]:
    return list(draws_of(seed, num_rows).uniform(N, draws))


def trained(quantizer: Quantizer, vectors: Tensor, seed: int = 0) -> tuple[Tensor, dict[str, Tensor]]:
    output: tuple[Tensor, dict[str, Tensor]] = quantizer.train()(vectors, draws_of(seed, len(vectors)))
    return output


def evaluated(quantizer: Quantizer, vectors: Tensor) -> Tensor:
    values, statistics = quantizer.eval()(vectors, None)
    assert statistics == {}
    assert isinstance(values, Tensor)
    return values


def draws_in(quantizer: Quantizer, values: Tensor) -> Tensor:
    """How many draws of each code give this mean: the codes are linearly independent. [B n D] -> [B n K]"""
    codes = quantizer.codebook.double()
    counts = values.detach().double() @ torch.linalg.pinv(codes) * quantizer.shape.draws
    whole: Tensor = counts.round()
    torch.testing.assert_close(counts, whole, rtol=0, atol=max(0.1, 5e-5 * quantizer.shape.draws))
    assert (whole >= 0).all() and (whole.sum(-1) == quantizer.shape.draws).all()
    return whole


def buffers_of(module: nn.Module) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in module.named_buffers()}


def assert_unchanged(module: nn.Module, before: dict[str, Tensor]) -> None:
    for name, value in module.named_buffers():
        assert torch.equal(value, before[name]), name


def chi_square(counts: Sequence[float], shares: Sequence[float]) -> float:
    total = sum(counts)
    return sum((seen - total * share) ** 2 / (total * share) for seen, share in zip(counts, shares, strict=True))


def texts_of(lengths: Sequence[int] = LENGTHS, width: int = D) -> list[Tensor]:
    return [torch.randn(length, width, generator=torch.Generator().manual_seed(length)) for length in lengths]


def instance_of(texts: Sequence[Tensor], side: str = "right", extra: int = 0) -> Instance:
    """Texts side by side, with numbers in the padding that would be seen if they were read."""
    longest = max(len(text) for text in texts) + extra
    embeds = torch.full((len(texts), longest, texts[0].shape[1]), 1e3)
    mask = torch.zeros(len(texts), longest, dtype=torch.bool)
    for row, text in enumerate(texts):
        first = longest - len(text) if side == "left" else 0
        embeds[row, first : first + len(text)] = text
        mask[row, first : first + len(text)] = True
    return Instance(embeds, mask)


def shuffled(module: nn.Module) -> None:
    """Numbers that no start would give, biases and norms included."""
    generator = torch.Generator().manual_seed(1)
    for parameter in module.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)


def context_shape(**changes: Any) -> ContextShape:
    return replace(ContextShape(D, INNER, layers=2, heads=HEADS, dropout=0.3, scale=1.0), **changes)


def vip_of(
    num_soft: int = 2,
    num_hard: int = 0,
    skip: bool = True,
    weights: LossWeights | None = None,
    quantised: bool = True,
    is_empty: bool = False,
    context: dict[str, Any] | None = None,
    **quantizer: Any,
) -> VIP:
    torch.manual_seed(11)
    codebook = quantizer_of(**quantizer)
    if is_empty:
        codebook.codebook.zero_()
    encoder = VIP(
        torch.randn(num_soft + N, D),
        num_soft,
        context_shape(**(context or {})),
        codebook if quantised else None,
        skip,
        weights or LossWeights(),
        torch.randn(num_hard, D),
    )
    shuffled(encoder.contextualizer)
    return encoder


def prompted(encoder: VIP, instance: Instance, seed: int = 0) -> Prompt:
    torch.manual_seed(seed)
    prompt = encoder(instance)
    assert isinstance(prompt, Prompt)
    return prompt


def losses_of(encoder: VIP, prompt: Prompt) -> tuple[Tensor, dict[str, Tensor]]:
    """The losses beside the cross-entropy of a batch in one piece, and its statistics."""
    if prompt.compared is None:
        return prompt.aux_loss, dict(prompt.statistics)
    loss, statistics = encoder.batch_loss(prompt.compared)
    return prompt.aux_loss + loss, {**prompt.statistics, **statistics}


def quantizer_in(encoder: VIP) -> Quantizer:
    assert encoder.quantizer is not None
    return encoder.quantizer


def in_pieces(encoder: VIP, texts: Sequence[Tensor], seed: int = 0) -> list[tuple[list[int], Prompt]]:
    """A step in pieces: each from the same seed, each with padding of its own."""
    parts = []
    for number, places in enumerate(PIECES):
        instance = instance_of([texts[place] for place in places], SIDES[number % 2], extra=number)
        with rows_of_global_batch(places, len(texts)):
            parts.append((places, prompted(encoder, instance, seed)))
    return parts


# --- places and streams ----------------------------------------------------------------------------------------------


def test_rows_have_their_own_numbers_unless_a_piece_says_otherwise() -> None:
    assert list(batch_positions(3)[0]) == [0, 1, 2] and batch_positions(3)[1] == 3
    with rows_of_global_batch([4, 1], 6):
        assert list(batch_positions(2)[0]) == [4, 1] and batch_positions(2)[1] == 6
        with rows_of_global_batch([5, 0], 9):
            assert list(batch_positions(2)[0]) == [5, 0] and batch_positions(2)[1] == 9
        assert list(batch_positions(2)[0]) == [4, 1] and batch_positions(2)[1] == 6
    assert list(batch_positions(2)[0]) == [0, 1] and batch_positions(2)[1] == 2


def test_a_stream_belongs_to_a_place_and_a_seed() -> None:
    whole = list(draws_of(5, 6).uniform(4))
    with rows_of_global_batch([4, 1], 6):
        piece = list(draws_of(5, 2).uniform(4))
    assert torch.equal(piece[0], whole[4]) and torch.equal(piece[1], whole[1])
    others = list(draws_of(6, 6).uniform(4))
    following = list(row_draws(6, torch.device("cpu")).uniform(4))
    every = torch.stack(whole + others + following)
    assert len(every.unique(dim=0)) == 18


def test_streams_take_as_much_of_the_common_noise_for_one_row_as_for_many() -> None:
    after = []
    for num_rows in (1, 7):
        draws_of(3, num_rows)
        after.append(torch.rand(3))
    assert torch.equal(after[0], after[1])


# --- equation 3 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_relative", [False, True])
@pytest.mark.parametrize("tokens", [0, N])
def test_logits_are_squared_distances_over_the_temperature(is_relative: bool, tokens: int) -> None:
    quantizer = quantizer_of(is_relative=is_relative, temperature=0.3 if is_relative else 8.0, tokens=tokens)
    vectors = torch.randn(2, N, D)
    logits = quantizer.logits(vectors)
    assert logits.shape == (2, N, K // N if tokens else K)
    for row in range(2):
        for token in range(N):
            wanted = [logit for logit in literal_logits(quantizer, vectors[row, token], token) if logit != -math.inf]
            assert_like(logits[row, token], torch.tensor(wanted))


def test_a_relative_temperature_counts_all_pairs_of_codes_also_those_of_one_code() -> None:
    two = Quantizer(replace(SHAPE, codes=2, is_relative=True, temperature=1.0), torch.tensor([[0.0], [4.0]]))
    # of the pairs (0 0) (0 4) (4 0) (4 4) two are 16 apart: 8, so a vector 4 away has the logit -16 / 8
    assert two.logits(torch.zeros(1, 1, 1)).tolist() == [[[0.0, -2.0]]]
    four = Quantizer(replace(two.shape, codes=4, tokens=2), torch.tensor([[0.0], [4.0], [0.0], [40.0]]))
    # of its own codes a token has the same pairs, 8 and 800; their mean is common to all tokens
    assert_like(four.logits(torch.zeros(1, 2, 1)), torch.tensor([[[0.0, -16 / 404], [0.0, -1600 / 404]]]))
    relative, absolute = quantizer_of(is_relative=True, temperature=0.7), quantizer_of(temperature=1.0)
    absolute.codebook.copy_(relative.codebook)
    vectors = torch.randn(1, N, D)
    unit = absolute.logits(vectors) / relative.logits(vectors)
    assert_like(unit, torch.full_like(unit, 0.7 * mean_pair_distance(relative.codebook)))


def test_codes_that_are_all_the_same_do_not_divide_by_zero() -> None:
    quantizer = Quantizer(replace(SHAPE, is_relative=True), torch.ones(K, D))
    assert torch.equal(quantizer.logits(torch.ones(1, 1, D)), torch.zeros(1, 1, K))
    assert quantizer.logits(torch.zeros(1, 1, D)).isfinite().all()


def long_vectors(num: int, width: int) -> Tensor:
    return 300 * nn.functional.normalize(torch.randn(num, width), dim=1)


@pytest.mark.parametrize("tokens", [0, N])
def test_logits_keep_their_digits_at_large_norms(tokens: int) -> None:
    quantizer = Quantizer(replace(SHAPE, temperature=100.0, tokens=tokens), long_vectors(K, 64))
    vectors = long_vectors(2 * N, 64).view(2, N, 64)
    vectors[0, 1] = quantizer.codebook[2]
    vectors[1, 1] = quantizer.codebook[2] + 0.1 * torch.randn(64)
    logits = quantizer.logits(vectors)
    assert (logits <= 0).all()
    for row in range(2):
        for token in range(N):
            wanted = [logit for logit in literal_logits(quantizer, vectors[row, token], token) if logit != -math.inf]
            torch.testing.assert_close(logits[row, token], torch.tensor(wanted), rtol=1e-5, atol=1e-2)


def test_a_vector_that_is_a_code_is_at_no_distance_of_it_whatever_is_rounded() -> None:
    quantizer = Quantizer(replace(SHAPE, codes=60, temperature=1.0), long_vectors(60, 64))
    logits = quantizer.logits(quantizer.codebook.unsqueeze(0))[0]
    assert (logits <= 0).all()
    assert torch.equal(logits.argmax(1), torch.arange(60))
    rounding = 64 * 300**2 * torch.finfo(torch.float32).eps  # 64 terms of a sum of size 300^2
    torch.testing.assert_close(logits.diagonal(), torch.zeros(60), rtol=0, atol=rounding)


@pytest.mark.parametrize("tokens", [0, N])
def test_mixed_precision_changes_nothing(tokens: int) -> None:
    vectors = torch.randn(2, N, D)
    for is_relative in (False, True):
        quantizer = quantizer_of(tokens=tokens, is_relative=is_relative)
        plain = [quantizer.logits(vectors), quantizer.assignment(vectors), evaluated(quantizer, vectors)]
        plain += [trained(quantizer, vectors)[0], *trained(quantizer, vectors)[1].values()]
        with torch.autocast("cpu", torch.bfloat16):
            mixed = [quantizer.logits(vectors), quantizer.assignment(vectors), evaluated(quantizer, vectors)]
            mixed += [trained(quantizer, vectors)[0], *trained(quantizer, vectors)[1].values()]
        for plain_value, other in zip(plain, mixed, strict=True):
            assert other.dtype == torch.float32 and torch.equal(plain_value, other)


def test_vectors_in_bfloat16_are_measured_in_float32() -> None:
    quantizer = quantizer_of()
    rounded = torch.randn(2, N, D).bfloat16()
    assert quantizer.logits(rounded).dtype == torch.float32
    assert torch.equal(quantizer.logits(rounded), quantizer.logits(rounded.float()))
    assert_like(evaluated(quantizer, rounded), evaluated(quantizer, rounded.float()))
    values, statistics = trained(quantizer, rounded)
    wanted, tally_of_floats = trained(quantizer, rounded.float())
    assert_like(values, wanted)
    for name, sums in statistics.items():
        assert sums.dtype == torch.float32 and torch.equal(sums, tally_of_floats[name])


# --- equation 4 ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [0, N])
def test_draws_are_the_codes_whose_share_of_the_unit_interval_the_noise_falls_in(tokens: int) -> None:
    quantizer = quantizer_of(tokens=tokens)
    vectors = torch.randn(4, N, D)
    values, _ = trained(quantizer, vectors, seed=7)
    codes = literal_codes(quantizer, vectors, noise_of(7, 4))
    for row in range(4):
        for token in range(N):
            assert_like(values[row, token], mean_of_codes(quantizer.codebook, codes[row][token]))
    assert len({code for row in codes for token_codes in row for code in token_codes}) > 2


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("seed", range(8))
def test_a_quantiser_of_any_shape_is_equations_3_to_5(seed: int) -> None:
    choices = random.Random(seed)
    num_rows, num_tokens, width, per_token, draws = (choices.randint(1, 5) for _ in range(5))
    is_dedicated = choices.random() < 0.5
    shape = replace(
        SHAPE,
        codes=num_tokens * per_token,
        draws=draws,
        temperature=choices.uniform(0.5, 5),
        is_relative=choices.random() < 0.3 and per_token > 1,
        tokens=num_tokens if is_dedicated else 0,
    )
    quantizer = Quantizer(shape, torch.randn(shape.codes, width))
    vectors = torch.randn(num_rows, num_tokens, width, requires_grad=True)
    noise = list(draws_of(seed, num_rows).uniform(num_tokens, draws))
    codes = literal_codes(quantizer, vectors.detach(), noise)
    means = [[mean_of_codes(quantizer.codebook, drawn) for drawn in row] for row in codes]
    expected = literal_vip.straight_through(vectors, torch.stack([torch.stack(row) for row in means]))
    assert_same_with_gradients(trained(quantizer, vectors, seed)[0], expected, {"P^c": vectors})
    for evaluation in EVALUATIONS:
        quantizer.shape = replace(shape, evaluation=evaluation)  # type: ignore[arg-type]
        uniform = sample_noise(shape.sample_seed, num_tokens, draws)
        rows = [
            [literal_evaluation(quantizer, vector.detach(), token, uniform) for token, vector in enumerate(row)]
            for row in vectors
        ]
        expected = literal_vip.straight_through(vectors, torch.stack([torch.stack(row) for row in rows]))
        assert_same_with_gradients(evaluated(quantizer, vectors), expected, {"P^c": vectors})
    shares = [
        [multinomial(literal_logits(quantizer, vector.detach(), token)) for token, vector in enumerate(row)]
        for row in vectors
    ]
    LITERAL_FLOAT64.assert_close(quantizer.assignment(vectors), torch.tensor(shares))


def test_draws_depend_on_the_seed_alone() -> None:
    quantizer, vectors = quantizer_of(), torch.randn(4, N, D)
    first, again, other = (draws_in(quantizer, trained(quantizer, vectors, seed)[0]) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


@pytest.mark.parametrize("tokens", [0, N])
def test_codes_are_drawn_as_often_as_the_softmax_says(tokens: int) -> None:
    quantizer = quantizer_of(draws=4000, tokens=tokens)
    vectors = torch.randn(2, N, D)
    counts = draws_in(quantizer, trained(quantizer, vectors)[0])
    for row in range(2):
        for token in range(N):
            shares = multinomial(literal_logits(quantizer, vectors[row, token], token))
            taken = codes_of(quantizer, token)
            assert counts[row, token].sum() == counts[row, token, taken].sum()
            seen, wanted = counts[row, token, taken].tolist(), [shares[code] for code in taken]
            assert chi_square(seen, wanted) < 25  # of 5 degrees of freedom at most: one in 7,000


def test_draws_of_one_vector_and_of_neighbouring_rows_are_independent() -> None:
    quantizer = quantizer_of(draws=2)
    vectors = torch.randn(1, 1, D).expand(5000, 1, D)
    shares = multinomial(literal_logits(quantizer, vectors[0, 0], 0))
    agreeing = sum(share**2 for share in shares)
    near = 4 * math.sqrt(agreeing * (1 - agreeing) / 5000)
    counts = draws_in(quantizer, trained(quantizer, vectors)[0]).squeeze(1)  # [B K]
    assert chi_square(counts.sum(0).tolist(), shares) < 25
    assert abs(float((counts == 2).any(1).double().mean()) - agreeing) < near
    single = quantizer_of(draws=1)
    single.codebook.copy_(quantizer.codebook)
    drawn = draws_in(single, trained(single, vectors)[0]).squeeze(1).argmax(1)
    assert abs(float((drawn[1:] == drawn[:-1]).double().mean()) - agreeing) < near


def test_codes_of_no_probability_are_never_drawn() -> None:
    quantizer = quantizer_of(draws=500)
    far = [0, 3, K - 1]  # the first, one amid others, the last
    quantizer.codebook[far] += 1e3
    vectors = torch.randn(4, N, D)
    assert not quantizer.logits(vectors).softmax(-1)[..., far].any()
    assert not draws_in(quantizer, trained(quantizer, vectors)[0])[..., far].any()
    logits = 3 * torch.randn(2000, 1, K)
    logits[..., far] = -1e4
    for noise in (0.0, 2**-24, 1 - 2**-24):  # all that torch.rand can give lies between
        codes = quantizer._draw_codes(logits, torch.full((2000, 1, 1), noise))
        assert not torch.isin(codes, torch.tensor(far)).any()
        assert (codes == (1 if noise < 0.5 else K - 2)).all()


def test_a_row_gets_the_same_draws_alone_as_in_a_batch() -> None:
    quantizer, vectors = quantizer_of(), torch.randn(5, N, D)
    whole, _ = trained(quantizer, vectors)
    for row in range(5):
        with rows_of_global_batch([row], 5):
            assert_like(trained(quantizer, vectors[row : row + 1])[0][0], whole[row])


@pytest.mark.parametrize("tokens", [0, N])
def test_a_row_gets_the_same_prompt_in_any_piece_and_with_any_padding(tokens: int) -> None:
    encoder, texts = vip_of(tokens=tokens).train(), texts_of()
    whole = prompted(encoder, instance_of(texts)).tokens
    assert_like(prompted(encoder, instance_of(texts, "left", 3)).tokens, whole)
    for places, piece in in_pieces(encoder, texts):
        assert_like(piece.tokens, whole[places])
    assert not torch.allclose(prompted(encoder, instance_of(texts), seed=1).tokens, whole, atol=0.1)


# --- equation 5, straight through ------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [0, N])
@pytest.mark.parametrize("is_training", [True, False])
def test_vectors_get_the_gradient_of_their_quantised_values(tokens: int, is_training: bool) -> None:
    quantizer = quantizer_of(tokens=tokens)
    before = buffers_of(quantizer)
    vectors = torch.randn(2, N, D, requires_grad=True)
    values = trained(quantizer, vectors)[0] if is_training else evaluated(quantizer, vectors)
    assert not torch.allclose(values, vectors, atol=0.1)
    weights = torch.randn(2, N, D)
    ((values * weights).sum() + values.square().sum()).backward()
    assert_like(vectors.grad, weights + 2 * values.detach())  # type: ignore[arg-type]
    assert quantizer.codebook.grad is None and not quantizer.codebook.requires_grad
    assert_unchanged(quantizer, before)


def test_the_codebook_is_a_buffer_and_the_only_one_that_a_cue_keeps() -> None:
    encoder = vip_of()
    assert list(quantizer_in(encoder).parameters()) == []
    assert list(quantizer_in(encoder).state_dict()) == ["codebook"]
    assert set(dict(quantizer_in(encoder).named_buffers())) == {"codebook", "counts", "recent", "drawn", "steps"}
    assert [parameter is encoder.prompt for parameter in encoder.prompt_parameters()] == [True]


# --- evaluation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [0, N])
@pytest.mark.parametrize("evaluation", EVALUATIONS)
def test_evaluation_is_a_mean_of_codes_that_depends_on_the_vector_alone(evaluation: str, tokens: int) -> None:
    quantizer, vectors = quantizer_of(evaluation=evaluation, tokens=tokens), torch.randn(4, N, D)
    quantised = evaluated(quantizer, vectors)
    noise = sample_noise(SHAPE.sample_seed, N, M)
    for row in range(4):
        for token in range(N):
            assert_like(quantised[row, token], literal_evaluation(quantizer, vectors[row, token], token, noise))
        assert_like(evaluated(quantizer, vectors[row : row + 1])[0], quantised[row])
    torch.manual_seed(99)
    assert torch.equal(evaluated(quantizer, vectors), quantised)


def test_drawn_evaluation_follows_its_own_seed_and_gives_equal_rows_equal_draws() -> None:
    quantizer = quantizer_of(evaluation="sample")
    vectors = torch.randn(1, N, D).expand(3, N, D)
    quantised = evaluated(quantizer, vectors)
    draws = draws_in(quantizer, quantised)
    assert torch.equal(draws[0], draws[1]) and torch.equal(draws[0], draws[2])
    assert_like(quantised, quantised[:1].expand(3, N, D))
    others = []
    for seed in range(4, 8):
        other = Quantizer(replace(quantizer.shape, sample_seed=seed), quantizer.codebook)
        others.append(evaluated(other, vectors))
    assert any(not torch.allclose(quantised, other) for other in others)
    before = torch.random.get_rng_state()
    evaluated(quantizer, torch.zeros(2, N, D))
    assert torch.equal(torch.random.get_rng_state(), before)


@pytest.mark.parametrize("tokens", [0, N])
def test_an_assignment_is_the_probability_of_each_of_all_codes(tokens: int) -> None:
    quantizer, vectors = quantizer_of(tokens=tokens), torch.randn(3, N, D)
    probabilities = quantizer.assignment(vectors)
    assert probabilities.shape == (3, N, K)
    for row in range(3):
        for token in range(N):
            shares = multinomial(literal_logits(quantizer, vectors[row, token], token))
            assert_like(probabilities[row, token], torch.tensor(shares))
            assert not any(
                probabilities[row, token, code] for code in range(K) if code not in codes_of(quantizer, token)
            )


@pytest.mark.parametrize("tokens", [0, N])
@pytest.mark.parametrize("evaluation", EVALUATIONS)
@pytest.mark.parametrize("side", SIDES)
@torch.no_grad()
def test_a_row_alone_equals_the_row_in_a_padded_batch(evaluation: str, tokens: int, side: str) -> None:
    encoder, texts = vip_of(evaluation=evaluation, tokens=tokens).eval(), texts_of()
    together = prompted(encoder, instance_of(texts, side, extra=2), seed=1)
    assignment = encoder.assignment(instance_of(texts, side, extra=2))
    for row, text in enumerate(texts):
        alone = instance_of([text])
        assert_like(prompted(encoder, alone, seed=2).tokens[0], together.tokens[row])
        assert_like(encoder.assignment(alone)[0], assignment[row])
    assert not torch.allclose(assignment[0], assignment[2], atol=1e-3)  # they do read the text


# --- equation 6 ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("seed", range(4))
def test_commitment_is_equation_6_and_its_mean_is_weaker_by_all_values_of_a_row(seed: int) -> None:
    choices = random.Random(seed)
    num_rows, num_tokens, width = (choices.randint(1, 6) for _ in range(3))
    context, quantised = (torch.randn(num_rows, num_tokens, width, requires_grad=True) for _ in range(2))
    rows = [literal_vip.commitment(*pair) for pair in zip(context, quantised, strict=True)]
    expected = literal_vip.total_loss(torch.zeros(()), rows, 1.0, 0.0)
    assert_same_with_gradients(commitment(context, quantised, "sum"), expected, {"P^c": context})
    mean = commitment(context, quantised, "mean")
    assert_same_with_gradients(mean, expected / (num_tokens * width), {"P^c": context})
    assert torch.autograd.grad(mean, quantised, allow_unused=True) == (None,)


@dataclass
class LiteralRow:
    """What training computes for one row, by the paper's equations."""

    context: Tensor  # P^c [n D]
    quantised: Tensor  # P^q by straight-through [n D]
    second_view: Tensor  # [n D]
    commitment: Tensor  # []


def literal_row(encoder: VIP, text: Tensor, draws: RowDraws) -> LiteralRow:
    """Sections 4 and 6 for one row, with the row's noise in the order of its use."""
    vectors, shape = encoder.prompt[encoder.num_soft :], encoder.contextualizer.shape
    drop = drop_by(draws, shape.dropout)
    context = literal_context(encoder.contextualizer, vectors, text, drop)
    quantised = context
    if encoder.quantizer is not None:
        noise = draws.uniform(N, encoder.quantizer.shape.draws)[0]
        (codes,) = literal_codes(encoder.quantizer, context.detach().unsqueeze(0), [noise])
        means = torch.stack([mean_of_codes(encoder.quantizer.codebook, drawn) for drawn in codes])
        quantised = literal_vip.straight_through(context, means)
    second_view = context
    if encoder.weights.noise_resilience:
        second_view = literal_context(encoder.contextualizer, vectors, text, drop)
    distance = literal_vip.commitment(context / shape.scale, quantised / shape.scale)
    return LiteralRow(context, quantised, second_view, distance)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("weights", "settings"),
    [
        (LossWeights(0.4, "sum"), {}),
        (LossWeights(0.4, "mean"), {"tokens": N, "skip": False}),
        (LossWeights(0.4, "sum", 0.7), {"num_soft": 0}),
        (LossWeights(0.4, "mean", 0.7, noise_self=True), {"is_relative": True, "temperature": 0.3}),
        (LossWeights(0.0, "sum", 2.0), {"context": {"scale": 3.0}}),
        (LossWeights(0.4, "sum", 0.7), {"context": {"scale": 0.2, "layers": 1, "heads": 4}}),
        (LossWeights(noise_resilience=0.7), {"quantised": False}),
        (LossWeights(0.4, "sum"), {"context": {"dropout": 0.0}, "num_hard": 0}),
    ],
    ids=str,
)
def test_a_training_step_is_the_paper_from_text_to_losses_with_all_gradients(
    weights: LossWeights, settings: dict[str, Any]
) -> None:
    encoder = vip_of(**{"num_hard": 1, "weights": weights, **settings}).train()
    texts, scale = texts_of([3, 1, 4]), encoder.contextualizer.shape.scale
    prompt = prompted(encoder, instance_of(texts, "left", extra=2))
    added, _ = losses_of(encoder, prompt)

    rows = [literal_row(encoder, text, draws) for text, draws in zip(texts, draws_by_row(0, len(texts)), strict=True)]
    vectors = encoder.prompt[encoder.num_soft :]
    tokens = []
    for row in rows:  # equation 2: [T, P + P^q]
        last = literal_vip.with_skip(vectors, row.quantised) if encoder.skip else row.quantised
        tokens.append(torch.cat([encoder.hard, encoder.prompt[: encoder.num_soft], last]))
    views = [torch.stack([getattr(row, name) for row in rows]) / scale for name in ("context", "second_view")]
    resilience = torch.zeros(())
    if weights.noise_resilience:
        assert not torch.allclose(views[0], views[1], atol=0.01)
        resilience = weights.noise_resilience * literal_vip.noise_resilience(*views, weights.noise_self)
    beta = weights.commitment if weights.reduction == "sum" else weights.commitment / (N * D)
    commitments = [row.commitment for row in rows] if encoder.quantizer is not None else [torch.zeros(())]
    expected = literal_vip.total_loss(torch.zeros(()), commitments, beta, resilience)
    sources = dict(encoder.named_parameters())
    parts = [
        torch.cat([values.flatten(), loss.view(1)])
        for values, loss in ((prompt.tokens, added), (torch.stack(tokens), expected))
    ]
    assert_same_with_gradients(parts[0], parts[1], sources)
    if encoder.quantizer is not None:
        distance = math.fsum(row.commitment.item() for row in rows) / (1 if weights.reduction == "sum" else N * D)
        assert float(prompt.statistics["commitment"]) == LITERAL_FLOAT64.approx(distance)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("case", ["vip", "vip mixed", "vip-c"])
def test_a_training_pass_of_t5_is_equations_2_and_6_with_all_gradients(case: str) -> None:
    backbone = tiny_float64("t5")
    settings: dict[str, Any] = {"noise_resilience": 0.7, "heads": 2, "prompt_length": N + 2}
    if case != "vip-c":
        settings |= {"commitment_reduction": "sum", "draws": M}
    model = make_model(backbone, case, soft_tokens=2, **settings).double().train()
    encoder = model.method.encoder
    assert isinstance(encoder, VIP)
    rows = model.rows(backbone, [EXAMPLES[2], EXAMPLES[4]], with_target=True)
    torch.manual_seed(5)
    output = model(backbone, collate(rows, backbone.tokenizer.pad_token_id))
    actual = (
        output.losses.sum() / model.readout.num_losses(rows) + output.aux_loss + encoder.batch_loss(output.compared)[0]
    )

    table, vectors = backbone.model.get_input_embeddings().weight, encoder.prompt[2:]
    likelihood, literal_rows = torch.zeros(()), []
    for row, draws in zip(rows, draws_by_row(5, 2), strict=True):
        text = literal_prompt_tuning.embed(table, row.ids)
        literal_rows.append(literal_row(encoder, text, draws))
        quantised = literal_rows[-1].quantised
        prompt = torch.cat(
            [encoder.prompt[:2], literal_vip.with_skip(vectors, quantised) if encoder.skip else quantised]
        )
        sequence = literal_prompt_tuning.concatenate(torch.cat([encoder.hard, prompt]), text)
        shifted = torch.tensor([[backbone.start_id, *row.target_ids[:-1]]])
        logits = backbone.model(inputs_embeds=sequence.unsqueeze(0), decoder_input_ids=shifted).logits[0]
        likelihood = likelihood + literal_prompt_tuning.log_likelihood(logits, row.target_ids)
    views = [torch.stack([getattr(row, name) for row in literal_rows]) for name in ("context", "second_view")]
    resilience = 0.7 * literal_vip.noise_resilience(*views, includes_self=False)
    beta = 0.0 if case == "vip-c" else encoder.weights.commitment
    num_tokens = sum(len(row.target_ids) for row in rows)
    commitments = [row.commitment for row in literal_rows]
    expected = literal_vip.total_loss(-likelihood / num_tokens, commitments, beta, resilience)
    assert_same_with_gradients(actual, expected, dict(encoder.named_parameters()))


# --- what a step adds up ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("tokens", [0, N])
def test_a_tally_holds_the_sums_of_equations_7_and_8(tokens: int) -> None:
    quantizer, vectors = quantizer_of(tokens=tokens), torch.randn(4, N, D)
    values, statistics = trained(quantizer, vectors)
    draws = draws_in(quantizer, values)
    counts, sums, distance = torch.zeros(K).double(), torch.zeros(K, D).double(), 0.0
    for row in range(4):
        for token in range(N):
            for code in range(K):
                share = float(draws[row, token, code]) / M  # u_ij
                counts[code] += share
                sums[code] += share * vectors[row, token]
            nearest = max(literal_logits(quantizer, vectors[row, token], token))
            distance -= nearest * temperature_of(quantizer)
    assert_like(statistics["counts"], counts)
    assert_like(statistics["sums"], sums)
    assert float(statistics["distance"]) == pytest.approx(distance, rel=1e-4)
    assert float(statistics["vectors"]) == 4 * N
    assert set(statistics) == {"counts", "sums", "distance", "vectors"}


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"tokens": N},
        {"is_empty": True},
        {"is_empty": True, "tokens": N, "codes": 12},
        {"reset_below": 0.1},
        {"reset_below": 0.1, "tokens": N, "codes": 12},
        {"is_relative": True, "temperature": 0.3},
        {"weights": LossWeights(noise_resilience=1.0)},
    ],
    ids=str,
)
def test_tallies_of_pieces_add_up_to_that_of_the_whole_batch(settings: dict[str, Any]) -> None:
    encoder, texts = vip_of(**settings).train(), texts_of()
    prompt = prompted(encoder, instance_of(texts))
    _, whole = losses_of(encoder, prompt)
    summed = encoder.zero_statistics()
    compared = torch.zeros(len(texts), *encoder.compared_shape) if encoder.compared_shape else None
    for places, piece in in_pieces(encoder, texts):
        for name, sums in piece.statistics.items():
            summed[name] += sums
        if compared is not None:
            assert piece.compared is not None
            compared[places] = piece.compared.detach()
    if compared is not None:
        summed |= encoder.batch_loss(compared)[1]
    assert set(whole) == set(summed)
    for name in whole:
        assert_like(summed[name], whole[name], 1e-4)
    assert float(whole["rows"]) == len(texts)


@pytest.mark.parametrize("resilience", [0.0, 1.0])
@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"quantised": False},
        {"is_empty": True},
        {"reset_below": 0.1},
        {"is_empty": True, "reset_below": 0.1, "tokens": N},
        {"num_soft": 0, "num_hard": 2, "rule": "literal"},
    ],
    ids=str,
)
def test_a_blank_tally_has_the_names_and_shapes_of_those_of_training(
    settings: dict[str, Any], resilience: float
) -> None:
    encoder = vip_of(weights=LossWeights(noise_resilience=resilience), **settings).train()
    _, statistics = losses_of(encoder, prompted(encoder, instance_of(texts_of())))
    blank = encoder.zero_statistics()
    assert set(statistics) == set(blank)
    assert ("noise_resilience" in blank) == (resilience > 0) and ("commitment" in blank) == (
        "quantised" not in settings
    )
    assert ("candidates" in blank) == bool(settings.get("is_empty") or settings.get("reset_below"))
    for name, zeros in blank.items():
        assert statistics[name].shape == zeros.shape and statistics[name].dtype == zeros.dtype and not zeros.any()
        assert not statistics[name].requires_grad
    encoder.update_state(statistics, epoch_begins=True)
    # A codebook filled by then asks for no candidates.
    _, after = losses_of(encoder, prompted(encoder, instance_of(texts_of())))
    assert {name: sums.shape for name, sums in after.items()} == {
        name: zeros.shape for name, zeros in encoder.zero_statistics().items()
    }


# --- equations 7 and 8 -----------------------------------------------------------------------------------------------


def steps_of(num: int, undrawn: Sequence[int] = ()) -> list[dict[str, Tensor]]:
    """Tallies as training gives them, in which some codes are not drawn."""
    steps = []
    for _ in range(num):
        counts, sums = 4 * torch.rand(K), 4 * torch.randn(K, D)
        counts[list(undrawn)], sums[list(undrawn)] = 0.0, 0.0
        steps.append({"counts": counts, "sums": sums, "distance": torch.tensor(6.0), "vectors": torch.tensor(2.0)})
    return steps


def drawn_steps(quantizer: Quantizer, num: int) -> Iterator[tuple[dict[str, Tensor], list[list[int]], Tensor]]:
    """Steps of training: their statistics, the codes drawn for each vector, and the vectors."""
    for seed in range(num):
        vectors = torch.randn(4, N, D, generator=torch.Generator().manual_seed(seed))
        _, statistics = trained(quantizer, vectors, seed)
        codes = literal_codes(quantizer, vectors, noise_of(seed, 4))
        yield statistics, [drawn for row in codes for drawn in row], vectors.flatten(0, 1)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("tokens", [0, N])
@pytest.mark.parametrize("epsilon", [0.0, 1e-5, 0.2])
def test_the_rule_vqvae_divides_running_sums_by_smoothed_running_counts(epsilon: float, tokens: int) -> None:
    quantizer = quantizer_of(decay=0.7, epsilon=epsilon, tokens=tokens, temperature=30.0)
    assert torch.equal(quantizer.counts, torch.ones(K))
    counts, sums = [float(M)] * K, M * quantizer.codebook.clone()  # all M draws of a vector count as one with us
    for statistics, codes, vectors in drawn_steps(quantizer, 4):
        counts = literal_vip.updated_counts(counts, codes, 0.7)
        sums = literal_vip.updated_sums(sums, codes, vectors, 0.7)
        quantizer.update_state(statistics, epoch_begins=False)
        divisors = torch.tensor(smoothed(counts, M * epsilon))
        LITERAL_FLOAT64.assert_close(quantizer.counts, torch.tensor(counts) / M)  # not smoothed themselves
        LITERAL_FLOAT64.assert_close(quantizer.codebook, sums / divisors.unsqueeze(1))


def test_the_rule_vqvae_leaves_a_code_whose_count_is_below_epsilon() -> None:
    quantizer = quantizer_of(decay=0.5, epsilon=0.2)
    count, weighted = torch.ones(K).double(), quantizer.codebook.double().clone()
    wanted, num_left = quantizer.codebook.double().clone(), 0
    for statistics in steps_of(6, undrawn=[2]):
        before = quantizer.codebook.clone()
        quantizer.update_state(statistics, epoch_begins=False)
        count = 0.5 * count + 0.5 * statistics["counts"].double()
        weighted = 0.5 * weighted + 0.5 * statistics["sums"].double()
        divisor = smoothed(count.tolist(), 0.2)
        for code in range(K):
            if count[code] >= 0.2:
                wanted[code] = weighted[code] / divisor[code]
            else:
                assert code == 2 and torch.equal(quantizer.codebook[code], before[code])
                num_left += 1
        assert_like(quantizer.codebook, wanted, 1e-4)
    assert num_left == 4  # 1, 0.5, 0.25 | 0.125, ...


def test_an_undrawn_code_of_the_rule_vqvae_keeps_its_place_and_comes_back_where_its_vectors_are() -> None:
    quantizer = quantizer_of(decay=0.9, epsilon=1e-5)
    first = quantizer.codebook[1].clone()
    steps = steps_of(130, undrawn=[1])
    for statistics in steps[:40]:
        quantizer.update_state(statistics, epoch_begins=False)
    assert_like(quantizer.codebook[1], first, 5e-3)  # c = 0.015: hardly smaller
    for statistics in steps[40:]:
        quantizer.update_state(statistics, epoch_begins=False)
    assert quantizer.counts[1] < 1e-5
    kept = quantizer.codebook[1].clone()
    ratio = kept / first
    assert_like(ratio, ratio[0].expand(D), 1e-3)  # shrunk by c / (c + eps), which is a half at c = eps
    assert 0.49 < float(ratio[0]) < 0.6
    quantizer.update_state(steps[0], epoch_begins=False)
    assert torch.equal(quantizer.codebook[1], kept)
    drawn = {name: sums.clone() for name, sums in steps[0].items()}
    drawn["counts"][1], drawn["sums"][1] = 2.0, 2 * torch.arange(8.0)
    quantizer.update_state(drawn, epoch_begins=False)
    assert_like(quantizer.codebook[1], torch.arange(8.0), 2e-3)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("tokens", [0, N])
@pytest.mark.parametrize("epsilon", [0.0, 0.01, 0.2])
def test_the_rule_literal_is_equations_7_and_8_as_printed(epsilon: float, tokens: int) -> None:
    """As printed without epsilon; the authors' code smooths the counts and keeps them so."""
    quantizer = quantizer_of(rule="literal", decay=0.7, epsilon=epsilon, tokens=tokens, temperature=30.0)
    LITERAL_FLOAT64.assert_close(quantizer.counts, torch.full((K,), 1 / K))
    counts, codebook = [M / K] * K, quantizer.codebook.clone()  # all M draws of a vector count as one with us
    for statistics, codes, vectors in drawn_steps(quantizer, 4):
        counts = smoothed(literal_vip.updated_counts(counts, codes, 0.7), M * epsilon)
        codebook = literal_vip.updated_codes(codebook, counts, codes, vectors, 0.7)
        quantizer.update_state(statistics, epoch_begins=False)
        LITERAL_FLOAT64.assert_close(quantizer.counts, torch.tensor(counts) / M)
        LITERAL_FLOAT64.assert_close(quantizer.codebook, codebook)


def test_an_undrawn_code_of_the_rule_literal_drifts_to_the_origin() -> None:
    quantizer = quantizer_of(rule="literal", decay=0.99, epsilon=0.01)
    first = quantizer.codebook[4].clone()
    for statistics in steps_of(50, undrawn=[4]):
        quantizer.update_state(statistics, epoch_begins=False)
    assert_like(quantizer.codebook[4], first * 0.99**50)


def test_a_step_of_the_rule_vqvae_puts_codes_at_the_mean_of_their_vectors_without_a_past() -> None:
    quantizer, vectors = quantizer_of(decay=0.0, epsilon=1e-9), torch.randn(4, N, D)
    before = quantizer.codebook.clone()
    values, statistics = trained(quantizer, vectors)
    draws = draws_in(quantizer, values)
    quantizer.update_state(statistics, epoch_begins=True)
    for code in range(K):
        taken = draws[..., code].flatten()
        wanted = before[code].double()
        if taken.any():
            wanted = (taken.unsqueeze(1) * vectors.flatten(0, 1)).sum(0) / taken.sum()
        assert_like(quantizer.codebook[code], wanted, 1e-4)


@pytest.mark.parametrize("rule", ["vqvae", "literal"])
@pytest.mark.parametrize("is_empty", [False, True])
def test_codes_move_in_learn_alone(rule: str, is_empty: bool) -> None:
    encoder, instance = vip_of(rule=rule, is_empty=is_empty, reset_below=0.5).train(), instance_of(texts_of())
    before = buffers_of(encoder)
    prompt = prompted(encoder, instance)
    (prompt.tokens.sum() + prompt.aux_loss).backward()
    encoder.assignment(instance)
    assert_unchanged(encoder, before)
    encoder.eval()
    prompted(encoder, instance)
    assert_unchanged(encoder, before)
    parameters = {name: value.clone() for name, value in encoder.named_parameters()}
    addresses = {name: value.data_ptr() for name, value in encoder.named_buffers()}
    encoder.update_state(prompt.statistics, epoch_begins=True)
    assert not torch.equal(quantizer_in(encoder).codebook, before["quantizer.codebook"])
    assert {name: value.data_ptr() for name, value in encoder.named_buffers()} == addresses  # moved in place
    for name, value in encoder.named_parameters():
        assert torch.equal(value, parameters[name])


def test_learning_from_the_pieces_of_a_step_is_learning_from_the_batch() -> None:
    texts = texts_of()
    for rule in ("vqvae", "literal"):
        whole, parts = (vip_of(rule=rule, reset_below=0.3).train() for _ in range(2))
        for step in range(3):
            whole.update_state(prompted(whole, instance_of(texts), step).statistics, epoch_begins=step == 0)
            summed = parts.zero_statistics()
            for _, piece in in_pieces(parts, texts, step):
                for name, sums in piece.statistics.items():
                    summed[name] += sums
            parts.update_state(summed, epoch_begins=step == 0)
        for name, value in whole.named_buffers():
            assert_like(dict(parts.named_buffers())[name], value, 1e-4)


def test_what_is_logged_of_a_codebook_is_what_was_drawn() -> None:
    quantizer = quantizer_of()
    recent = [0.0] * K
    drawn = [0.0] * K
    for step, statistics in enumerate([*steps_of(2, undrawn=[0, 1]), *steps_of(2, undrawn=[1, 2])]):
        health = quantizer.update_state(statistics, epoch_begins=step == 2)
        drawn = [0.0] * K if step == 2 else drawn
        for code, count in enumerate(statistics["counts"].tolist()):
            recent[code] = 0.95 * recent[code] + 0.05 * count
            drawn[code] += count
        shares = [count / sum(recent) for count in recent if count]
        assert health["perplexity"] == pytest.approx(math.exp(-sum(p * math.log(p) for p in shares)), rel=1e-4)
        assert health["codes_drawn"] == sum(count > 0 for count in drawn) == 4
        assert health["code_distance"] == 3.0
        assert health["temperature"] == SHAPE.temperature
    assert float(perplexity(torch.ones(K))) == ONE_SUM_FLOAT32.approx(K)


# --- dead codes ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", ["vqvae", "literal"])
@pytest.mark.parametrize("tokens", [0, N])
def test_a_code_drawn_too_seldom_is_put_on_a_vector_of_the_batch(rule: str, tokens: int) -> None:
    quantizer = quantizer_of(reset_below=0.2, rule=rule, decay=0.5, tokens=tokens)
    quantizer.codebook[3] += 1e3  # nobody draws it
    plain = copy.deepcopy(quantizer)
    plain.shape = replace(plain.shape, reset_below=0.0)
    dead: list[int] = []
    for seed in range(6):
        vectors = torch.randn(8, N, D)
        _, statistics = trained(quantizer, vectors, seed)
        for code in range(K):  # whatever is dead, there is a vector for it
            candidates = vectors[:, code // (K // N)] if tokens else vectors.flatten(0, 1)
            assert (statistics["candidates"][code] == candidates).all(1).any()
        health = quantizer.update_state(statistics, epoch_begins=False)
        plain.update_state(statistics, epoch_begins=False)
        dead = [code for code in range(K) if plain.counts[code] < 0.2 * plain.counts.mean()]
        assert health["codes_reset"] == len(dead)
        for code in range(K):
            wanted = statistics["candidates"][code] if code in dead else plain.codebook[code]
            assert torch.equal(quantizer.codebook[code], wanted)
            count = plain.counts.mean() if code in dead else plain.counts[code]
            assert float(quantizer.counts[code]) == ONE_SUM_FLOAT32.approx(float(count))
        if dead:
            break
    assert 3 in dead
    if rule == "vqvae":  # w is reset with c: undrawn in the next step, the code stays where it was put
        kept = quantizer.codebook[dead].clone()
        nothing = {name: sums if name == "candidates" else 0 * sums for name, sums in statistics.items()}
        quantizer.update_state({**nothing, "vectors": statistics["vectors"]}, epoch_begins=False)
        assert_like(quantizer.codebook[dead], kept, 1e-3)


def test_codes_are_left_alone_unless_resets_are_asked_for() -> None:
    quantizer = quantizer_of(decay=0.5)
    assert "candidates" not in quantizer.zero_statistics()
    for statistics in steps_of(20, undrawn=[5]):
        assert "codes_reset" not in quantizer.update_state(statistics, epoch_begins=False)
    assert quantizer.counts[5] < 1e-5


# --- a codebook that starts from the context -------------------------------------------------------------------------


def learned_from(encoder: VIP, texts: Sequence[Tensor], seed: int) -> tuple[Tensor, dict[str, float]]:
    """A step; P^c of its batch, and what was logged."""
    instance = instance_of(texts)
    prompt = prompted(encoder, instance, seed)
    context = encoder.contextualize(instance, draws_of(seed, len(texts)))
    return context.detach(), encoder.update_state(prompt.statistics, epoch_begins=seed == 0)


@pytest.mark.parametrize("fill_after", [1, 3])
@pytest.mark.parametrize("tokens", [0, N])
def test_an_empty_codebook_lets_vectors_pass_and_is_filled_at_its_step(fill_after: int, tokens: int) -> None:
    encoder = vip_of(is_empty=True, fill_after=fill_after, tokens=tokens, skip=False).train()
    quantizer, texts = quantizer_in(encoder), texts_of()
    instance = instance_of(texts)
    for step in range(fill_after):
        assert quantizer.is_empty and encoder.codebook() is None
        prompt = prompted(encoder, instance, step)
        context = encoder.contextualize(instance, draws_of(step, len(texts)))
        assert torch.equal(prompt.tokens[:, 2:], context)
        assert (
            prompt.aux_loss.item() == 0
            and not prompt.statistics["counts"].any()
            and not prompt.statistics["vectors"].any()
        )
        prompt.tokens.sum().backward()
        encoder.eval()
        assert torch.equal(prompted(encoder, instance).tokens[:, 2:], encoder.contextualize(instance))
        encoder.train()
        _, health = learned_from(encoder, texts, step)
        assert "perplexity" not in health
    assert not quantizer.is_empty
    for code in range(K):
        candidates = context[:, code // (K // N)] if tokens else context.flatten(0, 1)
        assert sum(int(torch.allclose(quantizer.codebook[code], candidate, atol=1e-6)) for candidate in candidates) == 1
    assert len(quantizer.codebook.unique(dim=0)) == K  # there were enough for all
    assert_like(quantizer.counts, torch.ones(K))
    before = quantizer.codebook.clone()
    values = prompted(encoder, instance, 9).tokens[:, 2:]
    draws_in(quantizer, values)  # means of codes from now on
    assert encoder.codebook() is quantizer.codebook
    _, health = learned_from(encoder, texts, 9)
    assert "perplexity" in health and not torch.equal(before, quantizer.codebook)


def test_a_batch_with_fewer_vectors_than_codes_fills_them_evenly() -> None:
    encoder = vip_of(is_empty=True, codes=15).train()
    context, _ = learned_from(encoder, texts_of([3, 5]), seed=0)
    times = [
        sum(int(torch.allclose(code, vector, atol=1e-6)) for code in quantizer_in(encoder).codebook)
        for vector in context.flatten(0, 1)
    ]
    assert sorted(times) == [2, 2, 2, 3, 3, 3]


@pytest.mark.parametrize("each", [4, 5, 7])
def test_codes_of_a_token_take_every_vector_of_it_once_before_any_twice(each: int) -> None:
    quantizer, vectors = quantizer_of(codes=N * each, tokens=N), torch.randn(5, N, D)
    quantizer.codebook.zero_()
    candidates = trained(quantizer, vectors)[1]["candidates"].view(N, each, D)
    orders = []
    for token in range(N):
        rows = [[row for row in range(5) if torch.equal(code, vectors[row, token])] for code in candidates[token]]
        orders.append([row for micro_batch in rows for row in micro_batch])
        times = [orders[token].count(row) for row in range(5)]
        assert sum(times) == each and max(times) - min(times) <= 1
    assert orders[0] != orders[1]


def test_which_vectors_become_codes_is_a_matter_of_the_seed() -> None:
    results = []
    for seed in (0, 0, 1):
        encoder = vip_of(is_empty=True, context={"dropout": 0.0}).train()
        learned_from(encoder, texts_of(), seed)
        results.append(quantizer_in(encoder).codebook)
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])


@pytest.mark.parametrize("tokens", [0, N])
@pytest.mark.parametrize("is_empty", [False, True])
def test_candidates_of_two_pieces_are_those_of_the_whole_batch(tokens: int, is_empty: bool) -> None:
    quantizer = quantizer_of(tokens=tokens, reset_below=0.0 if is_empty else 0.1)
    if is_empty:
        quantizer.codebook.zero_()
    vectors = torch.randn(5, N, D)
    whole = trained(quantizer, vectors)[1]["candidates"]
    parts = []
    for places in ([1, 4], [0, 2, 3]):
        with rows_of_global_batch(places, 5):
            parts.append(trained(quantizer, vectors[places])[1]["candidates"])
    assert torch.equal(parts[0] + parts[1], whole)
    assert all(part.any(1).sum() < K for part in parts)
    assert not (parts[0].any(1) & parts[1].any(1)).any()  # each code has one owner
    assert whole.any(1).all()


# --- equations 9 and 10 ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("includes_self", [False, True])
@pytest.mark.parametrize("num_rows", [1, 2, 4])
def test_noise_resilience_and_its_gradient_are_the_equation(num_rows: int, includes_self: bool) -> None:
    first = torch.randn(num_rows, N, D, requires_grad=True)
    second = (first + 0.3 * torch.randn(num_rows, N, D)).detach().requires_grad_()
    loss = noise_resilience(first, second, includes_self)
    expected = literal_vip.noise_resilience(first, second, includes_self)
    if num_rows == 1 and not includes_self:  # there is nothing to compare with
        assert loss == expected == 0
        return
    assert_same_with_gradients(loss, expected, {"first view": first, "second view": second})
    if num_rows > 1:
        assert not torch.allclose(loss, noise_resilience(first, second, not includes_self))


def test_noise_resilience_leaves_the_self_term_out_unless_asked_for() -> None:
    first, second = torch.randn(3, N, D), torch.randn(3, N, D)
    assert torch.equal(noise_resilience(first, second), noise_resilience(first, second, includes_self=False))
    assert LossWeights().noise_self is False and LossWeights().noise_resilience == 0.0


@pytest.mark.parametrize("includes_self", [False, True])
def test_noise_resilience_of_far_views_does_not_overflow(includes_self: bool) -> None:
    first = torch.zeros(2, 1, D)
    second = torch.zeros(2, 1, D)
    first[1, 0, 0], second[0, 0, 1], second[1, 0, 1] = 1e4, 3e4, 4e4
    first.requires_grad_()
    # row 0: its view is 3e4 away, the nearest other 1e4 (or 0, itself); row 1: by Pythagoras
    to_own, nearest = [3e4, math.hypot(1e4, 4e4)], [0.0, 0.0] if includes_self else [1e4, 1e4]
    loss = noise_resilience(first, second, includes_self)
    loss.backward()
    assert loss.item() == pytest.approx((sum(to_own) - sum(nearest)) / 2, rel=1e-5)
    assert first.grad is not None and first.grad.isfinite().all() and first.grad.any()


def test_views_that_are_the_same_have_a_finite_gradient() -> None:
    view = torch.randn(3, N, D, requires_grad=True)
    for includes_self in (False, True):
        noise_resilience(view, view.clone(), includes_self).backward()
        assert view.grad is not None and view.grad.isfinite().all()


@pytest.mark.parametrize("size", [0.06, 13.0])
@pytest.mark.parametrize("quantised", [True, False])
def test_noise_resilience_is_the_same_whatever_the_size_of_the_words(size: float, quantised: bool) -> None:
    def resilience(size: float) -> Tensor:
        encoder = vip_of(
            weights=LossWeights(noise_resilience=1.0), quantised=quantised, context={"scale": size, "dropout": 0.3}
        ).train()
        with torch.no_grad():
            encoder.prompt *= size
        prompt = prompted(encoder, instance_of([text * size for text in texts_of()]))
        assert prompt.compared is not None
        return encoder.batch_loss(prompt.compared)[0]

    wanted = resilience(1.0)
    assert wanted.item() > 0.1
    assert_like(resilience(size), wanted, 1e-4)


# --- the contextualiser ----------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("seed", range(5))
def test_the_contextualiser_is_section_4_1_with_the_gradients_of_everything(seed: int) -> None:
    choices = random.Random(seed)
    heads, width, num_tokens, layers = (
        choices.choice([1, 2, 4]),
        choices.randint(2, 7),
        choices.randint(1, 4),
        1 + seed % 3,
    )
    shape = ContextShape(width, 4 * choices.randint(1, 2), layers, heads, 0.3 * (seed % 2), choices.choice([1.0, 2.5]))
    context = Contextualizer(shape)
    shuffled(context)
    texts = [text.requires_grad_() for text in texts_of([3, 1, 4], width)]
    prompt = torch.randn(num_tokens, width, requires_grad=True)
    actual = context(prompt, instance_of(texts), draws_of(seed, 3) if shape.dropout else None)
    drops = [drop_by(draws, shape.dropout) for draws in draws_by_row(seed, 3)]
    rows = [literal_context(context, prompt, text, drop) for text, drop in zip(texts, drops, strict=True)]
    sources = {f"text {len(text)}": text for text in texts if shape.dropout == 0} | {"prompt": prompt}
    assert_same_with_gradients(actual, torch.stack(rows), sources | dict(context.named_parameters()))


def torch_layer(layer: EncoderLayer) -> nn.TransformerEncoderLayer:
    width = layer.merge.in_features
    twin = nn.TransformerEncoderLayer(
        width,
        layer.heads,
        dim_feedforward=2 * width,
        dropout=0.3,
        activation="relu",
        batch_first=True,
        norm_first=False,
    )
    pairs = {
        "self_attn.in_proj_weight": layer.attend.weight,
        "self_attn.in_proj_bias": layer.attend.bias,
        "self_attn.out_proj.weight": layer.merge.weight,
        "self_attn.out_proj.bias": layer.merge.bias,
        "linear1.weight": layer.up.weight,
        "linear1.bias": layer.up.bias,
        "linear2.weight": layer.down.weight,
        "linear2.bias": layer.down.bias,
        "norm1.weight": layer.norms[0].weight,
        "norm1.bias": layer.norms[0].bias,
        "norm2.weight": layer.norms[1].weight,
        "norm2.bias": layer.norms[1].bias,
    }
    missing = twin.load_state_dict({name: value.detach().clone() for name, value in pairs.items()})  # type: ignore[operator]
    assert not missing.missing_keys and not missing.unexpected_keys
    assert len(list(layer.parameters())) == len(pairs)
    return twin.eval()


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.parametrize("layers", [1, 2, 3])
def test_the_contextualiser_is_torchs_encoder_between_two_projections(layers: int, side: str) -> None:
    context = Contextualizer(context_shape(layers=layers)).eval()
    shuffled(context)
    prompt, instance = torch.randn(N, D, requires_grad=True), instance_of(texts_of(), side)
    actual = context(prompt, instance, None)
    pull = torch.randn_like(actual)
    (gradient,) = torch.autograd.grad((actual * pull).sum(), prompt)

    stack = [torch_layer(layer) for layer in context.layers]  # type: ignore[arg-type]
    weight, bias = context.project.weight, context.project.bias
    states = torch.cat([prompt.expand(len(LENGTHS), -1, -1), instance.embeds], dim=1) @ weight.T + bias
    is_padding = torch.cat([torch.zeros(len(LENGTHS), N, dtype=torch.bool), ~instance.mask], dim=1)
    for layer in stack:
        states = layer(states, src_key_padding_mask=is_padding)
    wanted = states[:, :N] @ context.back.weight.T + context.back.bias
    assert_like(actual, wanted)
    (wanted_gradient,) = torch.autograd.grad((wanted * pull).sum(), prompt)
    assert_like(gradient, wanted_gradient, 1e-4)


class Times(nn.Module):
    """Stands where dropout does, and can be told apart from it."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, values: Tensor) -> Tensor:
        return values * self.factor


class MarkedNoise(RowNoise):
    def __init__(self) -> None:
        pass

    def drop_states(self, values: Tensor) -> Tensor:
        return values * 1.7

    def drop_weights(self, values: Tensor) -> Tensor:
        return values * 0.6


def test_noise_enters_a_layer_where_torchs_dropout_does() -> None:
    layer = EncoderLayer(INNER, HEADS)
    shuffled(layer)
    reference = torch_layer(layer)
    reference.dropout = Times(1.7)  # type: ignore[assignment]
    reference.dropout1 = Times(1.7)  # type: ignore[assignment]
    reference.dropout2 = Times(1.7)  # type: ignore[assignment]
    with torch.no_grad():  # weights times a factor are values times that factor
        reference.self_attn.in_proj_weight[2 * INNER :] *= 0.6
        reference.self_attn.in_proj_bias[2 * INNER :] *= 0.6
    states, visible = torch.randn(2, 5, INNER), torch.tensor([[True] * 5, [True] * 3 + [False] * 2])
    wanted = reference(states, src_key_padding_mask=~visible)
    for num_queries in (5, 2):
        actual = layer(states, visible, num_queries, MarkedNoise())
        assert_like(actual[0], wanted[0, :num_queries])
        assert_like(actual[1, :3], wanted[1, : min(num_queries, 3)])


def test_the_contextualiser_has_no_sense_of_order_in_the_text() -> None:
    context = Contextualizer(context_shape()).eval()
    shuffled(context)
    prompt, texts = torch.randn(N, D), texts_of()
    turned = [text.flip(0) for text in texts]
    assert_like(context(prompt, instance_of(turned), None), context(prompt, instance_of(texts), None))


@pytest.mark.parametrize("scale", [0.05, 30.0])
def test_a_scale_is_the_unit_of_inputs_and_outputs(scale: float) -> None:
    plain, scaled = Contextualizer(context_shape()), Contextualizer(context_shape(scale=scale))
    shuffled(plain)
    scaled.load_state_dict(plain.state_dict())
    prompt, instance = torch.randn(N, D), instance_of(texts_of())
    smaller = replace(instance, embeds=instance.embeds / scale)
    assert_like(scaled(prompt, instance, None) / scale, plain(prompt / scale, smaller, None))


def test_the_contextualiser_reads_embeddings_of_any_format_in_float32() -> None:
    context = Contextualizer(context_shape())
    shuffled(context)
    prompt, instance = torch.randn(N, D), instance_of(texts_of())
    rounded = replace(instance, embeds=instance.embeds.bfloat16())
    actual = context(prompt, rounded, None)
    assert actual.dtype == torch.float32
    assert torch.equal(actual, context(prompt, replace(instance, embeds=rounded.embeds.float()), None))


@pytest.mark.parametrize("with_noise", [False, True])
def test_neither_padding_nor_neighbours_change_a_row(with_noise: bool) -> None:
    encoder, texts = vip_of(), texts_of()

    def context_of(places: Sequence[int], side: str, extra: int) -> Tensor:
        with rows_of_global_batch(places, len(texts)):
            draws = draws_of(4, len(places)) if with_noise else None
        return encoder.contextualize(instance_of([texts[place] for place in places], side, extra), draws)

    whole = context_of(range(5), "right", 0)
    assert_like(context_of(range(5), "right", 4), whole)
    assert_like(context_of(range(5), "left", 2), whole)
    for number, places in enumerate(PIECES):
        assert_like(context_of(places, SIDES[number % 2], number), whole[places])
    if with_noise:
        assert not torch.allclose(whole, encoder.contextualize(instance_of(texts)), atol=0.1)


def test_a_text_without_tokens_leaves_the_prompt_to_itself() -> None:
    encoder = vip_of().train()
    mask = torch.zeros(2, 3, dtype=torch.bool)
    tokens = prompted(encoder, Instance(torch.randn(2, 3, D), mask)).tokens
    assert tokens.isfinite().all()
    assert_like(prompted(encoder, Instance(torch.randn(2, 0, D), mask[:, :0])).tokens, tokens)


@pytest.mark.parametrize("share", [0.1, 0.4])
def test_noise_drops_its_share_of_a_rows_own_numbers_and_scales_up_the_rest(share: float) -> None:
    visible = torch.ones(20, 30, dtype=torch.bool)
    visible[:10, 20:] = False
    visible[10:, 5:15] = False  # whatever the padding, 20 positions are a row's own
    noise = RowNoise(draws_of(0, 20), visible, share)
    tokens = noise.drop_states(torch.ones(20, 30, 16))
    weights = noise.drop_weights(torch.ones(20, 4, 30, 30))
    pairs = (visible[:, :, None] & visible[:, None, :])[:, None].expand(-1, 4, -1, -1)
    for values, is_real in ((tokens, visible[..., None].expand(-1, -1, 16)), (weights, pairs)):
        kept = values[is_real]
        assert_like(kept.unique(), torch.tensor([0.0, 1 / (1 - share)]))
        allowed = 4 * math.sqrt(share * (1 - share) / len(kept))
        assert abs(float((kept == 0).double().mean()) - share) < allowed
    assert len({tuple(row[is_real].flatten().tolist()) for row, is_real in zip(tokens, visible, strict=True)}) == 20
    assert not torch.equal(weights[:, 0], weights[:, 1])  # heads have noise of their own
    assert not torch.equal(noise.drop_states(torch.ones(20, 30, 16)), tokens)
    for values in (torch.randn(20, 30, 16), torch.randn(20, 4, 30, 30)):
        silent = RowNoise(draws_of(0, 20), visible, 0.0)
        assert torch.equal(silent.drop_states(values) if values.ndim == 3 else silent.drop_weights(values), values)


def test_noise_of_a_row_is_drawn_at_its_own_length() -> None:
    visible_tokens = torch.tensor([True] * N + [True] * 4)
    right, left = (
        torch.cat([visible_tokens, torch.zeros(3).bool()]),
        torch.cat([visible_tokens[:N], torch.zeros(2).bool(), visible_tokens[N:]]),
    )
    results = []
    for visible in (visible_tokens, right, left):
        noise = RowNoise(draws_of(1, 1), visible.unsqueeze(0), 0.5)
        size = len(visible)
        parts = [noise.drop_states(torch.ones(1, size, 3))[:, visible]]
        parts.append(noise.drop_weights(torch.ones(1, 2, size, size))[:, :, visible][..., visible])
        parts.append(noise.drop_weights(torch.ones(1, 2, N, size))[..., visible])  # the prompt alone asks
        parts.append(noise.drop_states(torch.ones(1, N, 3)))
        results.append(torch.cat([part.flatten() for part in parts]))
    assert torch.equal(results[0], results[1]) and torch.equal(results[0], results[2])


def test_dropout_of_zero_is_the_same_in_training_as_in_evaluation() -> None:
    encoder, instance = vip_of(context={"dropout": 0.0}), instance_of(texts_of())
    assert torch.equal(encoder.contextualize(instance, draws_of(0, 5)), encoder.contextualize(instance))


def test_a_contextualiser_starts_as_torch_starts_one() -> None:
    first, other, third = (Contextualizer(context_shape(inner=32, heads=4)) for _ in range(3))
    for context, seed in ((first, 1), (other, 1), (third, 2)):
        context.initialize(torch.Generator().manual_seed(seed))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), other.parameters(), strict=True))
    assert not torch.equal(first.back.weight, third.back.weight)
    for layer in first.layers:
        assert isinstance(layer, EncoderLayer)
        assert not layer.attend.bias.any() and not layer.merge.bias.any()
        bounds = {
            layer.attend.weight: math.sqrt(6 / (32 + 96)),
            layer.merge.weight: 32**-0.5,
            layer.up.weight: 32**-0.5,
            layer.up.bias: 32**-0.5,
            layer.down.weight: 64**-0.5,
            layer.down.bias: 64**-0.5,
        }
        for values, bound in bounds.items():
            assert 0.8 * bound < values.abs().max().item() <= bound
        for norm in layer.norms:
            assert isinstance(norm, nn.LayerNorm) and (norm.weight == 1).all() and not norm.bias.any()
    for linear in (first.project, first.back):
        for values in linear.parameters():
            assert 0.8 * linear.in_features**-0.5 < values.abs().max().item() <= linear.in_features**-0.5


def test_the_contextualiser_has_the_papers_number_of_parameters() -> None:
    context = Contextualizer(ContextShape(768, 32, layers=2, heads=4, dropout=0.1, scale=1.0))
    assert sum(parameter.numel() for parameter in context.parameters()) == 67_040
    assert sum(parameter.numel() for parameter in context.layers[0].parameters()) == 8 * 32**2 + 11 * 32


# --- the whole prompt ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skip", [False, True])
@pytest.mark.parametrize("quantised", [False, True])
@pytest.mark.parametrize(("num_soft", "num_hard"), [(0, 0), (2, 0), (0, 3), (2, 3)])
def test_a_prompt_is_frozen_words_then_soft_vectors_then_those_that_read(
    skip: bool, quantised: bool, num_soft: int, num_hard: int
) -> None:
    encoder = vip_of(num_soft, num_hard, skip, quantised=quantised).eval()
    prompt = prompted(encoder, instance_of(texts_of()))
    assert encoder.prompt_length == num_hard + num_soft + N
    assert prompt.tokens.shape == (5, encoder.prompt_length, D) and prompt.mask.all()
    assert prompt.mask.shape == prompt.tokens.shape[:2]
    assert prompt.aux_loss.item() == 0 and not prompt.aux_loss.requires_grad and dict(prompt.statistics) == {}
    vectors = encoder.prompt[num_soft:].detach()
    for row, text in enumerate(texts_of()):
        values = literal_context(encoder.contextualizer, vectors, text).detach()
        if quantised:
            quantizer, unused = quantizer_in(encoder), torch.zeros(0)
            values = torch.stack([literal_evaluation(quantizer, v, token, unused) for token, v in enumerate(values)])
        wanted = literal_vip.with_skip(vectors, values) if skip else values
        assert_like(prompt.tokens[row], torch.cat([encoder.hard, encoder.prompt[:num_soft], wanted]))
    assert encoder.static_vectors() is encoder.prompt


def test_hard_words_are_frozen_and_not_kept() -> None:
    encoder = vip_of(num_hard=3).train()
    assert not any(name.startswith("hard") for name in encoder.state_dict())
    assert not any(name.startswith("hard") for name, _ in encoder.named_parameters())
    before = encoder.hard.clone()
    prompted(encoder, instance_of(texts_of())).tokens.square().sum().backward()
    assert not encoder.hard.requires_grad and encoder.hard.grad is None and torch.equal(encoder.hard, before)


def test_soft_vectors_and_hard_words_do_not_enter_the_contextualiser() -> None:
    encoder, instance = vip_of(num_soft=2, num_hard=2).eval(), instance_of(texts_of())
    before = prompted(encoder, instance).tokens
    (before[:, 4:] * torch.randn(5, N, D)).sum().backward()
    assert encoder.prompt.grad is not None
    assert not encoder.prompt.grad[:2].any() and encoder.prompt.grad[2:].all()
    with torch.no_grad():
        encoder.prompt[:2] += 1
        encoder.hard += 1
    after = prompted(encoder, instance).tokens
    assert_like(after[:, :4], before[:, :4] + 1)
    assert torch.equal(after[:, 4:], before[:, 4:])
    with torch.no_grad():
        encoder.prompt[2] += 1
    assert not torch.allclose(prompted(encoder, instance).tokens[:, 5:], after[:, 5:], atol=1e-3)


def test_what_is_logged_of_a_prompt_is_its_size_and_its_losses() -> None:
    encoder = vip_of(weights=LossWeights(commitment=0.4, noise_resilience=0.5), skip=False).train()
    prompt = prompted(encoder, instance_of(texts_of()))
    values = prompt.tokens[:, 2:].detach()
    energy = math.fsum(squared_distance(vector, torch.zeros(D)) for row in values for vector in row) / (5 * N)
    static = math.fsum(squared_distance(vector, torch.zeros(D)) for vector in encoder.prompt[2:]) / N
    assert float(prompt.statistics["energy"]) == pytest.approx(5 * energy, rel=1e-5)
    loss, statistics = losses_of(encoder, prompt)
    health = encoder.update_state(statistics, epoch_begins=True)
    assert health["prompt_ratio"] == pytest.approx(math.sqrt(energy / static), rel=1e-5)
    summed = 0.4 * health["commitment"] + 0.5 * health["noise_resilience"]
    assert summed == pytest.approx(loss.item(), rel=1e-5)
    without = vip_of(quantised=False).train()
    plain = prompted(without, instance_of(texts_of()))
    assert set(plain.statistics) == {"rows", "energy"} and float(plain.aux_loss) == 0
    assert set(without.update_state(plain.statistics, epoch_begins=True)) == {"prompt_ratio"}
    assert without.codebook() is None


# --- memory ----------------------------------------------------------------------------------------------------------


class Sizes(TorchDispatchMode):
    """The largest result of any operation."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.largest, self.names = 0, set[str]()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.names.add(str(func))
        self.largest = max([self.largest, *(leaf.numel() for leaf in tree_leaves(result) if isinstance(leaf, Tensor))])
        return result


@pytest.mark.parametrize(
    "settings", [{}, {"tokens": 5}, {"rule": "literal", "is_relative": True}, {"reset_below": 0.1}], ids=str
)
def test_a_training_step_never_holds_the_drawn_rows_side_by_side(settings: dict[str, Any]) -> None:
    num_rows, num_tokens, draws, codes, width = 4, 5, 10, 50, 64
    shape = replace(SHAPE, codes=codes, draws=draws, temperature=50.0, **settings)
    encoder = VIP(
        torch.randn(num_tokens, width),
        0,
        context_shape(width=width),
        Quantizer(shape, torch.randn(codes, width)),
        True,
        LossWeights(noise_resilience=1.0),
        torch.zeros(0, width),
    ).train()
    instance = instance_of(texts_of([3, 6, 2, 4], width))
    with Sizes() as sizes:
        prompt = encoder(instance)
        loss, statistics = losses_of(encoder, prompt)
        (prompt.tokens.square().sum() + loss).backward()
        encoder.update_state(statistics, epoch_begins=True)
    assert any("backward" in name for name in sizes.names)  # the mode saw both directions
    assert codes * width <= sizes.largest < num_rows * num_tokens * draws * min(codes, width)
    with Sizes() as seen:
        quantizer_in(encoder).codebook[torch.zeros(num_rows, num_tokens, draws, dtype=torch.long)]
    assert seen.largest == num_rows * num_tokens * draws * width  # what would not have passed


# --- VIP-IDP ---------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
def test_vip_idp_is_two_matrices_without_biases() -> None:
    projection = VIPIDP(inputs=7, inner=4, length=N, width=D)
    projection.initialize(torch.Generator().manual_seed(0))
    assert {name: tuple(parameter.shape) for name, parameter in projection.named_parameters()} == {
        "down.weight": (4, 7),
        "up.weight": (N * D, 4),
    }
    representation = torch.randn(3, 7, requires_grad=True)
    prompt = projection(Instance(torch.randn(3, 2, D), torch.ones(3, 2).bool(), representation))
    assert prompt.tokens.shape == (3, N, D) and projection.prompt_length == N and prompt.mask.all()
    down, up = projection.down.weight, projection.up.weight
    rows = [literal_vip.generated_prompt(vector, down, up, N) for vector in representation]
    sources = {"M(x)": representation, "down": down, "up": up}
    assert_same_with_gradients(prompt.tokens, torch.stack(rows), sources)
    inner = representation @ down.T
    assert (inner > 0).any() and (inner < 0).any()
    nothing = projection(Instance(torch.randn(1, 2, D), torch.ones(1, 2).bool(), torch.zeros(1, 7)))
    assert not nothing.tokens.any()


def test_vip_idp_of_width_12_has_930816_numbers_on_t5_base() -> None:
    projection = VIPIDP(inputs=768, inner=12, length=100, width=768)
    assert sum(parameter.numel() for parameter in projection.parameters()) == 12 * 768 * 101 == 930_816
