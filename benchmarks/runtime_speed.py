"""`python -m benchmarks runtimes`: encoders whose frozen layers run in another library, against torch, on real rows."""

from __future__ import annotations

import gc
import re
import time
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import softcue
from benchmarks.measuring import interleave_values, make_figure, median_ratio
from benchmarks.plan import Figures, Plan, report_seconds
from benchmarks.texts import PUBLISHED_TASKS, SAMPLE_TASKS
from softcue.backbones import Backbone, BackboneConfig, load_backbone
from softcue.backbones.runtimes import RuntimeChoice
from softcue.cue import Cue
from softcue.cue.rows_to_compare import read_rows_to_compare
from softcue.cue.runtimes import COMPARED_ROWS, COMPARED_SPLITS, start_runtime
from softcue.inference import predict
from softcue.serving.engine.engine import Engine
from softcue.types import Example, Prediction

METHODS = ("prompt-tuning", "p-tuning-v2", "m-idpg-phm")  # of the cues, one task each, trained with their presets
TRAIN_ROWS = 256
ROWS_AT_ONCE = 16
TIMED_TEXTS = 48  # of a turn, of all cues


def runtime_figures(
    plan: Plan, name: str, output_dir: Path, choice: RuntimeChoice, methods: Sequence[str] = METHODS
) -> dict[str, Any]:
    """Measure every figure of `python -m benchmarks runtimes` for one backbone, by name or folder.

    Example:
        runtime_figures(Plan(repeats=7), "minilm", Path("runs/bench/runtimes"), RuntimeChoice("auto"))["figures"]
    """
    key = re.sub(r"\W+", "_", Path(name).name.lower())
    with report_seconds(f"{name}: cues"):
        backbone = load_float(name, "float32")
        paths = train_cues(output_dir / key, backbone, plan.data, methods)
    cues = [softcue.load(path, backbone) for path in paths]
    data = None if plan.data is None else str(plan.data)
    rows = [rows_to_score(cue, data) for cue in cues]
    expected = [predictions(cue, backbone, examples) for cue, examples in zip(cues, rows, strict=True)]
    fast = load_float(name, "float32")
    fast_cues = [softcue.load(path, fast) for path in paths]
    with report_seconds(f"{name}: graphs"), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the report has the reasons
        report = start_runtime(fast, fast_cues, replace(choice, data=data))
    with report_seconds(f"{name}: answers"):
        got = [predictions(cue, fast, examples) for cue, examples in zip(fast_cues, rows, strict=True)]
    half = load_float(name, "bfloat16")
    engines = {
        "runtime": make_engine(fast, fast_cues),
        "float32": make_engine(backbone, cues),
        "bfloat16": make_engine(half, [softcue.load(path, half) for path in paths]),
    }
    questions = [
        (cue.name, list(examples[number].texts))
        for number in range(TIMED_TEXTS)
        for cue, examples in zip(cues, rows, strict=True)
    ]
    turns = {label: make_turn(engine, questions) for label, engine in engines.items()}
    with report_seconds(f"{name}: speed"):
        seconds = interleave_values(turns, plan.repeats, warmup=2)
    for engine in engines.values():
        engine.close()
    return {
        "figures": make_figures(key, plan, seconds, report.runtime, ", ".join(methods), expected, got),
        "report": vars(report),
    }


def make_figures(
    key: str,
    plan: Plan,
    seconds: dict[Any, list[float]],
    runtime: str,
    methods: str,
    expected: Sequence[Sequence[Prediction]],
    got: Sequence[Sequence[Prediction]],
) -> Figures:
    """The ratios of processor seconds, and the share of equal labels."""
    figures: Figures = {}
    for label, target in (("float32", 3.0), ("bfloat16", 1.3)):
        ratio, spread = median_ratio(seconds, label, "runtime")
        meaning = f"processor seconds of the engine: torch {label} / {runtime}, cues of {methods}, {key}"
        figure = make_figure(ratio, target, spread, plan.repeats, meaning, ">=")
        figures[f"serve_runtime_vs_torch_{label}_{key}"] = figure
    pairs = [pair for ours, theirs in zip(got, expected, strict=True) for pair in zip(ours, theirs, strict=True)]
    share = sum(one.label == other.label for one, other in pairs) / len(pairs)
    meaning = f"labels of {runtime} equal to torch float32 on {len(pairs)} rows, {key}"
    figures[f"serve_runtime_equal_labels_{key}"] = make_figure(share, 0.995, 0.0, 1, meaning, ">=")
    return figures


def load_float(name: str, dtype: str) -> Backbone:
    """A backbone in one number format."""
    return load_backbone(BackboneConfig.model_validate({"name": name, "dtype": dtype}))


def rows_to_score(cue: Cue, data: str | None) -> list[Example]:
    """Test rows on which the choice of a runtime was not made; of samples, which have too few, all of them."""
    chosen_by = read_rows_to_compare(cue, data, COMPARED_SPLITS, COMPARED_ROWS).examples
    tested = read_rows_to_compare(cue, data, (("test",),)).examples
    seen = {example.texts for example in chosen_by}
    fresh = [example for example in tested if example.texts not in seen]
    return list(fresh if len(fresh) >= TIMED_TEXTS else tested)[:COMPARED_ROWS]


def train_cues(folder: Path, backbone: Backbone, data: Path | None, methods: Sequence[str]) -> list[Path]:
    """Train a cue of each method, on a task of its own if there are as many; finished cues stay."""
    tasks = PUBLISHED_TASKS if data else SAMPLE_TASKS
    paths = []
    for number, method in enumerate(methods):
        path = folder / f"{tasks[number % len(tasks)]}-{method}"
        if not (path / "cue.json").is_file():
            softcue.train(
                path,
                task=tasks[number % len(tasks)],
                data=data,
                method=method,
                backbone=backbone,
                progress=False,
                overrides={
                    "task.train_rows": TRAIN_ROWS,
                    "task.validation_rows": 64,
                    "task.test_rows": 1,
                },
            )
            gc.collect()
        paths.append(path)
    return paths


def predictions(cue: Cue, backbone: Backbone, examples: Sequence[Example]) -> list[Prediction]:
    """The cue's predictions of rows, in mixed lengths."""
    return predict(backbone, [(cue.model, example) for example in examples], ROWS_AT_ONCE).predictions


def make_engine(backbone: Backbone, cues: Sequence[Cue]) -> Engine:
    """An engine, as the server has it: it stores nothing of the texts on disk."""
    return Engine(backbone, {cue.name: cue for cue in cues}, use_disk_cache=False)


def make_turn(engine: Engine, questions: Sequence[tuple[str, list[str]]]) -> Any:
    """A turn: all questions at once, and the processor seconds of this process until all are answered."""

    def run() -> float:
        started = time.process_time()
        engine.predict(questions)
        return time.process_time() - started

    return run
