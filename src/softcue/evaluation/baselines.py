"""What a cue must beat: the backbone without training, and a linear probe on its frozen representation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch

from softcue.backbones import Backbone
from softcue.errors import ConfigurationError
from softcue.evaluation.evaluate import Evaluation, evaluate, score
from softcue.inference import TaskModel, make_task_model
from softcue.methods import METHODS
from softcue.readouts import ReadoutConfig
from softcue.sentence_vectors import SentenceVector, sentence_vectors_of
from softcue.tasks import Task
from softcue.types import Example, Prediction


def zero_shot(backbone: Backbone, task: Task, examples: Sequence[Example]) -> Evaluation:
    """The backbone as it came: it ranks the label strings; an encoder takes the nearest label description."""
    if backbone.kind == "encoder" and not task.has_classes:
        raise ConfigurationError(
            setting="task.kind",
            got=task.kind,
            expected="a task with labels",
            fix="an untrained encoder has no other answer",
        )
    if backbone.kind == "encoder" and task.num_sentences == 2:
        # Nothing in an untrained encoder relates two texts to a label; all it can do is guess one.
        return score(task, [Prediction(task.label_names[0])] * len(examples), examples)
    if backbone.kind == "encoder":
        pooling = SentenceVector("backbone", backbone.natural_pooling)
        texts = sentence_vectors_of(pooling, backbone, task, examples)  # [N D]
        described = [Example((f"{label.words}: {label.description}".rstrip(": "),)) for label in task.labels.values()]
        labels = sentence_vectors_of(pooling, backbone, task, described)  # [C D]
        nearest = torch.nn.functional.normalize(texts, dim=1) @ torch.nn.functional.normalize(labels, dim=1).T
        answers = [Prediction(task.label_names[index]) for index in nearest.argmax(dim=1).tolist()]
        return score(task, answers, examples)
    return evaluate(backbone, _baseline("no-prompt", "auto", backbone, task), examples)


def linear_probe(
    backbone: Backbone,
    task: Task,
    train: Sequence[Example],
    validation: Sequence[Example],
    test: Sequence[Example],
) -> Evaluation:
    """Logistic regression on the frozen representation; its strength is chosen on validation rows."""
    model = _baseline("linear-probe", "classifier", backbone, task)
    solutions = model.method.solutions(model.readout, model.rows(backbone, train, with_answer=True))
    assert solutions is not None
    best, best_score = model.state_dict(), -math.inf
    for _ in solutions:
        found = evaluate(backbone, model, validation).main
        if found >= best_score:  # as in training: of equals the later
            best, best_score = {name: value.clone() for name, value in model.state_dict().items()}, found
    model.load_state_dict(best)
    return evaluate(backbone, model, test)


def _baseline(name: str, readout: Literal["auto", "classifier"], backbone: Backbone, task: Task) -> TaskModel:
    method = METHODS[name]
    return make_task_model(task, (method, method.Config(name=name)), ReadoutConfig(name=readout), backbone, None)
