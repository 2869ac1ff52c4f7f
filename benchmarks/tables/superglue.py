"""The SuperGLUE table of docs/results.md (a small version of table 1 of Bhardwaj et al. 2022): VIP's variants on a T5.

    python -m benchmarks.tables.superglue --data data --t5 FOLDER
                                          run the missing runs, then print the table
    python -m benchmarks.tables.superglue --data ... --t5 ... --search vip method.scale=0
                                          one setting, scored on validation rows only

Every method takes the same steps over the same rows. Validation rows come from the training file. The published
validation file is the test set, and no search uses it.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import softcue
from benchmarks.tables.grid import (
    Column,
    TableRun,
    list_runs,
    make_parser,
    print_row,
    print_search,
    print_table,
    run_missing,
)
from softcue.backbones import Backbone, load_backbone
from softcue.evaluation import zero_shot
from softcue.tasks import Label, Task, examples_from, sample

# name in the table -> method, and its settings beyond the preset
METHODS: dict[str, tuple[str, list[str]]] = {
    "prompt-tuning": ("prompt-tuning", []),
    "vip-c": ("vip-c", []),
    "vip": ("vip", []),
    "vip-nr": ("vip", ["method.noise_resilience=1", "method.dropout=0.1"]),  # dropout is the noise
    "vip-idp": ("vip-idp", []),
}
ONLY_TASKS = {"vip-idp": ("CB", "RTE")}
SCHEDULE = [
    "training.steps=150",
    "training.batch_size=8",
    "training.evaluate_every=50",
    "training.patience=0",
    "method.prompt_length=20",
    "backbone.max_length=128",
]
JsonRow = dict[str, Any]


def _format_entailment(row: JsonRow) -> str:
    """The hypothesis and the last 40 words of the premise, where CB's claims are. Cuts 64 % of CB's, 32 % of RTE's."""
    premise = " ".join(row["premise"].split()[-40:])
    return f"hypothesis: {row['hypothesis']} premise: {premise}"


def _format_wsc(row: JsonRow) -> str:
    """The text with both spans marked, and the claim that one refers to the other."""
    words, target = row["text"].split(" "), row["target"]
    words[target["span1_index"]] = f"*{words[target['span1_index']]}*"
    words[target["span2_index"]] = f"#{words[target['span2_index']]}#"
    return f"{' '.join(words)} {target['span2_text']} refers to {target['span1_text']}"


# task -> function from a row to one text, words of each label, number of training rows, number of validation rows
TASKS: dict[str, tuple[Callable[[JsonRow], str], dict[str, str], int, int]] = {
    "CB": (
        _format_entailment,
        {"entailment": "entailment", "contradiction": "contradiction", "neutral": "neutral"},
        200,
        50,
    ),
    "COPA": (
        lambda row: (
            f"choice1: {row['choice1']} choice2: {row['choice2']} premise: {row['premise']} question: {row['question']}"
        ),
        {"0": "choice1", "1": "choice2"},
        300,
        100,
    ),
    "WSC": (_format_wsc, {"False": "false", "True": "true"}, 400, 150),
    "RTE": (_format_entailment, {"entailment": "entailment", "not_entailment": "different"}, 400, 200),
}
TEST_ROWS = 200


def main() -> None:
    parser = make_parser(__doc__, list(METHODS), list(TASKS), "runs/superglue")
    parser.add_argument("--t5", required=True, help="folder of a T5")
    arguments = parser.parse_args()
    runs = [run for run in list_runs(arguments) if arguments.search or run.task in ONLY_TASKS.get(run.method, TASKS)]
    backbone = load_backbone(arguments.t5)
    run_missing(runs, lambda run: train(arguments, backbone, run))
    if arguments.search:
        print_search(arguments, runs)
        return
    tasks = arguments.tasks.split(",")
    extra_columns: dict[str, Column] = {
        "validation": lambda finished: f"{statistics.mean(run.score('validation') for run in finished):.1f}",
        "perplexity of codes": lambda finished: mean_health(finished, "perplexity", "{:.0f}"),
        "variation over inputs, %": lambda finished: mean_health(finished, "prompt_variation", "{:.3f}", 100),
        "size of P^q / P": lambda finished: mean_health(finished, "prompt_ratio", "{:.2f}"),
        "stored parameters": lambda finished: f"{finished[0].cue_file['counts']['stored']:,}",
        "minutes": lambda finished: f"{sum(run.metrics['seconds'] for run in finished) / 60:.0f}",
    }
    print_table(runs, extra_columns, tasks, arguments.seeds)
    scores = {task: zero_shot_score(arguments, backbone, task) for task in tasks}
    print_row(
        "zero-shot",
        *(f"{scores[task]:.1f}" for task in tasks),
        f"{statistics.mean(scores.values()):.1f}",
        *(["-"] * len(extra_columns)),
    )


def mean_health(finished: Sequence[TableRun], name: str, template: str, factor: float = 1.0) -> str:
    """Mean over runs of a health value of the method after its last step."""
    values = [run.metrics["health"][name] for run in finished if name in run.metrics["health"]]
    return template.format(factor * statistics.mean(values)) if values else "-"


def zero_shot_score(arguments: argparse.Namespace, backbone: Backbone, task_name: str) -> float:
    """The zero-shot score of the backbone on the test rows of the runs; computed once."""
    path = arguments.output / f"untrained-{task_name}.json"
    if not path.is_file():
        labels = {name: Label(words=words) for name, words in TASKS[task_name][1].items()}
        task = Task(name=task_name, labels=labels)
        examples = examples_from(read_rows(arguments.data / "superglue" / task_name / "val.jsonl", task_name), task)
        path.write_text(json.dumps(zero_shot(backbone, task, sample(examples, TEST_ROWS, seed=0)).main))
    return float(json.loads(path.read_text("utf-8")))


def read_rows(path: Path, task: str) -> list[dict[str, str]]:
    """The rows of a file as one text and a label each."""
    format_text = TASKS[task][0]
    lines = path.read_text("utf-8").splitlines()
    return [{"text": format_text(row), "label": str(row["label"])} for row in map(json.loads, lines)]


def train(arguments: argparse.Namespace, backbone: Backbone, run: TableRun) -> None:
    _, label_words, train_rows, validation_rows = TASKS[run.task]
    method, settings = METHODS.get(run.method, (run.method, []))
    folder = arguments.data / "superglue" / run.task
    rows = read_rows(folder / "train.jsonl", run.task)
    overrides = [
        *SCHEDULE,
        f"task.train_rows={train_rows}",
        *(f"task.label_words.{label}={words}" for label, words in label_words.items()),
        *settings,
        *arguments.overrides,
    ]
    if not arguments.search:
        overrides.append(f"task.test_rows={TEST_ROWS}")
    softcue.train(
        run.folder,
        backbone=backbone,
        method=method,
        train=rows[:-validation_rows],
        validation=rows[-validation_rows:],
        text="text",
        label="label",
        test=None if arguments.search else read_rows(folder / "val.jsonl", run.task),
        seed=run.seed,
        overrides=overrides,
        resume=True,
        progress=False,
    )


if __name__ == "__main__":
    main()
