"""`python -m benchmarks minute`: a cue from 200 rows as one command, from its start to the saved cue, on MiniLM.

The clock counts, with all cores, as for a user: start of Python, loading, reading rows, training, scoring test rows and
saving. With `--setfit`, SetFit trains at its defaults on the same rows in this process, and test scores are compared.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from benchmarks.measuring import make_figure, median_and_spread
from benchmarks.peers import fit_and_predict_setfit
from benchmarks.plan import Plan, report_seconds
from benchmarks.texts import PUBLISHED_TASKS, SAMPLE_TASKS, read_task
from softcue.backbones.loading.sources import find_source
from softcue.evaluation import score

NUM_SHOTS, VALIDATION_ROWS, TEST_ROWS = 200, 200, 500
METHOD = "p-tuning-v2"
MOST_SECONDS, MOST_POINTS_BELOW = 60.0, 0.5


def minute_figures(plan: Plan, with_setfit: bool) -> dict[str, Any]:
    """Measure the figures of `python -m benchmarks minute`, and the runs they are made of.

    Example:
        minute_figures(Plan(3, Path("data")), with_setfit=False)["runs"][0]["seconds"]
    """
    runs: list[dict[str, Any]] = []
    for task in PUBLISHED_TASKS if plan.data else SAMPLE_TASKS:
        for seed in range(plan.repeats):
            sample = {"few_shot": NUM_SHOTS, "sample_seed": seed}
            if plan.data:
                sample |= {"validation_rows": VALIDATION_ROWS, "test_rows": TEST_ROWS}
            with report_seconds(f"{task}, sample {seed + 1} of {plan.repeats}"):
                run: dict[str, Any] = {"task": task, "seed": seed, **train_cue(task, plan.data, sample)}
                if with_setfit:
                    run["setfit"] = score_setfit(task, plan.data, sample)
            runs.append(run)
    return {"figures": _figures(runs, with_setfit), "runs": runs}


def train_cue(task: str, data: Path | None, sample: dict[str, int]) -> dict[str, float]:
    """Train a cue in a process of its own; returns its seconds by the clock and its test score."""
    words = ["--task", task, "--method", METHOD, "--backbone", "minilm", *(["--data", str(data)] if data else [])]
    settings = [f"task.{key}={value}" for key, value in sample.items()]
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "softcue", "train", *words, "--output-dir", folder + "/cue", *settings]
        environment = {**os.environ, "HF_HUB_OFFLINE": "1"}
        started = time.perf_counter()
        subprocess.run(command, check=True, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        seconds = time.perf_counter() - started
        scores = json.loads(Path(folder, "cue", "cue.json").read_text("utf-8"))["scores"]["test"]
    return {"seconds": round(seconds, 2), "test": scores["accuracy"]}


def score_setfit(task: str, data: Path | None, sample: dict[str, int]) -> float:
    """The test score of SetFit at its defaults on the same rows."""
    splits = read_task(task, data, **sample)
    result = fit_and_predict_setfit(find_source("minilm").folder, splits.train, splits.test, sample["sample_seed"])
    return score(splits.task, result.predictions, splits.test).main


def _figures(runs: Sequence[dict[str, Any]], with_setfit: bool) -> dict[str, Any]:
    seconds, spread = median_and_spread([run["seconds"] for run in runs])
    meaning = f"seconds from `softcue train` with {METHOD} to the saved cue, MiniLM; the slowest of all runs counts"
    slowest = max(run["seconds"] for run in runs)
    figures = {"cue_seconds": make_figure(slowest, MOST_SECONDS, spread, len(runs), f"{meaning}; median {seconds:.1f}")}
    if with_setfit:
        differences = [run["test"] - run["setfit"] for run in runs]
        _, spread = median_and_spread(differences)
        meaning = f"test points of {METHOD} above SetFit at its defaults, mean over all runs"
        figures["cue_points_above_setfit"] = make_figure(
            fmean(differences), -MOST_POINTS_BELOW, spread, len(runs), meaning, comparison=">="
        )
    return figures
