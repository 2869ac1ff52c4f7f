"""`readout.answer_prefix`: what stands between the text of a row and its target."""

from __future__ import annotations

import pytest
from tiny import tiny
from toy import EXAMPLES, make_model


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
    own = make_model(tiny("gpt2"), "manual-prompt", answer_prefix=" =>", readout={"answer_prefix": "\nLabel:"})
    assert own.formatter.answer_prefix == " =>"
    head = make_model(tiny("gpt2"), readout={"name": "classifier", "answer_prefix": "\nLabel:"})
    assert head.formatter.answer_prefix == ""
