"""VIP (Bhardwaj et al. 2022): prompt vectors contextualised by the input and quantised.

    P^q = CQ([P, X])                                              equation 1
    Pr(Y | T, P, P^q, X) = PLM([T, P + P^q, X])                   equation 2
    L   = L_CE + beta sum_i ||p^c_i - sg(p^q_i)||^2               equation 6

CQ is a small transformer over prompt and text (contextualizer.py) whose outputs at the prompt, P^c, are quantised
(quantizer.py). VIP-C has no quantiser. VIP-IDP generates the prompt from the backbone's states instead.
Beyond the paper, only what the input changes in P^c can be quantised (input_part.py).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from softcue.prompts.contextualizer import ContextShape, Contextualizer, initialize_linear
from softcue.prompts.encoder import PromptEncoder, make_prompt
from softcue.prompts.input_part import InputPart
from softcue.prompts.quantizer import Quantizer
from softcue.randomness import RowDraws, row_draws
from softcue.types import Instance, Prompt

Reduction = Literal["mean", "sum"]


@dataclass(frozen=True)
class LossWeights:
    """Weights of the losses that are added to the cross-entropy."""

    commitment: float = 0.1  # beta
    reduction: Reduction = "mean"  # of the squared values of a row; the paper's equation is the sum
    noise_resilience: float = 0.0
    noise_self: bool = False  # the constant term j = i of the same view in equation 9


class VIP(PromptEncoder):
    """[T, soft, VIP]: frozen words, plain soft prompts, and vectors contextualised by the input."""

    def __init__(
        self,
        initial: Tensor,
        num_soft: int,
        context: ContextShape,
        quantizer: Quantizer | None,
        skip: bool,
        weights: LossWeights,
        hard: Tensor,
        input_part: InputPart | None = None,
    ) -> None:
        super().__init__()
        self.num_soft, self.skip, self.weights = num_soft, skip, weights
        self.input_part = input_part
        self.prompt = nn.Parameter(initial.clone())  # P [soft+n D]
        self.contextualizer = Contextualizer(context)
        self.quantizer = quantizer
        self.register_buffer("hard", hard, persistent=False)  # T [t D]; the backbone's words, not saved
        self.prompt_length = len(initial) + len(hard)

    hard: Tensor

    def with_hard_prompt(self, hard: Tensor) -> VIP:
        """Return an encoder with another T that shares all parameters and the codebook with this one. [t D]"""
        view = copy.copy(self)
        view._buffers = {**self._buffers, "hard": hard}
        view.prompt_length = len(self.prompt) + len(hard)
        return view

    @property
    def is_ready(self) -> bool:
        """Whether the codebook has its first codes."""
        return self.quantizer is None or not self.quantizer.is_empty

    def prompt_parameters(self) -> list[nn.Parameter]:
        """Return P."""
        return [self.prompt]

    def static_vectors(self) -> Tensor:
        """Return P, which is the same for every input."""
        return self.prompt

    def contextualize(self, instance: Instance, draws: RowDraws | None = None) -> Tensor:
        """Return P^c. [B n D]"""
        return self.contextualizer(self.prompt[self.num_soft :], instance, draws)  # type: ignore[no-any-return]

    def codebook(self) -> Tensor | None:
        """Return the quantiser's codebook, unless it is empty."""
        return None if self.quantizer is None or self.quantizer.is_empty else self.quantizer.codebook

    def assignment(self, instance: Instance) -> Tensor:
        """Return the probability of each code for each VIP token. [B n K]"""
        assert self.quantizer is not None, "there is no codebook"
        return self.quantizer.assignment(self._quantized_values(self.contextualize(instance)))

    def _quantized_values(self, context: Tensor) -> Tensor:
        """Return what is quantised: P^c, or z. [B n D]"""
        return context if self.input_part is None else self.input_part(context)

    def forward(self, instance: Instance) -> Prompt:
        """Return the prompt of each row."""
        num_rows = instance.mask.shape[0]
        draws = row_draws(num_rows, instance.mask.device) if self.training else None
        context = self.contextualize(instance, draws)  # P^c [B n D]
        statistics: dict[str, Tensor] = {}
        losses = {}
        scale = self.contextualizer.shape.scale
        unit = scale if self.input_part is None else 1.0  # z has a unit of its own
        tokens = values = self._quantized_values(context)
        if self.quantizer is not None:
            tokens, statistics = self.quantizer(values, draws)  # P^q
        if self.training and self.quantizer is not None:
            losses["commitment"] = commitment(values / unit, tokens / unit, self.weights.reduction)
        if self.input_part is not None:
            tokens = tokens * (self.input_part.gain * scale)
            statistics |= self.input_part.statistics(context) if self.training else {}
        compared = None
        if self.training and self.weights.noise_resilience:
            second_view = self.contextualize(instance, draws)  # each call draws again, so the noise differs
            compared = torch.stack([context, second_view], dim=1) / scale  # [B 2 n D]
        aux_loss = context.new_zeros(())
        if self.training:
            for name, loss in losses.items():
                aux_loss = aux_loss + getattr(self.weights, name) * loss
            statistics |= {name: loss.detach() * num_rows for name, loss in losses.items()}
            statistics["rows"] = context.new_full((), float(num_rows))
            statistics["energy"] = tokens.detach().square().sum(-1).mean(1).sum()
        if self.skip:
            tokens = self.prompt[self.num_soft :] + tokens
        fixed = torch.cat([self.hard, self.prompt[: self.num_soft]]).expand(num_rows, -1, -1)
        prompt = make_prompt(torch.cat([fixed, tokens], dim=1))
        return replace(prompt, aux_loss=aux_loss, statistics=statistics, compared=compared)

    @property
    def compared_shape(self) -> tuple[int, ...] | None:
        """Two views of P^c, if noise resilience compares them."""
        return (2, *self.prompt[self.num_soft :].shape) if self.weights.noise_resilience else None

    def batch_loss(self, compared: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the weighted noise resilience of all rows of a step. [B 2 n D]"""
        loss = noise_resilience(compared[:, 0], compared[:, 1], self.weights.noise_self)
        return self.weights.noise_resilience * loss, {"noise_resilience": loss.detach() * len(compared)}

    def zero_statistics(self) -> dict[str, Tensor]:
        """Return zeros for the sums of a step."""
        statistics = {} if self.quantizer is None else self.quantizer.zero_statistics()
        if self.input_part is not None:
            statistics |= self.input_part.zero_statistics()
        return statistics | {name: self.prompt.new_zeros(()) for name in ("rows", "energy", *self._loss_names)}

    @property
    def _loss_names(self) -> list[str]:
        """The losses that are added to the cross-entropy."""
        names = [] if self.quantizer is None else ["commitment"]
        return [*names, "noise_resilience"] if self.weights.noise_resilience else names

    @torch.no_grad()
    def update_state(self, statistics: Mapping[str, Tensor], epoch_begins: bool) -> dict[str, float]:
        """Update the codebook, and return how it and the prompt are doing."""
        health = {} if self.quantizer is None else self.quantizer.update_state(statistics, epoch_begins)
        rows = statistics["rows"]
        if self.input_part is not None:
            self.input_part.update_state(statistics, rows)
        static_norm = self.prompt[self.num_soft :].square().sum(-1).mean().sqrt()
        ratio = (statistics["energy"] / rows).sqrt() / static_norm.clamp(min=1e-12)  # |P^q| / |P|
        health["prompt_ratio"] = ratio
        health |= {name: statistics[name] / rows for name in self._loss_names}
        numbers = torch.stack([value.double() for value in health.values()]).tolist()  # the device is read once
        # In a batch of one row noise resilience compares nothing and is 0. That is not logged.
        return {
            name: value for name, value in zip(health, numbers, strict=True) if value or name not in self._loss_names
        }

    def _advice(self) -> str:
        """Return the settings to try against a collapsed codebook or a static prompt (docs/results.md)."""
        context, settings = self.contextualizer.shape, []
        settings += ["method.scale=0"] * (context.scale == 1) + ["method.dropout=0"] * (context.dropout > 0)
        if self.quantizer is not None:
            shape = self.quantizer.shape
            settings += ["method.dedicated=true"] * (not shape.tokens)
            if not shape.is_relative:
                settings += ["method.codes_from=context", "method.relative_temperature=true", "method.temperature=0.05"]
            settings += ["method.decay=0.9"] * (shape.decay > 0.9) + ["method.reset_below=0.1"] * (
                not shape.reset_below
            )
            if not settings:
                return "a lower method.temperature or a higher method.commitment or method.reset_below"
        return " ".join(settings) or "a larger method.width"

    def health_warnings(self, health: Mapping[str, float]) -> list[str]:
        """Report a collapsed codebook, or a prompt that is the same for every input."""
        problems = []
        advice = self._advice()
        if self.quantizer is not None and self.quantizer.is_empty:
            problems.append(
                "the codebook is still empty: the best evaluation came before step method.fill_after. Try a lower one"
            )
        elif self.quantizer is not None and "perplexity" in health:
            in_use, groups = health["perplexity"], self.quantizer.shape.tokens or 1
            if in_use < COLLAPSED * groups:
                problems.append(
                    f"the codebook has collapsed: of {self.quantizer.shape.codes} codes {in_use:.1f} are in use "
                    f"(perplexity of the last steps' draws; one each would be {groups}). Try {advice}"
                )
        if self.weights.noise_resilience and "noise_resilience" not in health:
            problems.append(
                "noise resilience had nothing to compare: it compares the rows of a batch. Try a higher "
                "training.batch_size"
            )
        return problems + _static_prompt_warnings(health, f"a higher training.network_learning_rate, or {advice}")


NO_VARIATION = 1e-3  # share of the prompt's size: below bfloat16's precision
COLLAPSED = 1.5  # codes in use; per token if each has its own codes


def _static_prompt_warnings(health: Mapping[str, float], advice: str) -> list[str]:
    """Return a warning if the prompt is the same for every input."""
    variation = health.get("prompt_variation", 1.0)
    warning = (
        f"the prompt hardly depends on the input: over inputs it varies by {variation:.1e} of its size. Try {advice}"
    )
    return [warning] if variation < NO_VARIATION else []


class VIPIDP(PromptEncoder):
    """VIP-IDP: n vectors from the mean of the backbone's states by two matrices without biases, ReLU between."""

    def __init__(self, inputs: int, inner: int, length: int, width: int) -> None:
        super().__init__()
        self.prompt_length = length
        self.down = nn.Linear(inputs, inner, bias=False)
        self.up = nn.Linear(inner, length * width, bias=False)

    def initialize(self, generator: torch.Generator) -> None:
        """Draw the initial values."""
        initialize_linear(self.down, generator)
        initialize_linear(self.up, generator)

    def forward(self, instance: Instance) -> Prompt:
        """Generate the prompt of each row from its M(x)."""
        assert instance.representation is not None, "this prompt needs M(x)"
        tokens = self.up(functional.relu(self.down(instance.representation)))
        return make_prompt(tokens.view(tokens.shape[0], self.prompt_length, -1))

    def health_warnings(self, health: Mapping[str, float]) -> list[str]:
        """Report a prompt that is the same for every input."""
        return _static_prompt_warnings(health, "another training.network_learning_rate or a larger method.bottleneck")


def commitment(context: Tensor, quantised: Tensor, reduction: Reduction) -> Tensor:
    """Equation 6: ||p^c - sg(p^q)||^2, the mean or sum over all values of a row, then the mean over rows.

    Example:
        >>> commitment(torch.zeros(1, 2, 3), torch.ones(1, 2, 3), "sum").item()
        6.0
    """
    squares = (context - quantised.detach()).square()
    return squares.mean() if reduction == "mean" else squares.sum() / len(squares)


def noise_resilience(first: Tensor, second: Tensor, includes_self: bool = False) -> Tensor:
    """Equations 9 and 10: two noisy views of a row should be nearer than other rows of the batch. [B n D] x 2

    The loss is averaged over token positions. The term j = i of the same view is a constant, e^0; `includes_self`
    includes it.

    Example:
        >>> noise_resilience(torch.zeros(2, 1, 3), torch.zeros(2, 1, 3)).exp().item()
        3.0
    """
    first, second = first.float().transpose(0, 1), second.float().transpose(0, 1)  # [n B D]
    same, other = -_distances(first, first), -_distances(first, second)  # sim(i, j), sim(i, j+) [n B B]
    if not includes_self:
        itself = torch.eye(same.shape[1], dtype=torch.bool, device=same.device)
        same = same.masked_fill(itself, float("-inf"))
    log_total = torch.cat([same, other], dim=2).logsumexp(2)  # [n B]
    return (log_total - other.diagonal(dim1=1, dim2=2)).mean()


def _distances(first: Tensor, second: Tensor) -> Tensor:
    """Return Euclidean distances, by differences: products lose precision for near views. [n B D] -> [n B B]"""
    return torch.cdist(first, second, compute_mode="donot_use_mm_for_euclid_dist")
