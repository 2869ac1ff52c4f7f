"""Adapter, Compacter, P-tuning v2 and prefix tuning as Wu et al. (2022) compare with them. Nothing of softcue.

Their appendix A.1.2 gives the parts that are counted; the formulas are those of Houlsby et al. (2019), Karimi Mahabadi
et al. (2021), Liu et al. (2022) and Li and Liang (2021).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor


def unchanged(values: Tensor) -> Tensor:
    """No dropout."""
    return values


def gelu(values: Tensor) -> Tensor:
    """x times the share of a normal distribution below x."""
    return values * 0.5 * (1 + torch.erf(values / math.sqrt(2)))


def adapter(
    states: Tensor,
    down: tuple[Tensor, Tensor],
    up: tuple[Tensor, Tensor],
    drop: Callable[[Tensor], Tensor] = unchanged,
) -> Tensor:
    """Houlsby et al., figure 2: down-projection, nonlinearity, up-projection, and a skip-connection around it.

    `down` is D [m d] and its bias, `up` is U [d m] and its bias. [S d] -> [S d]
    """
    rows = []
    for state in states:
        inner = torch.stack([gelu((row * state).sum() + bias) for row, bias in zip(*down, strict=True)])
        outer = torch.stack([(row * inner).sum() + bias for row, bias in zip(*up, strict=True)])
        rows.append(state + drop(outer))
    return torch.stack(rows)


def compacter_matrix(a: Sequence[Tensor], s: Sequence[Tensor], t: Sequence[Tensor]) -> Tensor:
    """Karimi Mahabadi et al.: W = sum_i A_i (x) (s_i t_i), each B_i of rank one. n of [n n], [p], [q] -> [np nq]"""
    total = torch.zeros(len(a) * len(s[0]), len(a) * len(t[0]), dtype=a[0].dtype)
    for matrix, column, row in zip(a, s, t, strict=True):
        factor = torch.stack([number * row for number in column])  # s_i t_i [p q]
        bands = [torch.cat([number * factor for number in numbers], dim=1) for numbers in matrix]
        total = total + torch.cat(bands)
    return total


def attention_with_prefix(
    queries: Tensor, keys: Tensor, values: Tensor, prefix: tuple[Tensor, Tensor], num_heads: int
) -> Tensor:
    """P-tuning v2, prefix tuning: t keys and values stand before those of the text; no query is added.

    [S d] three times, two of [t d] -> [S d]
    """
    size = queries.shape[1] // num_heads
    all_keys, all_values = ([*added, *part] for added, part in zip(prefix, (keys, values), strict=True))
    rows = []
    for query in queries:
        heads = []
        for head in range(num_heads):
            part = slice(head * size, (head + 1) * size)
            scores = torch.stack([(query[part] * key[part]).sum() / math.sqrt(size) for key in all_keys])
            powers = torch.exp(scores - scores.max().detach())
            total = torch.zeros(size, dtype=queries.dtype)
            for power, value in zip(powers / powers.sum(), all_values, strict=True):
                total = total + power * value[part]
            heads.append(total)
        rows.append(torch.cat(heads))
    return torch.stack(rows)


def prefix_network(table: Tensor, first: tuple[Tensor, Tensor], second: tuple[Tensor, Tensor]) -> Tensor:
    """Li and Liang, section 4.3: the prefix from a smaller table by a network with tanh. [t d] -> [t 2Nd]"""
    rows = []
    for vector in table:
        inner = torch.stack([torch.tanh((row * vector).sum() + bias) for row, bias in zip(*first, strict=True)])
        rows.append(torch.stack([(row * inner).sum() + bias for row, bias in zip(*second, strict=True)]))
    return torch.stack(rows)
