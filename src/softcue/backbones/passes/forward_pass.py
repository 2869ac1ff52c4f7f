"""One laid-out batch and the backbone's ways to read it: hidden states, word logits, ranking, generation.

A Reading runs the backbone when asked and keeps what it computed for other readouts of the same batch, so
rows of several cues share one pass. `rows` narrows it to one cue's rows without another pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from softcue.backbones.injection import ReachedLayer, injected
from softcue.backbones.layout import Layout
from softcue.backbones.passes.decoding import Decoding, Listener
from softcue.backbones.pooling import Summary, compare_texts, pool
from softcue.errors import BackboneError
from softcue.randomness import text_generator
from softcue.types import LayerPrompt, Prompt

if TYPE_CHECKING:
    from softcue.backbones.backbone import Backbone


@dataclass
class ForwardPass(ABC):
    """Rows laid out with their prompts, ready for the backbone."""

    backbone: Backbone
    layout: Layout
    embeds: Tensor  # [B S D] in the backbone's number format
    segments: Tensor | None  # [B S]
    ids: Tensor  # [B T] source tokens
    prompt: Prompt | None
    parts: Tensor | None = None  # [B T] which of two texts a token belongs to
    offsets: Tensor | None = None  # [B T 2] characters of the last text, -1 if none
    known_features: Tensor | None = None  # [B R] where nothing trained stands between text and head: no pass needed
    stops_at: int | None = None  # the layer whose input is all that is wanted
    listeners: Sequence[Listener | None] = ()  # of what is written for each row; none where beams change their mind
    _hidden: Tensor | None = None  # [B S D]
    _written: dict[Decoding, list[list[int]]] = field(default_factory=dict)

    def _injected(self) -> AbstractContextManager[None]:
        """Around a pass that reads the source: prompts in every layer, and the method's own sub-layers."""
        return injected(self.backbone.layers, self.backbone.injected_sublayers, self.layout, self.prompt, self.stops_at)

    def _writing(self) -> AbstractContextManager[None]:
        """Around a pass that only writes: the prompt has been read."""
        return injected(self.backbone.layers, self.backbone.injected_sublayers)

    @property
    def text_mask(self) -> Tensor:
        """Which of the text positions are real. [B T]"""
        return self.layout.text_mask

    def text(self) -> Tensor:
        """Last-layer hidden states of the source text, in float32. [B T D]"""
        return self.layout.text_of(self.hidden()).float()

    def features(self, summary: Summary) -> Tensor:
        """One vector per row from the text's positions, in float32; pooling copies no hidden states. [B R]"""
        if self.known_features is not None:
            return self.known_features
        if summary == "compared":
            assert self.parts is not None
            return compare_texts(self.text(), self.parts)
        return pool(self.hidden().float(), self.layout.is_text, summary)

    def hidden(self) -> Tensor:
        """Last-layer hidden states of all laid-out positions. [B S D]"""
        if self._hidden is None:
            with self._injected():
                self._hidden = self._run()
        return self._hidden

    def input_states(self, layer: int, with_target: bool = False) -> tuple[Tensor, Tensor]:
        """What enters a layer at the text's positions, then the target's, and which are real. [B T+U D], [B T+U]"""
        try:
            replace(self, stops_at=layer, _hidden=None).hidden()
        except ReachedLayer as reached:
            states, mask = [self.layout.text_of(reached.hidden)], [self.text_mask]
            if with_target:
                states.append(self.layout.target_of(reached.hidden))
                mask.append(self.layout.target_mask)
            return torch.cat(states, dim=1), torch.cat(mask, dim=1)
        raise AssertionError(f"{self.backbone.name} never ran layer {layer}")

    def read_for_answers(self) -> None:
        """Do now, for all rows at once, the pass that `rank` needs."""
        self.hidden()

    def rows(self, index: Tensor) -> ForwardPass:
        """The same reading of some rows only; what was computed stays computed."""
        if len(index) == len(self.ids):
            return self
        return replace(
            self,
            layout=self.layout.rows(index),
            embeds=self.embeds[index],
            segments=None if self.segments is None else self.segments[index],
            ids=self.ids[index],
            parts=None if self.parts is None else self.parts[index],
            offsets=None if self.offsets is None else self.offsets[index],
            known_features=None if self.known_features is None else self.known_features[index],
            prompt=self._prompt_rows(index),
            listeners=[self.listeners[row] for row in index.tolist()] if self.listeners else (),
            _hidden=None if self._hidden is None else self._hidden[index],
            _written={how: [written[row] for row in index.tolist()] for how, written in self._written.items()},
        )

    def _prompt_rows(self, index: Tensor) -> Prompt | None:
        """Tokens are laid out already; only the deeper part must still find its rows."""
        prompt = self.prompt
        if prompt is None or prompt.layer_prompts is None or prompt.shared_by is not None:
            return prompt
        layer_prompts, size = prompt.layer_prompts, len(self.ids)

        def some_rows(layer: int, hidden: Tensor, mask: Tensor) -> LayerPrompt | None:
            every = hidden.new_zeros(size, *hidden.shape[1:]).index_copy(0, index, hidden)
            every_mask = mask.new_ones(size, mask.shape[1]).index_copy(0, index, mask)
            taken = layer_prompts(layer, every, every_mask)
            if taken is None:
                return None
            own = {name: value[index] for name, value in vars(taken).items() if value is not None}
            return LayerPrompt(**own)

        return replace(prompt, layer_prompts=some_rows)

    def _inputs(self) -> dict[str, Any]:
        inputs: dict[str, Any] = {"inputs_embeds": self.embeds, "attention_mask": self.layout.mask.long()}
        first = self.backbone.first_position
        if first is not None:
            inputs["position_ids"] = self.layout.positions + first
        if self.segments is not None:
            inputs["token_type_ids"] = self.segments
        return inputs

    @abstractmethod
    def _run(self) -> Tensor:
        """Hidden states [B S D] of one pass."""

    @abstractmethod
    def first_logits(self) -> Tensor:
        """Logits over the vocabulary where the first word of the answer stands. [B V]"""

    def target_logits(self, target_ids: Tensor) -> Tensor:
        """Logits that predict each target token from those before it. [B U V]"""
        raise self._no_text("target_logits")

    def rank(self, candidates: Sequence[Tensor]) -> Tensor:
        """Log-likelihood of each candidate answer (token numbers, closed by the end token). [B C]"""
        raise self._no_text("rank")

    def generate(self, decoding: Decoding) -> list[list[int]]:
        """Token numbers of a generated answer per row."""
        if decoding not in self._written:
            self._written[decoding] = self._generate(decoding)
        return self._written[decoding]

    def _generate(self, decoding: Decoding) -> list[list[int]]:
        raise self._no_text("generate")

    def _streams(self, decoding: Decoding) -> list[torch.Generator]:
        """A random stream for each row, from its text: what is drawn does not depend on who shares the batch."""
        rows = zip(self.ids.tolist(), self.text_mask.tolist(), strict=True) if decoding.temperature else ()
        texts = [[number for number, is_text in zip(*row, strict=True) if is_text] for row in rows]
        return [text_generator(decoding.seed, text) for text in texts]

    def _no_text(self, what: str) -> BackboneError:
        return BackboneError(
            setting="readout.name",
            got=what,
            expected="a backbone that writes text (encoder-decoder or decoder-only)",
            fix=f"use readout.name=classifier with {self.backbone.name}",
        )


def stacked(candidates: Sequence[Tensor], device: torch.device) -> tuple[Tensor, Tensor]:
    """Candidate answers as one padded batch: token numbers and mask. [C U] each"""
    width = max(len(candidate) for candidate in candidates)
    ids = torch.zeros(len(candidates), width, dtype=torch.long, device=device)
    mask = torch.zeros(len(candidates), width, dtype=torch.bool, device=device)
    for row, candidate in enumerate(candidates):
        ids[row, : len(candidate)] = candidate
        mask[row, : len(candidate)] = True
    return ids, mask


def likelihood(logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    """Sum over tokens of log p(token | before). [N U V], [N U] -> [N]"""
    each = logits.log_softmax(dim=-1).gather(2, ids.unsqueeze(2)).squeeze(2)  # [N U]
    return (each * mask).sum(dim=1)
