"""What late prompts cost in quality: one sample task, prompts that enter at several layers, some seeds.

    python benchmarks/late.py [--task tickets] [--layers 0,2,3,4] [--seeds 2] [--output runs/late]

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
from softcue.backbones import load_backbone


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="tickets")
    parser.add_argument("--backbone", default="minilm")
    parser.add_argument("--layers", default="0,2,3,4")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("runs/late"))
    arguments = parser.parse_args()
    print("| prompts enter at layer | validation | test | processor seconds |\n|---|---|---|---|")
    for layer in map(int, arguments.layers.split(",")):
        found = [measured(arguments, layer, seed) for seed in range(arguments.seeds)]
        means = [statistics.mean(run[part] for run in found) for part in ("validation", "test", "seconds")]
        print(f"| {layer} | {means[0]:.1f} | {means[1]:.1f} | {means[2]:.0f} |", flush=True)


def measured(arguments: argparse.Namespace, layer: int, seed: int) -> dict[str, float]:
    """The scores and the time of one run, kept beside its cue."""
    folder = arguments.output / f"{arguments.task}-{layer}-{seed}"
    kept = folder / "late.json"
    if not kept.is_file():
        backbone = load_backbone(arguments.backbone)  # anew: states that are kept would make later runs faster
        began = time.process_time()
        cue = softcue.train(
            folder,
            backbone=backbone,
            task=arguments.task,
            seed=seed,
            overwrite=True,
            progress=False,
            overrides={"method.insert_layer": layer},
        )
        seconds = time.process_time() - began
        scores = {split: cue.scores[split]["accuracy"] for split in ("validation", "test")}
        kept.write_text(json.dumps(scores | {"seconds": seconds}))
    found: dict[str, float] = json.loads(kept.read_text())
    return found


if __name__ == "__main__":
    main()
