"""Out of domain, many labels, several tasks on one prompt, several cues as one: tables of docs/results.md.

    python benchmarks/transfer.py --data ../shared/data --t5 FOLDER     run what is missing, then print the tables

Started twice (each with OMP_NUM_THREADS=1, say) two processes share the work. Every method takes the same steps over
the same rows. Validation rows are held out of the training file; published validation or test files are only scored.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import softcue
from softcue.backbones import Backbone, load_backbone
from softcue.errors import RunError
from softcue.evaluation import evaluate, mean, vote
from softcue.evaluation.evaluation_set import read_evaluation_set
from softcue.inference import predict
from softcue.tasks import find_task, sources
from softcue.training.run_lock import lock_folder

Scores = dict[str, float]
METHODS = ("prompt-tuning", "vip", "fine-tuning")
# trained on -> scored on, its own rows first
DOMAINS = {
    "squad": ("squad", "squadshifts-amazon", "duorc", "mrqa-race", "relation-extraction"),
    "qqp": ("qqp", "mrpc"),
    "mrpc": ("mrpc", "qqp"),
    "rte": ("rte", "cb", "axb"),
}
TOGETHER = ("rte", "mrpc", "sst2", "semeval2010-8", "conll2003")
ENSEMBLE = ("mr", 5)  # task, cues
LEARNED = ("conll2003", "semeval2010-8")
TEST_ROWS = {"duorc": 60, "mrqa-race": 100}  # long texts, several windows each; 200 rows of the others
ROWS = ["task.train_rows=1200", "task.validation_rows=100"]
# what fits two hours on two cores
STEPS = {
    "t5": ["training.steps=150", "training.batch_size=8", "training.evaluate_every=50", "training.patience=0"],
    "minilm": ["training.steps=120", "training.batch_size=16", "training.evaluate_every=40", "training.patience=0"],
}
PROMPT: dict[str, list[str]] = {"fine-tuning": []}  # no prompt to be long
LONG = {"squad": ["backbone.max_length=256"]}
# 16 rows in 120 steps leave MiniLM's head for spans untrained (validation rows: 8 to 26, still rising)
MORE_STEPS = {("minilm", "squad"): ["training.steps=400", "training.batch_size=8", "training.evaluate_every=100"]}


@dataclass(frozen=True)
class RequestRow:
    """One run: what it trains and scores, kept as scores.json."""

    folder: Path
    work: Callable[[Path], Scores]

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
                scores = self.work(self.folder)
                (self.folder / "scores.json").write_text(json.dumps(scores))
        except RunError as error:
            print(f"{self.folder.name}: not run here ({error})", file=sys.stderr, flush=True)
            return
        shown = "  ".join(f"{name} {value:.1f}" for name, value in scores.items())
        print(f"{self.folder.name}: {shown}", file=sys.stderr, flush=True)


class Bench:
    """The jobs, on backbones that are loaded when the first job needs them."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.data: Path = arguments.data
        self.output: Path = arguments.output
        self.t5: str = arguments.t5
        self.loaded: dict[str, Backbone] = {}

    def backbone(self, kind: str) -> Backbone:
        if kind not in self.loaded:
            self.loaded[kind] = load_backbone(self.t5 if kind == "t5" else kind)
        return self.loaded[kind]

    def domain(self, kind: str, source: str, method: str, seed: int) -> RequestRow:
        """Train on one task, score on it and on others."""

        def work(folder: Path) -> Scores:
            cue = self.train(folder / "cue", kind, source, method, seed)
            found = {target: self.score(cue, target) for target in DOMAINS[source]}
            if method == "fine-tuning":  # as large as the backbone
                (folder / "cue" / "cue.safetensors").unlink()
            return found

        return RequestRow(self.output / f"domain-{kind}-{source}-{method}-{seed}", work)

    def learned(self, task: str, method: str) -> RequestRow:
        """A task with many labels, for longer and on more rows."""

        def work(folder: Path) -> Scores:
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
            return cue.evaluate(str(self.data), task=task, num_rows=1000).scores

        return RequestRow(self.output / f"learned-{task}-{method}", work)

    def alone(self, kind: str, task: str, method: str) -> RequestRow:
        """One task of the mixture by itself."""
        steps = "training.steps=" + str(_steps(kind) // len(TOGETHER) * 3)

        def work(folder: Path) -> Scores:
            return {task: self.score(self.train(folder / "cue", kind, task, method, 0, steps), task)}

        return RequestRow(self.output / f"alone-{kind}-{task}-{method}", work)

    def together(self, kind: str, method: str) -> RequestRow:
        """One prompt for all of them, with as many steps as they have alone."""

        def work(folder: Path) -> Scores:
            cues = softcue.train(
                folder / "cues",
                tasks=[str(self.task_file(folder, task)) for task in TOGETHER],
                method=method,
                resume=True,
                backbone=self.backbone(kind),
                progress=False,
                overrides=[*STEPS[kind], *ROWS, *_prompt(method), f"training.steps={_steps(kind) * 3}"],
            )
            return {task: self.score(cues[task], task) for task in TOGETHER}

        return RequestRow(self.output / f"together-{kind}-{method}", work)

    def ensemble(self) -> RequestRow:
        """Cues of one task that differ in their seed, each by itself and as one."""

        def work(folder: Path) -> Scores:
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
            found = predict(cues[0].backbone, [(cue.model, example) for cue in cues for example in test.examples])
            per_row = [found.predictions[row :: len(test.examples)] for row in range(len(test.examples))]
            scores = {
                f"seed {seed}": evaluate(cue.backbone, cue.model, test.examples).main for seed, cue in enumerate(cues)
            }
            for name, join in (("vote", vote), ("mean", mean)):
                scores[name] = test.score([join(answers) for answers in per_row]).main
            return scores

        return RequestRow(self.output / "ensemble", work)

    def train(self, folder: Path, kind: str, task: str, method: str, seed: int, *words: str) -> softcue.Cue:
        """A cue from the task's training file alone."""
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
                *LONG.get(task, []),
                *_prompt(method),
                *words,
            ],
        )

    def score(self, cue: softcue.Cue, task: str) -> float:
        return cue.evaluate(str(self.data), task=task, num_rows=TEST_ROWS.get(task, 200)).main

    def task_file(self, folder: Path, task: str) -> Path:
        """The task with its training file only, so that validation rows are held out of it."""
        [path] = sources(find_task(task), self.data)["train"]
        file = folder / f"{task}.yaml"
        values = find_task(task).model_dump(mode="json", exclude={"files", "published", "parts"})
        file.write_text(json.dumps(values | {"train": str(path.resolve()), "validation": "", "test": ""}))
        return file


def _steps(kind: str) -> int:
    return int(STEPS[kind][0].partition("=")[2])


def _prompt(method: str) -> list[str]:
    return PROMPT.get(method, ["method.prompt_length=20"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--t5", required=True, help="folder of a T5")
    parser.add_argument("--output", type=Path, default=Path("runs/transfer"))
    parser.add_argument("--seeds", type=int, default=1, help="runs of each line of the tables out of domain")
    parser.add_argument("--only", default="", help="run only jobs whose name begins so")
    arguments = parser.parse_args()
    bench = Bench(arguments)
    domains = {
        (kind, source, method): [bench.domain(kind, source, method, seed) for seed in range(arguments.seeds)]
        for kind in ("minilm", "t5")
        for source in DOMAINS
        for method in METHODS
    }
    prompts = METHODS[:2]
    together = {method: bench.together("minilm", method) for method in prompts}
    alone = {(method, task): bench.alone("minilm", task, method) for method in prompts for task in TOGETHER}
    ensemble = bench.ensemble()
    learned = {(task, method): bench.learned(task, method) for task in LEARNED for method in METHODS}
    first = [jobs[0] for jobs in domains.values()]
    more = [job for jobs in domains.values() for job in jobs[1:]]
    for job in [*first, *learned.values(), ensemble, *together.values(), *alone.values(), *more]:
        if job.folder.name.startswith(arguments.only):
            job.run()
    print_domains(domains)
    print_learned(learned)
    print_together(together, alone)
    print_ensemble(ensemble)


def print_domains(domains: dict[tuple[str, str, str], list[RequestRow]]) -> None:
    """In domain, and how much is lost on each other one."""
    for source, targets in DOMAINS.items():
        print(f"\n| trained on {source} | seeds | {' | '.join(targets)} | mean loss out of domain |")
        print("|---" * (len(targets) + 3) + "|")
        for (kind, trained_on, method), jobs in domains.items():
            done = [scores for job in jobs if (scores := job.scores) is not None]
            if trained_on != source:
                continue
            if not done:
                print(f"| {method} on {kind} | not run |")
                continue
            cells = [spread([scores[target] for scores in done]) for target in targets]
            losses = [statistics.mean(scores[source] - scores[target] for scores in done) for target in targets[1:]]
            print(f"| {method} on {kind} | {len(done)} | {' | '.join(cells)} | {statistics.mean(losses):.1f} |")


def print_learned(learned: dict[tuple[str, str], RequestRow]) -> None:
    print("\n| minilm | task | scores on 1,000 test rows |\n|---|---|---|")
    for (task, method), job in learned.items():
        shown = ", ".join(f"{name} {value:.1f}" for name, value in (job.scores or {}).items()) or "not run"
        print(f"| {method} | {task} | {shown} |")


def print_together(together: dict[str, RequestRow], alone: dict[tuple[str, str], RequestRow]) -> None:
    print(f"\n| minilm | {' | '.join(TOGETHER)} | mean |")
    print("|---" * (len(TOGETHER) + 2) + "|")
    for method, job in together.items():
        single = {task: (alone[method, task].scores or {}).get(task) for task in TOGETHER}
        for name, found in (("a prompt each", single), ("one prompt for all", job.scores or {})):
            values = [found.get(task) for task in TOGETHER]
            known = [value for value in values if value is not None]
            cells = ["-" if value is None else f"{value:.1f}" for value in values]
            cells.append(f"{statistics.mean(known):.1f}" if len(known) == len(TOGETHER) else "-")
            print(f"| {method}, {name} | {' | '.join(cells)} |")


def print_ensemble(job: RequestRow) -> None:
    scores = job.scores or {}
    members = [value for name, value in scores.items() if name.startswith("seed")]
    if members:
        print(f"\n| {len(members)} cues for {ENSEMBLE[0]} | accuracy |\n|---|---|")
        print(f"| members, mean | {spread(members)} |\n| best member | {max(members):.1f} |")
        print(f"| majority vote | {scores['vote']:.1f} |\n| mean probability | {scores['mean']:.1f} |")


def spread(values: Sequence[float]) -> str:
    """Mean and standard deviation."""
    deviation = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{deviation}"


if __name__ == "__main__":
    main()
