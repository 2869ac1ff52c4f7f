"""A forward pass of a decoder that another program runs: only input embeddings leave this process.

The other program answers two questions: how likely are these next tokens, and how does the text go on. Its hidden
states stay there, so heads, deep prompts and keys and values need a pass in this process (decoder.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn, Protocol

import torch
from torch import Tensor

from softcue.backbones.passes.decoding import Decoding, TokenListener
from softcue.backbones.passes.forward_pass import ForwardPass
from softcue.errors import BackboneError


class DecoderServer(Protocol):
    """A program with the weights of a decoder that takes input embeddings."""

    @property
    def max_length(self) -> int:
        """The largest number of positions of a row, generated tokens included."""

    @property
    def is_alive(self) -> bool:
        """Whether it may answer again after an error."""

    def log_probabilities(self, inputs: Sequence[Tensor], tokens: Sequence[int]) -> Tensor:
        """Log-probability of each of these tokens behind each input [S D], over the whole vocabulary. [N, tokens]"""

    def generate(
        self, inputs: Sequence[Tensor], max_new_tokens: int, end_token: int, listeners: Sequence[TokenListener | None]
    ) -> list[list[int]]:
        """Greedily generated token ids behind each input [S D], up to the end token; a listener may end its row."""

    def close(self) -> None:
        """Give back what was started for this server."""


@dataclass
class ServedPass(ForwardPass):
    """A pass whose layers run in a `DecoderServer`."""

    def _inputs_of_rows(self) -> list[Tensor]:
        """The input embeddings of each row without padding. [S D] each"""
        return [embeds[mask] for embeds, mask in zip(self.embeds, self.layout.mask, strict=True)]

    @property
    def _server(self) -> DecoderServer:
        assert self.backbone.server is not None
        return self.backbone.server

    def word_logits(self, words_before: Sequence[int], words: Tensor) -> Tensor:
        """Log-probabilities of these words [C]: a softmax over them gives the same as their logits. [B C]"""
        if words_before:
            self._refuse("words in front of the label")
        return self._server.log_probabilities(self._inputs_of_rows(), words.tolist()).to(self.embeds.device)

    def rank(self, candidates: Sequence[Tensor]) -> Tensor:
        """Log-likelihood of each candidate target. [B C]

        The tokens that may come first are asked for all rows together, then those behind each beginning of a
        candidate. By then the server has the keys and values of every row.
        """
        device = self.embeds.device
        targets = [tuple(candidate.tolist()) for candidate in candidates]
        next_tokens: dict[tuple[int, ...], list[int]] = {}  # beginning of a candidate -> tokens that follow it
        for target in targets:
            for place, token in enumerate(target):
                followers = next_tokens.setdefault(target[:place], [])
                if token not in followers:
                    followers.append(token)
        rows = self._inputs_of_rows()
        scores: dict[tuple[int, ...], Tensor] = {}  # beginning with one more token -> log-probabilities of it [B]
        first = next_tokens.pop(())
        for token, column in zip(first, self._server.log_probabilities(rows, first).T, strict=True):
            scores[token,] = column
        if next_tokens:
            starts = list(next_tokens)
            embeds = [self.backbone.embed(torch.tensor(start, device=device)).to(self.embeds.dtype) for start in starts]
            inputs = [torch.cat([row, start]) for row in rows for start in embeds]
            followers = list(dict.fromkeys(token for tokens in next_tokens.values() for token in tokens))
            answers = self._server.log_probabilities(inputs, followers).view(len(rows), len(starts), -1)
            for number, start in enumerate(starts):
                for token in next_tokens[start]:
                    scores[*start, token] = answers[:, number, followers.index(token)]
        sums = [sum(scores[target[: place + 1]] for place in range(len(target))) for target in targets]
        return torch.stack([torch.as_tensor(total) for total in sums], dim=1).to(device)

    def _generate(self, decoding: Decoding) -> list[list[int]]:
        if decoding.num_beams > 1 or decoding.temperature:
            self._refuse("beam search or drawn text")
        end_token = self.backbone.tokenizer.eos_token_id
        listeners = self.listeners or [None] * len(self.ids)
        return self._server.generate(self._inputs_of_rows(), decoding.max_new_tokens, end_token, listeners)

    def _run(self) -> Tensor:
        self._refuse()

    def first_logits(self) -> Tensor:
        """Not available: a server gives log-probabilities of the words that it is asked for."""
        self._refuse()

    def _refuse(self, got: str = "hidden states or all logits") -> NoReturn:
        raise BackboneError(
            setting="engine",
            got=got,
            expected="label words, ranked labels or generated text of a decoder that another program runs",
            fix="use --engine local",
        )
