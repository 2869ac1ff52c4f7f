"""The rows of a run: read, checked, split and sampled before anything is trained or written."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from softcue.configuration import TaskConfig, as_configuration_error, read_settings, resolve
from softcue.errors import ConfigurationError
from softcue.evaluation import check_metric
from softcue.tasks import Source, Task, examples_from, library_names, library_task, sample, split_off, with_labels
from softcue.types import Example


@dataclass(frozen=True)
class Rows:
    """A task and its examples, all checked."""

    task: Task
    train: list[Example]
    validation: list[Example]
    test: list[Example]


def rows_of_run(folder: str | Path) -> Rows:
    """The very rows a run was trained and scored on, read again from its config.yaml.

    Example:
        rows_of_run("cues/tickets").test[0].texts
    """
    return rows_of(resolve(read_settings(Path(folder) / "config.yaml")).task, {})


def rows_of(config: TaskConfig, objects: Mapping[str, Any]) -> Rows:
    """Read and check every row the run will touch."""
    task = _task(config)
    sources: dict[str, Source] = {split: getattr(task, split) for split in ("train", "validation", "test")}
    if "train" in objects:  # a bundled task's other splits do not belong to the user's rows
        sources |= {"validation": config.validation, "test": config.test}
    sources |= objects
    if isinstance(sources["train"], str) and not sources["train"]:
        raise ConfigurationError("task.train", "", "training rows",
                                 f"pass --train FILE or --task NAME ({', '.join(library_names())})")  # fmt: skip
    check_metric(task.main_metric, task.kind)
    train = examples_from(sources["train"], task)
    if task.kind == "classification":
        task = with_labels(task, train, config.label_words)
    found = {
        split: [] if isinstance(sources[split], str) and not sources[split] else examples_from(sources[split], task)
        for split in ("validation", "test")
    }
    if not found["validation"]:
        by_class = task.kind == "classification"
        train, found["validation"] = split_off(train, config.validation_share, config.sample_seed, by_class=by_class)
        if not found["validation"]:
            raise ConfigurationError("task.validation", "", "validation rows", "pass --validation FILE: "
                                     "too few training rows to hold any out")  # fmt: skip
    limits = {"train": config.train_rows, "validation": config.validation_rows, "test": config.test_rows}
    found["train"] = train
    sampled = {
        split: sample(rows, limits[split], config.sample_seed) if limits[split] else rows
        for split, rows in found.items()
    }
    if task.kind == "classification" and len({example.target for example in sampled["train"]}) < 2:
        raise ConfigurationError("task.train_rows", config.train_rows, "a sample with at least two classes",
                                 "raise it, or change task.sample_seed")  # fmt: skip
    return Rows(task, sampled["train"], sampled["validation"], sampled["test"])


def _task(config: TaskConfig) -> Task:
    """The bundled task of that name with the user's changes, or a new one from the user's columns."""
    given: dict[str, Any] = {
        key: value
        for key in ("train", "validation", "test", "text", "label", "kind", "metric", "template")
        if (value := getattr(config, key))
    }
    is_bundled = config.name in library_names() or (config.name and not (config.text or config.label))
    base = library_task(config.name).model_dump() if is_bundled else {"name": config.name or "task"}
    if config.train:
        base |= {"validation": "", "test": ""}
    try:
        return Task.model_validate(base | given)
    except ValidationError as error:
        raise as_configuration_error("task", error) from error
