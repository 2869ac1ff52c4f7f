"""The few-shot table of docs/results.md (IDPG's protocol, Wu et al. 2022): methods x tasks x seeds on MiniLM.

    python benchmarks/few_shot.py --data ../shared/data            run what is missing, then print the table
    python benchmarks/few_shot.py --data ... --search m-idpg-phm method.rule=kv training.network_rate=0.001
                                                                   one setting on validation rows alone

Every run is an ordinary `softcue.train` of K rows, with its own sample for each seed (the same for all methods).
A finished run is not repeated and an interrupted one is resumed, so the command can be stopped at any time.
Started twice (each with OMP_NUM_THREADS=1, say) two processes share the work: a run belongs to whoever holds its
folder's lock. A search run is given no test rows at all.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from pathlib import Path

import softcue
from softcue.backbones import Backbone, load_backbone
from softcue.errors import RunError

METHODS = (
    "linear-probe", "prompt-tuning", "p-tuning-v2", "s-idpg-phm", "m-idpg-phm", "m-idpg-phm-glove", "adapter",
    "compacter", "fine-tuning",
)  # fmt: skip
# columns, training file, test file; label words start prompts that begin at words
TASKS: dict[str, tuple[str, str, str, dict[str, str]]] = {
    "subj": ("sentence", "subj/train.tsv", "subj/test.tsv", {"0": "subjective", "1": "objective"}),
    "mr": ("sentence", "mr/train.tsv", "mr/test.tsv", {"0": "negative", "1": "positive"}),
    "sst2": ("sentence", "sst2/train.tsv", "sst2/test.tsv", {"0": "negative", "1": "positive"}),
    "rte": ("sentence1,sentence2", "rte/train.tsv", "rte/dev.tsv", {}),
}
VALIDATION_ROWS, TEST_ROWS = 200, 500
# 12 epochs of 100 rows; the paper's 50 would take a night on two cores
SCHEDULE = {"training.steps": 84, "training.evaluate_every": 28, "backbone.max_length": 128}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("words", nargs="*", help="section.key=value for every run")
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--backbone", default="minilm")
    parser.add_argument("--few-shot", type=int, default=100)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--methods", default=",".join(METHODS))
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--search", default="", help="a method: validation scores of one setting, no test rows")
    parser.add_argument("--output", type=Path, default=Path("runs/few-shot"))
    arguments = parser.parse_args()
    methods = [arguments.search] if arguments.search else arguments.methods.split(",")
    runs = [
        (task, method, seed)
        for seed in range(arguments.seeds) for method in methods for task in arguments.tasks.split(",")
    ]  # fmt: skip
    backbone = load_backbone(arguments.backbone)
    for task, method, seed in runs:
        folder = folder_of(arguments, task, method, seed)
        if (folder / "cue.json").is_file():
            continue
        try:
            run(arguments, backbone, task, method, seed, folder)
            print(f"{folder.name}: {scores_of(folder)}", file=sys.stderr, flush=True)
        except RunError as error:
            print(f"{folder.name}: left to another process ({error})", file=sys.stderr, flush=True)
    print_search(arguments, runs) if arguments.search else print_table(arguments, methods)


def folder_of(arguments: argparse.Namespace, task: str, method: str, seed: int) -> Path:
    name = "-".join([task, method, f"k{arguments.few_shot}", str(seed), *sorted(arguments.words)])
    return arguments.output / ("search" if arguments.search else "table") / name.replace("/", "_")


def run(arguments: argparse.Namespace, backbone: Backbone, task: str, method: str, seed: int, folder: Path) -> None:
    columns, train, test, label_words = TASKS[task]
    settings = {
        **SCHEDULE, "task.validation_rows": VALIDATION_ROWS, "task.sample_seed": seed,
        **{f"task.label_words.{label}": words for label, words in label_words.items()},
    }  # fmt: skip
    if not arguments.search:
        settings |= {"task.test_rows": TEST_ROWS}
    words = [f"{key}={value}" for key, value in settings.items()] + arguments.words
    softcue.train(
        folder, backbone=backbone, method=method, train=str(arguments.data / train), text=columns, label="label",
        test=None if arguments.search else str(arguments.data / test), few_shot=arguments.few_shot, seed=seed,
        overrides=words, resume=True, progress=False,
    )  # fmt: skip


def scores_of(folder: Path) -> dict[str, float]:
    scores = json.loads((folder / "cue.json").read_text("utf-8"))["scores"]
    return {split: round(found["accuracy"], 1) for split, found in scores.items()}


def print_search(arguments: argparse.Namespace, runs: list[tuple[str, str, int]]) -> None:
    by_task: dict[str, list[float]] = {}
    for task, method, seed in runs:
        by_task.setdefault(task, []).append(scores_of(folder_of(arguments, task, method, seed))["validation"])
    means = {task: statistics.mean(values) for task, values in by_task.items()}
    shown = "  ".join(f"{task} {value:.1f}" for task, value in means.items())
    print(f"{arguments.search} {' '.join(arguments.words)}: mean {statistics.mean(means.values()):.2f}  {shown}")


def print_table(arguments: argparse.Namespace, methods: list[str]) -> None:
    """Mean and standard deviation over seeds on test rows; a missing run leaves its cell open."""
    tasks = arguments.tasks.split(",")
    print(f"| method | {' | '.join(tasks)} | mean | trained numbers | head | minutes |")
    print("|---" * (len(tasks) + 5) + "|")
    for method in methods:
        cells, means, minutes, counts = [], [], 0.0, {"gradient": 0, "head": 0}
        for task in tasks:
            folders = [folder_of(arguments, task, method, seed) for seed in range(arguments.seeds)]
            done = [folder for folder in folders if (folder / "cue.json").is_file()]
            if len(done) < len(folders):
                cells.append(f"{len(done)} of {len(folders)} runs")
                continue
            values = [scores_of(folder)["test"] for folder in done]
            means.append(statistics.mean(values))
            spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
            cells.append(f"{means[-1]:.1f}{spread}")
            minutes += sum(json.loads((folder / "metrics.json").read_text())["seconds"] for folder in done) / 60
            if task == tasks[0]:  # the head of a task with two texts is wider
                counts = json.loads((done[0] / "cue.json").read_text("utf-8"))["counts"]
        mean = f"{statistics.mean(means):.1f}" if len(means) == len(tasks) else "-"
        print(
            f"| {method} | {' | '.join(cells)} | {mean} | {counts['gradient']:,} | {counts['head']:,} | {minutes:.1f} |"
        )


if __name__ == "__main__":
    main()
