"""Extreme texts in every method on every kind of backbone: alone, in a batch, permuted, mixed and from the store."""

from __future__ import annotations

import math
import os
import random
from typing import Any

from faults.record import Budget, FaultError, Record, run_trials
from softcue.errors import SoftcueError
from softcue.types import Prediction

TEXTS = {
    "empty": "",
    "spaces": " \t \n ",
    "empty after cleaning": "\u200b\ufeff\u00ad",
    "100,000 characters": "the parcel from Ann in Rome is late " * 2778,
    "one word of 100,000 letters": "a" * 100_000,
    "emoji": "\U0001f600\U0001f469\u200d\U0001f680\U0001f1eb\U0001f1f7" * 20,
    "right to left": "\u202e\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd\u202c 12",
    "control characters": "".join(map(chr, range(1, 32))) + "\x7f\x85\u2028",
    "null": "a\0b",
    "10,000 equal tokens": "ok " * 10_000,
    "combining marks": "e" + "\u0301" * 500,
    "special tokens": "<s> </s> <pad> <mask> [SEP] [CLS] <extra_id_0>",
    "private and unassigned": "\ue000\U000f0000\U0010ffff\u0378",
    "plain": "My invoice is wrong.",
}
TOLERANCE = 1e-4  # of probabilities in float32, between batches of other shapes


def run(record: Record, budget: Budget) -> None:
    """One trial for each method and kind of backbone; the count is of texts."""
    from tiny import ONE_OF_EACH_KIND
    from toy import CASES, works_on

    os.environ.pop("SOFTCUE_CACHE_MB", None)
    pairs = [(case, family) for family in ONE_OF_EACH_KIND for case in CASES if works_on(case, family)]
    pairs = random.Random(0).sample(pairs, len(pairs))

    def trial(number: int) -> tuple[str, int]:
        case, family = pairs[number % len(pairs)]
        largest = check_texts(case, family)
        record.figures["largest difference of a probability"] = max(
            largest, record.figures.get("largest difference of a probability", 0.0)
        )
        return ("refused with an error" if largest < 0 else "within tolerance"), len(TEXTS)

    budget.count = min(budget.count, len(pairs) * len(TEXTS))
    run_trials(record, budget, trial)
    record.figures["methods and settings on kinds of backbone"] = record.trials


def check_texts(case: str, family: str) -> float:
    """Predict all texts in every way; returns the largest difference, or -1 if the method has no such task."""
    from tiny import tiny
    from toy import TASK, make_model

    from softcue.inference import predict

    backbone = tiny(family)
    task = TASK.model_copy(update={"may_be_empty": TASK.text})
    try:
        models = [make_model(backbone, case, task, seed=seed) for seed in (0, 1)]
    except SoftcueError:
        return -1.0  # a combination that is refused
    examples = [task.example_from([text]) for text in TEXTS.values()]
    alone = [predict(backbone, [(models[0], example)]).predictions[0] for example in examples]
    order = random.Random(1).sample(range(len(examples)), len(examples))
    together = predict(backbone, [(models[0], example) for example in examples]).predictions
    permuted = predict(backbone, [(models[0], examples[place]) for place in order]).predictions
    mixed = predict(backbone, [(models[number % 2], example) for number in (0, 1) for example in examples[number:]])
    again = [predict(backbone, [(models[0], example)]).predictions[0] for example in examples]  # M(x) from the store
    ways: dict[str, list[Prediction]] = {
        "in a batch": together,
        "permuted": [permuted[order.index(place)] for place in range(len(order))],
        "mixed with another cue": mixed.predictions[: len(examples)],
        "a second time": again,
    }
    largest = 0.0
    for number, name in enumerate(TEXTS):
        numbers_of(alone[number], f"{case}, {family}, {name}")
        for way, predictions in ways.items():
            difference = compare(predictions[number], alone[number], f"{case}, {family}, {name}, {way}")
            largest = max(largest, difference)
    return largest


def numbers_of(prediction: Prediction, where: str) -> dict[Any, float]:
    """The probabilities of a prediction, all finite."""
    scores = dict(prediction.scores or {})
    if not scores or not all(map(math.isfinite, scores.values())):
        raise FaultError(f"{where}: scores {scores}")
    return scores


def compare(prediction: Prediction, expected: Prediction, where: str) -> float:
    """The largest difference of two predictions; too large a one is a fault."""
    scores, wanted = numbers_of(prediction, where), numbers_of(expected, where)
    difference = max(abs(scores[label] - wanted[label]) for label in wanted)
    if difference > TOLERANCE:
        raise FaultError(f"{where}: a probability differs by {difference:.2g}")
    return difference
