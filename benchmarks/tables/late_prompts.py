"""Measure the quality of late prompts: one sample task, prompts that enter at several layers, several seeds.

    python -m benchmarks.tables.late_prompts [--task tickets] [--layers 0,2,3,4] [--seeds 2] [--output runs/late]

A finished run is not repeated. Prints Markdown: the score on validation and test rows, and the processor time of the
training run (start and evaluation included), each as a mean over seeds.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import softcue
from benchmarks.tables.grid import print_header, print_row
from softcue.backbones import load_backbone


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="tickets")
    parser.add_argument("--backbone", default="minilm")
    parser.add_argument("--layers", default="0,2,3,4")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("runs/late"))
    arguments = parser.parse_args()
    print_header("prompts enter at layer", "validation", "test", "processor seconds")
    for layer in map(int, arguments.layers.split(",")):
        runs = [train_and_time(arguments, layer, seed) for seed in range(arguments.seeds)]
        validation, test, seconds = (
            statistics.mean(run[key] for run in runs) for key in ("validation", "test", "seconds")
        )
        print_row(layer, f"{validation:.1f}", f"{test:.1f}", f"{seconds:.0f}")


def train_and_time(arguments: argparse.Namespace, layer: int, seed: int) -> dict[str, float]:
    """Return the scores and the time of one run, which are saved in its folder."""
    folder = arguments.output / f"{arguments.task}-{layer}-{seed}"
    path = folder / "late.json"
    if not path.is_file():
        backbone = load_backbone(arguments.backbone)  # a new one: cached states would make later runs faster
        started = time.process_time()
        cue = softcue.train(
            folder,
            backbone=backbone,
            task=arguments.task,
            seed=seed,
            overwrite=True,
            progress=False,
            overrides={"method.insert_layer": layer},
        )
        seconds = time.process_time() - started
        scores = {split: cue.scores[split]["accuracy"] for split in ("validation", "test")}
        path.write_text(json.dumps(scores | {"seconds": seconds}))
    measurements: dict[str, float] = json.loads(path.read_text())
    return measurements


if __name__ == "__main__":
    main()
