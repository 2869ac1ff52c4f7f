"""What a report says, without its form: HTML, Markdown and LaTeX are made from it."""

from __future__ import annotations

from dataclasses import dataclass

from softcue.studies.report.differences import PairOfLines, compare_lines, difference_notes, main_pairs
from softcue.studies.report.display import DisplayTable, counted, display_table, paper_table, range_text
from softcue.studies.report.facts import (
    AdaptationOutcome,
    CostLine,
    FailedRun,
    SearchOutcome,
    adapted_backbones,
    cost_lines,
    count_notes,
    failed_runs,
    machine_notes,
    recipe_lines,
    repeat_commands,
    scale_note,
    search_outcomes,
    study_text,
    warning_counts,
)
from softcue.studies.report.record import StudyRecord
from softcue.studies.report.table import ResultTable

HEALTH_NOTE = (
    "Means over runs of what each method reports after its last step. Prompt variation: how far prompts differ between "
    "inputs, relative to their size; 0 is a prompt that does not read the input. Perplexity: codes in use. Prompt "
    "ratio: size of the quantised prompt relative to the prompt."
)


@dataclass(frozen=True)
class ReportContent:
    """The parts of a report in their order."""

    name: str
    title: str
    description: str
    facts: list[str]
    scale_note: str
    count_notes: list[str]
    tables: list[DisplayTable]
    paper_tables: list[DisplayTable]
    pairs: list[PairOfLines]
    sentences: list[str]
    difference_notes: list[str]
    searches: list[SearchOutcome]
    adapted: list[AdaptationOutcome]
    costs: list[CostLine]
    failed: list[FailedRun]
    warnings: list[tuple[str, int]]
    recipes: list[str]
    commands: list[str]
    study_text: str
    machine_notes: list[str]

    @property
    def cost_table(self) -> tuple[list[str], list[list[object]]]:
        """Columns and rows of the table of costs."""
        columns = ["method", "trainable", "steps", "training, s", "processor, s", "memory, MB"]
        rows: list[list[object]] = [
            [
                line.name,
                range_text(line.trainable),
                f"{line.steps:,.0f}",
                f"{line.seconds:,.1f}",
                f"{line.processor_seconds:,.1f}",
                "-" if line.megabytes is None else f"{line.megabytes:,.0f}",
            ]
            for line in self.costs
        ]
        return columns, rows

    @property
    def health_table(self) -> tuple[list[str], list[list[object]]]:
        """Columns and rows of what methods report about themselves; no rows if none does."""
        names = list(dict.fromkeys(name for line in self.costs for name in line.health))
        rows: list[list[object]] = [
            [line.name, *(f"{line.health[name]:.4g}" if name in line.health else "-" for name in names)]
            for line in self.costs
            if line.health
        ]
        return ["method", *(name.replace("_", " ") for name in names)], rows

    @property
    def cost_note(self) -> str:
        """How to read the table of costs."""
        return (
            "Means over runs. Training: the clock, without scoring. Processor: the whole run with loading and scoring. "
            "Memory: the peak of the process."
        )


def make_content(record: StudyRecord, tables: list[ResultTable], with_paper: bool) -> ReportContent:
    """Gather the parts of a report.

    Example:
        make_content(record, make_tables(record), with_paper=False).sentences
    """
    study = record.study
    pairs = compare_lines(record)
    main = main_pairs(record, pairs)
    backbones = [record.label("backbone", backbone.name) for backbone in study.backbones]
    facts = [
        f"backbone{'s' * (len(backbones) > 1)}: {', '.join(backbones)}",
        counted(len(study.tasks), "task"),
        counted(len(study.methods), "method"),
        *([counted(len(study.regimes), "regime")] if len(study.regimes) > 1 else []),
        *(f"{key}: {', '.join(map(str, values))}" for key, values in study.vary.items()),
        counted(study.seeds, "seed"),
        f"{study.recipe} recipe",
        f"{study.scale} scale",
    ]
    papers = [paper_table(record, table) for table in tables] if with_paper else []
    return ReportContent(
        name=study.name,
        title=study.heading,
        description=record.plain(study.description),
        facts=facts,
        scale_note=scale_note(record),
        count_notes=count_notes(record),
        tables=[display_table(table) for table in tables],
        paper_tables=[table for table in papers if table is not None],
        pairs=pairs,
        sentences=[pair.sentence for pair in main],
        difference_notes=[
            *difference_notes(main),
            *([f"{len(main)} of {len(pairs)} pairs; all are in differences.csv."] if len(main) < len(pairs) else []),
        ],
        searches=search_outcomes(record),
        adapted=adapted_backbones(record),
        costs=cost_lines(record),
        failed=failed_runs(record),
        warnings=warning_counts(record),
        recipes=recipe_lines(record),
        commands=repeat_commands(record, with_paper),
        study_text=study_text(record),
        machine_notes=machine_notes(record),
    )
