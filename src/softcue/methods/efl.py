"""EFL, entailment as few-shot learner (Wang et al. 2021): a task is asked as "does the text entail this sentence?".

A task with one text becomes pairs of the text and the description of a label. A binary task uses one description.
A task with more classes uses all of them, and the label with the highest entailment score wins. A task with two
texts stays as it is. The backbone is fine-tuned. The paper starts from a model trained on NLI: use `--init-from`
with a cue of an NLI task.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

from softcue.errors import ConfigurationError
from softcue.methods.fine_tuning import FineTuning, FineTuningConfig
from softcue.methods.method import MethodConfig, TaskReformulation
from softcue.tasks import Label, Task
from softcue.types import Example, Prediction

ENTAILED, NOT_ENTAILED = "entailment", "not_entailment"


class EFLConfig(FineTuningConfig):
    """EFL has the settings of fine-tuning. Label descriptions belong to the task."""


class Entailment:
    """A classification task with one text, asked as entailment of label descriptions."""

    def __init__(self, task: Task) -> None:
        self.labels = task.label_names
        missing = [name for name, label in task.labels.items() if not label.description]
        described = [name for name in self.labels if name not in missing]
        if len(self.labels) == 2:  # one description is enough: the other label is its negation
            described = described[-1:]
        if not described or (len(self.labels) > 2 and missing):
            raise ConfigurationError(
                setting="task.label_descriptions",
                got=f"none for {', '.join(missing)}",
                expected="what each label means, in a sentence",
                fix="set task.label_descriptions.LABEL='...'",
            )
        self.descriptions = {name: task.labels[name].description for name in described}
        self.task = Task(
            name=f"{task.name} as entailment",
            text=("text", "description"),
            label="label",
            labels={ENTAILED: Label(words="yes"), NOT_ENTAILED: Label(words="no")},
        )

    def split(self, example: Example) -> list[Example]:
        """Return a pair of the text and a description for each described label."""
        return [
            Example(
                (*example.texts, description),
                None if example.target is None else ENTAILED if example.target == name else NOT_ENTAILED,
            )
            for name, description in self.descriptions.items()
        ]

    def merge(self, predictions: Sequence[Prediction]) -> Prediction:
        """Return the label with the highest entailment score. Scores are normalised to sum to 1."""
        entailment = [
            dict(prediction.scores or {prediction.label or "": 1.0}).get(ENTAILED, 0.0) for prediction in predictions
        ]
        if len(self.labels) == 2:
            described = next(iter(self.descriptions))
            other = next(name for name in self.labels if name != described)
            normalised = {described: entailment[0], other: 1.0 - entailment[0]}
        else:
            total = math.fsum(entailment)
            if not total:  # generated text may say "not entailed" for all labels: then all are equally likely
                entailment, total = [1.0] * len(entailment), float(len(entailment))
            normalised = {name: score / total for name, score in zip(self.descriptions, entailment, strict=True)}
        scores = {name: normalised[name] for name in self.labels}
        return Prediction(max(scores, key=scores.__getitem__), scores=scores)


class EFL(FineTuning):
    """Fine-tuning on the task asked as entailment."""

    Config: ClassVar[type[MethodConfig]] = EFLConfig
    summary = "fine-tuning on the task rewritten as entailment of label descriptions (a baseline)"
    paper = "Wang et al. 2021"

    @classmethod
    def reformulate(cls, task: Task) -> TaskReformulation | None:
        """Ask a task with one text as entailment. A task with two texts stays as it is."""
        if task.kind != "classification":
            raise ConfigurationError(
                setting="method.name",
                got="efl",
                expected=f"a classification task ({task.name} is {task.kind})",
                fix="use fine-tuning",
            )
        return Entailment(task) if task.num_sentences == 1 else None
