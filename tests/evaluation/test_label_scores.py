"""Scores of each label and the confusion matrix, against scikit-learn and by hand."""

from __future__ import annotations

import random
from xml.etree import ElementTree

import pytest
from sklearn.metrics import classification_report
from sklearn.metrics import confusion_matrix as count_pairs

from softcue.evaluation import Evaluation, count_rows, score, wrong_rows
from softcue.tasks import Label, Task
from softcue.types import Example, Prediction, Span

NAMES = ["a", "b", "c"]


def labelled(*names: str, **settings: object) -> Task:
    return Task.model_validate({"name": "t", "labels": {name: Label(words=name) for name in names}, **settings})


def evaluation_of(task: Task, predicted: list[str | None], true: list[str]) -> Evaluation:
    examples = [Example((f"text {number}",), target) for number, target in enumerate(true)]
    return score(task, [Prediction(label) for label in predicted], examples)


def test_scores_of_labels_and_matrix_are_those_of_scikit_learn() -> None:
    drawn = random.Random(0)
    true = [drawn.choice(NAMES) for _ in range(200)]
    predicted: list[str | None] = [drawn.choice([label, *NAMES]) for label in true]
    evaluation = evaluation_of(labelled(*NAMES), predicted, true)
    report = classification_report(true, predicted, labels=NAMES, output_dict=True)
    for label in NAMES:
        scores = evaluation.by_label[label]
        assert scores.precision == pytest.approx(100 * report[label]["precision"])
        assert scores.recall == pytest.approx(100 * report[label]["recall"])
        assert scores.f1 == pytest.approx(100 * report[label]["f1-score"])
        assert scores.support == report[label]["support"] == true.count(label)
        assert scores.num_predicted == predicted.count(label)
    assert evaluation.confusion is not None
    assert evaluation.confusion.predicted == evaluation.confusion.labels == tuple(NAMES)
    assert [list(row) for row in evaluation.confusion.counts] == count_pairs(true, predicted, labels=NAMES).tolist()
    macro = sum(scores.f1 or 0.0 for scores in evaluation.by_label.values()) / 3
    assert evaluation.scores["macro_f1"] == pytest.approx(macro)


def test_illegal_predictions_have_a_column_and_count_as_misses() -> None:
    evaluation = evaluation_of(labelled("a", "b"), ["a", "nonsense", None, "b"], ["a", "a", "b", "b"])
    assert evaluation.confusion is not None
    assert evaluation.confusion.predicted == ("a", "b", "(illegal)")
    assert evaluation.confusion.counts == ((1, 0, 1), (0, 1, 1))
    assert evaluation.by_label["a"].recall == 50.0
    assert evaluation.by_label["b"].precision == 100.0
    assert evaluation.confusion.as_csv().splitlines() == ["true,a,b,(illegal)", "a,1,0,1", "b,0,1,1"]


def test_a_label_without_rows_or_predictions_has_no_score_rather_than_zero() -> None:
    by_label = evaluation_of(labelled(*NAMES), ["a", "a"], ["a", "b"]).by_label
    assert (by_label["b"].precision, by_label["b"].recall, by_label["b"].f1) == (None, 0.0, 0.0)
    assert (by_label["c"].precision, by_label["c"].recall, by_label["c"].f1) == (None, None, None)


def test_true_labels_that_the_task_does_not_have_come_last() -> None:
    evaluation = evaluation_of(labelled("b"), ["b", "b"], ["b", "a"])
    assert evaluation.confusion is not None
    assert evaluation.confusion.labels == ("b", "a")
    assert evaluation.confusion.counts == ((1, 0), (1, 0))


def test_referents_have_a_matrix_too() -> None:
    task = labelled("true", "false", kind="referent", positive="true", text=("text", "name"))
    evaluation = evaluation_of(task, ["true", "the cat"], ["true", "false"])
    assert evaluation.confusion is not None
    assert evaluation.confusion.counts == ((1, 0, 0), (0, 0, 1))


def test_labels_of_tags_are_scored_by_spans() -> None:
    task = labelled("PER", "LOC", kind="tags")
    text = "Ada went to Rome and Oslo"
    true = [Example((text,), spans=(Span(0, 3, "PER"), Span(12, 16, "LOC"), Span(21, 25, "LOC")))]
    predictions = [Prediction(None, spans=(Span(0, 3, "PER"), Span(12, 16, "LOC"), Span(4, 8, "PER")))]
    evaluation = score(task, predictions, true)
    person, place = evaluation.by_label["PER"], evaluation.by_label["LOC"]
    assert (person.precision, person.recall, person.support, person.num_predicted) == (50.0, 100.0, 1, 2)
    assert (place.precision, place.recall, place.support, place.num_predicted) == (100.0, 50.0, 2, 1)
    assert evaluation.confusion is None
    assert evaluation.support_unit == "spans"
    assert "Oslo (LOC)" in wrong_rows(task, predictions, true)[0].true


def test_tasks_without_classes_have_neither() -> None:
    evaluation = score(Task(name="t", kind="generation"), [Prediction("x")], [Example(("a",), "x")])
    assert (evaluation.by_label, evaluation.confusion) == ({}, None)
    assert evaluation.as_dict()["confusion"] is None


def test_an_evaluation_prints_its_scores_with_the_number_of_rows() -> None:
    few = evaluation_of(labelled("a", "b"), ["a", None], ["a", "b"])
    assert repr(few).startswith("Evaluation(accuracy 50.0, ")
    assert "2 rows: fewer than 30, 1 illegal" in repr(few)
    many = evaluation_of(labelled("a", "b"), ["a", "b"] * 30, ["a", "b"] * 30)
    assert repr(many) == "Evaluation(accuracy 100.0, macro_f1 100.0, matthews 100.0; 60 rows)"
    assert [line.split() for line in str(many).splitlines()[1:]] == [
        ["label", "precision", "recall", "f1", "rows"],
        ["a", "100.0", "100.0", "100.0", "30"],
        ["b", "100.0", "100.0", "100.0", "30"],
    ]


def test_few_rows_are_said_to_be_few() -> None:
    assert [count_rows(number) for number in (0, 29, 30)] == [
        "0 rows: fewer than 30",
        "29 rows: fewer than 30",
        "30 rows",
    ]
    assert [count_rows(number, unit="") for number in (None, 29, 30)] == ["unknown", "29 (few)", "30"]


def test_html_of_an_evaluation_is_well_formed_and_escapes_labels() -> None:
    evaluation = evaluation_of(labelled("a<b>", "c&d"), ["a<b>", None], ["a<b>", "c&d"])
    page = evaluation._repr_html_()
    ElementTree.fromstring(f"<body>{page}</body>")
    assert "a&lt;b&gt;" in page and "a<b>" not in page
    assert "2 (few)" in page


def test_wrong_rows_come_with_the_most_confident_first() -> None:
    task = labelled("a", "b")
    examples = [Example((f"text {number}",), "a") for number in range(5)]
    confidences = [0.7, 0.2, 0.95, 0.6]
    predictions = [Prediction("b" if p > 0.5 else "a", scores={"a": 1 - p, "b": p}) for p in confidences]
    wrong = wrong_rows(task, [*predictions, Prediction("nonsense")], examples, limit=10)
    assert [(row.number, row.score) for row in wrong] == [(3, 0.95), (1, 0.7), (4, 0.6), (5, None)]
    assert wrong[-1].predicted == "nonsense (illegal)"
    assert [row.number for row in wrong_rows(task, predictions, examples[:4], limit=1)] == [3]


def test_wrong_numbers_come_with_the_largest_error_first() -> None:
    task = Task(name="t", kind="regression")
    examples = [Example(("x",), target) for target in (1.0, 2.0, 3.0)]
    predictions = [Prediction(None, value=value) for value in (1.5, 2.0, 9.0)]
    assert [(row.true, row.predicted, row.score) for row in wrong_rows(task, predictions, examples)] == [
        ("3", "9", 6.0),
        ("1", "1.5", 0.5),
    ]
