"""Passages -> chunks of equal length: concatenated, split and shuffled, from a position that can be saved.

Documents are joined without a mark between them, as in T5. The text is read again and again. What was drawn so far is
a few numbers, the tokens left over and the chunks that wait in the shuffle buffer: `state` and `restore`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

import torch
from torch import Tensor

from softcue.errors import DataError
from softcue.training.batches import stream_seed

Tokenize = Callable[[str], Sequence[int]]


class HeldOutRule:
    """Which passages are held out, by their number: each `every`-th, until there are enough of them.

    Example:
        >>> [number for number in range(12) if HeldOutRule(every=5, limit=2)(number)]
        [0, 5]
    """

    def __init__(self, every: int, limit: int) -> None:
        self.every, self.limit = every, limit

    def __call__(self, number: int) -> bool:
        """Whether the passage with this number is held out."""
        return number % self.every == 0 and number < self.every * self.limit


def split_tokens(passages: Iterable[Sequence[int]], chunk_length: int) -> Iterator[Tensor]:
    """Concatenate the tokens of passages and split them into chunks; the rest at the end is left out.

    Example:
        >>> [chunk.tolist() for chunk in split_tokens([[1, 2, 3], [4], [5, 6, 7]], 3)]
        [[1, 2, 3], [4, 5, 6]]
    """
    rest: list[int] = []
    for ids in passages:
        rest += ids
        while len(rest) >= chunk_length:
            yield torch.tensor(rest[:chunk_length], dtype=torch.int32)
            rest = rest[chunk_length:]


class ChunkStream:
    """An endless stream of shuffled chunks.

    Example:
        >>> stream = ChunkStream(["a b c d"], lambda text: [ord(word) for word in text.split()], 2, 1, seed=0)
        >>> [stream.draw().tolist() for _ in range(3)]
        [[97, 98], [99, 100], [97, 98]]
    """

    def __init__(
        self,
        passages: Iterable[str],
        tokenize: Tokenize,
        chunk_length: int,
        shuffle_chunks: int,
        seed: int,
        is_held_out: Callable[[int], bool] = lambda number: False,
    ) -> None:
        self.passages, self.tokenize, self.is_held_out = passages, tokenize, is_held_out
        self.chunk_length, self.shuffle_chunks, self.seed = chunk_length, shuffle_chunks, seed
        self.num_drawn = 0
        self.num_passes = 0  # times the whole text was read
        self.num_read = 0  # passages read in this pass
        self._rest: list[int] = []  # tokens of less than a chunk
        self._buffer: list[Tensor] = []
        self._unread = iter(passages)

    def draw(self) -> Tensor:
        """The next chunk: one of those in the buffer, whose place the next of the text takes. [L]"""
        while len(self._buffer) < self.shuffle_chunks:
            self._buffer.append(self._next_chunk())
        place = stream_seed(self.seed, "shuffle", self.num_drawn) % len(self._buffer)
        chunk, self._buffer[place] = self._buffer[place], self._next_chunk()
        self.num_drawn += 1
        return chunk

    def state(self) -> dict[str, Tensor]:
        """The position in the stream as tensors, for a checkpoint."""
        numbers = torch.tensor([self.num_drawn, self.num_passes, self.num_read])
        buffer = torch.stack(self._buffer) if self._buffer else torch.empty(0, self.chunk_length, dtype=torch.int32)
        return {"numbers": numbers, "rest": torch.tensor(self._rest, dtype=torch.int32), "buffer": buffer}

    def can_restore(self, state: dict[str, Tensor]) -> bool:
        """Whether tensors can be what `state` returned: the names, shapes and formats of this stream."""
        if state.keys() != {"numbers", "rest", "buffer"} or state["numbers"].shape != (3,):
            return False
        numbers, rest, buffer = state["numbers"], state["rest"], state["buffer"]
        has_formats = numbers.dtype == torch.int64 and rest.dtype == buffer.dtype == torch.int32
        has_shapes = rest.dim() == 1 and buffer.dim() == 2 and buffer.shape[1] == self.chunk_length
        has_shapes = has_shapes and len(buffer) <= self.shuffle_chunks
        is_negative = [bool((values < 0).any()) for values in (numbers, rest, buffer)]
        return has_formats and has_shapes and not any(is_negative)

    def restore(self, state: dict[str, Tensor]) -> None:
        """Go to a position that `state` returned. The passages before it are read but not tokenized."""
        self.num_drawn, self.num_passes, self.num_read = state["numbers"].tolist()
        self._rest = state["rest"].tolist()
        self._buffer = list(state["buffer"].clone())
        self._unread = islice(iter(self.passages), self.num_read, None)

    def _next_chunk(self) -> Tensor:
        while len(self._rest) < self.chunk_length:
            passage = next(self._unread, None)
            if passage is None:
                self._begin_pass()
                continue
            if not self.is_held_out(self.num_read):
                self._rest += self.tokenize(passage)
            self.num_read += 1
        chunk, self._rest = self._rest[: self.chunk_length], self._rest[self.chunk_length :]
        return torch.tensor(chunk, dtype=torch.int32)

    def _begin_pass(self) -> None:
        """Begin to read again from the first passage. A text that does not fill a chunk would repeat itself in it."""
        if self.num_passes == 0 and not self._buffer and self.num_drawn == 0:
            raise DataError(
                setting="text",
                got=f"{len(self._rest)} tokens to train on",
                expected=f"at least {self.chunk_length}, for one chunk",
                fix="give more text, a smaller `length`, or held-out texts as `held_out=FILE`",
            )
        self.num_passes += 1
        self.num_read = 0
        self._unread = iter(self.passages)
