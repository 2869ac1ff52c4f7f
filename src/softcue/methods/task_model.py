"""One task on a backbone: method and readout together, from text to loss and prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from softcue.backbones import Backbone, Listener, Reading, Summary
from softcue.errors import ConfigurationError
from softcue.methods.method import Method, MethodConfig, Rewriting
from softcue.prompts.mixed import joined
from softcue.readouts import Loss, Readout, ReadoutConfig, make_readout
from softcue.representations import Representation, plain_rows, represented, represented_with_dropout
from softcue.tasks import Task
from softcue.token_cache import token_rows
from softcue.tokens import TOKENS_AT_ONCE, Wording, collate, stacked_representations
from softcue.types import Batch, Counts, Example, Instance, Prediction, Prompt, Tokens


class Outcome(NamedTuple):
    """What a training pass over a piece of a batch gives."""

    loss: Loss
    aux_loss: Tensor | float = 0.0  # a mean over the piece's rows
    tally: Mapping[str, Tensor] = {}  # sums over the piece's rows


class TaskModel(nn.Module):
    """All trained numbers of one task; the backbone is passed in and never becomes part of it."""

    def __init__(
        self, task: Task, method: Method, readout: Readout, backbone: Backbone, max_length: int | None = None,
        rewriting: Rewriting | None = None,
    ) -> None:  # fmt: skip
        super().__init__()
        self.task = task
        self.method = method
        self.readout = readout
        self.rewriting = rewriting
        self.max_length = min(max_length or backbone.max_length, backbone.max_length)  # prompt included
        # Each token written is a pass of its own over all rows: the more of them, the better.
        self.tokens_at_once = TOKENS_AT_ONCE if readout.decoding else backbone.tokens_at_once
        room = self.max_length - method.prompt_length
        if backbone.kind == "decoder":
            room -= readout.max_target_length
        if room < 2:
            raise ConfigurationError(
                "method.prompt_length", method.prompt_length,
                f"room for text among the {self.max_length} tokens {backbone.name} takes",
                "shorten the prompt" + (", or lower readout.max_new_tokens" if readout.max_target_length else ""),
            )  # fmt: skip
        is_behind = method.insert_at in ("end", "first-end")
        if backbone.kind == "decoder" and is_behind and readout.summary and method.prompt_length:
            raise ConfigurationError(
                "method.insert_at", method.insert_at, "front or start for a head on a decoder",
                "a prompt behind the text cannot reach the text's states; or use readout.name=generation",
            )  # fmt: skip
        if backbone.kind == "encoder-decoder" and readout.max_target_length > backbone.max_answer_length:
            raise ConfigurationError(
                "readout.max_new_tokens", readout.max_target_length,
                f"at most {backbone.max_answer_length}, what {backbone.name}'s decoder takes", "lower it",
            )  # fmt: skip
        if method.needs_head and readout.linear is None:
            raise ConfigurationError("readout.head", readout.config.head, "a linear head",
                                     f"set readout.head=linear: {method.config.name} is one linear layer")  # fmt: skip
        self.wording = Wording(
            readout.task, backbone.tokenizer, backbone.kind, room, method.insert_at, readout.suffix,
            readout.writes_answer, readout.places,
        )  # fmt: skip
        # Where nothing trained stands between text and head, what the head reads is known in advance.
        self.knows_features = readout.summary is not None and not method.changes_reading
        self.representation = method.representation
        if self.knows_features and readout.summary is not None:
            self.representation = Representation("backbone", readout.summary)

    def length(self, tokens: Tokens) -> int:
        """What a row adds to a pass: text, prompt unless it is run once for all rows, what may be written by a beam."""
        decoding, prompt_length = self.readout.decoding, self.method.prompt_length
        if decoding:
            return (len(tokens.ids) + prompt_length + self.readout.max_target_length) * decoding.num_beams
        is_in_front = self.method.insert_at in ("front", "start")
        is_run_once = self.wording.kind == "decoder" and is_in_front and not self.method.reads_input
        return max(1, len(tokens.ids) + (0 if is_run_once else prompt_length))

    def _asked(self, example: Example) -> list[Example]:
        """The example itself, or the questions it is rewritten as."""
        return [example] if self.rewriting is None else self.rewriting.unfold(example)

    def unfold(self, example: Example) -> list[Example]:
        """The example as it is put to the backbone: rewritten as questions, long ones in windows."""
        return [piece for asked in self._asked(example) for piece in self.readout.unfold(asked, self.wording)]

    def lessons(self, examples: Sequence[Example]) -> list[Example]:
        """All examples as they are put to the backbone in training."""
        return [piece for example in examples for lesson in self.readout.lessons(example)
                for piece in self.unfold(lesson)]  # fmt: skip

    def fold(self, example: Example, answers: Sequence[Prediction]) -> Prediction:
        """The answers to an unfolded example as one."""
        if self.rewriting is None:
            return self.readout.fold(example, answers)
        left = iter(answers)
        return self.rewriting.fold([
            self.readout.fold(asked, [next(left) for _ in self.readout.unfold(asked, self.wording)])
            for asked in self._asked(example)
        ])  # fmt: skip

    def rows(
        self, backbone: Backbone, examples: Sequence[Example], with_answer: bool = False, vectors: Tensor | None = None
    ) -> list[Tokens]:
        """Unfolded examples as tokens, with M(x) where the method reads it, unless its `vectors` [N R] are known."""
        found = token_rows(self.wording, backbone.fingerprint.tokenizer, examples)
        if with_answer:
            found = [self.readout.answered(row, example) for row, example in zip(found, examples, strict=True)]
        if self.representation is not None and examples:
            if vectors is None:
                vectors = represented(self.representation, backbone, self.readout.task, examples, self.vector_limit)
            found = [replace(row, representation=vector) for row, vector in zip(found, vectors, strict=True)]
        if self.representation is not None and self.representation.dropout:
            plain = plain_rows(backbone, self.readout.task, examples)
            found = [replace(row, plain=own) for row, own in zip(found, plain, strict=True)]
        return found

    @property
    def vector_limit(self) -> int | None:
        """Features of a head are those of the text as this run cuts it; M(x) is the same for all runs."""
        return self.max_length if self.knows_features else None

    def start_head(self, backbone: Backbone, examples: Sequence[Example]) -> None:
        """Begin with the head that is best without the method: what the method learns comes on top."""
        unfolded = self.lessons(examples)
        answers = [self.readout.answered(self.wording.source(example), example).label for example in unfolded]
        summary = Representation("backbone", self.readout.summary or backbone.natural_pooling)
        features = represented(summary, backbone, self.readout.task, unfolded, self.max_length)  # [N R]
        self.readout.solve(features, [label for label in answers if label is not None])

    def prompt(self, backbone: Backbone, batch: Batch, embeds: Tensor) -> Prompt | None:
        """The prompt of each row of a batch, from what it may read of it."""
        representation = batch.representation
        if self.training and self.representation is not None and self.representation.dropout:
            assert batch.plain is not None
            representation = represented_with_dropout(self.representation, backbone, batch.plain)
        return self.method.prompt(Instance(embeds, batch.mask, representation))

    @torch.no_grad()
    def variation(self, backbone: Backbone, rows: Sequence[Tokens]) -> float | None:
        """How much the tokens that read the input differ between rows, as a share of their size.

        None where none does, or there are not two rows.
        """
        if not self.method.num_reading or len(rows) < 2:
            return None
        batch = collate(rows, backbone.tokenizer.pad_token_id).to(backbone.device)
        seen = self.method.on(backbone)
        prompt = self.prompt(seen, batch, seen.entering(batch))
        assert prompt is not None
        tokens = prompt.tokens[:, -self.method.num_reading :].float()  # [B n D]
        spread = (tokens - tokens.mean(0)).square().mean()
        return float((spread / tokens.square().mean().clamp(min=1e-12)).sqrt())

    def read(self, backbone: Backbone, batch: Batch, with_target: bool = False) -> tuple[Reading, Prompt | None]:
        """The batch laid out with its prompts, and those prompts."""
        embeds = backbone.entering(batch)  # [B T D]
        prompt = self.prompt(backbone, batch, embeds)
        reading = backbone.read(batch, prompt, embeds, with_target)
        if self.knows_features:
            reading = replace(reading, known_features=batch.representation)
        return reading, prompt

    def forward(self, backbone: Backbone, batch: Batch) -> Outcome:
        """Training: the readout's loss, and what the prompt adds to it."""
        reading, prompt = self.read(self.method.on(backbone), batch, self.readout.needs_target)
        loss = self.readout.loss(reading, batch)
        return Outcome(loss) if prompt is None else Outcome(loss, prompt.aux_loss, prompt.tally)

    def counts(self) -> Counts:
        """How many numbers the task adds, told apart by who changes them."""
        trained = [p for p in self.method.parameters() if p.requires_grad]
        stored = sum(value.numel() for value in self.method.state_dict().values())
        gradient = sum(p.numel() for p in trained)
        return Counts(
            gradient=gradient,
            ema=stored - gradient,
            stored=stored,
            head=sum(p.numel() for p in self.readout.parameters() if p.requires_grad),
        )


def make_task_model(
    task: Task, method: tuple[type[Method], MethodConfig], readout: ReadoutConfig, backbone: Backbone,
    generator: torch.Generator | None, max_length: int | None = None,
) -> TaskModel:  # fmt: skip
    """A task's model from configurations; without a generator its numbers wait to be loaded."""
    method_class, config = method
    built = method_class.build(config, config.seen(backbone), task, generator)
    return with_readout(task, built, readout, backbone, max_length)


def with_readout(
    task: Task, method: Method, readout: ReadoutConfig, backbone: Backbone, max_length: int | None = None
) -> TaskModel:
    """A task's model on a method that is there already, and may serve other tasks too."""
    rewriting = method.rewriting(task)
    read_task = task if rewriting is None else rewriting.task
    if method.needs_head and readout.name == "auto":
        readout = readout.model_copy(update={"name": "regression" if task.kind == "regression" else "classifier"})
    return TaskModel(task, method, make_readout(readout, read_task, backbone), backbone, max_length, rewriting)


@torch.no_grad()
def predict_mixed(
    backbone: Backbone, rows: Sequence[tuple[TaskModel, Tokens]], listeners: Mapping[int, Listener] | None = None
) -> list[Prediction]:
    """Answers for rows of any tasks, in as few passes as can be (Lester et al. 2021, figure 2): usually one.

    Rows are grouped by task: each task's method makes its own rows' prompts and each row goes to its own
    task's readout, so heads of different sizes and prompts of different lengths share the batch. Methods that
    change the backbone itself (adapters, fine-tuning) get a pass of their own. Listeners, by row, hear what is
    written as it is written.
    """
    passes: dict[tuple[int, bool], tuple[Backbone, list[tuple[TaskModel, list[int]]]]] = {}
    for model, numbers in by_model([model for model, _ in rows]):
        seen = model.method.on(backbone)
        passes.setdefault((id(seen), model.knows_features), (seen, []))[1].append((model, numbers))
    answers: list[Prediction | None] = [None] * len(rows)
    for seen, members in passes.values():
        order = [number for _, numbers in members for number in numbers]
        tokens = [rows[number][1] for number in order]
        heard = [listeners.get(number) for number in order] if listeners else ()
        for number, answer in zip(order, _one_pass(seen, tokens, members, heard), strict=True):
            answers[number] = answer
    return [answer for answer in answers if answer is not None]


def rows_together(backbone: Backbone, requests: Sequence[tuple[TaskModel, Example]]) -> list[Tokens]:
    """Tokens of unfolded requests of any tasks, in order; M(x) is computed once for all models that read it alike."""
    groups: list[tuple[Representation, int | None, Task, list[int]]] = []
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
        found = represented(representation, backbone, task, [requests[number][1] for number in numbers], limit)
        vectors |= zip(numbers, found, strict=True)
    rows: dict[int, Tokens] = {}
    for model, numbers in members:
        own = None if model.representation is None else torch.stack([vectors[number] for number in numbers])
        made = model.rows(backbone, [requests[number][1] for number in numbers], vectors=own)
        rows |= zip(numbers, made, strict=True)
    return [rows[number] for number in range(len(requests))]


def by_model(models: Sequence[TaskModel]) -> list[tuple[TaskModel, list[int]]]:
    """Each model once, with the places it stands at."""
    found: dict[int, tuple[TaskModel, list[int]]] = {}
    for place, model in enumerate(models):
        found.setdefault(id(model), (model, []))[1].append(place)
    return list(found.values())


def _one_pass(
    backbone: Backbone, tokens: Sequence[Tokens], members: Sequence[tuple[TaskModel, Sequence[int]]],
    listeners: Sequence[Listener | None],
) -> list[Prediction]:  # fmt: skip
    """Answers for rows that stand model by model."""
    device = backbone.device
    batch = collate(tokens, backbone.tokenizer.pad_token_id).to(device)
    if len(members) == 1:
        reading, _ = members[0][0].read(backbone, batch)
        return members[0][0].readout.predict(replace(reading, listeners=listeners))
    spans = torch.arange(len(tokens), device=device).split([len(numbers) for _, numbers in members])
    embeds = backbone.entering(batch)  # [B T D]
    parts = []
    for (model, _), span in zip(members, spans, strict=True):
        own = stacked_representations([tokens[number] for number in span.tolist()])
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
    reading = backbone.read(batch, joined([part.prompt for part in parts]), embeds)
    reading = replace(reading, listeners=listeners)
    knows = parts[0].model.knows_features
    shared = set() if knows else {part.model.readout.shared_pass for part in parts}
    if "hidden" in shared:
        reading.hidden()
    if "answers" in shared:
        reading.read_for_answers()
    decoding, *others = {part.model.readout.decoding for part in parts}
    if decoding is not None and not others:
        reading.generate(decoding)
    features: dict[Summary, Tensor] = {}  # pooled once for all models that pool alike
    answers: list[Prediction] = []
    for part, span in zip(parts, spans, strict=True):
        own, summary = part.representation, part.model.readout.summary
        if not knows and summary is not None:
            if summary not in features:
                features[summary] = reading.features(summary)
            own = features[summary][span]
        # A readout with a summary reads nothing else: the rest need not be copied.
        known = reading.rows(span) if summary is None else replace(reading, known_features=own)
        answers += part.model.readout.predict(known)
    return answers


def _no_prompt(embeds: Tensor) -> Prompt:
    num_rows, _, width = embeds.shape
    mask = torch.zeros(num_rows, 0, dtype=torch.bool, device=embeds.device)
    return Prompt(embeds.new_zeros(num_rows, 0, width), mask, embeds.new_zeros(()))
