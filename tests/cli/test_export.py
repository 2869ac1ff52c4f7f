"""`softcue backbones export`: a fine-tuned cue becomes a backbone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tolerance import REORDERED_FLOAT32
from typer.testing import CliRunner

import softcue
from softcue.cli.app import app
from softcue.errors import ConfigurationError

ROWS = [{"text": "the invoice is wrong", "label": "a"}, {"text": "where is my parcel", "label": "b"}] * 4


def trained(folder: Path, backbone: Path, method: str) -> softcue.Cue:
    words = ["training.steps=2", "training.batch_size=4", "training.learning_rate=0.01"]
    return softcue.train(
        folder,
        backbone=str(backbone),
        method=method,
        train=ROWS,
        validation=ROWS,
        text="text",
        label="label",
        overrides=words,
        progress=False,
    )


def test_an_exported_cue_reads_as_the_fine_tuned_model_did(tmp_path: Path, model_folders: dict[str, Path]) -> None:
    cue = trained(tmp_path / "cue", model_folders["bert"], "fine-tuning")
    result = CliRunner().invoke(app, ["backbones", "export", str(tmp_path / "cue"), str(tmp_path / "tuned")])
    assert result.exit_code == 0, result.output
    tuned = softcue.backbones.load_backbone(str(tmp_path / "tuned"))
    twin = cue.model.method.view_of(cue.backbone)
    batch_ids = twin.tokenizer("the invoice is wrong", return_tensors="pt")["input_ids"]
    with torch.no_grad():
        expected, other = (model.base(input_ids=batch_ids).last_hidden_state for model in (twin, tuned))
    REORDERED_FLOAT32.assert_close(expected, other)
    assert tuned.fingerprint != cue.backbone.fingerprint


def test_a_cue_without_weights_of_its_own_is_refused(tmp_path: Path, model_folders: dict[str, Path]) -> None:
    trained(tmp_path / "cue", model_folders["bert"], "prompt-tuning")
    with pytest.raises(ConfigurationError, match="does not change the backbone"):
        CliRunner().invoke(
            app, ["backbones", "export", str(tmp_path / "cue"), str(tmp_path / "out")], catch_exceptions=False
        )
    assert not (tmp_path / "out").exists()


def test_an_existing_folder_is_never_overwritten(tmp_path: Path, model_folders: dict[str, Path]) -> None:
    with pytest.raises(ConfigurationError, match="does not exist yet"):
        CliRunner().invoke(app, ["backbones", "export", "cue", str(tmp_path)], catch_exceptions=False)
