"""A whole training run of a few steps, from rows to a cue folder."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tiny import tiny

import softcue
from softcue import Cue

ROWS = [
    {"text": f"{text} {number}", "label": label}
    for number in range(5)
    for text, label in [("my invoice is wrong", "billing"), ("the parcel is late", "delivery")]
]


def train(folder: Path | str, **settings: Any) -> Cue:
    overrides = {"training.epochs": 3, "training.min_steps": 0, "method.prompt_length": 2, "readout.name": "classifier"}
    overrides |= settings.pop("overrides", {})
    return softcue.train(
        folder, backbone=tiny("bert"), train=ROWS, validation=ROWS, overrides=overrides, progress=False, **settings
    )
