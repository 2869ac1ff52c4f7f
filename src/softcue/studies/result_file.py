"""What result.json and failures.json must hold to count. Files of other programs, and damaged ones, do not."""

from __future__ import annotations

import json
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, FiniteFloat, ValidationError, model_validator


class RecordedScore(BaseModel):
    """The score of a run on the rows of a task."""

    main: FiniteFloat
    metrics: dict[str, Any]
    rows: int | None
    split: str


class RecordedRun(BaseModel):
    """The parts of result.json that plans, status and reports read. It has more, which is kept."""

    model_config = ConfigDict(extra="allow")

    digest: str
    kind: str = "train"
    trial: str = ""
    broke_down: str = ""  # why a trial has no score
    run_seconds: FiniteFloat
    scores: dict[str, RecordedScore]
    validation: dict[str, RecordedScore] = Field(default_factory=dict)
    baselines: dict[str, dict[str, FiniteFloat]] | None = None
    trainable: int = 0
    seconds: FiniteFloat = 0.0
    processor_seconds: FiniteFloat = 0.0
    steps: int = 0
    threads: int = 1
    curve: list[tuple[FiniteFloat, FiniteFloat]] = Field(default_factory=list)
    health: dict[str, float] | None = None
    peak_megabytes: float | None = None
    perplexity: FiniteFloat | None = None  # of an adaptation
    versions: dict[str, str] | None = None
    warnings: list[str] | None = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.kind == "adapt" and self.perplexity is None:
            raise ValueError("a perplexity")
        if self.trial and not self.validation and not self.broke_down:
            raise ValueError("a validation score, or why there is none")
        return self


def parse_result(data: bytes) -> dict[str, Any] | None:
    """The content of result.json, or None if it is damaged or not one.

    Example:
        >>> parse_result(b'{"digest": "5f", "run_seconds": 3.5, "scores": {}}')
        {'digest': '5f', 'run_seconds': 3.5, 'scores': {}}
        >>> parse_result(b'{"digest": "5f", "run_sec')
    """
    values = _parse_object(data)
    try:
        RecordedRun.model_validate(values)
    except ValidationError:
        return None
    return values


def parse_failures(data: bytes) -> list[dict[str, Any]]:
    """The attempts in failures.json; none of a damaged file.

    Example:
        >>> parse_failures(b'{"attempts": [{"time": "2024-05-01 10:00:00", "reason": "no memory"}, 7]}')
        [{'time': '2024-05-01 10:00:00', 'reason': 'no memory'}]
    """
    attempts = (_parse_object(data) or {}).get("attempts")
    entries = attempts if isinstance(attempts, list) else []
    return [entry for entry in entries if isinstance(entry, dict) and isinstance(entry.get("reason"), str)]


def _parse_object(data: bytes) -> dict[str, Any] | None:
    try:
        values = json.loads(data)
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None
