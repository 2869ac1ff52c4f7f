"""The few-shot table of docs/results.md (IDPG's protocol, Wu et al. 2022): methods x tasks x seeds on MiniLM.

    python benchmarks/few_shot.py --data ../shared/data            run what is missing, then print the table
    python benchmarks/few_shot.py --data ... --search m-idpg-phm method.rule=kv training.network_learning_rate=0.001
                                                                   one setting on validation rows alone

Every run is an ordinary `softcue.train` of K rows, with its own sample for each seed (the same for all methods).
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from table import Run, make_parser, print_search, print_table, run_missing, runs_of

import softcue
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
    parser = make_parser(__doc__, METHODS, list(TASKS), "runs/few-shot")
    parser.add_argument("--backbone", default="minilm")
    parser.add_argument("--few-shot", type=int, default=100)
    arguments = parser.parse_args()
    runs = runs_of(arguments, f"k{arguments.few_shot}")
    backbone = load_backbone(arguments.backbone)
    run_missing(runs, lambda run: train(arguments, backbone, run))
    if arguments.search:
        print_search(arguments, runs)
        return
    tasks = arguments.tasks.split(",")

    def of_first_task(key: str, done: Sequence[Run]) -> str:  # the head of a task with two texts is wider
        return f"{next(run for run in done if run.task == tasks[0]).record['counts'][key]:,}"

    extra = {
        "trained numbers": lambda done: of_first_task("gradient", done),
        "head": lambda done: of_first_task("head", done),
        "minutes": lambda done: f"{sum(run.metrics['seconds'] for run in done) / 60:.1f}",
    }
    print_table(runs, extra, tasks, arguments.seeds)


def train(arguments: argparse.Namespace, backbone: Backbone, run: Run) -> None:
    columns, train, test, label_words = TASKS[run.task]
    settings = {
        **SCHEDULE,
        "task.validation_rows": VALIDATION_ROWS,
        "task.sample_seed": run.seed,
        **{f"task.label_words.{label}": words for label, words in label_words.items()},
    }
    if not arguments.search:
        settings |= {"task.test_rows": TEST_ROWS}
    words = [f"{key}={value}" for key, value in settings.items()] + arguments.words
    softcue.train(
        run.folder,
        backbone=backbone,
        method=run.method,
        train=str(arguments.data / train),
        text=columns,
        label="label",
        test=None if arguments.search else str(arguments.data / test),
        few_shot=arguments.few_shot,
        seed=run.seed,
        overrides=words,
        resume=True,
        progress=False,
    )


if __name__ == "__main__":
    main()
