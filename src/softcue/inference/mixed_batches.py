"""Rows of several tasks in one forward pass (Lester et al. 2021, figure 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from softcue.backbones import Backbone, Listener, Summary
from softcue.inference.task_model import TaskModel
from softcue.inputs.collate import collate, stack_sentence_vectors
from softcue.prompts.mixed import join_prompts
from softcue.sentence_vectors import SentenceVector, sentence_vectors_of
from softcue.tasks import Task
from softcue.types import Batch, Example, Instance, Prediction, Prompt, TokenizedRow


@torch.no_grad()
def predict_mixed(
    backbone: Backbone, rows: Sequence[tuple[TaskModel, TokenizedRow]], listeners: Mapping[int, Listener] | None = None
) -> list[Prediction]:
    """Answers for rows of any tasks, in as few passes as can be (Lester et al. 2021, figure 2): usually one.

    Rows are grouped by task: each task's method makes its own rows' prompts and each row goes to its own
    task's readout, so heads of different sizes and prompts of different lengths share the batch. Methods that
    change the backbone itself (adapters, fine-tuning) get a pass of their own. Listeners, by row, hear what is
    written as it is written.
    """
    passes: dict[tuple[int, bool], tuple[Backbone, list[tuple[TaskModel, list[int]]]]] = {}
    for model, numbers in by_model([model for model, _ in rows]):
        seen = model.method.view_of(backbone)
        passes.setdefault((id(seen), model.knows_features), (seen, []))[1].append((model, numbers))
    answers: list[Prediction | None] = [None] * len(rows)
    for seen, members in passes.values():
        order = [number for _, numbers in members for number in numbers]
        tokens = [rows[number][1] for number in order]
        heard = [listeners.get(number) for number in order] if listeners else ()
        for number, answer in zip(order, _one_pass(seen, tokens, members, heard), strict=True):
            answers[number] = answer
    return [answer for answer in answers if answer is not None]


def rows_together(
    backbone: Backbone, requests: Sequence[tuple[TaskModel, Example]], use_disk_cache: bool = True
) -> list[TokenizedRow]:
    """Tokens of unfolded requests of any tasks, in order; M(x) is computed once for all models that read it alike."""
    groups: list[tuple[SentenceVector, int | None, Task, list[int]]] = []
    members = by_model([model for model, _ in requests])
    for model, numbers in members:
        if model.representation is None:
            continue
        reads = (model.representation, model.vector_limit, model.readout.task)
        known = next((own for *other, own in groups if tuple(other) == reads), None)
        if known is None:
            groups.append((*reads, known := []))
        known += numbers
    vectors: dict[int, Tensor] = {}
    for representation, limit, task, numbers in groups:
        examples = [requests[number][1] for number in numbers]
        found = sentence_vectors_of(representation, backbone, task, examples, limit, use_disk_cache=use_disk_cache)
        vectors |= zip(numbers, found, strict=True)
    rows: dict[int, TokenizedRow] = {}
    for model, numbers in members:
        own = None if model.representation is None else torch.stack([vectors[number] for number in numbers])
        examples = [requests[number][1] for number in numbers]
        made = model.rows(backbone, examples, vectors=own, use_disk_cache=use_disk_cache)
        rows |= zip(numbers, made, strict=True)
    return [rows[number] for number in range(len(requests))]


def by_model(models: Sequence[TaskModel]) -> list[tuple[TaskModel, list[int]]]:
    """Each model once, with the places it stands at."""
    found: dict[int, tuple[TaskModel, list[int]]] = {}
    for place, model in enumerate(models):
        found.setdefault(id(model), (model, []))[1].append(place)
    return list(found.values())


def _one_pass(
    backbone: Backbone,
    tokens: Sequence[TokenizedRow],
    members: Sequence[tuple[TaskModel, Sequence[int]]],
    listeners: Sequence[Listener | None],
) -> list[Prediction]:
    """Answers for rows that stand model by model."""
    device = backbone.device
    batch = collate(tokens, backbone.tokenizer.pad_token_id).to(device)
    if len(members) == 1:
        forward_pass, _ = members[0][0].read(backbone, batch)
        return members[0][0].readout.predict(replace(forward_pass, listeners=listeners))
    spans = torch.arange(len(tokens), device=device).split([len(numbers) for _, numbers in members])
    embeds = backbone.input_states(batch)  # [B T D]
    parts = []
    for (model, _), span in zip(members, spans, strict=True):
        own = stack_sentence_vectors([tokens[number] for number in span.tolist()])
        own = None if own is None else own.to(device)
        prompt = model.method.prompt(Instance(embeds[span], batch.mask[span], own))
        parts.append(_Part(model, span, prompt or _no_prompt(embeds[span]), own))
    # On decoders, rows whose prompt is run once are short: they would be padded to those that have it in every row.
    groups = [[part for part in parts if part.is_shared == kind] for kind in (True, False)]
    answers: dict[int, Prediction] = {}
    for group in groups if backbone.kind == "decoder" else [parts]:
        if group:
            rows = torch.cat([part.span for part in group])
            heard = [listeners[row] for row in rows.tolist()] if listeners else ()
            own_batch = batch if len(group) == len(parts) else batch.rows(rows)
            found = _answers(backbone, own_batch, embeds[rows], group, heard)
            answers |= zip(rows.tolist(), found, strict=True)
    return [answers[row] for row in range(len(tokens))]


class _Part(NamedTuple):
    """The rows of one model in a batch of several."""

    model: TaskModel
    span: Tensor  # [b] its rows
    prompt: Prompt
    representation: Tensor | None  # [b R]

    @property
    def is_shared(self) -> bool:
        """Whether all its rows have one prompt, or none."""
        return self.prompt.shared_by is not None or self.prompt.tokens.shape[1] == 0


def _answers(
    backbone: Backbone, batch: Batch, embeds: Tensor, parts: Sequence[_Part], listeners: Sequence[Listener | None]
) -> list[Prediction]:
    """Answers of all models in one pass; rows stand part by part."""
    spans = torch.arange(batch.size, device=batch.ids.device).split([len(part.span) for part in parts])
    forward_pass = backbone.read(batch, join_prompts([part.prompt for part in parts]), embeds)
    forward_pass = replace(forward_pass, listeners=listeners)
    knows = parts[0].model.knows_features
    shared = set() if knows else {part.model.readout.shared_pass for part in parts}
    if "hidden" in shared:
        forward_pass.hidden()
    if "answers" in shared:
        forward_pass.read_for_answers()
    decoding, *others = {part.model.readout.decoding for part in parts}
    if decoding is not None and not others:
        forward_pass.generate(decoding)
    features: dict[Summary, Tensor] = {}  # pooled once for all models that pool alike
    answers: list[Prediction] = []
    for part, span in zip(parts, spans, strict=True):
        own, summary = part.representation, part.model.readout.summary
        if not knows and summary is not None:
            if summary not in features:
                features[summary] = forward_pass.features(summary)
            own = features[summary][span]
        # A readout with a summary reads nothing else: the rest need not be copied.
        known = forward_pass.rows(span) if summary is None else replace(forward_pass, known_features=own)
        answers += part.model.readout.predict(known)
    return answers


def _no_prompt(embeds: Tensor) -> Prompt:
    num_rows, _, width = embeds.shape
    mask = torch.zeros(num_rows, 0, dtype=torch.bool, device=embeds.device)
    return Prompt(embeds.new_zeros(num_rows, 0, width), mask, embeds.new_zeros(()))
