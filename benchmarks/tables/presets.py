"""Compare candidates for the encoder preset of prompt tuning by validation scores on the sample tasks.

    python -m benchmarks.tables.presets [--seeds 2] [--output runs/presets]

Only validation rows are used. A finished run is not repeated. Prints Markdown.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import softcue
from benchmarks.tables.grid import print_header, print_row

TASKS = ("tickets", "urgency", "same-request")
LEARNING_RATES = {"training.learning_rate": 0.01, "training.network_learning_rate": 0.005}
CANDIDATES: dict[str, dict[str, object]] = {
    "constant, 10 epochs, patience 4": {**LEARNING_RATES, "training.epochs": 10, "training.patience": 4},
    "linear, 12 epochs": {
        **LEARNING_RATES,
        "training.epochs": 12,
        "training.schedule": "linear",
        "training.patience": 0,
    },
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--output", type=Path, default=Path("runs/presets"))
    arguments = parser.parse_args()
    backbone = softcue.load_backbone("minilm")
    print_header("settings", *TASKS, "mean")
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
        print_row(name, *(f"{mean:.1f}" for mean in means), f"{statistics.mean(means):.1f}")


if __name__ == "__main__":
    main()
