"""EFL, entailment as few-shot learner (Wang et al. 2021): a task is asked as "does the text entail this sentence?".

A task with one text becomes pairs of the text and the description of a label. A binary task uses one description.
A task with more classes uses all of them, and the label with the highest entailment score wins. A classification with
two texts stays as it is. A regression with two texts, such as STS-B, asks how likely the first text entails the second:
the score's place on its scale is the target probability. The backbone is fine-tuned. The paper starts from a model
trained on NLI: use `--init-from` with a cue of an NLI task.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
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
                weight=example.weight,
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


class GradedEntailment:
    """A regression with two texts, asked as the probability that the first entails the second.

    The ends of the scale are the two answers, and a score between them is a mixture of both: a target of 4 of 0 to 5
    is entailment with probability 0.8. The loss is the cross-entropy with that mixture, and the prediction is the mean
    of the ends (as LM-BFF reads scores from two labels, Gao et al. 2021, whose few-shot setting EFL shares).
    """

    def __init__(self, task: Task) -> None:
        if task.scale is None or task.num_sentences != 2:
            raise ConfigurationError(
                setting="method.name",
                got="efl",
                expected=f"a regression with two texts and a `scale` ({task.name} has not both)",
                fix="set `scale` in the task file, or use fine-tuning",
            )
        self.low, self.high, _ = task.scale
        labels = {ENTAILED: Label(words="yes"), NOT_ENTAILED: Label(words="no")}
        self.task = task.model_copy(
            update={"name": f"{task.name} as entailment", "kind": "classification", "labels": labels, "metric": ""}
        )

    def split(self, example: Example) -> list[Example]:
        """Return the pair with the probability of entailment as its target."""
        if example.target is None:
            return [example]
        share = (float(example.target) - self.low) / (self.high - self.low)
        return [replace(example, target=min(1.0, max(0.0, share)))]

    def merge(self, predictions: Sequence[Prediction]) -> Prediction:
        """Return the score at the predicted probability of entailment."""
        [prediction] = predictions
        entailment = dict(prediction.scores or {prediction.label or "": 1.0}).get(ENTAILED, 0.0)
        return Prediction(None, value=self.low + entailment * (self.high - self.low))


class EFL(FineTuning):
    """Fine-tuning on the task asked as entailment."""

    Config: ClassVar[type[MethodConfig]] = EFLConfig
    summary = "fine-tuning on the task rewritten as entailment of label descriptions (a baseline)"
    paper = "Wang et al. 2021"

    @classmethod
    def reformulate(cls, task: Task) -> TaskReformulation | None:
        """Ask a task with one text, or a regression, as entailment. A classification of two texts stays as it is."""
        if task.kind == "regression":
            return GradedEntailment(task)
        if task.kind != "classification":
            raise ConfigurationError(
                setting="method.name",
                got="efl",
                expected=f"a classification or regression task ({task.name} is {task.kind})",
                fix="use fine-tuning",
            )
        return Entailment(task) if task.num_sentences == 1 else None
