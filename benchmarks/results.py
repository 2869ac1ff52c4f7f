"""The quality tables of docs/results.md: prompt tuning on real data, each backbone beside simple baselines.

    python benchmarks/results.py --data ../shared/data --t5 FOLDER [--only minilm] [--output runs/results]

Each run is an ordinary `softcue train`; a finished one is not repeated, an interrupted one is resumed.
Prints Markdown, with the command of each row.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
from pathlib import Path

WORDS = ["task.label_words.0=subjective", "task.label_words.1=objective"]
# Rows and steps by backbone; all else is the preset. SmolLM2 takes about 5 s a step of 8 rows on two cores.
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
    columns = "backbone, seed, untrained, linear probe, prompt-tuning, validation, trained numbers, steps, minutes"
    print("| " + " | ".join(columns.split(", ")) + " |")
    print("|---" * 9 + "|")
    commands = []
    for name, extra in SETTINGS.items():
        if (arguments.only and name != arguments.only) or (name == "t5" and not arguments.t5):
            continue
        backbone = arguments.t5 if name == "t5" else name
        for seed in range(arguments.seeds):
            folder = arguments.output / f"subj-{name}-{seed}"
            words = [
                "train",
                "--backbone",
                backbone,
                "--train",
                str(arguments.data / "subj/train.tsv"),
                "--test",
                str(arguments.data / "subj/test.tsv"),
                "--text",
                "sentence",
                "--label",
                "label",
                "--seed",
                str(seed),
                "--output-dir",
                str(folder),
                "--resume",
                *WORDS,
                *extra,
            ]
            subprocess.run([sys.executable, "-m", "softcue", *words], check=True, stdout=subprocess.DEVNULL)
            if seed == 0:
                commands.append(shlex.join(["softcue", *words]))
            print(row(name, seed, folder), flush=True)
    print()
    print("\n".join(f"    {command}" for command in commands))


def row(name: str, seed: int, folder: Path) -> str:
    record = json.loads((folder / "cue.json").read_text("utf-8"))
    metrics = json.loads((folder / "metrics.json").read_text("utf-8"))
    baselines = baseline_scores(folder)
    trained = record["counts"]["gradient"] + record["counts"]["head"]
    return (
        f"| {name} | {seed} | {baselines['zero_shot']:.1f} | {baselines['linear_probe']:.1f} "
        f"| {record['scores']['test']['accuracy']:.1f} | {record['scores']['validation']['accuracy']:.1f} "
        f"| {trained:,} | {metrics['steps']} | {metrics['seconds'] / 60:.1f} |"
    )


def baseline_scores(folder: Path) -> dict[str, float]:
    """Scored on the very rows of the run, once per backbone: they do not depend on the seed."""
    path = folder.with_name(folder.name.rsplit("-", 1)[0] + "-baselines.json")
    if not path.is_file():
        import softcue
        from softcue.evaluation import linear_probe, zero_shot
        from softcue.run import splits_of_run

        backbone = softcue.load(folder).backbone
        rows = splits_of_run(folder)
        found = {
            "untrained": zero_shot(backbone, rows.task, rows.test).main,
            "linear_probe": linear_probe(backbone, rows.task, rows.train, rows.validation, rows.test).main,
        }
        path.write_text(json.dumps(found))
    return json.loads(path.read_text("utf-8"))  # type: ignore[no-any-return]


if __name__ == "__main__":
    main()
