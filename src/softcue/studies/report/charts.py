"""The charts of a report: scores against parameters, training rows, a varied setting, steps and processor seconds."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from softcue.drawing import LabelledPoint, curves_chart, points_chart
from softcue.studies.report.facts import adapted_backbones
from softcue.studies.report.record import Place, StudyRecord, StudyScore, spread_of

MOST_CHARTS = 24  # of one kind
LEAST_RATIO = 1.1  # between the largest and the smallest cost: with less there is nothing to see
SERIES_GAP = 0.12  # between methods at the same name
MOST_POINTS = 10  # of several backbones in one chart
LOG_RATIO = 20  # between the largest and the smallest value: from here on an axis is logarithmic
Line = tuple[str, str, str, str]  # backbone, method, regime, variant
Band = tuple[float, float, float]


@dataclass(frozen=True)
class ChartGroup:
    """Charts of one kind."""

    heading: str
    charts: list[str]
    note: str = ""
    is_open: bool = True


def make_charts(record: StudyRecord) -> list[ChartGroup]:
    """All charts that the runs allow.

    Example:
        [group.heading for group in make_charts(record)]
    """
    groups = [
        _against_costs(record),
        _against_rows(record),
        _against_variant(record),
        _against_steps(record),
        _adaptation(record),
    ]
    return [group for group in groups if any(group.charts)]


@dataclass(frozen=True)
class _Average:
    """A line of the grid: its mean over tasks, the averages of its seeds, and all its scores."""

    mean: float
    of_seeds: list[float]
    scores: list[StudyScore]

    @property
    def band(self) -> tuple[float, float] | None:
        spread = spread_of(self.of_seeds)
        return None if spread is None else (self.mean - spread, self.mean + spread)


def _averages(record: StudyRecord) -> dict[Line, _Average]:
    """The average of each line over the tasks it was trained on; lines without a score on all tasks are left out."""
    lines: dict[Line, list[Place]] = {}
    averaged = _averaged_places(record)
    for place in averaged:
        lines.setdefault((place.backbone, place.method, place.regime, place.variant), []).append(place)
    all_tasks = {(record.source_of(place), place.task) for place in averaged}
    averages = {}
    for line, places in lines.items():
        cells = [record.by_place[place] for place in places]
        if {(record.source_of(place), place.task) for place in places} != all_tasks or not all(cells):
            continue
        seeds = set.intersection(*({score.seed for score in cell} for cell in cells))
        of_seeds = [
            fmean(score.main for cell in cells for score in cell if score.seed == seed) for seed in sorted(seeds)
        ]
        mean = fmean(fmean(score.main for score in cell) for cell in cells)
        averages[line] = _Average(mean, of_seeds, [score for cell in cells for score in cell])
    return averages


def _averaged_places(record: StudyRecord) -> list[Place]:
    """The cells of tasks that were trained on; if none of them is shown, all cells."""
    return [place for place in record.planned if record.is_in_domain(place)] or list(record.planned)


def _score_name(record: StudyRecord) -> str:
    num_tasks = len({place.task for place in _averaged_places(record)})
    return f"mean score of {num_tasks} tasks" if num_tasks > 1 else "score"


def _against_costs(record: StudyRecord) -> ChartGroup:
    """A point for each method and varied setting, against its parameters and against its time."""
    charts = [
        chart
        for key, x_name in (("trainable", "trainable parameters"), ("processor_seconds", "processor seconds of a run"))
        for chart in _against_cost(record, key, x_name)
    ]
    note = "Upper left is best: a high score for little. Vertical lines: ± standard deviation over seeds."
    return ChartGroup("Score and cost", charts, note)


def _against_cost(record: StudyRecord, key: str, x_name: str) -> list[str]:
    """A chart for each regime, with a shape for each backbone."""
    charts: dict[str, dict[str, list[LabelledPoint]]] = {}
    for (backbone, method, regime, variant), average in _averages(record).items():
        if method in record.bases and key != "trainable":
            continue  # an ensemble's time is that of its members
        cost = fmean(float(score.result.get(key, 0)) for score in average.scores)
        label = ", ".join(part for part in (record.label("method", method), variant) if part)
        low, high = average.band or (None, None)
        point = LabelledPoint(cost, average.mean, label, low, high)
        title = "" if record.is_regime_of_method else record.label("regime", regime)
        series = charts.setdefault(title, {})
        series.setdefault(record.label("backbone", backbone), []).append(point)
    crowded = [(regime, series) for regime, series in charts.items() if sum(map(len, series.values())) > MOST_POINTS]
    for regime, series in crowded:
        if len(series) > 1:  # a chart for each backbone
            del charts[regime]
            several_regimes = len(record.values_of("regime")) > 1 and regime
            charts |= {
                f"{name}, {regime}" if several_regimes else name: {name: points} for name, points in series.items()
            }
    has_several = len(charts) > 1
    drawn = [
        points_chart(
            f"{_score_name(record)}{f', {regime}' if has_several else ''}",
            series,
            f"{x_name} (across), score (up)",
            is_log_x=True,
        )
        for regime, series in charts.items()
        if _differ(point.x for points in series.values() for point in points)
    ]
    return drawn[:MOST_CHARTS]


def _differ(costs: Iterable[float]) -> bool:
    """Whether costs differ enough for a chart."""
    positive = [cost for cost in costs if cost > 0]
    return bool(positive) and max(positive) >= LEAST_RATIO * min(positive)


def _against_rows(record: StudyRecord) -> ChartGroup:
    """A curve for each method over the number of training rows K."""
    sizes = {name: regime.few_shot for name, regime in record.regimes.items() if regime.few_shot and not regime.joint}
    heading = "Score and number of training rows"
    if len(set(sizes.values())) < 2:
        return ChartGroup(heading, [])
    note = "K training rows; each seed has its own sample. Bands: ± standard deviation over seeds."
    if any(not regime.few_shot for regime in record.regimes.values()):
        note += " Runs on all rows are in the table only."
    return ChartGroup(
        heading, _curves_over(record, lambda line: sizes.get(line[2]), "training rows K", {2}, is_log=True), note
    )


def _against_variant(record: StudyRecord) -> ChartGroup:
    """Curves over the values of the varied setting, or points if they are names."""
    key = next(iter(record.study.vary), "")
    name = key.partition(".")[2].replace("_", " ")
    heading = f"Score and {name}"
    values = record.values_of("variant") if key else []
    if len(values) < 2:
        return ChartGroup(heading, [])
    numbers = {value: _as_number(value) for value in values}
    if all(number is not None for number in numbers.values()):
        positive = [number for number in numbers.values() if number is not None and number > 0]
        is_log = len(positive) == len(numbers) and max(positive) / min(positive) >= LOG_RATIO
        charts = _curves_over(record, lambda line: numbers[line[3]], f"{key}", {3}, is_log=is_log)
        return ChartGroup(heading, charts, "Bands: ± standard deviation over seeds.")
    note = "Vertical lines: ± standard deviation over seeds."
    return ChartGroup(heading, _points_of_names(record, values, key)[:MOST_CHARTS], note)


def _points_of_names(record: StudyRecord, values: Sequence[str], key: str) -> list[str]:
    """A point for each named value of the varied setting and each method, beside each other."""
    averages = _averages(record)
    methods = [method for method in record.values_of("method") if method not in record.bases]
    charts = []
    for backbone in record.values_of("backbone"):
        for regime in record.values_of("regime"):
            series: dict[str, list[LabelledPoint]] = {}
            for number, method in enumerate(methods):
                shift = SERIES_GAP * (number - (len(methods) - 1) / 2)
                for place, value in enumerate(values):
                    average = averages.get((backbone, method, regime, value))
                    if average is not None:
                        low, high = average.band or (None, None)
                        point = LabelledPoint(place + shift, average.mean, f"{average.mean:.1f}", low, high)
                        series.setdefault(record.label("method", method), []).append(point)
            title = ", ".join([_score_name(record), *_place_words(record, backbone, regime)])
            charts.append(points_chart(title, series, f"{key} (across), score (up)", x_names=values))
    return charts


def _curves_over(
    record: StudyRecord,
    position: Callable[[Line], float | None],
    x_name: str,
    hidden: set[int],
    is_log: bool,
) -> list[str]:
    """Curves of averages over a number; a chart for each backbone, and for each value of what is not hidden."""
    charts: dict[str, dict[str, list[tuple[float, float]]]] = {}
    bands: dict[str, dict[str, list[Band]]] = {}
    for line, average in _averages(record).items():
        backbone, method, regime, variant = line
        x = position(line)
        if x is None or method in record.bases:
            continue
        words = _place_words(record, backbone, "" if 2 in hidden else regime, "" if 3 in hidden else variant)
        title = ", ".join([_score_name(record), *words])
        name = record.label("method", method)
        charts.setdefault(title, {}).setdefault(name, []).append((x, average.mean))
        if average.band is not None:
            bands.setdefault(title, {}).setdefault(name, []).append((x, *average.band))
    return [
        curves_chart(
            title,
            {name: sorted(points) for name, points in curves.items()},
            f"{x_name} (across), score (up)",
            is_log_x=is_log,
            bands={name: sorted(limits) for name, limits in bands.get(title, {}).items()},
        )
        for title, curves in list(charts.items())[:MOST_CHARTS]
    ]


def _against_steps(record: StudyRecord) -> ChartGroup:
    """Validation scores in training: a chart for each task, a curve for each method."""
    runs: dict[str, dict[str, dict[str, list[tuple[float, float]]]]] = {}  # title -> curve -> run
    for score in record.scores:
        place = score.place
        points = [(float(step), float(value)) for step, value in score.result.get("curve") or ()]
        if len(points) < 2 or record.is_ensemble(place):
            continue
        title = ", ".join(
            [record.label("trained_on", place.trained_on), *_place_words(record, place.backbone, place.regime)]
        )
        label = ", ".join(part for part in (record.label("method", place.method), place.variant) if part)
        runs.setdefault(title, {}).setdefault(label, {})[score.run] = points
    charts = []
    for title, curves in list(runs.items())[:MOST_CHARTS]:
        means, bands = {}, {}
        for label, by_run in curves.items():
            means[label], bands[label] = _mean_curve(list(by_run.values()))
        charts.append(curves_chart(title, means, "step (across), validation score (up)", bands=bands))
    note = "Mean over seeds; bands from the lowest to the highest run. Steps that not all runs reached are left out."
    if len(runs) > MOST_CHARTS:
        note += f" The first {MOST_CHARTS} of {len(runs)} charts."
    return ChartGroup("Validation scores in training", charts, note, is_open=record.study.layout.curves)


def _mean_curve(runs: Sequence[Sequence[tuple[float, float]]]) -> tuple[list[tuple[float, float]], list[Band]]:
    """The mean of curves at the steps that all have, with the lowest and the highest value."""
    by_step = [dict(points) for points in runs]
    steps = sorted(set.intersection(*(set(points) for points in by_step)))
    values = {step: [points[step] for points in by_step] for step in steps}
    means = [(step, fmean(scores)) for step, scores in values.items()]
    is_band = len(runs) > 1
    return means, [(step, min(scores), max(scores)) for step, scores in values.items()] if is_band else []


def _adaptation(record: StudyRecord) -> ChartGroup:
    curves = {backbone.name: backbone.curve for backbone in adapted_backbones(record) if backbone.curve}
    chart = curves_chart("held-out perplexity", curves, "step (across), perplexity (up)")
    return ChartGroup("Adaptation of backbones", [chart] if chart else [], "Lower is better.")


def _place_words(record: StudyRecord, backbone: str, regime: str, variant: str = "") -> list[str]:
    """The names of backbone, regime and setting, where the study has several."""
    words = [record.label("backbone", backbone)] if len(record.values_of("backbone")) > 1 else []
    words += [record.label("regime", regime)] if regime and len(record.values_of("regime")) > 1 else []
    return words + ([record.label("variant", variant)] if variant else [])


def _as_number(value: str) -> float | None:
    try:
        number = float(value)
    except ValueError:
        return None
    return number if math.isfinite(number) else None
