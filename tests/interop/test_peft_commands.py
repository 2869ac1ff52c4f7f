"""`softcue import` and `softcue export --to peft` on the command line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from interop.test_peft_import import PROMPT, save_peft
from typer.testing import CliRunner

import softcue
from softcue.cli.app import app
from softcue.errors import ConfigurationError

LABELS = ["--labels", "account,billing"]


def run(*words: str) -> Any:
    result = CliRunner().invoke(app, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result


def test_a_folder_goes_into_softcue_and_out_again(tmp_path: Path, model_folders: dict[str, Path]) -> None:
    model = model_folders["gpt2"]
    backbone = softcue.backbones.load_backbone(str(model))
    save_peft(tmp_path / "peft", backbone, "PrefixTuningConfig", **PROMPT)
    options = ["--backbone", str(model), *LABELS, "--text", "message", "--template", "Text : {message}"]
    made = run(
        "import", str(tmp_path / "peft"), str(tmp_path / "cue"), "readout.answer_prefix=' Label:'", *options, "--json"
    )
    assert json.loads(made.stdout)["method"] == "prefix-tuning"
    cue = softcue.load(tmp_path / "cue", backbone)
    assert cue.model.formatter.templates == ["Text : {message} Label:"]
    assert cue.predict("hello")[0].label in ("account", "billing")
    run("export", str(tmp_path / "cue"), str(tmp_path / "out"), "--to", "peft")
    assert (tmp_path / "out" / "adapter_config.json").exists()
    assert json.loads((tmp_path / "out" / "adapter_config.json").read_text())["base_model_name_or_path"] == str(model)


def test_a_task_by_name_has_its_own_columns(tmp_path: Path, model_folders: dict[str, Path]) -> None:
    backbone = softcue.backbones.load_backbone(str(model_folders["gpt2"]))
    save_peft(tmp_path / "peft", backbone, "PromptTuningConfig", **PROMPT)
    words = [
        str(tmp_path / "peft"),
        str(tmp_path / "cue"),
        "--backbone",
        str(model_folders["gpt2"]),
        "--task",
        "tickets",
    ]
    assert "softcue evaluate" in run("import", *words).stdout
    assert softcue.load(tmp_path / "cue", backbone).task.name == "tickets"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (LABELS, "backbone: got None"),
        (["--backbone", "x", "--task", "tickets", "--text", "message"], "no `text` beside `task`"),
        (["--backbone", "x", "--text", "a", "--template", "{b}"], "task.template"),
        (["--backbone", "x", "method.rank=3"], "settings of the readout alone"),
        (["--backbone", "x", "readout.decoding=guess"], "readout.decoding"),
    ],
)
def test_words_that_do_not_fit_are_refused(tmp_path: Path, options: list[str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        run("import", str(tmp_path / "peft"), str(tmp_path / "cue"), *options)
