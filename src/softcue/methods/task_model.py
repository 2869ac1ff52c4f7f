"""One task on a backbone: method and readout together, from text to loss and prediction."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from softcue.backbones import Backbone
from softcue.errors import ConfigurationError
from softcue.methods.method import Method
from softcue.prompts.mixed import joined
from softcue.readouts import Loss, Readout
from softcue.tasks import Task
from softcue.tokens import Wording, collate
from softcue.types import Batch, Counts, Example, Instance, Prediction, Prompt, Tokens


class TaskModel(nn.Module):
    """All trained numbers of one task; the backbone is passed in and never becomes part of it."""

    def __init__(
        self, task: Task, method: Method, readout: Readout, backbone: Backbone, max_length: int | None = None
    ) -> None:
        super().__init__()
        self.task = task
        self.method = method
        self.readout = readout
        self.max_length = min(max_length or backbone.max_length, backbone.max_length)  # prompt included
        room = self.max_length - method.prompt_length
        if backbone.kind == "decoder":
            room -= readout.max_target_length
        if room < 2:
            raise ConfigurationError(
                "method.prompt_length", method.prompt_length,
                f"room for text among the {self.max_length} tokens {backbone.name} takes",
                "shorten the prompt",
            )  # fmt: skip
        if backbone.kind == "decoder" and method.insert_at == "end" and readout.pools_text and method.prompt_length:
            raise ConfigurationError(
                "method.insert_at", "end", "front or start for a head on a decoder",
                "a prompt behind the text cannot reach the text's states; or use readout.name=generation",
            )  # fmt: skip
        if backbone.kind == "encoder-decoder" and readout.max_target_length > backbone.max_answer_length:
            raise ConfigurationError(
                "readout.max_new_tokens", readout.max_target_length,
                f"at most {backbone.max_answer_length}, what {backbone.name}'s decoder takes", "lower it",
            )  # fmt: skip
        self.wording = Wording(
            task, backbone.tokenizer, backbone.kind, room, method.insert_at, readout.suffix, readout.writes_answer
        )

    def tokens(self, example: Example, with_answer: bool = False) -> Tokens:
        """One example as tokens."""
        tokens = self.wording.source(example)
        return self.readout.answered(tokens, example) if with_answer else tokens

    def forward(self, backbone: Backbone, batch: Batch) -> tuple[Loss, Tensor]:
        """Training: the readout's loss and the prompt's auxiliary loss."""
        embeds = backbone.embed(batch.ids)  # [B T D]
        prompt = self.method.prompt(Instance(embeds, batch.mask))
        reading = backbone.read(batch, prompt, embeds, with_target=self.readout.needs_target)
        aux_loss = embeds.new_zeros(()) if prompt is None else prompt.aux_loss
        del embeds  # they are laid out; the backbone's pass should not hold them a second time
        return self.readout.loss(reading, batch), aux_loss

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


@torch.no_grad()
def predict_mixed(backbone: Backbone, rows: Sequence[tuple[TaskModel, Tokens]]) -> list[Prediction]:
    """Answers for rows of any tasks in one pass of the backbone (Lester et al. 2021, figure 2).

    Rows are grouped by task: each task's method makes its own rows' prompts and each row goes to its own
    task's readout, so heads of different sizes and prompts of different lengths share the batch.
    """
    groups: dict[int, tuple[TaskModel, list[int]]] = {}
    for number, (model, _) in enumerate(rows):
        groups.setdefault(id(model), (model, []))[1].append(number)
    device = backbone.device
    batch = collate([tokens for _, tokens in rows], backbone.tokenizer.pad_token_id).to(device)
    embeds = backbone.embed(batch.ids)  # [B T D]
    members = [(model, torch.tensor(numbers, device=device)) for model, numbers in groups.values()]
    prompts = [_prompt(model, Instance(embeds[index], batch.mask[index])) for model, index in members]
    reading = backbone.read(batch, joined(prompts, [index for _, index in members]), embeds)
    shared = {model.readout.shared_pass for model, _ in members}
    if "hidden" in shared:
        reading.hidden()
    if "answers" in shared:
        reading.read_for_answers()
    answers: list[Prediction | None] = [None] * len(rows)
    for model, index in members:
        for number, answer in zip(index.tolist(), model.readout.predict(reading.rows(index)), strict=True):
            answers[number] = answer
    return [answer for answer in answers if answer is not None]


def _prompt(model: TaskModel, instance: Instance) -> Prompt:
    prompt = model.method.prompt(instance)
    if prompt is not None:
        return prompt
    num_rows, _, width = instance.embeds.shape
    return Prompt(
        instance.embeds.new_zeros(num_rows, 0, width),
        torch.zeros(num_rows, 0, dtype=torch.bool, device=instance.mask.device),
        instance.embeds.new_zeros(()),
    )
