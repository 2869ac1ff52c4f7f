"""Which methods of a study can be told apart: pairs with the same task, backbone, regime and seed, in plain words."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from softcue.studies.report.record import Place, StudyRecord
from softcue.studies.statistics import Difference, bootstrap_tasks, sign_test
from softcue.studies.study import Axis

MIN_SEEDS, MIN_PAIRS = 3, 5  # with fewer nothing is concluded
FEW_TASKS = 5  # with fewer an interval over tasks is rough
MOST_SENTENCES = 12  # of an axis; all pairs are in differences.csv
COMPARED: tuple[Axis, ...] = ("method", "variant", "backbone", "regime")
_SAME = 1e-9


@dataclass(frozen=True)
class PairOfLines:
    """Two values of an axis, such as two methods, on the same tasks with the same seeds."""

    axis: Axis
    first: str
    second: str
    difference: Difference  # the second minus the first, mean over tasks
    wins: tuple[int, int]  # tasks on which the second, or the first, has the better mean
    run_wins: tuple[int, int]  # the same for single runs
    num_runs: int  # pairs of runs
    num_seeds: int
    is_ensemble: bool = False  # the second joins the predictions of the first's runs

    @property
    def num_tasks(self) -> int:
        """The tasks on which both have runs."""
        return self.difference.num_units

    @property
    def has_enough(self) -> bool:
        """Whether there are enough runs to conclude anything."""
        return self.num_seeds >= MIN_SEEDS and self.num_runs >= MIN_PAIRS

    @property
    def task_p(self) -> float:
        """The p-value of the sign test over tasks."""
        return sign_test(*self.wins)

    @property
    def run_p(self) -> float:
        """The p-value of the sign test over pairs of runs."""
        return sign_test(*self.run_wins)

    @property
    def conclusion(self) -> str:
        """`told apart`, `not told apart` or `too few runs`."""
        if not self.has_enough:
            return "too few runs"
        return "told apart" if self.difference.is_significant else "not told apart"

    @property
    def sentence(self) -> str:
        """The comparison in plain words; what there are too few runs for is not claimed.

        Example:
            >>> difference = Difference(2.3, 0.9, 3.6, 5)
            >>> PairOfLines("method", "prompt-tuning", "m-idpg-phm", difference, (4, 1), (12, 3), 15, 3).sentence
            'm-idpg-phm beats prompt-tuning on 4 of 5 tasks, +2.3 points, 95 % interval 0.9 to 3.6 \
(sign test over 5 tasks p = 0.38, over 15 pairs of runs p = 0.035)'
        """
        value, low, high = self.difference.value, self.difference.low, self.difference.high
        better, worse, wins = self.second, self.first, self.wins[0]
        if value < 0:
            better, worse, wins = self.first, self.second, self.wins[1]
            value, low, high = -value, -high, -low
        tasks = f"on {wins} of {self.num_tasks} tasks" if self.num_tasks > 1 else "on its only task"
        interval = f"95 % interval {_rounded(low)} to {_rounded(high)}"
        if not self.has_enough:
            count = f"{self.num_runs} pair{'s' * (self.num_runs != 1)} of runs with {self.num_seeds} "
            count += f"seed{'s' * (self.num_seeds != 1)}"
            scores = (
                f"{better} scores {value:.1f} points more than {worse}"
                if value >= 0.05
                else f"{self.second} and {self.first} score the same"
            )
            return f"{scores} in {count}: too few to conclude anything"
        tests = [f"over {self.num_runs} pairs of runs {_p_text(self.run_p)}"]
        if self.num_tasks > 1:
            tests.insert(0, f"over {self.num_tasks} tasks {_p_text(self.task_p)}")
        test = f"sign test {', '.join(tests)}"
        if self.difference.is_significant:
            return f"{better} beats {worse} {tasks}, +{value:.1f} points, {interval} ({test})"
        return f"{better} and {worse} cannot be told apart: +{value:.1f} points {tasks}, {interval} ({test})"


def compare_lines(record: StudyRecord) -> list[PairOfLines]:
    """All pairs of methods, of values that vary, of backbones, and of joint training with separate training.

    Example:
        [pair.sentence for pair in compare_lines(record)]
    """
    pairs = []
    for axis in COMPARED:
        for first, second in itertools.combinations(record.values_of(axis), 2):
            if axis == "regime" and not (record.regimes[first].joint or record.regimes[second].joint):
                continue  # more rows are better: nothing to test
            if axis == "method" and {first, second} & record.bases.keys() and record.bases.get(second) != first:
                continue  # an ensemble is compared with its members only
            pair = _compare(record, axis, first, second)
            if pair is not None:
                pairs.append(pair)
    return pairs


def main_pairs(record: StudyRecord, pairs: Sequence[PairOfLines]) -> list[PairOfLines]:
    """The pairs a page spells out: each against the first of the study, and the best two; all if they are few.

    Example:
        [pair.sentence for pair in main_pairs(record, compare_lines(record))]
    """
    chosen: list[PairOfLines] = []
    for axis in COMPARED:
        of_axis = [pair for pair in pairs if pair.axis == axis]
        if len(of_axis) <= MOST_SENTENCES // 2:
            chosen += of_axis
            continue
        first = record.label(axis, record.values_of(axis)[0])
        with_first = [pair for pair in of_axis if pair.first == first]
        # Against the first all have the same yardstick, so their differences say which two are best.
        ranked = sorted(with_first, key=lambda pair: -pair.difference.value)
        best = [first, *(pair.second for pair in ranked)] if not ranked else _best_two(first, ranked)
        between = [pair for pair in of_axis if {pair.first, pair.second} == set(best) and pair not in with_first]
        chosen += [*between, *ranked][:MOST_SENTENCES]
    return chosen


def difference_notes(pairs: Sequence[PairOfLines]) -> list[str]:
    """How to read the sentences.

    Example:
        difference_notes(main_pairs(record, compare_lines(record)))
    """
    if not pairs:
        return []
    notes = [
        "Runs with the same task, backbone, number of rows and seed are pairs; runs with different seeds, as after a "
        "search, are paired in their order. Intervals come from drawing tasks, and runs of each task, with replacement."
    ]
    if any(pair.is_ensemble for pair in pairs):
        notes.append("An ensemble is compared with each of its members.")
    concluded = [pair for pair in pairs if pair.has_enough]
    if any(pair.num_tasks == 1 for pair in concluded):
        notes.append("With one task an interval tells how runs differ, not how tasks do.")
    if any(1 < pair.num_tasks < FEW_TASKS for pair in concluded):
        notes.append(
            f"With fewer than {FEW_TASKS} tasks intervals are rough, and a sign test over tasks decides nothing."
        )
    if len(concluded) > 1:
        notes.append("Each interval is for its pair alone: of 20 pairs without a difference about one looks different.")
    if len(concluded) < len(pairs):
        notes.append(f"With fewer than {MIN_SEEDS} seeds or {MIN_PAIRS} pairs of runs nothing is concluded.")
    return notes


def _best_two(first: str, ranked: Sequence[PairOfLines]) -> list[str]:
    totals = {first: 0.0, **{pair.second: pair.difference.value for pair in ranked}}
    return sorted(totals, key=lambda name: -totals[name])[:2]


def _compare(record: StudyRecord, axis: Axis, first: str, second: str) -> PairOfLines | None:
    sides = [_scores_by_setting(record, axis, value) for value in (first, second)]
    sampled = {_setting(record, place, axis) for place in record.planned if record.few_shot_of(place)}
    tasks: dict[str, list[list[float]]] = {}
    seeds: set[int] = set()
    for (task, setting), scores in sides[0].items():
        later_scores = sides[1].get((task, setting), {})
        if second in record.bases and later_scores:  # one score, compared with that of each member
            later_scores = dict.fromkeys(scores, *later_scores.values())
        pairs = _pair_runs(scores, later_scores, has_samples=setting in sampled)
        if pairs:
            tasks.setdefault(task, []).append([later - score for _, score, later in pairs])
            seeds.update(seed for seed, _, _ in pairs)
    if not tasks:
        return None
    runs = [value for settings in tasks.values() for setting in settings for value in setting]
    return PairOfLines(
        axis,
        record.label(axis, first),
        record.label(axis, second),
        bootstrap_tasks(list(tasks.values())),
        _wins(fmean(map(fmean, settings)) for settings in tasks.values()),
        _wins(runs),
        len(runs),
        len(seeds),
        is_ensemble=second in record.bases,
    )


def _scores_by_setting(
    record: StudyRecord, axis: Axis, value: str
) -> dict[tuple[str, tuple[str, ...]], dict[int, float]]:
    """The scores of a value of an axis: task and all else that must be the same -> seed -> score."""
    result: dict[tuple[str, tuple[str, ...]], dict[int, float]] = {}
    for place, scores in record.by_place.items():
        if getattr(place, axis) != value or (axis != "method" and record.is_ensemble(place)):
            continue
        result[place.task, _setting(record, place, axis)] = {score.seed: score.main for score in scores}
    return result


def _pair_runs(
    first: Mapping[int, float], second: Mapping[int, float], has_samples: bool
) -> list[tuple[int, float, float]]:
    """Pair runs with the same seed: seed, first and second score.

    A method with a search has other seeds than those without. Where seeds do not choose training rows, the runs of both
    are independent, and are paired in their order.
    """
    shared = sorted(first.keys() & second.keys())
    if len(shared) == min(len(first), len(second)) or has_samples:
        return [(seed, first[seed], second[seed]) for seed in shared]
    return [(seed, first[seed], second[other]) for seed, other in zip(sorted(first), sorted(second), strict=False)]


def _setting(record: StudyRecord, place: Place, axis: Axis) -> tuple[str, ...]:
    # Joint and separate training have different names for what they were trained on; tasks of their own are the same.
    hidden: tuple[Axis, ...] = (axis, "trained_on")
    if axis == "method" and record.is_regime_of_method:
        hidden = (*hidden, "regime")
    return (*place.without(*hidden), record.source_of(place))


def _wins(differences: Iterable[float]) -> tuple[int, int]:
    values = list(differences)
    return sum(value > _SAME for value in values), sum(value < -_SAME for value in values)


def _rounded(value: float) -> str:
    digits = 1 if abs(value) >= 0.05 or value == 0 else 2  # what is not zero does not look like it
    return f"{round(value, digits) + 0.0:.{digits}f}"  # never -0.0


def _p_text(value: float) -> str:
    return "p < 0.001" if value < 0.001 else f"p = {value:.2g}"
