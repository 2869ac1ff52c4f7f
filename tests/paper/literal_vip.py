"""VIP, written from the text of Bhardwaj et al. (2022) alone, in plain loops. It knows nothing of softcue.

Where the paper is silent, an argument says so: dropout (`drop`), the uniform numbers behind the draws, and which term
of equation 9 counts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Dense = tuple[Tensor, Tensor]  # weight [outputs inputs], bias [outputs]
Drop = Callable[[Tensor], Tensor]


def unchanged(values: Tensor) -> Tensor:
    """No dropout."""
    return values


# --- section 4.1: contextualisation ----------------------------------------------------------------------------------


@dataclass(frozen=True)
class EncoderLayerWeights:
    """The weights of a transformer encoder layer (Vaswani et al. 2017): d' -> d', 2d' inside."""

    query: Dense
    key: Dense
    value: Dense
    merge: Dense
    up: Dense
    down: Dense
    attention_norm: Dense
    output_norm: Dense


def dense(vector: Tensor, layer: Dense) -> Tensor:
    """W x + b. [inputs] -> [outputs]"""
    weight, bias = layer
    return weight @ vector + bias


def layer_norm(vector: Tensor, norm: Dense) -> Tensor:
    """Zero mean and unit variance, then a scale and a shift."""
    weight, bias = norm
    mean = vector.sum() / len(vector)
    variance = ((vector - mean) ** 2).sum() / len(vector)
    return (vector - mean) / torch.sqrt(variance + 1e-5) * weight + bias


def softmax(scores: Tensor) -> Tensor:
    """Shares in proportion to e^score."""
    powers = torch.exp(scores - scores.max().detach())
    return powers / powers.sum()


def encoder_layer(
    states: Sequence[Tensor], weights: EncoderLayerWeights, num_heads: int, num_wanted: int, drop: Drop = unchanged
) -> list[Tensor]:
    """Attention and two dense layers, each with a residual sum that is normed. The first `num_wanted` states."""
    queries, keys, values = (
        [dense(state, part) for state in states] for part in (weights.query, weights.key, weights.value)
    )
    size = len(queries[0]) // num_heads
    shares = []  # of all positions, for each head of each position
    for place in range(num_wanted):
        for head in range(num_heads):
            part = slice(head * size, (head + 1) * size)
            scores = [(queries[place][part] * key[part]).sum() / math.sqrt(size) for key in keys]
            shares.append(softmax(torch.stack(scores)))
    kept = drop(torch.stack(shares).view(num_wanted, num_heads, -1).transpose(1, 2))  # [Q S H]
    merged = []
    for place in range(num_wanted):
        heads = []
        for head in range(num_heads):
            part = slice(head * size, (head + 1) * size)
            total = torch.zeros(size, dtype=states[0].dtype)
            for position, value in enumerate(values):
                total = total + kept[place, position, head] * value[part]
            heads.append(total)
        merged.append(dense(torch.cat(heads), weights.merge))
    attended = [
        layer_norm(state + change, weights.attention_norm)
        for state, change in zip(states[:num_wanted], drop(torch.stack(merged)), strict=True)
    ]
    inner = [dense(state, weights.up) for state in attended]
    inner = list(drop(torch.stack([values * (values > 0) for values in inner])))
    outer = drop(torch.stack([dense(values, weights.down) for values in inner]))
    return [layer_norm(state + change, weights.output_norm) for state, change in zip(attended, outer, strict=True)]


def contextualise(
    prompt: Tensor,
    text: Tensor,
    project: Dense,
    layers: Sequence[EncoderLayerWeights],
    back: Dense,
    num_heads: int,
    drop: Drop = unchanged,
) -> Tensor:
    """Section 4.1: [P, X] projected to d', through encoder layers, and the states of P back to d: P^c.

    No positions are added: the section names none. [n d], [T d] -> [n d]
    """
    states = [dense(vector, project) for vector in [*prompt, *text]]
    for number, weights in enumerate(layers, start=1):
        states = encoder_layer(states, weights, num_heads, len(prompt) if number == len(layers) else len(states), drop)
    return torch.stack([dense(state, back) for state in states[: len(prompt)]])


# --- section 4.2: quantisation ---------------------------------------------------------------------------------------


def squared_distance(vector: Tensor, other: Tensor) -> float:
    """||p - e||^2"""
    return math.fsum((a - b) ** 2 for a, b in zip(vector.tolist(), other.tolist(), strict=True))


def logits(vector: Tensor, codebook: Tensor, constant: float, codes: Sequence[int] | None = None) -> list[float]:
    """Equation 3, divided by the normalization constant. Codes that a token may not take (section 6) are left out."""
    may_take = range(len(codebook)) if codes is None else codes
    return [
        -squared_distance(vector, code) / constant if number in may_take else -math.inf
        for number, code in enumerate(codebook)
    ]


def dedicated_codes(token: int, num_tokens: int, num_codes: int) -> list[int]:
    """Section 6: the codes that belong to one prompt token alone, as many for each."""
    per_token = num_codes // num_tokens
    return [token * per_token + place for place in range(per_token)]


def multinomial(scores: Sequence[float]) -> list[float]:
    """Equation 4: the probability of each code."""
    largest = max(scores)
    weights = [math.exp(score - largest) for score in scores]
    return [weight / math.fsum(weights) for weight in weights]


def draw(probabilities: Sequence[float], number: float) -> int:
    """Equation 4, one draw: the code whose stretch of [0, 1) a uniform number falls in."""
    reached = 0.0
    for code, probability in enumerate(probabilities):
        reached += probability
        if number < reached:
            return code
    raise AssertionError("probabilities do not add up to one")


def mean_of_codes(codebook: Tensor, codes: Sequence[int]) -> Tensor:
    """Equation 5: p^q, the mean of the m drawn codes. [K d] -> [d]"""
    mean = torch.zeros(codebook.shape[1], dtype=torch.float64)
    for code in codes:
        mean += codebook[code].double() / len(codes)
    return mean


def expectation(codebook: Tensor, probabilities: Sequence[float]) -> Tensor:
    """Equation 5 for m without end: each code as often as its probability. [K d] -> [d]"""
    mean = torch.zeros(codebook.shape[1], dtype=torch.float64)
    for code, probability in zip(codebook, probabilities, strict=True):
        mean += probability * code.double()
    return mean


class CopiedGradient(torch.autograd.Function):
    """The straight-through estimator: forward P^q, backward the gradient of P^q handed to P^c unchanged."""

    @staticmethod
    def forward(context: object, vectors: Tensor, quantised: Tensor) -> Tensor:  # type: ignore[override]
        return quantised.clone()

    @staticmethod
    def backward(context: object, gradient: Tensor) -> tuple[Tensor, None]:  # type: ignore[override]
        return gradient, None


def straight_through(vectors: Tensor, quantised: Tensor) -> Tensor:
    """Section 4.2 and 4.3: no gradient reaches the codebook, P^c gets that of P^q."""
    result: Tensor = CopiedGradient.apply(vectors, quantised)  # type: ignore[no-untyped-call]
    return result


def with_skip(prompt: Tensor, quantised: Tensor) -> Tensor:
    """Equation 2: P + P^q, which takes the place of P. [n d]"""
    return torch.stack([vector + other for vector, other in zip(prompt, quantised, strict=True)])


# --- section 4.3: training -------------------------------------------------------------------------------------------


def commitment(context: Tensor, quantised: Tensor) -> Tensor:
    """Equation 6, the sum for one sample: sum_i ||p^c_i - sg(p^q_i)||^2. [n d], [n d] -> []"""
    total = torch.zeros((), dtype=context.dtype)
    for vector, other in zip(context, quantised.detach(), strict=True):
        total = total + ((vector - other) ** 2).sum()
    return total


def total_loss(cross_entropy: Tensor, commitments: Sequence[Tensor], beta: float, resilience: Tensor | float) -> Tensor:
    """Equation 6 for a batch, the mean over its samples; section 6 adds noise resilience."""
    mean = torch.zeros((), dtype=cross_entropy.dtype)
    for value in commitments:
        mean = mean + value / len(commitments)
    return cross_entropy + beta * mean + resilience


def updated_counts(counts: Sequence[float], draws: Sequence[Sequence[int]], decay: float) -> list[float]:
    """Equation 7: c_j = decay c_j + (1 - decay) sum_{i, p} 1[z_ip = e_j]. `draws` are the m codes of each vector i."""
    new = []
    for code, count in enumerate(counts):
        times = sum(1 for codes in draws for drawn in codes if drawn == code)
        new.append(decay * count + (1 - decay) * times)
    return new


def updated_codes(
    codebook: Tensor, counts: Sequence[float], draws: Sequence[Sequence[int]], vectors: Tensor, decay: float
) -> Tensor:
    """Equation 8: e_j = decay e_j + (1 - decay) sum_{i, p} 1[z_ip = e_j] p^c_i / c_j, with the new counts. [K d]"""
    new = []
    for code in range(len(codebook)):
        total = torch.zeros(codebook.shape[1], dtype=torch.float64)
        for vector, codes in zip(vectors.double(), draws, strict=True):
            for drawn in codes:
                if drawn == code:
                    total = total + vector / counts[code]
        new.append(decay * codebook[code].double() + (1 - decay) * total)
    return torch.stack(new)


def updated_sums(sums: Tensor, draws: Sequence[Sequence[int]], vectors: Tensor, decay: float) -> Tensor:
    """van den Oord et al. (2017), which section 4.3 follows: running sums of the vectors; e_j is sums_j / c_j. [K d]"""
    new = []
    for code in range(len(sums)):
        total = torch.zeros(sums.shape[1], dtype=torch.float64)
        for vector, codes in zip(vectors.double(), draws, strict=True):
            for drawn in codes:
                if drawn == code:
                    total = total + vector
        new.append(decay * sums[code].double() + (1 - decay) * total)
    return torch.stack(new)


def smoothed(counts: Sequence[float], epsilon: float) -> list[float]:
    """Laplace smoothing of van den Oord's code, with the same sum. No equation of the paper has it."""
    total = math.fsum(counts)
    return [(count + epsilon) / (total + len(counts) * epsilon) * total for count in counts]


# --- section 6: noise resilience -------------------------------------------------------------------------------------


def similarity(vector: Tensor, other: Tensor) -> Tensor:
    """sim(i, j) = -||p_i - p_j||"""
    return -torch.sqrt(((vector - other) ** 2).sum())


def noise_resilience(first: Tensor, second: Tensor, includes_self: bool) -> Tensor:
    """Equations 9 and 10 for every token position, averaged over positions. [B n d], [B n d] -> []

    As printed, the sum over j has j = i of the same view, e^0 = 1, a constant that no vector changes; without it, the
    loss compares with other samples and with the second view alone.
    """
    num_samples, num_tokens, _ = first.shape
    total = torch.zeros((), dtype=first.dtype)
    for token in range(num_tokens):
        for i in range(num_samples):
            terms = torch.zeros((), dtype=first.dtype)
            for j in range(num_samples):
                if j != i:
                    terms = terms + torch.exp(similarity(first[i, token], first[j, token]))
                elif includes_self:
                    terms = terms + 1.0
                terms = terms + torch.exp(similarity(first[i, token], second[j, token]))
            total = total - torch.log(torch.exp(similarity(first[i, token], second[i, token])) / terms)
    return total / (num_samples * num_tokens)


# --- section 5 and appendix A.4: the ablation VIP-IDP ----------------------------------------------------------------


def generated_prompt(vector: Tensor, down: Tensor, up: Tensor, num_tokens: int) -> Tensor:
    """Appendix A.4: a feed-forward generator with weights alone, no bias terms. [R] -> [n d]"""
    inner = []
    for row in down:
        value = (row * vector).sum()
        inner.append(value * (value > 0))
    outer = [(row * torch.stack(inner)).sum() for row in up]
    width = len(outer) // num_tokens
    return torch.stack([torch.stack(outer[token * width : (token + 1) * width]) for token in range(num_tokens)])
