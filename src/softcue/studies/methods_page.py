"""The page that compares trained methods."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING

from softcue.drawing import bar_chart, html_table, side_by_side
from softcue.drawing.bars import legend
from softcue.inspection.page import html_page, note_parts
from softcue.studies.comparison import repeat_parts
from softcue.studies.table import html_list

if TYPE_CHECKING:
    from softcue.studies.methods import MethodComparison


def methods_page(comparison: MethodComparison, command: str = "") -> str:
    """The page about a comparison: table, differences in words, a bar for each seed, runs, and how to repeat it.

    Example:
        Path("index.html").write_text(methods_page(comparison, "softcue compare --task tickets ..."))
    """
    names = [line.name for line in comparison.lines]
    scores: dict[str, list[float | None]] = {}
    for line in comparison.lines:
        for seed, score in enumerate(line.scores):
            scores.setdefault(f"seed {seed}", []).append(score)
    runs = [[run.folder, f"{run.score:.1f}", f"{run.seconds:.0f}"] for run in comparison.runs]
    return html_page(
        comparison.title,
        [
            f"<h1>{escape(comparison.title)}</h1>",
            html_table(*comparison.shown()),
            *note_parts(comparison.notes),
            "<h2>Differences</h2>",
            html_list(comparison.sentences) or "<p>One method: nothing to compare.</p>",
            "<h2>Scores of each seed</h2>",
            side_by_side([bar_chart(f"{comparison.metric} on {comparison.split} rows", names, scores, "method")]),
            legend(list(scores)),
            "<h2>Runs</h2>",
            html_table(["cue", comparison.metric, "seconds"], runs),
            *repeat_parts(command),
        ],
    )
