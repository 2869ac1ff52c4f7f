"""The report of a study: table in the layout of a paper, comparisons in plain words, charts, and how to repeat it."""

from softcue.studies.report.report import StudyReport, make_report

__all__ = ["StudyReport", "make_report"]
