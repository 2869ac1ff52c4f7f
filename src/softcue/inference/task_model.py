"""One task on a backbone: method and readout together, from text to loss and prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from softcue.backbones import Backbone, ForwardPass
from softcue.errors import ConfigurationError
from softcue.inputs.collate import collate
from softcue.inputs.formatter import TOKENS_AT_ONCE, InputFormatter
from softcue.inputs.token_cache import token_rows
from softcue.methods.method import Method, MethodConfig, Rewriting
from softcue.readouts import Loss, Readout, ReadoutConfig, make_readout
from softcue.sentence_vectors import SentenceVector, plain_rows, sentence_vectors_of, sentence_vectors_with_dropout
from softcue.tasks import Task
from softcue.types import Batch, Counts, Example, Instance, Prediction, Prompt, TokenizedRow


class StepOutput(NamedTuple):
    """What a training pass over a piece of a batch gives."""

    loss: Loss
    aux_loss: Tensor | float = 0.0  # a mean over the piece's rows
    statistics: Mapping[str, Tensor] = {}  # sums over the piece's rows


class TaskModel(nn.Module):
    """All trained numbers of one task; the backbone is passed in and never becomes part of it."""

    def __init__(
        self,
        task: Task,
        method: Method,
        readout: Readout,
        backbone: Backbone,
        max_length: int | None = None,
        rewriting: Rewriting | None = None,
    ) -> None:
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
                setting="method.prompt_length",
                got=method.prompt_length,
                expected=f"room for text among the {self.max_length} tokens {backbone.name} takes",
                fix="shorten the prompt" + (", or lower readout.max_new_tokens" if readout.max_target_length else ""),
            )
        is_behind = method.insert_at in ("end", "first-end")
        if backbone.kind == "decoder" and is_behind and readout.summary and method.prompt_length:
            raise ConfigurationError(
                setting="method.insert_at",
                got=method.insert_at,
                expected="front or start for a head on a decoder",
                fix="a prompt behind the text cannot reach the text's states; or use readout.name=generation",
            )
        if backbone.kind == "encoder-decoder" and readout.max_target_length > backbone.max_answer_length:
            raise ConfigurationError(
                setting="readout.max_new_tokens",
                got=readout.max_target_length,
                expected=f"at most {backbone.max_answer_length}, what {backbone.name}'s decoder takes",
                fix="lower it",
            )
        if method.needs_head and readout.linear is None:
            raise ConfigurationError(
                setting="readout.head",
                got=readout.config.head,
                expected="a linear head",
                fix=f"set readout.head=linear: {method.config.name} is one linear layer",
            )
        self.formatter = InputFormatter(
            readout.task,
            backbone.tokenizer,
            backbone.kind,
            room,
            method.insert_at,
            readout.suffix,
            readout.writes_answer,
            readout.places,
        )
        # Where nothing trained stands between text and head, what the head reads is known in advance.
        self.knows_features = readout.summary is not None and not method.changes_reading
        self.representation = method.representation
        if self.knows_features and readout.summary is not None:
            self.representation = SentenceVector("backbone", readout.summary)

    def length(self, tokens: TokenizedRow) -> int:
        """What a row adds to a pass: text, prompt unless it is run once for all rows, what may be written by a beam."""
        decoding, prompt_length = self.readout.decoding, self.method.prompt_length
        if decoding:
            return (len(tokens.ids) + prompt_length + self.readout.max_target_length) * decoding.num_beams
        is_in_front = self.method.insert_at in ("front", "start")
        is_run_once = self.formatter.kind == "decoder" and is_in_front and not self.method.reads_input
        return max(1, len(tokens.ids) + (0 if is_run_once else prompt_length))

    def _asked(self, example: Example) -> list[Example]:
        """The example itself, or the questions it is rewritten as."""
        return [example] if self.rewriting is None else self.rewriting.split(example)

    def split(self, example: Example) -> list[Example]:
        """The example as it is put to the backbone: rewritten as questions, long ones in windows."""
        return [piece for asked in self._asked(example) for piece in self.readout.split(asked, self.formatter)]

    def training_examples(self, examples: Sequence[Example]) -> list[Example]:
        """All examples as they are put to the backbone in training."""
        return [
            piece
            for example in examples
            for lesson in self.readout.training_examples(example)
            for piece in self.split(lesson)
        ]

    def merge(self, example: Example, answers: Sequence[Prediction]) -> Prediction:
        """The answers to an unfolded example as one."""
        if self.rewriting is None:
            return self.readout.merge(example, answers)
        left = iter(answers)
        return self.rewriting.merge(
            [
                self.readout.merge(asked, [next(left) for _ in self.readout.split(asked, self.formatter)])
                for asked in self._asked(example)
            ]
        )

    def rows(
        self,
        backbone: Backbone,
        examples: Sequence[Example],
        with_answer: bool = False,
        vectors: Tensor | None = None,
        use_disk_cache: bool = True,
    ) -> list[TokenizedRow]:
        """Unfolded examples as tokens, with M(x) where the method reads it, unless its `vectors` [N R] are known."""
        if use_disk_cache:
            found = token_rows(self.formatter, backbone.fingerprint.tokenizer, examples)
        else:
            found = [self.formatter.source(example) for example in examples]
        if with_answer:
            found = [self.readout.with_target(row, example) for row, example in zip(found, examples, strict=True)]
        if self.representation is not None and examples:
            if vectors is None:
                vectors = sentence_vectors_of(
                    self.representation,
                    backbone,
                    self.readout.task,
                    examples,
                    self.vector_limit,
                    use_disk_cache=use_disk_cache,
                )
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
        unfolded = self.training_examples(examples)
        answers = [self.readout.with_target(self.formatter.source(example), example).label for example in unfolded]
        summary = SentenceVector("backbone", self.readout.summary or backbone.natural_pooling)
        features = sentence_vectors_of(summary, backbone, self.readout.task, unfolded, self.max_length)  # [N R]
        self.readout.solve(features, [label for label in answers if label is not None])

    def prompt(self, backbone: Backbone, batch: Batch, embeds: Tensor) -> Prompt | None:
        """The prompt of each row of a batch, from what it may read of it."""
        representation = batch.representation
        if self.training and self.representation is not None and self.representation.dropout:
            assert batch.plain is not None
            representation = sentence_vectors_with_dropout(self.representation, backbone, batch.plain)
        return self.method.prompt(Instance(embeds, batch.mask, representation))

    @torch.no_grad()
    def variation(self, backbone: Backbone, rows: Sequence[TokenizedRow]) -> float | None:
        """How much the tokens that read the input differ between rows, as a share of their size.

        None where none does, or there are not two rows.
        """
        if not self.method.num_reading or len(rows) < 2:
            return None
        batch = collate(rows, backbone.tokenizer.pad_token_id).to(backbone.device)
        seen = self.method.view_of(backbone)
        prompt = self.prompt(seen, batch, seen.input_states(batch))
        assert prompt is not None
        tokens = prompt.tokens[:, -self.method.num_reading :].float()  # [B n D]
        spread = (tokens - tokens.mean(0)).square().mean()
        return float((spread / tokens.square().mean().clamp(min=1e-12)).sqrt())

    def read(self, backbone: Backbone, batch: Batch, with_target: bool = False) -> tuple[ForwardPass, Prompt | None]:
        """The batch laid out with its prompts, and those prompts."""
        embeds = backbone.input_states(batch)  # [B T D]
        prompt = self.prompt(backbone, batch, embeds)
        forward_pass = backbone.read(batch, prompt, embeds, with_target)
        if self.knows_features:
            forward_pass = replace(forward_pass, known_features=batch.representation)
        return forward_pass, prompt

    def forward(self, backbone: Backbone, batch: Batch) -> StepOutput:
        """Training: the readout's loss, and what the prompt adds to it."""
        forward_pass, prompt = self.read(self.method.view_of(backbone), batch, self.readout.needs_target)
        loss = self.readout.loss(forward_pass, batch)
        return StepOutput(loss) if prompt is None else StepOutput(loss, prompt.aux_loss, prompt.statistics)

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
    task: Task,
    method: tuple[type[Method], MethodConfig],
    readout: ReadoutConfig,
    backbone: Backbone,
    generator: torch.Generator | None,
    max_length: int | None = None,
) -> TaskModel:
    """A task's model from configurations; without a generator its numbers wait to be loaded."""
    method_class, config = method
    built = method_class.build(config, config.view_of(backbone), task, generator)
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
