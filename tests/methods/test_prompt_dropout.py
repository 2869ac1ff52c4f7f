"""Dropout on the vectors of P-tuning v2 and prefix tuning."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny
from toy import make_model

from softcue.prompts import DeepPrompt
from softcue.types import Instance


@pytest.mark.parametrize("case", ["p-tuning-v2", "prefix-tuning"])
@pytest.mark.parametrize("reparameterise", [0, 8])
def test_the_setting_reaches_the_prompt_in_training_only(case: str, reparameterise: int) -> None:
    backbone = tiny("bert")
    more = {"reparameterise": reparameterise} if case == "prefix-tuning" else {}
    encoder = make_model(backbone, case, dropout=0.5, rule="add", **more).method.encoder
    assert isinstance(encoder, DeepPrompt)
    instance = Instance(torch.zeros(2, 3, backbone.width), torch.ones(2, 3, dtype=torch.bool))
    whole = encoder.eval()(instance).tokens
    noisy = encoder.train()(instance).tokens
    assert not bool((whole == 0).any())
    dropped = noisy == 0
    assert 0.2 < float(dropped.float().mean()) < 0.8
    torch.testing.assert_close(noisy[~dropped], 2 * whole[~dropped])
