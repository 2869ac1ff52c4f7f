"""Small studies for tests: a tiny backbone in a folder, and task files with a few rows."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from tiny import tiny

from softcue.studies.peers import PeerResult, PeerRun
from softcue.studies.study import Study, make_study
from softcue.types import Prediction

TEXTS = {
    "billing": ("The invoice is wrong", "Charged twice", "My refund is late"),
    "shipping": ("The parcel never came", "Where is my order", "The box was open"),
}
SETTINGS: dict[str, Any] = {"training.steps": 2, "training.batch_size": 4}


def write_task(folder: Path, name: str, num_rows: int = 12) -> str:
    """A task file with its rows beside it; the words differ between tasks."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, offset in (("train", 0), ("validation", 100), ("test", 200)):
        with (folder / f"{name}-{split}.csv").open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["text", "team"])
            for number in range(num_rows):
                team = ("billing", "shipping")[number % 2]
                text = TEXTS[team][number // 2 % 3]
                writer.writerow([f"{text} {name} {offset + number}", team])
    values = {"name": name, "text": ["text"], "label": "team", "kind": "classification"}
    values |= {split: f"{name}-{split}.csv" for split in ("train", "validation", "test")}
    path = folder / f"{name}.yaml"
    path.write_text(json.dumps(values))
    return str(path)


def write_backbone(folder: Path, family: str = "bert") -> str:
    """The folder of a tiny model with random weights."""
    path = folder / family
    tiny(family).save(path)
    return str(path)


def small_study(folder: Path, **values: Any) -> Study:
    """Two methods on two tasks with two seeds."""
    tasks = [{"name": name, "task": write_task(folder / "tasks", name)} for name in ("desk", "shop")]
    backbone = folder / "models" / "bert"
    if not backbone.is_dir():
        write_backbone(folder / "models")
    study = {
        "name": "small",
        "backbones": [str(backbone)],
        "tasks": tasks,
        "methods": ["linear-probe", {"name": "prompt-tuning", "settings": {"method.prompt_length": 2}}],
        "seeds": 2,
        "settings": SETTINGS,
    }
    return make_study({**study, **values})


def guess(run: PeerRun) -> PeerResult:
    """Always the label of the first training row."""
    assert run.backbone.kind == "encoder"
    label = str(run.splits.train[0].target)
    return PeerResult([Prediction(label)] * len(run.splits.test), trainable=7)


def guess_with_much_memory(run: PeerRun) -> PeerResult:
    """The same, with 300 MB that are there for a moment."""
    assert len(bytearray(300 << 20)) > 0
    return guess(run)
