"""Tasks whose answers stand in the text, several tasks on one prompt, and other tasks' rows, by the commands alone."""

from __future__ import annotations

import csv
import gzip
import json
from pathlib import Path

import pytest
import yaml
from command import check_error, run
from published_files import write_published_files
from tiny import tiny
from tolerance import REORDERED_PROBABILITIES
from toy import make_model

from softcue.cli import predict as predict_command
from softcue.tasks import Task
from softcue.types import Example, Prediction, Span

SMALL = ["training.steps=3", "training.batch_size=4", "method.prompt_length=4", "task.validation_share=0.3"]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_published_files(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def cues(data: Path, tmp_path_factory: pytest.TempPathFactory, model_folders: dict[str, Path]) -> Path:
    """A span and a tag cue on an encoder, a span cue on an encoder-decoder, and paraphrases with two seeds."""
    folder = tmp_path_factory.mktemp("cues")
    wanted = {
        "span": ("squad", "bert", []),
        "tags": ("conll2003", "bert", []),
        "written": ("squad", "t5", []),
        "same0": ("qqp", "bert", []),
        "same1": ("qqp", "bert", ["--seed", "1"]),
    }
    for name, (task, family, words) in wanted.items():
        ended = run(
            "train",
            "--task",
            task,
            "--data",
            data,
            "--backbone",
            model_folders[family],
            "--output-dir",
            folder / name,
            *SMALL,
            *words,
        )
        assert ended.code == 0, ended.err
    return folder


def test_span_answers_come_back_in_places_of_the_text(cues: Path, tmp_path: Path) -> None:
    text = "We moved the crate from Turin to Rome yesterday."
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps({"question": "Where is it?", "context": text}) + "\n")
    for name in ("span", "written"):
        ended = run("predict", cues / name, "--input", rows)
        assert ended.code == 0, ended.err
        line = json.loads(ended.out)
        for span in line["spans"]:
            assert text[span["start"] : span["end"]] == line["label"]
    assert len(json.loads(run("predict", cues / "span", "--input", rows).out)["spans"]) == 1


def test_marks_come_back_as_lines_and_as_csv(cues: Path, tmp_path: Path) -> None:
    ended = run("predict", cues / "tags", "--input", "-", stdin=b"Bob went to Oslo .\n")
    assert ended.code == 0, ended.err
    line = json.loads(ended.out)
    assert all(set(span) == {"start", "end", "label"} for span in line["spans"])
    assert isinstance(line["label"], str)
    rows = tmp_path / "rows.csv"
    rows.write_text("text\nBob went to Oslo .\n")
    assert run("predict", cues / "tags", "--input", rows, "--output", tmp_path / "out.csv").code == 0
    [row] = csv.DictReader((tmp_path / "out.csv").read_text().splitlines())
    shown = " ".join(f"{span['start']}-{span['end']}:{span['label']}" for span in line["spans"])
    assert row == {"text": "Bob went to Oslo .", "label": line["label"], "spans": shown}


def test_scores_of_each_kind_are_those_of_its_task(cues: Path, data: Path) -> None:
    for name, metrics in {
        "span": {"exact_match", "word_f1"},
        "written": {"exact_match", "word_f1"},
        "tags": {"span_f1", "span_precision", "span_recall"},
    }.items():
        ended = run("evaluate", cues / name, "--data", data, "--json")
        assert ended.code == 0, ended.err
        assert metrics <= set(json.loads(ended.out)["scores"])


@pytest.mark.parametrize(("cue", "task", "rows"), [("span", "squadshifts-amazon", 3), ("same0", "mrpc", 16)])
def test_a_cue_is_scored_on_another_tasks_rows(cues: Path, data: Path, cue: str, task: str, rows: int) -> None:
    ended = run("evaluate", cues / cue, "--data", data, "--task", task, "--json")
    assert ended.code == 0, ended.err
    events = json.loads(ended.out)
    assert events["rows"] == rows
    assert events["data"].startswith(task)
    fewer = run("evaluate", cues / cue, "--data", data, "--task", task, "--rows", "2", "--json")
    assert json.loads(fewer.out)["rows"] == 2


def test_incompatible_rows_are_refused(cues: Path, data: Path) -> None:
    check_error(
        run("evaluate", cues / "same0", "--data", data, "--task", "squad"), "--task", "classification, not span"
    )
    check_error(run("evaluate", cues / "same0", "--data", data, "--task", "cb"), "--task", "labels that stand for")
    words = ["evaluate", cues / "same0", "--data", data, "--split"]
    check_error(run(*words, "test"), "--split", "'test'", "one that is there: train, validation")
    check_error(run(*words, "dev"), "--split", "'dev'", "train, validation, test")
    file = ["evaluate", cues / "same0", "--data", data / "QQP/dev.tsv"]
    check_error(run(*file, "--split", "test"), "--split", "leave it out for a file")


def test_two_cues_as_one_by_vote_and_by_mean(cues: Path, data: Path) -> None:
    both = [cues / "same0", cues / "same1"]
    events = json.loads(run("evaluate", *both, "--mean", "--data", data, "--json").out)
    assert set(events) == {"data", "rows", "mean", "truncated", "cues", "baselines"}
    assert len(events["cues"]) == 2
    line = run("predict", *both, "--mean", "--input", "-", stdin=b"the parcel is here\tit came\n")
    scores = json.loads(line.out)["scores"]
    each = [json.loads(run("predict", cue, "--input", "-", stdin=b"the parcel is here\tit came\n").out) for cue in both]
    for label, value in scores.items():
        assert value == REORDERED_PROBABILITIES.approx(sum(item["scores"][label] for item in each) / 2)
    assert json.loads(line.out)["label"] == max(scores, key=scores.__getitem__)
    check_error(run("evaluate", *both, "--mean", "--vote", "--data", data), "--vote", "one of the two")
    spans = [cues / "span", cues / "span"]
    check_error(run("evaluate", *spans, "--mean", "--data", data), "cues", "every cue once")


def test_spans_have_no_probabilities_to_average(cues: Path, data: Path) -> None:
    check_error(run("evaluate", cues / "span", "--mean", "--data", data), "--mean", "use --vote")


def test_several_tasks_share_a_prompt_and_get_a_cue_each(
    data: Path, tmp_path: Path, model_folders: dict[str, Path]
) -> None:
    ended = run(
        "train",
        "--tasks",
        "qqp, conll2003,squad",
        "--data",
        data,
        "--backbone",
        model_folders["bert"],
        "--output-dir",
        tmp_path / "all",
        *SMALL,
        "mixture.sampling=equal",
        "--json",
        "method.prompt_length=6",
    )
    assert ended.code == 0, ended.err
    assert [Path(cue["cue"]).name for cue in json.loads(ended.out)["cues"]] == ["qqp", "conll2003", "squad"]
    together = [tmp_path / "all" / name for name in ("conll2003", "squad")]
    for cue, kind in zip(together, ("span_f1", "exact_match"), strict=True):
        assert kind in json.loads(run("evaluate", cue, "--data", data, "--json").out)["scores"]
    check_error(run("train", "--tasks", "qqp,squad", "--task", "qqp", "--output-dir", tmp_path / "x"), "--task")


def test_a_task_without_rows_says_where_they_are_to_be_put(tmp_path: Path) -> None:
    check_error(run("train", "--task", "conll2003", "--output-dir", tmp_path / "x"), "--data FOLDER", "eng.train")
    check_error(run("train", "--task", "axb", "--output-dir", tmp_path / "x"), "testing only")
    swapped = ["train", "--task", "squad", "--output-dir", tmp_path / "x", "task.swap_pairs=true"]
    check_error(run(*swapped), "task.swap_pairs", "not span")
    (tmp_path / "odd.yaml").write_text("format: nosuch\ntrain: rows.csv\n")
    check_error(run("train", "--task", tmp_path / "odd.yaml", "--output-dir", tmp_path / "x"), "'format'", "nosuch")


def test_a_task_of_ones_own_is_a_file(tmp_path: Path, model_folders: dict[str, Path]) -> None:
    rows = [{"body": f"where is parcel {number}", "urgent": number % 2} for number in range(12)]
    with gzip.open(tmp_path / "rows.jsonl.gz", "wt") as file:
        file.write("".join(json.dumps(row) + "\n" for row in rows))
    task = {
        "name": "mine",
        "text": ["text"],
        "columns": {"text": ["body"]},
        "label": "urgent",
        "labels": {"yes": {"words": "yes", "also": ["1"]}, "no": {"words": "no", "also": ["0"]}},
        "train": "rows.jsonl.gz",
    }
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(task, sort_keys=False))
    ended = run(
        "train",
        "--task",
        tmp_path / "mine.yaml",
        "--backbone",
        model_folders["bert"],
        "--output-dir",
        tmp_path / "cue",
        *SMALL,
    )
    assert ended.code == 0, ended.err
    again = run("evaluate", tmp_path / "cue", "--task", tmp_path / "mine.yaml", "--split", "train", "--json")
    assert json.loads(again.out)["rows"] == 12, again.err
    del task["labels"]  # left to the rows
    (tmp_path / "open.yaml").write_text(yaml.safe_dump(task | {"name": "open"}, sort_keys=False))
    words = ["train", "--task", tmp_path / "open.yaml", "--backbone", model_folders["bert"], "--output-dir"]
    assert run(*words, tmp_path / "open", *SMALL).code == 0
    scored = run("evaluate", tmp_path / "open", "--task", tmp_path / "open.yaml", "--split", "train", "--json")
    assert json.loads(scored.out)["rows"] == 12, scored.err
    record = json.loads((tmp_path / "cue/cue.json").read_text())
    assert (record["task"]["name"], list(record["task"]["labels"])) == ("mine", ["yes", "no"])


@pytest.mark.filterwarnings("always:skipped")
def test_bad_rows_are_counted_shown_and_skipped_only_when_asked(tmp_path: Path, model_folders: dict[str, Path]) -> None:
    lines = [json.dumps({"text": f"parcel {number}", "label": "ab"[number % 2]}) for number in range(20)]
    lines += ["{broken", "[]"] + [json.dumps({"text": "", "label": "a"})] * 10
    (tmp_path / "rows.jsonl").write_text("\n".join(lines))
    words = [
        "train",
        "--train",
        tmp_path / "rows.jsonl",
        "--backbone",
        model_folders["bert"],
        "--output-dir",
        tmp_path / "cue",
        *SMALL,
    ]
    bad_rows = run(*words)
    check_error(bad_rows, "error: --train: got", "12 bad rows", "the first 10", "--skip-bad-rows")
    lines = bad_rows.err.splitlines()[1:]
    assert [f"line {21 + number}" in line for number, line in enumerate(lines)] == [True] * 10
    assert not (tmp_path / "cue").exists()
    ended = run(*words, "--skip-bad-rows")
    assert ended.code == 0
    assert "warning: skipped 12 of 32 rows" in ended.err


def test_long_files_are_answered_in_pieces(cues: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with gzip.open(tmp_path / "rows.csv.gz", "wt") as file:
        file.write("text\n" + "".join(f"Bob saw Oslo {number}\n" for number in range(11)))
    whole = run("predict", cues / "tags", "--input", tmp_path / "rows.csv.gz")
    monkeypatch.setattr("softcue.serving.prediction_lines.ROWS_AT_ONCE", 3)
    pieces = run("predict", cues / "tags", "--input", tmp_path / "rows.csv.gz")
    assert pieces.code == 0
    assert pieces.out == whole.out
    assert len(pieces.out.splitlines()) == 11
    for name in ("out.csv", "out.jsonl"):
        assert run("predict", cues / "tags", "--input", tmp_path / "rows.csv.gz", "--output", tmp_path / name).code == 0
    assert len((tmp_path / "out.csv").read_text().splitlines()) == 12
    assert (tmp_path / "out.jsonl").read_text() == whole.out


def test_illegal_answers_are_marked_and_fit_into_the_same_table() -> None:
    legal, illegal = Prediction(None, value=3.2).as_dict(), Prediction("junk", is_illegal=True).as_dict()
    assert illegal == {"label": "junk", "illegal": True}
    [text] = predict_command._csv(
        [[{"a": "x", **legal}, {"a": "y", **illegal}]], with_scores=False, separators={"": ";"}
    )
    assert list(csv.DictReader(text.splitlines())) == [
        {"a": "x", "value": "3.2", "label": "", "illegal": ""},
        {"a": "y", "value": "", "label": "junk", "illegal": "True"},
    ]


def test_a_written_answer_is_placed_at_whole_words() -> None:
    task = Task(name="qa", kind="span", text=("question", "context"))
    model = make_model(tiny("t5"), task=task)
    context = "The party  had art in it."
    for answer, place in {"art": (15, 18), "party had": (4, 14), "par": (4, 7)}.items():
        assert model.merge(Example(("?", context)), [Prediction(answer)]).spans == (Span(*place),)
    assert model.merge(Example(("?", context)), [Prediction("museum")]).spans == ()
