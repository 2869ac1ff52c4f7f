"""The page that compares finished cues on the same rows."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from softcue.drawing import html_table
from softcue.inspection.page import html_page, note_parts
from softcue.studies.comparison import repeat_parts
from softcue.studies.table import html_list

if TYPE_CHECKING:
    from softcue.studies.predictions import PredictionComparison

MAX_ROWS = 200  # of the rows on which cues differ; the csv file has all


def prediction_page(comparison: PredictionComparison, command: str = "") -> str:
    """The page about a comparison: scores, pairs in words and numbers, rows on which the cues differ; how to repeat it.

    Example:
        Path("index.html").write_text(prediction_page(comparison))
    """
    return html_page(
        comparison.title,
        [
            f"<h1>{escape(comparison.title)}</h1>",
            "<h2>Scores</h2>",
            html_table(*comparison.shown()),
            "<h2>Differences</h2>",
            html_list(comparison.sentences),
            html_table(*comparison.pairs.shown()),
            *note_parts(comparison.notes),
            *_row_parts(comparison),
            *repeat_parts(command),
        ],
    )


def _row_parts(comparison: PredictionComparison) -> list[str]:
    rows = comparison.different_rows
    parts = ["<h2>Rows on which they differ</h2>", f"<p>{len(rows):,} of {comparison.num_rows:,} rows.</p>"]
    if len(rows) > MAX_ROWS:
        parts += note_parts([f"The first {MAX_ROWS}; different-rows.csv has all of them."])
    names = list(comparison.evaluations)
    cells = [
        [
            row.number,
            " / ".join(row.texts),
            row.true,
            *(_mark(row.predictions[name], name in row.right) for name in names),
        ]
        for row in rows[:MAX_ROWS]
    ]
    return [*parts, html_table(["row", "text", "true", *names], cells)] if cells else parts


def _mark(prediction: str, is_right: bool) -> str:
    """A prediction with a sign that does not need colours."""
    return f"{'✓' if is_right else '✗'}\N{NO-BREAK SPACE}{prediction}"
