"""Special tokens in the texts of rows, such as `[SEP]` or `</s>`, are text; those of templates stay tokens."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary


@dataclass(frozen=True)
class SpecialTokens:
    """The special tokens of one tokenizer: how they are written, and how to read them as text."""

    tokenizer: Any

    @cached_property
    def pattern(self) -> re.Pattern[str]:
        """Matches every special token as it is written; an unknown word is text, unless its token has other roles."""
        added = getattr(self.tokenizer, "added_tokens_decoder", {}).values()
        written = {token.content for token in added if token.special} | set(self.tokenizer.all_special_tokens)
        unknown = self.tokenizer.unk_token
        if [name for name, token in self.tokenizer.special_tokens_map.items() if token == unknown] == ["unk_token"]:
            written.discard(unknown)
        longest_first = sorted(written, key=lambda text: (-len(text), text))
        return re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")

    @cached_property
    def as_text(self) -> Any:
        """A tokenizer that reads special tokens as text.

        It is a copy, because the option is a state of the tokenizer, which threads share.
        """
        literal = copy.deepcopy(self.tokenizer)
        literal.split_special_tokens = True
        return literal

    def count(self, *texts: str) -> int:
        """The number of special tokens in texts."""
        return sum(len(self.pattern.findall(text)) for text in texts)

    def interrupt(self, text: str) -> str:
        """The text with a space inside each special token, which then is none."""
        return self.pattern.sub(lambda match: f"{match[0][:1]} {match[0][1:]}", text)


_BY_TOKENIZER: WeakKeyDictionary[Any, SpecialTokens] = WeakKeyDictionary()


def special_tokens_of(tokenizer: Any) -> SpecialTokens:
    """The special tokens of a tokenizer, found once.

    Example:
        special_tokens_of(backbone.tokenizer).count("one [SEP] two")     # 1 on BERT
    """
    special_tokens = _BY_TOKENIZER.get(tokenizer)
    if special_tokens is None:
        special_tokens = _BY_TOKENIZER[tokenizer] = SpecialTokens(tokenizer)
    return special_tokens
