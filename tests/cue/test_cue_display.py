"""What a cue says of itself: repr, notebook view, score table and training curve."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tiny import tiny

import softcue
from softcue import Cue
from softcue.cue.cue_file import CueFile
from softcue.cue.score_table import baseline_notes, score_table
from softcue.cue.training_curve import NO_CURVE, read_training_curve

ROWS = [
    {"text": f"{text} {number}", "label": label, "stars": float(number)}
    for number in range(5)
    for text, label in [("my invoice is <wrong>", "billing"), ("the parcel is late", "a<b>")]
]


def train(folder: Path, **settings: object) -> Cue:
    few = {"training.epochs": 3, "training.batch_size": 5, "method.prompt_length": 3, "training.label_share": 0}
    overrides = {**few, **dict(settings.pop("overrides", {}))}  # type: ignore[call-overload]
    given = {"method": "prompt-tuning", "train": ROWS, "validation": ROWS, "test": ROWS[:4], **settings}
    return softcue.train(folder, backbone=tiny("bert"), overrides=overrides, progress=False, **given)


@pytest.fixture(scope="module")
def cue(tmp_path_factory: pytest.TempPathFactory) -> Cue:
    return train(tmp_path_factory.mktemp("cues") / "tickets")


def as_version_01(cue_file: CueFile) -> CueFile:
    """The content of cue.json as version 0.1 wrote it: without rows and baselines."""
    training = {key: value for key, value in cue_file.training.items() if key != "constant_prediction"}
    return cue_file.model_copy(update={"rows": {}, "baselines": {}, "training": training})


def test_notes_name_the_baseline_that_an_older_cue_did_not_record(cue: Cue) -> None:
    assert baseline_notes(cue.cue_file) == []
    [note] = baseline_notes(as_version_01(cue.cue_file))
    assert "no majority class" in note and "earlier version" in note


def test_notes_say_that_zero_shot_is_constant_for_pairs_on_encoders(cue: Cue) -> None:
    pairs = cue.task.model_copy(update={"text": ("first", "second")})
    [note] = baseline_notes(cue.cue_file.model_copy(update={"task": pairs}))
    assert "zero-shot is always 'a<b>'" in note


def test_repr_says_task_method_backbone_labels_scores_rows_and_parameters(cue: Cue) -> None:
    text = repr(cue)
    for word in ("Cue 'tickets'", "classification", "prompt-tuning", "tiny-bert", "a<b>, billing", "96 trainable"):
        assert word in text
    lines = {line.split()[0]: line for line in text.splitlines()[1:]}
    accuracy = cue.scores["validation"]["accuracy"]
    assert f"accuracy {accuracy:.1f} (majority class 50.0, zero-shot " in lines["validation"]
    assert lines["validation"].endswith("10 rows: fewer than 30")
    assert lines["test"].endswith("4 rows: fewer than 30")
    assert max(map(len, text.splitlines())) <= 160


def test_repr_of_a_cue_with_very_many_labels_stays_short(cue: Cue) -> None:
    label = cue.task.labels["billing"]
    task = cue.task.model_copy(update={"labels": {f"label{number}": label for number in range(300)}})
    many = Cue(cue.model, cue.backbone, cue.cue_file.model_copy(update={"task": task}))
    assert "(300 in all)" in repr(many)
    assert len(repr(many)) < 1500


def test_notebook_view_is_well_formed_with_table_and_curve(cue: Cue) -> None:
    page = cue._repr_html_()
    ElementTree.fromstring(f"<body>{page}</body>")
    assert "a&lt;b&gt;" in page and "a<b>" not in page
    assert page.count("<svg") == 2
    assert "zero-shot" in page and "10 (few)" in page
    assert "<script" not in page and "<style" not in page  # notebooks remove them


def test_old_cues_load_and_say_what_they_do_not_know(cue: Cue, tmp_path: Path) -> None:
    old = Cue(cue.model, cue.backbone, as_version_01(cue.cue_file))
    folder = old.save(tmp_path / "old")
    values = json.loads((folder / "cue.json").read_text("utf-8"))
    for key in ("rows", "baselines"):
        del values[key]  # the file of version 0.1 does not have them at all
    content = {key: value for key, value in values.items() if key != "record_sha256"}
    from softcue.cue.cue_file import cue_file_digest

    values["record_sha256"] = cue_file_digest(content)
    (folder / "cue.json").write_text(json.dumps(values))
    loaded = softcue.load(folder, cue.backbone)
    assert (loaded.cue_file.num_rows("validation"), loaded.cue_file.num_rows("test")) == (10, None)
    assert "unknown number of rows" in repr(loaded)
    table = score_table(loaded.cue_file)
    assert [row[:3] for row in table.rows] == [
        ["validation", "10 (few)", "prompt-tuning"],
        ["test", "unknown", "prompt-tuning"],
    ]
    assert any("earlier version" in note for note in table.notes)


def test_regression_is_compared_with_the_mean_target(tmp_path: Path) -> None:
    cue = train(tmp_path / "stars", label="stars", overrides={"task.kind": "regression"})
    table = score_table(cue.cue_file)
    assert [row[2] for row in table.rows] == ["prompt-tuning", "mean target"] * 2
    assert cue.cue_file.constant_prediction == 2.0
    assert cue.cue_file.baselines["validation"]["mean_target"]["rmse"] == pytest.approx(2**0.5)
    assert any("no zero-shot score" in note for note in table.notes)


def test_curve_has_the_loss_of_every_step_and_every_validation_score(cue: Cue) -> None:
    curve = cue.training_curve
    assert [step for step, _ in curve.losses] == [1, 2, 3, 4, 5, 6]
    assert [step for step, _ in curve.scores] == [0, 2, 4, 6]  # the solved head first
    assert curve.metric == "accuracy"
    assert curve.best == (cue.cue_file.training["best_step"], cue.scores["validation"]["accuracy"])
    num_rows = cue.cue_file.rows["validation"]
    titles = [line.split("  ")[0].strip() for line in curve.as_text()]
    assert titles == ["training loss", f"validation accuracy on {num_rows} rows"]


def test_a_cue_copied_without_its_step_log_keeps_the_validation_curve(cue: Cue, tmp_path: Path) -> None:
    assert cue.path is not None
    copied = Path(shutil.copytree(cue.path, tmp_path / "copied"))
    (copied / "metrics.jsonl").unlink()
    curve = read_training_curve(copied, cue.cue_file)
    assert (curve.losses, curve.scores) == ([], cue.training_curve.scores)
    (copied / "metrics.json").write_text("{damaged")
    empty = read_training_curve(copied, cue.cue_file)
    assert empty.is_empty
    assert empty.as_text() == [NO_CURVE]
    assert NO_CURVE in empty.as_html()
    shutil.copy(cue.path / "metrics.jsonl", copied)
    assert read_training_curve(copied, cue.cue_file).scores == cue.training_curve.scores


def test_damaged_lines_of_a_step_log_are_passed_over(cue: Cue, tmp_path: Path) -> None:
    lines = [
        '{"kind": "step", "step": 1, "loss": 0.5}',
        '{"kind": "step", "step": 2',
        "[]",
        '{"step": "x", "loss": null}',
    ]
    (tmp_path / "metrics.jsonl").write_text("\n".join(lines))
    assert read_training_curve(tmp_path, cue.cue_file).losses == [(1, 0.5)]


def test_cues_of_a_joint_run_show_their_own_score_and_the_common_loss(tmp_path: Path) -> None:
    few = {"training.steps": 2, "training.evaluate_every": 1, "method.prompt_length": 9, "task.train_rows": 8}
    few |= {"task.validation_rows": 4, "task.test_rows": 4}
    cues = softcue.train(
        tmp_path / "run", tasks=["tickets", "urgency"], backbone=tiny("bert"), overrides=few, progress=False
    )
    for cue in cues.values():
        curve = cue.training_curve
        assert len(curve.losses) == len(curve.scores) - 1 == 2  # the start has no loss
        assert curve.best is not None
        assert curve.best[1] == pytest.approx(cue.scores["validation"]["accuracy"])


def test_a_cue_without_a_folder_has_an_empty_curve(cue: Cue) -> None:
    unsaved = Cue(cue.model, cue.backbone, cue.cue_file)
    assert unsaved.training_curve.is_empty
    ElementTree.fromstring(f"<body>{unsaved._repr_html_()}</body>")


def test_score_table_names_the_metric_of_a_paper(cue: Cue) -> None:
    task = cue.task.model_copy(update={"paper_metrics": {"VIP": "macro_f1"}})
    notes = score_table(cue.cue_file.model_copy(update={"task": task})).notes
    assert notes[-1] == f"VIP reports macro_f1 on {task.name}; the official metric is accuracy"
