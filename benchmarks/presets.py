"""How the encoder preset of prompt tuning was chosen: validation scores of some settings on the sample tasks.

    python benchmarks/presets.py [--seeds 2] [--output runs/presets]

Only validation rows are looked at. A finished run is not repeated. Prints Markdown.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import softcue

TASKS = ("tickets", "urgency", "same-request")
RATES = {"training.learning_rate": 0.01, "training.network_learning_rate": 0.005}
CANDIDATES: dict[str, dict[str, object]] = {
    "constant, 10 epochs, patience 4": {**RATES, "training.epochs": 10, "training.patience": 4},
    "linear, 12 epochs": {**RATES, "training.epochs": 12, "training.schedule": "linear", "training.patience": 0},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("runs/presets"))
    arguments = parser.parse_args()
    backbone = softcue.load_backbone("minilm")
    print(f"| settings | {' | '.join(TASKS)} | mean |\n" + "|---" * (len(TASKS) + 2) + "|")
    for number, (name, overrides) in enumerate(CANDIDATES.items()):
        means = []
        for task in TASKS:
            scores = []
            for seed in range(arguments.seeds):
                folder = arguments.output / f"{number}-{task}-{seed}"
                cue = softcue.train(
                    folder, task=task, backbone=backbone, seed=seed, overrides=overrides, resume=True, progress=False
                )
                scores.append(cue.scores["validation"]["accuracy"])
            means.append(statistics.mean(scores))
        print(f"| {name} | {' | '.join(f'{m:.1f}' for m in means)} | {statistics.mean(means):.1f} |", flush=True)


if __name__ == "__main__":
    main()
