"""Shell completion: what the shell is offered, and that it never waits for torch."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from command import run

from softcue.backbones.loading.sources import ALIASES
from softcue.cli import completion
from softcue.configuration import SECTIONS
from softcue.methods import METHODS
from softcue.tasks import library_names

CODE = """
import sys
from softcue.cli.app import main
sys.argv = ["softcue"]
try:
    main()
finally:
    heavy = {"torch", "transformers", "sklearn", "pyarrow"} & set(sys.modules)
    assert not heavy, heavy
"""


def complete(words: str) -> list[str]:
    """What bash is offered behind these words, in a process of its own."""
    environment = {
        **os.environ,
        "_SOFTCUE_COMPLETE": "complete_bash",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split(" ")) - 1),
    }
    ended = subprocess.run([sys.executable, "-c", CODE], env=environment, capture_output=True, text=True, check=False)
    assert ended.stderr == ""
    return ended.stdout.split()


def test_the_shell_is_offered_commands_options_and_names() -> None:
    assert {"train", "config", "predict"} <= set(complete("softcue "))
    assert "--learning-rate" in complete("softcue train --le")
    assert complete("softcue train --method vip-") == ["vip-c", "vip-idp"]
    assert complete("softcue train --backbone mini") == ["minilm"]
    assert complete("softcue tasks show urg") == ["urgency"]
    assert complete("softcue methods vip-i") == ["vip-idp"]


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (completion.complete_method("s-"), ["s-idpg-dnn", "s-idpg-phm"]),
        (completion.complete_task("urg"), ["urgency"]),
        (completion.complete_tasks("tickets,urgency,sam"), ["tickets,urgency,same-request"]),
        (completion.complete_tasks("tickets,tick"), []),
        (completion.complete_backbone(""), list(ALIASES)),
        (completion.complete_section("m"), ["method", "mixture"]),
    ],
)
def test_names_are_completed(words: list[str], offered: list[str]) -> None:
    assert words == offered


def test_names_for_the_shell_are_those_of_the_packages() -> None:
    assert set(completion.method_names()) == set(METHODS)
    assert completion.task_names() == library_names()
    assert completion.backbone_names() == list(ALIASES)
    assert list(completion.SECTIONS) == list(SECTIONS)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_can_be_shown(shell: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("typer._completion_shared._get_shell_name", lambda: shell, raising=False)
    monkeypatch.setattr("typer.completion._get_shell_name", lambda: shell, raising=False)
    ended = run("--show-completion")
    assert (ended.code, ended.err) == (0, "")
    assert "_SOFTCUE_COMPLETE" in ended.out
