"""`readout.answer_prefix`: what stands between the text of a row and its target."""

from __future__ import annotations

import pytest
from tiny import tiny
from toy import EXAMPLES, make_model

from softcue.errors import ConfigurationError


@pytest.mark.parametrize(("family", "expected"), [("gpt2", "\nAnswer:"), ("t5", "")])
def test_auto_is_a_line_on_decoders_alone(family: str, expected: str) -> None:
    model = make_model(tiny(family))
    assert model.readout.config.answer_prefix == expected
    assert model.formatter.source_text(EXAMPLES[0]) == f"The invoice is wrong.{expected}"


@pytest.mark.parametrize("family", ["gpt2", "t5"])
@pytest.mark.parametrize("readout", ["generation", "label-words"])
def test_a_prefix_of_ones_own_ends_every_text(family: str, readout: str) -> None:
    model = make_model(tiny(family), readout={"name": readout, "answer_prefix": "\nLabel : "})
    assert model.formatter.templates == ["{text}\nLabel :"]


def test_a_method_with_its_own_keeps_it_and_a_head_has_none() -> None:
    own = make_model(tiny("gpt2"), "manual-prompt", answer_prefix=" =>")
    assert own.formatter.answer_prefix == " =>"
    head = make_model(tiny("gpt2"), readout={"name": "classifier"})
    assert head.formatter.answer_prefix == ""


@pytest.mark.parametrize(
    ("family", "method", "readout", "reason"),
    [
        ("bert", "prompt-tuning", "classifier", "is an encoder and writes no target"),
        ("gpt2", "prompt-tuning", "classifier", "readout.name=classifier is a head"),
        ("t5", "prompt-tuning", "classifier", "readout.name=classifier is a head"),
        ("gpt2", "manual-prompt", "generation", "manual-prompt has its own, method.answer_prefix"),
    ],
)
def test_a_prefix_that_has_no_effect_is_an_error(family: str, method: str, readout: str, reason: str) -> None:
    with pytest.raises(ConfigurationError, match=rf"readout.answer_prefix: .*leave it out: .*{reason}"):
        make_model(tiny(family), method, readout={"name": readout, "answer_prefix": "\nLabel:"})


@pytest.mark.parametrize(
    ("family", "method", "readout"),
    [
        ("bert", "prompt-tuning", "classifier"),
        *((family, "prompt-tuning", name) for family in ("gpt2", "t5") for name in ("classifier", "generation")),
        *((family, "manual-prompt", "generation") for family in ("gpt2", "t5")),
    ],
)
def test_what_auto_has_become_is_no_error_as_the_cue_is_loaded(family: str, method: str, readout: str) -> None:
    recorded = make_model(tiny(family), method, readout={"name": readout}).readout.config
    assert recorded.answer_prefix != "auto"
    assert make_model(tiny(family), method, readout=recorded.model_dump()).readout.config == recorded


def test_no_prefix_for_a_head_is_what_it_has() -> None:
    assert make_model(tiny("gpt2"), readout={"name": "classifier", "answer_prefix": ""}).formatter.answer_prefix == ""
