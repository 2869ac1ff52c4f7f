"""Linear heads in closed form, on the vectors that a model makes now: before the first step, and after the last."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from softcue.backbones import Backbone
from softcue.errors import TrainingError
from softcue.evaluation import Evaluation, score
from softcue.inference import PreparedRequests, TaskModel
from softcue.readouts.closed_form import STRENGTHS
from softcue.training.processes import Processes
from softcue.types import RowLabel, TokenizedRow

MAX_ROWS = 4096  # training rows for which a head is solved: more take longer and change little


class HeadSolver:
    """Solves the head of a task for the vectors of its training rows; validation rows choose the regularisation.

    Example:
        evaluation = HeadSolver(model, rows, validation, batch_size=64).start(backbone)
    """

    def __init__(
        self,
        model: TaskModel,
        rows: Sequence[TokenizedRow],
        validation: PreparedRequests,
        batch_size: int,
        processes: Processes | None = None,
    ) -> None:
        self.model, self.validation, self.batch_size = model, validation, batch_size
        self.processes = processes or Processes()
        self.rows = rows[:: math.ceil(len(rows) / MAX_ROWS)]  # evenly spaced: files are often sorted by label
        self.labels = [row.label for row in self.rows if row.label is not None]
        self.weights = [row.weight for row in self.rows]

    @property
    def has_classes_or_scores(self) -> bool:
        """Whether labels are what a head can be solved for. A method may ask for probabilities of classes instead."""
        has_probabilities = any(isinstance(label, float) for label in self.labels)
        return not (has_probabilities and self.model.readout.task.has_classes)

    def start(self, backbone: Backbone) -> Evaluation | None:
        """Fit what the head needs of its vectors, and solve it if its settings say so; returns its scores then."""
        readout = self.model.readout
        is_solved = readout.config.head_start == "solved"
        if readout.is_taken_over:
            return None
        if is_solved:
            readout.check_solvable()
        elif not readout.config.centre or readout.summary is None:
            return None
        features = self._features(backbone, self.rows)
        readout.fit_features(features.to(backbone.device), torch.tensor(self.weights, device=backbone.device))
        return self._solve(backbone, features) if is_solved else None

    def refit(self, backbone: Backbone) -> Evaluation:
        """Solve the head again. The head as it was stays if it scores as high; returns the scores of the better."""
        return self._solve(backbone, self._features(backbone, self.rows))

    def _features(self, backbone: Backbone, rows: Sequence[TokenizedRow]) -> Tensor:
        features = torch.stack(
            self.processes.in_shares(rows, lambda share: self.model.features(backbone, share, self.batch_size).unbind())
        )  # [N R]
        if not features.isfinite().all():
            raise TrainingError(
                setting="vectors that the head reads",
                got="numbers that are not finite",
                expected="finite numbers to solve the head for",
                fix="lower training.learning_rate, or set backbone.dtype=float32",
            )
        return features

    def _solve(self, backbone: Backbone, features: Tensor) -> Evaluation:
        """Try the head as it is, and the solution with each strength; the best on validation rows stays."""
        readout = self.model.readout
        held_out = self._features(backbone, [row for _, row in self.validation.rows]).to(backbone.device)

        def candidate() -> tuple[Evaluation, dict[str, Tensor]]:
            predicted = self.validation.merge(readout.predict_from(held_out))
            examples = [example for _, example in self.validation.requests]
            evaluation = score(self.model.task, predicted.predictions, examples, predicted.num_truncated)
            return evaluation, {name: value.clone() for name, value in readout.state_dict().items()}

        candidates = [candidate()]
        for strength in STRENGTHS:
            readout.solve(features, self.labels, strength, self.weights)
            candidates.append(candidate())
        # Of equal solutions the last wins, as for a linear probe: it regularises most. A tie leaves the head as it was.
        numbers = [0, *reversed(range(1, len(candidates)))]
        best = max(numbers, key=lambda number: candidates[number][0].main)
        evaluation, tensors = candidates[best]
        readout.load_state_dict(tensors)
        if best > 0:
            # A class without training rows is never predicted: its rows say nothing about how sure the head may be.
            (labels, weights), in_training = self._validation_labels(), set(self.labels)
            usable = [
                number for number, label in enumerate(labels) if not isinstance(label, int) or label in in_training
            ]
            if usable:
                readout.calibrate(
                    held_out[usable], [labels[number] for number in usable], [weights[number] for number in usable]
                )
        return evaluation

    def _validation_labels(self) -> tuple[list[RowLabel], list[float]]:
        """The labels of the validation rows, and their weights."""
        parts = [part for model, example in self.validation.requests for part in model.split(example)]
        labelled = (
            self.model.readout.with_target(row, part)
            for (_, row), part in zip(self.validation.rows, parts, strict=True)
        )
        return [row.label for row in labelled if row.label is not None], [part.weight for part in parts]
