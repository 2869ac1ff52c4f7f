"""Baselines: the most frequent label or set, the backbone without training (zero-shot), a linear probe."""

from __future__ import annotations

import hashlib
import math
import warnings
from array import array
from collections import Counter, OrderedDict
from collections.abc import Mapping, Sequence
from statistics import fmean
from weakref import WeakKeyDictionary

import torch

from softcue.backbones import Backbone
from softcue.errors import ConfigurationError, SoftcueError
from softcue.evaluation.report import BASELINES, Evaluation, evaluate, score
from softcue.evaluation.scoring import format_score
from softcue.inference import PreparedRequests, TaskModel, make_task_model, predict
from softcue.methods import METHODS
from softcue.readouts import ReadoutConfig
from softcue.sentence_vectors import SentenceVector, sentence_vectors_of
from softcue.tasks import Task
from softcue.types import ConstantPrediction, Example, Prediction

KEPT_SPLITS = 64  # whose zero-shot predictions are kept for a backbone: those of validation and test rows of 32 tasks
_kept_predictions: WeakKeyDictionary[Backbone, OrderedDict[str, list[Prediction]]] = WeakKeyDictionary()
MAX_RANKED_LABELS = 32  # a backbone that writes text reads each label of each row: more labels take too long


def predict_baselines(
    backbone: Backbone,
    task: Task,
    constant: ConstantPrediction,
    examples: Sequence[Example],
    batch_size: int = 64,
    sentinel: bool = False,
) -> dict[str, list[Prediction]]:
    """Predictions to compare a cue's with, by the keys of `BASELINES`; those that the task does not have are left out.

    - `majority_class`: always the most frequent label of the training rows; `constant` says which one.
    - `majority_set`: always the most frequent set of labels (multi-label), also as `constant`.
    - `all_labels`: always all labels (multi-label). Where rows have many labels, it has a high F1.
    - `mean_target`: always the mean of the training rows' targets (regression), also as `constant`.
    - `zero_shot`: the backbone without training. Left out for tasks without classes: an encoder has no prediction
      there, and other backbones would write text without an end, many times as long as a trained cue. For the same
      reason left out on backbones that write text if a task has more than 32 labels or asks for a referent. With
      `sentinel` the labels are ranked behind a sentinel, as a cue with `readout.sentinel` ranks them.

    They change no random state. Zero-shot predictions are kept while the backbone is loaded: the runs of a study score
    the same rows with them again and again. A zero-shot pass that fails, for example for lack of memory, is left out
    with a warning: a finished run keeps its cue.

    Example:
        predict_baselines(backbone, task, constant_prediction(task, splits.train), splits.test)["zero_shot"][0].label
    """
    predictions: dict[str, list[Prediction]] = {}
    if isinstance(constant, str) and task.has_classes:
        predictions["majority_class"] = [Prediction(constant)] * len(examples)
    elif isinstance(constant, tuple):
        predictions["majority_set"] = [Prediction(None, labels=constant)] * len(examples)
        predictions["all_labels"] = [Prediction(None, labels=task.label_names)] * len(examples)
    elif constant is not None and task.kind == "regression":
        predictions["mean_target"] = [Prediction(None, value=float(constant))] * len(examples)
    if task.labels and not why_no_zero_shot(backbone.kind, task):
        try:
            predictions["zero_shot"] = _kept_zero_shot(backbone, task, examples, batch_size, sentinel)
        except (SoftcueError, torch.OutOfMemoryError) as error:
            warnings.warn(f"no zero-shot score: {error}", stacklevel=2)
    return predictions


def _kept_zero_shot(
    backbone: Backbone, task: Task, examples: Sequence[Example], batch_size: int, sentinel: bool
) -> list[Prediction]:
    """Zero-shot predictions, computed once for the same backbone, task and rows."""
    if not backbone.is_frozen:  # its weights may change
        return zero_shot_predictions(backbone, task, examples, batch_size, sentinel)
    facts = (task.model_dump_json(), list(examples), batch_size, sentinel)
    key = hashlib.sha256(repr(facts).encode("utf-8", "surrogatepass")).hexdigest()
    kept = _kept_predictions.setdefault(backbone, OrderedDict())
    if key not in kept:
        kept[key] = zero_shot_predictions(backbone, task, examples, batch_size, sentinel)
    kept.move_to_end(key)
    while len(kept) > KEPT_SPLITS:
        kept.popitem(last=False)
    return list(kept[key])


def constant_prediction(task: Task, train: Sequence[Example]) -> ConstantPrediction:
    """The best prediction that ignores the text: the most frequent label or set, or the mean target; else None.

    Of equally frequent labels, the first in the task's order is taken; of sets, the first among the rows.

    Example:
        >>> from softcue.tasks import Label
        >>> task = Task(name="t", labels={"a": Label(words="a"), "b": Label(words="b")})
        >>> constant_prediction(task, [Example(("x",), "b"), Example(("y",), "b"), Example(("z",), "a")])
        'b'
    """
    if task.kind == "multi-label" and train:
        return Counter(example.labels for example in train).most_common(1)[0][0]
    targets = (example.target for example in train if example.target is not None)
    if task.has_classes:
        counts = Counter(map(str, targets))
        return max([*task.label_names, *sorted(counts)], key=lambda label: counts[label]) if counts else None
    if task.kind == "regression":
        numbers = array("d", map(float, targets))
        return fmean(numbers) if numbers else None
    return None


def describe_better_baselines(task: Task, evaluation: Evaluation, baselines: Mapping[str, Mapping[str, float]]) -> str:
    """Return a warning about an evaluation below the zero-shot score, or not above a constant prediction; else empty.

    `baselines` are scores on the same rows, by the keys of `BASELINES`. Rows that all have one label say nothing.

    Example:
        >>> from softcue.tasks import Label
        >>> task = Task(name="t", labels={"a": Label(words="a"), "b": Label(words="b")}, metric="accuracy")
        >>> rows = [Example(("x",), "a"), Example(("y",), "b")]
        >>> evaluation = score(task, [Prediction("b"), Prediction("b")], rows)
        >>> describe_better_baselines(task, evaluation, {"zero_shot": {"accuracy": 60.0}})
        'accuracy is 50.0 on 2 validation rows, below zero-shot (60.0): other settings or another method may do better'
    """
    if evaluation.num_true_labels == 1:
        return ""
    below, not_above = [], []
    for key, scores in baselines.items():
        values = [scores.get(metric) for metric in task.main_metrics]
        numbers = [value for value in values if value is not None and math.isfinite(value)]
        if len(numbers) < len(values):
            continue
        main = fmean(numbers)
        text = f"{BASELINES.get(key, key)} ({format_score(task.main_metric, main)})"
        if evaluation.main < main:
            below.append(text)
        elif evaluation.main == main and key != "zero_shot":
            not_above.append(text)
    parts = ([f"below {' and '.join(below)}"] if below else []) + (
        [f"not above {' and '.join(not_above)}"] if not_above else []
    )
    if not parts:
        return ""
    main_score = format_score(task.main_metric, evaluation.main)
    return (
        f"{task.main_metric} is {main_score} on {evaluation.num_rows:,} validation rows, {', '.join(parts)}: "
        "other settings or another method may do better"
    )


def zero_shot(backbone: Backbone, task: Task, examples: Sequence[Example], sentinel: bool = False) -> Evaluation:
    """Score the backbone without training: it ranks the labels; an encoder takes the nearest label description.

    With `sentinel`, an encoder-decoder ranks them behind `<extra_id_0>`.

    Example:
        zero_shot(backbone, library_task("tickets"), examples).main
    """
    return score(task, zero_shot_predictions(backbone, task, examples, sentinel=sentinel), examples)


def zero_shot_predictions(
    backbone: Backbone, task: Task, examples: Sequence[Example], batch_size: int = 64, sentinel: bool = False
) -> list[Prediction]:
    """Predict with the backbone as it is; with `sentinel`, labels are ranked behind a sentinel.

    Example:
        zero_shot_predictions(backbone, library_task("tickets"), examples)[0].label
    """
    if task.kind == "multi-label" or (backbone.kind == "encoder" and not task.has_classes):
        raise ConfigurationError(
            setting="task.kind",
            got=task.kind,
            expected="a task with one label per row",
            fix=why_no_zero_shot(backbone.kind, task),
        )
    if is_constant_zero_shot(backbone.kind, task):
        return [Prediction(task.label_names[0])] * len(examples)
    if backbone.kind == "encoder":
        pooling = SentenceVector("backbone", backbone.default_pooling)
        texts = sentence_vectors_of(pooling, backbone, task, examples, batch_size=batch_size)  # [N D]
        described = [Example((f"{label.words}: {label.description}".rstrip(": "),)) for label in task.labels.values()]
        labels = sentence_vectors_of(pooling, backbone, task, described)  # [C D]
        cosines = torch.nn.functional.normalize(texts, dim=1) @ torch.nn.functional.normalize(labels, dim=1).T
        return [Prediction(task.label_names[index]) for index in cosines.argmax(dim=1).tolist()]
    readout = ReadoutConfig(sentinel=sentinel)
    model = _baseline("no-prompt", readout, backbone, task).to(backbone.device).eval()
    return predict(backbone, [(model, example) for example in examples], batch_size).predictions


def is_constant_zero_shot(backbone_kind: str, task: Task) -> bool:
    """Whether zero-shot always predicts the first label: nothing in an encoder alone relates two texts to a label.

    Example:
        >>> is_constant_zero_shot("encoder", Task(name="t", text=("first", "second")))
        True
    """
    return backbone_kind == "encoder" and task.num_sentences == 2


def why_no_zero_shot(backbone_kind: str, task: Task) -> str:
    """Why there is no zero-shot score; empty if there is one, which costs about as much as the score of a cue.

    Example:
        >>> why_no_zero_shot("encoder", Task(name="t", kind="regression"))
        'an encoder without training has no prediction for regression'
    """
    if task.kind == "multi-label":
        return "a backbone without training has no probability for each label of a set"
    if backbone_kind == "encoder":
        return "" if task.has_classes else f"an encoder without training has no prediction for {task.kind}"
    if task.kind != "classification":
        return f"a backbone that writes text for {task.kind} does not know where to end before it is trained"
    if len(task.labels) > MAX_RANKED_LABELS:
        return f"ranking {len(task.labels)} labels takes too long (at most {MAX_RANKED_LABELS})"
    return ""


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
    model = _baseline("linear-probe", ReadoutConfig(name="classifier"), backbone, task)
    closed_form_solutions = model.method.closed_form_solutions(
        model.readout, model.rows(backbone, train, with_target=True)
    )
    assert closed_form_solutions is not None
    prepared = PreparedRequests.of(backbone, [(model, example) for example in validation])
    best, best_score = model.state_dict(), -math.inf
    for _ in closed_form_solutions:
        validation_score = score(task, predict(backbone, prepared).predictions, validation).main
        if validation_score >= best_score:  # as in training, the later of equal scores wins
            best, best_score = {name: value.clone() for name, value in model.state_dict().items()}, validation_score
    model.load_state_dict(best)
    return evaluate(backbone, model, test)


def _baseline(name: str, readout: ReadoutConfig, backbone: Backbone, task: Task) -> TaskModel:
    method = METHODS[name]
    with torch.random.fork_rng(devices=[]):  # a head draws initial values
        return make_task_model(task, (method, method.Config(name=name)), readout, backbone, None)
