"""`softcue predict CUE "a text"`, `--scores`, and `--column` of predict and evaluate."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest
from command import check_error, run
from tolerance import REORDERED_PROBABILITIES

from softcue.cli.predict import split_words
from softcue.errors import ConfigurationError

WORDS = ["training.steps=1", "--prompt-length", "4", "task.train_rows=12", "task.validation_rows=6", "task.test_rows=6"]
ROWS = [("please refund invoice", "billing"), ("badge reader is dead", "hardware")]


@pytest.fixture(scope="module")
def cues(tmp_path_factory: pytest.TempPathFactory, model_folders: dict[str, Path]) -> Path:
    """Cues that read `text` (urgency, teams), two texts (same-request) and give a number (marks)."""
    folder = tmp_path_factory.mktemp("cues")
    rows = folder / "rows.csv"
    with rows.open("w", newline="") as handle:
        lines = [(f"{text} {n}", team, 1 + n % 2) for n in range(8) for text, team in ROWS]
        csv.writer(handle).writerows([("text", "team", "mark"), *lines])
    own = ["--train", rows, "--text", "text"]
    runs = {
        "urgency": ["--task", "urgency", *WORDS],
        "same-request": ["--task", "same-request", *WORDS],
        "teams": [*own, "--label", "team", *WORDS[:3]],
        "marks": [*own, "--label", "mark", "task.kind=regression", *WORDS[:3]],
    }
    for name, words in runs.items():
        ended = run("train", *words, "--backbone", model_folders["bert"], "--output-dir", folder / name)
        assert ended.code == 0, ended.err
    return folder


def test_a_text_on_the_command_line_is_predicted_readably(cues: Path) -> None:
    shown = run("predict", cues / "teams", "my badge is lost")
    assert (shown.code, shown.err) == (0, "")
    assert all(word in shown.out for word in ("text", "prediction", "score", "my badge is lost"))
    assert "billing" in shown.out or "hardware" in shown.out
    assert "cue" not in shown.out


def test_texts_on_the_command_line_get_the_predictions_of_rows(cues: Path) -> None:
    texts = ["my badge is lost", "refund"]
    by_words = run("predict", cues / "teams", *texts, "--json").json["rows"]
    by_lines = run("predict", cues / "teams", "--input", "-", "--json", stdin="\n".join(texts).encode()).json["rows"]
    assert [row["text"] for row in by_words] == [row["text"] for row in by_lines] == texts
    assert [row["label"] for row in by_words] == [row["label"] for row in by_lines]
    for row, same_row in zip(by_words, by_lines, strict=True):  # a busy machine may divide them into other batches
        assert row["scores"] == REORDERED_PROBABILITIES.approx(same_row["scores"])


def test_several_cues_predict_texts(cues: Path) -> None:
    shown = run("predict", cues / "teams", cues / "urgency", "my badge is lost")
    assert "│ teams " in shown.out and "│ urgency " in shown.out
    row = run("predict", cues / "teams", cues / "urgency", "my badge is lost", "--json").json["rows"][0]
    assert set(row["cues"]) == {"teams", "urgency"}


def test_a_pair_is_two_words_or_one_with_a_tab(cues: Path) -> None:
    two_words = run("predict", cues / "same-request", "where is it?", "where is my parcel?", "--json").json
    with_tab = run("predict", cues / "same-request", "where is it?\twhere is my parcel?", "--json").json
    assert two_words == with_tab
    assert (two_words["rows"][0]["first"], two_words["rows"][0]["second"]) == ("where is it?", "where is my parcel?")
    assert len(run("predict", cues / "same-request", "a b\tc d", "e f\tg h", "--json").json["rows"]) == 2
    check_error(run("predict", cues / "same-request", "only one"), "texts", "'only one'", "first, second", "a tab")
    check_error(run("predict", cues / "same-request", "a b\tc d", "only one"), "'only one'")


def test_a_number_is_shown_as_a_number(cues: Path) -> None:
    shown = run("predict", cues / "marks", "my badge is lost", "--scores")
    assert shown.code == 0
    assert "prediction" in shown.out
    assert shown.err == "these predictions have no scores per label\n"


def test_texts_can_be_written_to_a_file(cues: Path, tmp_path: Path) -> None:
    ended = run("predict", cues / "teams", "my badge is lost", "--output", tmp_path / "out.csv")
    assert (ended.code, ended.out) == (0, "")
    with (tmp_path / "out.csv").open(newline="") as handle:
        assert [row["text"] for row in csv.DictReader(handle)] == ["my badge is lost"]


# --- misspelt folders are no texts ---


@pytest.mark.parametrize("word", ["{cues}/urgncy", "urgncy", "urgency", "./team", "nowhere/at-all", "{cues}/rows.csv"])
def test_a_word_that_may_be_a_cue_folder_is_no_text(cues: Path, word: str) -> None:
    ended = run("predict", cues / "teams", word.format(cues=cues), "a whole text")
    check_error(ended, "cue", word.format(cues=cues), "--input -")


def test_the_error_of_a_misspelt_folder_names_the_right_one(cues: Path) -> None:
    check_error(run("predict", cues / "teams", cues / "urgncy"), f"did you mean '{cues / 'urgency'}'?")


def test_the_first_word_is_a_cue_folder(cues: Path) -> None:
    check_error(run("predict", "my badge is lost"), "cue", "my badge is lost", "a folder with cue.json")
    check_error(run("predict", cues / "tems", "my badge is lost"), "tems", "a folder with cue.json")


def test_a_text_with_the_name_of_a_folder_gets_an_error_that_says_so(
    cues: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "invoices").mkdir()
    monkeypatch.chdir(tmp_path)
    check_error(run("predict", cues / "teams", "invoices"), "'invoices'", "cue.json, or a text", "--input -")


def test_texts_are_refused_for_cues_that_read_different_numbers_of_them(cues: Path) -> None:
    shown = run("predict", cues / "same-request", cues / "teams", "my badge is lost", "refund")
    check_error(shown, "first, second; text", "the same number of texts", "--input")


def test_cue_folders_come_before_texts(cues: Path) -> None:
    check_error(run("predict", cues / "teams", "a text", cues / "urgency"), "all cue folders before the texts")


def test_something_to_predict_is_needed_once(cues: Path) -> None:
    check_error(run("predict", cues / "teams"), "texts", f'softcue predict {cues / "teams"} "a text"', "--input FILE")
    ended = run("predict", cues / "teams", "a text", "--input", cues / "rows.csv")
    check_error(ended, "--input", "either texts on the command line or a file")


def test_words_are_split_into_cues_and_texts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cue.json").touch()
    assert split_words(["one", "two", "hello", "to whom it may concern/none"], None) == (
        [Path("one"), Path("two")],
        ["hello", "to whom it may concern/none"],
    )
    assert split_words(["one", "two"], "-") == ([Path("one"), Path("two")], [])
    for text in ("", "退款/发票在哪里", "字/" * 5000, "word" * 5000):
        assert split_words(["one", text], None)[1] == [text]
    with pytest.raises(ConfigurationError, match="did you mean 'two'"):
        split_words(["one", "twoo", "hello"], None)


# --- scores and columns ---


def test_scores_are_a_column_per_label(cues: Path, tmp_path: Path) -> None:
    shown = run("predict", cues / "urgency", "my badge is lost", "--scores")
    line = run("predict", cues / "urgency", "my badge is lost", "--json").json["rows"][0]
    assert len(line["scores"]) == 3
    assert all(label in shown.out and f"{score:.3f}" in shown.out for label, score in line["scores"].items())
    written = tmp_path / "out.csv"
    run("predict", cues / "urgency", "--input", cues / "rows.csv", "--scores", "--output", written)
    lines = [
        json.loads(text) for text in run("predict", cues / "urgency", "--input", cues / "rows.csv").out.split("\n")[:-1]
    ]
    with written.open(newline="") as handle:
        for row, expected in zip(csv.DictReader(handle), lines, strict=True):
            assert list(row) == ["text", "label", "score", *(f"score.{label}" for label in expected["scores"])]
            for label, score in expected["scores"].items():
                assert float(row[f"score.{label}"]) == REORDERED_PROBABILITIES.approx(score)
    run("predict", cues / "urgency", cues / "teams", "--input", cues / "rows.csv", "--scores", "--output", written)
    with written.open(newline="") as handle:
        assert {"teams.score.billing", "teams.score.hardware"} <= set(next(csv.reader(handle)))


@pytest.fixture
def renamed(tmp_path: Path) -> Path:
    """Rows whose columns have other names, beside a column with the name that the cue reads."""
    file = tmp_path / "renamed.csv"
    with file.open("w", newline="") as handle:
        lines = [(text, team, "something else entirely") for text, team in ROWS]
        csv.writer(handle).writerows([("message", "group", "text"), *lines])
    return file


def test_columns_of_other_names_are_read(cues: Path, renamed: Path) -> None:
    ended = run("predict", cues / "teams", "--input", renamed, "--column", "message=text")
    lines = [json.loads(line) for line in ended.out.splitlines()]
    assert [line["message"] for line in lines] == [text for text, _ in ROWS]
    typed = "".join(json.dumps({"message": text, "text": "no"}) + "\n" for text, _ in ROWS).encode()
    ended = run("predict", cues / "teams", "--input", "-", "--column", "message=text", "--json", stdin=typed)
    assert [row["label"] for row in ended.json["rows"]] == [line["label"] for line in lines]


def test_columns_of_other_names_are_evaluated(cues: Path, renamed: Path, tmp_path: Path) -> None:
    words = ["--column", "message=text", "--column", "group=team", "--json"]
    by_columns = run("evaluate", cues / "teams", "--data", renamed, *words).json
    plain = tmp_path / "plain.csv"
    with plain.open("w", newline="") as handle:
        csv.writer(handle).writerows([("text", "team"), *ROWS])
    by_names = run("evaluate", cues / "teams", "--data", plain, "--json").json
    assert by_columns["scores"] == by_names["scores"]
    assert by_columns["rows"] == 2


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["message"], ["--column", "'message'", "FILE=CUE", "--column message=text"]),
        (["message=txt"], ["--column", "'message=txt'", "did you mean 'text'?"]),
        (["message=text", "group=text"], ["--column", "'group=text'", "every column once"]),
        (["mesage=text"], ["column 'mesage'", "did you mean 'message'?"]),
    ],
)
def test_wrong_columns_are_refused(cues: Path, renamed: Path, words: list[str], parts: list[str]) -> None:
    options = [option for word in words for option in ("--column", word)]
    for command in (["predict", cues / "teams", "--input", renamed], ["evaluate", cues / "teams", "--data", renamed]):
        ended = run(*command, *options)
        assert (ended.code, ended.out) == (2, "")
        assert all(part in ended.err for part in parts), ended.err


def test_columns_are_only_for_files(cues: Path) -> None:
    check_error(run("evaluate", cues / "urgency", "--column", "message=text"), "--column", "a file with rows in --data")


@pytest.mark.parametrize("column", ["score", "prediction", "label"])
def test_texts_stay_beside_predictions_of_the_same_name(cues: Path, tmp_path: Path, column: str) -> None:
    rows, output = tmp_path / "rows.csv", tmp_path / "predictions.csv"
    rows.write_text(f"{column}\nmy badge is lost\n")
    words = ["--column", f"{column}=text"]
    assert run("predict", cues / "teams", "--input", rows, *words, "--output", output).code == 0
    [row] = csv.DictReader(output.read_text("utf-8").splitlines())
    assert row[f"input.{column}"] == "my badge is lost"
    assert row["label"] in ("billing", "hardware") and 0 <= float(row["score"]) <= 1
    assert "my badge is lost" in run("predict", cues / "teams", "my badge is lost", *words).out


def test_the_backbone_is_loaded_as_the_options_say(cues: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from softcue.backbones import Backbone, BackboneConfig
    from softcue.cue import cue as cue_module

    configs: list[BackboneConfig] = []
    original = cue_module.load_backbone

    def load(config: BackboneConfig) -> Backbone:
        configs.append(config)
        return original(config)

    monkeypatch.setattr(cue_module, "load_backbone", load)
    options = ["--device", "cpu", "--dtype", "bfloat16", "--attention", "eager"]
    assert run("predict", cues / "teams", cues / "urgency", "my badge is lost", *options).code == 0
    assert run("evaluate", cues / "teams", "--data", cues / "rows.csv", *options).code == 0
    assert [(config.device, config.dtype, config.attention) for config in configs] == [("cpu", "bfloat16", "eager")] * 2


def test_a_backbone_option_that_cannot_hold_is_one_line(cues: Path) -> None:
    check_error(run("predict", cues / "teams", "a text", "--device", "cuda:9"), "backbone.device", "cuda:9")
    ended = run("predict", cues / "teams", "a text", "--dtype", "int3")
    assert ended.code == 2 and "int3" in ended.err
    ended = run("serve", cues, "--backbone", "minilm", "--deterministic", "--dtype", "bfloat16")
    check_error(ended, "dtype", "bfloat16", "float32, as deterministic says")
