"""What the input changes in a contextualised prompt: P^c less its running mean over inputs, in units of its spread.

Nearly all of VIP's P^c belongs to the token and not to the text, so a codebook of P^c describes the token. This part is
beyond Bhardwaj et al. 2022: with m_i and s_i the running mean and variance of token i over inputs,

    z_i = (p^c_i - m_i) / sqrt(s_i)

is quantised in place of p^c_i, and P + gain z^q is the prompt.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

MEAN, SPREAD = "context_mean", "context_spread"  # the sums of a step


class InputPart(nn.Module):
    """Running mean and variance of each token's P^c. Until the first step has measured them, z is 0.

    Example:
        >>> part = InputPart(num_tokens=1, width=2, decay=0.5, gain=0.2)
        >>> context = torch.tensor([[[1.0, 5.0]], [[3.0, 5.0]]])
        >>> part.update_state(part.statistics(context), rows=torch.tensor(2.0))
        >>> part(context)[:, 0].tolist()
        [[-1.4142135381698608, 0.0], [1.4142135381698608, 0.0]]
    """

    mean: Tensor
    variance: Tensor

    def __init__(self, num_tokens: int, width: int, decay: float, gain: float) -> None:
        super().__init__()
        self.decay, self.gain = decay, gain
        self.register_buffer("mean", torch.zeros(num_tokens, width))  # m [n D]
        self.register_buffer("variance", torch.zeros(num_tokens))  # s, the mean over the D values [n]; 0: not measured

    def forward(self, context: Tensor) -> Tensor:
        """Return z. [B n D] -> [B n D]"""
        scale = torch.where(self.variance > 0, self.variance.clamp(min=1e-30).rsqrt(), 0.0)  # [n]
        return (context - self.mean) * scale.unsqueeze(1)

    @torch.no_grad()
    def statistics(self, context: Tensor) -> dict[str, Tensor]:
        """Return sums over rows of the distances from the running mean, which lose less precision than P^c itself."""
        distances = context.detach() - self.mean  # [B n D]
        return {MEAN: distances.sum(0), SPREAD: distances.square().mean(2).sum(0)}  # [n D], [n]

    def zero_statistics(self) -> dict[str, Tensor]:
        """Return zeros for the sums of a step."""
        return {MEAN: torch.zeros_like(self.mean), SPREAD: torch.zeros_like(self.variance)}

    @torch.no_grad()
    def update_state(self, statistics: Mapping[str, Tensor], rows: Tensor) -> None:
        """Move mean and variance towards those of a step's rows; the first step sets them."""
        shift = statistics[MEAN] / rows  # [n D]
        variance = statistics[SPREAD] / rows - shift.square().mean(1)  # [n], around the rows' own mean
        is_measured = self.variance > 0
        share = torch.where(is_measured, 1 - self.decay, 1.0).to(self.variance)  # [n]
        self.mean += share.unsqueeze(1) * shift
        moved = torch.lerp(self.variance, variance.clamp(min=0), share)
        self.variance.copy_(torch.where(variance > 0, moved, self.variance))  # a single row has no spread
