"""Our metrics beside scikit-learn's and scipy's: the same values, and the time of each.

python -m benchmarks.metric_speed [--rows 1000]
"""

from __future__ import annotations

import argparse
import random
import timeit
from collections.abc import Callable

from scipy import stats
from sklearn import metrics as library

from softcue.evaluation import metrics

LABELS = [f"label-{number}" for number in range(6)]
TURNS, CALLS = 5, 5
Measure = Callable[[], float]


def contestants(num_rows: int) -> dict[str, tuple[Measure, Measure]]:
    """Metric -> our function and the library's on the same rows, of which four in five are right."""
    drawn = random.Random(0)
    true = [drawn.choice(LABELS) for _ in range(num_rows)]
    predicted = [label if drawn.random() < 0.8 else drawn.choice(LABELS) for label in true]
    targets = [drawn.random() for _ in range(num_rows)]
    values = [target + 0.3 * drawn.random() for target in targets]
    present = sorted(set(true))
    return {
        "accuracy": (
            lambda: metrics.accuracy(predicted, true),
            lambda: 100 * library.accuracy_score(true, predicted),
        ),
        "macro_f1": (
            lambda: metrics.macro_f1(predicted, true),
            lambda: 100 * library.f1_score(true, predicted, average="macro", labels=present, zero_division=0),
        ),
        "micro_f1": (
            lambda: metrics.micro_f1(predicted, true),
            lambda: 100 * library.f1_score(true, predicted, average="micro"),
        ),
        "matthews": (
            lambda: metrics.matthews(predicted, true),
            lambda: 100 * library.matthews_corrcoef(true, predicted),
        ),
        "mae": (lambda: metrics.mae(values, targets), lambda: library.mean_absolute_error(targets, values)),
        "rmse": (lambda: metrics.rmse(values, targets), lambda: library.root_mean_squared_error(targets, values)),
        "r2": (lambda: metrics.r2(values, targets), lambda: 100 * library.r2_score(targets, values)),
        "pearson": (lambda: metrics.pearson(values, targets), lambda: 100 * stats.pearsonr(values, targets)[0]),
        "spearman": (lambda: metrics.spearman(values, targets), lambda: 100 * stats.spearmanr(values, targets)[0]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--rows", type=int, default=1000)
    arguments = parser.parse_args()
    print("| metric | largest difference | ours, ms | library, ms |\n|---|---|---|---|")
    for name, measures in contestants(arguments.rows).items():
        times = [1000 * min(timeit.repeat(measure, number=CALLS, repeat=TURNS)) / CALLS for measure in measures]
        ours, theirs = (measure() for measure in measures)
        print(f"| {name} | {abs(ours - theirs):.1e} | {times[0]:.2f} | {times[1]:.2f} |")


if __name__ == "__main__":
    main()
