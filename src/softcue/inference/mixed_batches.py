"""Rows of several tasks in one forward pass (Lester et al. 2021, figure 2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from itertools import accumulate
from typing import NamedTuple

import torch
from torch import Tensor

from softcue.backbones import Backbone, ForwardPass, Summary, TokenListener
from softcue.inference.task_model import TaskModel
from softcue.inputs.collate import collate, stack_sentence_vectors
from softcue.prompts.mixed import join_prompts
from softcue.readouts import Readout
from softcue.sentence_vectors import SentenceVector, sentence_vectors_of
from softcue.tasks import Task
from softcue.types import Batch, Example, Prediction, Prompt, TokenizedRow


@torch.no_grad()
def predict_mixed(
    backbone: Backbone,
    rows: Sequence[tuple[TaskModel, TokenizedRow]],
    listeners: Mapping[int, TokenListener] | None = None,
) -> list[Prediction]:
    """Predict rows of any tasks in as few forward passes as possible, usually one.

    Rows are grouped by task. Each task's method makes the prompts of its rows, and each row goes to its task's
    readout, so heads of different sizes and prompts of different lengths share the batch. Methods that change the
    backbone itself (adapters, fine-tuning) get a pass of their own. A row's listener receives the text of the row
    while it is generated. With a runtime of fewer digits, rows whose answer is close to another one run again in torch.
    """
    passes: dict[tuple[int, bool], tuple[Backbone, list[tuple[TaskModel, list[int]]]]] = {}
    for model, positions in group_by_model([model for model, _ in rows]):
        view = model.view_of(backbone)
        passes.setdefault((id(view), model.has_frozen_features), (view, []))[1].append((model, positions))
    predictions: list[Prediction | None] = [None] * len(rows)
    for view, members in passes.values():
        order = [position for _, positions in members for position in positions]
        tokenized = [rows[position][1] for position in order]
        row_listeners = [listeners.get(position) for position in order] if listeners else ()
        for position, prediction in zip(order, _predict_pass(view, tokenized, members, row_listeners), strict=True):
            predictions[position] = prediction
    answers = [prediction for prediction in predictions if prediction is not None]
    return answers if backbone.runtime is None else _recheck(backbone.in_torch, rows, answers)


def _recheck(
    backbone: Backbone, rows: Sequence[tuple[TaskModel, TokenizedRow]], predictions: list[Prediction]
) -> list[Prediction]:
    """The predictions of a runtime, those that are close to another answer replaced by torch's."""
    unsure = [position for position, (model, _) in enumerate(rows) if model.needs_recheck(predictions[position])]
    if unsure:
        in_torch = predict_mixed(backbone, [rows[position] for position in unsure])
        for position, prediction in zip(unsure, in_torch, strict=True):
            predictions[position] = prediction
    return predictions


def tokenize_requests(
    backbone: Backbone, requests: Sequence[tuple[TaskModel, Example]], use_disk_cache: bool = True
) -> list[TokenizedRow]:
    """Tokenize requests that are already split, in order; models that read the same M(x) share its computation."""
    groups: list[tuple[SentenceVector, int | None, Task, Backbone, list[int]]] = []
    members = group_by_model([model for model, _ in requests])
    for model, positions in members:
        if model.representation is None or not model.reads_stored_vectors:
            continue
        key = (model.representation, model.vector_limit, model.readout.task, model.backbone_of(backbone))
        shared = next((group_positions for *group_key, group_positions in groups if tuple(group_key) == key), None)
        if shared is None:
            groups.append((*key, shared := []))
        shared += positions
    vectors: dict[int, Tensor] = {}
    for representation, limit, task, reader, positions in groups:
        examples = [requests[position][1] for position in positions]
        computed = sentence_vectors_of(representation, reader, task, examples, limit, use_disk_cache=use_disk_cache)
        vectors |= zip(positions, computed, strict=True)
    rows: dict[int, TokenizedRow] = {}
    for model, positions in members:
        examples = [requests[position][1] for position in positions]
        stacked = torch.stack([vectors[position] for position in positions]) if model.reads_stored_vectors else None
        tokenized = model.rows(backbone, examples, vectors=stacked, use_disk_cache=use_disk_cache)
        if len(members) == 1:
            return list(tokenized)
        rows |= zip(positions, tokenized, strict=True)
    return [rows[position] for position in range(len(requests))]


def group_by_model(models: Sequence[TaskModel]) -> list[tuple[TaskModel, list[int]]]:
    """Each model once, with its positions in the list."""
    groups: dict[int, tuple[TaskModel, list[int]]] = {}
    for position, model in enumerate(models):
        group = groups.get(id(model))
        if group is None:
            group = groups[id(model)] = (model, [])
        group[1].append(position)
    return list(groups.values())


class _Part(NamedTuple):
    """The rows of one model in a batch of several models."""

    model: TaskModel
    rows: range  # their positions in the batch
    prompt: Prompt

    @property
    def is_shared(self) -> bool:
        """Whether all rows have the same prompt, or none."""
        is_same = self.prompt.shared_by is not None or self.prompt.tokens.shape[1] == 0
        return is_same and not self.prompt.is_parallel


def _predict_pass(
    backbone: Backbone,
    tokenized: Sequence[TokenizedRow],
    members: Sequence[tuple[TaskModel, Sequence[int]]],
    listeners: Sequence[TokenListener | None],
) -> list[Prediction]:
    """Predict rows that are sorted by model."""
    if members[0][0].has_frozen_features:  # of all models of a pass, or of none
        return _predict_from_stored_vectors(backbone, tokenized, members)
    if backbone.server is not None and len(members) > 1:
        return _predict_together(backbone, tokenized, members, listeners)
    batch = collate(tokenized, backbone.tokenizer.pad_token_id).to(backbone.device)
    if len(members) == 1:
        [(model, _)] = members
        forward_pass, _ = model.read(backbone, batch)
        return model.readout.predict(replace(forward_pass, listeners=listeners))
    embeds = backbone.input_states(batch)  # [B T D]
    parts = _make_parts(backbone, batch, embeds, tokenized, members)
    groups: dict[object, list[_Part]] = {}
    for part in parts:
        # On a decoder, a shared prompt runs once and its rows stay short: with rows that hold their prompt, they would
        # be padded to the long ones. And a pass that keeps keys for candidates is another pass than one for states.
        key = (part.is_shared, part.model.readout.shared_computation) if backbone.kind == "decoder" else None
        groups.setdefault(key, []).append(part)
    predictions: list[Prediction | None] = [None] * len(tokenized)
    for group in groups.values():
        numbers = [row for part in group for row in part.rows]
        row_listeners = [listeners[row] for row in numbers] if listeners else ()
        group_batch, group_embeds = batch, embeds
        if len(group) < len(parts):
            rows = torch.tensor(numbers, device=backbone.device)
            group_batch, group_embeds = batch.rows(rows), embeds[rows]
        predicted = _predict_parts(backbone, group_batch, group_embeds, group, row_listeners)
        for number, prediction in zip(numbers, predicted, strict=True):
            predictions[number] = prediction
    return [prediction for prediction in predictions if prediction is not None]


def _predict_from_stored_vectors(
    backbone: Backbone, tokenized: Sequence[TokenizedRow], members: Sequence[tuple[TaskModel, Sequence[int]]]
) -> list[Prediction]:
    """Predictions of heads whose vectors were computed with the tokens: nothing runs but the heads."""
    predictions: list[Prediction] = []
    for model, positions in members:
        model_rows = tokenized[len(predictions) : len(predictions) + len(positions)]
        vectors = stack_sentence_vectors(model_rows)
        assert vectors is not None
        predictions += model.readout.predict_from(vectors.to(backbone.device))
    return predictions


def _predict_together(
    backbone: Backbone,
    tokenized: Sequence[TokenizedRow],
    members: Sequence[tuple[TaskModel, Sequence[int]]],
    listeners: Sequence[TokenListener | None],
) -> list[Prediction]:
    """Ask the server for the rows of all models at once; it puts what arrives together into one batch."""

    @torch.no_grad()  # for each thread of its own
    def predict_part(member: tuple[TaskModel, Sequence[int]], first: int) -> list[Prediction]:
        rows = slice(first, first + len(member[1]))
        return _predict_pass(backbone, tokenized[rows], [member], listeners[rows])

    starts = [0, *accumulate(len(positions) for _, positions in members)][:-1]
    with ThreadPoolExecutor(len(members), "softcue-served-part") as pool:
        return [prediction for part in pool.map(predict_part, members, starts) for prediction in part]


def _make_parts(
    backbone: Backbone,
    batch: Batch,
    embeds: Tensor,
    tokenized: Sequence[TokenizedRow],
    members: Sequence[tuple[TaskModel, Sequence[int]]],
) -> list[_Part]:
    """The rows of each model with their prompts."""
    parts = []
    first = 0
    for model, positions in members:
        rows = range(first, first := first + len(positions))
        part = slice(rows.start, rows.stop)
        representation = stack_sentence_vectors(tokenized[part])
        representation = None if representation is None else representation.to(backbone.device)
        part_batch = replace(batch.rows(part), representation=representation)
        prompt = model.prompt(backbone, part_batch, embeds[part])
        parts.append(_Part(model, rows, prompt or _no_prompt(embeds[part])))
    return parts


def _predict_parts(
    backbone: Backbone, batch: Batch, embeds: Tensor, parts: Sequence[_Part], listeners: Sequence[TokenListener | None]
) -> list[Prediction]:
    """Predictions of all models from one pass; the batch holds one part's rows after the other's."""
    part_rows = torch.arange(batch.size, device=batch.ids.device).split([len(part.rows) for part in parts])
    # An encoder-decoder's decoder reads states at the prompts' positions; one pass then serves all rows.
    joins_keys = backbone.kind != "encoder-decoder" or all(part.model.readout.summary is not None for part in parts)
    prompt = join_prompts([part.prompt for part in parts])
    forward_pass = backbone.read(batch, prompt, embeds, joins_keys=joins_keys)
    forward_pass = replace(forward_pass, listeners=listeners)
    readouts = [part.model.readout for part in parts]
    if backbone.kind != "decoder" or any(readout.shared_computation == "hidden" for readout in readouts):
        forward_pass.hidden()
    decoding, *other_decodings = {readout.decoding for readout in readouts}
    if decoding is not None and not other_decodings:
        forward_pass.generate(decoding)
    results = _shared_results(forward_pass, readouts, part_rows)
    predictions: list[Prediction] = []
    for number, (readout, rows) in enumerate(zip(readouts, part_rows, strict=True)):
        # A readout that reads only its results needs no copy of the rest of the pass.
        result = results.get(number)
        predictions += readout.predict(forward_pass.rows(rows)) if result is None else readout.predict_from(result)
    return predictions


def _shared_results(
    forward_pass: ForwardPass, readouts: Sequence[Readout], part_rows: Sequence[Tensor]
) -> dict[int, Tensor]:
    """What readouts predict from, by their number: each kind of result is computed in one pass for all of them."""
    results: dict[int, Tensor] = {}
    pooled: dict[Summary, Tensor] = {}
    for number, (readout, rows) in enumerate(zip(readouts, part_rows, strict=True)):
        if readout.summary is not None:
            if readout.summary not in pooled:
                pooled[readout.summary] = forward_pass.features(readout.summary)
            results[number] = pooled[readout.summary][rows]
    ranking = [number for number, readout in enumerate(readouts) if readout.shared_computation == "ranking"]
    if ranking:
        groups = [(part_rows[number], readouts[number].candidates) for number in ranking]
        results |= zip(ranking, forward_pass.rank_together(groups), strict=True)
    by_words_before: dict[tuple[int, ...], list[int]] = {}
    for number, readout in enumerate(readouts):
        if readout.shared_computation == "next word":
            by_words_before.setdefault(readout.words_before, []).append(number)
    for words_before, numbers in by_words_before.items():
        own_rows = [part_rows[number] for number in numbers]
        logits = forward_pass.rows(torch.cat(own_rows)).logits_behind(words_before)  # [b V]
        results |= zip(numbers, logits.split(list(map(len, own_rows))), strict=True)
    return results


def _no_prompt(embeds: Tensor) -> Prompt:
    num_rows, _, width = embeds.shape
    mask = torch.zeros(num_rows, 0, dtype=torch.bool, device=embeds.device)
    return Prompt(embeds.new_zeros(num_rows, 0, width), mask, embeds.new_zeros(()))
