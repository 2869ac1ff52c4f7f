"""VIP's quantiser (Bhardwaj et al. 2022, section 4.2): vectors replaced by means of codes drawn near them.

    l_ik   = -||p_i - e_k||^2                                     equation 3
    z_ij   ~ Multinomial(softmax(l_i / temperature)), j = 1..m    equation 4
    p^q_i  = 1/m sum_j e_{z_ij}                                   equation 5
    c_j    = decay c_j + (1 - decay) sum_i u_ij                   equation 7, u_ij: share of i's draws that hit j
    e_j    = decay e_j + (1 - decay) sum_i u_ij p_i / c_j         equation 8, rule `literal`

The rule `vqvae` (van den Oord et al. 2017, as in the authors' forerunner QT) averages the sums instead:
w_j = decay w_j + (1 - decay) sum_i u_ij p_i and e_j = w_j / c_j. No gradient reaches the codebook; vectors get
theirs straight through. Everything here is float32, whatever the backbone is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from softcue.randomness import batch_positions

EmaRule = Literal["vqvae", "literal"]
EvaluationRule = Literal["expectation", "sample", "argmax"]
WINDOW = 0.95  # of the running perplexity: about twenty steps


@dataclass(frozen=True)
class QuantizerShape:
    """How vectors are quantised and how codes move."""

    codes: int  # K
    draws: int  # m
    temperature: float  # what squared distances are divided by
    is_relative: bool  # temperature in units of the mean squared distance between the codes a token may take
    tokens: int  # 0: every token may take every code; n: K/n codes of its own for each of n tokens
    evaluation: EvaluationRule
    sample_seed: int
    rule: EmaRule
    decay: float
    epsilon: float  # keeps counts from zero
    reset_below: float  # codes drawn less than this share of the mean are put on current vectors; 0: never
    fill_after: int  # an empty codebook is filled from the vectors of this step (from 1)


class Quantizer(nn.Module):
    """The codebook. While it is empty (all zeros) vectors pass as they are."""

    codebook: Tensor
    counts: Tensor
    recent: Tensor
    drawn: Tensor
    steps: Tensor

    def __init__(self, shape: QuantizerShape, codebook: Tensor) -> None:
        super().__init__()
        self.shape = shape
        self.register_buffer("codebook", codebook)  # [K D]
        start = 1.0 / shape.codes if shape.rule == "literal" else 1.0
        for name, first in {
            "counts": torch.full((shape.codes,), start),  # c
            "recent": torch.zeros(shape.codes),  # draws, over a window of steps
            "drawn": torch.zeros(shape.codes),  # draws in this epoch
            "steps": torch.zeros(()),
        }.items():
            self.register_buffer(name, first, persistent=False)

    @property
    def is_empty(self) -> bool:
        """Whether there are no codes yet."""
        return not bool(self.codebook.any())

    @torch.no_grad()
    def logits(self, vectors: Tensor) -> Tensor:
        """Equation 3 over the temperature, for the codes a token may take. [B n D] -> [B n k], k = K or K/n"""
        with torch.autocast(vectors.device.type, enabled=False):
            codes = self._blocks()  # [n k D] or [1 K D]
            # ||p - e||^2 = ||p||^2 - 2 p.e + ||e||^2, around the codes' mean: close codes far from 0 would lose digits
            middle = codes.mean(1)  # [n D] or [1 D]
            vectors, codes = vectors.float() - middle, codes - middle.unsqueeze(1)
            if self.shape.tokens:
                products = torch.einsum("bnd,nkd->bnk", vectors, codes)
            else:
                products = vectors @ codes[0].T
            distances = vectors.square().sum(-1, keepdim=True) - 2 * products + codes.square().sum(-1)
            return distances.clamp_(min=0).div_(-self._temperature())

    def forward(self, vectors: Tensor, streams: Sequence[torch.Generator]) -> tuple[Tensor, dict[str, Tensor]]:
        """P^q by straight-through, and in training the tally of the draws. [B n D] -> [B n D]"""
        if self.is_empty:
            return vectors, self._tally(vectors, None, None) if self.training else {}
        logits = self.logits(vectors)
        if not self.training:
            return straight_through(vectors, self._evaluated(logits)), {}
        noise = torch.stack([torch.rand(vectors.shape[1], self.shape.draws, generator=one) for one in streams])
        codes = self._sampled(logits, noise.to(logits.device))  # [B n m]
        return straight_through(vectors, self._mean(codes)), self._tally(vectors, logits, codes)

    def assignment(self, vectors: Tensor) -> Tensor:
        """How likely each token of each row takes each code. [B n D] -> [B n K]"""
        shares = self.logits(vectors).softmax(-1)  # [B n k]
        if not self.shape.tokens:
            return shares
        codes = self._first_codes(shares) + torch.arange(shares.shape[2], device=shares.device)  # [n k]
        found = shares.new_zeros(*shares.shape[:2], self.shape.codes)
        return found.scatter_(2, codes.expand_as(shares), shares)

    def zero_statistics(self) -> dict[str, Tensor]:
        """Zeros for a step's sums."""
        sizes = {"counts": self.counts, "sums": self.codebook, "distance": self.steps, "vectors": self.steps}
        if self._wants_candidates:
            sizes["candidates"] = self.codebook
        return {name: torch.zeros_like(like) for name, like in sizes.items()}

    @torch.no_grad()
    def update_state(self, statistics: Mapping[str, Tensor], epoch_begins: bool) -> dict[str, float]:
        """Equations 7 and 8 for one optimizer step; what to log of the codebook."""
        self.steps += 1
        if self.is_empty:
            if self.steps >= self.shape.fill_after:
                self.codebook.copy_(statistics["candidates"])
            return {}
        if epoch_begins:
            self.drawn.zero_()
        self.drawn += statistics["counts"]
        self.recent.lerp_(statistics["counts"], 1 - WINDOW)
        self._move(statistics["counts"], statistics["sums"])
        health = {
            "codes_drawn": float((self.drawn > 0).sum()),
            "perplexity": float(perplexity(self.recent)),
            "code_distance": float(statistics["distance"] / statistics["vectors"]),
            "temperature": float(self._temperature()),
        }
        if self.shape.reset_below:
            dead = self.counts < self.shape.reset_below * self.counts.mean()
            self.codebook[dead] = statistics["candidates"][dead]
            self.counts[dead] = self.counts.mean()
            health["codes_reset"] = float(dead.sum())
        return health

    def _move(self, drawn: Tensor, sums: Tensor) -> None:
        decay = self.shape.decay
        if self.shape.rule == "literal":
            self.counts.copy_(self._smoothed(decay * self.counts + (1 - decay) * drawn))
            self.codebook.mul_(decay).add_(sums / self.counts.unsqueeze(1), alpha=1 - decay)
            return
        # w_j is e_j times its divisor, so it need not be kept beside them
        weighted = self.codebook * self._smoothed(self.counts).unsqueeze(1)
        self.counts.mul_(decay).add_(drawn, alpha=1 - decay)
        moved = (decay * weighted + (1 - decay) * sums) / self._smoothed(self.counts).unsqueeze(1)
        is_live = self.counts >= self.shape.epsilon  # else there is nothing left to divide by
        self.codebook.copy_(torch.where(is_live.unsqueeze(1), moved, self.codebook))

    def _smoothed(self, counts: Tensor) -> Tensor:
        """Counts kept from zero, with the same sum."""
        total = counts.sum()
        return (counts + self.shape.epsilon) / (total + len(counts) * self.shape.epsilon) * total

    def _temperature(self) -> Tensor:
        chosen = torch.tensor(self.shape.temperature, device=self.codebook.device)
        if not self.shape.is_relative:
            return chosen
        # mean over pairs of ||e_j - e_k||^2 = 2 mean ||e_j - mean e||^2, among the codes one token may take
        codes = self._blocks()
        spread = 2 * (codes - codes.mean(1, keepdim=True)).square().sum(2).mean()
        return chosen * spread.clamp(min=1e-12)

    def _blocks(self) -> Tensor:
        """The codes each token may take: its own, or all. [n k D] or [1 K D]"""
        return self.codebook.float().view(self.shape.tokens or 1, -1, self.codebook.shape[1])

    def _evaluated(self, logits: Tensor) -> Tensor:
        """P^q of a row by itself: no noise, or the same noise for every row. [B n k] -> [B n D]"""
        if self.shape.evaluation == "argmax":
            return self._mean(logits.argmax(-1, keepdim=True) + self._first_codes(logits))
        if self.shape.evaluation == "sample":
            stream = torch.Generator().manual_seed(self.shape.sample_seed)
            noise = torch.rand(logits.shape[1], self.shape.draws, generator=stream).to(logits.device)
            return self._mean(self._sampled(logits, noise.expand(len(logits), -1, -1)))
        shares = logits.softmax(-1)
        with torch.autocast(logits.device.type, enabled=False):
            if self.shape.tokens:
                return torch.einsum("bnk,nkd->bnd", shares, self._blocks())
            return shares @ self.codebook

    def _sampled(self, logits: Tensor, noise: Tensor) -> Tensor:
        """Equation 4 by inverting the distribution function. [B n k], [B n m] -> codes [B n m]"""
        cumulated = logits.softmax(-1).cumsum(-1)
        # the last sum is 1 up to rounding; scaled by it, no draw can fall behind the last code
        places = torch.searchsorted(cumulated, (noise * cumulated[..., -1:]).contiguous(), right=True)
        return places.clamp_(max=logits.shape[2] - 1) + self._first_codes(logits)

    def _first_codes(self, logits: Tensor) -> Tensor | int:
        """Number of the first code each token may take. [n 1]"""
        if not self.shape.tokens:
            return 0
        return torch.arange(self.shape.tokens, device=logits.device).unsqueeze(1) * logits.shape[2]

    def _mean(self, codes: Tensor) -> Tensor:
        """Equation 5, without ever holding the drawn rows side by side. [B n m] -> [B n D]"""
        means = functional.embedding_bag(codes.flatten(0, 1), self.codebook, mode="mean")
        return means.view(*codes.shape[:2], -1)

    @torch.no_grad()
    def _tally(self, vectors: Tensor, logits: Tensor | None, codes: Tensor | None) -> dict[str, Tensor]:
        statistics = self.zero_statistics()
        flat = vectors.detach().float().flatten(0, 1)  # [B*n D]
        if logits is not None and codes is not None:
            share = 1 / self.shape.draws
            drawn = codes.flatten(0, 1)  # [B*n m]
            statistics["counts"] = torch.bincount(drawn.flatten(), minlength=self.shape.codes) * share  # sum_i u_ij
            for draw in drawn.T:  # sum_i u_ij p_i, one draw of every vector at a time
                statistics["sums"].index_add_(0, draw, flat, alpha=share)
            statistics["distance"] = -logits.amax(-1).sum() * self._temperature()
            statistics["vectors"] += len(flat)
        if "candidates" in statistics:
            self._fill_candidates(statistics["candidates"], vectors.detach().float())
        return statistics

    @property
    def _wants_candidates(self) -> bool:
        return self.shape.reset_below > 0 or self.is_empty

    def _fill_candidates(self, candidates: Tensor, vectors: Tensor) -> None:
        """A random vector of the global batch for each code; those of other pieces stay zero here."""
        (num_rows, num_tokens, _), num_codes = vectors.shape, self.shape.codes
        places, total = batch_positions(num_rows)
        if self.shape.tokens:  # a token's own codes come from that token's vectors
            each = num_codes // num_tokens
            rows = torch.cat([_distinct(total, each) for _ in range(num_tokens)])
            tokens = torch.arange(num_codes) // each
        else:
            chosen = _distinct(total * num_tokens, num_codes)
            rows, tokens = chosen // num_tokens, chosen % num_tokens
        local = torch.full((total,), -1)
        local[torch.tensor(places)] = torch.arange(num_rows)
        own = local[rows] >= 0
        candidates[own.to(candidates.device)] = vectors[local[rows][own], tokens[own]]


def _distinct(population: int, count: int) -> Tensor:
    """Random numbers below `population`, none twice before all have come once. [count]"""
    return torch.cat([torch.randperm(population) for _ in range(-(-count // population))])[:count]


def straight_through(vectors: Tensor, values: Tensor) -> Tensor:
    """The values, with the vectors' gradient.

    Example:
        >>> vectors = torch.zeros(2, requires_grad=True)
        >>> straight_through(vectors, torch.ones(2)).sum().backward()
        >>> vectors.grad
        tensor([1., 1.])
    """
    return vectors + (values - vectors).detach()


def perplexity(counts: Tensor) -> Tensor:
    """exp of the entropy of how often codes were drawn: as many codes, evenly used, would look like this.

    Example:
        >>> perplexity(torch.tensor([2.0, 2.0, 0.0])).item()
        2.0
    """
    shares = counts / counts.sum().clamp(min=1e-12)
    return (-torch.xlogy(shares, shares).sum()).exp()
