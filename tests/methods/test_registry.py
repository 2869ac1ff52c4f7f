"""Methods from outside softcue: registered by hand, or found by their entry point."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from tiny import tiny

import softcue
from softcue import methods
from softcue.configuration import preset, resolve
from softcue.errors import ConfigurationError
from softcue.methods import METHODS, Method, MethodConfig
from softcue.methods.prompt_tuning import PromptTuning
from softcue.methods.registry import ENTRY_POINTS, MethodRegistry
from softcue.training import TrainingConfig

PLUGIN = Path(__file__).parents[1] / "plugin"
PROJECT = tomllib.loads((PLUGIN / "pyproject.toml").read_text("utf-8"))["project"]
ROWS = [{"text": text, "label": label} for text, label in (("my invoice", "bill"), ("my parcel", "post"))] * 4


def install(site: Path, package: str, entry_points: dict[str, str]) -> Path:
    """Write the metadata that pip would write for a package with these methods."""
    folder = site / f"{package.replace('-', '_')}-1.0.dist-info"
    folder.mkdir(parents=True)
    (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in entry_points.items()]
    (folder / "entry_points.txt").write_text("\n".join([f"[{ENTRY_POINTS}]", *lines]) + "\n")
    return site


@pytest.fixture
def site(tmp_path: Path) -> Path:
    """A folder for sys.path in which the example plug-in is installed."""
    site = install(tmp_path / "site", PROJECT["name"], PROJECT["entry-points"][ENTRY_POINTS])
    (site / "softcue_scaled_prompt").symlink_to(PLUGIN / "softcue_scaled_prompt")
    return site


@pytest.fixture
def use_site(monkeypatch: pytest.MonkeyPatch) -> Callable[[Path], MethodRegistry]:
    """Put a folder on sys.path, and look for plug-ins again."""

    def use(site: Path) -> MethodRegistry:
        monkeypatch.syspath_prepend(str(site))
        monkeypatch.delitem(sys.modules, "softcue_scaled_prompt", raising=False)
        for name, value in (("_registered", {}), ("_broken", {}), ("_has_loaded_plugins", False)):
            monkeypatch.setattr(METHODS, name, value)
        return METHODS

    return use


def test_a_plugin_is_trained_saved_loaded_and_predicts(
    site: Path, use_site: Callable[[Path], MethodRegistry], tmp_path: Path
) -> None:
    use_site(site)
    backbone = tiny("bert")
    cue = softcue.train(
        tmp_path / "cue", train=ROWS, validation=ROWS, backbone=backbone, method="scaled-prompt", progress=False
    )
    assert cue.cue_file.method["prompt_length"] == 3  # by the plug-in's preset
    encoder = cue.model.method.prompt_encoder()
    assert encoder is not None and float(encoder.get_parameter("scale").detach()) != 1.0
    loaded = softcue.load(tmp_path / "cue", backbone=backbone)
    texts = [row["text"] for row in ROWS]
    assert loaded.predict(texts) == cue.predict(texts)
    assert type(loaded.model.method).__module__ == "softcue_scaled_prompt"


def test_presets_of_a_plugin_lie_under_the_users_settings(
    site: Path, use_site: Callable[[Path], MethodRegistry]
) -> None:
    use_site(site)
    run = resolve({"method": {"name": "scaled-prompt"}, "training": {"epochs": 7}}, "encoder")
    assert (run.training.learning_rate, run.training.epochs) == (0.05, 7)
    assert preset("scaled-prompt", "decoder") == {}
    assert resolve({"method": {"name": "scaled-prompt"}}, "decoder").training == TrainingConfig()


def test_the_command_line_lists_an_installed_plugin(site: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(site), *sys.path])}
    command = [sys.executable, "-m", "softcue", "methods", "--json"]
    ended = subprocess.run(command, capture_output=True, check=True, timeout=120, env=environment)
    listed = {method["name"]: method for method in json.loads(ended.stdout)["methods"]}
    assert listed["scaled-prompt"]["settings"]["init_std"]["default"] == 0.5
    assert {"prompt-tuning", "vip"} <= set(listed)


def test_plugins_are_loaded_only_when_needed(tmp_path: Path, use_site: Callable[[Path], MethodRegistry]) -> None:
    registry = use_site(install(tmp_path, "broken-package", {"broken": "no_such_module:Broken"}))
    assert registry["prompt-tuning"] is PromptTuning
    assert "vip" in registry and resolve({}).method.name == "p-tuning-v2"
    with pytest.warns(RuntimeWarning, match="broken-package"):
        list(registry)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        list(registry)  # warned once


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        ("no_such_module:Broken", "ModuleNotFoundError: No module named 'no_such_module'"),
        ("json:no_such_class", "AttributeError"),
        ("json:JSONDecoder", "expected a subclass of softcue.methods.Method"),
        ("softcue.methods:Method", "expected a subclass of softcue.methods.Method"),
    ],
)
def test_a_broken_plugin_is_named_and_the_other_methods_stay(
    value: str, reason: str, site: Path, use_site: Callable[[Path], MethodRegistry]
) -> None:
    registry = use_site(install(site, "broken-package", {"broken": value}))
    with pytest.warns(RuntimeWarning, match="the package broken-package offers the method 'broken'"):
        names = list(registry)
    assert "broken" not in names and {"scaled-prompt", "prompt-tuning"} <= set(names)
    with pytest.raises(ConfigurationError) as caught:
        resolve({"method": {"name": "broken"}})
    assert caught.value.setting == "method.name"
    assert "broken-package" in str(caught.value) and reason in str(caught.value)


def test_a_plugin_cannot_take_the_name_of_a_built_in_method(
    site: Path, use_site: Callable[[Path], MethodRegistry]
) -> None:
    registry = use_site(install(site, "thief", {"vip": "softcue_scaled_prompt:ScaledPromptTuning"}))
    with pytest.warns(
        RuntimeWarning, match=r"the package thief offers the method 'vip'.*a name that no method has yet"
    ):
        names = list(registry)
    assert names.count("vip") == 1
    assert registry["vip"].__module__ == "softcue.methods.vip"


def test_of_two_plugins_with_one_name_the_first_stays(site: Path, use_site: Callable[[Path], MethodRegistry]) -> None:
    registry = use_site(install(site, "zz-later", {"scaled-prompt": "softcue.methods.prompt_tuning:PromptTuning"}))
    with pytest.warns(RuntimeWarning, match=r"a name that no method has yet"):
        names = list(registry)
    assert names.count("scaled-prompt") == 1


class Registered(PromptTuning):
    """Prompt tuning under another name."""


def test_a_method_is_registered_by_hand(tmp_path: Path, use_site: Callable[[Path], MethodRegistry]) -> None:
    use_site(tmp_path)
    softcue.register_method("by-hand", Registered)
    softcue.register_method("by-hand", Registered)  # the same class again changes nothing
    assert METHODS["by-hand"] is Registered
    assert list(METHODS).count("by-hand") == 1 and len(METHODS) == len(list(METHODS))
    assert isinstance(resolve({"method": {"name": "by-hand"}}).method, Registered.Config)


class NoConfig(Method):
    summary, paper = "incomplete", "-"
    build = classmethod(lambda cls, config, backbone, task, generator: cls())  # type: ignore[assignment]


class NoSummary(NoConfig):
    Config = MethodConfig
    summary = None  # type: ignore[assignment]


class WrongPreset(Registered):
    presets: ClassVar = {"encoders": {"training": {"epochs": 1}}}


@pytest.mark.parametrize(
    ("name", "method_class", "message"),
    [
        ("vip", Registered, "name of a method: got 'vip'; expected a name that no method has yet"),
        ("My Method", Registered, "name of a method: got 'My Method'; expected lower-case letters"),
        ("", Registered, "expected lower-case letters"),
        ("mine", PromptTuning.build, "method 'mine': "),
        ("mine", Method, "expected a subclass of softcue.methods.Method that defines `build`"),
        ("mine", NoConfig, "Config of method 'mine': got None"),
        ("mine", NoSummary, "summary of method 'mine': got None; expected one line of text"),
        ("mine", WrongPreset, "presets of method 'mine': got 'encoders'; expected a kind of backbone: encoder, "),
    ],
)
def test_an_incomplete_method_is_an_error(
    name: str, method_class: Any, message: str, tmp_path: Path, use_site: Callable[[Path], MethodRegistry]
) -> None:
    use_site(tmp_path)
    with pytest.raises(ConfigurationError) as caught:
        methods.register_method(name, method_class)
    assert message in str(caught.value)
    assert "mine" not in METHODS


def test_an_unknown_method_is_an_error_with_near_matches_and_the_way_to_plugins() -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve({"method": {"name": "promt-tuning"}})
    assert "did you mean 'prompt-tuning'?" in str(caught.value)
    assert str(caught.value).endswith("for a method of another package, install that package")
