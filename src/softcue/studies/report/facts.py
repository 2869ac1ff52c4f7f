"""What a report says besides scores: what was run, on which machine, what was chosen, what failed, how to repeat it."""

from __future__ import annotations

import shlex
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Any

import yaml

from softcue.settings_docs import format_value
from softcue.studies.report.record import StudyRecord
from softcue.studies.runs import StudyRun, validation_score
from softcue.studies.study import REPLACEABLE, Axis, list_studies, read_study

MOST_PLACES = 6  # that a line of recipes names
_OTHER_AXES: tuple[Axis, ...] = ("backbone", "regime", "variant")


@dataclass(frozen=True)
class SearchOutcome:
    """The settings that a search tried for one place of the grid, best first, with their validation scores."""

    name: str
    chosen: str
    score: float
    trials: list[tuple[str, float]]  # minus infinity: its training broke down


@dataclass(frozen=True)
class CostLine:
    """What a method costs: means over its runs."""

    name: str
    trainable: tuple[int, int]
    steps: float
    seconds: float  # of training
    processor_seconds: float  # of the whole run
    megabytes: float | None
    health: dict[str, float]  # values that the method reports at the end, such as the codes in use


@dataclass(frozen=True)
class FailedRun:
    """A run whose last attempt failed."""

    run: str
    reason: str
    num_attempts: int


@dataclass(frozen=True)
class AdaptationOutcome:
    """A backbone that the study adapted to plain text."""

    name: str
    steps: int
    perplexity: float
    seconds: float
    curve: list[tuple[float, float]]


def count_notes(record: StudyRecord) -> list[str]:
    """How many runs are done, failed and missing; which needed several attempts.

    Example:
        count_notes(record)     # ["23 of 24 runs are finished, 1 has failed, 0 are missing."]
    """
    status = record.status
    num_failed = len(status.failed)
    num_missing = status.plan.size - len(status.done) - num_failed
    if not num_failed and not num_missing:
        notes = [f"All {status.plan.size} runs are finished."]
    else:
        notes = [
            f"{len(status.done)} of {status.plan.size} runs are finished, {num_failed} failed, {num_missing} missing."
        ]
    again = [run for run in status.done if status.failures.get(run.id)]
    if again:
        notes.append(f"{len(again)} of the finished runs needed more than one attempt.")
    return notes


def scale_note(record: StudyRecord) -> str:
    """What a small version of a study leaves out, if it is one.

    Example:
        scale_note(record)     # "This is a small version: seeds: 2 (full: 3); training.epochs 3 (...)."
    """
    study = record.study
    if study.scale != "small":
        return ""
    full = read_study(study.name) if study.name in list_studies() else None
    parts: list[str] = []
    new: list[str] = []  # settings that the full study leaves to the recipe
    for key in study.small:
        if key == "settings":
            for setting, value in study.small["settings"].items():
                words = f"{setting} {format_value(study.settings.get(setting, value))}"
                if full is not None and setting in full.settings:
                    parts.append(f"{words} (full: {format_value(full.settings[setting])})")
                else:
                    new.append(words)
        elif key in REPLACEABLE:
            now, before = _count(getattr(study, key)), "" if full is None else _count(getattr(full, key))
            if now != before:
                parts.append(f"{key}: {now}{f' (full: {before})' if before else ''}")
    for method in study.methods if "methods" in study.small else ():
        settings = ", ".join(f"{setting} {format_value(value)}" for setting, value in method.settings.items())
        parts += [f"{method.name} with {settings}"] if settings else []
    if new:
        left = " (the full study has the values of the recipe)" if full is not None else ""
        parts.append(f"{', '.join(new)}{left}")
    what = "; ".join(parts) or "fewer rows, steps or runs than the full study"
    return f"This is a small version: {record.plain(what)}. Its scores are not those of the full study."


def machine_notes(record: StudyRecord) -> list[str]:
    """Processor, threads, versions and dates of the runs; whether they differ.

    Example:
        machine_notes(record)     # ["AMD EPYC, 1 thread per run.", "softcue 0.1.0, torch 2.13.0."]
    """
    results = list(record.status.results.values())
    processors = Counter(str(result.get("processor", "")) or "unknown processor" for result in results)
    threads = sorted({int(result.get("threads", 1)) for result in results})
    versions = Counter(
        ", ".join(f"{name} {version}" for name, version in sorted((result.get("versions") or {}).items()))
        for result in results
    )
    thread_words = f"{', '.join(map(str, threads))} thread{'s' * (threads != [1])} per run"
    notes = [f"{'; '.join(sorted(processors))}, {thread_words}.", *(f"{words}." for words in sorted(versions) if words)]
    for what, counts in (("processors", processors), ("versions of packages", versions)):
        if len(counts) > 1:
            numbers = ", ".join(str(count) for _, count in sorted(counts.items()))
            notes.append(
                f"The runs come from {len(counts)} {what} ({numbers} runs): their rounding, and so their scores, can "
                "differ."
            )
    dates = sorted(str(result["finished"])[:10] for result in results if result.get("finished"))
    if dates:
        notes.append(f"Finished {dates[0]}." if dates[0] == dates[-1] else f"Finished {dates[0]} to {dates[-1]}.")
    return notes


def recipe_lines(record: StudyRecord) -> list[str]:
    """How the settings of each method differ from its paper, as its runs say.

    Example:
        recipe_lines(record)[0]     # "prompt-tuning, default recipe: 20 vectors (paper 100), ..."
    """
    places: dict[str, dict[str, list[str]]] = {}  # method -> summary -> where
    for score in record.scores:
        summary = record.plain(str(score.result.get("recipe") or ""))
        if summary:
            words = [record.label("trained_on", score.place.trained_on)]
            words += [
                record.label(axis, getattr(score.place, axis))
                for axis in _OTHER_AXES
                if len(record.values_of(axis)) > 1
            ]
            where = places.setdefault(score.place.method, {}).setdefault(summary, [])
            where += [name] if (name := " ".join(words)) not in where else []
    method_names = {method.name: method.method_name for method in record.study.methods}
    lines = []
    for method, summaries in places.items():
        for summary, where in summaries.items():
            name = "" if method_names.get(method, method) == method else f"{method}: "
            shown = ", ".join(where[:MOST_PLACES]) + (", ..." if len(where) > MOST_PLACES else "")
            lines.append(f"{name}{summary}{f' ({shown})' if len(summaries) > 1 else ''}")
    return lines


def search_outcomes(record: StudyRecord) -> list[SearchOutcome]:
    """What each search chose. A search that is not finished has no outcome.

    Example:
        search_outcomes(record)[0].chosen     # "learning_rate=0.3"
    """
    trials: dict[tuple[str, ...], dict[str, list[float]]] = {}
    unfinished: set[tuple[str, ...]] = set()
    finals = {tuple(run.axes.values()) for run in record.status.plan.runs if run.kind == "train" and not run.trial}
    for run in record.status.plan.runs:
        if run.trial:
            place = tuple(run.axes.values())
            result = record.status.results.get(run.id)
            if result is None:
                unfinished.add(place)
            else:
                trials.setdefault(place, {}).setdefault(run.trial, []).append(validation_score(result))
    outcomes = []
    axes: tuple[Axis, ...] = ("backbone", "trained_on", "method", "regime", "variant")
    for place, by_settings in trials.items():
        if place in unfinished or place not in finals:
            continue
        means = {settings: fmean(scores) for settings, scores in by_settings.items()}
        best = max(means, key=lambda settings: means[settings])  # the first of equals, as the plan chooses
        parts = [
            record.label(axis, value)
            for axis, value in zip(axes, place, strict=True)
            if value and (axis in ("method", "trained_on") or len(record.values_of(axis)) > 1)
        ]
        ranked = sorted(means.items(), key=lambda trial: -trial[1])
        outcomes.append(SearchOutcome(", ".join(parts), best, means[best], ranked))
    return outcomes


def cost_lines(record: StudyRecord) -> list[CostLine]:
    """What the runs of each method cost, by backbone and varied setting. Ensembles cost what their members do.

    Example:
        cost_lines(record)[0].seconds
    """
    groups: dict[str, dict[str, Mapping[str, Any]]] = {}
    has_several = {axis: len(record.values_of(axis)) > 1 for axis in _OTHER_AXES}
    for score in record.scores:
        place = score.place
        if record.is_ensemble(place):
            continue
        parts = [record.label("method", place.method)]
        parts += [record.label(axis, getattr(place, axis)) for axis, is_shown in has_several.items() if is_shown]
        groups.setdefault(", ".join(parts), {})[score.run] = score.result
    lines = []
    for name, runs in groups.items():
        results = list(runs.values())
        peaks = [float(result["peak_megabytes"]) for result in results if result.get("peak_megabytes")]
        counts = [int(result.get("trainable", 0)) for result in results]
        lines.append(
            CostLine(
                name,
                (min(counts), max(counts)),
                fmean(float(result.get("steps", 0)) for result in results),
                fmean(float(result.get("seconds", 0.0)) for result in results),
                fmean(float(result.get("processor_seconds", 0.0)) for result in results),
                fmean(peaks) if peaks else None,
                _mean_health([result.get("health") or {} for result in results]),
            )
        )
    return lines


def _mean_health(values: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean of each value that all runs report."""
    names = [name for name in values[0] if all(name in run_values for run_values in values)]
    return {name: fmean(run_values[name] for run_values in values) for name in names}


def failed_runs(record: StudyRecord) -> list[FailedRun]:
    """The runs that failed, with the reason of their last attempt.

    Example:
        failed_runs(record)[0].reason
    """
    failures = record.status.failures
    return [
        FailedRun(record.plain(run), record.plain(reason), len(failures[run]))
        for run, reason in record.status.failed.items()
    ]


def warning_counts(record: StudyRecord) -> list[tuple[str, int]]:
    """What the runs warned of, with the number of runs.

    Example:
        warning_counts(record)     # [("4 of 120 codes are not used", 2)]
    """
    runs = {score.run: score.result for score in record.scores}
    counts = Counter(record.plain(str(text)) for result in runs.values() for text in set(result.get("warnings") or ()))
    return sorted(counts.items(), key=lambda entry: (-entry[1], entry[0]))


def adapted_backbones(record: StudyRecord) -> list[AdaptationOutcome]:
    """The backbones that the study adapted.

    Example:
        adapted_backbones(record)[0].perplexity
    """
    adapted = []
    for run in record.status.done:
        if run.kind == "adapt":
            result = record.status.results[run.id]
            adapted.append(
                AdaptationOutcome(
                    _backbone_of(record, run),
                    int(result["steps"]),
                    float(result["perplexity"]),
                    float(result["seconds"]),
                    [(float(step), float(value)) for step, value in result["curve"]],
                )
            )
    return adapted


def repeat_commands(record: StudyRecord, with_paper: bool) -> list[str]:
    """The commands that run the study again and report it; study.yaml is the file of the report.

    Example:
        repeat_commands(record, with_paper=False)[0]     # "softcue study run study.yaml --output-dir studies/quick"
    """
    study = record.study
    folder = f"studies/{study.name}"
    words = ["softcue", "study", "run", "study.yaml", "--output-dir", folder]
    words += ["--data", "DATA"] if study.data else []
    words += ["--text", "TEXT"] if study.text else []
    report = ["softcue", "study", "report", folder, *(["--with-paper"] if with_paper else [])]
    return [shlex.join(words), shlex.join(report)]


def study_text(record: StudyRecord) -> str:
    """The study as YAML, without what it leaves as it is, and without folders of this machine.

    Example:
        print(study_text(record))
    """
    values = record.study.model_dump(mode="json", exclude_defaults=True)
    return yaml.safe_dump(_plain_values(record, values), sort_keys=False, allow_unicode=True, width=120)


def _plain_values(record: StudyRecord, value: Any) -> Any:
    match value:
        case dict():
            return {key: _plain_values(record, entry) for key, entry in value.items()}
        case list():
            return [_plain_values(record, entry) for entry in value]
        case str():
            return record.plain(value)
        case _:
            return value


def _backbone_of(record: StudyRecord, run: StudyRun) -> str:
    return record.label("backbone", run.axes["backbone"])


def _count(value: object) -> str:
    """A number, or the names of entries."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}: {format_value(values)}" for key, values in value.items())
    if isinstance(value, Sequence) and not isinstance(value, str):
        names = [str(getattr(entry, "name", entry)) for entry in value]
        return ", ".join(names) if len(names) <= 6 else f"{len(names)} of them"
    return str(value)
