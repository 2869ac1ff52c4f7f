"""Cues in another runtime than torch: which one is fastest, and whether each cue's answers stay those of torch.

Every cue is compared with itself in torch, in float32, on rows of its task. A cue whose answers differ for more than
0.5 % of the rows, or that changes the layers themselves, runs in torch beside the others.
"""

from __future__ import annotations

import time
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from softcue.backbones import Backbone
from softcue.backbones.loading.autotune import machine_key, recall_entry
from softcue.backbones.runtimes import Recorder, Runtime, RuntimeChoice, RuntimeName
from softcue.cue.cue import Cue
from softcue.cue.rows_to_compare import made_up_examples, read_rows_to_compare
from softcue.errors import ConfigurationError, first_line
from softcue.inference import predict
from softcue.readouts.heads import Regression
from softcue.types import Example, Prediction

LABELS = 0.005  # share of rows whose answers may differ
NUMBER_TOLERANCE = 0.1  # of a number, in standard deviations of the training rows
COMPARED_ROWS = 400  # of a cue; with fewer than 200 rows, no answer may differ
CALIBRATION_ROWS = 256  # of all cues together
LEAST_CALIBRATION_ROWS = 4  # of each cue
ROWS_AT_ONCE = 16
TIMED_ROWS, TIMED_TURNS = 32, 3


@dataclass
class RuntimeReport:
    """What runs where."""

    runtime: str = "torch"  # of the cues that are not in `in_torch`
    in_torch: dict[str, str] = field(default_factory=dict)  # cue -> the reason
    compared: dict[str, str] = field(default_factory=dict)  # cue -> how many answers were equal
    speeds: Mapping[str, float] = field(default_factory=dict)  # rows a second against torch, where it was measured


@dataclass(frozen=True)
class _Trial:
    """A cue with the rows it is compared on and its answers in torch."""

    cue: Cue
    rows: Sequence[Example]
    source: str
    answers: Sequence[Prediction]


def start_runtime(backbone: Backbone, cues: Sequence[Cue], choice: RuntimeChoice) -> RuntimeReport:
    """Give a backbone the runtime that is asked for, with graphs for these cues, and compare each cue with itself.

    Example:
        start_runtime(cue.backbone, [cue], RuntimeChoice("auto")).runtime     # "openvino int8"
    """
    candidates = choice.candidates()
    if reason := _why_torch(backbone):
        if choice.runtime not in ("torch", "auto"):
            raise ConfigurationError(
                setting="runtime", got=choice.runtime, expected=f"torch: {reason}", fix="leave the option out"
            )
        candidates = []
    report = RuntimeReport()
    trials = []
    for cue in cues if candidates else ():
        if reason := _why_in_torch(cue, backbone):
            _keep_in_torch(cue, reason, report)
        else:
            trials.append(_make_trial(cue, backbone.in_torch, choice.data))
    if not candidates or not trials:
        return report
    recorders = [_record(backbone, trial.cue, len(trials), choice.data) for trial in trials]
    prepared: dict[str, Runtime] = {}

    def prepare(name: RuntimeName) -> Runtime:
        if str(name) not in prepared:
            runtime = prepared[str(name)] = Runtime(backbone, name, data=choice.data)
            runtime.prepare(*recorders)
        return prepared[str(name)]

    def measure() -> dict[str, object]:
        speeds = _measure_speeds(backbone, [prepare(name) for name in candidates], trials)
        return {"choice": max(speeds, key=lambda name: speeds[name]), "speeds": speeds}

    names = {str(name): name for name in candidates}
    chosen = next(iter(names))
    if len(names) > 1 or choice.runtime == "auto":
        cue_digests = sorted(trial.cue.cue_file.record_sha256[:12] for trial in trials)
        key = machine_key(f"runtime of {', '.join(names)} for {', '.join(cue_digests)}", backbone.model)
        chosen = recall_entry(key, "choice", lambda name: name in (*names, "torch"), measure)
    if chosen == "torch":
        return report
    try:
        backbone.runtime = prepare(names[chosen])
    except Exception as error:  # any: a model may have operations that a library does not have
        for trial in trials:
            _keep_in_torch(trial.cue, f"{chosen} cannot run this backbone: {first_line(error)}", report)
        return report
    report.runtime = chosen
    for trial in trials:
        _compare(trial, backbone, report)
    return report


def admit(cue: Cue) -> RuntimeReport:
    """Prepare the runtime of a cue's backbone for one more cue, and compare the cue with itself in torch.

    Example:
        admit(softcue.load("cues/tickets", backbone)).in_torch     # {} if it agrees
    """
    runtime, report = cue.backbone.runtime, RuntimeReport()
    if not isinstance(runtime, Runtime):
        return report
    report.runtime = str(runtime.name)
    if reason := _why_in_torch(cue, cue.backbone):
        _keep_in_torch(cue, reason, report)
        return report
    trial = _make_trial(cue, cue.backbone.in_torch, runtime.data)
    runtime.prepare(_record(cue.backbone, cue, 1, runtime.data))
    _compare(trial, cue.backbone, report)
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
    rows, source = _rows_of(cue, ("validation", "test", "train"), COMPARED_ROWS, data)
    return _Trial(cue, rows, source, _predict(cue, backbone, rows))


def _rows_of(cue: Cue, splits: Sequence[str], most: int, data: str | None) -> tuple[list[Example], str]:
    """Rows of a cue's task, as far as its record leads to them, and where they are from; else made-up texts."""
    rows = read_rows_to_compare(cue, data, splits, most)
    return (rows.examples, rows.source) if rows.examples else (made_up_examples(cue), "")


def _record(backbone: Backbone, cue: Cue, num_cues: int, data: str | None) -> Recorder:
    """Note what the layers get for rows that the cue was trained on: with it graphs are made, and calibrated."""
    most = max(LEAST_CALIBRATION_ROWS, CALIBRATION_ROWS // num_cues)
    rows, _ = _rows_of(cue, ("train", "validation", "test"), most, data)
    recorder = Recorder()
    _predict(cue, backbone.with_runtime(recorder), rows)
    return recorder


def _predict(cue: Cue, backbone: Backbone, rows: Sequence[Example]) -> list[Prediction]:
    return predict(backbone, [(cue.model, example) for example in rows], ROWS_AT_ONCE).predictions


def _measure_speeds(backbone: Backbone, runtimes: Sequence[Runtime], trials: Sequence[_Trial]) -> dict[str, float]:
    """Rows a second of each runtime in which all cues agree, against torch. Torch itself is 1."""
    views = {"torch": backbone.in_torch} | {str(runtime.name): backbone.with_runtime(runtime) for runtime in runtimes}
    agreeing = [
        name
        for name, view in views.items()
        if name == "torch" or all(not _difference(trial, _predict(trial.cue, view, trial.rows)) for trial in trials)
    ]
    seconds: dict[str, list[float]] = {name: [] for name in agreeing}
    requests = [(trial.cue.model, row) for trial in trials for row in trial.rows[: max(1, TIMED_ROWS // len(trials))]]
    for _ in range(TIMED_TURNS):
        for name in agreeing:
            started = time.perf_counter()
            predict(views[name], requests, ROWS_AT_ONCE)
            seconds[name].append(time.perf_counter() - started)
    return {name: round(min(seconds["torch"]) / min(times), 3) for name, times in seconds.items()}


def _compare(trial: _Trial, backbone: Backbone, report: RuntimeReport) -> None:
    """Compare a cue in the backbone's runtime with its answers in torch; if they differ, it runs in torch."""
    cue = trial.cue
    cue.model.runs_in_torch = False
    runtime = backbone.runtime
    assert isinstance(runtime, Runtime)
    if not trial.source and runtime.name.number_format != "float32":
        reason = f"no rows of its task are there to compare {runtime.name} with torch on"
    else:
        reason = _difference(trial, _predict(cue, backbone, trial.rows))
    if reason:
        _keep_in_torch(cue, reason, report)
    else:
        report.compared[cue.name] = f"{len(trial.rows)} rows of {trial.source or 'made-up texts'}"


def _difference(trial: _Trial, answers: Sequence[Prediction]) -> str:
    """In what the answers of a runtime differ too much from those of torch; empty if they agree."""
    readout = trial.cue.model.readout
    if isinstance(readout, Regression):
        pairs = zip(answers, trial.answers, strict=True)
        largest = max(abs((one.value or 0.0) - (other.value or 0.0)) for one, other in pairs) / float(readout.scale)
        agrees = largest <= NUMBER_TOLERANCE
        return "" if agrees else f"numbers differ by {largest:.2g} standard deviations (at most {NUMBER_TOLERANCE:g})"
    differing = sum(_answer(one) != _answer(other) for one, other in zip(answers, trial.answers, strict=True))
    if differing <= LABELS * len(answers):
        return ""
    return f"other answers for {differing} of {len(answers)} rows (at most {LABELS:.1%})"


def _answer(prediction: Prediction) -> object:
    return prediction.label, prediction.labels, prediction.spans


def _keep_in_torch(cue: Cue, reason: str, report: RuntimeReport) -> None:
    cue.model.runs_in_torch = True
    report.in_torch[cue.name] = reason
    warnings.warn(f"cue {cue.name} runs in torch: {reason}", stacklevel=3)
