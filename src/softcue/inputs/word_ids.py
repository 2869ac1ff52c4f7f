"""Token ids of words, kept in memory: BERT's tokenizers read each word by itself, and most words come again.

Normalizing and splitting a text takes a tokenizer longer than all else that happens to a row outside the backbone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any
from weakref import WeakKeyDictionary

NUM_CHARACTERS = 1 << 20  # of the words that are kept, about a hundred thousand words
PROBES = ("", "a", "It's  naïve,\tCAFÉ 東京\u0301 \u0301x \u200d\x00 don't (3.50$) \xa0", "x" * 300 + " ok")

_WORD_IDS: WeakKeyDictionary[Any, WordIds | None] = WeakKeyDictionary()  # by tokenizer, which several cues share


def word_ids_of(tokenizer: Any) -> WordIds | None:
    """The ids of a tokenizer's words, made once; None if it may read several words together.

    Example:
        word_ids_of(backbone.tokenizer).encode(["one two"])     # [(101, 2028, 2048, 102)] on BERT
    """
    if tokenizer not in _WORD_IDS:
        _WORD_IDS[tokenizer] = WordIds.of(tokenizer)
    return _WORD_IDS[tokenizer]


class WordIds:
    """The ids of single texts on a tokenizer that reads each part between two spaces by itself.

    That holds for BERT's normalizer and pre-tokenizer with WordPiece, if no added token has a space: each of their
    steps stops at a space. `of` also compares a few texts with the tokenizer.

    Example:
        WordIds.of(backbone.tokenizer).encode(["one two"])     # [(101, 2028, 2048, 102)] on BERT
    """

    def __init__(self, tokenizer: Any) -> None:
        self._backend = tokenizer.backend_tokenizer
        self._ids_by_word: dict[str, tuple[int, ...]] = {}
        self._num_characters = 0
        frame = self._backend.encode("a")
        added = [bool(is_added) for is_added in frame.special_tokens_mask]
        start = added.index(False) if False in added else len(added)
        end = len(added) - added[::-1].index(False) if False in added else start
        self._before, self._behind = tuple(frame.ids[:start]), tuple(frame.ids[end:])

    @classmethod
    def of(cls, tokenizer: Any) -> WordIds | None:
        """The ids of this tokenizer's words; None if it may read several words together."""
        if not _reads_single_words(tokenizer):
            return None
        word_ids = cls(tokenizer)
        encoded = [tokenizer(text, verbose=False) for text in PROBES]
        has_one_segment = not any(any(encoding.get("token_type_ids", ())) for encoding in encoded)
        expected = [tuple(encoding["input_ids"]) for encoding in encoded]
        return word_ids if has_one_segment and word_ids.encode(PROBES) == expected else None

    def encode(self, texts: Sequence[str]) -> list[tuple[int, ...]]:
        """The ids of each text, with the special tokens around it."""
        all_words = [text.split(" ") for text in texts]
        ids_by_word = self._with(set(chain.from_iterable(all_words)))
        before, behind = self._before, self._behind
        return [(*before, *chain.from_iterable(map(ids_by_word.__getitem__, words)), *behind) for words in all_words]

    def _with(self, words: set[str]) -> dict[str, tuple[int, ...]]:
        """The ids of these words and of others. Another thread may start anew meanwhile: it leaves this one alone."""
        ids_by_word = self._ids_by_word
        unknown = list(words.difference(ids_by_word))
        if not unknown:
            return ids_by_word
        num_new = sum(map(len, unknown))
        if self._num_characters + num_new > NUM_CHARACTERS:
            ids_by_word = self._ids_by_word = {word: ids_by_word[word] for word in words if word in ids_by_word}
            self._num_characters = sum(map(len, ids_by_word))
        self._num_characters += num_new
        backend = self._backend
        if backend.padding is not None:  # as its last caller wanted it
            backend.no_padding()
        if backend.truncation is not None:
            backend.no_truncation()
        encodings = backend.encode_batch_fast(unknown, add_special_tokens=False)
        ids_by_word.update(zip(unknown, [tuple(encoding.ids) for encoding in encodings], strict=True))
        return ids_by_word


def _reads_single_words(tokenizer: Any) -> bool:
    """Whether no step of a tokenizer looks beyond a space."""
    from tokenizers import models, normalizers, pre_tokenizers

    if not getattr(tokenizer, "is_fast", False):
        return False
    backend = tokenizer.backend_tokenizer
    return (
        isinstance(backend.normalizer, normalizers.BertNormalizer)
        and isinstance(backend.pre_tokenizer, pre_tokenizers.BertPreTokenizer)
        and isinstance(backend.model, models.WordPiece)
        and not any(" " in token.content for token in tokenizer.added_tokens_decoder.values())
    )
