"""A backbone in a pickle is opened only for a command whose user allows it; no file can allow it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from command import run
from safetensors.torch import load_file

import softcue
from softcue import Engine
from softcue.errors import BackboneError, ConfigurationError
from softcue.inspection import compare_cues
from softcue.serving.settings import ServerSettings

ROWS = [
    {"text": f"{text} {number}", "label": label}
    for number in range(4)
    for text, label in (("please refund invoice", "billing"), ("badge reader is dead", "hardware"))
]
QUICK = {"training.steps": 1, "method.prompt_length": 2}


@pytest.fixture
def folder(model_folders: dict[str, Path], tmp_path: Path) -> Path:
    """A tiny BERT whose weights are a pickle."""
    folder = shutil.copytree(model_folders["bert"], tmp_path / "bert")
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    return folder


@pytest.fixture
def cue(folder: Path, tmp_path: Path) -> Path:
    """A cue on it."""
    softcue.train(
        tmp_path / "cues" / "mine",
        backbone=str(folder),
        train=ROWS,
        validation=ROWS,
        text="text",
        label="label",
        allow_pickle=True,
        overrides=QUICK,
        progress=False,
    )
    return tmp_path / "cues" / "mine"


def test_training_is_refused_unless_it_is_allowed(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(BackboneError, match="--allow-pickle"):
        softcue.train(tmp_path / "cue", backbone=str(folder), train=ROWS, validation=ROWS, overrides=QUICK)


def test_an_override_allows_it_by_name_too(folder: Path, tmp_path: Path) -> None:
    overrides = {**QUICK, "backbone.allow_pickle": True}
    arguments = {"train": ROWS, "validation": ROWS, "text": "text", "label": "label", "progress": False}
    cue = softcue.train(tmp_path / "cue", backbone=str(folder), overrides=overrides, **arguments)  # type: ignore[call-overload]
    assert cue.predict("please refund")


def test_the_run_records_it_and_the_cue_does_not_allow_it(cue: Path) -> None:
    assert yaml.safe_load((cue / "config.yaml").read_text())["backbone"]["allow_pickle"] is True
    with pytest.raises(BackboneError, match="--allow-pickle"):
        softcue.load(cue)
    assert softcue.load(cue, allow_pickle=True).predict("please refund")


@pytest.mark.parametrize("allow", [None, False])
def test_a_configuration_file_alone_does_not_allow_it(cue: Path, tmp_path: Path, allow: bool | None) -> None:
    error = ConfigurationError if allow is None else BackboneError
    with pytest.raises(error, match="--allow-pickle"):
        softcue.train(
            tmp_path / "again",
            train=ROWS,
            validation=ROWS,
            config=cue / "config.yaml",
            allow_pickle=allow,
            progress=False,
        )


def test_a_configuration_file_and_the_user_together_allow_it(cue: Path, tmp_path: Path) -> None:
    for words in (iter(["backbone.allow_pickle=true"]), ["backbone.allow_pickle=true"]):
        softcue.train(
            tmp_path / "again",
            train=ROWS,
            validation=ROWS,
            config=cue / "config.yaml",
            overrides=words,
            overwrite=True,
            progress=False,
        )


@pytest.mark.parametrize(
    "command",
    [
        ["predict", "CUE", "please refund"],
        ["evaluate", "CUE", "--data", "ROWS", "--no-baselines"],
        ["inspect", "CUE", "--json"],
    ],
    ids=["predict", "evaluate", "inspect"],
)
def test_commands_take_the_option(cue: Path, tmp_path: Path, command: list[str]) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    words = [{"CUE": str(cue), "ROWS": str(rows)}.get(word, word) for word in command]
    refused = run(*words)
    assert refused.code == 2
    assert "--allow-pickle" in refused.err
    allowed = run(*words, "--allow-pickle")
    assert allowed.code == 0, allowed.err


def test_the_check_of_a_backbone_takes_the_option(folder: Path) -> None:
    refused = run("backbones", "check", str(folder))
    assert refused.code == 2
    assert "--allow-pickle" in refused.err
    assert run("backbones", "check", str(folder), "--allow-pickle").code == 0


def test_the_engine_and_the_server_need_it_too(cue: Path, folder: Path) -> None:
    with pytest.raises(BackboneError, match="--allow-pickle"):
        Engine(str(folder), cue.parent)
    with Engine(str(folder), cue.parent, allow_pickle=True) as engine:
        assert engine.predict([("mine", "please refund")])
    assert not ServerSettings().allow_pickle
    settings = ServerSettings(allow_pickle=True)
    assert ServerSettings.model_validate(settings.as_plain_data()).allow_pickle


def test_compared_cues_say_why_they_are_not_loaded(cue: Path) -> None:
    other = shutil.copytree(cue, cue.parent / "other")
    assert "--allow-pickle" in " ".join(compare_cues([cue, other]).similarity.notes)
    allowed = compare_cues([cue, other], allow_pickle=True)
    assert not allowed.similarity.is_empty
