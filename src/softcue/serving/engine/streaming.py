"""Text that is told while it is written, and ends where it was asked to."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

logger = logging.getLogger("softcue.serving")
UNFINISHED = "�"  # what a tokenizer gives for half a character


def cut(text: str, stop: Sequence[str]) -> str:
    """Text up to the first of some words.

    Example:
        >>> cut("My title. And more", (".", "And"))
        'My title'
    """
    ends = [place for word in stop if (place := text.find(word)) >= 0]
    return text[: min(ends)].rstrip() if ends else text


class Writer:
    """Hears the tokens of one row; tells what is sure of its text, and when it has enough.

    Told pieces never have to be taken back: the end of the text waits while it is half a character or might become
    a stop word. Where a pass is run again after an error, nothing is told twice.

    Example:
        writer = Writer(tokenizer, stop=("\\n",), on_text=print, is_dropped=lambda: False)
        writer([71, 1712])     # prints the text of the two tokens; False: go on
    """

    def __init__(
        self, tokenizer: Any, stop: Sequence[str], on_text: Callable[[str], None] | None, is_dropped: Callable[[], bool]
    ) -> None:
        self._tokenizer, self._stop, self._on_text, self._is_dropped = tokenizer, stop, on_text, is_dropped
        self._told = ""

    def __call__(self, ids: Sequence[int]) -> bool:
        """Whether the row has enough: a stop word is in it, or nobody waits for it."""
        if self._is_dropped():
            return True
        if self._on_text is None and not self._stop:
            return False
        text = str(self._tokenizer.decode(ids, skip_special_tokens=True)).strip()
        if (shorter := cut(text, self._stop)) != text:
            self.tell(shorter)
            return True
        text = text.rstrip(UNFINISHED)
        if getattr(self._tokenizer, "clean_up_tokenization_spaces", False):  # a last word may still lose its space
            text = text.rpartition(" ")[0]
        self.tell(text[: len(text) - max((_begun(text, word) for word in self._stop), default=0)].rstrip())
        return False

    def tell(self, text: str) -> None:
        """What is new in a text."""
        if self._on_text is None or not text.startswith(self._told) or len(text) == len(self._told):
            return
        try:
            self._on_text(text[len(self._told) :])
        except Exception:  # whoever listens badly must not end the pass of all
            logger.exception("a listener failed")
            self._on_text = None
        self._told = text


def _begun(text: str, word: str) -> int:
    """How many letters at the end of a text are the beginning of a word."""
    return next((size for size in range(min(len(word), len(text)), 0, -1) if text.endswith(word[:size])), 0)
