"""The report of a study: what cells hold, what is marked and said, and that the same results give the same again."""

from __future__ import annotations

import csv
import io
import json
import re
from pathlib import Path
from statistics import fmean, stdev
from typing import Any
from xml.etree import ElementTree

import pytest
from study_results import made_up_score, write_study

from softcue.errors import RunError
from softcue.studies.report import StudyReport, make_report
from softcue.studies.report.latex import escape_latex
from softcue.studies.runs import StudyRun
from softcue.studies.store import StudyFolder
from softcue.studies.study import list_studies, read_study

METHODS = ["prompt-tuning", "vip", "linear-probe"]
TWO_TASKS: dict[str, Any] = {"tasks": ["tickets", "urgency"], "methods": METHODS, "seeds": 3}
MAIN = {"prompt-tuning": 70.0, "vip": 75.0, "linear-probe": 60.0}


def by_method(run: StudyRun, task: str) -> float:
    """Whole numbers: the method's score, plus 4 on urgency, plus the seed."""
    return MAIN[run.axes["method"]] + (4 if task == "urgency" else 0) + run.seed


def rows_of(text: str) -> list[dict[str, str]]:
    return list(csv.DictReader(io.StringIO(text)))


def cells_of(report: StudyReport) -> dict[tuple[str, str, str], dict[str, str]]:
    return {(row["table"], row["row"], row["column"]): row for row in rows_of(report.files["table.csv"])}


def test_a_cell_is_the_mean_and_the_sample_deviation_over_seeds(tmp_path: Path) -> None:
    report = make_report(write_study(tmp_path, TWO_TASKS))
    scores = rows_of(report.files["scores.csv"])
    assert len(scores) == 18
    [table] = report.tables
    for line in METHODS:
        for task in ("tickets", "urgency"):
            values = [float(row["score"]) for row in scores if (row["method"], row["task"]) == (line, task)]
            cell = table.cell(line, task)
            assert (cell.mean, cell.spread) == (pytest.approx(fmean(values)), pytest.approx(stdev(values)))
            assert (cell.num_runs, cell.num_planned) == (3, 3)
    averages = [
        fmean(float(row["score"]) for row in scores if (row["method"], row["seed"]) == ("vip", seed)) for seed in "012"
    ]
    average = table.cell("vip", "mean")
    assert (average.mean, average.spread) == (pytest.approx(fmean(averages)), pytest.approx(stdev(averages)))
    assert {"accuracy", "macro_f1", "trainable", "steps", "seconds", "processor_seconds"} <= scores[0].keys()


def test_the_best_and_the_second_of_each_column_are_marked_in_every_format(tmp_path: Path) -> None:
    report = make_report(write_study(tmp_path, TWO_TASKS, by_method))
    marks = {(row, column): cell["mark"] for (_, row, column), cell in cells_of(report).items()}
    for column in ("tickets", "urgency", "mean"):
        assert [marks[method, column] for method in METHODS] == ["second", "best", ""]
    assert "**76.0 ± 1.0**" in report.files["report.md"] and "_71.0 ± 1.0_" in report.files["report.md"]
    assert r"\textbf{76.0} {\scriptsize $\pm$ 1.0}" in report.files["report.tex"]
    assert r"\underline{71.0}" in report.files["report.tex"]
    assert '<b title="best">76.0</b>' in report.files["index.html"]
    assert '<u title="second">71.0</u>' in report.files["index.html"]


def test_equal_scores_share_a_mark_and_a_single_row_has_none(tmp_path: Path) -> None:
    tied = make_report(write_study(tmp_path / "tied", TWO_TASKS, lambda run, task: 80.0 - (run.method == "vip")))
    assert [tied.tables[0].cell(method, "tickets").mark for method in METHODS] == ["best", "second", "best"]
    single = make_report(write_study(tmp_path / "single", {**TWO_TASKS, "methods": ["vip"]}))
    assert not any(cell.mark for cell in single.tables[0].lines[0].cells)
    assert "Bold" not in single.files["report.md"]


def test_cells_with_missing_runs_say_so_and_are_not_marked(tmp_path: Path) -> None:
    def is_missing(run: StudyRun) -> bool:
        place = (run.method, run.axes["trained_on"])
        return (place == ("vip", "tickets") and run.seed == 2) or place == ("linear-probe", "urgency")

    report = make_report(write_study(tmp_path, TWO_TASKS, by_method, skip=is_missing))
    [table] = report.tables
    assert table.cell("vip", "tickets").mark == "" and table.cell("prompt-tuning", "tickets").mark == "best"
    assert "75.5 ± 0.7 (2 of 3 runs)" in report.files["report.md"]
    line = next(line for line in report.files["report.md"].splitlines() if line.startswith("| linear-probe"))
    assert line.split(" | ")[2:] == ["_61.0 ± 1.0_", "-", "- |"]  # no score on urgency, no average
    assert "14 of 18 runs are finished, 0 failed, 4 missing." in report.files["report.md"]


def test_failed_runs_are_listed_with_their_reason_and_without_folders_of_this_machine(tmp_path: Path) -> None:
    reason = "DataError: data: got '/home/me/data/rte'; see /opt/python/lib/x.py"
    failed = {"minilm/tickets/vip/seed-1": reason}
    report = make_report(write_study(tmp_path, {**TWO_TASKS, "data": "/home/me/data"}, failed=failed))
    for name in ("index.html", "report.md"):
        assert "seed-1" in report.files[name] and "DATA/rte" in report.files[name]
    for text in report.files.values():
        assert "/home" not in text and "/opt" not in text and str(tmp_path) not in text
    assert "17 of 18 runs are finished, 1 failed, 0 missing." in report.files["report.md"]
    assert "--data DATA" in report.files["report.md"]


def test_one_seed_has_no_spread_and_allows_no_conclusion(tmp_path: Path) -> None:
    report = make_report(write_study(tmp_path, {**TWO_TASKS, "seeds": 1}, by_method))
    assert "±" not in report.files["report.md"].split("## Differences")[0]
    assert "One run of each cell" in report.files["report.md"]
    assert all("too few to conclude anything" in sentence for sentence in report.content.sentences)
    assert {row["conclusion"] for row in rows_of(report.files["differences.csv"])} == {"too few runs"}


def test_differences_are_paired_by_task_and_seed(tmp_path: Path) -> None:
    def score(run: StudyRun, task: str) -> float:  # seeds differ much, methods differ little but always
        return (
            50.0 + 10 * run.seed + {"tickets": 0, "urgency": 7}[task] + (run.method == "vip") * (1.0 + 0.1 * run.seed)
        )

    report = make_report(write_study(tmp_path, {**TWO_TASKS, "methods": METHODS[:2]}, score))
    [row] = rows_of(report.files["differences.csv"])
    assert float(row["difference"]) == pytest.approx(1.1)
    assert (row["tasks_won"], row["tasks_lost"], row["runs_won"], row["runs_lost"]) == ("2", "0", "6", "0")
    assert (float(row["task_p"]), float(row["run_p"])) == (0.5, 0.03125)  # two coins alike, six coins alike
    assert 1.0 <= float(row["low"]) <= 1.1 <= float(row["high"]) <= 1.2
    [sentence] = report.content.sentences
    assert sentence.startswith("vip beats prompt-tuning on 2 of 2 tasks, +1.1 points, 95 % interval 1.0 to 1.2 (sign")


def test_of_many_pairs_those_with_the_first_and_the_best_two_are_spelled_out(tmp_path: Path) -> None:
    methods = ["prompt-tuning", "vip", "linear-probe", "adapter", "compacter"]
    levels = dict(zip(methods, (70.0, 75.0, 60.0, 74.0, 50.0), strict=True))
    study = {**TWO_TASKS, "methods": methods}
    report = make_report(write_study(tmp_path, study, lambda run, task: levels[run.method] + run.seed))
    assert len(report.content.pairs) == len(rows_of(report.files["differences.csv"])) == 10
    assert len(report.content.sentences) == 5
    assert report.content.sentences[0].startswith("vip beats adapter")
    assert all("prompt-tuning" in sentence for sentence in report.content.sentences[1:])
    assert "5 of 10 pairs" in report.files["report.md"]


def test_blocks_are_tables_of_their_own_and_k_has_curves(tmp_path: Path) -> None:
    regimes = [{"name": str(size), "few_shot": size} for size in (100, 500, 1000)]
    study = {**TWO_TASKS, "regimes": regimes, "layout": {"blocks": ["regime"]}}
    report = make_report(write_study(tmp_path, study))
    assert [table.title for table in report.tables] == ["K = 100", "K = 500", "K = 1,000"]
    assert report.tables[0].cell("vip", "tickets").mean != report.tables[1].cell("vip", "tickets").mean
    assert "Score and number of training rows" in [group.heading for group in report.charts]
    assert len(report.content.pairs) == 3  # methods; more rows are not compared with fewer


def test_an_axis_that_the_layout_does_not_name_joins_the_rows(tmp_path: Path) -> None:
    regimes = [{"name": "100", "few_shot": 100}, {"name": "500", "few_shot": 500}]
    study = {**TWO_TASKS, "methods": METHODS[:2], "regimes": regimes, "backbones": ["minilm", "/models/bert-base"]}
    [table] = make_report(write_study(tmp_path, study, lambda run, task: by_method(run, task))).tables
    names = [line.name for line in table.lines]
    assert names[0] == "prompt-tuning / minilm / K = 100" and len(names) == 8
    assert "vip / bert-base / K = 500" in names
    for line in table.lines:  # compared with rows of the same backbone and K
        assert line.cells[0].mark == ("best" if line.name.startswith("vip") else "second")
    assert set(table.baselines) == {"majority class", "zero-shot, minilm", "zero-shot, bert-base"}


def test_tasks_in_rows_turn_the_table(tmp_path: Path) -> None:
    layout = {"rows": ["task"], "columns": ["method"]}
    report = make_report(write_study(tmp_path, {**TWO_TASKS, "layout": layout}, by_method))
    [table] = report.content.tables
    assert [column.text for column in table.columns] == [*METHODS, "majority class", "zero-shot"]
    assert [name for name, _ in table.rows] == ["tickets (126 rows)", "urgency (126 rows)", "mean"]
    assert [cell.mark for cell in table.rows[0][1]] == ["second", "best", "", "", ""]


def test_a_varied_number_is_an_axis_and_a_varied_name_has_points(tmp_path: Path) -> None:
    numbers = make_report(
        write_study(tmp_path / "n", {**TWO_TASKS, "methods": METHODS[:2], "vary": {"method.prompt_length": [1, 5, 20]}})
    )
    [group] = [group for group in numbers.charts if group.heading == "Score and prompt length"]
    assert group.charts[0].count("<polyline") == 2 and "<polygon" in group.charts[0]
    study = {**TWO_TASKS, "methods": ["prompt-tuning"], "vary": {"method.init": ["labels", "uniform"]}}
    names = make_report(write_study(tmp_path / "i", study))
    [group] = [group for group in names.charts if group.heading == "Score and init"]
    assert group.charts[0].count("<circle") == 2 and ">labels<" in group.charts[0] and ">uniform<" in group.charts[0]
    assert "Score and cost" not in [group.heading for group in names.charts]  # all cost the same
    assert [line.name for line in names.tables[0].lines] == [
        "prompt-tuning / init labels",
        "prompt-tuning / init uniform",
    ]
    assert [(pair.first, pair.second) for pair in names.content.pairs] == [("init labels", "init uniform")]


def test_out_of_domain_scores_have_their_columns_and_average(tmp_path: Path) -> None:
    tasks = [{"name": "tickets", "score_on": ["subj", "rte"]}, "urgency"]
    report = make_report(write_study(tmp_path / "plain", {**TWO_TASKS, "tasks": tasks}))
    [table] = report.tables
    names = [column.name for column in table.columns]
    assert names == ["tickets", "urgency", "subj", "rte", "mean", "mean out of domain"]
    cells = [table.cell("vip", name).mean or 0.0 for name in ("subj", "rte")]
    assert table.cell("vip", "mean out of domain").mean == pytest.approx(fmean(cells))
    assert "Out of domain: subj (trained on tickets), rte (trained on tickets)." in table.notes
    tasks = [{"name": "tickets", "score_on": ["urgency"]}, {"name": "urgency", "score_on": ["tickets"]}]
    [both] = make_report(write_study(tmp_path / "both", {**TWO_TASKS, "tasks": tasks})).tables
    assert [column.name for column in both.columns][:4] == [
        "tickets",
        "urgency",
        "urgency → tickets",
        "tickets → urgency",
    ]


def test_joint_training_is_compared_with_separate_training(tmp_path: Path) -> None:
    def score(run: StudyRun, task: str) -> float:
        return by_method(run, task) + (2.0 if run.axes["regime"] == "joint" else 0.0)

    study = {**TWO_TASKS, "methods": METHODS[:2], "regimes": ["full", {"name": "joint", "joint": True}]}
    report = make_report(write_study(tmp_path, study, score))
    [table] = report.tables
    assert [line.name for line in table.lines][:2] == ["prompt-tuning / full", "prompt-tuning / joint"]
    assert table.cell("vip / joint", "tickets").mark == "best" and table.cell("vip / full", "tickets").mark == "second"
    assert any(
        sentence.startswith("joint beats full on 2 of 2 tasks, +2.0 points") for sentence in report.content.sentences
    )


def test_ensembles_have_rows_that_are_compared_with_each_other(tmp_path: Path) -> None:
    study = {**TWO_TASKS, "methods": METHODS[:2], "ensembles": ["vote"], "seeds": 5}
    report = make_report(write_study(tmp_path, study, lambda run, task: 80.0 - len(run.method) + run.seed))
    [table] = report.tables
    names = [line.name for line in table.lines]
    assert names == ["prompt-tuning", "prompt-tuning, vote of 5", "vip", "vip, vote of 5"]
    assert [table.cell(name, "tickets").mark for name in names] == ["second", "second", "best", "best"]
    assert table.cell("vip, vote of 5", "tickets").is_complete
    pairs = {(pair.first, pair.second): pair for pair in report.content.pairs}
    assert set(pairs) == {
        ("prompt-tuning", "vip"),
        ("prompt-tuning", "prompt-tuning, vote of 5"),
        ("vip", "vip, vote of 5"),
    }
    joined = pairs["vip", "vip, vote of 5"]  # the ensemble scores 77 here, its members 77 to 81
    assert joined.difference.value == pytest.approx(-2.0) and (joined.num_runs, joined.run_wins) == (10, (0, 8))
    assert "An ensemble is compared with each of its members." in report.content.difference_notes


def test_a_search_names_what_it_chose_and_its_runs_are_paired_in_order(tmp_path: Path) -> None:
    search = {"space": {"training.learning_rate": [0.1, 0.3]}}
    study = {**TWO_TASKS, "methods": ["linear-probe", {"name": "prompt-tuning", "search": search}]}

    def score(run: StudyRun, task: str) -> float:
        return 70.0 + 10 * (run.settings.get("training.learning_rate") == 0.3) + run.seed

    report = make_report(write_study(tmp_path / "done", study, score))
    assert [(entry.name, entry.chosen, entry.score) for entry in report.content.searches] == [
        ("tickets, prompt-tuning", "learning_rate=0.3", 80.0),
        ("urgency, prompt-tuning", "learning_rate=0.3", 80.0),
    ]
    assert report.content.searches[0].trials == [("learning_rate=0.3", 80.0), ("learning_rate=0.1", 70.0)]
    assert len(rows_of(report.files["scores.csv"])) == 12  # trials have no test scores
    [pair] = report.content.pairs
    assert (pair.num_runs, pair.num_seeds) == (6, 3) and pair.difference.value == pytest.approx(11.0)
    early = make_report(write_study(tmp_path / "early", study, score, skip=lambda run: "=0.3" in run.trial))
    assert early.content.searches == []
    assert early.tables[0].cell("prompt-tuning", "tickets").num_planned == 3
    assert early.tables[0].cell("prompt-tuning", "tickets").text == "-"


def test_few_rows_samples_are_never_paired_across_seeds(tmp_path: Path) -> None:
    search = {"space": {"training.learning_rate": [0.1, 0.3]}}
    methods = ["linear-probe", {"name": "prompt-tuning", "search": search}]
    study = {**TWO_TASKS, "methods": methods, "regimes": [{"name": "100", "few_shot": 100}]}
    [pair] = make_report(write_study(tmp_path, study)).content.pairs
    assert pair.num_seeds == 2 and pair.conclusion == "too few runs"


def test_adapted_backbones_are_listed_and_compared(tmp_path: Path) -> None:
    backbones = ["t5", {"name": "t5-adapted", "backbone": "t5", "adapt": {"steps": 20}}]
    report = make_report(write_study(tmp_path, {**TWO_TASKS, "backbones": backbones, "text": "/home/me/text"}))
    [adapted] = report.content.adapted
    assert (adapted.name, adapted.perplexity) == ("t5-adapted", 9.5)
    assert ("t5", "t5-adapted") in [(pair.first, pair.second) for pair in report.content.pairs]
    assert "Adaptation of backbones" in [group.heading for group in report.charts]
    assert "--text TEXT" in report.files["report.md"] and "/home/me" not in "".join(report.files.values())


REFERENCE = {
    "source": "Lester et al. 2021, table 9, T5",
    "scores": {"vip": {"tickets": "99.9", "mean": 88}, "model tuning": {"tickets": 97.1}},
}


def test_the_papers_numbers_stand_beside_ours_only_when_asked(tmp_path: Path) -> None:
    folder = write_study(tmp_path, {**TWO_TASKS, "reference": REFERENCE}, by_method)
    without, asked = make_report(folder), make_report(folder, with_paper=True)
    assert without.content.paper_tables == [] and "99.9" not in without.files["report.tex"]
    assert "paper's numbers" not in without.files["report.md"]
    assert "99.9 (76.0)" in asked.files["report.md"] and "Lester et al. 2021" in asked.files["report.md"]
    assert "| model tuning | 97.1 |" in asked.files["report.md"]
    assert asked.files["table.csv"] == without.files["table.csv"]  # they take no part in marks


def test_a_block_takes_the_papers_numbers_of_that_block(tmp_path: Path) -> None:
    blocks = {"100": {"vip": {"tickets": 55.5}}, "500": {"vip": {"tickets": 66.6}}}
    regimes = [{"name": "100", "few_shot": 100}, {"name": "500", "few_shot": 500}]
    study = {**TWO_TASKS, "regimes": regimes, "layout": {"blocks": ["regime"]}}
    reference = {"source": "A paper", "scores": {}, "blocks": blocks}
    report = make_report(write_study(tmp_path, {**study, "reference": reference}), with_paper=True)
    assert [table.rows[0][1][0].text for table in report.content.paper_tables] == ["55.5", "66.6"]


def test_a_small_version_says_what_was_cut(tmp_path: Path) -> None:
    small = {"seeds": 2, "settings": {"training.epochs": 3}}
    report = make_report(write_study(tmp_path, {**TWO_TASKS, "name": "quick", "small": small}, scale="small"))
    note = (
        "This is a small version: seeds: 2 (full: 3); training.epochs 3 (the full study has the values of the recipe)."
    )
    for name in ("index.html", "report.md", "report.tex"):
        assert note in report.files[name].replace("\\", "")
    assert make_report(write_study(tmp_path / "full", TWO_TASKS)).content.scale_note == ""


def test_the_same_results_give_the_same_bytes_whatever_they_cost(tmp_path: Path) -> None:
    first = make_report(write_study(tmp_path / "a", TWO_TASKS))
    changes = {"seconds": 99.0, "run_seconds": 98.0, "processor_seconds": 97.0, "peak_megabytes": 1.0}
    slower = make_report(write_study(tmp_path / "b", TWO_TASKS, changes=changes))
    assert first.files == make_report(StudyFolder(tmp_path / "a")).files
    for name in ("table.csv", "differences.csv", "report.tex"):
        assert first.files[name] == slower.files[name]
    assert first.files["scores.csv"] != slower.files["scores.csv"]


def test_runs_of_different_machines_are_pointed_out(tmp_path: Path) -> None:
    folder = write_study(tmp_path, TWO_TASKS)
    path = folder.runs / "minilm/tickets/vip/seed-0/result.json"
    values = json.loads(path.read_text())
    changed = {"processor": "Faster CPU", "versions": {"torch": "2.8.0"}, "finished": "2026-11-17 10:00:00"}
    path.write_text(json.dumps({**values, **changed}))
    notes = " ".join(make_report(folder).content.machine_notes)
    assert "Faster CPU; Some CPU, 1 thread per run" in notes
    assert "2 processors (1, 17 runs)" in notes and "2 versions of packages" in notes
    assert "Finished 2026-11-17." in notes


def test_a_study_without_results_says_what_to_do(tmp_path: Path) -> None:
    folder = write_study(tmp_path / "empty", TWO_TASKS, skip=lambda run: True)
    with pytest.raises(RunError, match="run it first"):
        make_report(folder)
    failed = {"minilm/tickets/vip/seed-1": "no memory"}
    with pytest.raises(RunError, match="1 runs have failed"):
        make_report(write_study(tmp_path / "failed", TWO_TASKS, skip=lambda run: True, failed=failed))
    with pytest.raises(RunError, match="softcue study run"):
        make_report(StudyFolder(tmp_path / "nothing"))


def test_names_are_escaped_in_every_format(tmp_path: Path) -> None:
    name = "50 % of_a & {b} <c> | d"
    study = {**TWO_TASKS, "title": "a < b", "methods": [{"name": name, "method": "vip"}, "linear-probe"]}
    report = make_report(write_study(tmp_path, study))
    assert "<c>" not in report.files["index.html"] and "a &lt; b" in report.files["index.html"]
    assert r"50 % of\_a & {b} \<c\> \| d" in report.files["report.md"]
    latex = report.files["report.tex"]
    assert r"50 \% of\_a \& \{b\} \textless{}c\textgreater{} | d" in latex
    bare = re.sub(r"\\[{}%&_]", "", "\n".join(line for line in latex.splitlines() if not line.startswith("%")))
    depth = 0
    for character in bare:
        depth += {"{": 1, "}": -1}.get(character, 0)
        assert depth >= 0
    assert depth == 0 and "%" not in bare and "_" not in bare.replace("tab:made-up", "")
    rows = [line for line in bare.splitlines() if line.endswith(r"\\")]
    assert len({row.count("&") for row in rows}) == 1


def test_latex_escapes_every_special_character() -> None:
    assert escape_latex("\\~^&%$#_{}") == (r"\textbackslash{}\textasciitilde{}\textasciicircum{}\&\%\$\#\_\{\}")


def test_the_page_is_one_file_with_well_formed_charts_for_both_schemes(tmp_path: Path) -> None:
    report = make_report(write_study(tmp_path / "study", {**TWO_TASKS, "layout": {"curves": True}}))
    paths = report.save(tmp_path / "report")
    assert {path.name for path in paths} == set(report.files)
    page = (tmp_path / "report" / "index.html").read_text("utf-8")
    assert not re.search(r'(src|href)="', page) and "<script" not in page
    assert "color-scheme: light dark" in page and "width=device-width" in page
    headings = [group.heading for group in report.charts]
    assert headings == ["Score and cost", "Validation scores in training"]
    for group in report.charts:
        for chart in group.charts:
            ElementTree.fromstring(chart)
            assert "(across)" in chart and "(up)" in chart and "currentColor" in chart
    assert "softcue study run study.yaml" in page and "<details><summary>study.yaml</summary>" in page
    assert json.loads(json.dumps(report.as_dict()))["tables"][0]["columns"] == ["tickets", "urgency", "mean"]
    [(title, columns, rows)] = report.text_tables()
    assert columns[0] == "method" and len(rows) == 5 and title == ""


def test_curves_are_means_over_seeds_at_the_steps_that_all_reached(tmp_path: Path) -> None:
    folder = write_study(tmp_path, {**TWO_TASKS, "tasks": ["tickets"], "methods": ["vip"]}, made_up_score)
    for seed, curve in enumerate(
        ([[10, 50.0], [20, 60.0]], [[10, 54.0], [20, 62.0], [30, 99.0]], [[10, 58.0], [20, 64.0]])
    ):
        path = folder.runs / f"minilm/tickets/vip/seed-{seed}/result.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "curve": curve}))
    [group] = [group for group in make_report(folder).charts if group.heading.startswith("Validation")]
    assert re.findall(r"<title>vip, step[^<]*: ([\d.]+)<", group.charts[0]) == ["54", "62"]
    assert group.charts[0].count("<polygon") == 1 and not group.is_open


def test_a_recipe_that_differs_by_task_names_its_tasks(tmp_path: Path) -> None:
    folder = write_study(tmp_path, TWO_TASKS)
    for path in folder.runs.glob("minilm/urgency/vip/*/result.json"):
        path.write_text(json.dumps({**json.loads(path.read_text()), "recipe": "vip, default recipe: 5 vectors"}))
    lines = make_report(folder).content.recipes
    assert "vip, default recipe: 5 vectors (urgency)" in lines
    assert "prompt-tuning, default recipe: 20 vectors (paper 100)" in lines


def test_rows_by_training_task_show_the_chosen_tasks_and_match_the_papers_lines(tmp_path: Path) -> None:
    others = ["subj", "rte"]
    reference = {"source": "A paper, table 4", "scores": {"urgency / vip": {"rte": 40.5, "mean": 48.9}}}
    study = {
        "tasks": [{"name": "tickets", "score_on": others}, {"name": "urgency", "score_on": others}],
        "methods": METHODS[:2],
        "layout": {"rows": ["trained_on", "method"], "columns": ["task"], "tasks": others},
        "reference": reference,
    }
    report = make_report(write_study(tmp_path, study, by_method), with_paper=True)
    [table] = report.tables
    assert [line.name for line in table.lines][::3] == ["tickets / prompt-tuning", "urgency / vip"]
    assert [column.name for column in table.columns] == ["subj", "rte", "mean"]
    assert [line.cells[0].mark for line in table.lines] == ["second", "best"] * 2  # of the same training task
    [(_, cells)] = report.content.paper_tables[0].rows
    assert [(cell.text, cell.small) for cell in cells] == [("40.5", "(76.0)"), ("48.9", "(76.0)")]
    [pair] = report.content.pairs
    assert (pair.num_tasks, pair.num_runs) == (2, 12)
    assert {row["task"] for row in rows_of(report.files["scores.csv"])} == {"tickets", "urgency", *others}
    assert "Score and cost" in [group.heading for group in report.charts]


def test_methods_with_a_regime_of_their_own_are_compared_without_naming_it(tmp_path: Path) -> None:
    methods = [
        {"name": "vip", "regimes": ["alone"]},
        {"name": "vip together", "method": "vip", "regimes": ["together"]},
    ]
    study = {**TWO_TASKS, "methods": methods, "regimes": ["alone", {"name": "together", "joint": True}]}
    report = make_report(write_study(tmp_path, study))
    assert [line.name for line in report.tables[0].lines] == ["vip", "vip together"]
    assert [(pair.first, pair.second, pair.num_runs) for pair in report.content.pairs] == [("vip", "vip together", 6)]


@pytest.mark.parametrize("scale", ["full", "small"])
@pytest.mark.parametrize("name", list_studies())
def test_every_study_that_comes_with_softcue_has_a_report_with_its_papers_lines(
    name: str, scale: str, tmp_path: Path
) -> None:
    study = read_study(name, scale=scale)
    values = study.model_dump(mode="json")
    report = make_report(write_study(tmp_path, values), with_paper=True)
    for table in report.tables:
        names = [line.name for line in table.lines]
        assert len(set(names)) == len(names)
        assert all(cell.is_complete or not cell.num_planned for line in table.lines for cell in line.cells)
        assert all(cell.num_planned <= study.seeds for line in table.lines for cell in line.cells)
    if study.reference is not None:
        cells = [cell for table in report.content.paper_tables for _, row in table.rows for cell in row if cell.text]
        num_matched = sum(bool(cell.small) for cell in cells)
        names_in_paper = str(study.reference.model_dump())
        has_same_names = any(f"'{method.name}'" in names_in_paper for method in study.methods) or scale == "full"
        assert num_matched >= (0.5 * len(cells) if scale == "full" else has_same_names)
    assert report.content.sentences
    for text in report.files.values():
        assert "/tmp" not in text


def test_health_values_of_methods_are_means_over_runs(tmp_path: Path) -> None:
    folder = write_study(tmp_path, TWO_TASKS)
    for number, path in enumerate(sorted(folder.runs.rglob("result.json"))):
        result = json.loads(path.read_text())
        if result["axes"]["method"] == "vip":
            result["health"] = {"perplexity": 10.0 + 2 * (number % 2), "codes_reset": 1.0}
        path.write_text(json.dumps(result))
    columns, rows = make_report(folder).content.health_table
    assert columns == ["method", "perplexity", "codes reset"]
    assert rows == [["vip", "11", "1"]]
    assert "Health of the prompts" in make_report(folder).files["report.md"]


def test_without_health_values_there_is_no_table_of_them(tmp_path: Path) -> None:
    assert "Health of the prompts" not in make_report(write_study(tmp_path, TWO_TASKS)).files["index.html"]
