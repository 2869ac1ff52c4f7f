"""Special tokens in the texts of rows, such as `[SEP]` or `</s>`, are text; those of templates stay tokens."""

from __future__ import annotations

import re
from typing import Any
from weakref import WeakKeyDictionary

_PATTERNS: WeakKeyDictionary[Any, tuple[re.Pattern[str], str]] = WeakKeyDictionary()  # by tokenizer


def count_special_tokens(tokenizer: Any, *texts: str) -> int:
    """Count the special tokens that are written in texts; an unknown word is text, unless its token has other roles.

    Example:
        count_special_tokens(backbone.tokenizer, "one [SEP] two")     # 1 on BERT
    """
    pattern, _ = _pattern_of(tokenizer)
    return sum(len(pattern.findall(text)) for text in texts)


def may_have_special_tokens(tokenizer: Any, text: str) -> bool:
    """Whether a text has the first character of a special token; most texts have none, which is seen much faster.

    Example:
        may_have_special_tokens(backbone.tokenizer, "one [two]")     # True on BERT
    """
    return any(character in text for character in _pattern_of(tokenizer)[1])


def without_special_tokens(tokenizer: Any, text: str) -> str:
    """The text with a space for the first character of each special token, which then is none.

    The length stays, so places in the text stay. Tokenizers have an option to read special tokens as text, but those of
    T5 find `</s>` among their ordinary pieces even so.

    Example:
        without_special_tokens(backbone.tokenizer, "one [SEP] two")     # "one  SEP] two" on BERT
    """
    pattern, _ = _pattern_of(tokenizer)
    while pattern.search(text):
        text = pattern.sub(lambda match: f" {match[0][1:]}", text)
    return text


def special_token_pattern(tokenizer: Any) -> str:
    """The regular expression of every special token of a tokenizer as it is written.

    Example:
        special_token_pattern(backbone.tokenizer)     # "\\[MASK\\]|\\[CLS\\]|..." on BERT
    """
    return _pattern_of(tokenizer)[0].pattern


def _pattern_of(tokenizer: Any) -> tuple[re.Pattern[str], str]:
    """What matches every special token of a tokenizer as it is written, and their first characters; made once."""
    made = _PATTERNS.get(tokenizer)
    if made is None:
        added = getattr(tokenizer, "added_tokens_decoder", {}).values()
        written = {token.content for token in added if token.special} | set(tokenizer.all_special_tokens)
        unknown = tokenizer.unk_token
        if [name for name, token in tokenizer.special_tokens_map.items() if token == unknown] == ["unk_token"]:
            written.discard(unknown)
        longest_first = sorted(filter(str.strip, written), key=lambda text: (-len(text), text))
        pattern = re.compile("|".join(map(re.escape, longest_first)) or r"(?!)")
        first_characters = "".join(sorted({token[0] for token in longest_first}))
        made = _PATTERNS[tokenizer] = (pattern, first_characters)
    return made
