"""Examples to tokenized rows. This module knows tokenizers and lengths, but no model, prompt or label set."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from typing import Any, Literal

from softcue.errors import ConfigurationError
from softcue.inputs.collate import NO_SPAN
from softcue.inputs.special_tokens import count_special_tokens, may_have_special_tokens, without_special_tokens
from softcue.inputs.word_ids import word_ids_of
from softcue.tasks import Task
from softcue.types import BackboneKind, Example, TokenizedRow

# The unit whose character span is the offset of a token: the token itself, or the word that it begins.
OffsetUnit = Literal["token", "word"]
InsertAt = Literal["front", "start", "first-end", "second-start", "end", "appended", "around"]
# The positions of IDPG's figure 7, counted from 0 as its authors do.
NUMBERED_POSITIONS: tuple[InsertAt, ...] = ("start", "first-end", "second-start", "end", "appended")

# Marks for a decoder where the text ends and the target begins. The other kinds read text and target separately.
ANSWER_PREFIX = "\nAnswer:"
TOKENS_AT_ONCE = 16384  # per forward pass without gradients; bounds memory
TEXTS_AT_ONCE = 1024  # per call of the tokenizer


@dataclass(frozen=True)
class InputFormatter:
    """Converts the rows of one task to the token ids of one tokenizer.

    `limit` is the number of tokens left for the text beside prompt and target. `suffix` is a text that ends every
    source, such as the mask of a label-word readout. `answer_prefix` follows it where the target begins. Only the texts
    of a row are truncated, never template, suffix or answer prefix. Special tokens in the texts of a row are text.
    """

    task: Task
    tokenizer: Any
    kind: BackboneKind
    limit: int
    insert_at: InsertAt = "start"
    suffix: str = ""
    answer_prefix: str = ""  # not for encoders
    offset_unit: OffsetUnit | None = None  # None: rows have no offsets
    pad_punctuation: bool = False  # spaces around punctuation in the texts, not in the template; not for encoders
    suffix_in_first: bool = False  # of two texts of an encoder, the suffix ends the first
    prompt_length: int = 0  # vectors to place; needed for insert_at=around alone

    def __post_init__(self) -> None:
        """Check that the task and the backbone have the position where the prompt goes."""
        num_texts = self.task.num_sentences
        if self.insert_at == "second-start" and num_texts < 2:
            raise ConfigurationError(
                setting="method.insert_at",
                got=self.insert_at,
                expected="a task that reads two texts",
                fix="use start, end or appended for one text",
            )
        if self.insert_at in ("first-end", "second-start") and num_texts == 2 and self.kind != "encoder":
            raise ConfigurationError(
                setting="method.insert_at",
                got=self.insert_at,
                expected="an encoder, which keeps two texts apart",
                fix="use front, start or end: this backbone reads both as one text",
            )
        if self.insert_at == "appended" and self._separator is None:
            raise ConfigurationError(
                setting="method.insert_at",
                got=self.insert_at,
                expected="a backbone with a separator token",
                fix="use front, start or end",
            )
        if self.insert_at == "around" and (self.kind != "encoder" or self.tokenizer.mask_token not in self.suffix):
            raise ConfigurationError(
                setting="method.insert_at",
                got=self.insert_at,
                expected="an encoder whose readout has a mask: the prompt goes around text and mask",
                fix="set readout.pooling=mask or readout.name=label-words; or use start",
            )

    @property
    def _separator(self) -> int | None:
        """The token before and after an appended prompt: RoBERTa's `</s>`, BERT's `[SEP]`, T5's end token."""
        if self.kind == "decoder":
            return None
        separator: int | None = self.tokenizer.eos_token_id
        if self.kind == "encoder" and self.tokenizer.sep_token_id is not None:
            separator = self.tokenizer.sep_token_id
        return separator

    def source(self, example: Example) -> TokenizedRow:
        """Tokenize the source text of an example, truncated to the limit."""
        texts = self._texts_of(example)
        encoded = self._encode(texts)
        is_truncated = len(encoded["input_ids"]) > self._text_limit
        while (excess := len(encoded["input_ids"]) - self._text_limit) > 0:
            texts = self._shorten(texts, excess)
            encoded = self._encode(texts)
        return self._row(example, texts, encoded, is_truncated)

    def sources(self, examples: Sequence[Example]) -> list[TokenizedRow]:
        """Tokenize the source texts of many examples, in a few calls of the tokenizer."""
        return list(self.iterate_sources(examples))

    def iterate_sources(self, examples: Sequence[Example]) -> Iterator[TokenizedRow]:
        """Tokenize the source texts of many examples, some at a time."""
        is_fast = getattr(self.tokenizer, "is_fast", False)
        for first in range(0, len(examples), TEXTS_AT_ONCE):
            batch = list(examples[first : first + TEXTS_AT_ONCE])  # those of a file are read once
            if not is_fast:
                yield from map(self.source, batch)
                continue
            all_texts = [self._texts_of(example) for example in batch]
            all_sources = self._all_sources(all_texts)
            all_ids = self._ids_by_words(all_sources)
            if all_ids is not None:
                limit = self._text_limit
                for example, texts, ids in zip(batch, all_texts, all_ids, strict=True):
                    yield self._row_of_words(example, texts, ids) if len(ids) <= limit else self.source(example)
                continue
            all_encoded = self._encode_all(all_sources)
            for example, texts, sources, encoded in zip(batch, all_texts, all_sources, all_encoded, strict=True):
                is_whole = len(encoded["input_ids"]) <= self._text_limit and all(sources[1:])
                yield self._row(example, texts, encoded) if is_whole else self.source(example)

    def _texts_of(self, example: Example) -> tuple[str, ...]:
        if self.pad_punctuation and self.kind != "encoder":
            return tuple(map(pad_punctuation, example.texts))
        return example.texts

    def _row(
        self, example: Example, texts: tuple[str, ...], encoded: dict[str, Any], is_truncated: bool = False
    ) -> TokenizedRow:
        """The row of encoded texts, with the place of the prompt."""
        ids = tuple(encoded["input_ids"])
        segments = tuple(encoded["token_type_ids"]) if "token_type_ids" in encoded else None
        parts = tuple(encoded["parts"]) if "parts" in encoded else None
        offsets = None
        if self.offset_unit is not None:
            offsets = self._token_offsets(encoded, self.task.for_encoder(texts)[-1], example.offset)
        if self.insert_at == "appended":  # text </s> prompt </s>: both separators are tokens of the row
            assert self._separator is not None
            ids = (*ids, self._separator, self._separator)
            segments = segments and (*segments, segments[-1], segments[-1])
            parts = parts and (*parts, -1, -1)
            offsets = offsets and (*offsets, NO_SPAN, NO_SPAN)
        if self.insert_at == "around":
            places = self._places_around(ids, parts)
            insert_at = places[0] if places else 0
        else:
            places, insert_at = None, self._prompt_index(ids, parts)
        return TokenizedRow(
            ids, segments, insert_at, is_truncated=is_truncated, parts=parts, offsets=offsets, places=places
        )

    def windows(self, example: Example, overlap: float = 0.0) -> list[Example]:
        """Split the last text into windows that fit the limit, cut between words; one window if it fits.

        `overlap` is the share of a window that the next window repeats. A span that a window cuts keeps its length, so
        it reaches beyond the window.
        """
        *others, text = example.texts
        if self._num_tokens(*others, text) <= self._text_limit:
            return [example]
        room = self._text_limit - self._num_tokens(*others, "")
        has_room = room >= max(1, self._text_limit // 4)
        if not has_room:  # `source` then truncates the other texts and marks the row as truncated
            room = max(1, self._text_limit // 4)
        words, sizes = self._split_words(text, max(1, room // 4))
        windows = []
        first = 0
        while first < len(words):
            last, used = first + 1, sizes[first]
            while last < len(words) and used + sizes[last] <= room:
                used += sizes[last]
                last += 1
            start, end = words[first][0], words[last - 1][1]
            while has_room and last > first + 1 and self._num_tokens(*others, text[start:end]) > self._text_limit:
                last -= 1  # a word at the start may have more tokens than the same word after a space
                end = words[last - 1][1]
            spans = tuple(
                replace(span, start=span.start - start, end=span.end - start)
                for span in example.spans
                if span.start < end and span.end > start
            )
            window = replace(example, texts=(*others, text[start:end]), spans=spans, offset=example.offset + start)
            windows.append(window)
            if last == len(words):
                break
            first = max(first + 1, last - int(overlap * (last - first)))
        return windows

    def _split_words(self, text: str, max_tokens: int) -> tuple[list[tuple[int, int]], list[int]]:
        """The character spans of the words and their numbers of tokens.

        A word of more than `max_tokens` tokens, as in scripts without spaces, is split.
        """
        spans, sizes = [], []
        matches = list(re.finditer(r"\S+", text))
        for match, offsets in zip(matches, self._offsets([match[0] for match in matches]), strict=True):
            for first in range(0, max(1, len(offsets)), max_tokens):
                tokens = offsets[first : first + max_tokens] or [(0, len(match[0]))]
                following = first + max_tokens
                start = match.start() + (tokens[0][0] if first else 0)
                end = match.start() + (offsets[following][0] if following < len(offsets) else len(match[0]))
                if end > start:
                    spans.append((start, end))
                    sizes.append(len(tokens))
        return spans, sizes

    def _offsets(self, texts: list[str]) -> list[list[tuple[int, int]]]:
        """The character spans of the tokens of each text, without special tokens."""
        if not texts:
            return []
        texts = [without_special_tokens(self.tokenizer, text) for text in texts]
        encoded = self.tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return encoded["offset_mapping"]  # type: ignore[no-any-return]

    def source_text(self, example: Example) -> str:
        """Return the text that a backbone which writes text reads for an example, with the answer prefix, uncut.

        Example:
            >>> InputFormatter(Task(name="t"), None, "decoder", 96, answer_prefix=ANSWER_PREFIX).source_text(
            ...     Example(("Where is it?",))
            ... )
            'Where is it?\\nAnswer:'
        """
        texts = tuple(map(pad_punctuation, example.texts)) if self.pad_punctuation else example.texts
        return self.task.source(texts) + self.suffix + self.answer_prefix

    @property
    def templates(self) -> list[str]:
        """The texts that the tokenizer reads, with {column} for the text of each column.

        Example:
            >>> InputFormatter(Task(name="t"), None, "decoder", 96, answer_prefix=ANSWER_PREFIX).templates
            ['{text}\\nAnswer:']
        """
        return self._fill(tuple(f"{{{column}}}" for column in self.task.text))

    def _num_tokens(self, *texts: str) -> int:
        return len(self._encode(texts)["input_ids"])

    @property
    def _text_limit(self) -> int:
        """The limit without the two separators around an appended prompt."""
        return self.limit - (2 if self.insert_at == "appended" else 0)

    def _token_offsets(self, encoded: dict[str, Any], text: str, offset: int) -> tuple[tuple[int, int], ...]:
        """The character span of each token in the full last text; tokens outside of it have (-1, -1)."""
        offsets = []
        last_word_end = -1
        for (start, end), is_last in zip(encoded["offset_mapping"], encoded["is_last"], strict=True):
            while is_last and start < end and text[start].isspace():  # byte-level tokens begin with their space
                start += 1
            if not is_last or start == end:
                offsets.append(NO_SPAN)
                continue
            if self.offset_unit == "word":
                word = _word_at(text, start)
                if word[0] < last_word_end:
                    offsets.append(NO_SPAN)
                    continue
                start, end = word
                last_word_end = end
            offsets.append((start + offset, end + offset))
        return tuple(offsets)

    def _sources(self, texts: tuple[str, ...]) -> list[str]:
        """The texts that the tokenizer reads: one, or two of an encoder that keeps them apart.

        Special tokens in the texts of a row are text. Those of template, suffix and answer prefix are tokens.
        """
        sources = self._fill(texts)
        if not (num_special := count_special_tokens(self.tokenizer, *sources)):
            return sources
        if num_special == self._num_special_of_template:
            return sources
        if self._num_special_of_template:
            return self._fill(tuple(without_special_tokens(self.tokenizer, text) for text in texts))
        return [without_special_tokens(self.tokenizer, source) for source in sources]

    def _all_sources(self, all_texts: Sequence[tuple[str, ...]]) -> list[list[str]]:
        """The same for many rows. Most have no special tokens, which is seen faster for all of them at once."""
        filled = [self._fill(texts) for texts in all_texts]
        if not may_have_special_tokens(self.tokenizer, "\n".join(chain.from_iterable(filled))):
            return filled
        return [self._sources(texts) for texts in all_texts]

    @cached_property
    def _num_special_of_template(self) -> int:
        """How many special tokens template, suffix and answer prefix have, without the texts of a row."""
        return count_special_tokens(self.tokenizer, *self._fill(("",) * len(self.task.text)))

    @cached_property
    def largest_token_id(self) -> int:
        """The largest id of the vocabulary; ids may have gaps."""
        return max(map(int, self.tokenizer.get_vocab().values()))

    def _fill(self, texts: tuple[str, ...]) -> list[str]:
        """The texts in their template, with suffix and answer prefix."""
        if self.kind != "encoder":
            return [self.task.source(texts) + self.suffix + self.answer_prefix]
        *first, last = self.task.for_encoder(texts)
        if first and self.suffix_in_first:
            return [first[0] + self.suffix, last]
        return [*first, last + self.suffix]

    def _encode(self, texts: tuple[str, ...]) -> dict[str, Any]:
        sources = self._sources(texts)
        # Alone, transformers reads a pair with an empty second text as one text; in a list of pairs it does not.
        if getattr(self.tokenizer, "is_fast", False) and all(sources[1:]):
            return self._encode_all([sources])[0]
        encoding = self.tokenizer(*sources, verbose=False, return_offsets_mapping=self.offset_unit is not None)
        parts = encoding.sequence_ids(0) if self._has_parts(len(sources)) else None
        return self._complete(dict(encoding), parts, len(sources))

    def _has_parts(self, num_sources: int) -> bool:
        """Whether the row says which text a token belongs to."""
        return self.kind == "encoder" and (self.offset_unit is not None or num_sources > 1)

    def _encode_all(self, all_sources: Sequence[Sequence[str]]) -> list[dict[str, Any]]:
        """Encode the texts of many rows in one call."""
        columns = [list(column) for column in zip(*all_sources, strict=True)]
        has_offsets = self.offset_unit is not None
        encoding = self.tokenizer(
            *columns, verbose=False, return_offsets_mapping=has_offsets, return_attention_mask=False
        )
        names, has_parts = tuple(encoding), self._has_parts(len(columns))
        return [
            self._complete(
                dict(zip(names, values, strict=True)),
                encoding.sequence_ids(row) if has_parts else None,
                len(columns),
            )
            for row, values in enumerate(zip(*encoding.values(), strict=True))
        ]

    def _ids_by_words(self, all_sources: Sequence[Sequence[str]]) -> list[tuple[int, ...]] | None:
        """The ids of single texts of an encoder by their words; None if its tokenizer needs whole texts."""
        if self.kind != "encoder" or self.offset_unit is not None or len(all_sources[0]) > 1:
            return None
        word_ids = word_ids_of(self.tokenizer)
        return None if word_ids is None else word_ids.encode([source for [source] in all_sources])

    def _row_of_words(self, example: Example, texts: tuple[str, ...], ids: tuple[int, ...]) -> TokenizedRow:
        """The row of a text whose ids were found by its words: all tokens are of the first segment."""
        segments = (0,) * len(ids) if self._has_segments else None
        if self.insert_at in ("appended", "around"):
            encoded = {"input_ids": ids} | ({} if segments is None else {"token_type_ids": segments})
            return self._row(example, texts, encoded)
        return TokenizedRow(ids, segments, self._prompt_index(ids, None))

    @cached_property
    def _has_segments(self) -> bool:
        return "token_type_ids" in self.tokenizer.model_input_names

    def _complete(self, encoded: dict[str, Any], parts: list[int | None] | None, num_sources: int) -> dict[str, Any]:
        """What the row of an encoding needs: of a pair the part of each token, of a decoder no end token."""
        if self.kind == "encoder":
            if parts is not None:
                encoded["is_last"] = [part == num_sources - 1 for part in parts]
                if num_sources > 1:
                    encoded["parts"] = [-1 if part is None else part for part in parts]
            return encoded
        if self.kind == "decoder" and encoded["input_ids"][-1:] == [self.tokenizer.eos_token_id]:
            encoded["input_ids"] = encoded["input_ids"][:-1]
        encoded.pop("token_type_ids", None)
        if not encoded["input_ids"]:  # a text that may be empty, in a decoder: a model must read something
            end = self.tokenizer.eos_token_id
            encoded["input_ids"] = [self.tokenizer.pad_token_id if end is None else end]
        return encoded

    def _shorten(self, texts: tuple[str, ...], excess: int) -> tuple[str, ...]:
        """Cut about `excess` tokens from the end of the longest text that the backbone reads."""
        read = self.task.read_by(encoder=self.kind == "encoder")
        all_offsets = self._offsets(list(texts))
        offsets = [text_offsets if index in read else [] for index, text_offsets in enumerate(all_offsets)]
        longest = max(range(len(texts)), key=lambda index: len(offsets[index]))
        # Several long texts share the cut.
        total = sum(map(len, offsets))
        keep = max(len(offsets[longest]) - excess, (total - excess) // len(read))
        keep = min(keep, len(offsets[longest]) - 1)
        # Tokens of one character (the bytes of an emoji) share its span: cut before the first dropped token.
        end = min(offsets[longest][keep - 1][1], offsets[longest][keep][0]) if keep > 0 else 0
        if end == 0:
            raise ConfigurationError(
                setting="backbone.max_length less prompt and answer",
                got=self.limit,
                expected="room for at least one token of text",
                fix="shorten method.prompt_length or raise backbone.max_length",
            )
        shortened = texts[longest][:end]
        return tuple(shortened if index == longest else text for index, text in enumerate(texts))

    def _prompt_index(self, ids: tuple[int, ...], parts: tuple[int, ...] | None) -> int:
        """The index into `ids` before which the prompt goes."""
        if self.insert_at == "appended":
            return len(ids) - 1
        if self.insert_at == "second-start":
            assert parts is not None
            # A second text without tokens has no start: use the closing token.
            return parts.index(1) if 1 in parts else len(parts) - 1
        if self.insert_at == "first-end" and parts is not None:
            return len(parts) - parts[::-1].index(0) if 0 in parts else 1
        if self.insert_at == "front":
            return 0
        special = self.special_ids
        if self.insert_at == "start":
            return int(bool(ids) and ids[0] in special)
        return _end_of_text(ids, special)  # "end", and "first-end" of a single text

    @cached_property
    def special_ids(self) -> set[int]:
        """The ids of special tokens; an unknown word is text, unless its token has other roles too."""
        special = set(self.tokenizer.all_special_ids)
        names = [name for name, token in self.tokenizer.special_tokens_map.items() if token == self.tokenizer.unk_token]
        if names == ["unk_token"]:
            special.discard(self.tokenizer.unk_token_id)
        return special

    def _places_around(self, ids: tuple[int, ...], parts: tuple[int, ...] | None) -> tuple[int, ...]:
        """The index into `ids` before which each prompt vector goes: four parts of equal size, as WARP has them.

        One part is at the start, one before the mask, one behind it and one at the end of the last text. Of a number
        that is no multiple of four, the first parts take one more.
        """
        is_pair = parts is not None and self.suffix_in_first
        candidates = [
            index
            for index, token in enumerate(ids)
            if token == self.tokenizer.mask_token_id and not (is_pair and parts is not None and parts[index] == 1)
        ]
        mask = candidates[-1]
        special = self.special_ids
        starts = (int(ids[0] in special), mask, mask + 1, _end_of_text(ids, special, mask + 1))
        sizes = [self.prompt_length // 4 + (number < self.prompt_length % 4) for number in range(4)]
        return tuple(start for start, size in zip(starts, sizes, strict=True) for _ in range(size))


def _end_of_text(ids: tuple[int, ...], special: set[int], first: int = 0) -> int:
    """The index behind the last token that is not special, at least `first`."""
    last = len(ids)
    while last > first and ids[last - 1] in special:
        last -= 1
    return last


def pad_punctuation(text: str) -> str:
    """Put spaces around each character that is no letter, accent, number, underscore or white space, as T5 does.

    T5 so reads SQuAD and the MRQA sets (Raffel et al. 2020). White space becomes single spaces.

    Example:
        >>> pad_punctuation("Don't pay $3.50 (café).")
        "Don ' t pay $ 3 . 50 ( café ) ."
    """
    kept = {
        character
        for character in set(text)
        if character == "_" or character.isspace() or unicodedata.category(character)[0] in "LMN"
    }
    return " ".join("".join(character if character in kept else f" {character} " for character in text).split())


def _word_at(text: str, index: int) -> tuple[int, int]:
    """The character span of the word, between spaces, at that index."""
    start = end = index
    while start > 0 and not text[start - 1].isspace():
        start -= 1
    while end < len(text) and not text[end].isspace():
        end += 1
    return start, end


def target_tokens(tokenizer: Any, kind: BackboneKind, words: str) -> tuple[int, ...]:
    """Tokenize a target as a backbone of that kind generates it, closed by the end token."""
    if kind == "decoder":
        # Tokenized together with the prefix, so that a leading space is merged as after a real source.
        prefix_ids = tokenizer(ANSWER_PREFIX, add_special_tokens=False)["input_ids"]
        joint_ids = tokenizer(f"{ANSWER_PREFIX} {words}", add_special_tokens=False)["input_ids"]
        return (*joint_ids[len(prefix_ids) :], tokenizer.eos_token_id)
    ids = tuple(tokenizer(words)["input_ids"])
    return ids if ids and ids[-1] == tokenizer.eos_token_id else (*ids, tokenizer.eos_token_id)
