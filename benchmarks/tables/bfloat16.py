"""Compare training on a frozen backbone in bfloat16 and in float32: one sample task, both formats, several seeds.

    python -m benchmarks.tables.bfloat16 [--task tickets] [--steps 40] [--seeds 3] [--output runs/bfloat16]

Without native bfloat16 a step takes tens of times longer, hence the few steps. A finished run is not repeated.
Prints Markdown: the main score on test rows by seed, and the last training loss.
"""

from __future__ import annotations

import argparse
import json
import statistics
from pathlib import Path

import softcue
from benchmarks.tables.grid import print_header, print_row
from softcue.backbones import BackboneConfig, load_backbone

SMALL = {"training.batch_size": 8, "method.prompt_length": 10}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--task", default="tickets")
    parser.add_argument("--backbone", default="minilm")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("runs/bfloat16"))
    arguments = parser.parse_args()
    print_header("format", *(f"seed {seed}" for seed in range(arguments.seeds)), "mean", "spread", "last losses")
    for dtype in ("float32", "bfloat16"):
        backbone = load_backbone(BackboneConfig.model_validate({"name": arguments.backbone, "dtype": dtype}))
        scores, losses = [], []
        for seed in range(arguments.seeds):
            folder = arguments.output / f"{arguments.task}-{arguments.steps}-{dtype}-{seed}"
            cue = softcue.train(
                folder,
                backbone=backbone,
                task=arguments.task,
                seed=seed,
                overrides={"training.steps": arguments.steps, "training.evaluate_every": arguments.steps, **SMALL},
                resume=True,
                progress=False,
            )
            assert cue.cue_file.backbone.dtype == dtype
            scores.append(statistics.mean(cue.scores["test"][name] for name in cue.task.main_metrics))
            lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text("utf-8").splitlines()]
            losses.append([line["loss"] for line in lines if line["kind"] == "step"][-1])
        print_row(
            dtype,
            *(f"{score:.1f}" for score in scores),
            f"{statistics.mean(scores):.1f}",
            f"{max(scores) - min(scores):.1f}",
            " ".join(f"{loss:.3f}" for loss in losses),
        )


if __name__ == "__main__":
    main()
