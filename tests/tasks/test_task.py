from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from softcue.errors import ConfigurationError
from softcue.tasks import Label, Task, library_names, library_task


def test_single_text_is_the_source() -> None:
    assert Task(name="t").source(("hello {text} %s",)) == "hello {text} %s"


def test_two_texts_follow_the_names_of_their_columns() -> None:
    assert Task(name="t", text=("premise", "claim")).source(("A.", "B.")) == "premise: A. claim: B."


def test_template_is_filled_with_the_texts() -> None:
    task = Task(name="t", text=("a", "b"), template="{{set}} is {b} after {a}? {a}")
    assert task.source(("{b}", "x")) == "{set} is x after {b}? {b}"


def test_template_accepts_any_column_name() -> None:
    task = Task(name="t", text=("review.text", "items[0]"), template="{items[0]}: {review.text}")
    assert task.source(("fine", "cup")) == "cup: fine"


@pytest.mark.parametrize(
    ("template", "complaint"),
    [
        ("{txt} {second}", "only the text columns ['first', 'second'] as fields, not ['txt']"),
        ("{} {first} {second}", "not ['']"),
        ("{first.upper} {second}", "not ['first.upper']"),
        ("{first}", "it leaves out ['second']"),
        ("no field", "it leaves out ['first', 'second']"),
        ("{first {second}", "a template with {column} fields"),
        ("{first} {second}}", "a template with {column} fields"),
        ("{first:>{second}} {second}", "plain {column} fields without a format"),
        ("{first!r} {second}", "plain {column} fields without a format"),
    ],
)
def test_bad_template_is_an_error_with_its_reason(template: str, complaint: str) -> None:
    with pytest.raises(ValidationError) as caught:
        Task(name="t", text=("first", "second"), template=template)
    assert complaint in caught.value.errors()[0]["msg"]


@pytest.mark.parametrize("columns", [(), ("a", "a"), ("",)])
def test_text_columns_are_different_names(columns: tuple[str, ...]) -> None:
    with pytest.raises(ValidationError, match="names of different text columns"):
        Task(name="t", text=columns)


def test_encoders_read_two_columns_as_they_are_and_more_as_one_text_or_by_templates() -> None:
    assert Task(name="t", text=("a", "b")).for_encoder(("A.", "B.")) == ("A.", "B.")
    three = Task(name="t", text=("a", "b", "c"))
    assert (three.for_encoder(("1", "2", "3")), three.num_sentences) == (("a: 1 b: 2 c: 3",), 1)
    worded = Task(name="t", text=("a", "b", "c"), sentences=("{c}", "{a} {b}"))
    assert (worded.for_encoder(("1", "2", "3")), worded.num_sentences) == (("3", "1 2"), 2)


def test_source_text_never_contains_the_referent() -> None:
    labels = {"true": Label(words="yes"), "false": Label(words="no")}
    task = Task(name="t", kind="referent", text=("text", "candidate"), labels=labels, positive="true")
    assert task.source(("*He* left.", "Ben")) == "*He* left."
    worded = Task(**task.model_dump() | {"template": "who: {text}"})
    assert worded.source(("a", "b")) == "who: a"
    with pytest.raises(ValidationError, match="the one for a last text"):
        Task(name="t", kind="referent", text=("text", "candidate"), labels=labels)


def test_value_of_two_labels_is_an_error() -> None:
    with pytest.raises(ValidationError, match="'1' for one label only"):
        Task(name="t", labels={"yes": Label(words="yes", also=("1",)), "no": Label(words="no", also=("1",))})


def test_values_of_data_files_are_mapped_to_labels() -> None:
    task = Task(name="t", labels={"yes": Label(words="yes", also=("1", "true")), "no": Label(words="no", also=("0",))})
    assert [task.label_of(value) for value in ("yes", "true", "0", "2")] == ["yes", "yes", "no", None]


def test_unknown_keys_are_an_error() -> None:
    values: dict[str, Any] = {"name": "t", "lables": {}}
    with pytest.raises(ValidationError, match="lables"):
        Task.model_validate(values)


@pytest.mark.parametrize("values", [{"description": "\ud800"}, {"labels": {"a": {"words": "half \ud83d"}}}])
def test_half_of_a_character_in_a_task_is_an_error(values: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="text without lone surrogates"):
        Task(name="t", **values)


def test_names_and_words_keep_the_declared_order() -> None:
    task = Task(name="t", labels={"z": Label(words="zed"), "a": Label(words="ay")})
    assert (task.label_names, task.label_words) == (("z", "a"), ("zed", "ay"))


@pytest.mark.parametrize(
    ("kind", "metric"),
    [("classification", "accuracy"), ("regression", "pearson_spearman"), ("generation", "exact_match")],
)
def test_each_kind_has_its_usual_metric(kind: Any, metric: str) -> None:
    assert Task(name="t", kind=kind).main_metric == metric
    assert Task(name="t", kind=kind, metric="word_f1").main_metric == "word_f1"


def test_task_survives_json() -> None:
    for name in library_names():
        task = library_task(name)
        assert Task.model_validate_json(task.model_dump_json()) == task
        assert tuple(Task.model_validate_json(task.model_dump_json()).labels) == task.label_names


def test_unknown_library_task_suggests_the_nearest() -> None:
    with pytest.raises(ConfigurationError) as caught:
        library_task("ticket")
    assert str(caught.value).startswith(
        "task.name: got 'ticket'; expected a task that comes with softcue; did you mean 'tickets'? known: anli, "
    )


@pytest.mark.parametrize("kind", ["span", "tags"])
def test_extractive_task_must_read_the_plain_last_text(kind: str) -> None:
    with pytest.raises(ValidationError, match="because the target is a span of it"):
        Task(name="t", kind=kind, sentences=("Find names: {text}",))  # type: ignore[arg-type]
    assert Task(name="t", kind=kind, sentences=("{text}",)).num_sentences == 1  # type: ignore[arg-type]
