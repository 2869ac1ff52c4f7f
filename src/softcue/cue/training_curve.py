"""How training went: loss and validation score by step, from the files of a run."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from softcue.cue.cue_file import CueFile
from softcue.drawing import line_chart, side_by_side, sparkline
from softcue.drawing.charts import BLUE, ORANGE
from softcue.drawing.sparkline import BARS
from softcue.files import METADATA_LIMIT, read_within


@dataclass(frozen=True)
class TrainingCurve:
    """Loss and validation score by step. Either may be empty."""

    metric: str  # of the validation score
    losses: list[tuple[int, float]]  # step, loss of its batch
    scores: list[tuple[int, float]]  # step, score of all validation rows
    best: tuple[int, float] | None = None  # the step whose parameters the cue holds, and its score
    num_validation_rows: int | None = None

    @property
    def score_title(self) -> str:
        """What the scores are, with their number of rows."""
        rows = "" if self.num_validation_rows is None else f" on {self.num_validation_rows:,} rows"
        return f"validation {self.metric}{rows}"

    @property
    def is_empty(self) -> bool:
        """Whether nothing was recorded."""
        return not self.losses and not self.scores

    def as_dict(self) -> dict[str, Any]:
        """All points, for JSON."""
        return asdict(self)

    def as_html(self) -> str:
        """Two charts as inline SVG, or a sentence if nothing was recorded."""
        loss = line_chart("training loss", self.losses, "step", ORANGE)
        score = line_chart(self.score_title, self.scores, "step", BLUE, self.best, min_span=10.0)
        return side_by_side([loss, score]) or f"<p>{NO_CURVE}</p>"

    def as_text(self, width: int = 40, bars: str = BARS) -> list[str]:
        """A line per curve for a terminal; `bars` are the characters, low to high.

        Example:
            >>> scores = [(1, 50.0), (2, 80.0), (3, 75.0)]
            >>> TrainingCurve("accuracy", [], scores, best=(2, 80.0), num_validation_rows=20).as_text()
            ['validation accuracy on 20 rows  50 -> 75  ▁█▇  best 80 at step 2']
        """
        lines = []
        names = {"training loss": self.losses, self.score_title: self.scores}
        names = {name: points for name, points in names.items() if points}
        for name, points in names.items():
            values = [value for _, value in points]
            padding = max(map(len, names))
            line = f"{name:{padding}}  {values[0]:.4g} -> {values[-1]:.4g}  {sparkline(values, width, bars)}"
            if points is self.scores and self.best is not None:
                line += f"  best {self.best[1]:.4g} at step {self.best[0]}"
            lines.append(line)
        return lines or [NO_CURVE]


NO_CURVE = "no training curve: neither metrics.jsonl nor the history in metrics.json is in the folder of the cue"


def read_training_curve(folder: Path | None, cue_file: CueFile) -> TrainingCurve:
    """Read the curve of a cue's run. Files that are missing or damaged leave it empty; nothing is an error.

    Losses come from metrics.jsonl, which a copied cue may lack. Validation scores come from metrics.json, else from
    metrics.jsonl.

    Example:
        read_training_curve(Path("cues/tickets"), cue.cue_file).losses[-1]
    """
    metric = cue_file.task.main_metric
    if folder is None:
        return TrainingCurve(metric, [], [])
    is_joint = "together_with" in cue_file.training
    lines = read_json_lines(step_log(folder, cue_file))
    losses = _points([line for line in lines if line.get("kind") == "step"], ("loss",))
    history = _read_history(folder / "metrics.json")
    if not history:
        history = [line for line in lines if line.get("kind") == "evaluation"]
    names = cue_file.task.main_metrics
    if is_joint:
        names = tuple(f"{cue_file.task.name}/{name}" for name in names)
    scores = _points(history, names)
    best_step = cue_file.training.get("best_step")
    best = next(((step, score) for step, score in scores if step == best_step), None)
    recorded = cue_file.scores.get("validation", {})
    if best is not None and all(name in recorded for name in cue_file.task.main_metrics):
        # A head that was solved again at the end scores higher than its step did.
        best = (best[0], fmean(recorded[name] for name in cue_file.task.main_metrics))
    return TrainingCurve(metric, losses, scores, best, cue_file.num_rows("validation"))


def step_log(folder: Path, cue_file: CueFile) -> Path:
    """The metrics.jsonl of a cue's run; a run of several tasks has it in the folder above its cues.

    Example:
        step_log(Path("cues/tickets"), cue.cue_file)     # cues/tickets/metrics.jsonl
    """
    return (folder.parent if "together_with" in cue_file.training else folder) / "metrics.jsonl"


def _points(entries: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[tuple[int, float]]:
    """Step and value of each entry; of several values, their mean."""
    points = []
    for entry in entries:
        numbers = [entry.get(name) for name in ("step", *names)]
        if all(isinstance(number, (int, float)) and math.isfinite(number) for number in numbers):
            points.append((int(entry["step"]), fmean(entry[name] for name in names)))
    return points


def read_json_lines(path: Path) -> list[dict[str, Any]]:
    """The objects of a file with one per line; lines that are damaged, and missing files, are passed over.

    Example:
        read_json_lines(Path("cues/tickets/metrics.jsonl"))[0]["loss"]
    """
    try:
        texts = read_within(path, METADATA_LIMIT).decode().splitlines()
    except (OSError, ValueError):
        return []
    return [entry for text in texts if isinstance(entry := _parse(text), dict)]


def _read_history(path: Path) -> list[dict[str, Any]]:
    try:
        values = _parse(read_within(path, METADATA_LIMIT).decode())
    except (OSError, ValueError):
        return []
    history = values.get("history") if isinstance(values, dict) else None
    return [entry for entry in history if isinstance(entry, dict)] if isinstance(history, list) else []


def _parse(text: str) -> Any:
    """The JSON value of a text; None if it is damaged, as the last line of a killed run may be."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None
