"""The page that compares finished cues on the same rows."""

from __future__ import annotations

from html import escape

from softcue.cue.score_table import few_rows_notes
from softcue.drawing import html_table
from softcue.inspection.page import html_page, note_parts
from softcue.studies.predictions import PredictionComparison

MAX_ROWS = 200  # of the rows on which cues differ; the csv file has all


def prediction_page(comparison: PredictionComparison) -> str:
    """The page about a comparison: scores, pairs in words and numbers, and the rows on which the cues differ.

    Example:
        Path("index.html").write_text(prediction_page(comparison))
    """
    title = f"{len(comparison.evaluations)} cues on {comparison.data}"
    sentences = "".join(f"<li>{escape(pair.sentence)}</li>" for pair in comparison.pairs)
    notes = [
        "Intervals come from drawing rows with replacement, for both cues alike. They say how far the difference would "
        "move with other rows, not with other seeds of training. Cues are told apart if the interval leaves out zero "
        "and McNemar's exact test agrees (p below 0.05).",
        *few_rows_notes([comparison.num_rows]),
    ]
    return html_page(
        title,
        [
            f"<h1>{escape(title)}</h1>",
            "<h2>Scores</h2>",
            html_table(*comparison.score_table()),
            "<h2>Differences</h2>",
            f"<ul>{sentences}</ul>",
            html_table(*comparison.pair_table()),
            *note_parts(notes),
            *_row_parts(comparison),
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
