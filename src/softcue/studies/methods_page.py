"""The page that compares trained methods."""

from __future__ import annotations

from html import escape

from softcue.cue.cue_file import package_versions
from softcue.cue.score_table import few_rows_notes
from softcue.drawing import bar_chart, html_table, side_by_side
from softcue.drawing.bars import legend
from softcue.inspection.page import html_page, note_parts
from softcue.studies.methods import MethodComparison


def methods_page(title: str, comparison: MethodComparison, command: str) -> str:
    """The page about a comparison: table, differences in words, a bar for each seed, runs, and how to repeat it.

    Example:
        Path("index.html").write_text(methods_page("tickets", comparison, "softcue compare --task tickets ..."))
    """
    names = [line.name for line in comparison.lines]
    scores: dict[str, list[float | None]] = {}
    for line in comparison.lines:
        for run in comparison.runs_of(line.name):
            scores.setdefault(f"seed {run.seed}", []).append(run.score)
    sentences = "".join(f"<li>{escape(pair.sentence)}</li>" for pair in comparison.pairs)
    runs = [[run.folder, f"{run.score:.1f}", f"{run.seconds:.0f}"] for run in comparison.runs]
    versions = ", ".join(f"{name} {version}" for name, version in package_versions().items())
    return html_page(
        title,
        [
            f"<h1>{escape(title)}</h1>",
            html_table(*comparison.table()),
            *note_parts([*comparison.notes, *few_rows_notes([comparison.lines[0].rows])]),
            "<h2>Differences</h2>",
            f"<ul>{sentences}</ul>" if sentences else "<p>One method: nothing to compare.</p>",
            "<h2>Scores of each seed</h2>",
            side_by_side([bar_chart(f"{comparison.metric} on {comparison.split} rows", names, scores, "method")]),
            legend(list(scores)),
            "<h2>Runs</h2>",
            html_table(["cue", comparison.metric, "seconds"], runs),
            "<h2>Repeat it</h2>",
            f"<pre>{escape(command)}</pre>",
            *note_parts([versions]),
        ],
    )
