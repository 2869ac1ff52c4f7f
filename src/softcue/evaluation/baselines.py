"""Baselines: the backbone without training (zero-shot), and a linear probe on its sentence vectors."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import torch

from softcue.backbones import Backbone
from softcue.errors import ConfigurationError
from softcue.evaluation.scoring import Evaluation, evaluate, score
from softcue.inference import TaskModel, make_task_model
from softcue.methods import METHODS
from softcue.readouts import ReadoutConfig
from softcue.sentence_vectors import SentenceVector, sentence_vectors_of
from softcue.tasks import Task
from softcue.types import Example, Prediction


def zero_shot(backbone: Backbone, task: Task, examples: Sequence[Example]) -> Evaluation:
    """Score the backbone without training: it ranks the labels; an encoder takes the nearest label description.

    Example:
        zero_shot(backbone, library_task("tickets"), examples).main
    """
    if backbone.kind == "encoder" and not task.has_classes:
        raise ConfigurationError(
            setting="task.kind",
            got=task.kind,
            expected="a task with labels",
            fix="a zero-shot encoder can only choose a label",
        )
    if backbone.kind == "encoder" and task.num_sentences == 2:
        # Nothing in a zero-shot encoder relates two texts to a label: it always predicts the first one.
        return score(task, [Prediction(task.label_names[0])] * len(examples), examples)
    if backbone.kind == "encoder":
        pooling = SentenceVector("backbone", backbone.default_pooling)
        texts = sentence_vectors_of(pooling, backbone, task, examples)  # [N D]
        described = [Example((f"{label.words}: {label.description}".rstrip(": "),)) for label in task.labels.values()]
        labels = sentence_vectors_of(pooling, backbone, task, described)  # [C D]
        cosines = torch.nn.functional.normalize(texts, dim=1) @ torch.nn.functional.normalize(labels, dim=1).T
        predictions = [Prediction(task.label_names[index]) for index in cosines.argmax(dim=1).tolist()]
        return score(task, predictions, examples)
    return evaluate(backbone, _baseline("no-prompt", "auto", backbone, task), examples)


def linear_probe(
    backbone: Backbone,
    task: Task,
    train: Sequence[Example],
    validation: Sequence[Example],
    test: Sequence[Example],
) -> Evaluation:
    """Score logistic regression on frozen sentence vectors; validation rows choose its regularisation strength.

    Example:
        linear_probe(backbone, task, splits.train, splits.validation, splits.test).main
    """
    model = _baseline("linear-probe", "classifier", backbone, task)
    closed_form_solutions = model.method.closed_form_solutions(
        model.readout, model.rows(backbone, train, with_target=True)
    )
    assert closed_form_solutions is not None
    best, best_score = model.state_dict(), -math.inf
    for _ in closed_form_solutions:
        validation_score = evaluate(backbone, model, validation).main
        if validation_score >= best_score:  # as in training, the later of equal scores wins
            best, best_score = {name: value.clone() for name, value in model.state_dict().items()}, validation_score
    model.load_state_dict(best)
    return evaluate(backbone, model, test)


def _baseline(name: str, readout: Literal["auto", "classifier"], backbone: Backbone, task: Task) -> TaskModel:
    method = METHODS[name]
    return make_task_model(task, (method, method.Config(name=name)), ReadoutConfig(name=readout), backbone, None)
