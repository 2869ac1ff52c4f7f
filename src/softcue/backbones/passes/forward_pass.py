"""One laid-out batch and what a backbone computes from it: hidden states, pooled vectors, logits, rankings, text.

A ForwardPass runs the backbone on demand and keeps the results for other readouts of the same batch, so rows of
several cues share one pass. `rows` narrows it to the rows of one cue without another pass.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.utils.rnn import pad_sequence

from softcue.backbones.injection import ActivePass, ReachedLayer, inject
from softcue.backbones.layout import Layout
from softcue.backbones.passes.decoding import Decoding, TokenListener
from softcue.devices import send
from softcue.errors import BackboneError
from softcue.inputs.formatter import TOKENS_AT_ONCE
from softcue.randomness import Dropout, TokenNoise, text_key
from softcue.types import LayerPrompt, Prompt

if TYPE_CHECKING:
    from softcue.backbones.backbone import Backbone
Pooling = Literal["cls", "mean", "last"]
# compared: features of the similarity of two texts; mask: the state at the mask token (encoders)
Summary = Literal["cls", "mean", "last", "compared", "mask"]
RANKED_AT_ONCE = 256  # most pairs of a row and a candidate in one pass: each has its logits over all words
RankedRows = tuple[Tensor, Sequence[Tensor]]  # rows [b], and the candidates that are ranked for each of them


def pool(hidden: Tensor, mask: Tensor, pooling: Pooling) -> Tensor:
    """Pool hidden states over real tokens. [B T D], [B T] -> [B D]

    `cls` is the first real token, which under left padding is not column 0.

    Example:
        >>> hidden = torch.tensor([[[9.0], [1.0], [3.0]]])
        >>> mask = torch.tensor([[False, True, True]])
        >>> [pool(hidden, mask, pooling).item() for pooling in ("cls", "mean", "last")]
        [1.0, 2.0, 3.0]
    """
    rows = torch.arange(hidden.shape[0], device=hidden.device)
    if pooling == "mean":
        weights = mask.unsqueeze(2).to(hidden.dtype)  # [B T 1]
        return (hidden * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)
    if pooling == "cls":
        return hidden[rows, mask.long().argmax(dim=1)]
    last = hidden.shape[1] - 1 - mask.flip(1).long().argmax(dim=1)  # [B]
    return hidden[rows, last]


def compare_texts(hidden: Tensor, parts: Tensor) -> Tensor:
    """Compute features of the similarity of two texts of one sequence: |u - v| and u * v. [B T D], [B T] -> [B 2D]

    u and v are the mean vectors of the texts, scaled to the length sqrt(D), so that features have a size near 1.

    Example:
        >>> hidden = torch.tensor([[[3.0, 4.0], [3.0, 4.0]]])
        >>> compare_texts(hidden, torch.tensor([[0, 1]])).tolist()[0][:2]
        [0.0, 0.0]
    """
    length = hidden.shape[2] ** 0.5
    first, second = (functional.normalize(pool(hidden, parts == part, "mean"), dim=1) * length for part in (0, 1))
    return torch.cat([(first - second).abs(), first * second], dim=1)


@dataclass
class ForwardPass(ABC):
    """Rows laid out with their prompts, ready for the backbone, and the results computed so far."""

    backbone: Backbone
    layout: Layout
    embeds: Tensor  # [B S D] in the backbone's number format
    segments: Tensor | None  # [B S]
    ids: Tensor  # [B T] source tokens
    prompt: Prompt | None
    parts: Tensor | None = None  # [B T] 0 first text, 1 second text, -1 neither
    offsets: Tensor | None = None  # [B T 2] characters of the last text, -1 if none
    precomputed_features: Tensor | None = None  # [B R] computed before, if nothing trainable is between text and head
    stops_at: int | None = None  # the pass ends with the input of this layer
    dropout: Dropout | None = None  # in training
    listeners: Sequence[TokenListener | None] = ()  # one per row, called while it generates without beams
    read_with_positions: Callable[[], ForwardPass] | None = None  # where prompts are joined to keys: the other way
    _hidden: Tensor | None = None  # [B S D]
    _generated: dict[Decoding, list[list[int]]] = field(default_factory=dict)

    def _with_prompts(self) -> AbstractContextManager[ActivePass | None]:
        """Inject the prompts of all layers and the method's modules: for passes over the source."""
        noise = None if self.dropout is None else self.dropout.of_tokens(self.layout.positions)
        backbone = self.backbone
        return inject(
            backbone.base,
            backbone.injected_sublayers,
            self.layout,
            self.prompt,
            self.stops_at,
            noise,
            is_causal=backbone.kind == "decoder",
            linears=backbone.injected_linears,
            has_constant_text=backbone.has_constant_text and torch.is_grad_enabled(),
        )

    def _without_prompts(
        self, noise: TokenNoise | None = None, lasting: Mapping[int, LayerPrompt] | None = None
    ) -> AbstractContextManager[ActivePass | None]:
        """Inject only the method's modules, and prompts that act behind the source too: for passes after it."""
        backbone = self.backbone
        return inject(
            backbone.base,
            backbone.injected_sublayers,
            noise=noise,
            lasting=lasting,
            linears=backbone.injected_linears,
        )

    @property
    def with_positions(self) -> Self:
        """The pass over the same rows in which every prompt vector takes a position."""
        # A pass that kept itself would live on, with its states, until Python looks for cycles.
        return self if self.read_with_positions is None else self._pass_with_positions

    @cached_property
    def _pass_with_positions(self) -> Self:
        assert self.read_with_positions is not None
        full: Any = self.read_with_positions()
        return replace(full, listeners=self.listeners)  # type: ignore[no-any-return]

    @property
    def text_mask(self) -> Tensor:
        """Which of the text positions are real. [B T]"""
        return self.layout.text_mask

    def text(self) -> Tensor:
        """Last-layer hidden states of the source text, in float32. [B T D]"""
        return self.layout.text_of(self.hidden()).float()

    def features(self, summary: Summary) -> Tensor:
        """One vector per row from the text's positions, in float32; pooling copies no hidden states. [B R]"""
        if self.precomputed_features is not None:
            return self.precomputed_features
        if summary == "compared":
            assert self.parts is not None
            return compare_texts(self.text(), self.parts)
        if summary == "mask":
            return self.mask_states()
        return pool(self.hidden().float(), self.layout.is_text, summary)

    def hidden(self) -> Tensor:
        """Last-layer hidden states of all laid-out positions. [B S D]"""
        if self._hidden is None:
            with self._with_prompts():
                self._hidden = self._run()
        return self._hidden

    def input_states(self, layer: int, with_target: bool = False) -> tuple[Tensor, Tensor]:
        """Input of a layer at the positions of the text, then the target, and which are real. [B T+U D], [B T+U]"""
        stopped = replace(self, stops_at=layer, _hidden=None)
        try:
            with stopped._with_prompts() as active:
                stopped._run()
            assert active is not None and active.reached, f"{self.backbone.name} never ran layer {layer}"
            hidden = active.reached[0]  # the layers behind it are no part of an exported graph: nothing reads them
        except ReachedLayer as reached:
            hidden = reached.hidden
        hidden = hidden.to(self.embeds.device)
        states, mask = [self.layout.text_of(hidden)], [self.text_mask]
        if with_target:
            states.append(self.layout.target_of(hidden))
            mask.append(self.layout.target_mask)
        return torch.cat(states, dim=1), torch.cat(mask, dim=1)

    def rows(self, index: Tensor) -> ForwardPass:
        """The same pass for some of the rows; it keeps the results computed so far."""
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
            precomputed_features=None if self.precomputed_features is None else self.precomputed_features[index],
            prompt=self._prompt_of_rows(index),
            listeners=[self.listeners[row] for row in index.tolist()] if self.listeners else (),
            read_with_positions=None if self.read_with_positions is None else lambda: self.with_positions.rows(index),
            _hidden=None if self._hidden is None else self._hidden[index],
            _generated={
                decoding: [generated[row] for row in index.tolist()] for decoding, generated in self._generated.items()
            },
        )

    def _prompt_of_rows(self, index: Tensor) -> Prompt | None:
        """The prompt of some of the rows: its tokens are laid out already, its layer prompts are narrowed."""
        prompt = self.prompt
        if prompt is None or prompt.layer_prompts is None or prompt.shared_by is not None:
            return prompt
        layer_prompts, num_rows = prompt.layer_prompts, len(self.ids)

        def layer_prompts_of_rows(layer: int, hidden: Tensor, mask: Tensor) -> LayerPrompt | None:
            places = index.to(hidden.device)
            all_hidden = hidden.new_zeros(num_rows, *hidden.shape[1:]).index_copy(0, places, hidden)
            all_masks = mask.new_ones(num_rows, mask.shape[1]).index_copy(0, places, mask)
            layer_prompt = layer_prompts(layer, all_hidden, all_masks)
            return None if layer_prompt is None else layer_prompt.rows(index)

        return replace(prompt, layer_prompts=layer_prompts_of_rows)

    def _inputs(self) -> dict[str, Any]:
        inputs: dict[str, Any] = {"inputs_embeds": self.embeds, "attention_mask": self.layout.mask.long()}
        inputs |= self.backbone.position_inputs(self.layout.positions)
        if self.segments is not None and self.backbone.structure.takes_segments:
            inputs["token_type_ids"] = self.segments
        return inputs

    @abstractmethod
    def _run(self) -> Tensor:
        """Run the backbone and return its hidden states. [B S D]"""

    @abstractmethod
    def first_logits(self) -> Tensor:
        """Logits over the vocabulary for the first word of the prediction. [B V]"""

    def logits_behind(self, tokens: Sequence[int]) -> Tensor:
        """Logits over the vocabulary for the word behind these first tokens of the prediction. [B V]"""
        if not tokens:
            return self.first_logits()
        target = self.ids.new_tensor([*tokens, tokens[-1]])  # the last token is not read
        return self.target_logits(target.expand(len(self.ids), -1))[:, len(tokens)]

    def word_logits(self, words_before: Sequence[int], words: Tensor) -> Tensor:
        """Logits of these words [C] behind the first tokens of the prediction, up to a number they share. [B C]"""
        logits = self.logits_behind(words_before)  # [B V]
        return logits[:, send(words, logits.device)]

    def mask_states(self) -> Tensor:
        """States at the mask token, as the masked-word head compares them with words. [B D]"""
        raise BackboneError(
            setting="readout.pooling",
            got="mask",
            expected="an encoder, which has a mask token",
            fix=f"leave readout.pooling at auto with {self.backbone.name}",
        )

    def target_logits(self, target_ids: Tensor) -> Tensor:
        """Logits that predict each target token from those before it. [B U V]"""
        raise self._no_text_error("target_logits")

    def rank(self, candidates: Sequence[Tensor]) -> Tensor:
        """Log-likelihood of each candidate target (token ids that end with the end token). [B C]"""
        all_rows = torch.arange(len(self.ids), device=self.ids.device)
        return self.rank_together([(all_rows, candidates)])[0]

    def rank_together(self, groups: Sequence[RankedRows]) -> list[Tensor]:
        """Log-likelihood of each group's candidates for each of its rows: [b C] per group.

        All pairs of a row and a candidate share one pass, whatever the number and the length of a group's candidates.
        Only what would not fit into memory is divided, into passes of candidates of similar length.
        """
        device = self.ids.device
        candidates = [candidate for _, group_candidates in groups for candidate in group_candidates]
        ids, mask = pad_candidates(candidates, device)  # [C U]
        self._run_for_ranking()
        firsts = list(accumulate((len(group_candidates) for _, group_candidates in groups), initial=0))
        numbers = torch.cat(  # [N] which candidate each pair has
            [torch.arange(*ends).repeat(len(rows)) for ends, (rows, _) in zip(pairwise(firsts), groups, strict=True)]
        )
        rows = torch.cat([rows.repeat_interleave(len(group_candidates)) for rows, group_candidates in groups])  # [N]
        lengths = torch.tensor([len(candidate) for candidate in candidates])[numbers]  # [N]
        size = max(1, min(RANKED_AT_ONCE, TOKENS_AT_ONCE // (self.layout.mask.shape[1] + ids.shape[1])))
        pairs = torch.arange(len(numbers)) if len(numbers) <= size else lengths.argsort(stable=True)
        scores = torch.empty(len(numbers), device=device)
        for chunk in pairs.split(size):
            width, places = int(lengths[chunk].max()), numbers[chunk].to(device)
            chosen = chunk.to(device)
            scores[chosen] = self._score(rows[chosen], ids[places, :width], mask[places, :width])
        sizes = [len(group_rows) * len(group_candidates) for group_rows, group_candidates in groups]
        parts = zip(scores.split(sizes), groups, strict=True)
        return [part.view(len(group_rows), len(group_candidates)) for part, (group_rows, group_candidates) in parts]

    def _run_for_ranking(self) -> None:
        """Run, for all rows at once, the pass that all candidates share."""
        raise self._no_text_error("rank")

    def _score(self, rows: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
        """Log-likelihood of a target [N U] behind the source of a row [N]. [N]"""
        raise self._no_text_error("rank")

    def generate(self, decoding: Decoding) -> list[list[int]]:
        """Token ids of the generated text, per row."""
        if decoding not in self._generated:
            self._generated[decoding] = self._generate(decoding)
        return self._generated[decoding]

    def _generate(self, decoding: Decoding) -> list[list[int]]:
        raise self._no_text_error("generate")

    def _draw_keys(self, decoding: Decoding) -> Tensor | None:
        """A key for the draws of each row, from its text: they do not depend on the other rows of the batch. [B]"""
        if not decoding.temperature:
            return None
        rows = zip(self.ids.tolist(), self.text_mask.tolist(), strict=True)
        texts = [[token for token, is_text in zip(*row, strict=True) if is_text] for row in rows]
        keys = [text_key(decoding.seed, text) for text in texts]
        return send(torch.tensor(keys, dtype=torch.int32), self.ids.device)

    def _no_text_error(self, method: str) -> BackboneError:
        return BackboneError(
            setting="readout.name",
            got=method,
            expected="a backbone that writes text (encoder-decoder or decoder-only)",
            fix=f"use readout.name=classifier with {self.backbone.name}",
        )


def pad_candidates(candidates: Sequence[Tensor], device: torch.device) -> tuple[Tensor, Tensor]:
    """Put candidate targets into one padded batch: token ids and mask. [C U] each"""
    ids = pad_sequence(list(candidates), batch_first=True)
    lengths = torch.tensor([len(candidate) for candidate in candidates])
    mask = torch.arange(ids.shape[1]) < lengths.unsqueeze(1)
    return ids.to(device), mask.to(device)


def sum_log_probabilities(logits: Tensor, ids: Tensor, mask: Tensor) -> Tensor:
    """Sum log p(token | tokens before) over the tokens of each row. [N U V], [N U] -> [N]"""
    log_probabilities = logits.log_softmax(dim=-1).gather(2, ids.unsqueeze(2)).squeeze(2)  # [N U]
    return (log_probabilities * mask).sum(dim=1)
