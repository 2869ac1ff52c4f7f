"""Several cues side by side: scores, validation curves in one chart (Bhardwaj et al. 2022, figure 5), similarity."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from softcue.backbones import Backbone
from softcue.cue.cue import load
from softcue.cue.cue_file import CueFile, check_each_once, read_cue_file
from softcue.cue.score_table import baseline_notes, few_rows_notes
from softcue.cue.training_curve import TrainingCurve, read_training_curve
from softcue.errors import CueError, SoftcueError
from softcue.evaluation import baseline_lines, format_score, main_of_scores
from softcue.inspection.similarity import PlacedPrompt, PromptSimilarity, placed_prompt, prompt_similarity
from softcue.tasks import Task, examples_from
from softcue.tasks.columns import rename_columns


@dataclass(frozen=True)
class ComparedCue:
    """What the files of a cue say, without loading its parameters."""

    name: str
    path: Path
    cue_file: CueFile
    curve: TrainingCurve

    @property
    def recipe(self) -> str:
        """The recipe it was trained with."""
        return "-" if self.cue_file.recipe is None else self.cue_file.recipe.name

    @property
    def legend(self) -> str:
        """Its name with method, metric and rows, for a chart of validation scores."""
        rows = self.curve.num_validation_rows
        on_rows = "" if rows is None else f" on {rows:,} rows"
        return f"{self.name}: {self.cue_file.method['name']}, {self.curve.metric}{on_rows}"

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        cue_file = self.cue_file
        return {
            "name": self.name,
            "cue": str(self.path),
            "task": cue_file.task.name,
            "method": cue_file.method["name"],
            "recipe": None if cue_file.recipe is None else cue_file.recipe.model_dump(),
            "backbone": cue_file.backbone.name,
            "counts": cue_file.counts,
            "scores": cue_file.scores,
            "rows": {split: cue_file.num_rows(split) for split in cue_file.scores},
            "baselines": cue_file.baselines,
            "curve": self.curve.as_dict(),
        }


@dataclass(frozen=True)
class CueComparison:
    """Several cues, and how similar their prompts are."""

    cues: list[ComparedCue]
    similarity: PromptSimilarity

    @property
    def validation_curves(self) -> dict[str, list[tuple[int, float]]]:
        """Step and validation score, by the name in a legend; cues without a curve are left out."""
        return {cue.legend: cue.curve.scores for cue in self.cues if cue.curve.scores}

    @property
    def mean_curves(self) -> dict[str, list[tuple[int, float]]]:
        """The mean validation score of the tasks that were trained together, by the name of their run in a legend."""
        runs: dict[str, list[ComparedCue]] = {}
        for cue in self.cues:
            if "together_with" in cue.cue_file.training and cue.curve.scores:
                runs.setdefault(str(cue.cue_file.training.get("run")), []).append(cue)
        curves = {}
        for members in runs.values():
            if len(members) < 2:
                continue
            by_step = [dict(cue.curve.scores) for cue in members]
            steps = sorted(set.intersection(*(set(scores) for scores in by_step)))
            name = f"{members[0].path.parent.name}: {members[0].cue_file.method['name']}, mean of {len(members)} tasks"
            curves[name] = [(step, fmean(scores[step] for scores in by_step)) for step in steps]
        return curves

    def as_dict(self) -> dict[str, Any]:
        """Everything, for JSON."""
        return {
            "cues": [cue.as_dict() for cue in self.cues],
            "mean_curves": self.mean_curves,
            "similarity": asdict(self.similarity),
        }

    @property
    def notes(self) -> list[str]:
        """What a reader of the scores should know."""
        files = [cue.cue_file for cue in self.cues]
        few = few_rows_notes(cue_file.num_rows(split) for cue_file in files for split in cue_file.scores)
        return [*few, *dict.fromkeys(note for cue_file in files for note in baseline_notes(cue_file))]

    def score_rows(self) -> tuple[list[str], list[list[str]]]:
        """Columns and rows of a table of scores: of each split, the task's main metric with its number of rows.

        The last rows are the baselines of each task.
        """
        splits = list(dict.fromkeys(split for cue in self.cues for split in cue.cue_file.scores))
        columns = [
            "cue",
            "task",
            "method",
            "recipe",
            "backbone",
            "trainable",
            "metric",
            *(f"{split} (rows)" for split in splits),
        ]
        rows = []
        for cue in self.cues:
            cue_file = cue.cue_file
            scores = [_main_score(cue_file, split, cue_file.scores) for split in splits]
            trainable = f"{cue_file.counts.get('gradient', 0) + cue_file.counts.get('head', 0):,}"
            facts = [cue.name, cue_file.task.name, str(cue_file.method["name"]), cue.recipe, cue_file.backbone.name]
            rows.append([*facts, trainable, cue_file.task.main_metric, *scores])
        return columns, [*rows, *self._baseline_rows(splits)]

    def _baseline_rows(self, splits: Sequence[str]) -> list[list[str]]:
        """Lines of the table of scores: for each task the baselines that its cues record, equal ones once."""
        rows = []
        for task in dict.fromkeys(cue.cue_file.task.name for cue in self.cues):
            cues = {cue.name: cue.cue_file for cue in self.cues if cue.cue_file.task.name == task}
            lines = baseline_lines({name: _main_baselines(cue_file, splits) for name, cue_file in cues.items()})
            for line in lines:
                first = cues[line.predictors[0]]
                backbones = {cues[name].backbone.name for name in line.predictors}
                backbone = backbones.pop() if line.key == "zero_shot" and len(backbones) == 1 else "-"
                rows.append([line.name, task, "-", "-", backbone, "-", first.task.main_metric, *line.scores])
        return rows


def compare_cues(
    paths: Sequence[Path],
    data: Path | None = None,
    columns: Mapping[str, str] | None = None,
    backbone: str | None = None,
    skip_bad_rows: bool = False,
    allow_pickle: bool = False,
) -> CueComparison:
    """Read several cues and compare their prompts. Only cues that share a backbone with another one are loaded.

    `data` are rows for prompts that read the input; `columns` is {name in the file: name the cue reads}.

    Example:
        compare_cues([Path("cues/tickets"), Path("cues/urgency")]).similarity.best_match
    """
    check_each_once(paths)
    has_unique_names = len({path.name for path in paths}) == len(paths)
    cues = []
    for path in paths:
        cue_file = read_cue_file(path)
        name = path.name if has_unique_names and path.name else str(path)
        cues.append(ComparedCue(name, path, cue_file, read_training_curve(path, cue_file)))
    if data is not None:  # a column that no cue reads is an error, whatever the cues' methods are
        rename_columns([cue.cue_file.task for cue in cues], columns or {}, needs_target=False)
    fingerprints = [tuple(sorted(cue.cue_file.backbone.fingerprint.items())) for cue in cues]
    backbones: dict[tuple[tuple[str, str], ...], Backbone] = {}
    prompts: dict[str, PlacedPrompt | str] = {}
    uses_data = False
    for cue, fingerprint in zip(cues, fingerprints, strict=True):
        if fingerprints.count(fingerprint) < 2:
            prompts[cue.name] = f"no other cue is on its backbone ({cue.cue_file.backbone.name})"
            continue
        try:
            loaded = load(cue.path, backbones.get(fingerprint) or backbone, allow_pickle=allow_pickle)
        except SoftcueError as error:
            prompts[cue.name] = str(error)
            continue
        backbones[fingerprint] = loaded.backbone
        examples = None
        if data is not None and loaded.model.method.reads_input:
            row_task = _rename_some(loaded.task, columns or {})
            examples = examples_from(data, row_task, needs_target=False, skip_bad_rows=skip_bad_rows)
            uses_data = True
        try:
            prompts[cue.name] = placed_prompt(loaded, examples)
        except CueError as error:
            prompts[cue.name] = error.fix
    similarity = prompt_similarity(prompts)
    if data is not None and not uses_data:
        note = f"{data} is not used: no prompt that is compared reads the input"
        similarity = replace(similarity, notes=[*similarity.notes, note])
    return CueComparison(cues, similarity)


def _rename_some(task: Task, columns: Mapping[str, str]) -> Task:
    """The task as it reads a file with other column names, of which some may be for other tasks."""
    read_names = {*task.text, task.label}
    renamed = {name: read_name for name, read_name in columns.items() if read_name in read_names}
    return rename_columns([task], renamed, needs_target=False)[0]


def _main_baselines(cue_file: CueFile, splits: Sequence[str]) -> dict[str, list[str]]:
    """The main score of each baseline for each split, as text."""
    names = dict.fromkeys(name for split in splits for name in cue_file.baselines.get(split, {}))
    by_name = {
        name: {split: baselines[name] for split, baselines in cue_file.baselines.items() if name in baselines}
        for name in names
    }
    return {name: [_main_score(cue_file, split, scores) for split in splits] for name, scores in by_name.items()}


def _main_score(cue_file: CueFile, split: str, scores: Mapping[str, Mapping[str, float]]) -> str:
    """The main score of a split with its number of rows; of several main metrics, their mean."""
    main = main_of_scores(cue_file.task, scores.get(split, {}))
    if main is None:
        return "-"
    score = format_score(cue_file.task.main_metrics[0], main)
    num_rows = cue_file.num_rows(split)
    return f"{score}\N{NO-BREAK SPACE}({'unknown' if num_rows is None else f'{num_rows:,}'})"
