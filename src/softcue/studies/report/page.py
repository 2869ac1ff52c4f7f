"""The report of a study as one HTML file."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from math import isfinite

from softcue.drawing import html_table, marked_table, side_by_side
from softcue.inspection.page import html_page, note_parts
from softcue.studies.report.charts import ChartGroup
from softcue.studies.report.content import HEALTH_NOTE, ReportContent
from softcue.studies.report.display import DisplayTable, counted, with_notes_once


def report_page(content: ReportContent, charts: Sequence[ChartGroup]) -> str:
    """The page of a report.

    Example:
        Path("index.html").write_text(report_page(content, make_charts(record)))
    """
    facts = "".join(f"<li>{escape(fact)}</li>" for fact in content.facts)
    parts = [f"<h1>{escape(content.title)}</h1>"]
    if content.description:
        parts.append(f"<p>{escape(content.description)}</p>")
    parts.append(f'<ul class="facts">{facts}</ul>')
    if content.scale_note:
        parts.append(f'<p style="border-left: 4px solid #d9822b; padding-left: .8rem">{escape(content.scale_note)}</p>')
    parts += [f"<p>{escape(note)}</p>" for note in content.count_notes]
    parts.append("<h2>Scores</h2>")
    for table in with_notes_once(content.tables):
        parts += _table_parts(table)
    parts += ["<h2>The paper's numbers</h2>"] if content.paper_tables else []
    for table in with_notes_once(content.paper_tables):
        parts += _table_parts(table)
    if content.sentences:
        parts += ["<h2>Differences</h2>", _list(content.sentences), *note_parts([" ".join(content.difference_notes)])]
    for group in charts:
        parts += _chart_parts(group)
    if content.searches:
        parts += ["<h2>Chosen settings</h2>", *_search_parts(content)]
    if content.adapted:
        rows = [[entry.name, entry.steps, entry.perplexity, f"{entry.seconds:.0f}"] for entry in content.adapted]
        parts += ["<h2>Adapted backbones</h2>", html_table(["backbone", "steps", "perplexity", "seconds"], rows)]
    parts += ["<h2>Costs</h2>", html_table(*content.cost_table), *note_parts([content.cost_note])]
    if content.health_table[1]:
        parts += ["<h2>Health of the prompts</h2>", html_table(*content.health_table), *note_parts([HEALTH_NOTE])]
    if content.failed:
        failed = [[entry.run, entry.reason, entry.num_attempts] for entry in content.failed]
        parts += ["<h2>Failed runs</h2>", html_table(["run", "reason", "attempts"], failed)]
    if content.warnings:
        counts = [[text, count] for text, count in content.warnings]
        parts += ["<h2>Warnings</h2>", _closed("what runs warned of", html_table(["warning", "runs"], counts))]
    if content.recipes:
        parts += ["<h2>Recipes</h2>", _list(content.recipes)]
    commands = escape("\n".join(content.commands))
    parts += [
        "<h2>Repeat it</h2>",
        f"<pre>{commands}</pre>",
        _closed("study.yaml", f"<pre>{escape(content.study_text)}</pre>"),
        *note_parts(content.machine_notes),
    ]
    return html_page(content.title, parts)


def _table_parts(table: DisplayTable) -> list[str]:
    heading = [f"<h3>{escape(table.title)}</h3>"] if table.title else []
    drawn = marked_table(table.columns, table.rows, table.quiet_rows, table.corner)
    notes = " ".join(table.all_notes())
    return [*heading, drawn, *note_parts([notes] if notes else [])]


def _chart_parts(group: ChartGroup) -> list[str]:
    charts = side_by_side(group.charts)
    if not group.is_open:
        charts = _closed(counted(len(group.charts), "chart"), charts)
    return [f"<h2>{escape(group.heading)}</h2>", charts, *note_parts([group.note] if group.note else [])]


def _search_parts(content: ReportContent) -> list[str]:
    rows = [[entry.name, entry.chosen, f"{entry.score:.1f}", len(entry.trials)] for entry in content.searches]
    trials = [
        [entry.name, settings, f"{score:.1f}" if isfinite(score) else "broke down"]
        for entry in content.searches
        for settings, score in entry.trials
    ]
    return [
        html_table(["search", "chosen", "validation score", "settings tried"], rows),
        _closed("all settings that were tried", html_table(["search", "settings", "validation score"], trials)),
        *note_parts(["Validation rows chose the settings; the chosen ones were trained again with other seeds."]),
    ]


def _list(lines: Sequence[str]) -> str:
    return f"<ul>{''.join(f'<li>{escape(line)}</li>' for line in lines)}</ul>"


def _closed(summary: str, content: str) -> str:
    return f"<details><summary>{escape(summary)}</summary>{content}</details>"
