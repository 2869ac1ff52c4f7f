"""softcue.compare: both forms, and results that are used like a DataFrame."""

from __future__ import annotations

import csv
import inspect
import json
import sys
from pathlib import Path
from typing import Any

import pandas
import pytest
from command import check_error, run
from tiny import tiny

import softcue
from softcue.cli.compare import compare as command
from softcue.cli.train import train as train_command
from softcue.cli.tune import tune as tune_command
from softcue.errors import ConfigurationError, DataError, MissingExtraError
from softcue.studies import Comparison, MethodComparison, PredictionComparison

ROWS = [
    {"text": f"{text} {number}", "team": team}
    for number in range(3)
    for text, team in (("The invoice is wrong", "billing"), ("Where is my order", "shipping"))
]
COLUMNS: dict[str, Any] = {"text": "text", "label": "team"}
TABLES: dict[str, Any] = {"train": ROWS, "validation": ROWS[:2], "test": ROWS}
METHODS = ["linear-probe", "prompt-tuning"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("compare")
    tiny("bert").save(folder / "bert")
    return folder


@pytest.fixture(scope="module")
def of_methods(folder: Path) -> MethodComparison:
    return softcue.compare(
        methods=METHODS,
        output_dir=folder / "runs",
        backbones=[str(folder / "bert")],
        seeds=2,
        epochs=1,
        progress=False,
        **TABLES,
        **COLUMNS,
    )


@pytest.fixture(scope="module")
def cues(folder: Path, of_methods: MethodComparison) -> list[str]:
    return [str(folder / "runs" / "bert" / method / "seed-0") for method in METHODS]


@pytest.fixture(scope="module")
def of_cues(cues: list[str]) -> PredictionComparison:
    return softcue.compare(cues, data=ROWS)


@pytest.fixture(params=["of_methods", "of_cues"])
def result(request: pytest.FixtureRequest) -> Comparison:
    comparison: Comparison = request.getfixturevalue(request.param)
    return comparison


# --- like a DataFrame ---


def test_a_result_has_rows_and_columns_as_a_frame_has(result: Comparison) -> None:
    frame = result.to_pandas()
    assert len(result) == len(frame) == 2
    assert list(result) == result.columns == list(frame) == list(frame.columns)
    assert all(result[name] == frame[name].tolist() for name in result)
    assert "method" in result and "no such column" not in result
    assert result.to_dict("records") == frame.to_dict("records")
    pandas.testing.assert_frame_equal(pandas.DataFrame(dict(result)), frame)  # type: ignore[call-overload]
    pandas.testing.assert_frame_equal(pandas.DataFrame(result.to_dict()), frame)


def test_numbers_are_numbers(of_methods: MethodComparison, of_cues: PredictionComparison) -> None:
    frame = of_methods.to_pandas()
    assert set(frame.select_dtypes("number")) == set(frame) - {"name", "method", "backbone"}
    assert frame["mean"].tolist() == pytest.approx(frame[["seed_0", "seed_1"]].mean(axis=1).tolist())
    assert frame["mean"].is_monotonic_decreasing
    frame = of_cues.to_pandas()
    assert set(frame.select_dtypes("number")) == set(frame) - {"cue", "method", "backbone"}
    assert of_cues["accuracy"] == [evaluation.scores["accuracy"] for evaluation in of_cues.evaluations.values()]


def test_pairs_are_a_table_too(result: Comparison) -> None:
    [pair] = result.pairs.to_dict("records")
    means = dict(zip(result[result.columns[0]], result["mean" if "mean" in result else "main"], strict=True))
    assert pair["difference"] == pytest.approx(means[pair["second"]] - means[pair["first"]])
    assert pair["low"] <= pair["difference"] <= pair["high"]
    assert pair["told_apart"] is False
    assert result.sentences[0] == pair["sentence"]
    assert len(result.pairs.to_pandas()) == 1 and "told apart" in repr(result.pairs)
    assert "<table" in result.pairs._repr_html_()


def test_a_missing_number_is_nan_in_a_frame(folder: Path) -> None:
    single = softcue.compare(
        methods="linear-probe",  # a name alone is a list of one
        output_dir=folder / "single",
        backbones=str(folder / "bert"),
        seeds=1,
        epochs=1,
        progress=False,
        **TABLES,
        **COLUMNS,
    )
    assert single["spread"] == [None]
    assert single.to_pandas()["spread"].isna().all()
    assert len(single.pairs) == 0 and "nothing to compare" in single.page()
    assert "linear-probe" in repr(single) and repr(single.pairs).startswith("first")


def test_a_wrong_column_is_an_error_with_a_hint(result: Comparison) -> None:
    with pytest.raises(ConfigurationError, match=r"^column: got 'metod'.* did you mean 'method'"):
        result["metod"]
    with pytest.raises(ConfigurationError, match=r"^orient: "):
        result.to_dict("index")  # type: ignore[call-overload]


def test_a_frame_of_column_names_is_never_made_by_mistake(result: Comparison) -> None:
    with pytest.raises(TypeError, match="to_pandas"):
        pandas.DataFrame(result)


def test_without_pandas_the_error_says_what_to_install(result: Comparison, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(MissingExtraError, match=r"pandas.*pip install"):
        result.to_pandas()


# --- shown and saved ---


def test_a_result_prints_table_sentences_and_notes(result: Comparison) -> None:
    text = repr(result)
    assert text.startswith(f"{result.title}\n")
    page = result._repr_html_()
    assert page.count("<table") == 1 and page.count("<li>") == len(result.sentences)
    for part in (*result.sentences, *result.notes):
        assert part in text
    for part in ("prompt-tuning", "cannot be told apart", "6 (few)", "95 % interval"):
        assert part in text and part in page


def test_save_writes_a_page_a_table_and_all_values(result: Comparison, tmp_path: Path) -> None:
    files = {path.name: path.read_text("utf-8") for path in result.save(tmp_path / "new" / "page")}
    assert {path.name for path in (tmp_path / "new" / "page").iterdir()} == files.keys()
    assert json.loads(files["comparison.json"])["pairs"][0]["sentence"] in files["index.html"]
    assert "Repeat it" not in files["index.html"] and "torch" in files["index.html"]
    lines = list(csv.DictReader(files["comparison.csv"].splitlines()))
    assert [line["method"] for line in lines] == result["method"]
    assert [float(line["trainable"]) for line in lines] == result["trainable"]
    assert "Repeat it" in result.page("softcue compare a b")


def test_rows_on_which_cues_differ_are_saved(of_cues: PredictionComparison, tmp_path: Path) -> None:
    of_cues.save(tmp_path)
    lines = list(csv.DictReader((tmp_path / "different-rows.csv").read_text("utf-8").splitlines()))
    assert [int(line["row"]) for line in lines] == [row.number for row in of_cues.different_rows]


# --- finished cues ---


def test_rows_may_be_a_file_a_frame_or_a_list(cues: list[str], of_cues: Comparison, tmp_path: Path) -> None:
    frame = pandas.DataFrame(ROWS)
    frame.to_csv(tmp_path / "rows.csv", index=False)
    other_names = frame.rename(columns={"text": "message"})
    for data, columns in ((tmp_path / "rows.csv", None), (frame, None), (other_names, {"message": "text"})):
        result = softcue.compare(cues, data=data, columns=columns)
        assert result.to_dict() == of_cues.to_dict()
        assert result.pairs.to_dict() == of_cues.pairs.to_dict()
    assert softcue.compare(cues, data=frame, rows=4)["rows"] == [4, 4]


def test_cues_may_be_loaded_already(cues: list[str], of_cues: Comparison) -> None:
    first = softcue.load(cues[0])
    for given in ([first, cues[1]], [first, softcue.load(cues[1], first.backbone)], [Path(cue) for cue in cues]):
        assert softcue.compare(given, data=ROWS).to_dict() == of_cues.to_dict()
    with pytest.raises(ConfigurationError, match="every cue once"):
        softcue.compare([first, cues[0]], data=ROWS)


def test_bad_rows_are_skipped_if_asked(cues: list[str]) -> None:
    bad = [*ROWS, {"text": None, "team": "billing"}]
    with pytest.raises(DataError):
        softcue.compare(cues, data=bad)
    with pytest.warns(UserWarning, match="skipped 1 of 7 rows"):
        assert softcue.compare(cues, data=bad, skip_bad_rows=True)["rows"] == [6, 6]


# --- methods ---


def test_finished_runs_are_kept_unless_they_are_overwritten(
    folder: Path, of_methods: MethodComparison, cues: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    def repeat(**arguments: Any) -> int:
        again = softcue.compare(
            methods=METHODS[:1],
            output_dir=folder / "runs",
            backbones=[str(folder / "bert")],
            seeds=1,
            epochs=1,
            **TABLES,
            **COLUMNS,
            **arguments,
        )
        assert again["mean"] == [of_methods.lines[METHODS[0]].scores[0]]
        return (Path(cues[0]) / "cue.json").stat().st_mtime_ns

    before = (Path(cues[0]) / "cue.json").stat().st_mtime_ns
    assert repeat() == before
    assert "linear-probe, seed 0: " in capsys.readouterr().err
    assert repeat(overwrite=True, progress=False) != before
    assert all(line.startswith("warning: ") for line in capsys.readouterr().err.splitlines())


def test_several_backbones_are_columns(folder: Path) -> None:
    tiny("gpt2").save(folder / "gpt2")
    names = [str(folder / "bert"), str(folder / "gpt2")]
    settings: dict[str, Any] = {"seeds": 1, "epochs": 1, "progress": False, **TABLES, **COLUMNS}
    result = softcue.compare(methods=METHODS[:1], output_dir=folder / "two", backbones=names, **settings)
    assert result["method"] == METHODS[:1] * 2
    assert sorted(result["backbone"]) == names
    assert result.title == "1 method on the rows given: accuracy on test rows"


# --- errors ---


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({}, "cues: got 0; expected at least two cues"),
        ({"cues": "cues/a"}, "cues: got 1; expected at least two cues"),
        ({"cues": ["a", "b"], "methods": ["vip"]}, "cues: .* without `methods`"),
        ({"methods": ["vip"], "output_dir": "x", "split": "test"}, "split: .* without `methods`"),
        ({"methods": ["vip"], "output_dir": "x", "columns": {"a": "b"}}, "columns: .* without `methods`"),
        ({"methods": ["vip"], "output_dir": "x", "data": ROWS}, "data: got 'list'; .*`train=ROWS`"),
        ({"methods": ["vip"], "task": "tickets"}, "output_dir: .*a folder for the cues"),
        ({"methods": ["vip"], "output_dir": "x", "resume": True}, "resume: .* always goes on"),
        ({"methods": ["vip"], "output_dir": "x", "tasks": ["rte"]}, "tasks: .* one task"),
        ({"cues": ["a", "b"], "task": "tickets"}, "task: .*`methods` beside it"),
        ({"cues": ["a", "b"], "seeds": 3}, "seeds: .*`methods` beside it"),
        ({"cues": ["a", "b"], "output_dir": "page"}, "output_dir: .*`methods` beside it"),
        ({"cues": ["a", "b"], "dat": "rows.csv"}, "dat: .* an argument of softcue.compare; did you mean 'data'"),
    ],
)
def test_arguments_of_the_other_form_are_errors(
    arguments: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError, match=f"^{message}"):
        softcue.compare(**arguments)
    assert not list(tmp_path.iterdir())


def test_the_command_has_the_same_arguments_and_errors(tmp_path: Path) -> None:
    options, keywords = set(inspect.signature(command).parameters), set(inspect.signature(softcue.compare).parameters)
    assert keywords - options == {"cues", "arguments"}
    check_error(run("compare", "a", "b", "--seeds", "2"), "--seeds: got 2", "--methods beside it")
    check_error(run("compare", "a", "b", "--epochs", "2"), "--epochs: got 2", "--methods beside it")
    check_error(run("compare", "--methods", "vip", "--output-dir", tmp_path, "--rows", "2"), "--rows: got 2")
    check_error(run("compare"), "at least two cues", "--methods A,B")


def test_commands_that_train_several_runs_have_the_common_options_of_train() -> None:
    def options_of(function: Any) -> set[str]:
        return set(inspect.signature(function).parameters)

    instead = {"method", "backbone", "seed"}  # methods, backbones and seeds
    assert options_of(train_command) - options_of(command) == {*instead, "tasks", "resume", "init_from"}
    assert options_of(train_command) - options_of(tune_command) == {"tasks", "resume"}
