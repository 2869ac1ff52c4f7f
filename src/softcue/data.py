"""The rows of a run: read, checked, split and sampled before anything is trained or written."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from softcue.configuration import TaskConfig, as_configuration_error, read_settings, resolve
from softcue.errors import ConfigurationError
from softcue.evaluation import check_metric
from softcue.tasks import (
    Source,
    Task,
    distinct,
    examples_from,
    few_shot,
    library_names,
    library_task,
    sample,
    split_off,
    with_labels,
    with_swapped,
    without_copies,
)
from softcue.types import Example

FEW_SHOT_VALIDATION_ROWS = 1000  # IDPG (Wu et al. 2022) validates on 1000 rows whatever K is


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
    _check_sampling(config, task)
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
        task = with_labels(task, train, config.label_words, config.label_descriptions)
    validation, test = (
        [] if isinstance(sources[split], str) and not sources[split] else examples_from(sources[split], task)
        for split in ("validation", "test")
    )
    choose = _few_shot if config.few_shot else _train_and_validation
    train, validation = choose(config, task, train, validation)
    if task.kind == "classification" and len({example.target for example in train}) < 2:
        setting = "few_shot" if config.few_shot else "train_rows"
        raise ConfigurationError(f"task.{setting}", getattr(config, setting), "a sample with at least two classes",
                                 "raise it, or change task.sample_seed")  # fmt: skip
    if config.swap_pairs:
        train = with_swapped(train)
    return Rows(task, train, validation, _limited(test, config.test_rows, config.sample_seed))


def _check_sampling(config: TaskConfig, task: Task) -> None:
    """Refuse, before any row is read, what contradicts itself or the task."""
    if config.few_shot and config.train_rows:
        raise ConfigurationError("task.few_shot", config.few_shot, "no task.train_rows beside it "
                                 f"(here {config.train_rows})", "set one of the two")  # fmt: skip
    if config.stratified and task.kind != "classification":
        raise ConfigurationError("task.stratified", True, f"a task with classes, not {task.kind}", "leave it out")
    if config.swap_pairs and len(task.text) != 2:
        raise ConfigurationError("task.swap_pairs", True, f"a task that reads two texts, not only '{task.text[0]}'",
                                 "name two columns in task.text, or leave it out")  # fmt: skip


def _train_and_validation(
    config: TaskConfig, task: Task, train: list[Example], validation: list[Example]
) -> tuple[list[Example], list[Example]]:
    """The rows given, a share of the training rows held out if there are none to validate on, both cut to size."""
    if not validation:
        by_class = task.kind == "classification"
        train, validation = split_off(train, config.validation_share, config.sample_seed, by_class=by_class)
        if not validation:
            raise ConfigurationError("task.validation", "", "validation rows", "pass --validation FILE: "
                                     "too few training rows to hold any out")  # fmt: skip
    train = _limited(train, config.train_rows, config.sample_seed, config.stratified)
    return train, _limited(validation, config.validation_rows, config.sample_seed)


def _few_shot(
    config: TaskConfig, task: Task, train: list[Example], validation: list[Example]
) -> tuple[list[Example], list[Example]]:
    """K distinct training rows, and rows to validate on that are no copies: from their own file, else from the rest."""
    num_asked = config.validation_rows or FEW_SHOT_VALIDATION_ROWS
    chosen, left = few_shot(train, config.few_shot, num_asked, config.sample_seed, config.stratified)
    num_texts = len(distinct(train))
    source, next_step = f"{num_texts} distinct training texts", "lower it, or pass --validation FILE"
    if validation:
        if len(chosen) < config.few_shot:
            raise ConfigurationError("task.few_shot", config.few_shot, f"at most {num_texts}, the number of distinct "
                                     "training texts", "lower it")  # fmt: skip
        source, next_step = f"{len(validation)} validation rows", "pass other rows with --validation FILE"
        left = sample(without_copies(validation, chosen), num_asked, config.sample_seed)
    if not left:
        raise ConfigurationError("task.few_shot", config.few_shot, f"rows of the {source} to be left to validate on, "
                                 "none a copy of a training row", next_step)  # fmt: skip
    # A file of the user's own may well have fewer rows than the usual number, which nobody asked for.
    if len(left) < num_asked and (config.validation_rows or not validation):
        warnings.warn(f"{len(left)} rows to validate on instead of {num_asked}: the {source} have no more beside "
                      f"task.few_shot={config.few_shot}", stacklevel=4)  # fmt: skip
    return chosen, left


def _limited(examples: list[Example], num_rows: int, seed: int, stratified: bool = False) -> list[Example]:
    return sample(examples, num_rows, seed, stratified) if num_rows else examples


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
