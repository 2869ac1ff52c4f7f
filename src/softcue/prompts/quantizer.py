"""VIP's quantiser (Bhardwaj et al. 2022, section 4.2): each vector becomes the mean of codes drawn near it.

    l_ik   = -||p_i - e_k||^2                                     equation 3
    z_ij   ~ Multinomial(softmax(l_i / temperature)), j = 1..m    equation 4
    p^q_i  = 1/m sum_j e_{z_ij}                                   equation 5
    c_j    = decay c_j + (1 - decay) sum_i u_ij                   equation 7, u_ij: share of i's draws that hit j
    e_j    = decay e_j + (1 - decay) sum_i u_ij p_i / c_j         equation 8, rule `literal`

The rule `vqvae` (van den Oord et al. 2017, as in the authors' forerunner QT) averages the sums instead:
w_j = decay w_j + (1 - decay) sum_i u_ij p_i and e_j = w_j / c_j. No gradient reaches the codebook; the vectors'
gradient is straight-through. All values are float32, whatever the backbone's dtype is.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from softcue.devices import send, without_autocast
from softcue.randomness import RowDraws, batch_positions, hashed_uniform

EmaRule = Literal["vqvae", "literal"]
EvaluationRule = Literal["expectation", "sample", "argmax"]
PERPLEXITY_DECAY = 0.95  # of the running perplexity: about twenty steps


@dataclass(frozen=True)
class QuantizerShape:
    """Sizes and settings: how vectors are quantised, and how codes are updated."""

    codes: int  # K
    draws: int  # m
    temperature: float  # divides squared distances
    is_relative: bool  # temperature in units of the mean squared distance between the codes a token may take
    tokens: int  # 0: all tokens share all codes; n: each of n tokens has its own K/n codes
    evaluation: EvaluationRule
    sample_seed: int
    rule: EmaRule
    decay: float
    epsilon: float  # keeps counts above zero
    reset_below: float  # codes drawn less often than this share of the mean are reset from the batch; 0: never
    fill_after: int  # an empty codebook is filled from the vectors of this step (counted from 1)


class Quantizer(nn.Module):
    """The codebook. While it is empty (all zeros), vectors pass unchanged."""

    codebook: Tensor
    counts: Tensor
    recent: Tensor
    drawn: Tensor
    steps: Tensor

    def __init__(self, shape: QuantizerShape, codebook: Tensor) -> None:
        super().__init__()
        self.shape = shape
        self.register_buffer("codebook", codebook)  # [K D]
        # A codebook, its version as torch counts changes, and whether it was empty then.
        self._emptiness: tuple[Tensor | None, int, bool] = (None, 0, True)
        start = 1.0 / shape.codes if shape.rule == "literal" else 1.0
        for name, initial in {
            "counts": torch.full((shape.codes,), start),  # c
            "recent": torch.zeros(shape.codes),  # running average of draws
            "drawn": torch.zeros(shape.codes),  # draws in this epoch
            "steps": torch.zeros(()),
        }.items():
            self.register_buffer(name, initial, persistent=False)

    @property
    def is_empty(self) -> bool:
        """Whether there are no codes yet. The device is asked only after something else than a step changed them."""
        codebook, version, is_empty = self._emptiness
        if codebook is not self.codebook or version != self.codebook._version:
            is_empty = not bool(self.codebook.any())
            self._note_emptiness(is_empty)
        return is_empty

    def _note_emptiness(self, is_empty: bool) -> None:
        self._emptiness = self.codebook, self.codebook._version, is_empty

    @torch.no_grad()
    def logits(self, vectors: Tensor) -> Tensor:
        """Return equation 3 over the temperature, for the codes of each token. [B n D] -> [B n k], k = K or K/n"""
        with without_autocast(vectors.device):
            codes = self._codes_by_token()  # [n k D] or [1 K D]
            # ||p - e||^2 = ||p||^2 - 2 p.e + ||e||^2. Codes are centred: close codes far from 0 would lose precision.
            center = codes.mean(1)  # [n D] or [1 D]
            vectors, codes = vectors.float() - center, codes - center.unsqueeze(1)
            if self.shape.tokens:
                products = torch.einsum("bnd,nkd->bnk", vectors, codes)
            else:
                products = vectors @ codes[0].T
            distances = vectors.square().sum(-1, keepdim=True) - 2 * products + codes.square().sum(-1)
            return distances.clamp_(min=0).div_(-self._temperature())

    def forward(self, vectors: Tensor, draws: RowDraws | None) -> tuple[Tensor, dict[str, Tensor]]:
        """Return P^q by straight-through, and in training the statistics of the draws. [B n D] -> [B n D]"""
        if not self.training:
            quantised = straight_through(vectors, self._quantize_for_evaluation(self.logits(vectors)))
            return torch.where(self.codebook.any(), quantised, vectors), {}  # a branch could not be exported
        if self.is_empty:
            return vectors, self._statistics(vectors, None, None)
        logits = self.logits(vectors)
        assert draws is not None, "training draws codes"
        codes = self._draw_codes(logits, draws.uniform(vectors.shape[1], self.shape.draws))  # [B n m]
        return straight_through(vectors, self._mean_of_codes(codes)), self._statistics(vectors, logits, codes)

    def assignment(self, vectors: Tensor) -> Tensor:
        """Return the probability of each code for each token. [B n D] -> [B n K]"""
        probabilities = self.logits(vectors).softmax(-1)  # [B n k]
        if not self.shape.tokens:
            return probabilities
        offsets = torch.arange(probabilities.shape[2], device=probabilities.device)
        codes = self._first_codes(probabilities) + offsets  # [n k]
        all_codes = probabilities.new_zeros(*probabilities.shape[:2], self.shape.codes)
        return all_codes.scatter_(2, codes.expand_as(probabilities), probabilities)

    def zero_statistics(self) -> dict[str, Tensor]:
        """Return zeros for the sums of a step."""
        same_shape = {"counts": self.counts, "sums": self.codebook, "distance": self.steps, "vectors": self.steps}
        if self._needs_candidates:
            same_shape["candidates"] = self.codebook
        return {name: torch.zeros_like(tensor) for name, tensor in same_shape.items()}

    @torch.no_grad()
    def update_state(self, statistics: Mapping[str, Tensor], epoch_begins: bool) -> dict[str, Tensor]:
        """Apply equations 7 and 8 for one optimizer step, and return what to log of the codebook: single numbers."""
        self.steps += 1
        if self.is_empty:
            if self.steps >= self.shape.fill_after:
                self.codebook.copy_(statistics["candidates"])
            return {}
        if epoch_begins:
            self.drawn.zero_()
        self.drawn += statistics["counts"]
        self.recent.lerp_(statistics["counts"], 1 - PERPLEXITY_DECAY)
        self._update_codes(statistics["counts"], statistics["sums"])
        health = {
            "codes_drawn": (self.drawn > 0).sum(),
            "perplexity": perplexity(self.recent),
            "code_distance": statistics["distance"] / statistics["vectors"],
            "temperature": self._temperature(),
        }
        if self.shape.reset_below:
            is_unused = self.counts < self.shape.reset_below * self.counts.mean()
            candidates = statistics["candidates"]
            self.codebook.copy_(torch.where(is_unused.unsqueeze(1), candidates, self.codebook))
            self.counts.copy_(torch.where(is_unused, self.counts.mean(), self.counts))
            health["codes_reset"] = is_unused.sum()
        self._note_emptiness(False)  # an average of codes and vectors is not zero
        return health

    def _update_codes(self, drawn: Tensor, sums: Tensor) -> None:
        decay = self.shape.decay
        if self.shape.rule == "literal":
            self.counts.copy_(self._smooth(decay * self.counts + (1 - decay) * drawn))
            self.codebook.mul_(decay).add_(sums / self.counts.unsqueeze(1), alpha=1 - decay)
            return
        # w_j is e_j times its divisor, so it is not stored.
        previous_sums = self.codebook * self._smooth(self.counts).unsqueeze(1)
        self.counts.mul_(decay).add_(drawn, alpha=1 - decay)
        moved = (decay * previous_sums + (1 - decay) * sums) / self._smooth(self.counts).unsqueeze(1)
        is_live = self.counts >= self.shape.epsilon  # a smaller count cannot be divided by
        self.codebook.copy_(torch.where(is_live.unsqueeze(1), moved, self.codebook))

    def _smooth(self, counts: Tensor) -> Tensor:
        """Return counts above zero, with the same sum."""
        total = counts.sum()
        return (counts + self.shape.epsilon) / (total + len(counts) * self.shape.epsilon) * total

    def _temperature(self) -> Tensor:
        temperature = torch.full((), self.shape.temperature, device=self.codebook.device)
        if not self.shape.is_relative:
            return temperature
        # The mean over pairs of ||e_j - e_k||^2 is 2 mean ||e_j - mean e||^2, over the codes of one token.
        codes = self._codes_by_token()
        spread = 2 * (codes - codes.mean(1, keepdim=True)).square().sum(2).mean()
        return temperature * spread.clamp(min=1e-12)

    def _codes_by_token(self) -> Tensor:
        """Return the codes of each token: its own, or all. [n k D] or [1 K D]"""
        return self.codebook.float().view(self.shape.tokens or 1, -1, self.codebook.shape[1])

    def _quantize_for_evaluation(self, logits: Tensor) -> Tensor:
        """Return P^q without noise, or with the same noise for every row. [B n k] -> [B n D]"""
        if self.shape.evaluation == "argmax":
            return self._mean_of_codes(logits.argmax(-1, keepdim=True) + self._first_codes(logits))
        if self.shape.evaluation == "sample":
            key = torch.full((1,), self.shape.sample_seed % 2**31, dtype=torch.int32, device=logits.device)
            noise = hashed_uniform(key, logits.shape[1] * self.shape.draws).view(1, -1, self.shape.draws)
            return self._mean_of_codes(self._draw_codes(logits, noise.expand(logits.shape[0], -1, -1)))
        probabilities = logits.softmax(-1)
        with without_autocast(logits.device):
            if self.shape.tokens:
                return torch.einsum("bnk,nkd->bnd", probabilities, self._codes_by_token())
            return probabilities @ self.codebook

    def _draw_codes(self, logits: Tensor, noise: Tensor) -> Tensor:
        """Draw codes (equation 4) by the inverse distribution function. [B n k], [B n m] -> codes [B n m]"""
        cumulated = logits.softmax(-1).cumsum(-1)
        # The last sum is 1 up to rounding. Noise is scaled by it, so that no draw exceeds the last code.
        codes = torch.searchsorted(cumulated, (noise * cumulated[..., -1:]).contiguous(), right=True)
        return codes.clamp_(max=logits.shape[2] - 1) + self._first_codes(logits)

    def _first_codes(self, logits: Tensor) -> Tensor | int:
        """Return the index of each token's first code. [n 1]"""
        if not self.shape.tokens:
            return 0
        return torch.arange(self.shape.tokens, device=logits.device).unsqueeze(1) * logits.shape[2]

    def _mean_of_codes(self, codes: Tensor) -> Tensor:
        """Return equation 5, without a tensor of all drawn codes. [B n m] -> [B n D]"""
        means = functional.embedding_bag(codes.flatten(0, 1), self.codebook, mode="mean")
        return means.view(*codes.shape[:2], -1)

    @torch.no_grad()
    def _statistics(self, vectors: Tensor, logits: Tensor | None, codes: Tensor | None) -> dict[str, Tensor]:
        """Return the sums that `update_state` needs. Without codes there are only candidates for new ones."""
        statistics = self.zero_statistics()
        flat = vectors.detach().float().flatten(0, 1)  # [B*n D]
        if logits is not None and codes is not None:
            share = 1 / self.shape.draws
            drawn = codes.flatten(0, 1)  # [B*n m]
            statistics["counts"] = _count(drawn.flatten(), self.shape.codes) * share  # sum_i u_ij
            for draw in drawn.T:  # sum_i u_ij p_i, one draw of every vector at a time
                statistics["sums"].index_add_(0, draw, flat, alpha=share)
            statistics["distance"] = -logits.amax(-1).sum() * self._temperature()
            statistics["vectors"] += len(flat)
        if "candidates" in statistics:
            self._fill_candidates(statistics["candidates"], vectors.detach().float())
        return statistics

    @property
    def _needs_candidates(self) -> bool:
        return self.shape.reset_below > 0 or self.is_empty

    def _fill_candidates(self, candidates: Tensor, vectors: Tensor) -> None:
        """Choose a random vector of the global batch for each code. Vectors of other micro-batches stay zero here."""
        (num_rows, num_tokens, _), num_codes = vectors.shape, self.shape.codes
        positions, total = batch_positions(num_rows)
        if self.shape.tokens:  # a token's own codes come from that token's vectors
            codes_per_token = num_codes // num_tokens
            rows = torch.cat([_draw_distinct(total, codes_per_token) for _ in range(num_tokens)])
            tokens = torch.arange(num_codes) // codes_per_token
        else:
            chosen = _draw_distinct(total * num_tokens, num_codes)
            rows, tokens = chosen // num_tokens, chosen % num_tokens
        local = torch.full((total,), -1)
        local[torch.tensor(positions)] = torch.arange(num_rows)
        codes = (local[rows] >= 0).nonzero().flatten()  # those whose vector is here
        sources = (local[rows] * num_tokens + tokens)[codes]
        candidates[send(codes, candidates.device)] = vectors.flatten(0, 1)[send(sources, candidates.device)]


def _count(numbers: Tensor, size: int) -> Tensor:
    """Count how often each number below `size` occurs. Unlike `bincount` the host does not read them. [size]"""
    return numbers.new_zeros(size).scatter_add_(0, numbers, torch.ones_like(numbers))


def _draw_distinct(population: int, count: int) -> Tensor:
    """Draw numbers below `population`. None is drawn twice before all are drawn once. [count]"""
    return torch.cat([torch.randperm(population) for _ in range(-(-count // population))])[:count]


def straight_through(vectors: Tensor, values: Tensor) -> Tensor:
    """Return the values, with the vectors' gradient.

    Example:
        >>> vectors = torch.zeros(2, requires_grad=True)
        >>> straight_through(vectors, torch.ones(2)).sum().backward()
        >>> vectors.grad
        tensor([1., 1.])
    """
    return vectors + (values - vectors).detach()


def perplexity(counts: Tensor) -> Tensor:
    """Return exp of the entropy of the draws: the number of codes in use, if they were used equally often.

    Example:
        >>> perplexity(torch.tensor([2.0, 2.0, 0.0])).item()
        2.0
    """
    shares = counts / counts.sum().clamp(min=1e-12)
    return (-torch.xlogy(shares, shares).sum()).exp()
