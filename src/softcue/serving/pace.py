"""How fast passes go, learned from those that ran: it tells which rows should share one, and how long a queue takes.

A pass takes *a* seconds by itself and *b* for each token, padding included. A GPU has a large *a* and hardly any *b*,
so it should be given many rows whatever their length; with one core of a processor it is the other way round, and
padding is what costs. Neither is guessed: both are fitted to the passes of late.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

PASS_TOKENS = 64.0  # until it is learned
MOST_PASS_TOKENS = 16384.0  # what a pass without any cost per token would come to
WARM = 3  # passes that do not count: the first ones are slow
KEPT = 0.98  # of what is known when another pass has run: the last fifty count
FEW = 8.0  # passes that say little
SURE_TOKENS = 32.0  # a standard error that does no harm; or half of what is found


@dataclass
class Pace:
    """What the inference thread has learned; others may read it.

    Example:
        >>> pace = Pace()
        >>> for tokens in (50, 100, 200, 400) * 4:
        ...     pace.ran(tokens, seconds=0.010 + 0.0001 * tokens)
        >>> round(pace.pass_tokens)
        100
    """

    answer_seconds: float = 0.0
    pass_tokens: float = PASS_TOKENS  # a / b: so many tokens take as long as a pass takes by itself
    _num_passes: int = 0
    _sums: list[float] = field(default_factory=lambda: [0.0] * 6)

    def answered(self, num_answers: int, seconds: float) -> None:
        """So many answers in this time, everything counted."""
        now = seconds / num_answers
        known = self.answer_seconds
        self.answer_seconds = min(now, 0.8 * known + 0.2 * now) if known else now  # a slow moment is no pace

    def ran(self, num_tokens: int, seconds: float) -> None:
        """One pass. Fitted is seconds / tokens = b + a / tokens: its noise is the same for short and long passes.

        What is found is taken only if it is well known: passes of nearly one size cannot tell a from b.
        """
        self._num_passes += 1
        if self._num_passes <= WARM:
            return
        x, y = 1 / num_tokens, seconds / num_tokens
        new = (1.0, x, y, x * x, x * y, y * y)
        self._sums = [KEPT * known + more for known, more in zip(self._sums, new, strict=True)]
        number = self._sums[0]
        _, mean_x, mean_y, mean_xx, mean_xy, mean_yy = (value / number for value in self._sums)
        spread_x = mean_xx - mean_x**2
        if number < FEW or spread_x <= 1e-6 * mean_x**2:
            return
        a = (mean_xy - mean_x * mean_y) / spread_x
        b = mean_y - a * mean_x
        left = max(0.0, mean_yy - mean_y**2 - a * a * spread_x)  # what the line leaves unexplained
        error = math.sqrt(left / (spread_x * (number - 2)))  # of a
        if error <= max(SURE_TOKENS * b, a / 2):
            self.pass_tokens = 0.0 if a <= 0 else min(MOST_PASS_TOKENS, a / b) if b > 0 else MOST_PASS_TOKENS
