"""How fast passes go, learned from those that ran: it tells which rows should share one, and how long a queue takes.

A pass takes *a* seconds by itself and *b* for each token, padding included. A GPU has a large *a* and hardly any *b*,
so it should be given many rows whatever their length; with one core of a processor it is the other way round, and
padding is what costs. Neither is guessed: both are fitted to the passes of late.
"""

from __future__ import annotations

from dataclasses import dataclass, field

PASS_TOKENS = 64.0  # until it is learned
MOST_PASS_TOKENS = 16384.0  # what a pass without any cost per token would come to
KEPT = 0.98  # of what is known when another pass has run: the last fifty count
FEW = 8.0  # passes that say little
LEAST_SPREAD = 0.05  # of 1 / tokens, as a share: passes of one size cannot tell a from b


@dataclass
class Pace:
    """What the inference thread has learned; others may read it.

    Example:
        >>> pace = Pace()
        >>> for tokens in (50, 100, 200, 400) * 3:
        ...     pace.ran(tokens, seconds=0.010 + 0.0001 * tokens)
        >>> round(pace.pass_tokens)
        100
    """

    answer_seconds: float = 0.0
    pass_tokens: float = PASS_TOKENS  # a / b: so many tokens take as long as a pass takes by itself
    _sums: list[float] = field(default_factory=lambda: [0.0] * 5)

    def answered(self, num_answers: int, seconds: float) -> None:
        """So many answers in this time, everything counted."""
        now = seconds / num_answers
        known = self.answer_seconds
        self.answer_seconds = min(now, 0.8 * known + 0.2 * now) if known else now  # a slow moment is no pace

    def ran(self, num_tokens: int, seconds: float) -> None:
        """One pass. Fitted is seconds / tokens = b + a / tokens: its noise is the same for short and long passes."""
        x, y = 1 / num_tokens, seconds / num_tokens
        self._sums = [KEPT * known + new for known, new in zip(self._sums, (1.0, x, y, x * x, x * y), strict=True)]
        number, sum_x, sum_y, sum_xx, sum_xy = self._sums
        mean_x, mean_y = sum_x / number, sum_y / number
        variance = sum_xx / number - mean_x**2
        if number < FEW or variance < (LEAST_SPREAD * mean_x) ** 2:
            return
        a = (sum_xy / number - mean_x * mean_y) / variance
        b = mean_y - a * mean_x
        self.pass_tokens = 0.0 if a <= 0 else min(MOST_PASS_TOKENS, a / b) if b > 0 else MOST_PASS_TOKENS
