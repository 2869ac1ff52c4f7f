"""Settings of a choice between methods."""

from __future__ import annotations

import pytest

from softcue.configuration import parse_overrides, resolve, resolve_selection, settings_of_candidates
from softcue.errors import ConfigurationError
from softcue.methods import DEFAULT_METHODS, METHODS
from softcue.selection import SelectionConfig
from softcue.selection.config import DEFAULT_CANDIDATES


@pytest.mark.parametrize("kind", DEFAULT_METHODS)
def test_the_default_method_of_the_backbone_is_tried_first(kind: str) -> None:
    methods = SelectionConfig().methods_for(kind)
    assert methods[0] == DEFAULT_METHODS[kind]
    assert set(methods) == set(DEFAULT_CANDIDATES) <= set(METHODS)
    assert len(methods) == len(DEFAULT_CANDIDATES)


def test_methods_that_are_named_keep_their_order_on_every_backbone() -> None:
    assert SelectionConfig(methods=("vip", "p-tuning-v2")).methods_for("decoder") == ("vip", "p-tuning-v2")


def test_methods_are_named_with_commas_and_each_once() -> None:
    settings = parse_overrides(["selection.methods=vip, linear-probe,vip", "selection.seconds=60"])
    assert resolve_selection(settings) == SelectionConfig(methods=("vip", "linear-probe"), seconds=60)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("selection.methods=vip,promt-tuning", "selection.methods: .*not 'promt-tuning'.*did you mean 'prompt-tuning'"),
        ("selection.methods=auto", "not 'auto'"),
        ("selection.methods=[]", "selection.methods"),
        ("selection.seconds=-1", "selection.seconds"),
        ("selection.folds=0", "selection.folds"),
        ("selection.fold=3", "selection.fold: .*did you mean 'folds'"),
    ],
)
def test_wrong_settings_are_errors_also_of_a_run_with_a_named_method(word: str, message: str) -> None:
    settings = parse_overrides([word])
    with pytest.raises(ConfigurationError, match=message):
        settings_of_candidates({"method": {"name": "auto"}, **settings})
    with pytest.raises(ConfigurationError, match=message):
        resolve(settings)


def test_each_candidate_has_the_settings_of_the_other_sections() -> None:
    settings = parse_overrides(["method.name=auto", "selection.methods=vip,adapter", "training.batch_size=8"])
    assert settings_of_candidates(settings) == {
        "vip": {"method": {"name": "vip"}, "training": {"batch_size": 8}},
        "adapter": {"method": {"name": "adapter"}, "training": {"batch_size": 8}},
    }


def test_a_setting_of_a_method_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"method.prompt_length: got 5; .*method.name=auto; .*name the method"):
        settings_of_candidates({"method": {"name": "auto", "prompt_length": 5}})


def test_the_configuration_of_a_run_has_no_section_of_the_choice() -> None:
    assert "selection" not in resolve({"selection": {"folds": 2}}).as_settings()
