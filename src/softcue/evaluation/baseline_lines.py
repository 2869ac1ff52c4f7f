"""Baselines below a table of several cues or methods: those with the same scores are one line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from softcue.evaluation.report import BASELINES

Scores = TypeVar("Scores")


@dataclass(frozen=True)
class BaselineLine(Generic[Scores]):
    """A baseline, and the cues or methods that have it with the same scores."""

    key: str  # of BASELINES
    name: str  # for people
    predictors: tuple[str, ...]
    scores: Scores


def baseline_lines(by_predictor: Mapping[str, Mapping[str, Scores]]) -> list[BaselineLine[Scores]]:
    """List the baselines of several cues or methods, equal ones once.

    Where they differ, the name says in brackets whose they are: cues of one task may have other training rows, or
    another backbone.

    Example:
        >>> lines = baseline_lines({"a": {"zero_shot": 59.5}, "b": {"zero_shot": 59.5}, "c": {"zero_shot": 47.6}})
        >>> [(line.name, line.scores) for line in lines]
        [('zero-shot (a, b)', 59.5), ('zero-shot (c)', 47.6)]
    """
    lines = []
    for key, name in BASELINES.items():
        groups: list[tuple[Scores, list[str]]] = []
        for predictor, baselines in by_predictor.items():
            if key not in baselines:
                continue
            alike = [members for scores, members in groups if scores == baselines[key]]
            if alike:
                alike[0].append(predictor)
            else:
                groups.append((baselines[key], [predictor]))
        for scores, members in groups:
            of_some = f" ({', '.join(members)})" if len(members) < len(by_predictor) else ""
            lines.append(BaselineLine(key, name + of_some, tuple(members), scores))
    return lines
