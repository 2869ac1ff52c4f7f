"""How often a training step makes the host wait for its device: bounded, whatever the size of model and batch."""

from __future__ import annotations

from typing import Any

import pytest
from on_device import outcome, to_first_device
from tiny import ONE_OF_EACH_KIND

# The loss is read once, transformers looks at each attention mask, and VIP reads its measures.
MOST = {"prompt-tuning": 4, "vip": 6, "m-idpg-phm": 6, "m-idpg-phm kv": 6, "s-idpg-phm": 6, "p-tuning-v2 kv": 6}
DEFAULT = {("bert", "vip"), ("t5", "m-idpg-phm kv"), *((family, "prompt-tuning") for family in ONE_OF_EACH_KIND)}


@pytest.mark.parametrize(
    ("family", "case"),
    [
        pytest.param(family, case, marks=() if (family, case) in DEFAULT else pytest.mark.slow)
        for family in ONE_OF_EACH_KIND
        for case in MOST
    ],
)
def test_a_step_waits_for_its_device_a_few_times(family: str, case: str) -> None:
    places = outcome(family, case, place=to_first_device).synchronisations
    assert 1 <= sum(places.values()) <= MOST[case], places


@pytest.mark.parametrize(
    "settings",
    [{"micro_batch_size": 2, "contrastive": 0.5}, {"clip_norm": 1.0, "optimizer": "adafactor"}],
    ids=str,
)
def test_other_settings_of_training_wait_no_more_often_for_each_piece(settings: dict[str, Any]) -> None:
    """Three pieces of a batch, each of them run twice if rows are compared: a mask is looked at in each pass."""
    places = outcome("bert", "prompt-tuning", place=to_first_device, **settings).synchronisations
    assert sum(places.values()) <= 1 + (6 if "contrastive" in settings else 1), places
