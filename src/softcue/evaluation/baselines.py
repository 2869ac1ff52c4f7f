"""What a cue must beat: the backbone without training, and a linear probe on its frozen representation."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from softcue.backbones import Backbone
from softcue.evaluation.evaluate import Evaluation, evaluate, score
from softcue.methods import METHODS, TaskModel
from softcue.readouts import ReadoutConfig, make_readout
from softcue.tasks import Task
from softcue.tokens import Wording, by_length, collate
from softcue.types import Example, Prediction

PROBE_STRENGTHS = (0.01, 0.1, 1.0, 10.0, 100.0)  # inverse regularisation, chosen on validation rows


def untrained(backbone: Backbone, task: Task, examples: Sequence[Example]) -> Evaluation:
    """The backbone as it came: it ranks the label strings; an encoder takes the nearest label description."""
    if backbone.kind == "encoder" and len(task.text) == 2:
        # Nothing in an untrained encoder relates two texts to a label; all it can do is guess one.
        return score(task, [Prediction(task.label_names[0])] * len(examples), examples)
    if backbone.kind == "encoder":
        texts = representations(backbone, task, examples)  # [N D]
        described = [Example((f"{label.words}: {label.description}".rstrip(": "),)) for label in task.labels.values()]
        labels = representations(backbone, task, described)  # [C D]
        nearest = torch.nn.functional.normalize(texts, dim=1) @ torch.nn.functional.normalize(labels, dim=1).T
        answers = [Prediction(task.label_names[index]) for index in nearest.argmax(dim=1).tolist()]
        return score(task, answers, examples)
    method_class = METHODS["no-prompt"]
    method = method_class.build(method_class.Config(name="no-prompt"), backbone, task, None)
    model = TaskModel(task, method, make_readout(ReadoutConfig(), task, backbone), backbone)
    return evaluate(backbone, model, examples)


def linear_probe(
    backbone: Backbone,
    task: Task,
    train: Sequence[Example],
    validation: Sequence[Example],
    test: Sequence[Example],
) -> Evaluation:
    """Logistic regression on the frozen representation; its strength is chosen on validation rows."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    features = [representations(backbone, task, rows).numpy() for rows in (train, validation, test)]
    scaler = StandardScaler().fit(features[0])
    features = [scaler.transform(values) for values in features]
    best: Any = None
    best_score = -1.0
    for strength in PROBE_STRENGTHS:
        probe = LogisticRegression(C=strength, max_iter=2000)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # an unconverged probe is still scored on validation rows
            probe.fit(features[0], [str(example.target) for example in train])
        found = score(task, [Prediction(label) for label in probe.predict(features[1])], validation).main
        if found > best_score:
            best, best_score = probe, found
    return score(task, [Prediction(label) for label in best.predict(features[2])], test)


@torch.no_grad()
def representations(backbone: Backbone, task: Task, examples: Sequence[Example], batch_size: int = 64) -> Tensor:
    """M(x): the unprompted backbone's pooled last layer for each example. [N R]

    Two texts give their likeness instead where the backbone pools by mean, as the classifier's head does.
    """
    wording = Wording(task, backbone.tokenizer, backbone.kind, backbone.max_length)
    rows = [wording.source(example) for example in examples]
    pooling = backbone.natural_pooling
    compares = len(task.text) == 2 and backbone.compares_pairs
    found = torch.zeros(len(rows), backbone.hidden_width * (2 if compares else 1))
    for numbers in by_length([len(row.ids) for row in rows], batch_size):
        batch = collate([rows[number] for number in numbers], backbone.tokenizer.pad_token_id).to(backbone.device)
        reading = backbone.read(batch, None, backbone.embed(batch.ids))
        found[numbers] = (reading.compared() if compares else reading.pooled(pooling)).cpu()
    return found
