"""Tables of docs/results.md: out of domain, many labels, several tasks with one prompt, ensembles of cues.

    python -m benchmarks.tables.transfer --data data --t5 FOLDER
                                         run the missing runs, then print the tables

Two processes (each with OMP_NUM_THREADS=1, say) can share the work. Every method takes the same steps over the same
rows. Validation rows are held out of the training file; published validation or test files are only scored.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import softcue
from benchmarks.tables.grid import format_mean, print_header, print_row
from softcue.backbones import Backbone, load_backbone
from softcue.errors import RunError
from softcue.evaluation import evaluate, mean, vote
from softcue.evaluation.evaluation_set import read_evaluation_set
from softcue.files import lock_folder
from softcue.inference import predict
from softcue.tasks import find_task, sources

Scores = dict[str, float]
METHODS = ("prompt-tuning", "vip", "fine-tuning")
# trained on -> scored on; the training domain comes first
DOMAINS = {
    "squad": ("squad", "squadshifts-amazon", "duorc", "mrqa-race", "relation-extraction"),
    "qqp": ("qqp", "mrpc"),
    "mrpc": ("mrpc", "qqp"),
    "rte": ("rte", "cb", "axb"),
}
JOINT_TASKS = ("rte", "mrpc", "sst2", "semeval2010-8", "conll2003")
ENSEMBLE = ("mr", 5)  # task, cues
MANY_LABELS = ("conll2003", "semeval2010-8")
TEST_ROWS = {"duorc": 60, "mrqa-race": 100}  # long texts, several windows each; 200 rows of the others
ROWS = ["task.train_rows=1200", "task.validation_rows=100"]
# as many steps as take two hours on two cores
STEPS = {
    "t5": ["training.steps=150", "training.batch_size=8", "training.evaluate_every=50", "training.patience=0"],
    "minilm": ["training.steps=120", "training.batch_size=16", "training.evaluate_every=40", "training.patience=0"],
}
PROMPT_SETTINGS: dict[str, list[str]] = {"fine-tuning": []}  # it has no prompt
LONG_TEXTS = {"squad": ["backbone.max_length=256"]}
# After 120 steps of 16 rows MiniLM's head for spans is not trained enough (validation score: 8 to 26, still rising).
MORE_STEPS = {("minilm", "squad"): ["training.steps=400", "training.batch_size=8", "training.evaluate_every=100"]}


@dataclass(frozen=True)
class TransferRun:
    """One training run and its scores, which are saved as scores.json."""

    folder: Path
    train_and_score: Callable[[Path], Scores]

    @property
    def scores(self) -> Scores | None:
        path = self.folder / "scores.json"
        return json.loads(path.read_text("utf-8")) if path.is_file() else None

    def run(self) -> None:
        if self.scores is not None:
            return
        try:
            with lock_folder(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
                scores = self.train_and_score(self.folder)
                (self.folder / "scores.json").write_text(json.dumps(scores))
        except RunError as error:
            print(f"{self.folder.name}: not run here ({error})", file=sys.stderr, flush=True)
            return
        score_text = "  ".join(f"{name} {value:.1f}" for name, value in scores.items())
        print(f"{self.folder.name}: {score_text}", file=sys.stderr, flush=True)


class TransferRuns:
    """Makes the runs. A backbone is loaded when the first run needs it."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.data: Path = arguments.data
        self.output: Path = arguments.output
        self.t5: str = arguments.t5
        self.loaded: dict[str, Backbone] = {}

    def backbone(self, kind: str) -> Backbone:
        if kind not in self.loaded:
            self.loaded[kind] = load_backbone(self.t5 if kind == "t5" else kind)
        return self.loaded[kind]

    def domain(self, kind: str, source: str, method: str, seed: int) -> TransferRun:
        """Train on one task, score on it and on others."""

        def train_and_score(folder: Path) -> Scores:
            cue = self.train(folder / "cue", kind, source, method, seed)
            scores = {target: self.score(cue, target) for target in DOMAINS[source]}
            if method == "fine-tuning":  # as large as the backbone
                (folder / "cue" / "cue.safetensors").unlink()
            return scores

        return TransferRun(self.output / f"domain-{kind}-{source}-{method}-{seed}", train_and_score)

    def many_labels(self, task: str, method: str) -> TransferRun:
        """A task with many labels, with more steps and rows."""

        def train_and_score(folder: Path) -> Scores:
            cue = self.train(
                folder / "cue",
                "minilm",
                task,
                method,
                0,
                "training.steps=400",
                "training.evaluate_every=100",
                "task.train_rows=6400",
            )
            return cue.evaluate(str(self.data), task=task, num_rows=1000, baselines=False).scores

        return TransferRun(self.output / f"learned-{task}-{method}", train_and_score)

    def single_task(self, kind: str, task: str, method: str) -> TransferRun:
        """One task of the mixture with a prompt of its own."""
        steps = "training.steps=" + str(_num_steps(kind) // len(JOINT_TASKS) * 3)

        def train_and_score(folder: Path) -> Scores:
            return {task: self.score(self.train(folder / "cue", kind, task, method, 0, steps), task)}

        return TransferRun(self.output / f"alone-{kind}-{task}-{method}", train_and_score)

    def joint(self, kind: str, method: str) -> TransferRun:
        """One prompt for all tasks, with as many steps as they have alone."""

        def train_and_score(folder: Path) -> Scores:
            cues = softcue.train(
                folder / "cues",
                tasks=[str(self.task_file(folder, task)) for task in JOINT_TASKS],
                method=method,
                resume=True,
                backbone=self.backbone(kind),
                progress=False,
                overrides=[*STEPS[kind], *ROWS, *_prompt_settings(method), f"training.steps={_num_steps(kind) * 3}"],
            )
            return {task: self.score(cues[task], task) for task in JOINT_TASKS}

        return TransferRun(self.output / f"together-{kind}-{method}", train_and_score)

    def ensemble(self) -> TransferRun:
        """Cues of one task with different seeds, each alone and as an ensemble."""

        def train_and_score(folder: Path) -> Scores:
            task, size = ENSEMBLE
            cues = [
                self.train(
                    folder / f"seed{seed}",
                    "minilm",
                    task,
                    "prompt-tuning",
                    seed,
                    "task.train_rows=0",
                    "task.few_shot=100",
                )
                for seed in range(size)
            ]
            test = read_evaluation_set(cues[0].task, str(self.data), task=task)
            predictions = predict(cues[0].backbone, [(cue.model, example) for cue in cues for example in test.examples])
            per_row = [predictions.predictions[row :: len(test.examples)] for row in range(len(test.examples))]
            scores = {
                f"seed {seed}": evaluate(cue.backbone, cue.model, test.examples).main for seed, cue in enumerate(cues)
            }
            for name, join in (("vote", vote), ("mean", mean)):
                scores[name] = test.score([join(votes) for votes in per_row]).main
            return scores

        return TransferRun(self.output / "ensemble", train_and_score)

    def train(self, folder: Path, kind: str, task: str, method: str, seed: int, *overrides: str) -> softcue.Cue:
        """Train a cue on the task's training file only."""
        [path] = sources(find_task(task), self.data)["train"]
        return softcue.train(
            folder,
            backbone=self.backbone(kind),
            method=method,
            task=task,
            train=path,
            seed=seed,
            resume=True,
            progress=False,
            overrides=[
                *STEPS[kind],
                *MORE_STEPS.get((kind, task), []),
                *ROWS,
                *LONG_TEXTS.get(task, []),
                *_prompt_settings(method),
                *overrides,
            ],
        )

    def score(self, cue: softcue.Cue, task: str) -> float:
        return cue.evaluate(str(self.data), task=task, num_rows=TEST_ROWS.get(task, 200), baselines=False).main

    def task_file(self, folder: Path, task: str) -> Path:
        """Write a task file with the training file only, so that validation rows are held out of it."""
        [path] = sources(find_task(task), self.data)["train"]
        file = folder / f"{task}.yaml"
        values = find_task(task).model_dump(mode="json", exclude={"files", "published", "parts"})
        file.write_text(json.dumps(values | {"train": str(path.resolve()), "validation": "", "test": ""}))
        return file


def _num_steps(kind: str) -> int:
    return int(STEPS[kind][0].partition("=")[2])


def _prompt_settings(method: str) -> list[str]:
    return PROMPT_SETTINGS.get(method, ["method.prompt_length=20"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--t5", required=True, help="folder of a T5")
    parser.add_argument("--output", type=Path, default=Path("runs/transfer"))
    parser.add_argument("--seeds", type=int, default=1, help="runs of each line of the tables out of domain")
    parser.add_argument("--only", default="", help="run only runs whose name starts with this")
    arguments = parser.parse_args()
    runs = TransferRuns(arguments)
    domains = {
        (kind, source, method): [runs.domain(kind, source, method, seed) for seed in range(arguments.seeds)]
        for kind in ("minilm", "t5")
        for source in DOMAINS
        for method in METHODS
    }
    prompt_methods = METHODS[:2]
    joint = {method: runs.joint("minilm", method) for method in prompt_methods}
    single = {
        (method, task): runs.single_task("minilm", task, method) for method in prompt_methods for task in JOINT_TASKS
    }
    ensemble = runs.ensemble()
    many_labels = {(task, method): runs.many_labels(task, method) for task in MANY_LABELS for method in METHODS}
    first_seeds = [domain_runs[0] for domain_runs in domains.values()]
    other_seeds = [run for domain_runs in domains.values() for run in domain_runs[1:]]
    for run in [*first_seeds, *many_labels.values(), ensemble, *joint.values(), *single.values(), *other_seeds]:
        if run.folder.name.startswith(arguments.only):
            run.run()
    print_domains(domains)
    print_many_labels(many_labels)
    print_joint(joint, single)
    print_ensemble(ensemble)


def print_domains(domains: dict[tuple[str, str, str], list[TransferRun]]) -> None:
    """Print scores in domain and out of domain, and the mean loss out of domain."""
    for source, targets in DOMAINS.items():
        print()
        print_header(f"trained on {source}", "seeds", *targets, "mean loss out of domain")
        for (kind, trained_on, method), runs in domains.items():
            finished = [scores for run in runs if (scores := run.scores) is not None]
            if trained_on != source:
                continue
            if not finished:
                print_row(f"{method} on {kind}", "not run")
                continue
            cells = [format_mean([scores[target] for scores in finished]) for target in targets]
            losses = [statistics.mean(scores[source] - scores[target] for scores in finished) for target in targets[1:]]
            print_row(f"{method} on {kind}", len(finished), *cells, f"{statistics.mean(losses):.1f}")


def print_many_labels(runs: dict[tuple[str, str], TransferRun]) -> None:
    """Print the scores on tasks with many labels."""
    print()
    print_header("minilm", "task", "scores on 1,000 test rows")
    for (task, method), run in runs.items():
        scores = ", ".join(f"{name} {value:.1f}" for name, value in (run.scores or {}).items())
        print_row(method, task, scores or "not run")


def print_joint(joint: dict[str, TransferRun], single: dict[tuple[str, str], TransferRun]) -> None:
    """Print the scores of one prompt for all tasks beside those of a prompt for each."""
    print()
    print_header("minilm", *JOINT_TASKS, "mean")
    for method, run in joint.items():
        single_scores = {task: (single[method, task].scores or {}).get(task) for task in JOINT_TASKS}
        for name, scores in (("a prompt each", single_scores), ("one prompt for all", run.scores or {})):
            values = [scores.get(task) for task in JOINT_TASKS]
            present = [value for value in values if value is not None]
            cells = ["-" if value is None else f"{value:.1f}" for value in values]
            cells.append(f"{statistics.mean(present):.1f}" if len(present) == len(JOINT_TASKS) else "-")
            print_row(f"{method}, {name}", *cells)


def print_ensemble(run: TransferRun) -> None:
    """Print the scores of the ensemble beside those of its members."""
    scores = run.scores or {}
    members = [value for name, value in scores.items() if name.startswith("seed")]
    if members:
        print()
        print_header(f"{len(members)} cues for {ENSEMBLE[0]}", "accuracy")
        print_row("members, mean", format_mean(members))
        print_row("best member", f"{max(members):.1f}")
        print_row("majority vote", f"{scores['vote']:.1f}")
        print_row("mean probability", f"{scores['mean']:.1f}")


if __name__ == "__main__":
    main()
