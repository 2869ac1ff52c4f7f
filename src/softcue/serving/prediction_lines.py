"""Rows of a file as lines of an output: the texts by column name, and the predictions of one or several cues."""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from types import TracebackType
from typing import Any, Self

from softcue.cue.cue import Cue
from softcue.errors import RunError
from softcue.evaluation import mean, vote, votes
from softcue.serving.engine.batcher import Limits
from softcue.serving.engine.engine import Engine
from softcue.serving.engine.requests import Ensemble, Result, ServedPrediction
from softcue.tasks import Task
from softcue.types import Example, Prediction, label_text

ROWS_AT_ONCE = 4096  # of a file, in memory
# a text column with one of these names is written as input.NAME
PREDICTION_KEYS = (
    "label",
    "labels",
    "value",
    "illegal",
    "score",
    "scores",
    "spans",
    "cue",
    "cues",
    "votes",
    "prediction",
)


class LinePredictor:
    """Predicts rows with the server's engine, whose mixed batches several cues share, and makes their lines.

    Example:
        with LinePredictor([cue], [cue.task], None, batch_size=64) as predictor:
            predictor.lines([(Example(("My invoice is wrong.",)),)])
    """

    def __init__(self, cues: Sequence[Cue], tasks: Sequence[Task], ensemble: Ensemble | None, batch_size: int) -> None:
        """`tasks` are those of the cues, with the column names of the file."""
        self._cues, self._ensemble = cues, ensemble
        self._named = {str(number): cue for number, cue in enumerate(cues)}
        self._columns = [
            tuple(f"input.{name}" if name in PREDICTION_KEYS else name for name in task.text) for task in tasks
        ]
        limits = Limits(max_in_flight=2 * ROWS_AT_ONCE, max_rows=batch_size)
        self._engine = Engine(cues[0].backbone, self._named, limits, max_characters=sys.maxsize)
        self.num_truncated = 0  # texts that were cut to the backbone's length so far

    def __enter__(self) -> Self:
        gc.freeze()  # looking through all that is loaded again and again takes a fifth longer
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._engine.close()
        gc.unfreeze()

    def lines(self, rows: Sequence[tuple[Example, ...]]) -> list[dict[str, Any]]:
        """One line for each row, which holds an example for each cue."""
        items = [(name, row[number]) for number, name in enumerate(self._named) for row in rows]
        results = [_check_result(result) for result in self._engine.predict(items)]
        self.num_truncated += sum(result.is_truncated for result in results)
        predictions = [result.prediction for result in results]
        if len(self._cues) == 1 and self._ensemble is None:
            [names] = self._columns
            return [
                {**dict(zip(names, example.texts, strict=True)), **prediction.as_dict()}
                for (example,), prediction in zip(rows, predictions, strict=True)
            ]
        return [self._line(row, predictions[number :: len(rows)]) for number, row in enumerate(rows)]

    def _line(self, row: Sequence[Example], predictions: Sequence[Prediction]) -> dict[str, Any]:
        """A row's texts by column name, and its predictions. All cues read columns of the same row."""
        line: dict[str, Any] = {}
        for names, example in zip(self._columns, row, strict=True):
            line.update(zip(names, example.texts, strict=True))
        if self._ensemble is not None:
            joined = (vote if self._ensemble == "vote" else mean)(predictions)
            counts = {label_text(label): count for label, count in votes(predictions).items()}
            return line | joined.as_dict() | ({"votes": counts} if counts else {})
        by_cue = {cue.name: prediction.as_dict() for cue, prediction in zip(self._cues, predictions, strict=True)}
        return line | {"cues": by_cue}


def _check_result(result: Result) -> ServedPrediction:
    """The prediction of the engine, or its error raised."""
    if isinstance(result, ServedPrediction):
        return result
    if result.code == "failed":
        raise RunError(
            setting="batch_size",
            got="a pass that failed twice",
            expected="a pass without an error",
            fix="the log above has the reason; for memory, lower it",
        )
    raise result
