"""Cues in another runtime than torch: which one is fastest, and whether each cue's answers stay those of torch.

Every cue is compared with itself in torch, in float32, on rows of its task. If answers differ for more than 0.5 % of
the rows, those that are close to another answer run again in torch: rounding changes them first. A cue for which these
are too many, or that changes the layers themselves, runs in torch beside the others.
"""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property

import torch

from softcue.backbones import Backbone
from softcue.backbones.loading.autotune import machine_key, recall_entry
from softcue.backbones.runtimes import LayerRuntime, Recorder, RuntimeChoice
from softcue.cue.cue import Cue
from softcue.cue.rows_to_compare import made_up_examples, read_rows_to_compare
from softcue.errors import ConfigurationError, first_line
from softcue.inference import predict
from softcue.readouts.heads import Regression
from softcue.types import Example, Prediction

LABELS = 0.005  # share of rows whose answers may differ
MOST_RECHECKED = 0.25  # share of rows that may run again in torch
NUMBER_TOLERANCE = 0.1  # of a number, in standard deviations of the training rows
COMPARED_ROWS = 400  # of a cue; with fewer than 200 rows, no answer may differ
# The cue's training rows give the ranges of 8-bit numbers, so others show better what they do.
COMPARED_SPLITS = (("validation", "test"), ("train",))
RECORDED_SPLITS = (("train",), ("validation",), ("test",))
CALIBRATION_ROWS = 128  # of all cues together
LEAST_RECORDED_ROWS = 4  # of each cue
ROWS_AT_ONCE = 16
TIMED_ROWS, TIMED_TURNS = 32, 3


@dataclass
class RuntimeReport:
    """What runs where."""

    runtime: str = "torch"  # of the cues that are not in `in_torch`
    in_torch: dict[str, str] = field(default_factory=dict)  # cue -> the reason
    compared: dict[str, str] = field(default_factory=dict)  # cue -> the rows on which it agrees with torch
    speeds: Mapping[str, float] = field(default_factory=dict)  # rows a second against torch, where it was measured


@dataclass(frozen=True)
class _Comparison:
    """How the answers of a cue in a runtime become those of torch."""

    difference: str = ""  # in what they differ too much: the cue runs in torch
    recheck_margin: float = 0.0  # answers with a smaller margin are left to torch
    rechecked: float = 0.0  # the share of such rows

    @classmethod
    def of(cls, kept: object) -> _Comparison | None:
        """A comparison that was kept; None if it is of another form."""
        match kept:
            case {"difference": str(difference), "recheck_margin": float(margin), "rechecked": float(rechecked)}:
                return cls(difference, margin, rechecked)
        return None


@dataclass
class _Trial:
    """A cue with the rows it is compared on."""

    cue: Cue
    backbone: Backbone
    rows: Sequence[Example]
    source: str  # empty: the rows are made-up texts

    @property
    def named_rows(self) -> str:
        """The number of rows and where they are from, in words."""
        return f"{len(self.rows)} rows of {self.source or 'made-up texts'}"

    def why_uncompared(self, runtime: LayerRuntime) -> str:
        """The reason why a runtime cannot be judged: made-up texts do not show what rounding does to real ones."""
        if self.source or runtime.name.number_format == "float32":
            return ""
        return f"no rows of its task are there to compare {runtime.name} with torch on"

    @cached_property
    def answers(self) -> Sequence[Prediction]:
        """Its answers in torch."""
        return _predict(self.cue, self.backbone.in_torch, self.rows)


def start_runtime(backbone: Backbone, cues: Sequence[Cue], choice: RuntimeChoice) -> RuntimeReport:
    """Give a backbone the runtime that is asked for, with graphs for these cues, and compare each cue with itself.

    Example:
        start_runtime(cue.backbone, [cue], RuntimeChoice("auto")).runtime     # "openvino int8"
    """
    names = {str(name): name for name in choice.candidates()}
    report = RuntimeReport()
    if reason := _why_torch(backbone):
        if choice.runtime not in ("torch", "auto"):
            raise ConfigurationError(
                setting="runtime", got=choice.runtime, expected=f"torch: {reason}", fix="leave the option out"
            )
        return report
    if not names:
        return report
    is_calibrated = any(name.number_format == "int8" for name in names.values())
    trials, recorders = [], []
    for cue in cues:
        recorder = _record(backbone, cue, len(cues) if is_calibrated else 0, choice.data)
        if reason := _why_in_torch(cue, backbone) or next(iter(recorder.reasons), ""):
            _keep_in_torch(cue, reason, report)
        else:
            trials.append(_make_trial(cue, backbone, choice.data))
            recorders.append(recorder)
    if not trials:
        return report
    distinct = {trial.cue.cue_file.record_sha256[:12]: trial for trial in trials}  # copies of a cue answer alike
    prepared: dict[str, LayerRuntime] = {}
    failures: dict[str, str] = {}

    def prepare(name: str) -> LayerRuntime | None:
        if name not in prepared and name not in failures:
            runtime = LayerRuntime(backbone, names[name], data=choice.data)
            try:
                runtime.prepare(*recorders)
                prepared[name] = runtime
            except Exception as error:  # any: a model may have operations that a library does not have
                failures[name] = f"{name} cannot run this backbone: {first_line(error)}"
        return prepared.get(name)

    def measure() -> dict[str, object]:
        runtimes = [runtime for name in names if (runtime := prepare(name)) is not None]
        views = {str(runtime.name): backbone.with_runtime(runtime) for runtime in runtimes}
        compared = list(distinct.values())
        report.speeds = _measure_speeds({"torch": backbone.in_torch, **views}, compared)
        return {"choice": _choose(report.speeds, runtimes, compared), "speeds": report.speeds}

    chosen = next(iter(names))
    if len(names) > 1 or choice.runtime == "auto":
        of_cues = ", ".join(f"{digest} on {distinct[digest].named_rows}" for digest in sorted(distinct))
        key = machine_key(f"fastest runtime of {', '.join(names)} for {of_cues}", backbone.model)
        chosen = recall_entry(key, "choice", lambda name: name in (*names, "torch"), measure)
    runtime = None if chosen == "torch" else prepare(chosen)
    if runtime is None:
        for trial in trials if chosen != "torch" else ():
            _keep_in_torch(trial.cue, failures[chosen], report)
        return report
    backbone.runtime, report.runtime = runtime, chosen
    for trial in trials:
        _compare(trial, runtime, report)
    return report


def admit(cue: Cue) -> RuntimeReport:
    """Prepare the runtime of a cue's backbone for one more cue, and compare the cue with itself in torch.

    Example:
        admit(softcue.load("cues/tickets", backbone)).in_torch     # {} if it agrees
    """
    runtime, report = cue.backbone.runtime, RuntimeReport()
    if not isinstance(runtime, LayerRuntime):
        return report
    report.runtime = str(runtime.name)
    recorder = _record(cue.backbone, cue, 1 if runtime.name.number_format == "int8" else 0, runtime.data)
    if reason := _why_in_torch(cue, cue.backbone) or next(iter(recorder.reasons), ""):
        _keep_in_torch(cue, reason, report)
        return report
    runtime.prepare(recorder)
    _compare(_make_trial(cue, cue.backbone, runtime.data), runtime, report)
    return report


def _why_torch(backbone: Backbone) -> str:
    """The reason why a backbone has no other runtime than torch."""
    if backbone.kind != "encoder":
        return f"{backbone.name} is of kind {backbone.kind}, and other runtimes take encoders"
    if backbone.device.type != "cpu":
        return f"{backbone.name} is on {backbone.device}, and other runtimes are for processors"
    if backbone.dtype != torch.float32:
        return f"{backbone.name} is loaded in {backbone.dtype}, and answers are compared with float32"
    return ""


def _why_in_torch(cue: Cue, backbone: Backbone) -> str:
    """The reason why a cue's passes cannot go through graphs of the frozen layers."""
    view = cue.model.method.view_of(backbone)
    if view.whole is not view:
        return "its prompts enter at a deeper layer"
    return "" if view is backbone else "its method changes the layers themselves"


def _make_trial(cue: Cue, backbone: Backbone, data: str | None) -> _Trial:
    rows, source = _rows_of(cue, COMPARED_SPLITS, COMPARED_ROWS, data)
    return _Trial(cue, backbone, rows, source)


def _rows_of(cue: Cue, splits: Sequence[Sequence[str]], most: int, data: str | None) -> tuple[Sequence[Example], str]:
    """Rows of a cue's task, as far as its record leads to them, and where they are from; else made-up texts."""
    rows = read_rows_to_compare(cue, data, splits, most)
    return (rows.examples, rows.source) if rows.examples else (made_up_examples(cue), "")


def _record(backbone: Backbone, cue: Cue, num_calibrated: int, data: str | None) -> Recorder:
    """Note what the layers get for rows that the cue was trained on: by it graphs are made, and calibrated.

    `num_calibrated` cues share the rows of a calibration; without one, a few rows show which graphs are needed.
    """
    share = CALIBRATION_ROWS // num_calibrated if num_calibrated else 0
    rows, _ = _rows_of(cue, RECORDED_SPLITS, max(LEAST_RECORDED_ROWS, share), data)
    recorder = Recorder()
    _predict(cue, backbone.with_runtime(recorder), rows)
    return recorder


def _predict(cue: Cue, backbone: Backbone, rows: Sequence[Example]) -> list[Prediction]:
    return predict(backbone, [(cue.model, example) for example in rows], ROWS_AT_ONCE).predictions


def _measure_speeds(views: Mapping[str, Backbone], trials: Sequence[_Trial]) -> dict[str, float]:
    """Rows a second of each runtime against torch. Torch itself is 1."""
    seconds: dict[str, list[float]] = {name: [] for name in views}
    requests = [(trial.cue.model, row) for trial in trials for row in trial.rows[: max(1, TIMED_ROWS // len(trials))]]
    for _ in range(TIMED_TURNS):
        for name, view in views.items():
            started = time.perf_counter()
            predict(view, requests, ROWS_AT_ONCE)
            seconds[name].append(time.perf_counter() - started)
    return {name: round(min(seconds["torch"]) / min(times), 3) for name, times in seconds.items()}


def _choose(speeds: Mapping[str, float], runtimes: Sequence[LayerRuntime], trials: Sequence[_Trial]) -> str:
    """The runtime with the most rows a second over all cues, what runs in torch for the sake of the answers included.

    Comparing takes longest, so it begins with the fastest and ends where the others cannot be better.
    """
    best, best_speed = "torch", 1.0
    for runtime in sorted(runtimes, key=lambda runtime: speeds[str(runtime.name)], reverse=True):
        speed = speeds[str(runtime.name)]
        if speed <= best_speed:
            break
        # As many rows of each cue, the time of a row in torch as unit.
        speed = len(trials) / sum(_seconds_of_row(trial, runtime, speed) for trial in trials)
        if speed > best_speed:
            best, best_speed = str(runtime.name), speed
    return best


def _seconds_of_row(trial: _Trial, runtime: LayerRuntime, speed: float) -> float:
    """The time of a row of a cue against torch, with the rows that run again."""
    if trial.why_uncompared(runtime):
        return 1.0
    comparison = _recall_comparison(trial, runtime)
    return 1.0 if comparison.difference else 1.0 / speed + comparison.rechecked


def _compare(trial: _Trial, runtime: LayerRuntime, report: RuntimeReport) -> None:
    """Compare a cue in the backbone's runtime with its answers in torch; if they differ too much, it runs in torch."""
    cue = trial.cue
    cue.model.runs_in_torch, cue.model.recheck_margin = False, 0.0
    if reason := trial.why_uncompared(runtime):
        _keep_in_torch(cue, reason, report)
        return
    comparison = _recall_comparison(trial, runtime)
    if comparison.difference:
        _keep_in_torch(cue, comparison.difference, report)
        return
    cue.model.recheck_margin = comparison.recheck_margin
    again = f"; {comparison.rechecked:.1%} of them run again in torch" if comparison.rechecked else ""
    report.compared[cue.name] = trial.named_rows + again


def _recall_comparison(trial: _Trial, runtime: LayerRuntime) -> _Comparison:
    """What was found for a cue in a runtime. It is kept, so that a server that starts again compares nothing."""
    cue = trial.cue.cue_file.record_sha256[:12]
    what = f"answers with a margin of {cue} on {trial.named_rows} in {runtime.numbers}"
    kept = recall_entry(
        machine_key(what, trial.backbone.model),
        "comparison",
        lambda entry: _Comparison.of(entry) is not None,
        lambda: {"comparison": asdict(_compare_answers(trial, runtime))},
    )
    comparison = _Comparison.of(kept)
    assert comparison is not None
    return comparison


def _compare_answers(trial: _Trial, runtime: LayerRuntime) -> _Comparison:
    """Compare the answers of a runtime with those of torch, and find the margin below which torch must decide.

    Also where few enough answers differ: as few of the rows to come may differ by chance, or a few more.
    """
    model, view = trial.cue.model, trial.backbone.with_runtime(runtime)
    model.recheck_margin = 0.0
    answers = _predict(trial.cue, view, trial.rows)
    difference = _difference(trial, answers)
    margin = _find_recheck_margin(answers, trial.answers)
    if margin is None:
        return _Comparison(difference)
    model.recheck_margin = margin
    try:
        rechecked = sum(map(model.needs_recheck, answers)) / len(answers)
        if rechecked > MOST_RECHECKED:
            return _Comparison(difference and f"{difference}, and {rechecked:.0%} of them would have to run again")
        # Vectors that a prompt reads stay those of the runtime, so a row that runs again may differ nevertheless.
        if difference := _difference(trial, _predict(trial.cue, view, trial.rows)):
            return _Comparison(difference)
    finally:
        model.recheck_margin = 0.0
    return _Comparison("", margin, rechecked)


def _find_recheck_margin(answers: Sequence[Prediction], in_torch: Sequence[Prediction]) -> float | None:
    """A margin that only answers equal to torch's reach; None if all are equal, or there is none, or too few rows."""
    pairs = zip(answers, in_torch, strict=True)
    margins = [answer.margin for answer, expected in pairs if _answer(answer) != _answer(expected)]
    numbers = [margin for margin in margins if margin is not None]
    # Of m other answers on n rows, one more row has a larger margin than all with a chance of 1 in m + 1.
    expected_others = len(margins) / (len(margins) + 1) / len(answers)
    if len(numbers) < len(margins) or not margins or expected_others > LABELS:
        return None
    return math.nextafter(max(numbers), math.inf)


def _difference(trial: _Trial, answers: Sequence[Prediction]) -> str:
    """In what the answers of a runtime differ too much from those of torch; empty if they agree."""
    readout = trial.cue.model.readout
    if isinstance(readout, Regression):
        numbers, in_torch = ([answer.value or 0.0 for answer in some] for some in (answers, trial.answers))
        differences = [abs(number - expected) for number, expected in zip(numbers, in_torch, strict=True)]
        largest = max(differences) / float(readout.scale)
        agrees = largest <= NUMBER_TOLERANCE
        return "" if agrees else f"numbers differ by {largest:.2g} standard deviations (at most {NUMBER_TOLERANCE:g})"
    pairs = zip(answers, trial.answers, strict=True)
    differing = sum(_answer(answer) != _answer(expected) for answer, expected in pairs)
    if differing <= LABELS * len(answers):
        return ""
    return f"other answers for {differing} of {len(answers)} rows (at most {LABELS:.1%})"


def _answer(prediction: Prediction) -> object:
    return prediction.label, prediction.labels, prediction.spans


def _keep_in_torch(cue: Cue, reason: str, report: RuntimeReport) -> None:
    cue.model.runs_in_torch = True
    report.in_torch[cue.name] = reason
    warnings.warn(f"cue {cue.name} runs in torch: {reason}", stacklevel=3)
