"""`import softcue`: the names it shows, and the packages that can also be called, in every order of imports."""

from __future__ import annotations

import copy
import inspect
import itertools
import subprocess
import sys
from dataclasses import dataclass

import pytest

import softcue
from softcue.errors import ConfigurationError
from softcue.listing import Listing

PUBLIC = {
    *(
        "train",
        "load",
        "load_backbone",
        "Cue",
        "Engine",
        "Limits",
        "Task",
        "Prediction",
        "PromptEncoder",
        "register_method",
    ),
    *("compare", "tune", "methods", "tasks", "backbones", "errors", "__version__"),
}
# Ways to reach a package before it is called.
WAYS = {
    "attribute": "import softcue; package = softcue.{name}",
    "submodule": "import softcue.{name}; package = softcue.{name}",
    "submodule as": "import softcue.{name} as package",
    "name in it": "from softcue.{name} import __all__; import softcue; package = softcue.{name}",
    "from softcue": "from softcue import {name} as package",
    "module below": "import softcue.{name}.{below}; package = softcue.{name}",
    "star": "from softcue import *; package = {name}",
    "reload": "import importlib, softcue.{name}; package = importlib.reload(softcue.{name})",
}
BELOW = {"methods": "registry", "tasks": "catalogue", "backbones": "structure"}
NAMES = {"methods": "prompt-tuning", "tasks": "tickets", "backbones": "minilm"}


def run_python(code: str) -> str:
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout


def test_dir_shows_exactly_the_public_names() -> None:
    assert set(dir(softcue)) == set(softcue.__all__) == PUBLIC
    assert all(hasattr(softcue, name) for name in PUBLIC)
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        softcue.trian  # noqa: B018


def test_dir_is_the_same_after_packages_are_imported() -> None:
    code = "import softcue; softcue.methods(); import softcue.cue, softcue.cli.app; print(*dir(softcue))"
    assert set(run_python(code).split()) == PUBLIC


def test_tab_completion_offers_the_public_names() -> None:
    code = (
        "import rlcompleter, softcue\n"
        "complete = rlcompleter.Completer({'softcue': softcue}).complete\n"
        "words, number = [], 0\n"
        "while (word := complete('softcue.', number)) is not None: words.append(word); number += 1\n"
        "print(*words)"
    )
    offered = {word.removeprefix("softcue.").rstrip("()") for word in run_python(code).split()}
    assert offered == PUBLIC - {"__version__"}


def test_importing_softcue_and_listing_tasks_need_no_torch() -> None:
    code = "import sys, softcue; dir(softcue); softcue.tasks(); softcue.Prediction; print('torch' in sys.modules)"
    assert run_python(code) == "False\n"


@pytest.mark.parametrize("way", WAYS)
def test_tasks_is_a_package_that_can_be_called_however_it_is_reached(way: str) -> None:
    code = WAYS[way].format(name="tasks", below="catalogue")
    check = "print(type(package()).__name__, package.library_task.__name__, 'tickets' in package())"
    assert run_python(f"{code}\n{check}") == "Listing library_task True\n"


@pytest.mark.parametrize("name", ["methods", "backbones"])
def test_other_packages_can_be_called_however_they_are_reached(name: str) -> None:
    """All ways in one process, each from the start: the modules are dropped in between."""
    lines = ["import sys, torch, transformers"]
    for way in WAYS.values():
        lines += [
            "for module in [module for module in sys.modules if module.split('.')[0] == 'softcue']:",
            "    del sys.modules[module]",
            *way.format(name=name, below=BELOW[name]).split("; "),
            f"assert '{NAMES[name]}' in package().names and package.__all__",
        ]
    run_python("\n".join([*lines, "print('done')"]))


def test_the_three_packages_can_be_imported_in_any_order() -> None:
    lines = ["import sys, torch, transformers"]
    for order in itertools.permutations(NAMES):
        lines += [
            "for module in [module for module in sys.modules if module.split('.')[0] == 'softcue']:",
            "    del sys.modules[module]",
            *(f"import softcue.{name}" for name in order),
            *(f"assert '{known}' in softcue.{name}()" for name, known in NAMES.items()),
        ]
    run_python("\n".join(lines))


def test_lists_hold_what_a_user_needs() -> None:
    assert softcue.methods()["vip"].paper == "Bhardwaj et al. 2022"
    assert softcue.methods()["prompt-tuning"].settings["prompt_length"] == 20
    assert softcue.tasks()["same-request"].text == ("first", "second")
    assert softcue.tasks()["urgency"].rows["test"] > 100
    assert softcue.backbones()["smollm2"].kind == "decoder"
    assert softcue.methods.__doc__ is not None
    assert "List the methods" in str(type(softcue.methods).__call__.__doc__)


def test_a_package_that_can_be_called_is_copied_as_a_module() -> None:
    assert copy.deepcopy(softcue.tasks) is softcue.tasks  # what pickling does too, in Ray and joblib
    assert inspect.ismodule(softcue.tasks)


@dataclass(frozen=True)
class Fruit:
    name: str
    colours: tuple[str, ...]
    is_ripe: bool


def test_a_list_prints_as_a_table_and_finds_records_by_name() -> None:
    fruits = Listing([Fruit("plum", ("blue", "red"), True), Fruit("<lime>", ("green",), False)])
    assert repr(fruits).splitlines() == [
        "name    colours    is_ripe",
        "plum    blue, red  yes",
        "<lime>  green      no",
    ]
    assert "&lt;lime&gt;</td>" in fruits._repr_html_()
    assert fruits["plum"] is fruits[0]
    assert fruits[1:].names == ["<lime>"]
    assert "plum" in fruits and fruits[0] in fruits and "fig" not in fruits
    with pytest.raises(ConfigurationError, match="did you mean 'plum'"):
        fruits["plam"]
    assert repr(Listing([])) == "(nothing)"
