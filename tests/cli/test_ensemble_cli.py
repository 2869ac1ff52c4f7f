"""`--few-shot` on train, and `--vote` on predict and evaluate."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from command import EVALUATED, Ended, check_error, run
from tolerance import REORDERED_FLOAT32, REORDERED_PROBABILITIES

import softcue
from softcue.inference import Predictions
from softcue.run import splits_of_run
from softcue.serving.engine.engine import Engine
from softcue.serving.engine.requests import ServedPrediction
from softcue.types import Example, Prediction


@dataclass(frozen=True)
class Cues:
    folder: Path
    backbone: Path

    def __getitem__(self, name: str) -> Path:
        return self.folder / name

    @property
    def three(self) -> list[Path]:
        return [self.folder / f"seed{seed}" / "teams" for seed in range(3)]

    def train(self, name: str, *words: object) -> Ended:
        return run(
            "train",
            "--train",
            self["rows.csv"],
            "--backbone",
            self.backbone,
            "--output-dir",
            self[name],
            "training.steps=2",
            "method.prompt_length=4",
            *words,
        )


# Cues that have hardly learned answer differently.
UNTAUGHT = ["readout.head_start=random", "readout.refit=false", "readout.centre=false", "training.contrastive=0"]


@pytest.fixture(scope="module")
def cues(tmp_path_factory: pytest.TempPathFactory, model_folders: dict[str, Path]) -> Cues:
    """Three cues of one task with one folder name, two for a score, and two that answer or read something else."""
    cues = Cues(tmp_path_factory.mktemp("cues"), model_folders["bert"])
    with cues["rows.csv"].open("w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(("message", "copy", "team", "tone", "score"))
        for number in range(24):
            text, team, tone = [
                ("please refund invoice {}", "billing", "kind"),
                ("badge reader {} is dead", "hardware", "curt"),
            ][number % 2]
            writer.writerow((text.format(number), text.format(number), team, tone, number % 5))
    options = ["--text", "message", "--label"]
    wanted: dict[str, list[object]] = {f"seed{seed}/teams": [*options, "team", "--seed", seed] for seed in range(3)}
    wanted |= {f"score{seed}": [*options, "score", "task.kind=regression", "--seed", seed] for seed in range(2)}
    wanted |= {"tone": [*options, "tone"], "copy": ["--text", "copy", "--label", "team"]}
    for name, words in wanted.items():
        ended = cues.train(name, *words, *UNTAUGHT)
        assert ended.code == 0, ended.err
    return cues


BALLOTS = [  # rows of three cues' probabilities of "billing"
    (0.9, 0.8, 0.1),  # two against one
    (0.45, 0.45, 0.95),  # the sure one is outvoted
    (0.2, 0.3, 0.4),
]
WINNERS = ["billing", "hardware", "hardware"]


def hold_the_vote(monkeypatch: pytest.MonkeyPatch, ballots: list[tuple[float, ...]]) -> list[list[Any]]:
    """Let cues answer by hand-worked probabilities; the passes that were asked for."""
    passes: list[list[Any]] = []

    def answers(backbone: object, requests: Sequence[tuple[Any, Example]], batch_size: int = 64) -> Predictions:
        passes.append([model for model, _ in requests])
        flat = [probability for cue in zip(*ballots, strict=True) for probability in cue]
        result = [
            Prediction("billing" if p > 0.5 else "hardware", scores={"billing": p, "hardware": 1 - p}) for p in flat
        ]
        assert len(result) == len(requests)
        return Predictions(result, 0)

    def results(engine: Engine, items: Sequence[tuple[str, Example]]) -> list[ServedPrediction]:
        result = answers(None, [(engine.registry[name].cue.model, example) for name, example in items])
        return [ServedPrediction(item, {}, {}, False, 0.0, 0.0) for item in result.predictions]

    monkeypatch.setattr("softcue.inference.predict", answers)
    monkeypatch.setattr("softcue.serving.engine.engine.Engine.predict", results)
    return passes


LINES = b"first text\nsecond text\nthird text\n"


def test_vote_is_one_answer_per_row_with_its_counts(cues: Cues, monkeypatch: pytest.MonkeyPatch) -> None:
    passes = hold_the_vote(monkeypatch, BALLOTS)
    rows = run("predict", *cues.three, "--vote", "--input", "-", "--json", stdin=LINES).json["rows"]
    assert [set(row) for row in rows] == [{"message", "label", "scores", "votes"}] * 3
    assert [row["message"] for row in rows] == LINES.decode().split("\n")[:3]
    assert [row["label"] for row in rows] == WINNERS
    assert [row["votes"] for row in rows] == [
        {"billing": 2, "hardware": 1},
        {"hardware": 2, "billing": 1},
        {"hardware": 3},
    ]
    assert rows[0]["scores"] == pytest.approx({"billing": 0.6, "hardware": 0.4})
    assert rows[1]["scores"]["billing"] == pytest.approx(1.85 / 3)  # likelier, and outvoted
    assert len(passes) == 1  # all cues' rows go through the mixed batches together
    assert len({id(model) for model in passes[0]}) == 3


def test_vote_is_written_as_csv(cues: Cues, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold_the_vote(monkeypatch, BALLOTS)
    words = ["--vote", "--input", "-", "--output", tmp_path / "out.csv"]
    assert run("predict", *cues.three, *words, stdin=LINES) == Ended(0, "", "")
    assert (tmp_path / "out.csv").read_text() == (
        "message,label,score,votes\n"
        "first text,billing,0.6,2\nsecond text,hardware,0.383333,2\nthird text,hardware,0.7,3\n"
    )


def test_vote_is_of_what_the_cues_answer_alone(cues: Cues) -> None:
    voted = run("predict", *cues.three, "--vote", "--input", cues["rows.csv"], "--batch-size", "7", "--json").json
    alone = [run("predict", path, "--input", cues["rows.csv"], "--json").json["rows"] for path in cues.three]
    assert len(voted["rows"]) == 24
    assert any(len(row["votes"]) == 2 for row in voted["rows"])  # else this test would show little
    for row, *answers in zip(voted["rows"], *alone, strict=True):
        counts = Counter(answer["label"] for answer in answers)
        assert row["votes"] == counts
        assert row["label"] == counts.most_common(1)[0][0]  # three cues and two labels: no ties
        for label, probability in row["scores"].items():
            assert probability == REORDERED_PROBABILITIES.approx(sum(answer["scores"][label] for answer in answers) / 3)


def test_scores_are_averaged(cues: Cues) -> None:
    both = [cues["score0"], cues["score1"]]
    alone = [run("predict", cue, "--input", "-", "--json", stdin=LINES).json["rows"] for cue in both]
    rows = run("predict", *both, "--vote", "--input", "-", "--json", stdin=LINES).json["rows"]
    for row, *answers in zip(rows, *alone, strict=True):
        assert set(row) == {"message", "value"}
        assert row["value"] == REORDERED_FLOAT32.approx(sum(answer["value"] for answer in answers) / 2)
    assert {row["value"] for row in alone[0]} != {row["value"] for row in alone[1]}


def test_one_cue_is_its_own_vote(cues: Cues) -> None:
    alone = run("predict", cues.three[0], "--input", "-", "--json", stdin=LINES).json["rows"]
    voted = run("predict", cues.three[0], "--vote", "--input", "-", "--json", stdin=LINES).json["rows"]
    assert voted == [row | {"votes": {row["label"]: 1}} for row in alone]


def test_evaluation_scores_the_vote_and_each_cue(cues: Cues, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("message,team\nfirst,billing\nsecond,hardware\nthird,billing\n")
    passes = hold_the_vote(monkeypatch, BALLOTS)
    printed = run("evaluate", *cues.three, "--vote", "--data", file, "--json").json
    assert set(printed) == {"data", "rows", "vote", "cues", "truncated", "baselines"}
    assert (printed["data"], printed["rows"], printed["truncated"]) == (str(file), 3, 0)
    # billing, hardware, billing are true; the vote says billing, hardware, hardware
    assert printed["vote"]["scores"]["accuracy"] == pytest.approx(200 / 3)
    assert printed["vote"]["predicted_labels"] == {"billing": 1, "hardware": 2}
    # the first two cues say the same as the vote; the third hardware, billing, hardware
    accuracies = {path: item["scores"]["accuracy"] for path, item in printed["cues"].items()}
    assert accuracies == pytest.approx(dict(zip(map(str, cues.three), (200 / 3, 200 / 3, 0.0), strict=True)))
    assert len(passes) == 1


def test_evaluated_vote_is_a_table_with_a_row_per_cue(cues: Cues) -> None:
    ended = run("evaluate", *cues.three, "--vote", "--data", cues["rows.csv"])
    assert ended.code == 0
    lines = ended.out.splitlines()
    for name in (*map(str, cues.three), "vote"):
        assert any(line.startswith(f"│ {name} ") and " 24 " in line for line in lines), ended.out
    assert all(word in ended.out for word in ("3 cues on", "accuracy", "macro_f1", "matthews"))


def test_each_cue_scores_with_the_vote_as_it_does_alone(cues: Cues) -> None:
    for names in (["seed0/teams", "seed1/teams"], ["score0", "score1"]):
        paths = [cues[name] for name in names]
        together = run("evaluate", *paths, "--vote", "--data", cues["rows.csv"], "--json").json["cues"]
        for path in paths:
            alone = run("evaluate", path, "--data", cues["rows.csv"], "--json").json
            assert set(alone) == EVALUATED
            assert together[str(path)]["scores"] == pytest.approx(alone["scores"], abs=1e-3)


@pytest.mark.parametrize("verb", ["predict", "evaluate"])
@pytest.mark.parametrize(
    ("other", "parts"),
    [
        ("tone", ["answers curt, kind", "answers billing, hardware"]),
        ("copy", ["reads copy", "reads message"]),
        ("score0", ["is for regression", "is for classification"]),
    ],
)
def test_cues_of_another_task_have_no_vote(cues: Cues, verb: str, other: str, parts: list[str]) -> None:
    source = ["--input" if verb == "predict" else "--data", cues["rows.csv"]]
    ended = run(verb, cues.three[0], cues[other], "--vote", *source)
    check_error(ended, "cues", f"{cues[other]}: ", "name cues of one task", *parts)


@pytest.mark.parametrize("verb", ["predict", "evaluate"])
def test_no_cue_has_two_votes(cues: Cues, verb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(cues.folder)
    source = ["--input" if verb == "predict" else "--data", cues["rows.csv"]]
    check_error(run(verb, cues.three[0], "seed0/teams", "--vote", *source), "cues", "every cue once")


def test_evaluating_several_cues_without_a_vote_is_refused(cues: Cues) -> None:
    check_error(run("evaluate", *cues.three, "--data", cues["rows.csv"]), "cues", "one cue", "pass --vote")


def test_text_column_called_votes_is_told_from_the_answer(cues: Cues, tmp_path: Path) -> None:
    file = tmp_path / "rows.csv"
    file.write_text("votes,team\n" + "".join(f"text {n},{'ab'[n % 2]}\n" for n in range(12)))
    cue = tmp_path / "cue"
    ended = run(
        "train",
        "--train",
        file,
        "--text",
        "votes",
        "--label",
        "team",
        "--backbone",
        cues.backbone,
        "--output-dir",
        cue,
        "training.steps=1",
        "method.prompt_length=4",
    )
    assert ended.code == 0, ended.err
    row = run("predict", cue, "--vote", "--input", "-", "--json", stdin=b"hello").json["rows"][0]
    assert row["input.votes"] == "hello"
    assert row["votes"] == {row["label"]: 1}


# --- few-shot training ---


def test_few_shot_trains_on_that_many_rows(cues: Cues, tmp_path: Path) -> None:
    words = ["--text", "message", "--label", "team", "--overwrite", "task.validation_rows=8", "task.stratified=true"]
    ended = cues.train("few", *words, "--few-shot", "6")
    assert ended.code == 0, ended.err
    assert "warning" not in ended.err
    rows = splits_of_run(cues["few"])
    assert Counter(row.target for row in rows.train) == {"billing": 3, "hardware": 3}
    assert len(rows.validation) == 8
    record = json.loads((cues["few"] / "cue.json").read_text())["training"]
    assert (record["train_rows"], record["validation_rows"]) == (6, 8)
    cue = softcue.train(
        tmp_path / "cue",
        train=str(cues["rows.csv"]),
        text="message",
        label="team",
        few_shot=6,
        progress=False,
        backbone=str(cues.backbone),
        overrides={"task.validation_rows": 8, "task.stratified": True, "training.steps": 2, "method.prompt_length": 4},
    )
    assert cue.cue_file.training["run"] == record["run"]  # the same rows and settings


def test_bad_few_shot_settings_are_refused_and_nothing_written(cues: Cues) -> None:
    options = ["--text", "message", "--label", "team", "--few-shot"]
    check_error(cues.train("no", *options, "6", "task.train_rows=9"), "task.few_shot", "6", "task.train_rows", "9")
    check_error(cues.train("no", *options, "24"), "task.few_shot", "24 distinct training texts", "--validation FILE")
    check_error(cues.train("no", *options, "-1"), "task.few_shot", "-1", "greater than or equal to 0")
    check_error(cues.train("no", *options, "6", "task.swap_pairs=true"), "task.swap_pairs", "two texts", "'message'")
    ended = cues.train("no", *options, "6", "task.validation_rows=4", "task.label_descriptions.biling=About money.")
    check_error(ended, "task.label_descriptions", "did you mean 'billing'?")
    assert not cues["no"].exists()


def test_descriptions_and_swapped_pairs_reach_the_cue(cues: Cues) -> None:
    ended = cues.train(
        "pairs",
        "--text",
        "message,copy",
        "--label",
        "team",
        "task.swap_pairs=true",
        "--few-shot",
        "6",
        "task.validation_rows=4",
        "task.label_descriptions.billing='It is about money.'",
    )
    assert ended.code == 0, ended.err
    record = json.loads((cues["pairs"] / "cue.json").read_text())
    assert record["task"]["labels"]["billing"]["description"] == "It is about money."
    assert (record["training"]["train_rows"], record["training"]["validation_rows"]) == (12, 4)
