"""The tables of a report as LaTeX, with booktabs."""

from __future__ import annotations

import re

from softcue.drawing import MarkedCell
from softcue.studies.report.content import ReportContent
from softcue.studies.report.display import DisplayRow, DisplayTable

_ESCAPES = {
    "\\": r"\textbackslash{}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
    "→": r"$\rightarrow$",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    **{character: f"\\{character}" for character in "&%$#_{}"},
}
_SPECIAL = re.compile("|".join(re.escape(character) for character in _ESCAPES))


def escape_latex(text: str) -> str:
    r"""Text that LaTeX shows as it is.

    Example:
        >>> escape_latex("50 % of a_b & {c}")
        '50 \\% of a\\_b \\& \\{c\\}'
    """
    return _SPECIAL.sub(lambda match: _ESCAPES[match[0]], text)


def report_latex(content: ReportContent) -> str:
    r"""The tables of a report, to be included with \input in a document that loads booktabs.

    Example:
        Path("report.tex").write_text(report_latex(content))
    """
    lines = [f"% {' '.join(content.title.split())}", r"% needs \usepackage{booktabs}"]
    lines += [f"% {' '.join(command.split())}" for command in content.commands]
    for number, table in enumerate(content.tables):
        caption = [content.title, table.title, content.scale_note, *table.all_notes()]
        lines += ["", *_table_lines(table, caption, f"tab:{content.name}-{number + 1}")]
    for number, table in enumerate(content.paper_tables):
        caption = [f"{content.title}: the paper's numbers", table.title, *table.all_notes()]
        lines += ["", *_table_lines(table, caption, f"tab:{content.name}-paper-{number + 1}")]
    if content.sentences:
        items = [rf"\item {escape_latex(sentence)}." for sentence in content.sentences]
        lines += ["", r"\begin{itemize}", *items, r"\end{itemize}"]
    return "\n".join(lines) + "\n"


def _table_lines(table: DisplayTable, caption: list[str], label: str) -> list[str]:
    text = " ".join(part if part.endswith(".") else f"{part}." for part in caption if part)
    names = " & ".join([escape_latex(table.corner), *(escape_latex(column.text) for column in table.columns)])
    lines = [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{escape_latex(text)}}}",
        rf"\label{{{label}}}",
        rf"\begin{{tabular}}{{l{'r' * len(table.columns)}}}",
        r"\toprule",
        rf"{names} \\",
    ]
    if any(column.below for column in table.columns):
        small = " & ".join(["", *(_small(column.below) for column in table.columns)])
        lines.append(rf"{small} \\")
    lines += [r"\midrule", *map(_row, table.rows)]
    if table.quiet_rows:
        lines += [
            r"\midrule",
            *(_row((rf"\textit{{{escape_latex(name)}}}", cells), is_raw=True) for name, cells in table.quiet_rows),
        ]
    return [*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}"]


def _row(row: DisplayRow, is_raw: bool = False) -> str:
    name, cells = row
    return rf"{' & '.join([name if is_raw else escape_latex(name), *map(_cell, cells)])} \\"


def _cell(cell: MarkedCell) -> str:
    text = escape_latex(cell.text)
    marked = {"best": rf"\textbf{{{text}}}", "second": rf"\underline{{{text}}}"}.get(cell.mark, text)
    return " ".join(part for part in (marked, _small(cell.small), _small(cell.below)) if part)


def _small(text: str) -> str:
    return rf"{{\scriptsize {escape_latex(text)}}}" if text else ""
