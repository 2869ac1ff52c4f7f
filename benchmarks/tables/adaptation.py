"""What LM adaptation does for prompt-tuning: the analogue of figures 3c and 3d of Lester et al. (2021).

    python -m benchmarks.tables.adaptation --text text --data data [--t5 FOLDER]
                                         run the missing runs, then print the tables and draw the plot

A new T5 is pre-trained on plain text with span corruption. Copies of it are adapted with the prefix-LM objective for 0,
10 and 100 % of a second budget. On each, prompts are trained for two tasks, with and without a sentinel before every
target. With --t5 the same is done with that model for 0 and 100 % of a budget of its own, and with --new none with that
model alone. Interrupted runs go on where they were. Once the models are there, two processes (each with
OMP_NUM_THREADS=1, say) can share the runs of the tasks.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Literal

from matplotlib.figure import Figure

import softcue
from benchmarks.tables.markdown import format_mean, print_header, print_row
from softcue.adaptation import adapt
from softcue.errors import RunError
from softcue.files import lock_folder
from softcue.tasks import find_task, sources

SHARES = (0.0, 0.1, 1.0)  # of the steps of adaptation
TASK_SETTINGS = [
    *("training.steps=300", "training.batch_size=16", "training.evaluate_every=50", "training.patience=0"),
    *("task.train_rows=1600", "task.validation_rows=200", "method.prompt_length=20"),
    # The paper's models write the label by themselves. A model this small writes no label at all after 300 steps
    # (docs/results.md), so the labels are ranked; readout.decoding=greedy as an argument decodes freely.
    "readout.decoding=rank",
]
# a step of the T5 takes fifty times as long as one of the new model
T5_SETTINGS = [
    *("training.steps=100", "training.batch_size=8", "training.evaluate_every=25"),
    *("task.train_rows=800", "task.validation_rows=100"),
]
NUM_TEST_ROWS = 500
Targets = Literal[
    "plain", "sentinel", "head"
]  # written, written behind a sentinel, or a linear probe's, without prompt
TARGET_NAMES: dict[Targets, str] = {"plain": "plain", "sentinel": "with sentinel", "head": "linear probe, no prompt"}
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7")  # distinct also for colour-blind readers (Okabe and Ito)


@dataclass(frozen=True)
class AdaptedBackbone:
    """A model before or after its adaptation."""

    origin: str  # "new" for the pre-trained new model, or "t5"
    num_steps: int  # of adaptation
    path: Path

    @property
    def perplexities(self) -> list[float]:
        """Of held-out text in the objective it was last trained with; empty for a model that was given."""
        report = self.path / "adaptation.json"
        if not report.is_file():
            return []
        return [entry["perplexity"] for entry in json.loads(report.read_text("utf-8"))["history"]]


@dataclass(frozen=True)
class PromptRun:
    """Prompt-tuning of one task on one model, or a linear probe; its test score is kept in score.json."""

    backbone: AdaptedBackbone
    task: str
    seed: int
    targets: Targets
    folder: Path

    @property
    def score(self) -> float | None:
        path = self.folder / "score.json"
        return float(json.loads(path.read_text("utf-8"))) if path.is_file() else None

    def run(self, data: Path, overrides: Sequence[str] = ()) -> None:
        """Train and score, unless that was done or another process does it."""
        if self.score is not None:
            return
        try:
            with lock_folder(self.folder):
                self.folder.mkdir(parents=True, exist_ok=True)
                [train] = sources(find_task(self.task), data)["train"]
                settings = [*TASK_SETTINGS, *(T5_SETTINGS if self.backbone.origin == "t5" else ())]
                settings.append(f"readout.sentinel={self.targets == 'sentinel'}")
                if self.targets == "head":
                    settings = [setting for setting in TASK_SETTINGS if setting.startswith("task.")]
                cue = softcue.train(
                    self.folder / "cue",
                    backbone=str(self.backbone.path),
                    task=self.task,
                    train=train,
                    method="linear-probe" if self.targets == "head" else "prompt-tuning",
                    seed=self.seed,
                    resume=True,
                    progress=False,
                    overrides=[*settings, *overrides],
                )
                score = cue.evaluate(str(data), task=self.task, num_rows=NUM_TEST_ROWS, baselines=False).main
                (self.folder / "score.json").write_text(json.dumps(score))
        except RunError as error:
            print(f"{self.folder.name}: not run here ({error})", file=sys.stderr, flush=True)
            return
        print(f"{self.folder.name}: {score:.1f}", file=sys.stderr, flush=True)


def make_backbones(arguments: argparse.Namespace) -> list[AdaptedBackbone]:
    """Pre-train the new model and adapt it, and the T5 if there is one; what is finished is only read."""
    backbones = [] if arguments.new == "none" else _make_new_backbones(arguments)
    if arguments.t5 is not None:
        folder = arguments.output / f"t5-prefix-lm-{arguments.t5_steps}"
        adapt(
            folder,
            text=arguments.text,
            backbone=arguments.t5,
            steps=arguments.t5_steps,
            length=arguments.t5_length,
            batch_size=arguments.t5_batch_size,
            seed=0,
            resume=True,
        )
        backbones += [AdaptedBackbone("t5", 0, arguments.t5), AdaptedBackbone("t5", arguments.t5_steps, folder)]
    return backbones


def _make_new_backbones(arguments: argparse.Namespace) -> list[AdaptedBackbone]:
    """Pre-train the new model, and adapt it for each share of the steps."""
    sizes = {"length": arguments.length, "batch_size": arguments.batch_size, "seed": 0}
    first = arguments.output / "span-corruption"
    adapt(
        first,
        text=arguments.text,
        new=arguments.new,
        objective="span-corruption",
        steps=arguments.pretraining_steps,
        resume=True,
        **sizes,
    )
    backbones = []
    for share in SHARES:
        num_steps = round(share * arguments.adaptation_steps)
        folder = arguments.output / f"prefix-lm-{num_steps}" if num_steps else first
        if num_steps:
            adapt(
                folder,
                text=arguments.text,
                backbone=first,
                steps=num_steps,
                steps_before=arguments.pretraining_steps,
                resume=True,
                **sizes,
            )
        backbones.append(AdaptedBackbone("new", num_steps, folder))
    return backbones


def list_prompt_runs(backbones: Sequence[AdaptedBackbone], arguments: argparse.Namespace) -> Iterator[PromptRun]:
    """All runs of the tasks, the first seed of all before the next."""
    for seed in range(arguments.seeds):
        for backbone in backbones:
            if backbone.origin == "t5" and seed >= arguments.t5_seeds:
                continue
            for task in arguments.tasks.split(","):
                for targets in TARGET_NAMES:
                    if targets == "head" and seed:
                        continue  # a closed form: all seeds give the same
                    name = f"{backbone.origin}-{backbone.num_steps}-{task}-{targets}-{seed}"
                    yield PromptRun(backbone, task, seed, targets, arguments.output / "prompts" / name)


def scores_of(
    runs: Sequence[PromptRun], backbone: AdaptedBackbone, task: str, targets: Targets = "plain"
) -> list[float]:
    """The scores of all seeds that are finished."""
    chosen = [run for run in runs if (run.backbone, run.task, run.targets) == (backbone, task, targets)]
    return [score for run in chosen if (score := run.score) is not None]


def print_scores(runs: Sequence[PromptRun], backbones: Sequence[AdaptedBackbone], tasks: Sequence[str]) -> None:
    """Print the scores of each model, and the perplexities of its adaptation."""
    print_header("model", "adaptation steps", "held-out perplexity", "targets", *tasks)
    for backbone in backbones:
        perplexities = backbone.perplexities
        perplexity = f"{perplexities[0]:.1f} to {perplexities[-1]:.1f}" if perplexities else "-"
        for targets, target_name in TARGET_NAMES.items():
            cells = [scores_of(runs, backbone, task, targets) for task in tasks]
            print_row(
                backbone.origin,
                backbone.num_steps,
                perplexity,
                target_name,
                *(format_mean(scores) if scores else "not run" for scores in cells),
            )


def draw_plot(
    runs: Sequence[PromptRun], backbones: Sequence[AdaptedBackbone], tasks: Sequence[str], path: Path
) -> None:
    """Draw scores by objective (as figure 3c) and by steps of adaptation (as figure 3d) of the new model."""
    new = [backbone for backbone in backbones if backbone.origin == "new"]
    objectives: list[tuple[str, AdaptedBackbone, Targets]] = [
        ("span\ncorruption", new[0], "plain"),
        ("span corruption\n+ sentinel", new[0], "sentinel"),
        ("LM\nadaptation", new[-1], "plain"),
        ("LM adaptation\n+ sentinel", new[-1], "sentinel"),
    ]
    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2)
    shown = [entry for entry in objectives if any(scores_of(runs, entry[1], task, entry[2]) for task in tasks)]
    width = 0.8 / len(tasks)
    for number, task in enumerate(tasks):
        colour = COLOURS[number % len(COLOURS)]
        values = [scores_of(runs, backbone, task, targets) for _, backbone, targets in shown]
        places = [place + (number - (len(tasks) - 1) / 2) * width for place in range(len(shown))]
        means = [fmean(scores) if scores else 0.0 for scores in values]
        errors = [stdev(scores) if len(scores) > 1 else 0.0 for scores in values]
        left.bar(places, means, width, yerr=errors, capsize=3, color=colour, label=task)
        lines: dict[Targets, str] = {"plain": "-", "sentinel": ":", "head": "--"}
        for targets, line in lines.items():
            by_steps = {
                backbone.num_steps: scores for backbone in new if (scores := scores_of(runs, backbone, task, targets))
            }
            if not by_steps:
                continue
            right.errorbar(
                list(by_steps),
                [fmean(scores) for scores in by_steps.values()],
                [stdev(scores) if len(scores) > 1 else 0.0 for scores in by_steps.values()],
                color=colour,
                linestyle=line,
                marker="o",
                capsize=3,
                label=task if targets == "plain" else f"{task}, {TARGET_NAMES[targets]}",
            )
    left.set_xticks(range(len(shown)), [name for name, *_ in shown])
    left.set_title("objective (as figure 3c)")
    right.set_title("length of LM adaptation (as figure 3d)")
    right.set_xlabel("steps of LM adaptation")
    right.set_xticks([backbone.num_steps for backbone in new])
    for axes in (left, right):
        axes.set_ylim(0, 110)  # room for the legend
        axes.set_ylabel("test score")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False, fontsize=8)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=90)


def main(words: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("overrides", nargs="*", help="section.key=value for every run of a task")
    parser.add_argument("--text", type=Path, required=True, help="plain text: a file or a folder")
    parser.add_argument("--data", type=Path, required=True, help="folder with the tasks' published files")
    parser.add_argument("--output", type=Path, default=Path("runs/adaptation"))
    parser.add_argument("--plot", type=Path, help="default: adaptation.png in --output")
    parser.add_argument("--new", default="tiny", help="size of the new model; none: only --t5")
    # as many steps as take twenty and ten minutes on two cores
    parser.add_argument("--pretraining-steps", type=int, default=1500)
    parser.add_argument("--adaptation-steps", type=int, default=750)
    parser.add_argument("--length", type=int, default=128, help="tokens of a source")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--tasks", default="sst2,subj")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--t5", type=Path, help="folder of a T5 to adapt as well")
    # about half an hour on one core: a step of the new model's sizes would take 40 seconds
    parser.add_argument("--t5-steps", type=int, default=200)
    parser.add_argument("--t5-length", type=int, default=64)
    parser.add_argument("--t5-batch-size", type=int, default=8)
    parser.add_argument("--t5-seeds", type=int, default=1, help="runs of a task take about ten minutes each")
    arguments = parser.parse_args(words)
    backbones = make_backbones(arguments)
    runs = list(list_prompt_runs(backbones, arguments))
    for run in runs:
        run.run(arguments.data, arguments.overrides)
    tasks = arguments.tasks.split(",")
    print_scores(runs, backbones, tasks)
    if arguments.new != "none":
        plot = arguments.plot or arguments.output / "adaptation.png"
        draw_plot(runs, backbones, tasks, plot)
        print(f"plot: {plot}", file=sys.stderr)


if __name__ == "__main__":
    main()
