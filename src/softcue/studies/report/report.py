"""The report of a study: made from the results in its folder, saved as HTML, Markdown, LaTeX and csv."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from softcue.files import convert_write_errors, write_atomically
from softcue.studies.report.charts import ChartGroup, make_charts
from softcue.studies.report.content import ReportContent, make_content
from softcue.studies.report.csv_files import differences_csv, scores_csv, table_csv
from softcue.studies.report.display import cell_text, heading_text, text_rows
from softcue.studies.report.latex import report_latex
from softcue.studies.report.markdown import report_markdown
from softcue.studies.report.page import report_page
from softcue.studies.report.record import StudyRecord
from softcue.studies.report.table import ResultTable, make_tables
from softcue.studies.runner import read_status
from softcue.studies.store import StudyFolder


@dataclass(frozen=True)
class StudyReport:
    """The scores of a study in tables, with comparisons and charts.

    Example:
        report = make_report(open_study("studies/quick"))
        report.save(Path("studies/quick/report"))
    """

    record: StudyRecord
    tables: list[ResultTable]
    content: ReportContent
    charts: list[ChartGroup]

    @property
    def files(self) -> dict[str, str]:
        """The files of the report by their names."""
        return {
            "index.html": report_page(self.content, self.charts),
            "report.md": report_markdown(self.content),
            "report.tex": report_latex(self.content),
            "table.csv": table_csv(self.tables),
            "scores.csv": scores_csv(self.record),
            "differences.csv": differences_csv(self.content.pairs),
            "study.yaml": self.content.study_text,
        }

    def save(self, output: Path) -> list[Path]:
        """Write all files into a folder and return their paths."""
        paths = []
        with convert_write_errors("output_dir", output):
            output.mkdir(parents=True, exist_ok=True)
            for name, text in self.files.items():
                write_atomically(output / name, text.encode())
                paths.append(output / name)
        return paths

    def as_dict(self) -> dict[str, Any]:
        """Tables, comparisons and counts as plain values, for JSON."""
        status = self.record.status
        return {
            "study": self.content.name,
            "runs": {"planned": status.plan.size, "done": len(status.done), "failed": status.failed},
            "tables": [
                {
                    "title": table.title,
                    "columns": [column.name for column in table.columns],
                    "rows": {
                        line.name: [
                            {"mean": cell.mean, "spread": cell.spread, "runs": cell.num_runs, "mark": cell.mark}
                            for cell in line.cells
                        ]
                        for line in table.lines
                    },
                    "baselines": table.baselines,
                    "notes": table.notes,
                }
                for table in self.tables
            ],
            "differences": [
                {
                    "first": pair.first,
                    "second": pair.second,
                    "difference": pair.difference.value,
                    "low": pair.difference.low,
                    "high": pair.difference.high,
                    "conclusion": pair.conclusion,
                    "sentence": pair.sentence,
                }
                for pair in self.content.pairs
            ],
        }

    def text_tables(self) -> list[tuple[str, list[str], list[list[str]]]]:
        """Title, columns and rows of each table as text, for a terminal."""
        return [
            (
                table.title,
                [table.corner, *(heading_text(column) for column in table.columns)],
                [[name, *map(cell_text, cells)] for name, cells in text_rows(table)],
            )
            for table in self.content.tables
        ]


def make_report(folder: StudyFolder, *, with_paper: bool = False) -> StudyReport:
    """Make the report of a study from the results in its folder. `with_paper` adds the numbers of the paper.

    Example:
        make_report(open_study("studies/quick")).content.sentences
    """
    study = folder.read_study()
    record = StudyRecord(study, read_status(folder, study))
    tables = make_tables(record)
    return StudyReport(record, tables, make_content(record, tables, with_paper), make_charts(record))
