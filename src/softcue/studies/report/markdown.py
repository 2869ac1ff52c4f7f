"""The report of a study as Markdown, for a page of the documentation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from softcue.drawing import MarkedCell
from softcue.studies.report.content import HEALTH_NOTE, ReportContent
from softcue.studies.report.display import DisplayTable, cell_text, heading_text, text_rows, with_notes_once

_SPECIAL = re.compile(r"([\\`*_|<>\[\]])")


def report_markdown(content: ReportContent) -> str:
    """The report as Markdown: tables, notes, sentences and commands. Charts are in the HTML file only.

    Example:
        Path("report.md").write_text(report_markdown(content))
    """
    blocks = [f"# {_plain(content.title)}"]
    blocks += [_plain(content.description)] if content.description else []
    blocks += [f"**{_plain(content.scale_note)}**"] if content.scale_note else []
    blocks.append(" ".join(_plain(note) for note in content.count_notes))
    blocks.append("; ".join(_plain(fact) for fact in content.facts) + ".")
    blocks.append("## Scores")
    for table in with_notes_once(content.tables):
        blocks += _table_blocks(table)
    blocks += ["## The paper's numbers"] if content.paper_tables else []
    for table in with_notes_once(content.paper_tables):
        blocks += _table_blocks(table)
    if content.sentences:
        blocks += ["## Differences", _list(content.sentences)]
        blocks.append(" ".join(_plain(note) for note in content.difference_notes))
    if content.searches:
        rows = [[entry.name, entry.chosen, f"{entry.score:.1f}", len(entry.trials)] for entry in content.searches]
        blocks += ["## Chosen settings", _table(["search", "chosen", "validation score", "settings tried"], rows)]
    if content.adapted:
        adapted = [[entry.name, entry.steps, f"{entry.perplexity:.2f}"] for entry in content.adapted]
        blocks += ["## Adapted backbones", _table(["backbone", "steps", "perplexity"], adapted)]
    blocks += ["## Costs", _table(*content.cost_table), _plain(content.cost_note)]
    if content.health_table[1]:
        blocks += ["## Health of the prompts", _table(*content.health_table), _plain(HEALTH_NOTE)]
    if content.failed:
        failed = [[entry.run, entry.reason, entry.num_attempts] for entry in content.failed]
        blocks += ["## Failed runs", _table(["run", "reason", "attempts"], failed)]
    if content.recipes:
        blocks += ["## Recipes", _list(content.recipes)]
    commands = "\n".join(content.commands)
    blocks += ["## Repeat it", f"```sh\n{commands}\n```", f"study.yaml:\n\n```yaml\n{content.study_text.rstrip()}\n```"]
    blocks.append(" ".join(_plain(note) for note in content.machine_notes))
    return "\n\n".join(block for block in blocks if block) + "\n"


def _table_blocks(table: DisplayTable) -> list[str]:
    heading = [f"### {_plain(table.title)}"] if table.title else []
    columns = [table.corner, *(heading_text(column) for column in table.columns)]
    rows = [[_plain(name), *map(_cell, cells)] for name, cells in text_rows(table)]
    return [*heading, _lines(map(_plain, columns), rows), " ".join(_plain(note) for note in table.all_notes("Italic"))]


def _cell(cell: MarkedCell) -> str:
    text = _plain(cell_text(cell))
    return {"best": f"**{text}**", "second": f"_{text}_"}.get(cell.mark, text)


def _table(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    return _lines(map(_plain, columns), [[_plain(str(cell)) for cell in row] for row in rows])


def _lines(columns: Iterable[str], rows: Sequence[Sequence[str]]) -> str:
    names = list(columns)
    alignment = [
        "---:" if number and all(_is_number(row[number]) for row in rows) else "---" for number in range(len(names))
    ]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (names, alignment, *rows))


def _is_number(cell: str) -> bool:
    return not cell.strip("*_ -") or cell.strip("*_ ")[0].isdigit()


def _list(lines: Sequence[str]) -> str:
    return "\n".join(f"- {_plain(line)}" for line in lines)


def _plain(text: str) -> str:
    """Text in one line that Markdown shows as it is."""
    return _SPECIAL.sub(r"\\\1", " ".join(text.split()))
