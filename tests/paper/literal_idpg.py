"""IDPG, written from the text of Wu et al. (2022) alone, in plain loops. It knows nothing of softcue.

Matrices have the paper's orientation: y = W x + b with W of shape [outputs, inputs]. The paper calls the activation "a
nonlinear function" and names no dropout inside the generator; both are arguments here.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

Token = TypeVar("Token")
Function = Callable[[Tensor], Tensor]


def unchanged(values: Tensor) -> Tensor:
    """No dropout."""
    return values


# --- section 3.1: instance-dependent generation ----------------------------------------------------------------------


def perceptron(
    vector: Tensor,
    first: tuple[Tensor, Tensor],
    second: tuple[Tensor, Tensor],
    num_tokens: int,
    activation: Function,
    drop: Function = unchanged,
) -> Tensor:
    """Equation 1, G(M(x)): d -> m dimensions, a nonlinear function, then back to d dimensions with t timestamps.

    `first` is W1 [m d] and its bias [m], `second` is W2 [t*d m] and its bias [t*d]. [d] -> [t d]
    """
    (w1, b1), (w2, b2) = first, second
    inner = []
    for row, bias in zip(w1, b1, strict=True):
        inner.append(activation((row * vector).sum() + bias))
    hidden = drop(torch.stack(inner))
    outer = []
    for row, bias in zip(w2, b2, strict=True):
        outer.append((row * hidden).sum() + bias)
    width = len(outer) // num_tokens
    return torch.stack([torch.stack(outer[token * width : (token + 1) * width]) for token in range(num_tokens)])


def class_probabilities(weight: Tensor, bias: Tensor, state: Tensor) -> Tensor:
    """Equation 2: softmax(W h_[CLS]). [C d], [C], [d] -> [C]"""
    scores = torch.stack([(row * state).sum() + number for row, number in zip(weight, bias, strict=True)])
    powers = torch.exp(scores - scores.max().detach())
    return powers / powers.sum()


def gelu(value: Tensor) -> Tensor:
    """x times the share of a normal distribution below x."""
    return value * 0.5 * (1 + torch.erf(value / math.sqrt(2)))


ACTIVATIONS: dict[str, Function] = {
    "gelu": gelu,
    "relu": lambda value: value * (value > 0),
    "tanh": lambda value: (torch.exp(value) - torch.exp(-value)) / (torch.exp(value) + torch.exp(-value)),
    "none": unchanged,
}


# --- section 3.2.1: PHM layers ---------------------------------------------------------------------------------------


def kronecker(left: Tensor, right: Tensor) -> Tensor:
    """The Kronecker product: block (r, c) is left[r, c] times right. [a b], [c d] -> [ac bd]"""
    bands = []
    for row in left:
        bands.append(torch.cat([number * right for number in row], dim=1))
    return torch.cat(bands)


def phm_matrix(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    """Equation 4: W = sum_i A_i (x) B_i. n of [n n], n of [m/n d/n] -> [m d]"""
    assert len(a) == len(b) == a[0].shape[0] == a[0].shape[1]
    total = kronecker(a[0], b[0])
    for left, right in zip(a[1:], b[1:], strict=True):
        total = total + kronecker(left, right)
    return total


# --- section 3.2.2 and 4.5.3: prompts for every layer ----------------------------------------------------------------


def pick(version: str, layer: int, matrices: Sequence[Token], biases: Sequence[Tensor]) -> tuple[Token, Tensor]:
    """Section 4.5.3: what layer i has of W and b. S shares both, M shares W alone, L shares nothing."""
    return matrices[layer if version == "L" else 0], biases[0 if version == "S" else layer]


def multi_layer_pass(
    states: Tensor,
    places: Sequence[int],
    layers: Sequence[Callable[[Tensor], Tensor]],
    prompt_of: Callable[[int, Tensor], Tensor],
    replaces: bool = False,
) -> Tensor:
    """Section 3.2.2: every layer after the first gets its own prompt at the places where the first had one.

    `states` are the inputs of the first layer, its prompt included. `prompt_of(layer, h)` is the prompt of a layer,
    where h is the [CLS] state that the layer before gave (section 4.5.3, "previous layer's output"). The prompt is
    added to what stands there. [S d] -> [S d]
    """
    for number, layer in enumerate(layers):
        if number > 0:
            rows = list(states)
            for place, vector in zip(places, prompt_of(number, states[0]), strict=True):
                rows[place] = vector if replaces else rows[place] + vector
            states = torch.stack(rows)
        states = layer(states)
    return states


# --- section 4.5.1: sentence vectors ---------------------------------------------------------------------------------


def cls_vector(states: Tensor) -> Tensor:
    """Section 4.5.1: M(x) is the state of [CLS], the first token, of the pre-trained model alone. [S d] -> [d]"""
    return states[0]


def glove_vector(words: Sequence[str], vectors: Mapping[str, Sequence[float]]) -> list[float]:
    """Equation 5: the mean of the words' vectors; words without a vector do not count."""
    present = [vectors[word] for word in words if word in vectors]
    return [math.fsum(column) / len(present) for column in zip(*present, strict=True)]


# --- appendix A.4: positions and supplementary training --------------------------------------------------------------


def insert_prompt(
    sentences: Sequence[Sequence[Token]], prompt: Sequence[Token], position: int, cls: Token, between: Sequence[Token]
) -> list[Token]:
    """Figure 6: [CLS] 0 Sent1 1 [SEP] 2 Sent2 3 [SEP] [SEP] 4 [SEP], with the prompt at its position.

    The last two [SEP] are there for position 4 only. `between` is what the model writes between two sentences: one
    [SEP], or RoBERTa's two.
    """
    sep = between[0]
    sequence: list[Token] = [cls]
    if position == 0:
        sequence += prompt
    sequence += sentences[0]
    if position == 1:
        sequence += prompt
    if len(sentences) == 2:
        sequence += between
        if position == 2:
            sequence += prompt
        sequence += sentences[1]
        if position == 3:
            sequence += prompt
    sequence.append(sep)
    if position == 4:
        sequence += [sep, *prompt, sep]
    return sequence


def doubled(pairs: Sequence[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """Appendix A.4: MNLI doubled, the two sentences reordered on one shard. Rows are (sentence, sentence, label)."""
    shard = []
    for first, second, label in pairs:
        shard.append((second, first, label))
    return [*pairs, *shard]


# --- appendix A.5.1: generator architectures -------------------------------------------------------------------------


def layer_norm(vector: Tensor, weight: Tensor, bias: Tensor, epsilon: float = 1e-5) -> Tensor:
    """Layer normalization (Ba et al. 2016). [d] -> [d]"""
    mean = vector.sum() / len(vector)
    variance = ((vector - mean) ** 2).sum() / len(vector)
    return (vector - mean) / torch.sqrt(variance + epsilon) * weight + bias


def reshaped_token(
    token: Tensor, sentence: Tensor, is_residual: bool, norms: Mapping[str, tuple[Tensor, Tensor]]
) -> Tensor:
    """Appendix A.5.1: (i) the sentence added to a token, (ii) the token normed, (iii) both.

    For (iii) the two embeddings are normed first, and after the add-up their sum is. [d], [d] -> [d]
    """
    if norms:
        token = layer_norm(token, *norms["tokens"])
    if is_residual:
        token = token + (layer_norm(sentence, *norms["sentence"]) if norms else sentence)
        token = layer_norm(token, *norms["sum"]) if norms else token
    return token
