"""Generated text that is sent while it is written, and that ends at stop words."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from softcue.backbones.passes.decoding import cut_at_stop

logger = logging.getLogger("softcue.serving")
UNFINISHED = "�"  # the text of half a character


class TextStreamer:
    """Receives the token ids of one row, sends new text, and says when the row may stop.

    Text that was sent is never taken back: the end of the text waits while it is half a character or may become
    a stop word. `answer_tokens` takes the part of the ids that is the answer so far. If a pass is run again after an
    error, no text is sent twice.

    Example:
        streamer = TextStreamer(tokenizer, stop=("\\n",), on_text=print, is_dropped=lambda: False)
        streamer([71, 1712])     # prints the text of the two tokens; False: go on
    """

    def __init__(
        self,
        tokenizer: Any,
        stop: Sequence[str],
        on_text: Callable[[str], None] | None,
        is_dropped: Callable[[], bool],
        answer_tokens: Callable[[Sequence[int]], Sequence[int]] = lambda ids: ids,
    ) -> None:
        self._answer_tokens = answer_tokens
        self._tokenizer, self._stop, self._on_text, self._is_dropped = tokenizer, stop, on_text, is_dropped
        self._sent = ""
        self._special_ids = frozenset(getattr(tokenizer, "all_special_ids", ()))
        self.is_ended = True  # False while the text would go on: its last token is none that ends it

    def __call__(self, ids: Sequence[int]) -> bool:
        """Whether the row may stop: it has a stop word, or no client waits for it."""
        if self._is_dropped():
            return True
        self.is_ended = ids[-1] in self._special_ids
        if self._on_text is None and not self._stop:
            return False
        text = str(self._tokenizer.decode(self._answer_tokens(ids), skip_special_tokens=True)).strip()
        if (shorter := cut_at_stop(text, self._stop)) != text:
            self.send(shorter)
            self.is_ended = True
            return True
        text = text.rstrip(UNFINISHED)
        if getattr(self._tokenizer, "clean_up_tokenization_spaces", False):  # the space before the last word may go
            text = text.rpartition(" ")[0]
        num_held = max((_overlap(text, word) for word in self._stop), default=0)
        self.send(text[: len(text) - num_held].rstrip())
        return False

    def send(self, text: str) -> None:
        """Send the part of the whole text that is new."""
        if self._on_text is None or not text.startswith(self._sent) or len(text) == len(self._sent):
            return
        try:
            self._on_text(text[len(self._sent) :])
        except Exception:  # an error in the callback must not end the pass of all rows
            logger.exception("a text callback failed")
            self._on_text = None
        self._sent = text


def _overlap(text: str, word: str) -> int:
    """The number of characters at the end of a text that begin a word."""
    return next((size for size in range(min(len(word), len(text)), 0, -1) if text.endswith(word[:size])), 0)
