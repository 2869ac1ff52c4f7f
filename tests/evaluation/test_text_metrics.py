from __future__ import annotations

import math

import pytest

from softcue.evaluation.metrics import exact_match, normalise_text, word_f1
from softcue.evaluation.scoring import legal_text, legal_value
from softcue.tasks import Label, Task
from softcue.types import Example, Prediction


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("The  Cat!", "cat"),
        ("THE\tcat\n sat ", "cat sat"),  # lower case before articles
        ("the-cat", "thecat"),  # punctuation before articles, and not for a space
        ("U.S.A.", "usa"),
        ("A.", ""),  # an article only once its point is gone
        ("theatre an-other Anthem", "theatre another anthem"),  # articles are whole words
        ("x a y", "x y"),  # spaces last
        ("“cat”", "“cat”"),  # only ASCII's punctuation goes
        ("$1,000.50", "100050"),
    ],
)
def test_normalisation_has_squads_order(text: str, expected: str) -> None:
    assert normalise_text(text) == expected


def test_exact_match_ignores_case_punctuation_articles_and_spaces() -> None:
    right = [("cat",), ("the hog",), ("other",)]
    assert exact_match(["The  Cat!", "a dog", "Another"], right) == pytest.approx(100 / 3)


def test_any_right_answer_will_do() -> None:
    # SQuAD v1.1, dev 56be4db0acb8001400a502ed: three annotators
    right = [("Santa Clara, California", "Levi's Stadium", "Levi's Stadium in Santa Clara")]
    assert exact_match(["Levis stadium"], right) == 100.0
    assert exact_match(["Levi's Stadium in California"], right) == 0.0


@pytest.mark.parametrize(
    ("guess", "right", "expected"),
    [
        ("the black cat", ("a cat",), 2 / 3),  # precision 1/2, recall 1
        ("cat cat dog", ("cat",), 0.5),  # a word counts as often as it is wanted
        ("cat cat dog", ("cat cat",), 0.8),
        ("dog", ("cat",), 0.0),
        ("", ("cat",), 0.0),
        ("cat", ("the",), 0.0),
        ("Cat.", ("cat",), 1.0),
        # words in common: 2 of 4 and 3, 3 of 4 and 5; the best, wherever it stands
        ("levis stadium in california", ("Levi's old Stadium", "Stadium in Santa California city"), 2 / 3),
        ("levis stadium in california", ("Stadium in Santa California city", "nothing"), 2 / 3),
        ("cat", (), 0.0),
    ],
)
def test_word_f1_of_one_answer(guess: str, right: tuple[str, ...], expected: float) -> None:
    assert word_f1([guess], [right]) == pytest.approx(100 * expected)


def test_word_f1_is_the_mean_over_rows() -> None:
    assert word_f1(["cat", "dog"], [("cat",), ("cat",)]) == 50.0


def test_texts_that_are_empty_once_normalised_match_but_share_no_word_as_in_squad_1() -> None:
    assert exact_match(["the"], [("A!",)]) == 100.0
    assert word_f1(["the"], [("A!",)]) == 0.0  # version 2 of the script says 100


def test_answer_that_is_none_is_wrong_even_where_nothing_is_right() -> None:
    assert exact_match([None, "x"], [("the",), ("x",)]) == 50.0
    assert word_f1([None, "x"], [("None",), ("x",)]) == 50.0


def test_label_outside_the_task_is_illegal() -> None:
    task = Task(name="t", labels={"a": Label(words="ay")})
    for kind in ("classification", "referent"):
        kind_task = task.model_copy(update={"kind": kind})
        texts = [legal_text(kind_task, Prediction(label), Example(("x",))) for label in ("a", "A", "ay", "", None)]
        assert texts == ["a", None, None, None, None]
    assert legal_text(Task(name="t"), Prediction("anything"), Example(("x",))) == "anything"  # labels unknown


@pytest.mark.parametrize("kind", ["generation", "span"])
def test_text_outside_the_row_s_options_is_illegal(kind: str) -> None:
    task = Task.model_validate({"name": "t", "kind": kind})
    row = Example(("x",), answers=("Ada",), options=("Ada Lovelace", "the Analytical Engine"))
    texts = ["ada lovelace.", "analytical  engine", "Ada", "", None]
    assert [legal_text(task, Prediction(text), row) for text in texts] == [*texts[:2], None, None, None]
    assert legal_text(task, Prediction(""), Example(("x",))) == ""  # without options every text is an answer


def test_number_must_be_there_and_finite() -> None:
    values = [0.0, -3.5, None, math.nan, math.inf]
    assert [legal_value(Prediction("x", value=value)) for value in values] == [0.0, -3.5, None, None, None]
