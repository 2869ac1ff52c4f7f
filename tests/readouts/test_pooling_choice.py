"""Pooling that is measured on training rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from tiny import tiny
from toy import EXAMPLES, TASK, make_model

from softcue.readouts import pooling_choice
from softcue.readouts.pooling_choice import choose_pooling
from softcue.types import Example

ROWS = [Example((f"{example.texts[0]} {number}",), example.target) for number in range(8) for example in EXAMPLES]
CLASS_OF = {name: number for number, name in enumerate(TASK.label_names)}


def vectors_that_tell(summary: str, rows: Sequence[Example]) -> torch.Tensor:
    """Vectors that say the class with one pooling, and nothing with the others."""
    noise = torch.randn(len(rows), 4, generator=torch.Generator().manual_seed(0))
    return noise if summary != "mean" else noise * 0.01 + torch.tensor([[CLASS_OF[str(r.target)]] * 4 for r in rows])


@pytest.fixture
def telling_mean(monkeypatch: pytest.MonkeyPatch) -> None:
    def vectors(representation: Any, backbone: Any, task: Any, rows: Sequence[Example], limit: int) -> torch.Tensor:
        return vectors_that_tell(representation.summary, rows)

    monkeypatch.setattr(pooling_choice, "sentence_vectors_of", vectors)


@pytest.mark.usefixtures("telling_mean")
def test_the_pooling_on_which_a_probe_scores_best_is_taken() -> None:
    backbone = tiny("bert")
    model = make_model(backbone, "no-prompt", readout={"pooling": "measured"})
    assert model.readout.config.pooling == "cls"  # what this backbone has without measuring
    measured = model.with_measured_pooling(backbone, ROWS)
    assert measured.readout.config.pooling == "mean"
    assert measured.readout.summary == "mean"


@pytest.mark.usefixtures("telling_mean")
def test_too_few_rows_leave_the_usual_pooling() -> None:
    backbone = tiny("bert")
    model = make_model(backbone, "no-prompt", readout={"pooling": "measured"})
    assert model.with_measured_pooling(backbone, EXAMPLES) is model


@pytest.mark.usefixtures("telling_mean")
def test_what_a_folder_says_is_not_measured() -> None:
    backbone = tiny("bert")
    model = make_model(backbone, "no-prompt", readout={"pooling": "measured"})
    said = dataclasses.replace(backbone.sentence_transformers, pooling="cls")
    original = backbone.sentence_transformers
    backbone.sentence_transformers = said
    try:
        assert model.with_measured_pooling(backbone, ROWS) is model
    finally:
        backbone.sentence_transformers = original


def test_a_difference_within_the_noise_of_folds_changes_nothing() -> None:
    backbone = tiny("bert")
    shuffled = [Example(row.texts, ROWS[(number * 7) % len(ROWS)].target) for number, row in enumerate(ROWS)]
    model = make_model(backbone, "no-prompt", readout={"pooling": "measured"})
    assert choose_pooling(model.readout, backbone, shuffled, 32).pooling in ("cls", "mean")


def test_readouts_without_a_pooled_head_have_nothing_to_measure() -> None:
    backbone = tiny("t5")
    model = make_model(backbone, "prompt-tuning", readout={"pooling": "measured"})
    assert model.with_measured_pooling(backbone, ROWS) is model


def test_the_run_records_what_was_measured(tmp_path: Any) -> None:
    import yaml

    from softcue.api import train

    rows = [{"text": row.texts[0], "label": row.target} for row in ROWS]
    train(
        tmp_path / "cue",
        train=rows,
        validation=rows[:8],
        text="text",
        label="label",
        backbone=tiny("bert"),
        method="linear-probe",
        overrides={"readout.pooling": "measured"},
        progress=False,
    )
    config = yaml.safe_load((tmp_path / "cue" / "config.yaml").read_text())
    assert config["readout"]["pooling"] in ("cls", "mean")


@pytest.mark.usefixtures("telling_mean")
def test_pairs_that_the_user_sets_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    from softcue.tasks import Task

    task = Task(name="pairs", text=("text", "second"), labels=TASK.labels)
    rows = [Example((row.texts[0], row.texts[0]), row.target) for row in ROWS]
    backbone = tiny("bert")
    model = make_model(backbone, "no-prompt", task=task, readout={"pooling": "measured", "pairs": "joint"})
    asked: list[bool] = []
    original = pooling_choice._candidates

    def note(task: Any, backbone: Any, usual: Any, may_compare: bool) -> Any:
        asked.append(may_compare)
        return original(task, backbone, usual, may_compare)

    monkeypatch.setattr(pooling_choice, "_candidates", note)
    measured = model.with_measured_pooling(backbone, rows, may_compare=False)
    assert measured.readout.config.pairs == "joint" and asked == [False]
    assert "compared" not in original(task, backbone, "cls", False)
