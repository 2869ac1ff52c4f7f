"""EFL, entailment as few-shot learner (Wang et al. 2021): every task asked as "does the text entail this?".

One text: the pair (text, description of a label); a binary task asks for one label only, a task of more classes
asks for each and takes the surest. Two texts: the two as they are. The backbone is fine-tuned; start from a cue
of an NLI task (`--init-from`) as the paper does.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from softcue.errors import ConfigurationError
from softcue.methods.fine_tuning import FineTuning, FineTuningConfig
from softcue.methods.method import MethodConfig, Rewriting
from softcue.tasks import Label, Task
from softcue.types import Example, Prediction

ENTAILED, NOT_ENTAILED = "entailment", "not_entailment"


class EFLConfig(FineTuningConfig):
    """EFL has the settings of fine-tuning; descriptions belong to the task."""


class Entailment:
    """Examples of a task with one text as questions of entailment."""

    def __init__(self, task: Task) -> None:
        self.labels = task.label_names
        missing = [name for name, label in task.labels.items() if not label.description]
        self.asked = [name for name in self.labels if name not in missing]
        if len(self.labels) == 2:  # one description will do: the other label is its absence
            self.asked = self.asked[-1:]
        if not self.asked or (len(self.labels) > 2 and missing):
            raise ConfigurationError(
                setting="task.label_descriptions",
                got=f"none for {', '.join(missing)}",
                expected="what each label means, in a sentence",
                fix="set task.label_descriptions.LABEL='...'",
            )
        self.descriptions = {name: task.labels[name].description for name in self.asked}
        self.task = Task(
            name=f"{task.name} as entailment",
            text=("text", "description"),
            label="label",
            labels={ENTAILED: Label(words="yes"), NOT_ENTAILED: Label(words="no")},
        )

    def split(self, example: Example) -> list[Example]:
        """One question per asked label."""
        return [
            Example(
                (*example.texts, text),
                None if example.target is None else ENTAILED if example.target == name else NOT_ENTAILED,
            )
            for name, text in self.descriptions.items()
        ]

    def merge(self, answers: Sequence[Prediction]) -> Prediction:
        """The label whose description is entailed most surely; scores are the entailment scores, made to sum to 1."""
        sure = [dict(answer.scores or {answer.label or "": 1.0}).get(ENTAILED, 0.0) for answer in answers]
        if len(self.labels) == 2:
            asked = self.asked[0]
            other = next(name for name in self.labels if name != asked)
            found = {asked: sure[0], other: 1.0 - sure[0]}
        else:
            total = math.fsum(sure)
            if not total:  # nothing is entailed at all, as written answers may say: no label is likelier
                sure, total = [1.0] * len(sure), float(len(sure))
            found = {name: value / total for name, value in zip(self.asked, sure, strict=True)}
        scores = {name: found[name] for name in self.labels}
        return Prediction(max(scores, key=scores.__getitem__), scores=scores)


class EFL(FineTuning):
    """Fine-tuning on the task rewritten as entailment."""

    Config: ClassVar[type[MethodConfig]] = EFLConfig
    summary = "fine-tuning on the task rewritten as entailment of label descriptions (a baseline)"
    paper = "Wang et al. 2021"

    @classmethod
    def rewriting(cls, task: Task) -> Rewriting | None:
        """Entailment for one text; two texts stay as they are."""
        if task.kind != "classification":
            raise ConfigurationError(
                setting="method.name",
                got="efl",
                expected=f"a classification task ({task.name} is {task.kind})",
                fix="use fine-tuning",
            )
        return Entailment(task) if task.num_sentences == 1 else None
