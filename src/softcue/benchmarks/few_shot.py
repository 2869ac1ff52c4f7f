"""A few labelled rows on the real MiniLM: seconds of training until a validation score is reached, and the test score.

The score is the one that our linear probe reaches on the same validation rows. Clocks stand still while a contestant is
scored, except where validation rows choose between solutions (the probe). What is loaded, MiniLM above all, is loaded
before. Contestants: prompt tuning with its preset, our probe, a plain logistic regression on sentence vectors, SetFit.
"""

from __future__ import annotations

import contextlib
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any
from unittest.mock import patch

import torch

from softcue.backbones import Backbone, load_backbone
from softcue.benchmarks.measuring import figure
from softcue.benchmarks.parts import Figures, Plan, told
from softcue.benchmarks.texts import real_rows
from softcue.configuration import resolve
from softcue.errors import MissingExtraError
from softcue.evaluation import evaluate, score
from softcue.inference import make_task_model
from softcue.methods import METHODS
from softcue.tasks.splits import Splits
from softcue.training import TaskData, Trainer
from softcue.types import Example, Prediction

SHOTS, VALIDATION_ROWS, TEST_ROWS = 32, 200, 500
SETFIT_CHECKED_EVERY = 10  # steps


@dataclass
class Run:
    """A contestant's training: its clock, and when its validation score reached the one wanted."""

    wanted: float
    seconds: float = 0.0
    reached: float | None = None
    test: float = 0.0
    best: float = 0.0  # validation score
    _since: float = field(default_factory=time.perf_counter)

    def worked(self) -> None:
        """Count the time since the last call."""
        now = time.perf_counter()
        self.seconds += now - self._since
        self._since = now

    def scored(self, value: float, last: float = 0.0) -> None:
        """Note a validation score; the time since the last call was the scoring's, but for `last` seconds if it won."""
        self.best = max(self.best, value)
        if self.reached is None and value >= self.wanted:
            self.reached = self.seconds + last
        self._since = time.perf_counter()

    @property
    def needed(self) -> float:
        """Seconds to the score; all of them where it was not reached, which is too few."""
        return self.seconds if self.reached is None else self.reached


def few_shot_figures(plan: Plan) -> dict[str, Any]:
    """Everything `softcue bench few-shot` tells: ratios, and each contestant's own numbers, as medians over samples."""
    backbone = load_backbone("minilm")
    runs: dict[str, list[Run]] = {name: [] for name in CONTESTANTS}
    for seed in range(plan.repeats):
        sizes = {"validation_rows": VALIDATION_ROWS, "test_rows": TEST_ROWS} if plan.data else {}
        rows = real_rows(plan.data, few_shot=SHOTS, sample_seed=seed, **sizes)
        wanted = 0.0
        for name, contestant in CONTESTANTS.items():
            with told(f"sample {seed + 1} of {plan.repeats}: {name}"):
                runs[name].append(contestant(backbone, rows, wanted))
            wanted = wanted or runs[name][-1].best  # the probe's, which comes first
    return {"figures": _figures(runs), "contestants": {name: _summary(found) for name, found in runs.items()}}


def linear_probe(backbone: Backbone, rows: Splits, wanted: float) -> Run:
    """Our own: solved once per strength; validation rows choose."""
    run = Run(wanted)
    # Vectors that an earlier run kept would cost nothing: a store of its own.
    with tempfile.TemporaryDirectory() as folder, patch.dict(os.environ, {"SOFTCUE_HOME": folder}):
        model, trainer = _trainer("linear-probe", backbone, rows, lambda kind, values: None)
        result = trainer.run()
        run.worked()
        run.scored(result.state.best_score or 0.0)
        run.reached = run.seconds
        run.test = evaluate(backbone, model, rows.test).main
    return run


def prompt_tuning(backbone: Backbone, rows: Splits, wanted: float) -> Run:
    """The preset, scored after each epoch."""
    run = Run(wanted)

    def listen(kind: str, values: dict[str, Any]) -> None:
        if kind == "step":
            run.worked()
        else:
            run.scored(values["score"])

    model, trainer = _trainer("prompt-tuning", backbone, rows, listen)
    trainer.run()
    run.test = evaluate(backbone, model, rows.test).main
    return run


def plain_regression(backbone: Backbone, rows: Splits, wanted: float) -> Run:
    """scikit-learn's defaults on the sentence vectors of sentence-transformers."""
    from sklearn.linear_model import LogisticRegression

    encode = _imported("sentence_transformers").SentenceTransformer(str(backbone.folder), device="cpu").encode
    run = Run(wanted)
    head = LogisticRegression(max_iter=1000).fit(encode(_texts(rows.train)), _labels(rows.train))
    run.worked()
    run.scored(_score(rows, rows.validation, head.predict(encode(_texts(rows.validation)))))
    run.test = _score(rows, rows.test, head.predict(encode(_texts(rows.test))))
    return run


def setfit(backbone: Backbone, rows: Splits, wanted: float) -> Run:
    """SetFit's defaults: one epoch of contrastive pairs, then a logistic regression; checked on the way."""
    package, datasets = _imported("setfit"), _imported("datasets")
    from sklearn.linear_model import LogisticRegression
    from transformers import ProgressCallback, TrainerCallback

    model = package.SetFitModel.from_pretrained(str(backbone.folder), device="cpu")
    run = Run(wanted)

    def check() -> None:
        run.worked()
        began, encode = time.perf_counter(), model.model_body.encode
        head = LogisticRegression().fit(encode(_texts(rows.train)), _labels(rows.train))
        last = time.perf_counter() - began  # the head is part of what it takes, but only the last one
        run.scored(_score(rows, rows.validation, head.predict(encode(_texts(rows.validation)))), last)

    class Checks(TrainerCallback):  # type: ignore[misc]
        def on_step_end(self, arguments: Any, state: Any, control: Any, **rest: Any) -> None:
            if run.reached is None and state.global_step % SETFIT_CHECKED_EVERY == 0:
                check()

    with tempfile.TemporaryDirectory() as folder:
        arguments = package.TrainingArguments(
            output_dir=folder,
            report_to="none",
            save_strategy="no",
            eval_strategy="no",
            logging_strategy="no",
            show_progress_bar=False,
        )
        data = datasets.Dataset.from_dict({"text": _texts(rows.train), "label": _labels(rows.train)})
        trainer = package.Trainer(model, arguments, train_dataset=data, callbacks=[Checks()])
        trainer.remove_callback(ProgressCallback)
        with contextlib.redirect_stdout(sys.stderr):  # standard output is for what was measured
            trainer.train()
    run.worked()
    run.scored(_score(rows, rows.validation, model.predict(_texts(rows.validation), as_numpy=True)))
    run.test = _score(rows, rows.test, model.predict(_texts(rows.test), as_numpy=True))
    return run


CONTESTANTS: dict[str, Callable[[Backbone, Splits, float], Run]] = {
    "linear probe (softcue)": linear_probe,
    "prompt-tuning (softcue)": prompt_tuning,
    "logistic regression (scikit-learn)": plain_regression,
    "SetFit": setfit,
}


def _trainer(name: str, backbone: Backbone, rows: Splits, listener: Callable[[str, dict[str, Any]], None]) -> Any:
    run = resolve({"method": {"name": name}}, backbone.kind)
    generator = torch.Generator().manual_seed(0)
    model = make_task_model(rows.task, (METHODS[name], run.method), run.readout, backbone, generator)
    studied = [TaskData(model, rows.train, rows.validation)]
    return model, Trainer(backbone, studied, run.training, listener=listener)


def _figures(runs: dict[str, list[Run]]) -> Figures:
    ours = runs["prompt-tuning (softcue)"]
    figures: Figures = {}
    for key, name in (("setfit", "SetFit"), ("linear_probe", "linear probe (softcue)")):
        ratios = [
            0.0 if own.reached is None else peer.needed / own.needed for own, peer in zip(ours, runs[name], strict=True)
        ]
        quarters = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else [ratios[0]] * 3
        meaning = f"seconds until the linear probe's validation score: {name} / our prompt-tuning; 0 if ours misses it"
        spread = quarters[2] - quarters[0]
        figures[f"few_shot_vs_{key}"] = figure(statistics.median(ratios), 1.0, spread, len(ratios), meaning, ">=")
    return figures


def _summary(runs: Sequence[Run]) -> dict[str, Any]:
    return {
        "seconds": round(statistics.median(run.seconds for run in runs), 2),
        "seconds_to_score": [None if run.reached is None else round(run.reached, 2) for run in runs],
        "wanted": [round(run.wanted or run.best, 1) for run in runs],
        "validation": round(statistics.mean(run.best for run in runs), 1),
        "test": round(statistics.mean(run.test for run in runs), 1),
    }


def _texts(examples: Sequence[Example]) -> list[str]:
    return [example.texts[0] for example in examples]


def _labels(examples: Sequence[Example]) -> list[str]:
    return [str(example.target) for example in examples]


def _score(rows: Splits, examples: Sequence[Example], answers: Sequence[Any]) -> float:
    return score(rows.task, [Prediction(str(answer)) for answer in answers], examples).main


def _imported(package: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        raise MissingExtraError(package, "bench") from error
