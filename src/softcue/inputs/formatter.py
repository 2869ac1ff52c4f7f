"""Example -> Tokens -> Batch. Knows tokenizers and lengths, but no model, prompt or label set."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Literal

from softcue.errors import ConfigurationError
from softcue.inputs.collate import NOWHERE
from softcue.tasks import Task
from softcue.types import Example, TokenizedRow

Kind = Literal["encoder", "encoder-decoder", "decoder"]
Places = Literal["pieces", "words"]  # whose characters a token's offsets are: its own, or its word's if it begins one
InsertAt = Literal["front", "start", "first-end", "second-start", "end", "appended"]
# The places of IDPG's figure 7, counted from 0 as its authors do.
NUMBERED_PLACES: tuple[InsertAt, ...] = ("start", "first-end", "second-start", "end", "appended")

# A decoder must know where the text ends and the answer begins; the other kinds see it in their structure.
ANSWER_CUE = "\nAnswer:"
TOKENS_AT_ONCE = 16384  # in one pass without gradients: bounds memory


@dataclass(frozen=True)
class InputFormatter:
    """How the rows of one task become tokens for one tokenizer.

    `limit` is what is left for the text after prompt and target; `suffix` is text every source ends with
    (the mask of a label-word readout, say). Neither is ever cut: only the rows' own texts are.
    """

    task: Task
    tokenizer: Any
    kind: Kind
    limit: int
    insert_at: InsertAt = "start"
    suffix: str = ""
    writes_answer: bool = False
    places: Places | None = None

    def __post_init__(self) -> None:
        """Places that only some texts have."""
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

    @property
    def _separator(self) -> int | None:
        """What stands before and behind an appended prompt: RoBERTa's `</s>`, BERT's `[SEP]`, T5's end token."""
        if self.kind == "decoder":
            return None
        found: int | None = self.tokenizer.eos_token_id
        if self.kind == "encoder" and self.tokenizer.sep_token_id is not None:
            found = self.tokenizer.sep_token_id
        return found

    def source(self, example: Example) -> TokenizedRow:
        """Tokens of the source text, cut to the limit where it is too long."""
        texts = example.texts
        encoded = self._encode(texts)
        is_truncated = len(encoded["input_ids"]) > self._text_limit
        while (excess := len(encoded["input_ids"]) - self._text_limit) > 0:
            texts = self._shortened(texts, excess)
            encoded = self._encode(texts)
        ids = tuple(encoded["input_ids"])
        segments = tuple(encoded["token_type_ids"]) if "token_type_ids" in encoded else None
        parts = tuple(encoded["parts"]) if "parts" in encoded else None
        offsets = self._placed(encoded, self.task.for_encoder(texts)[-1], example.offset)
        if self.insert_at == "appended":  # text </s> prompt </s>: both separators are tokens of the row
            assert self._separator is not None
            ids = (*ids, self._separator, self._separator)
            segments = segments and (*segments, segments[-1], segments[-1])
            parts = parts and (*parts, -1, -1)
            offsets = offsets and (*offsets, NOWHERE, NOWHERE)
        insertion = self._insertion(ids, parts)
        return TokenizedRow(ids, segments, insertion, is_truncated=is_truncated, parts=parts, offsets=offsets)

    def windows(self, example: Example, overlap: float = 0.0) -> list[Example]:
        """The example with its last text in windows that fit the limit, cut between words; itself if it fits.

        `overlap` is the share of a window that the next one begins with. Spans that an edge cuts reach beyond it.
        """
        *others, text = example.texts
        if self._size(*others, text) <= self._text_limit:
            return [example]
        room = self._text_limit - self._size(*others, "")
        leaves_room = room >= max(1, self._text_limit // 4)
        if not leaves_room:  # then the other texts are what will be cut, and told of
            room = max(1, self._text_limit // 4)
        words, sizes = self._units(text, max(1, room // 4))
        found = []
        first = 0
        while first < len(words):
            last, used = first + 1, sizes[first]
            while last < len(words) and used + sizes[last] <= room:
                used += sizes[last]
                last += 1
            start, end = words[first][0], words[last - 1][1]
            while leaves_room and last > first + 1 and self._size(*others, text[start:end]) > self._text_limit:
                last -= 1  # a first word may have more pieces than the same word behind a space
                end = words[last - 1][1]
            spans = tuple(
                replace(span, start=span.start - start, end=span.end - start)
                for span in example.spans
                if span.start < end and span.end > start
            )
            found.append(replace(example, texts=(*others, text[start:end]), spans=spans, offset=example.offset + start))
            if last == len(words):
                break
            first = max(first + 1, last - int(overlap * (last - first)))
        return found

    def _units(self, text: str, most: int) -> tuple[list[tuple[int, int]], list[int]]:
        """Words, and pieces of words that have more tokens (scripts without spaces), with how many they have."""
        units, sizes = [], []
        words = list(re.finditer(r"\S+", text))
        for match, offsets in zip(words, self._offsets([match[0] for match in words]), strict=True):
            for first in range(0, max(1, len(offsets)), most):
                piece = offsets[first : first + most] or [(0, len(match[0]))]
                start = match.start() + (piece[0][0] if first else 0)
                end = match.start() + (offsets[first + most][0] if first + most < len(offsets) else len(match[0]))
                if end > start:
                    units.append((start, end))
                    sizes.append(len(piece))
        return units, sizes

    def _offsets(self, texts: list[str]) -> list[list[tuple[int, int]]]:
        if not texts:
            return []
        found = self.tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        return found["offset_mapping"]  # type: ignore[no-any-return]

    def _size(self, *texts: str) -> int:
        return len(self._encode(texts)["input_ids"])

    @property
    def _text_limit(self) -> int:
        """What is left of the limit beside the separators around an appended prompt."""
        return self.limit - (2 if self.insert_at == "appended" else 0)

    def _placed(self, encoded: dict[str, Any], text: str, offset: int) -> tuple[tuple[int, int], ...] | None:
        """Where in the whole last text each token stands; tokens that stand nowhere in it have -1."""
        if self.places is None:
            return None
        found = []
        seen = -1  # the end of the last word that has a token
        for (start, end), is_last in zip(encoded["offset_mapping"], encoded["is_last"], strict=True):
            while is_last and start < end and text[start].isspace():  # byte-level pieces begin with their space
                start += 1
            if not is_last or start == end:
                found.append(NOWHERE)
                continue
            if self.places == "words":
                word = _word_at(text, start)
                if word[0] < seen:
                    found.append(NOWHERE)
                    continue
                start, end = word
                seen = end
            found.append((start + offset, end + offset))
        return tuple(found)

    def _encode(self, texts: tuple[str, ...]) -> dict[str, Any]:
        if self.kind == "encoder":
            *first, last = self.task.for_encoder(texts)
            found = self.tokenizer(*first, last + self.suffix, verbose=False, return_offsets_mapping=bool(self.places))
            encoded = dict(found)
            if self.places or first:
                parts = found.sequence_ids(0)
                encoded["is_last"] = [part == len(first) for part in parts]
                if first:
                    encoded["parts"] = [-1 if part is None else part for part in parts]
            return encoded
        cue = ANSWER_CUE if self.kind == "decoder" and self.writes_answer else ""
        encoded = dict(self.tokenizer(self.task.source(texts) + self.suffix + cue, verbose=False))
        if self.kind == "decoder" and encoded["input_ids"][-1:] == [self.tokenizer.eos_token_id]:
            encoded = {name: ids[:-1] for name, ids in encoded.items()}
        encoded.pop("token_type_ids", None)
        return encoded

    def _shortened(self, texts: tuple[str, ...], excess: int) -> tuple[str, ...]:
        """The texts with `excess` tokens cut from the end of the longest that is read."""
        read = self.task.read_by(encoder=self.kind == "encoder")
        known = self._offsets(list(texts))
        offsets = [own if index in read else [] for index, own in enumerate(known)]
        longest = max(range(len(texts)), key=lambda index: len(offsets[index]))
        # the cut is shared between several long texts
        total = sum(map(len, offsets))
        keep = max(len(offsets[longest]) - excess, (total - excess) // len(read))
        keep = min(keep, len(offsets[longest]) - 1)
        # Pieces of one character (an emoji in bytes) share its span: cut in front of the first dropped piece.
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

    def _insertion(self, ids: tuple[int, ...], parts: tuple[int, ...] | None) -> int:
        if self.insert_at == "appended":
            return len(ids) - 1
        if self.insert_at == "second-start":
            assert parts is not None
            # a text the tokenizer finds nothing in has no place: the closing token then
            return parts.index(1) if 1 in parts else len(parts) - 1
        if self.insert_at == "first-end" and parts is not None:
            return len(parts) - parts[::-1].index(0) if 0 in parts else 1
        special = set(self.tokenizer.all_special_ids)
        names = [name for name, token in self.tokenizer.special_tokens_map.items() if token == self.tokenizer.unk_token]
        if names == ["unk_token"]:  # an unknown word is text, unless its token has other roles too
            special.discard(self.tokenizer.unk_token_id)
        if self.insert_at == "front":
            return 0
        if self.insert_at == "start":
            return int(bool(ids) and ids[0] in special)
        last = len(ids)  # end, and the end of an only text
        while last > 0 and ids[last - 1] in special:
            last -= 1
        return last


def _word_at(text: str, place: int) -> tuple[int, int]:
    """The word, between spaces, that a character belongs to."""
    start = end = place
    while start > 0 and not text[start - 1].isspace():
        start -= 1
    while end < len(text) and not text[end].isspace():
        end += 1
    return start, end


def answer_tokens(tokenizer: Any, kind: Kind, words: str) -> tuple[int, ...]:
    """Tokens of an answer as a backbone of that kind writes it, closed by the end token."""
    if kind == "decoder":
        # Cut from the joint text, so that a leading space is merged exactly as after a real source.
        before = tokenizer(ANSWER_CUE, add_special_tokens=False)["input_ids"]
        both = tokenizer(f"{ANSWER_CUE} {words}", add_special_tokens=False)["input_ids"]
        return (*both[len(before) :], tokenizer.eos_token_id)
    ids = tuple(tokenizer(words)["input_ids"])
    return ids if ids and ids[-1] == tokenizer.eos_token_id else (*ids, tokenizer.eos_token_id)
