"""The Subj table of docs/results.md: prompt tuning on real data, on each backbone, with simple baselines.

    python -m benchmarks.tables.results --data data --t5 FOLDER [--only minilm] [--output runs/results]

Each run is an ordinary `softcue train`. A finished run is not repeated, an interrupted run is resumed.
Prints Markdown, and the command of each backbone.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path

from benchmarks.tables.grid import print_header, print_row

LABEL_WORDS = ["task.label_words.0=subjective", "task.label_words.1=objective"]
# Rows and steps by backbone; the rest is the preset. SmolLM2 takes about 5 s for a step of 8 rows on two cores.
SETTINGS: dict[str, list[str]] = {
    "minilm": ["task.train_rows=400", "task.validation_rows=200", "task.test_rows=500", "training.patience=4"],
    "t5": ["task.train_rows=400", "task.validation_rows=200", "task.test_rows=500"],
    "smollm2": [
        "task.train_rows=400",
        "task.validation_rows=100",
        "task.test_rows=200",
        "training.batch_size=8",
        "training.steps=100",
        "training.evaluate_every=25",
    ],
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--t5", default="", help="folder of a T5; without it the t5 rows are left out")
    parser.add_argument("--only", default="", help="one of minilm, smollm2, t5")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--output", type=Path, default=Path("runs/results"))
    arguments = parser.parse_args()
    print_header(
        "backbone",
        "seed",
        "zero-shot",
        "linear probe",
        "prompt-tuning",
        "validation",
        "trainable parameters",
        "steps",
        "minutes",
    )
    commands = []
    for name, overrides in SETTINGS.items():
        if (arguments.only and name != arguments.only) or (name == "t5" and not arguments.t5):
            continue
        for seed in range(arguments.seeds):
            folder = arguments.output / f"subj-{name}-{seed}"
            command = [
                "train",
                *("--backbone", arguments.t5 if name == "t5" else name),
                *("--train", str(arguments.data / "subj/train.tsv")),
                *("--test", str(arguments.data / "subj/test.tsv")),
                *("--text", "sentence"),
                *("--label", "label"),
                *("--seed", str(seed)),
                *("--output-dir", str(folder)),
                "--resume",
                *LABEL_WORDS,
                *overrides,
            ]
            subprocess.run([sys.executable, "-m", "softcue", *command], check=True, stdout=subprocess.DEVNULL)
            if seed == 0:
                commands.append(shlex.join(["softcue", *command]))
            print_row(name, seed, *run_cells(folder))
    print()
    print("\n".join(f"    {command}" for command in commands))


def run_cells(folder: Path) -> list[str]:
    """The scores, the size and the time of a finished run."""
    cue_file = json.loads((folder / "cue.json").read_text("utf-8"))
    metrics = json.loads((folder / "metrics.json").read_text("utf-8"))
    baselines = baseline_scores(folder)
    num_trainable = cue_file["counts"]["gradient"] + cue_file["counts"]["head"]
    return [
        f"{baselines['untrained']:.1f}",
        f"{baselines['linear_probe']:.1f}",
        f"{cue_file['scores']['test']['accuracy']:.1f}",
        f"{cue_file['scores']['validation']['accuracy']:.1f}",
        f"{num_trainable:,}",
        f"{metrics['steps']}",
        f"{metrics['seconds'] / 60:.1f}",
    ]


def baseline_scores(folder: Path) -> dict[str, float]:
    """Zero-shot and linear-probe scores on the rows of a run, once per backbone: they do not depend on the seed."""
    path = folder.with_name(folder.name.rsplit("-", 1)[0] + "-baselines.json")
    if not path.is_file():
        import softcue
        from softcue.evaluation import linear_probe, zero_shot
        from softcue.run import splits_of_run

        backbone = softcue.load(folder).backbone
        splits = splits_of_run(folder)
        scores = {
            "untrained": zero_shot(backbone, splits.task, splits.test).main,
            "linear_probe": linear_probe(backbone, splits.task, splits.train, splits.validation, splits.test).main,
        }
        path.write_text(json.dumps(scores))
    return json.loads(path.read_text("utf-8"))  # type: ignore[no-any-return]


if __name__ == "__main__":
    main()
