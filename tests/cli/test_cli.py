from __future__ import annotations

import csv
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest
import yaml
from command import EVALUATED, Ended, check_error, run
from tolerance import REORDERED_PROBABILITIES

import softcue
from softcue.cli.app import main
from softcue.cli.output import format_cell, print_table

VERBS = [
    "train",
    "evaluate",
    "predict",
    "params",
    "inspect",
    "methods",
    "tasks",
    "doctor",
    "demo",
    "backbones",
]
LABELS = {"tickets": 6, "urgency": 3, "same-request": 2}


def csv_file(path: Path, *rows: tuple[str, ...]) -> Path:
    with path.open("w", newline="") as handle:
        csv.writer(handle).writerows(rows)
    return path


def own_rows(path: Path, num_rows: int = 24) -> Path:
    """Messages with a team and a score, under other names than the bundled tasks use."""
    texts = [("please refund invoice {}", "billing", "1.5"), ("badge reader {} is dead", "hardware", "4")]
    rows = [(texts[n % 2][0].format(n), *texts[n % 2][1:]) for n in range(num_rows)]
    return csv_file(path, ("message", "team", "score"), *rows)


QUICK = [
    "training.epochs=2",
    "method.name=prompt-tuning",
    "method.prompt_length=6",
    "task.validation_rows=12",
    "task.test_rows=12",
]


@dataclass(frozen=True)
class Cues:
    folder: Path
    models: dict[str, Path]

    def __getitem__(self, name: str) -> Path:
        return self.folder / name


@pytest.fixture(scope="module")
def cues(tmp_path_factory: pytest.TempPathFactory, model_folders: dict[str, Path]) -> Cues:
    """Bundled tasks, own labels, scores and the baseline, each trained for a moment on one tiny BERT."""
    folder = tmp_path_factory.mktemp("cues")
    rows = own_rows(folder / "rows.csv")
    options = ["--train", rows, "--text", "message"]
    wanted: dict[str, list[object]] = {name: ["--task", name, "task.train_rows=24"] for name in LABELS}
    wanted["teams"] = [*options, "--label", "team"]
    wanted["scores"] = [*options, "--label", "score", "task.kind=regression"]
    for name, words in wanted.items():
        ended = run("train", "--backbone", model_folders["bert"], "--output-dir", folder / name, *words, *QUICK)
        assert ended.code == 0, ended.err
    ended = run(
        "train",
        "--backbone",
        model_folders["bert"],
        "--output-dir",
        folder / "bare",
        *options,
        "--label",
        "team",
        "--method",
        "no-prompt",
        "training.epochs=1",
    )
    assert ended.code == 0, ended.err
    return Cues(folder, model_folders)


# --- help, version, lists ---


def test_version_is_printed() -> None:
    assert run("--version") == Ended(0, f"softcue {softcue.__version__}\n", "")


@pytest.mark.parametrize("words", [[], *([verb] for verb in VERBS), ["backbones", "pull"]])
def test_every_verb_has_help(words: list[str]) -> None:
    ended = run(*words, "--help")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith("Usage: ")
    assert " ".join([*words, "[OPTIONS]"]) in ended.out


def test_help_lists_every_verb() -> None:
    lines = run("--help").out
    assert all(f"\n  {verb} " in lines for verb in VERBS)


@pytest.mark.parametrize("verb", ["methods", "tasks", "backbones", "doctor"])
def test_lists_are_one_json_object_or_a_table(verb: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTCUE_HOME", str(tmp_path))
    monkeypatch.setattr("softcue.backbones.loading.sources.ALIASES", {})  # their weights are large
    ended = run(verb, "--json")
    assert ended.json
    assert ended.err == ""
    table = run(verb)
    assert (table.code, table.err) == (0, "")
    assert ("━" in table.out) == (verb != "methods")


def test_lists_hold_what_can_be_used() -> None:
    methods = {entry["name"]: entry for entry in run("methods", "--json").json["methods"]}
    assert methods["prompt-tuning"]["settings"]["prompt_length"]["default"] == 20
    tasks = {entry["name"]: entry for entry in run("tasks", "--json").json["tasks"]}
    assert {name: len(tasks[name]["labels"]) for name in LABELS} == LABELS
    assert min(tasks["tickets"]["rows"].values()) >= 60


def test_backbones_list_tells_what_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOFTCUE_HOME", str(tmp_path))
    printed = run("backbones", "--json").json
    assert {"minilm", "mpnet", "smollm2"} <= {entry["name"] for entry in printed["aliases"]}
    for entry in printed["aliases"]:
        assert {"parameters", "megabytes", "license", "good_for"} <= entry.keys()


def test_pulling_an_unknown_backbone_suggests_the_nearest() -> None:
    check_error(run("backbones", "pull", "miniln"), "'miniln'", "did you mean 'minilm'?")


def test_table_shows_brackets_and_colons_as_they_are(capsys: pytest.CaptureFixture[str]) -> None:
    print_table("[title]", ["[a]", "number"], [["[unused1] [/b] :bug:", 7680]])
    result = capsys.readouterr().out
    assert all(part in result for part in ("[title]", "[a]", "[unused1] [/b] :bug:", "7,680"))
    assert [format_cell(cell) for cell in (True, 84.127, "x", None)] == ["True", "84.1", "x", "None"]


@pytest.mark.parametrize("width", [*range(33, 90, 3), 120])
def test_tables_cut_no_number_in_a_narrow_terminal(
    width: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes the output for a terminal
    monkeypatch.setenv("COLUMNS", str(width))
    columns = ["predictions of", "rows", "accuracy", "macro_f1", "matthews"]
    print_table("scores", columns, [["cues/a-long-name", "1,200 (few)", "100.0", "99.2", "-10.5"]], numbers_from=1)
    result = capsys.readouterr().out
    assert all(number in result for number in ("1,200 (few)", "100.0", "99.2", "-10.5"))
    assert "\N{HORIZONTAL ELLIPSIS}" not in result
    lines = re.sub(r"\x1b\[[0-9;]*m", "", result).splitlines()
    assert max(map(len, lines)) <= width
    assert ("accuracy: 100.0" in lines) == (width < 50)  # no room for five columns


def test_tables_in_a_file_cut_no_number_either(capsys: pytest.CaptureFixture[str]) -> None:
    labels = [f"label-{number}" for number in range(40)]
    print_table("", ["text", *labels], [["a text", *(f"0.{number:03}" for number in range(40))]], numbers_from=1)
    result = capsys.readouterr().out
    assert all(f"0.{number:03}" in result for number in range(40))


# --- how the program ends ---


@pytest.mark.parametrize(
    "words",
    [
        ["no-such-verb"],
        ["train", "--no-such-flag"],
        ["predict"],
        ["evaluate"],
        ["inspect"],
        ["inspect", "cue", "--top", "0"],
        ["predict", "cue", "--input", "-", "--batch-size", "none"],
    ],
)
def test_wrong_usage_ends_with_2_and_no_traceback(words: list[str]) -> None:
    ended = run(*words)
    assert (ended.code, ended.out) == (2, "")
    assert "Error: " in ended.err
    assert "Traceback" not in ended.err


def test_interrupt_ends_with_130_and_says_how_to_go_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("softcue.api.train", interrupted)
    ended = run("train", "--output-dir", tmp_path / "cue")
    assert (ended.code, ended.out) == (130, "")
    assert ended.err == f"stopped; go on with: softcue train --output-dir {tmp_path / 'cue'} --resume\n"


def test_common_settings_are_options_of_train(tmp_path: Path, model_folders: dict[str, Path]) -> None:
    options = {"--epochs": 2, "--learning-rate": 0.02, "--network-learning-rate": 0.03, "--batch-size": 8}
    options |= {"--prompt-length": 4, "--max-length": 24}
    shown = run("train", "--help").out
    assert all(option in shown for option in options) and "softcue config" in shown
    words = [word for pair in options.items() for word in pair]
    rows = ["--task", "urgency", "task.train_rows=12", "task.validation_rows=6", "task.test_rows=6"]
    rows += ["training.label_share=0"]  # labels' texts would be rows too
    ended = run("train", *rows, *words, "--backbone", model_folders["bert"], "--output-dir", tmp_path / "cue", "--json")
    assert ended.json["steps"] == 4  # 2 epochs of 12 rows, 8 at a time
    settings = yaml.safe_load((tmp_path / "cue" / "config.yaml").read_text())
    assert (settings["training"]["learning_rate"], settings["training"]["network_learning_rate"]) == (0.02, 0.03)
    assert (settings["method"]["prompt_length"], settings["backbone"]["max_length"]) == (4, 24)


def test_a_bug_keeps_its_traceback(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def broken(*_: object, **__: object) -> None:
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr("softcue.api.train", broken)
    with (
        patch.object(sys, "argv", ["softcue", "train", "--output-dir", "x"]),
        pytest.raises(ZeroDivisionError),
    ):
        main()


def softcue_process(*words: object, **settings: Any) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "softcue", *map(str, words)]
    return subprocess.run(command, capture_output=True, check=False, timeout=120, **settings)


def test_process_reports_an_error_on_one_line(tmp_path: Path) -> None:
    result = softcue_process("train", "--train", "no.csv", "--output-dir", "cue", cwd=tmp_path)
    check_error(Ended(result.returncode, result.stdout.decode(), result.stderr.decode()), "no.csv")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_reader_that_leaves_early_is_no_error(unbuffered: str) -> None:
    forward_pass, writing = os.pipe()
    os.close(forward_pass)
    command = [sys.executable, "-m", "softcue", "--help"]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    ended = subprocess.run(command, stdout=writing, stderr=subprocess.PIPE, check=False, env=environment)
    os.close(writing)
    assert (ended.returncode, ended.stderr) == (0, b"")


def test_listing_needs_no_torch() -> None:
    code = "import sys, softcue.cli.app; sys.exit('torch' in sys.modules or 'transformers' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


# --- bad inputs ---

WordVectors = list[object]
Make = Callable[[Path], WordVectors]  # a folder for files -> words after `softcue train`


def _own(*words: object, rows: tuple[tuple[str, ...], ...] = ()) -> Make:
    def make(folder: Path) -> WordVectors:
        path = folder / "in" / "rows.csv"
        file = csv_file(path, ("text", "label"), *rows) if rows else own_rows(path)
        columns = ["text", "label"] if rows else ["message", "team"]
        return ["--train", file, "--text", columns[0], "--label", columns[1], *words]

    return make


def _file(name: str, content: bytes, *words: object) -> Make:
    def make(folder: Path) -> WordVectors:
        (folder / "in" / name).write_bytes(content)
        return [str(word).replace("IN", str(folder / "in")) for word in words]

    return make


BAD_TRAINING: dict[str, tuple[Make, list[str]]] = {
    "no rows": (lambda _: [], ["task.train", "--train FILE", "`softcue tasks`"]),
    "unknown task": (lambda _: ["--task", "ticket"], ["task.name", "'ticket'", "did you mean 'tickets'?"]),
    "missing file": (_file("train.csv", b"", "--train", "IN/trian.csv", "--label", "x"), ["'train.csv'?"]),
    "empty file": (_file("train.csv", b"", "--train", "IN/train.csv", "--label", "x"), ["at least one row"]),
    "wrong encoding": (
        _file("train.csv", b"text,x\ncaf\xe9,a\n", "--train", "IN/train.csv", "--label", "x"),
        ["in/train.csv, line 2", "0xe9", "UTF-8", "iconv"],
    ),
    "missing column": (_own("--text", "mesage"), ["rows.csv, column", "'mesage'", "did you mean 'message'?"]),
    "one column twice": (_own("--text", "a,a"), ["task.text", "different text columns"]),
    "empty text": (_own(rows=(("hi", "a"), ("", "b"))), ["line 3, column 'text'", "not empty"]),
    "single class": (_own(rows=(("hi", "a"), ("ho", "a"))), ["label column 'label'", "two classes"]),
    "too few rows": (_own(rows=(("hi", "a"), ("ho", "b"))), ["task.validation", "--validation FILE"]),
    "unknown label": (
        lambda folder: [
            *_own()(folder),
            "--validation",
            csv_file(folder / "in" / "v.csv", ("message", "team"), ("hi", "biling")),
        ],
        ["v.csv, line 2, column 'team'", "'biling'", "did you mean 'billing'?"],
    ),
    "no number": (
        _own("task.kind=regression"),
        ["column 'team'", "a finite number", "the first 10", "--skip-bad-rows"],
    ),
    "unknown words": (_own("task.label_words.biling=x"), ["task.label_words", "did you mean 'billing'?"]),
    "template": (_own("task.template='say {text}'"), ["task.template", "message"]),
    "template of a bundled task": (
        lambda _: ["--task", "same-request", "--text", "a,b"],
        ["task.template", "['a', 'b']"],
    ),
    "metric": (_own("task.metric=f1"), ["task.metric", "'f1'", "which label is `positive`"]),
    "unknown metric": (_own("task.metric=f2"), ["task.metric", "'f2'", "accuracy, f1, macro_f1"]),
    "method": (_own("--method", "promt-tuning"), ["method.name", "did you mean 'prompt-tuning'?"]),
    "key": (_own("training.epoch=3"), ["training.epoch", "did you mean 'epochs'?"]),
    "section": (_own("trainig.epochs=3"), ["override", "did you mean 'training'?"]),
    "type": (_own("training.epochs=many"), ["training.epochs", "'many'", "integer"]),
    "range": (_own("--seed", "-1"), ["training.seed", "-1", "greater than or equal to 0"]),
    "no config": (lambda _: ["no.yaml"], ["configuration file", "'no.yaml'"]),
    "bad config": (_file("run.yaml", b"a: b: c", "IN/run.yaml"), ["configuration file", "valid YAML"]),
    "config section": (_file("run.yaml", b"1: {}", "IN/run.yaml"), ["section", "known: backbone"]),
    "no backbone": (_own("--backbone", "./nowhere"), ["backbone.name", "'./nowhere'", "check the path"]),
    "empty backbone": (
        lambda folder: [*_own()(folder), "--backbone", folder / "in"],
        ["backbone.name", "a folder with config.json", "point to the model folder itself"],
    ),
    "hub backbone": (_own("--backbone", "softcue/no-such-model"), ["backbone.name", "HF_HUB_OFFLINE"]),
    "first stage": (_own("training.init_from=5"), ["training.init_from", "got 5", "string"]),
    "device": (_own("backbone.device=abacus"), ["backbone.device", "'abacus'", "use auto or cpu"]),
    "long prompt": (
        _own("--method", "prompt-tuning", "method.prompt_length=96"),
        ["method.prompt_length", "96", "shorten the prompt"],
    ),
    "readout": (_own("readout.name=generation"), ["readout.name", "readout.name=classifier"]),
    "readout kind": (_own("readout.name=regression"), ["readout.name", "fits classification"]),
    "nothing to train": (
        _own("--method=no-prompt", "readout.name=label-words", "task.label_words={billing: a, hardware: b}"),
        ["method.name", "something to train", "choose another method"],
    ),
}


@pytest.mark.parametrize("case", BAD_TRAINING)
def test_bad_training_input_is_refused_and_nothing_written(
    case: str, tmp_path: Path, model_folders: dict[str, Path]
) -> None:
    make, parts = BAD_TRAINING[case]
    (tmp_path / "in").mkdir()
    words = make(tmp_path)
    if "--backbone" not in words:
        words += ["--backbone", model_folders["bert"]]
    ended = run("train", *words, "--output-dir", tmp_path / "cue")
    check_error(ended, *parts)
    assert [path.name for path in tmp_path.iterdir()] == ["in"]


def test_training_without_an_output_folder_is_refused() -> None:
    check_error(run("train", "--task", "tickets"), "--output-dir", "pass --output-dir cues/NAME")


def test_finished_cue_is_not_overwritten(cues: Cues) -> None:
    before = {path.name: path.read_bytes() for path in cues["teams"].iterdir()}
    words = [
        "train",
        "--train",
        cues["rows.csv"],
        "--text",
        "message",
        "--label",
        "team",
        "--backbone",
        cues.models["bert"],
        "--output-dir",
        cues["teams"],
    ]
    check_error(run(*words), "--output-dir", cues["teams"], "--overwrite")
    assert {path.name: path.read_bytes() for path in cues["teams"].iterdir()} == before


def test_output_folder_that_is_a_file_is_refused(tmp_path: Path, model_folders: dict[str, Path]) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "cue").write_text("precious")
    ended = run("train", *_own()(tmp_path), "--backbone", model_folders["bert"], "--output-dir", tmp_path / "cue")
    check_error(ended, "--output-dir", tmp_path / "cue")
    assert (tmp_path / "cue").read_text() == "precious"


def _broken_cue(folder: Path, content: str) -> Path:
    folder.mkdir()
    (folder / "cue.json").write_text(content)
    return folder


@pytest.mark.parametrize("verb", ["evaluate", "predict", "inspect"])
def test_folder_that_is_no_whole_cue_is_refused(verb: str, tmp_path: Path) -> None:
    more = ["--input", "-"] if verb == "predict" else []
    check_error(run(verb, tmp_path / "no", *more), "cue", tmp_path / "no", "a folder with cue.json", "check")
    for number, content in enumerate(("{", "[]", "{}", '{"format": 99}')):
        folder = _broken_cue(tmp_path / str(number), content)
        check_error(run(verb, folder, *more, stdin=b"hi"), folder / "cue.json")


@pytest.mark.parametrize("verb", ["evaluate", "predict", "inspect"])
def test_cue_on_another_backbone_is_refused(verb: str, cues: Cues) -> None:
    more = {"predict": ["--input", "-"], "evaluate": ["--data", cues["rows.csv"]], "inspect": []}[verb]
    ended = run(verb, cues["teams"], *more, "--backbone", cues.models["gpt2"], stdin=b"hi")
    check_error(ended, cues["teams"], "differ", "the backbone it was trained on")


def test_evaluating_without_data_is_refused(cues: Cues) -> None:
    check_error(run("evaluate", cues["teams"]), "--data", "pass --data FILE")


def test_evaluating_rows_that_do_not_fit_is_refused(cues: Cues, tmp_path: Path) -> None:
    file = csv_file(tmp_path / "rows.csv", ("message", "tem"), ("hi", "billing"))
    check_error(run("evaluate", cues["teams"], "--data", file), file, "column 'team'", "did you mean 'tem'?")
    file = csv_file(tmp_path / "rows.csv", ("message", "team"), ("hi", "x"))
    check_error(run("evaluate", cues["teams"], "--data", file), file, "'x'", "known: billing, hardware")


@pytest.mark.parametrize(
    ("stdin", "parts"),
    [
        (b"", ["standard input", "at least one line"]),
        (b"\n  \n", ["standard input", "at least one line"]),
        (
            b'{"message": "hi"}\n\n{"message"\n',
            ["standard input, line 3", "a JSON object", "plain texts only"],
        ),
        (b'{"message": "hi"}\nhi\n', ["standard input, line 2", "'hi'", "a JSON object"]),
        (b'{"mesage": "hi"}\n', ["row 1", "did you mean 'mesage'?"]),
        (b'{"message": " "}\n', ["row 1, column 'message'", "not empty"]),
        (b"fine\ncaf\xe9\n", ["standard input, line 2", "0xe9", "UTF-8"]),
    ],
)
def test_bad_standard_input_is_refused(cues: Cues, stdin: bytes, parts: list[str]) -> None:
    check_error(run("predict", cues["teams"], "--input", "-", stdin=stdin), *parts)


def test_one_text_for_a_task_that_reads_two_is_refused(cues: Cues) -> None:
    ended = run("predict", cues["same-request"], "--input", "-", stdin=b"one\ttwo\nonly one\n")
    check_error(ended, "row 2", "2 text(s): first, second")


def test_bad_prediction_files_are_refused(cues: Cues, tmp_path: Path) -> None:
    rows, cue = cues["rows.csv"], cues["teams"]
    check_error(run("predict", cue, "--input", tmp_path / "no.csv"), "no.csv", "an existing file")
    for name in ("out.txt", "out", "folder.csv"):
        (tmp_path / "folder.csv").mkdir(exist_ok=True)
        ended = run("predict", cue, "--input", rows, "--output", tmp_path / name)
        check_error(ended, "--output", name, ".jsonl or .csv")
    ended = run("predict", cue, "--input", rows, "--output", tmp_path / "no" / "out.csv")
    check_error(ended, "--output", "an existing folder", tmp_path / "no")
    assert [path.name for path in tmp_path.iterdir()] == ["folder.csv"]


def test_cues_of_one_name_are_refused(cues: Cues) -> None:
    ended = run("predict", cues["teams"], cues["teams"], "--input", cues["rows.csv"])
    check_error(ended, "cues", "teams, teams", "different folder names")


def test_inspecting_a_cue_without_prompt_shows_scores_and_curve(cues: Cues) -> None:
    ended = run("inspect", cues["bare"])
    assert (ended.code, ended.err) == (0, "")
    assert "no-prompt has no prompt vectors" in ended.out
    assert "training loss" in ended.out and "validation accuracy" in ended.out


# --- a whole round ---


def test_training_prints_a_table_and_writes_a_cue(tmp_path: Path, model_folders: dict[str, Path]) -> None:
    ended = run(
        "train",
        "--task",
        "tickets",
        "task.train_rows=24",
        *QUICK,
        "--backbone",
        model_folders["bert"],
        "--output-dir",
        tmp_path / "cue",
    )
    assert ended.code == 0
    assert all(word in ended.out for word in ("validation", "test", "accuracy", "prompt-tuning"))
    assert {"cue.json", "cue.safetensors", "metrics.json", "README.md"} <= {
        p.name for p in (tmp_path / "cue").iterdir()
    }
    assert [path.name for path in tmp_path.iterdir()] == ["cue"]


@pytest.mark.parametrize("model_type", ["bert", "t5", "gpt2"])
def test_training_takes_one_step_on_every_kind(model_type: str, tmp_path: Path, model_folders: dict[str, Path]) -> None:
    rows = own_rows(tmp_path / "rows.csv")
    ended = run(
        "train",
        "--train",
        rows,
        "--text",
        "message",
        "--label",
        "team",
        "--backbone",
        model_folders[model_type],
        "--output-dir",
        tmp_path / "cue",
        "--json",
        "training.steps=1",
        "method.prompt_length=6",
    )
    assert (ended.json["steps"], ended.json["best_step"]) == (1, 1)
    assert ended.json["cue"] == str(tmp_path / "cue")
    num_values = 3 * 2 * 32 if model_type == "bert" else 32  # keys and values of three layers, or word vectors
    assert ended.json["counts"]["gradient"] == 6 * num_values
    assert 0 <= ended.json["scores"]["validation"]["accuracy"] <= 100
    answer = run("predict", tmp_path / "cue", "--input", "-", "--json", stdin=b"where is my badge?").json
    assert answer["rows"][0]["label"] in ("billing", "hardware")


def test_settings_come_from_file_flags_and_overrides_in_that_order(
    tmp_path: Path, model_folders: dict[str, Path]
) -> None:
    (tmp_path / "run.yaml").write_text(
        "task: {name: urgency, train_rows: 12, validation_rows: 6, test_rows: 6}\n"
        "training: {steps: 3, seed: 5, learning_rate: 1e-3}\nmethod: {prompt_length: 3}\n"
    )
    ended = run(
        "train",
        tmp_path / "run.yaml",
        "--seed",
        "6",
        "--output-dir",
        tmp_path / "cue",
        "--json",
        "--backbone",
        model_folders["bert"],
        "training.steps=1",
    )
    assert ended.json["steps"] == 1
    record = json.loads((tmp_path / "cue" / "cue.json").read_text())
    assert (record["training"]["seed"], record["training"]["learning_rate"]) == (6, 0.001)
    assert (record["method"]["prompt_length"], record["task"]["name"]) == (3, "urgency")


def test_overwriting_and_resuming_a_finished_cue(tmp_path: Path, model_folders: dict[str, Path]) -> None:
    words = [
        "train",
        "--task",
        "urgency",
        "training.steps=1",
        "--json",
        "--output-dir",
        tmp_path / "cue",
        "--backbone",
        model_folders["bert"],
        "task.train_rows=12",
        *QUICK[1:],
    ]
    first = run(*words).json
    assert run(*words, "--overwrite").json == first
    assert run(*words, "--resume").json == first


@pytest.mark.parametrize("name", LABELS)
def test_bundled_task_is_evaluated_on_its_own_test_rows(cues: Cues, name: str) -> None:
    printed = run("evaluate", cues[name], "--json").json
    assert set(printed) == EVALUATED
    assert printed["rows"] >= 120
    assert printed["illegal"] == 0
    assert sum(printed["predicted_labels"].values()) == printed["rows"]


def test_evaluation_prints_a_table(cues: Cues) -> None:
    ended = run("evaluate", cues["teams"], "--data", cues["rows.csv"])
    assert ended.code == 0
    assert all(word in ended.out for word in ("rows", "accuracy", "macro_f1", "matthews", "24"))


def test_scores_are_evaluated_and_predicted(cues: Cues, tmp_path: Path) -> None:
    printed = run("evaluate", cues["scores"], "--data", cues["rows.csv"], "--json").json
    assert set(printed["scores"]) == {"pearson", "spearman", "pearson_spearman", "r2", "mae", "rmse"}
    assert set(printed["baselines"]) == {"mean_target"}
    answer = run("predict", cues["scores"], "--input", "-", "--json", stdin=b"refund please").json["rows"][0]
    assert set(answer) == {"message", "value"}
    assert isinstance(answer["value"], float)
    run("predict", cues["scores"], "--input", cues["rows.csv"], "--output", tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(newline="") as handle:
        assert next(csv.DictReader(handle)).keys() == {"message", "value"}


def test_answers_come_as_json_lines_in_order(cues: Cues) -> None:
    ended = run("predict", cues["teams"], "--input", cues["rows.csv"], "--batch-size", "5")
    assert (ended.code, ended.err) == (0, "")
    lines = [json.loads(line) for line in ended.out.splitlines()]
    assert [line["message"] for line in lines][:2] == ["please refund invoice 0", "badge reader 1 is dead"]
    for line in lines:
        assert set(line) == {"message", "label", "scores"}
        assert sum(line["scores"].values()) == pytest.approx(1, abs=1e-5)
        assert line["label"] == max(line["scores"], key=line["scores"].__getitem__)
    again = run("predict", cues["teams"], "--input", cues["rows.csv"], "--json").json["rows"]
    assert [row["label"] for row in again] == [line["label"] for line in lines]


@pytest.mark.parametrize(
    "stdin",
    [
        "où est mon badge ?\nrefund {me}\n",
        "\ufeffoù est mon badge ?\r\n\r\nrefund {me}",
        '{"message": "où est mon badge ?"}\n\n{"message": "refund {me}", "other": 1}\n',
    ],
)
def test_standard_input_is_lines_or_json_lines(cues: Cues, stdin: str) -> None:
    ended = run("predict", cues["teams"], "--input", "-", stdin=stdin.encode())
    texts = [json.loads(line)["message"] for line in ended.out.splitlines()]
    assert texts == ["où est mon badge ?", "refund {me}"]


def test_plain_line_that_starts_with_a_brace_is_a_text(cues: Cues) -> None:
    ended = run("predict", cues["teams"], "--input", "-", stdin=b"hello\n{name} did not come\n")
    assert [json.loads(line)["message"] for line in ended.out.splitlines()] == [
        "hello",
        "{name} did not come",
    ]


def test_standard_input_is_read_anew_in_every_call(cues: Cues) -> None:
    for text in ("first", "second"):
        printed = run("predict", cues["teams"], "--input", "-", "--json", stdin=text.encode()).json
        assert [row["message"] for row in printed["rows"]] == [text]


def test_pairs_are_lines_with_a_tab_or_json_lines(cues: Cues) -> None:
    lines = b"where is it?\twhere is my parcel?\n"
    objects = b'{"first": "where is it?", "second": "where is my parcel?"}\n'
    ended = [run("predict", cues["same-request"], "--input", "-", stdin=stdin).out for stdin in (lines, objects)]
    assert ended[0] == ended[1]
    assert json.loads(ended[0])["label"] in ("same", "different")


def test_several_cues_answer_in_one_pass_as_they_do_alone(cues: Cues) -> None:
    texts = b"my parcel never came\nthe whole site is down!\nis there a discount for schools, even small ones?\n"
    names = ("tickets", "urgency")
    together = run("predict", *(cues[name] for name in names), "--input", "-", "--json", stdin=texts).json["rows"]
    assert [len(answer["scores"]) for answer in together[0]["cues"].values()] == [6, 3]
    for name in names:
        alone = run("predict", cues[name], "--input", "-", "--json", stdin=texts).json["rows"]
        for row, item in zip(together, alone, strict=True):
            assert row["text"] == item["text"]
            assert row["cues"][name]["label"] == item["label"]
            assert row["cues"][name]["scores"] == REORDERED_PROBABILITIES.approx(item["scores"])


def test_cues_of_other_columns_share_a_file(cues: Cues, tmp_path: Path) -> None:
    file = csv_file(tmp_path / "r.csv", ("text", "first", "second"), ("hi there", "one", "two"))
    row = run("predict", cues["tickets"], cues["same-request"], "--input", file, "--json").json["rows"][0]
    assert (row["text"], row["first"], row["second"]) == ("hi there", "one", "two")
    assert list(row["cues"]) == ["tickets", "same-request"]


def test_one_cue_s_answers_are_written_as_csv_and_json_lines(cues: Cues, tmp_path: Path) -> None:
    printed = run("predict", cues["teams"], "--input", cues["rows.csv"]).out
    for name in ("out.csv", "out.jsonl"):
        ended = run("predict", cues["teams"], "--input", cues["rows.csv"], "--output", tmp_path / name)
        assert ended == Ended(0, "", "")
    lines = [json.loads(line) for line in printed.splitlines()]
    written = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [{**line, "scores": {}} for line in written] == [{**line, "scores": {}} for line in lines]
    for row, line in zip(written, lines, strict=True):  # which rows share a batch depends on when they arrive
        assert row["scores"] == REORDERED_PROBABILITIES.approx(line["scores"])
    with (tmp_path / "out.csv").open(newline="") as handle:
        rows = list(csv.DictReader(handle))
    for row, line in zip(rows, lines, strict=True):
        assert (row["message"], row["label"]) == (line["message"], line["label"])
        assert float(row["score"]) == REORDERED_PROBABILITIES.approx(line["scores"][line["label"]])
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.csv", "out.jsonl"]


def test_several_cues_answers_are_written_as_csv(cues: Cues, tmp_path: Path) -> None:
    ended = run(
        "predict",
        cues["tickets"],
        cues["urgency"],
        "--input",
        "-",
        "--output",
        tmp_path / "out.csv",
        stdin='it broke, "again"\nzweite Zeile ü\n'.encode(),
    )
    assert ended.code == 0
    with (tmp_path / "out.csv").open(newline="", encoding="utf-8") as handle:
        rows = list(csv.DictReader(handle))
    assert [row["text"] for row in rows] == ['it broke, "again"', "zweite Zeile ü"]
    assert set(rows[0]) == {"text", "tickets.label", "tickets.score", "urgency.label", "urgency.score"}


def test_cut_texts_are_told_on_standard_error(cues: Cues) -> None:
    ended = run("predict", cues["teams"], "--input", "-", "--json", stdin=b"word " * 200)
    assert len(ended.json["rows"]) == 1
    assert ended.err == "1 texts were cut to the backbone's length\n"


def test_inspection_shows_words_for_every_vector(cues: Cues) -> None:
    printed = run("inspect", cues["tickets"], "--top", "3", "--json").json
    assert printed["num_vectors"] == len(printed["vectors"]) == 6
    assert all(len(vector["neighbours"]) == 3 for vector in printed["vectors"])
    table = run("inspect", cues["tickets"], "--top", "3")
    assert (table.code, table.err) == (0, "")
    assert "nearest 3 words" in table.out


def test_demo_compares_three_cues_with_the_baselines(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_folders: dict[str, Path]
) -> None:
    import softcue.api
    from softcue.backbones import load_backbone

    monkeypatch.setattr("softcue.cli.demo.EPOCHS", 1)
    train, backbone = softcue.api.train, load_backbone(str(model_folders["bert"]))
    quick = {"task.train_rows": 16, "task.validation_rows": 8, "task.test_rows": 8}
    monkeypatch.setattr("softcue.backbones.load_backbone", lambda name: backbone)
    monkeypatch.setattr("softcue.api.train", lambda *words, **settings: train(*words, **settings, overrides=quick))
    printed = run("demo", "--output-dir", tmp_path / "cues", "--seeds", "1", "--json").json
    assert [row["task"] for row in printed["rows"]] == ["reply-form", "tickets", "urgency"]
    assert all(0 <= row[key] <= 100 for row in printed["rows"] for key in ("score", "no training", "linear probe"))
    table = run("demo", "--output-dir", tmp_path / "cues", "--seeds", "1")
    assert table.code == 0
    assert "linear probe" in table.out
    assert f"softcue inspect {tmp_path}/cues/reply-form" in table.out


def test_demo_with_several_seeds_shows_mean_and_standard_deviation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_folders: dict[str, Path]
) -> None:
    from statistics import fmean, stdev

    import softcue.api
    from softcue.backbones import load_backbone

    monkeypatch.setattr("softcue.cli.demo.EPOCHS", 1)
    train, backbone = softcue.api.train, load_backbone(str(model_folders["bert"]))
    quick = {"task.train_rows": 16, "task.validation_rows": 8, "task.test_rows": 40}
    monkeypatch.setattr("softcue.backbones.load_backbone", lambda name: backbone)
    monkeypatch.setattr("softcue.api.train", lambda *words, **settings: train(*words, **settings, overrides=quick))
    printed = run("demo", "--output-dir", tmp_path / "cues", "--seeds", "2", "--json").json
    assert (tmp_path / "cues" / "tickets" / "cue.json").is_file()
    assert (tmp_path / "cues" / "seed-1" / "tickets" / "cue.json").is_file()
    for row in printed["rows"]:
        assert len(row["scores"]) == 2 and row["rows"] == 40
        assert row["score"] == pytest.approx(fmean(row["scores"]))
        assert row["standard deviation"] == pytest.approx(stdev(row["scores"]))
    table = run("demo", "--output-dir", tmp_path / "cues", "--seeds", "2")
    assert "sample standard deviation over 2 seeds" in table.out
    assert " ± " in table.out and "majority class" in table.out and "test rows" in table.out
