"""A task on a backbone: method and readout together, from text to loss and prediction."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import NamedTuple

import torch
from torch import Tensor, nn

from softcue.backbones import Backbone, Decoding, ForwardPass
from softcue.errors import ConfigurationError
from softcue.inputs.collate import batch_by_length, collate
from softcue.inputs.formatter import TOKENS_AT_ONCE, InputFormatter
from softcue.inputs.packed_rows import collect_rows, with_plain, with_vectors
from softcue.inputs.token_cache import tokenize_rows
from softcue.methods.method import Method, MethodConfig, TaskReformulation
from softcue.randomness import Dropout
from softcue.readouts import Readout, ReadoutConfig, automatic_answer_prefix, make_readout
from softcue.readouts.pooling_choice import choose_pooling
from softcue.sentence_vectors import SentenceVector, plain_rows, sentence_vectors_of, sentence_vectors_of_batch
from softcue.tasks import Task
from softcue.tasks.stored_examples import collect_as
from softcue.types import Batch, Counts, Example, Instance, Prediction, Prompt, TokenizedRow


class StepOutput(NamedTuple):
    """The result of a training pass over a micro-batch."""

    losses: Tensor  # [B] the readout's loss of each row, a sum over its terms
    aux_loss: Tensor | float = 0.0  # a mean over the micro-batch's rows
    statistics: Mapping[str, Tensor] = {}  # sums over the micro-batch's rows
    compared: Tensor | None = None  # [B ...] for a loss that compares the rows of a whole step
    features: Tensor | None = None  # [B R] the vectors that the head reads, if asked for


class TaskModel(nn.Module):
    """The trainable parameters of one task. The backbone is passed in and never becomes part of the module."""

    def __init__(
        self,
        task: Task,
        method: Method,
        readout: Readout,
        backbone: Backbone,
        max_length: int | None = None,
        reformulation: TaskReformulation | None = None,
    ) -> None:
        super().__init__()
        self.task = task
        self.method = method
        self.readout = readout
        self.reformulation = reformulation
        self.runs_in_torch = False  # also on a backbone with a runtime, whose answers differ from torch's
        self.recheck_margin = 0.0  # on a backbone with a runtime, answers with a smaller margin are torch's
        self.max_length = min(max_length or backbone.max_length, backbone.max_length)  # prompt included
        # Each generated token is a pass over all rows, so larger batches pay off.
        self.tokens_at_once = TOKENS_AT_ONCE if readout.decoding else backbone.tokens_at_once
        max_text_length = self.max_length - method.reserved_length
        if backbone.kind == "decoder":
            max_text_length -= readout.max_target_length
        self._check_fit(backbone, max_text_length)
        _check_answer_prefix(method, readout, backbone)
        self.formatter = InputFormatter(
            readout.task,
            backbone.tokenizer,
            backbone.kind,
            max_text_length,
            method.insert_at,
            readout.suffix,
            _answer_prefix(method, readout, backbone),
            readout.offset_unit,
            readout.pads_punctuation,
            readout.suffix_in_first,
            method.prompt_length,
        )
        # If no trainable parameter acts before the head, the head's features are computed once, in advance.
        # A mask is a token of the row, which a sentence vector does not have.
        is_frozen = readout.summary is not None and not method.changes_hidden_states
        self.has_frozen_features = is_frozen and readout.summary != "mask"
        self.representation = method.representation
        if self.has_frozen_features and readout.summary is not None:
            self.representation = SentenceVector("backbone", readout.summary)

    def _check_fit(self, backbone: Backbone, max_text_length: int) -> None:
        """Check that method, readout and backbone fit together."""
        method, readout = self.method, self.readout
        if max_text_length < 2:
            raise ConfigurationError(
                setting=method.length_setting,
                got=method.reserved_length,
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
        if backbone.kind == "encoder-decoder" and readout.max_target_length > backbone.max_target_length:
            raise ConfigurationError(
                setting="readout.max_new_tokens",
                got=readout.max_target_length,
                expected=f"at most {backbone.max_target_length}, the most tokens {backbone.name}'s decoder takes",
                fix="lower it",
            )
        if method.needs_head and readout.summary == "mask":
            raise ConfigurationError(
                setting="readout.pooling",
                got="mask",
                expected="cls, mean or last",
                fix=f"leave it at auto: {method.config.name} reads the text without a mask",
            )
        if not method.needs_training and any(True for _ in readout.parameters()):
            raise ConfigurationError(
                setting="readout.name",
                got=readout.config.name,
                expected="a readout without a head: generation or label-words",
                fix=f"leave it at auto: {method.config.name} trains nothing",
            )
        if method.needs_head and readout.linear is None:
            raise ConfigurationError(
                setting="readout.head",
                got=readout.config.head,
                expected="a linear head",
                fix=f"set readout.head=linear: {method.config.name} is one linear layer",
            )

    def with_rows(self, backbone: Backbone, examples: Sequence[Example], seed: int) -> TaskModel:
        """Return this model with what its method takes from the training rows, such as demonstrations."""
        method = self.method.with_rows(examples, self.formatter, self.readout, backbone, seed)
        if method is self.method:
            return self
        return TaskModel(self.task, method, self.readout, backbone, self.max_length, self.reformulation)

    def with_measured_pooling(
        self, backbone: Backbone, examples: Sequence[Example], may_compare: bool = True
    ) -> TaskModel:
        """Return this model with the pooling that training rows prefer, if its head could read another one.

        What a folder of sentence-transformers says is taken as it is: it was the best of all in every comparison.
        `may_compare` says whether the head may read the comparison of two texts or not, as rows prefer.
        """
        config = self.readout.config
        is_given = backbone.sentence_transformers.pooling is not None
        if is_given or self.reformulation is not None or not self.readout.is_solvable:
            return self
        if not may_compare and config.pairs == "compare":
            return self
        chosen = choose_pooling(self.readout, backbone, examples, self.max_length, may_compare)
        if chosen == config:
            return self
        readout = make_readout(chosen, self.task, backbone)
        return TaskModel(self.task, self.method, readout, backbone, self.max_length)

    def backbone_of(self, backbone: Backbone) -> Backbone:
        """The backbone that reads this task's rows: without its runtime, if this task's answers differ there."""
        return backbone.in_torch if self.runs_in_torch else backbone

    def needs_recheck(self, prediction: Prediction) -> bool:
        """Whether an answer of a runtime with fewer digits is so close to another one that torch must decide."""
        return self.recheck_margin > 0 and prediction.margin is not None and prediction.margin < self.recheck_margin

    def view_of(self, backbone: Backbone) -> Backbone:
        """The method's view of the backbone that reads this task's rows."""
        return self.method.view_of(self.backbone_of(backbone))

    def length(self, tokens: TokenizedRow) -> int:
        """Number of tokens a row adds to a pass.

        Counts text and prompt; not a prompt that runs once for all rows. If text is generated, the longest possible
        output counts too, and everything counts once per beam.
        """
        num_added, num_beams = self._added_length
        return max(1, (len(tokens.ids) + num_added) * num_beams)

    @cached_property
    def _added_length(self) -> tuple[int, int]:
        """The tokens of a row besides its text, and how often all of them count."""
        decoding, prompt_length = self.readout.decoding, self.method.prompt_length
        if decoding:
            return prompt_length + self.readout.max_target_length, decoding.num_beams
        is_in_front = self.method.insert_at in ("front", "start")
        is_run_once = self.formatter.kind == "decoder" and is_in_front and not self.method.reads_input
        return 0 if is_run_once else prompt_length, 1

    @cached_property
    def decoding(self) -> Decoding | None:
        """How text is generated, if it is."""
        return self.readout.decoding

    def _rewrite(self, example: Example) -> list[Example]:
        """The example itself, or the examples the method rewrites it as."""
        return [example] if self.reformulation is None else self.reformulation.split(example)

    def split(self, example: Example) -> list[Example]:
        """Split an example into the examples the backbone reads: rewritten by the method, long ones in windows."""
        if self.reformulation is None:
            return self.readout.split(example, self.formatter)
        return [window for part in self._rewrite(example) for window in self.readout.split(part, self.formatter)]

    def training_examples(self, examples: Sequence[Example]) -> Sequence[Example]:
        """The examples the backbone reads in training; in a file, as these are, if they are many."""
        windows = (
            window
            for example in examples
            for training_example in self.readout.training_examples(example)
            for window in self.split(training_example)
        )
        return collect_as(examples, windows)

    def merge(self, example: Example, predictions: Sequence[Prediction]) -> Prediction:
        """Merge the predictions for the parts of a split example into one."""
        if self.reformulation is None:
            return self.readout.merge(example, predictions)
        remaining = iter(predictions)
        return self.reformulation.merge(
            [
                self.readout.merge(part, [next(remaining) for _ in self.readout.split(part, self.formatter)])
                for part in self._rewrite(example)
            ]
        )

    def rows(
        self,
        backbone: Backbone,
        examples: Sequence[Example],
        with_target: bool = False,
        vectors: Tensor | None = None,
        use_disk_cache: bool = True,
    ) -> Sequence[TokenizedRow]:
        """Tokenize split examples. Rows carry M(x) if the method reads it; `vectors` [N R] gives it if known."""
        rows = tokenize_rows(self.formatter, backbone.fingerprint.tokenizer, examples, use_disk_cache=use_disk_cache)
        if with_target:
            targeted = (
                _with_weight(self.readout.with_target(row, example), example.weight)
                for row, example in zip(rows, examples, strict=True)
            )
            rows = collect_rows(targeted, len(examples))
        if self.representation is not None and self.reads_stored_vectors and examples:
            if vectors is None:
                vectors = sentence_vectors_of(
                    self.representation,
                    self.backbone_of(backbone),
                    self.readout.task,
                    examples,
                    self.vector_limit,
                    use_disk_cache=use_disk_cache,
                )
            rows = with_vectors(rows, vectors)
        if self.representation is not None and (self.representation.dropout or not self.reads_stored_vectors):
            plain = plain_rows(backbone, self.readout.task, examples, prompt=self.representation.prompt)
            rows = with_plain(rows, plain)
        return rows

    @property
    def reads_stored_vectors(self) -> bool:
        """Whether M(x) of a text is always the same. It is not while the weights that compute it are trained too."""
        if self.representation is None:
            return False
        return self.method.weights is None or not self.representation.reads_weights

    @property
    def vector_limit(self) -> int | None:
        """Most tokens a sentence vector reads: a head's features follow this run's limit; M(x) is the same in all."""
        return self.max_length if self.has_frozen_features else None

    def prompt(self, view: Backbone, batch: Batch, embeds: Tensor) -> Prompt | None:
        """The prompt of each row of a batch, made from the parts of the row it may read."""
        return self.method.prompt(self.instance(view, batch, embeds))

    def instance(self, view: Backbone, batch: Batch, embeds: Tensor) -> Instance:
        """What a prompt may read of each row: `embeds` from the method's view of the backbone [B T D], and M(x).

        M(x) was computed in advance, unless the view's weights are trained or its dropout is on. If weights are
        trained, it is M(x) of the same weights as in the pass with the prompt (M of equations 1 and 3 of Wu et al.
        2022), and the gradient flows through both passes.
        """
        representation = batch.representation
        if self.representation is not None:
            has_dropout = self.training and self.representation.dropout
            if has_dropout or not self.reads_stored_vectors:
                assert batch.plain is not None
                representation = sentence_vectors_of_batch(self.representation, view.whole, batch.plain, has_dropout)
        return Instance(embeds, batch.mask, representation)

    @torch.no_grad()
    def variation(self, backbone: Backbone, rows: Sequence[TokenizedRow]) -> float | None:
        """How much the prompt tokens that depend on the input differ between rows, relative to their size.

        None if no prompt token depends on the input, or if there are fewer than two rows.
        """
        if not self.method.num_input_dependent or len(rows) < 2:
            return None
        batch = collate(rows, backbone.tokenizer.pad_token_id).to(backbone.device)
        view = self.view_of(backbone)
        prompt = self.prompt(view, batch, view.input_states(batch))
        assert prompt is not None
        tokens = prompt.tokens[:, -self.method.num_input_dependent :].float()  # [B n D]
        spread = (tokens - tokens.mean(0)).square().mean()
        return float((spread / tokens.square().mean().clamp(min=1e-12)).sqrt())

    def read(
        self, backbone: Backbone, batch: Batch, with_target: bool = False, dropout: Dropout | None = None
    ) -> tuple[ForwardPass, Prompt | None]:
        """A forward pass of the batch with its prompts, and the prompts."""
        embeds = backbone.input_states(batch)  # [B T D]
        prompt = self.prompt(backbone, batch, embeds)
        forward_pass = backbone.read(batch, prompt, embeds, with_target, dropout)
        if self.has_frozen_features:
            forward_pass = replace(forward_pass, precomputed_features=batch.representation)
        return forward_pass, prompt

    def forward(
        self, backbone: Backbone, batch: Batch, dropout: Dropout | None = None, with_features: bool = False
    ) -> StepOutput:
        """A training pass: the readout's losses, the prompt's auxiliary loss and its statistics."""
        forward_pass, prompt = self.read(self.view_of(backbone), batch, self.readout.needs_target, dropout)
        losses = self.readout.losses(forward_pass, batch)
        features = None
        if with_features and self.readout.summary is not None:
            features = forward_pass.features(self.readout.summary)
        if prompt is None:
            return StepOutput(losses, features=features)
        return StepOutput(losses, prompt.aux_loss, prompt.statistics, prompt.compared, features)

    @torch.no_grad()
    def features(self, backbone: Backbone, rows: Sequence[TokenizedRow], batch_size: int) -> Tensor:
        """The vectors that the head reads for these rows, with the prompts as they are now. [N R]"""
        assert self.readout.summary is not None
        self.eval()
        view = self.view_of(backbone)
        parts: dict[int, Tensor] = {}
        for numbers in batch_by_length([self.length(row) for row in rows], batch_size, self.tokens_at_once):
            batch = collate([rows[number] for number in numbers], backbone.tokenizer.pad_token_id).to(backbone.device)
            vectors = self.read(view, batch)[0].features(self.readout.summary)
            parts |= dict(zip(numbers, vectors.cpu(), strict=True))
        return torch.stack([parts[number] for number in range(len(rows))])

    @torch.no_grad()
    def trial(self, backbone: Backbone) -> tuple[Tensor, list[Prediction]]:
        """The last states of one short text [1 T D], and its prediction unless that is a generated text."""
        examples = self.split(Example(("a",) * len(self.task.text)))[:1]
        rows = self.rows(backbone, examples, use_disk_cache=False)
        batch = collate(rows, backbone.tokenizer.pad_token_id).to(backbone.device)
        forward_pass, _ = self.read(self.view_of(backbone), batch)
        predictions = [] if self.readout.decoding else self.readout.predict(forward_pass)
        return forward_pass.text(), predictions

    def compared(self, backbone: Backbone, batch: Batch) -> Tensor | None:
        """The vectors of `StepOutput.compared` alone, without a pass of the backbone."""
        view = self.view_of(backbone)
        prompt = self.prompt(view, batch, view.input_states(batch))
        return None if prompt is None else prompt.compared

    def counts(self) -> Counts:
        """Count the stored parameters of the task, by how they are trained."""
        trainable = [p for p in self.method.parameters() if p.requires_grad]
        stored = sum(value.numel() for value in self.method.state_dict().values())
        gradient = sum(p.numel() for p in trainable)
        return Counts(
            gradient=gradient,
            ema=stored - gradient,
            stored=stored,
            head=sum(p.numel() for p in self.readout.parameters() if p.requires_grad),
        )


def _answer_prefix(method: Method, readout: Readout, backbone: Backbone) -> str:
    """The text that marks where the target begins, if the backbone writes it: the method's own, or the readout's."""
    if backbone.kind == "encoder" or not readout.use_answer_prefix:
        return ""
    return readout.config.answer_prefix if method.answer_prefix is None else method.answer_prefix


def _check_answer_prefix(method: Method, readout: Readout, backbone: Backbone) -> None:
    """Raise an error if a user has set an answer prefix that is not used; a cue records what `auto` means."""
    prefix = readout.config.answer_prefix
    if prefix in (_answer_prefix(method, readout, backbone), automatic_answer_prefix(backbone.kind)):
        return
    if backbone.kind == "encoder":
        reason = f"{backbone.name} is an encoder and writes no target"
    elif not readout.use_answer_prefix:
        reason = f"readout.name={readout.config.name} is a head and writes no target"
    else:
        reason = f"{method.config.name} has its own, method.answer_prefix"
    raise ConfigurationError(
        setting="readout.answer_prefix",
        got=prefix,
        expected="auto where it has no effect",
        fix=f"leave it out: {reason}",
    )


def make_task_model(
    task: Task,
    method: tuple[type[Method], MethodConfig],
    readout: ReadoutConfig,
    backbone: Backbone,
    generator: torch.Generator | None,
    max_length: int | None = None,
) -> TaskModel:
    """A task's model from configurations; without a generator its parameters are to be loaded afterwards."""
    method_class, config = method
    built = method_class.make(config, backbone, task, generator)
    return with_readout(task, built, readout, backbone, max_length)


def with_readout(
    task: Task, method: Method, readout: ReadoutConfig, backbone: Backbone, max_length: int | None = None
) -> TaskModel:
    """A task's model on an existing method, which may serve other tasks too."""
    reformulation = method.reformulate(task)
    read_task = task if reformulation is None else reformulation.task
    if method.needs_head and readout.name == "auto":
        readout = readout.model_copy(update={"name": "regression" if task.kind == "regression" else "classifier"})
    given = {key: value for key, value in method.readout_defaults.items() if getattr(readout, key) == "auto"}
    readout = readout.model_copy(update=given)
    return TaskModel(task, method, make_readout(readout, read_task, backbone), backbone, max_length, reformulation)


def _with_weight(row: TokenizedRow, weight: float) -> TokenizedRow:
    return row if row.weight == weight else replace(row, weight=weight)
