"""Scores of sets of labels, against scikit-learn and by hand; baselines, ensembles and wrong rows."""

from __future__ import annotations

import random
from typing import Any

import numpy
import pytest
from sklearn import metrics as sklearn_metrics
from sklearn.preprocessing import MultiLabelBinarizer
from tiny import tiny
from toy import SET_EXAMPLES, SETS, TASK

from softcue.errors import ConfigurationError
from softcue.evaluation import constant_prediction, match_labels, mean, predict_baselines, score, vote, votes, zero_shot
from softcue.evaluation import wrong_rows as find_wrong_rows
from softcue.evaluation.baselines import why_no_zero_shot
from softcue.evaluation.scoring import ScoredRows, check_metric, metrics_of
from softcue.evaluation.wrong_rows import row_outcome
from softcue.studies.predictions import main_score
from softcue.tasks import Label, Task
from softcue.types import Example, Prediction

NAMES = ["a", "b", "c", "d"]
TOPICS = Task(name="topics", kind="multi-label", labels={name: Label(words=name) for name in NAMES})


def sets(*labels: str) -> list[Prediction]:
    return [Prediction(None, labels=tuple(row)) for row in labels]


def rows(*labels: str) -> list[Example]:
    return [Example((f"text {number}",), labels=tuple(row)) for number, row in enumerate(labels)]


def drawn(seed: int, num_rows: int, never: str = "") -> tuple[list[Prediction], list[Example]]:
    """Predictions with probabilities, and rows; many sets are empty, and one label may never occur."""
    draw = random.Random(seed)
    predictions, examples = [], []
    for number in range(num_rows):
        scores = {name: 0.0 if name == never else round(draw.random() ** 2, 2) for name in NAMES}
        chosen = tuple(name for name, value in scores.items() if value >= 0.5)
        true = tuple(name for name in NAMES if name != never and draw.random() < 0.3)
        predictions.append(Prediction(None, scores=scores, labels=chosen))
        examples.append(Example((f"text {number}",), labels=true))
    return predictions, examples


@pytest.mark.parametrize("never", ["", "d"])
@pytest.mark.parametrize("seed", range(4))
def test_metrics_are_those_of_scikit_learn(seed: int, never: str) -> None:
    predictions, examples = drawn(seed, 40, never)
    binarizer = MultiLabelBinarizer(classes=NAMES)
    true = binarizer.fit_transform([example.labels for example in examples])
    predicted = binarizer.transform([prediction.labels for prediction in predictions])
    probabilities = numpy.array([list((prediction.scores or {}).values()) for prediction in predictions])
    expected = {
        "micro_f1": sklearn_metrics.f1_score(true, predicted, average="micro", zero_division=0),
        "macro_f1": sklearn_metrics.f1_score(true, predicted, average="macro", zero_division=0),
        "samples_f1": sklearn_metrics.f1_score(true, predicted, average="samples", zero_division=1),
        "subset_accuracy": sklearn_metrics.accuracy_score(true, predicted),
        "average_precision": sklearn_metrics.average_precision_score(true, probabilities, average="micro"),
    }
    evaluation = score(TOPICS, predictions, examples)
    assert evaluation.scores == pytest.approx({name: 100 * value for name, value in expected.items()})
    assert evaluation.main == evaluation.scores["micro_f1"]
    precisions, recalls, f1s, supports = sklearn_metrics.precision_recall_fscore_support(
        true, predicted, zero_division=numpy.nan
    )
    for number, name in enumerate(NAMES):
        label = evaluation.by_label[name]
        for value, wanted in ((label.precision, precisions), (label.recall, recalls), (label.f1, f1s)):
            assert (value is None) == numpy.isnan(wanted[number])
            assert value is None or value == pytest.approx(100 * wanted[number])
        assert (label.support, label.num_predicted) == (supports[number], predicted[:, number].sum())


def test_metrics_by_hand() -> None:
    evaluation = score(TOPICS, sets("ab", "a", "", "c"), rows("a", "ab", "", ""))
    # a: 2 of 2 right. b: predicted once, true once, never right. c: predicted once. d: never.
    assert evaluation.scores["micro_f1"] == pytest.approx(100 * 2 * 2 / (4 + 3))
    assert evaluation.scores["macro_f1"] == 25.0
    assert evaluation.scores["samples_f1"] == pytest.approx((200 / 3 + 200 / 3 + 100 + 0) / 4)
    assert evaluation.scores["subset_accuracy"] == 25.0
    assert evaluation.by_label["d"].as_dict() == {
        "precision": None,
        "recall": None,
        "f1": None,
        "support": 0,
        "num_predicted": 0,
    }
    assert evaluation.confusion is None and evaluation.num_illegal == 0
    assert evaluation.predicted_labels == {"(none)": 1, "a": 1, "a, b": 1, "c": 1}
    assert "a      " in str(evaluation) and evaluation.support_unit == "rows"
    assert evaluation.as_dict()["by_label"]["a"]["f1"] == 100.0
    assert "<table" in evaluation._repr_html_()


def test_rows_without_any_label_have_scores() -> None:
    evaluation = score(TOPICS, sets("", ""), rows("", ""))
    assert evaluation.scores == {
        "macro_f1": 0.0,
        "micro_f1": 0.0,
        "samples_f1": 100.0,
        "subset_accuracy": 100.0,
        "average_precision": 0.0,
    }


def test_a_label_that_the_task_does_not_have_is_illegal_and_wrong() -> None:
    evaluation = score(TOPICS, [Prediction(None, labels=("a", "z"))], rows("a"))
    assert (evaluation.num_illegal, evaluation.scores["subset_accuracy"]) == (1, 0.0)
    assert evaluation.scores["micro_f1"] == pytest.approx(200 / 3)


def test_a_task_may_name_metrics_of_sets_only() -> None:
    assert metrics_of("multi-label") == ("macro_f1", "micro_f1", "samples_f1", "subset_accuracy", "average_precision")
    check_metric(TOPICS.model_copy(update={"metric": "macro_f1+subset_accuracy"}))
    with pytest.raises(ConfigurationError, match="expected a metric for multi-label"):
        check_metric(TOPICS.model_copy(update={"metric": "accuracy"}))
    with pytest.raises(ConfigurationError, match=r"or set task.kind=multi-label"):
        check_metric(TASK.model_copy(update={"metric": "subset_accuracy"}))


def test_the_same_set_for_every_row_is_a_collapse() -> None:
    for predicted in (("ab", "ab"), ("", "")):
        evaluation = score(TOPICS, sets(*predicted), rows("a", "b"))
        assert evaluation.has_collapsed
    assert evaluation.collapse_note == "every row is predicted as '(none)': this cue has learned nothing"
    assert not score(TOPICS, sets("ab", "a"), rows("a", "b")).has_collapsed
    assert not score(TOPICS, sets("a", "a"), rows("a", "a")).has_collapsed


def test_baselines_are_the_most_frequent_set_and_all_labels() -> None:
    assert constant_prediction(TOPICS, rows("ab", "a", "", "ab")) == ("a", "b")
    assert constant_prediction(TOPICS, rows("", "a", "")) == ()
    assert constant_prediction(TOPICS, []) is None
    for family in ("bert", "t5", "gpt2"):
        predictions = predict_baselines(tiny(family), SETS, ("b",), SET_EXAMPLES)
        assert set(predictions) == {"majority_set", "all_labels"}
        assert predictions["majority_set"][0].labels == ("b",)
        assert predictions["all_labels"][4].labels == ("a", "b", "c")
        assert "no probability for each label" in why_no_zero_shot(tiny(family).kind, SETS)
        with pytest.raises(ConfigurationError, match=r"expected a task with one label per row; .* no probability"):
            zero_shot(tiny(family), SETS, SET_EXAMPLES)
    scores = score(SETS, predictions["all_labels"], SET_EXAMPLES).scores
    assert scores["micro_f1"] == pytest.approx(100 * 2 * 7 / (15 + 7))  # 7 labels in 5 rows of 3


def test_wrong_rows_come_in_the_order_of_their_worst_label() -> None:
    predictions = [
        Prediction(None, scores={"a": 0.6, "b": 0.2}, labels=("a",)),
        Prediction(None, scores={"a": 0.9, "b": 0.2}, labels=("a",)),
        Prediction(None, scores={"a": 0.7, "b": 0.05}, labels=("a",)),
    ]
    wrong = find_wrong_rows(TOPICS, predictions, rows("", "a", "ab"))
    assert [(row.number, row.true, row.predicted, row.score) for row in wrong] == [
        (3, "a, b", "a", 0.95),
        (1, "(none)", "a", 0.6),
    ]
    assert row_outcome(TOPICS, sets("ba")[0], rows("ab")[0]).is_right  # order says nothing


def test_rows_can_be_drawn_again_for_intervals() -> None:
    predictions, examples = drawn(1, 12)
    scored = ScoredRows.of(TOPICS, predictions, examples)
    again = [3, 3, 7]
    expected = score(TOPICS, [predictions[n] for n in again], [examples[n] for n in again]).main
    assert main_score(scored, numpy.array(again)) == pytest.approx(expected)


def prediction(threshold: float = 0.5, **scores: float) -> Prediction:
    labels = tuple(name for name, value in scores.items() if value >= threshold)
    return Prediction(None, scores=scores, labels=labels, threshold=threshold)


def test_an_ensemble_votes_on_each_label_or_takes_mean_probabilities() -> None:
    cues = [prediction(a=0.9, b=0.6, c=0.1), prediction(a=0.6, b=0.3, c=0.2), prediction(a=0.1, b=0.55, c=0.9)]
    assert vote(cues).labels == ("a", "b")
    assert votes(cues) == {"a": 2, "b": 2, "c": 1}
    joined = mean(cues)
    assert joined.labels == ("a",)
    assert joined.scores == pytest.approx({"a": 1.6 / 3, "b": 1.45 / 3, "c": 0.4})
    halves = [prediction(a=0.9, b=0.6), prediction(a=0.4, b=0.3)]
    assert vote(halves).labels == ("a",)  # one of two each: the mean probability decides
    assert vote(sets("ab", "a")).labels == ("a",)
    with pytest.raises(ConfigurationError, match="without probabilities"):
        mean(sets("ab", "a"))


def test_the_mean_of_cues_is_compared_with_the_mean_of_their_thresholds() -> None:
    low = [prediction(0.2, a=0.3, b=0.1), prediction(0.4, a=0.35, b=0.2)]
    assert (mean(low).labels, mean(low).threshold) == (("a",), pytest.approx(0.3))
    typed = [Prediction(None, scores={1: 0.9}, labels=(1,)), Prediction(None, scores={"1": 0.8}, labels=("1",))]
    assert vote(typed).labels == mean(typed).labels == (1,)


def test_sets_are_scored_in_the_labels_of_another_task() -> None:
    fine: dict[str, Any] = {
        "rain": Label(words="rain", means=("weather",)),
        "sun": Label(words="sun", means=("weather",)),
        "goal": Label(words="goal", means=("sport",)),
    }
    coarse = {"sport": Label(words="sport"), "weather": Label(words="weather")}
    finer = Task(name="fine", kind="multi-label", labels=fine)
    coarser = Task(name="coarse", kind="multi-label", labels=coarse)
    predicted = Prediction(None, scores={"rain": 0.7, "sun": 0.9, "goal": 0.1}, labels=("rain", "sun"))
    [mapped], _ = match_labels(finer, coarser).map_labels([predicted], [])
    assert (mapped.labels, mapped.scores) == (("weather",), {"weather": 0.9, "sport": 0.1})
    evaluation = match_labels(finer, coarser).score([predicted], [Example(("x",), labels=("weather",))])
    assert evaluation.scores["subset_accuracy"] == 100.0
    _, [example] = match_labels(coarser, finer).map_labels([], [Example(("x",), labels=("rain", "sun", "goal"))])
    assert set(example.labels) == {"weather", "sport"}
    with pytest.raises(ConfigurationError, match="a task for multi-label, not classification"):
        match_labels(finer, coarser.model_copy(update={"kind": "classification"}))
