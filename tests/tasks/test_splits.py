"""The rows of a run, from settings and sources to checked splits."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pandas
import pytest

from softcue.errors import ConfigurationError, DataError
from softcue.tasks import Task, library_task, sample, splits
from softcue.tasks.splits import (
    Splits,
    TaskConfig,
    copies_notes,
    is_task_name,
    limit_rows,
    read_splits,
    read_splits_of_each,
    resolve_task,
)
from softcue.types import Example

ROWS = [{"text": f"text {number}", "label": "ab"[number % 2]} for number in range(20)]
OTHERS = [{"text": f"other {number}", "label": "ab"[number % 2]} for number in range(6)]


def write_rows(path: Path, rows: list[dict[str, str]]) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def write_task(folder: Path, stem: str = "toy", **values: Any) -> str:
    path = folder / f"{stem}.yaml"
    path.write_text(json.dumps({"labels": {label: {"words": label} for label in "ab"}} | values))
    return str(path)


def texts(examples: list[Example]) -> list[str]:
    return [example.texts[0] for example in examples]


def error_of(config: TaskConfig, objects: dict[str, Any] | None = None) -> str:
    with pytest.raises(ConfigurationError) as caught:
        read_splits(config, objects or {})
    return str(caught.value)


# --- where the rows of each split come from ---


@pytest.mark.parametrize("make", [list, pandas.DataFrame])
def test_rows_in_memory_are_split_as_rows_of_files(tmp_path: Path, make: Any) -> None:
    train, test = write_rows(tmp_path / "train.jsonl", ROWS), write_rows(tmp_path / "test.jsonl", OTHERS)
    in_memory = read_splits(TaskConfig(name="mine", text=("text",)), {"train": make(ROWS), "test": make(OTHERS)})
    from_files = read_splits(TaskConfig(name="mine", text=("text",), train=train, test=test), {})
    for split in ("train", "validation", "test"):
        assert getattr(in_memory, split) == getattr(from_files, split)
    assert texts(in_memory.test) == [row["text"] for row in OTHERS]


def test_rows_in_memory_replace_all_splits_of_a_library_task() -> None:
    rows = [
        {"message": f"{label} {number}", "team": label}
        for label in library_task("tickets").labels
        for number in range(4)
    ]
    result = read_splits(TaskConfig(name="tickets", text=("message",), label="team"), {"train": rows})
    assert {*texts(result.train), *texts(result.validation)} == {row["message"] for row in rows}
    assert result.test == []


def test_training_file_replaces_all_splits_of_a_task_file(tmp_path: Path) -> None:
    write_rows(tmp_path / "old.jsonl", OTHERS)
    task = write_task(tmp_path, train="old.jsonl", validation="old.jsonl", test="old.jsonl")
    result = read_splits(TaskConfig(name=task, train=write_rows(tmp_path / "train.jsonl", ROWS)), {})
    assert sorted(texts(result.train + result.validation)) == sorted(row["text"] for row in ROWS)
    assert result.test == []


def test_test_file_replaces_only_the_test_split_of_a_task_file(tmp_path: Path) -> None:
    write_rows(tmp_path / "train.jsonl", ROWS)
    write_rows(tmp_path / "validation.jsonl", OTHERS[:4])
    task = write_task(tmp_path, train="train.jsonl", validation="validation.jsonl", test="missing.jsonl")
    result = read_splits(TaskConfig(name=task, test=write_rows(tmp_path / "test.jsonl", OTHERS[4:])), {})
    assert texts(result.validation) == ["other 0", "other 1", "other 2", "other 3"]
    assert texts(result.test) == ["other 4", "other 5"]


def test_data_folder_gives_the_splits_whose_files_it_has(tmp_path: Path) -> None:
    write_rows(tmp_path / "data" / "toy" / "train.jsonl", ROWS)
    write_rows(tmp_path / "data" / "toy" / "dev.jsonl", OTHERS)
    files = {"train": ["toy/train.jsonl"], "validation": ["toy/dev.jsonl"], "test": ["toy/test.jsonl"]}
    task = write_task(tmp_path, train="hub:toy@train", test="hub:toy@test", files=files)
    result = read_splits(TaskConfig(name=task, data=str(tmp_path / "data")), {})
    assert texts(result.train) == [row["text"] for row in ROWS]
    assert texts(result.validation) == [row["text"] for row in OTHERS]
    assert result.test == []  # not read from the hub either
    test = write_rows(tmp_path / "own.jsonl", OTHERS[:2])
    assert len(read_splits(TaskConfig(name=task, data=str(tmp_path / "data"), test=test), {}).test) == 2


def test_missing_training_rows_are_an_error_with_the_next_step(tmp_path: Path) -> None:
    assert error_of(TaskConfig()) == (
        "task.train: got ''; expected training rows; pass `train=FILE`, or `task=NAME` with a name of `softcue tasks`"
    )
    with_files = write_task(tmp_path, "with-files", files={"train": ["toy/*.csv", "toy.csv"]})
    assert error_of(TaskConfig(name=with_files)).endswith("pass `data=FOLDER` with toy/*.csv or toy.csv")
    test_only = write_task(tmp_path, "test-only", published={"test": {"rows": 3}})
    assert error_of(TaskConfig(name=test_only)).endswith("it is for testing only: evaluate a cue with `task=test-only`")


# --- checks, labels, sizes ---


def test_labels_come_from_training_rows_and_limit_the_other_splits() -> None:
    config = TaskConfig(label_words={"a": "first letter"}, label_descriptions={"b": "The second letter."})
    result = read_splits(config, {"train": ROWS, "validation": OTHERS})
    assert result.task.label_words == ("first letter", "b")
    assert result.task.labels["b"].description == "The second letter."
    for split in ("validation", "test"):
        with pytest.raises(DataError, match=r"row 1, column 'label': got 'c'; .* known: a, b"):
            read_splits(config, {"train": ROWS, "validation": OTHERS, split: [{"text": "x", "label": "c"}]})


def test_missing_column_of_any_split_lists_the_columns() -> None:
    for split in ("train", "validation", "test"):
        objects = {"train": ROWS, "validation": OTHERS, split: [{"txt": "x", "label": "a"}]}
        with pytest.raises(DataError, match=r"^row 1, column 'text': got 'no such column'; .* known: label, txt$"):
            read_splits(TaskConfig(), objects)


def test_bad_rows_of_all_splits_are_skipped_on_request() -> None:
    bad_row = {"text": "", "label": "a"}
    objects = {"train": [*ROWS, bad_row], "validation": [*OTHERS, bad_row], "test": [bad_row, *OTHERS]}
    with pytest.raises(DataError, match="row 21, column 'text'"):
        read_splits(TaskConfig(), objects)
    with pytest.warns(UserWarning, match="skipped 1 of") as caught:
        result = read_splits(TaskConfig(skip_bad_rows=True), objects)
    assert len(caught) == 3
    assert [len(rows) for rows in (result.train, result.validation, result.test)] == [20, 6, 6]


@pytest.mark.parametrize(("share", "num_validation"), [(0.1, 2), (0.5, 10)])
def test_validation_share_is_held_out_of_every_class(share: float, num_validation: int) -> None:
    result = read_splits(TaskConfig(validation_share=share), {"train": ROWS})
    assert Counter(row.target for row in result.validation) == dict.fromkeys("ab", num_validation // 2)
    assert sorted(texts(result.train + result.validation)) == sorted(row["text"] for row in ROWS)


def test_too_few_rows_to_hold_out_are_an_error() -> None:
    rows = [{"text": "x", "label": "a"}, {"text": "y", "label": "b"}]
    assert error_of(TaskConfig(), {"train": rows}) == (
        "task.validation: got ''; expected validation rows; "
        "pass `validation=FILE`: too few training rows to hold any out"
    )


def test_sizes_limit_every_split_by_the_seed() -> None:
    objects = {"train": ROWS, "validation": ROWS, "test": ROWS}
    sizes = {"train_rows": 8, "validation_rows": 5, "test_rows": 3}

    def read(seed: int) -> Splits:
        return read_splits(TaskConfig.model_validate(sizes | {"sample_seed": seed}), objects)

    assert [len(rows) for rows in (read(0).train, read(0).validation, read(0).test)] == [8, 5, 3]
    assert read(0) == read(0) != read(1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"kind": "generation", "text": ("text", "label"), "swap_pairs": True},
            "task.swap_pairs: got True; expected a task with labels or scores, not generation; leave it out",
        ),
        (
            {"kind": "tags", "stratified": True},
            "task.stratified: got True; expected a task with classes, not tags; leave it out",
        ),
    ],
)
def test_sampling_that_does_not_fit_the_task_is_an_error_before_any_row_is_read(
    settings: dict[str, Any], message: str
) -> None:
    assert error_of(TaskConfig(train="missing.csv", **settings)) == message


# --- large files ---


@pytest.fixture
def all_files_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "MIN_STREAMED_BYTES", 0)


@pytest.mark.usefixtures("all_files_are_large")
def test_streamed_sample_equals_the_sample_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    task = write_task(tmp_path)
    files = {
        "train": write_rows(tmp_path / "train.jsonl", ROWS),
        "validation": write_rows(tmp_path / "v.jsonl", OTHERS),
    }
    config = TaskConfig(name=task, train_rows=7, sample_seed=3, **files)
    streamed = read_splits(config, {})
    monkeypatch.setattr(splits, "sample_examples", lambda *_: pytest.fail("streamed"))
    in_memory = read_splits(config, {"train": ROWS, "validation": OTHERS})
    assert len(streamed.train) == 7
    assert streamed == in_memory


@pytest.mark.usefixtures("all_files_are_large")
@pytest.mark.parametrize(
    "settings",
    [
        {"train_rows": 0},
        {"stratified": True},
        {"validation": ""},
        {"train_rows": 0, "few_shot": 4, "validation_rows": 3},
        {"name": "unknown-labels", "text": ("text",)},
    ],
)
def test_file_is_loaded_if_more_than_the_sample_is_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    monkeypatch.setattr(splits, "sample_examples", lambda *_: pytest.fail("streamed"))
    base = {"name": write_task(tmp_path), "train": write_rows(tmp_path / "train.jsonl", ROWS), "train_rows": 8}
    base["validation"] = write_rows(tmp_path / "validation.jsonl", OTHERS)
    result = read_splits(TaskConfig.model_validate(base | settings), {})
    assert {row.target for row in result.train} == {"a", "b"}


# --- several tasks ---


def test_cap_limits_training_and_validation_rows_of_each_task() -> None:
    tickets, urgency = read_splits_of_each(TaskConfig(), ["tickets", "urgency"], cap=30)
    for result in (tickets, urgency):
        assert (len(result.train), len(result.validation)) == (30, 30)
    assert (tickets.task.name, urgency.task.name) == ("tickets", "urgency")
    assert len(tickets.test) == len(read_splits(TaskConfig(name="tickets"), {}).test)


def test_settings_below_the_cap_apply_to_each_task() -> None:
    config = TaskConfig(train_rows=12, validation_rows=500, test_rows=5, sample_seed=2)
    for result in read_splits_of_each(config, ["tickets", "urgency"], cap=40):
        assert [len(rows) for rows in (result.train, result.validation, result.test)] == [12, 40, 5]
        alone = TaskConfig(name=result.task.name, train_rows=12, validation_rows=40, test_rows=5, sample_seed=2)
        assert read_splits(alone, {}) == result


def test_few_shot_sizes_are_not_capped() -> None:
    config = TaskConfig(few_shot=20, validation_rows=25, stratified=True)
    for result in read_splits_of_each(config, ["tickets", "urgency"], cap=10):
        assert (len(result.train), len(result.validation)) == (20, 25)


@pytest.mark.parametrize(
    ("settings", "setting"),
    [({"train": "rows.csv"}, "train"), ({"text": ("a",)}, "text"), ({"metric": "f1"}, "metric")],
)
def test_settings_of_a_single_task_are_an_error_beside_several(settings: dict[str, Any], setting: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"^task\.{setting}: got .*beside mixture\.tasks"):
        read_splits_of_each(TaskConfig(**settings), ["tickets", "urgency"], cap=10)


@pytest.mark.parametrize("names", [["tickets"], [], ["tickets", "urgency", "tickets"]])
def test_fewer_than_two_different_tasks_are_an_error(names: list[str]) -> None:
    with pytest.raises(ConfigurationError, match=r"^mixture\.tasks: got .*at least two different tasks"):
        read_splits_of_each(TaskConfig(), names, cap=10)


def test_task_files_of_one_name_are_an_error(tmp_path: Path) -> None:
    write_rows(tmp_path / "train.jsonl", ROWS)
    names = [write_task(tmp_path, stem, name="same", train="train.jsonl") for stem in ("first", "second")]
    with pytest.raises(ConfigurationError, match=r"^mixture\.tasks: got .*task files with different names"):
        read_splits_of_each(TaskConfig(), names, cap=10)


# --- the task of a run ---


def test_columns_and_kind_of_the_user_make_a_new_task() -> None:
    config = TaskConfig.model_validate({"text": "title,body", "label": "score", "kind": "regression", "train": "t.csv"})
    assert resolve_task(config) == Task(
        name="task", text=("title", "body"), label="score", kind="regression", train="t.csv"
    )
    assert resolve_task(TaskConfig(name="mine", text=("title",))).name == "mine"


def test_settings_change_a_library_task_and_keep_the_rest() -> None:
    original = library_task("rte")
    task = resolve_task(TaskConfig(name="rte", metric="f1", test="test.csv"))
    assert task == original.model_copy(update={"metric": "f1", "test": "test.csv"})


def test_training_file_removes_the_other_splits_of_a_library_task() -> None:
    task = resolve_task(TaskConfig(name="tickets", train="train.csv"))
    assert (task.train, task.validation, task.test) == ("train.csv", "", "")
    assert resolve_task(TaskConfig(name="tickets", train="t.csv", test="own.csv")).test == "own.csv"


def test_unknown_name_without_columns_suggests_the_nearest_task() -> None:
    with pytest.raises(ConfigurationError, match=r"task\.name: got 'tickts'; .*did you mean 'tickets'\?"):
        resolve_task(TaskConfig(name="tickts"))


def test_settings_that_contradict_the_task_are_a_configuration_error() -> None:
    with pytest.raises(ConfigurationError, match=r"^task\.template: got .*\['sentence1', 'sentence2'\] as fields"):
        resolve_task(TaskConfig(name="rte", template="{sentence1} {other}"))


def test_task_names_are_library_names_and_yaml_files() -> None:
    assert [is_task_name(name) for name in ("rte", "mine.YML", "mine", "mine.csv", "")] == [True, True, *[False] * 3]


# --- limits ---


def test_limit_of_zero_keeps_all_rows_and_others_sample() -> None:
    rows = [Example((str(number),), "rare" if number == 5 else "often") for number in range(50)]
    assert limit_rows(rows, 0, seed=1) == rows
    assert limit_rows(rows, 99, seed=1) == rows
    assert limit_rows(rows, 10, seed=1) == sample(rows, 10, seed=1)
    for seed in range(5):
        assert Counter(row.target for row in limit_rows(rows, 10, seed, stratified=True))["rare"] == 1


def labelled_rows(counts: dict[str, int]) -> list[dict[str, str]]:
    return [{"text": f"{label} {number}", "label": label} for label, count in counts.items() for number in range(count)]


def test_shots_per_class_are_as_many_of_each_and_the_rest_validates() -> None:
    rows = labelled_rows({"a": 50, "b": 9, "c": 7})
    splits = read_splits(TaskConfig(shots_per_class=4, validation_rows=20), {"train": rows})
    assert Counter(example.target for example in splits.train) == {"a": 4, "b": 4, "c": 4}
    assert len(splits.validation) == 20 and not set(splits.train) & set(splits.validation)
    again = read_splits(TaskConfig(shots_per_class=4, validation_rows=20), {"train": rows})
    others = read_splits(TaskConfig(shots_per_class=4, validation_rows=20, sample_seed=1), {"train": rows})
    assert splits.train == again.train != others.train


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"shots_per_class": 8}, "at most 7, the distinct rows of the class 'c'"),
        ({"shots_per_class": 2, "few_shot": 6}, "set one of the two"),
        ({"shots_per_class": 2, "train_rows": 6}, "set one of the two"),
        ({"shots_per_class": 2, "kind": "generation"}, "task.few_shot instead"),
    ],
)
def test_shots_per_class_that_cannot_be_drawn_are_an_error(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read_splits(TaskConfig(**settings), {"train": labelled_rows({"a": 50, "b": 9, "c": 7})})


# --- where held-out rows come from, and copies among the rows that are scored ---


def rows_of(targets: list[Any], num_texts: int = 10**6) -> list[dict[str, Any]]:
    return [{"text": f"text {number % num_texts}", "label": target} for number, target in enumerate(targets)]


@pytest.mark.parametrize(
    ("targets", "settings", "origin"),
    [
        (list("ab") * 50, {}, "held out of 100 training rows: 16 %"),
        (list("aabbcc"), {}, "held out of 6 training rows: 50 % instead of 15 %, because at least one of each class"),
        (
            [*"aaaa", *(f"class {number}" for number in range(4))],
            {"validation_share": 0.5},
            "held out of 8 training rows: 25 % instead of 50 %, because each class keeps a row",
        ),
        (list("ab") * 50, {"validation_rows": 5}, "held out of 100 training rows: 5 %"),
        (list("ab") * 50, {"few_shot": 10, "validation_rows": 20}, "held out of 100 training rows: 20 %"),
        ([0.5 * number for number in range(100)], {"kind": "regression"}, "held out of 100 training rows: 15 %"),
    ],
)
def test_splits_tell_where_held_out_rows_come_from(targets: list[Any], settings: dict[str, Any], origin: str) -> None:
    assert read_splits(TaskConfig(**settings), {"train": rows_of(targets)}).origin == origin


def test_copies_that_stay_together_explain_another_share() -> None:
    rows = rows_of(list("ab") * 40, num_texts=4)
    result = read_splits(TaskConfig(), {"train": rows})
    assert len(result.validation) == 40
    assert result.origin == (
        "held out of 80 training rows: 50 % instead of 15 %, because copies of a text stay together"
    )


def test_rows_with_a_validation_file_have_no_origin() -> None:
    assert read_splits(TaskConfig(), {"train": ROWS, "validation": OTHERS}).origin == ""


def test_validation_rows_of_a_regression_are_spread_as_its_training_rows() -> None:
    rows = rows_of([number / 4 for number in range(1, 21)])
    for seed in range(5):
        result = read_splits(TaskConfig(kind="regression", sample_seed=seed), {"train": rows})
        thirds = [int(float(str(row.target)) * 4 - 1) * 3 // 20 for row in result.validation]
        assert sorted(thirds) == [0, 1, 2]


def test_rows_of_a_regression_are_held_out_as_in_earlier_versions_on_request() -> None:
    rows = rows_of([number / 4 for number in range(1, 21)])
    config = TaskConfig(kind="regression", spread_numbers=False)
    held_out = [
        [row.target for row in read_splits(config.model_copy(update={"sample_seed": seed}), {"train": rows}).validation]
        for seed in range(3)
    ]
    assert held_out == [[2.75, 4.25, 4.75], [1.5, 3.0, 4.5], [1.75, 2.0, 4.5]]


def test_validation_and_test_texts_that_are_training_texts_are_counted() -> None:
    result = read_splits(TaskConfig(), {"train": ROWS, "validation": [*OTHERS, *ROWS[:2]], "test": ROWS[:3]})
    of_validation, of_test = copies_notes(result)
    assert of_validation == (
        "2 of 8 validation texts are also training texts: they do not tell which step is best on new texts; use other "
        "validation rows, or leave them out: a share of the training rows is then held out"
    )
    assert of_test == (
        "3 of 3 test texts are also training texts: their scores do not tell how good the cue is on new texts; use "
        "other test rows"
    )


@pytest.mark.parametrize(("num_new", "num_notes"), [(99, 1), (100, 0)])
def test_copies_in_less_than_one_percent_of_the_rows_are_not_worth_a_warning(num_new: int, num_notes: int) -> None:
    test = [ROWS[0], *({"text": f"new {number}", "label": "a"} for number in range(num_new))]
    result = read_splits(TaskConfig(), {"train": ROWS, "validation": OTHERS, "test": test})
    assert len(copies_notes(result)) == num_notes


def test_swapped_pairs_are_copies_and_held_out_rows_are_none() -> None:
    pairs = [{"one": f"text {number}", "two": "other", "label": "ab"[number % 2]} for number in range(20)]
    swapped = [{"one": row["two"], "two": row["one"], "label": row["label"]} for row in pairs[:4]]
    result = read_splits(TaskConfig(text=("one", "two")), {"train": pairs, "test": swapped})
    assert [note.partition(":")[0] for note in copies_notes(result)] in (
        [f"{number} of 4 test texts are also training texts"] for number in (1, 2, 3, 4)
    )


def test_training_rows_in_place_of_validation_rows_are_meant() -> None:
    rows = [Example(("hello",), "a"), Example(("bye",), "b")]
    assert copies_notes(Splits(Task(name="toy"), rows, rows, [])) == []


# --- columns that may be swapped ---


def test_swapped_columns_are_an_error_that_says_so() -> None:
    with pytest.raises(DataError) as caught:
        read_splits(TaskConfig(text=("label",), label="text"), {"train": ROWS})
    assert str(caught.value) == (
        "label column 'text': got '20 labels and 2 different texts in 20 rows'; expected labels that several rows "
        "share; the columns may be swapped: pass `text=text` and `label=label`"
    )


def test_labels_of_nearly_one_row_each_cause_a_warning() -> None:
    labels = [f"label {max(number, 1)}" for number in range(20)]
    with pytest.warns(UserWarning, match=r"20 training rows have 19 different labels .* columns may be swapped"):
        read_splits(TaskConfig(), {"train": rows_of(labels), "validation": rows_of(labels[:2])})
    few = rows_of([f"label {number}" for number in range(9)])
    read_splits(TaskConfig(), {"train": few, "validation": few[:2]})  # fewer than ten rows say nothing
