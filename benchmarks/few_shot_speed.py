"""`python -m benchmarks few-shot`: processor seconds of training on 100 rows until a score is reached, on MiniLM.

The score is that of our linear probe on the same validation rows and four points more. The clock stops while a
contestant is scored, except where validation rows choose between solutions (the probe). Everything to load, above all
MiniLM, is loaded before. Contestants: p-tuning-v2 with its preset, our probe, a plain logistic regression on sentence
vectors, SetFit.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any
from unittest.mock import patch

import torch

from benchmarks.measuring import make_figure, median_and_spread
from benchmarks.peers import import_peer, labels_of, predictions_of, run_setfit, texts_of
from benchmarks.plan import Figures, Plan, report_seconds
from benchmarks.texts import PUBLISHED_TASKS, read_task
from softcue.backbones import Backbone, load_backbone
from softcue.configuration import resolve
from softcue.evaluation import score
from softcue.inference import make_task_model
from softcue.methods import METHODS
from softcue.tasks.splits import Splits
from softcue.training import TaskData, Trainer
from softcue.types import Example

TASKS = ("reply-form", "tickets", "urgency", *PUBLISHED_TASKS)  # the last ones need their published files
NUM_SHOTS, VALIDATION_ROWS, TEST_ROWS = 100, 200, 500
POINTS_ABOVE_PROBE = 4.0
SETFIT_SCORED_EVERY = 20  # steps
METHOD = "p-tuning-v2"
PROBE, OURS, SETFIT = "linear probe (softcue)", f"{METHOD} (softcue)", "SetFit"


@dataclass
class FewShotRun:
    """The training of one contestant: its processor seconds, and those after which its score reached the target."""

    target_score: float
    seconds: float = 0.0
    seconds_to_score: float | None = None
    validation_score: float = 0.0  # the best
    _since: float = field(default_factory=time.process_time)

    def count_time(self) -> None:
        """Count the time since the last call as training."""
        now = time.process_time()
        self.seconds += now - self._since
        self._since = now

    def add_score(self, score: float, head_seconds: float = 0.0) -> None:
        """Note a validation score. The time since the last call is not counted.

        `head_seconds` of it belong to training, but only for the score that reaches the target.
        """
        self.validation_score = max(self.validation_score, score)
        if self.seconds_to_score is None and score >= self.target_score:
            self.seconds_to_score = self.seconds + head_seconds
        self._since = time.process_time()

    @property
    def needed_seconds(self) -> float:
        """Seconds to the target score; all seconds, an underestimate, if it was not reached."""
        return self.seconds if self.seconds_to_score is None else self.seconds_to_score


def few_shot_figures(plan: Plan, tasks: Sequence[str] = ()) -> dict[str, Any]:
    """Measure the ratios of `python -m benchmarks few-shot` on each task, and the values of each contestant.

    Example:
        few_shot_figures(Plan(repeats=3), ["reply-form"])["figures"]
    """
    backbone = load_backbone("minilm")
    figures: Figures = {}
    contestants: dict[str, Any] = {}
    for task in tasks or TASKS[: None if plan.data else -len(PUBLISHED_TASKS)]:
        runs = train_all(backbone, task, plan)
        figures |= _compare(runs, task)
        contestants |= {f"{task}: {name}": _summarize(contestant_runs) for name, contestant_runs in runs.items()}
    return {"figures": figures, "contestants": contestants}


def train_all(backbone: Backbone, task: str, plan: Plan) -> dict[str, list[FewShotRun]]:
    """Train every contestant on samples of a task, one sample for each repeat."""
    runs: dict[str, list[FewShotRun]] = {name: [] for name in CONTESTANTS}
    for seed in range(plan.repeats):
        sizes = {"validation_rows": VALIDATION_ROWS, "test_rows": TEST_ROWS} if task in PUBLISHED_TASKS else {}
        splits = read_task(task, plan.data, few_shot=NUM_SHOTS, sample_seed=seed, **sizes)
        target_score = 0.0
        for name, train_contestant in CONTESTANTS.items():
            with report_seconds(f"{task}, sample {seed + 1} of {plan.repeats}: {name}"):
                runs[name].append(train_contestant(backbone, splits, target_score))
            if name == PROBE:  # the first contestant
                target_score = runs[name][-1].validation_score + POINTS_ABOVE_PROBE
    return runs


def train_linear_probe(backbone: Backbone, splits: Splits, target_score: float) -> FewShotRun:
    """Our linear probe: solved once per regularisation strength; validation rows choose."""
    run = FewShotRun(target_score)
    # Sentence vectors cached by an earlier run would take no time, so the run has a cache of its own.
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, {"SOFTCUE_HOME": folder}):
        result = _make_trainer("linear-probe", backbone, splits, lambda kind, values: None).run()
        run.count_time()
        run.add_score(result.state.best_score or 0.0)
    return run


def train_deep_prompts(backbone: Backbone, splits: Splits, target_score: float) -> FewShotRun:
    """Our method with its preset, scored when its trainer does so."""
    run = FewShotRun(target_score)

    def listen(kind: str, values: dict[str, Any]) -> None:
        if kind == "step" or values["step"] == 0:  # the start: its head is solved
            run.count_time()
        if kind != "step":
            run.add_score(values["score"])

    _make_trainer(METHOD, backbone, splits, listen).run()
    return run


def train_logistic_regression(backbone: Backbone, splits: Splits, target_score: float) -> FewShotRun:
    """scikit-learn's defaults on the sentence vectors of sentence-transformers."""
    from sklearn.linear_model import LogisticRegression

    encode = import_peer("sentence_transformers").SentenceTransformer(str(backbone.folder), device="cpu").encode
    run = FewShotRun(target_score)
    head = LogisticRegression(max_iter=1000).fit(encode(texts_of(splits.train)), labels_of(splits.train))
    run.count_time()
    run.add_score(_score(splits, splits.validation, head.predict(encode(texts_of(splits.validation)))))
    return run


def train_setfit(backbone: Backbone, splits: Splits, target_score: float) -> FewShotRun:
    """SetFit's defaults: one epoch of contrastive pairs, then a logistic regression. Ends at the score."""
    from sklearn.linear_model import LogisticRegression
    from transformers import TrainerCallback

    model = import_peer("setfit").SetFitModel.from_pretrained(str(backbone.folder), device="cpu")
    run = FewShotRun(target_score)

    def score_now() -> None:
        run.count_time()
        started, encode = time.process_time(), model.model_body.encode
        head = LogisticRegression().fit(encode(texts_of(splits.train)), labels_of(splits.train))
        head_seconds = time.process_time() - started  # the head belongs to training, but only the last one
        predictions = head.predict(encode(texts_of(splits.validation)))
        run.add_score(_score(splits, splits.validation, predictions), head_seconds)

    class ScoreDuringTraining(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, arguments: Any, state: Any, control: Any, **rest: Any) -> None:
            if state.global_step % SETFIT_SCORED_EVERY == 0:
                score_now()
            control.should_training_stop = run.seconds_to_score is not None

    run_setfit(model, splits.train, callbacks=[ScoreDuringTraining()])
    if run.seconds_to_score is None:
        run.count_time()
        run.add_score(_score(splits, splits.validation, model.predict(texts_of(splits.validation), as_numpy=True)))
    return run


CONTESTANTS: dict[str, Callable[[Backbone, Splits, float], FewShotRun]] = {
    PROBE: train_linear_probe,
    OURS: train_deep_prompts,
    "logistic regression (scikit-learn)": train_logistic_regression,
    SETFIT: train_setfit,
}


def _make_trainer(
    name: str, backbone: Backbone, splits: Splits, listener: Callable[[str, dict[str, Any]], None]
) -> Trainer:
    config = resolve({"method": {"name": name}}, backbone.kind)
    generator = torch.Generator().manual_seed(0)
    model = make_task_model(splits.task, (METHODS[name], config.method), config.readout, backbone, generator)
    tasks = [TaskData(model, splits.train, splits.validation)]
    return Trainer(backbone, tasks, config.training, listener=listener)


def _compare(runs: dict[str, list[FewShotRun]], task: str) -> Figures:
    """The worst sample counts. If SetFit misses the score, all its seconds count, which are too few."""
    ratios = [
        0.0 if ours.seconds_to_score is None else peer.needed_seconds / ours.needed_seconds
        for ours, peer in zip(runs[OURS], runs[SETFIT], strict=True)
    ]
    _, spread = median_and_spread(ratios)
    meaning = (
        f"processor seconds to the linear probe's validation score + {POINTS_ABOVE_PROBE:.0f} points, {NUM_SHOTS} rows "
        f"of {task}: SetFit / our {METHOD}, the worst of all samples; 0 if ours misses it"
    )
    key = f"few_shot_vs_setfit_{task.replace('-', '_')}"
    return {key: make_figure(min(ratios), 5.0, spread, len(ratios), meaning, ">=")}


def _summarize(runs: Sequence[FewShotRun]) -> dict[str, Any]:
    return {
        "seconds": round(statistics.median(run.seconds for run in runs), 2),
        "seconds_to_score": [None if run.seconds_to_score is None else round(run.seconds_to_score, 2) for run in runs],
        "wanted": [round(run.target_score, 1) or None for run in runs],  # the probe has no score to reach
        "validation": round(statistics.mean(run.validation_score for run in runs), 1),
    }


def _score(splits: Splits, examples: Sequence[Example], labels: Sequence[Any]) -> float:
    return score(splits.task, predictions_of(labels), examples).main
