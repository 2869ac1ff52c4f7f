"""How a cue does on rows with known targets: scores, baselines, scores of each label and the worst rows; as files."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, pstdev
from typing import Any

from softcue.cue.cue import Cue
from softcue.errors import ConfigurationError
from softcue.evaluation import Evaluation, WrongRow, read_evaluation_set
from softcue.evaluation.report import label_rows
from softcue.files import convert_write_errors, write_atomically
from softcue.tasks import Source, Task

# suffix of an output file -> the kinds of task it can be written for; empty: all
SUFFIXES: dict[str, tuple[str, ...]] = {
    ".json": (),
    ".html": (),
    ".csv": ("classification", "multi-label", "referent", "regression", "tags"),
    ".png": ("classification", "referent", "regression"),
}


@dataclass(frozen=True)
class CheckedRows:
    """The predictions of a cue for rows with known targets."""

    name: str  # of the rows
    evaluation: Evaluation
    wrong: list[WrongRow]

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "data": self.name,
            **self.evaluation.as_dict(),
            "wrong_rows": [row.as_dict() for row in self.wrong],
        }


def check_rows(
    cue: Cue,
    data: Source,
    num_wrong: int = 10,
    batch_size: int = 64,
    row_task: Task | None = None,
    skip_bad_rows: bool = False,
) -> CheckedRows:
    """Predict rows with known targets and compare: scores beside the baselines, and the most confident wrong rows.

    `row_task` is the cue's task as it reads these rows, if their columns have other names (`rename_columns`).

    Example:
        check_rows(softcue.load("cues/tickets"), "held-out.csv").wrong[0].texts
    """
    rows = read_evaluation_set(row_task or cue.task, data, skip_bad_rows=skip_bad_rows)
    evaluation, predictions = cue.evaluate_set(rows, batch_size)
    return CheckedRows(rows.name, evaluation, rows.wrong_rows(predictions, num_wrong))


@dataclass(frozen=True)
class Residuals:
    """Errors of a regression (predicted minus true)."""

    values: list[float]

    @classmethod
    def of(cls, evaluation: Evaluation) -> Residuals | None:
        """The residuals of an evaluation; None if it is of another kind of task."""
        rows = evaluation.scored_rows
        if rows is None or not rows.values:
            return None
        return cls([value - true for value, true in zip(rows.values, rows.true_values, strict=True)])

    def as_dict(self) -> dict[str, float]:
        """Mean, standard deviation (over these rows), and extremes."""
        return {
            "mean": fmean(self.values),
            "standard deviation": pstdev(self.values),
            "lowest": min(self.values),
            "highest": max(self.values),
        }


def check_suffix(path: Path, kind: str) -> None:
    """Check that an evaluation of this kind of task can be written to a file with this suffix.

    Example:
        >>> check_suffix(Path("matrix.csv"), "classification")
        >>> check_suffix(Path("matrix.xls"), "classification")
        Traceback (most recent call last):
        softcue.errors.ConfigurationError: output: got 'matrix.xls'; expected a file name that ends with .json, ...
    """
    suffixes = [suffix for suffix, kinds in SUFFIXES.items() if not kinds or kind in kinds]
    if path.suffix.lower() not in suffixes:
        raise ConfigurationError(
            setting="output",
            got=str(path),
            expected=f"a file name that ends with {', '.join(suffixes)}, for {kind}",
            fix="the suffix chooses the format",
        )
    if path.suffix.lower() == ".png":
        from softcue.inspection.pictures import check_matplotlib

        check_matplotlib()


def write_evaluation(path: Path, title: str, checked: CheckedRows, facts: Mapping[str, Any]) -> None:
    """Write an evaluation in the format that the suffix says: .json has all `facts`, .csv and .png the matrix.

    For regression, .csv has the true and the predicted value of each row; for multi-label and tags, the scores of each
    label.

    Example:
        write_evaluation(Path("matrix.csv"), "tickets", check_rows(cue, "held-out.csv"), {})
    """
    from softcue.inspection.page import evaluation_page
    from softcue.inspection.pictures import evaluation_picture

    match path.suffix.lower():
        case ".json":
            content = (json.dumps(facts, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()
        case ".csv":
            content = evaluation_csv(checked.evaluation).encode()
        case ".png":
            content = evaluation_picture(title, checked.evaluation)
        case _:
            content = evaluation_page(title, checked).encode()
    with convert_write_errors("output", path):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, content)


def evaluation_csv(evaluation: Evaluation) -> str:
    """The confusion matrix as csv; for regression true and predicted values, for sets and tags scores of each label.

    Example:
        evaluation_csv(cue.evaluate("held-out.csv")).splitlines()[0]     # "true,billing,shipping"
    """
    if evaluation.confusion is not None:
        return evaluation.confusion.as_csv()
    rows = evaluation.scored_rows
    buffer = io.StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    if rows is not None and rows.values:
        writer.writerow(["true", "predicted"])
        writer.writerows(zip(rows.true_values, rows.values, strict=True))
    else:
        columns, lines = label_rows(evaluation)
        writer.writerow(columns)
        writer.writerows(lines)
    return buffer.getvalue()
