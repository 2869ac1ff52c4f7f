"""The few-shot table of docs/results.md (IDPG's protocol, Wu et al. 2022): methods x tasks x seeds on MiniLM.

    python -m benchmarks.tables.few_shot_scores --data data
                                                run the missing runs, then print the table
    python -m benchmarks.tables.few_shot_scores --data ... --search m-idpg-phm method.rule=kv
                                                one setting, scored on validation rows only

Every run is an ordinary `softcue.train` of K rows. Each seed has its sample of rows, the same for all methods.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

import softcue
from benchmarks.tables.grid import (
    Column,
    TableRun,
    list_runs,
    make_parser,
    print_search,
    print_table,
    run_missing,
)
from softcue.backbones import Backbone, load_backbone

METHODS = (
    "linear-probe",
    "prompt-tuning",
    "p-tuning-v2",
    "s-idpg-phm",
    "m-idpg-phm",
    "m-idpg-phm-glove",
    "adapter",
    "compacter",
    "fine-tuning",
)
# task -> text columns, training file, test file, label words (for prompts that start from words)
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
    parser = make_parser(__doc__, METHODS, list(TASKS), "runs/few-shot")
    parser.add_argument("--backbone", default="minilm")
    parser.add_argument("--few-shot", type=int, default=100)
    arguments = parser.parse_args()
    runs = list_runs(arguments, f"k{arguments.few_shot}")
    backbone = load_backbone(arguments.backbone)
    run_missing(runs, lambda run: train(arguments, backbone, run))
    if arguments.search:
        print_search(arguments, runs)
        return
    tasks = arguments.tasks.split(",")

    def count_in_first_task(key: str, finished: Sequence[TableRun]) -> str:  # heads of tasks with two texts are wider
        return f"{next(run for run in finished if run.task == tasks[0]).cue_file['counts'][key]:,}"

    extra_columns: dict[str, Column] = {
        "trainable parameters": lambda finished: count_in_first_task("gradient", finished),
        "head": lambda finished: count_in_first_task("head", finished),
        "minutes": lambda finished: f"{sum(run.metrics['seconds'] for run in finished) / 60:.1f}",
    }
    print_table(runs, extra_columns, tasks, arguments.seeds)


def train(arguments: argparse.Namespace, backbone: Backbone, run: TableRun) -> None:
    columns, train_file, test_file, label_words = TASKS[run.task]
    settings = {
        **SCHEDULE,
        "task.validation_rows": VALIDATION_ROWS,
        "task.sample_seed": run.seed,
        **{f"task.label_words.{label}": words for label, words in label_words.items()},
    }
    if not arguments.search:
        settings |= {"task.test_rows": TEST_ROWS}
    softcue.train(
        run.folder,
        backbone=backbone,
        method=run.method,
        train=str(arguments.data / train_file),
        text=columns,
        label="label",
        test=None if arguments.search else str(arguments.data / test_file),
        few_shot=arguments.few_shot,
        seed=run.seed,
        overrides=[f"{key}={value}" for key, value in settings.items()] + arguments.overrides,
        resume=True,
        progress=False,
    )


if __name__ == "__main__":
    main()
