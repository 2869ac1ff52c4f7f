"""`python -m benchmarks few-shot`: seconds of training on a few rows until a validation score is reached, on MiniLM.

The score is that of our linear probe on the same validation rows. The clock stops while a contestant is scored, except
where validation rows choose between solutions (the probe). Everything to load, above all MiniLM, is loaded before.
Contestants: prompt tuning with its preset, our probe, a plain logistic regression on sentence vectors, SetFit.
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
from benchmarks.texts import real_splits
from softcue.backbones import Backbone, load_backbone
from softcue.configuration import resolve
from softcue.evaluation import evaluate, score
from softcue.inference import TaskModel, make_task_model
from softcue.methods import METHODS
from softcue.tasks.splits import Splits
from softcue.training import TaskData, Trainer
from softcue.types import Example

NUM_SHOTS, VALIDATION_ROWS, TEST_ROWS = 32, 200, 500
SETFIT_SCORED_EVERY = 10  # steps


@dataclass
class FewShotRun:
    """The training of one contestant: its clock, and the time at which its validation score reached the target."""

    target_score: float
    seconds: float = 0.0
    seconds_to_score: float | None = None
    test_score: float = 0.0
    validation_score: float = 0.0  # the best
    _since: float = field(default_factory=time.perf_counter)

    def count_time(self) -> None:
        """Count the time since the last call as training."""
        now = time.perf_counter()
        self.seconds += now - self._since
        self._since = now

    def add_score(self, score: float, head_seconds: float = 0.0) -> None:
        """Note a validation score. The time since the last call is not counted.

        `head_seconds` of it belong to training, but only for the score that reaches the target.
        """
        self.validation_score = max(self.validation_score, score)
        if self.seconds_to_score is None and score >= self.target_score:
            self.seconds_to_score = self.seconds + head_seconds
        self._since = time.perf_counter()

    @property
    def needed_seconds(self) -> float:
        """Seconds to the target score; all seconds, an underestimate, if it was not reached."""
        return self.seconds if self.seconds_to_score is None else self.seconds_to_score


def few_shot_figures(plan: Plan) -> dict[str, Any]:
    """Measure the ratios of `python -m benchmarks few-shot`, and the values of each contestant over all samples."""
    backbone = load_backbone("minilm")
    runs: dict[str, list[FewShotRun]] = {name: [] for name in CONTESTANTS}
    for seed in range(plan.repeats):
        sizes = {"validation_rows": VALIDATION_ROWS, "test_rows": TEST_ROWS} if plan.data else {}
        splits = real_splits(plan.data, few_shot=NUM_SHOTS, sample_seed=seed, **sizes)
        target_score = 0.0
        for name, train_contestant in CONTESTANTS.items():
            with report_seconds(f"sample {seed + 1} of {plan.repeats}: {name}"):
                runs[name].append(train_contestant(backbone, splits, target_score))
            target_score = target_score or runs[name][-1].validation_score  # the probe is the first contestant
    summaries = {name: _summarize(contestant_runs) for name, contestant_runs in runs.items()}
    return {"figures": _compare(runs), "contestants": summaries}


def train_linear_probe(backbone: Backbone, splits: Splits, target_score: float) -> FewShotRun:
    """Our linear probe: solved once per regularisation strength; validation rows choose."""
    run = FewShotRun(target_score)
    # Sentence vectors cached by an earlier run would take no time, so the run has a cache of its own.
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, {"SOFTCUE_HOME": folder}):
        model, trainer = _make_trainer("linear-probe", backbone, splits, lambda kind, values: None)
        result = trainer.run()
        run.count_time()
        run.add_score(result.state.best_score or 0.0)
        run.seconds_to_score = run.seconds
        run.test_score = evaluate(backbone, model, splits.test).main
    return run


def train_prompt_tuning(backbone: Backbone, splits: Splits, target_score: float) -> FewShotRun:
    """Our prompt tuning with its preset, scored after each epoch."""
    run = FewShotRun(target_score)

    def listen(kind: str, values: dict[str, Any]) -> None:
        if kind == "step" or values["step"] == 0:  # the start: its head is solved
            run.count_time()
        if kind != "step":
            run.add_score(values["score"])

    model, trainer = _make_trainer("prompt-tuning", backbone, splits, listen)
    trainer.run()
    run.test_score = evaluate(backbone, model, splits.test).main
    return run


def train_logistic_regression(backbone: Backbone, splits: Splits, target_score: float) -> FewShotRun:
    """scikit-learn's defaults on the sentence vectors of sentence-transformers."""
    from sklearn.linear_model import LogisticRegression

    encode = import_peer("sentence_transformers").SentenceTransformer(str(backbone.folder), device="cpu").encode
    run = FewShotRun(target_score)
    head = LogisticRegression(max_iter=1000).fit(encode(texts_of(splits.train)), labels_of(splits.train))
    run.count_time()
    run.add_score(_score(splits, splits.validation, head.predict(encode(texts_of(splits.validation)))))
    run.test_score = _score(splits, splits.test, head.predict(encode(texts_of(splits.test))))
    return run


def train_setfit(backbone: Backbone, splits: Splits, target_score: float) -> FewShotRun:
    """SetFit's defaults: one epoch of contrastive pairs, then a logistic regression; scored during training."""
    from sklearn.linear_model import LogisticRegression
    from transformers import TrainerCallback

    model = import_peer("setfit").SetFitModel.from_pretrained(str(backbone.folder), device="cpu")
    run = FewShotRun(target_score)

    def score_now() -> None:
        run.count_time()
        started, encode = time.perf_counter(), model.model_body.encode
        head = LogisticRegression().fit(encode(texts_of(splits.train)), labels_of(splits.train))
        head_seconds = time.perf_counter() - started  # the head belongs to training, but only the last one
        predictions = head.predict(encode(texts_of(splits.validation)))
        run.add_score(_score(splits, splits.validation, predictions), head_seconds)

    class ScoreDuringTraining(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, arguments: Any, state: Any, control: Any, **rest: Any) -> None:
            if run.seconds_to_score is None and state.global_step % SETFIT_SCORED_EVERY == 0:
                score_now()

    run_setfit(model, splits.train, callbacks=[ScoreDuringTraining()])
    run.count_time()
    run.add_score(_score(splits, splits.validation, model.predict(texts_of(splits.validation), as_numpy=True)))
    run.test_score = _score(splits, splits.test, model.predict(texts_of(splits.test), as_numpy=True))
    return run


CONTESTANTS: dict[str, Callable[[Backbone, Splits, float], FewShotRun]] = {
    "linear probe (softcue)": train_linear_probe,
    "prompt-tuning (softcue)": train_prompt_tuning,
    "logistic regression (scikit-learn)": train_logistic_regression,
    "SetFit": train_setfit,
}


def _make_trainer(
    name: str, backbone: Backbone, splits: Splits, listener: Callable[[str, dict[str, Any]], None]
) -> tuple[TaskModel, Trainer]:
    config = resolve({"method": {"name": name}}, backbone.kind)
    generator = torch.Generator().manual_seed(0)
    model = make_task_model(splits.task, (METHODS[name], config.method), config.readout, backbone, generator)
    tasks = [TaskData(model, splits.train, splits.validation)]
    return model, Trainer(backbone, tasks, config.training, listener=listener)


def _compare(runs: dict[str, list[FewShotRun]]) -> Figures:
    ours = runs["prompt-tuning (softcue)"]
    figures: Figures = {}
    for key, name in (("setfit", "SetFit"), ("linear_probe", "linear probe (softcue)")):
        ratios = [
            0.0 if run.seconds_to_score is None else peer.needed_seconds / run.needed_seconds
            for run, peer in zip(ours, runs[name], strict=True)
        ]
        ratio, spread = median_and_spread(ratios)
        meaning = f"seconds until the linear probe's validation score: {name} / our prompt-tuning; 0 if ours misses it"
        figures[f"few_shot_vs_{key}"] = make_figure(ratio, 1.0, spread, len(ratios), meaning, ">=")
    return figures


def _summarize(runs: Sequence[FewShotRun]) -> dict[str, Any]:
    return {
        "seconds": round(statistics.median(run.seconds for run in runs), 2),
        "seconds_to_score": [None if run.seconds_to_score is None else round(run.seconds_to_score, 2) for run in runs],
        "wanted": [round(run.target_score or run.validation_score, 1) for run in runs],
        "validation": round(statistics.mean(run.validation_score for run in runs), 1),
        "test": round(statistics.mean(run.test_score for run in runs), 1),
    }


def _score(splits: Splits, examples: Sequence[Example], labels: Sequence[Any]) -> float:
    return score(splits.task, predictions_of(labels), examples).main
