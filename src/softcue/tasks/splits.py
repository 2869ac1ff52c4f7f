"""The rows of a run: read, checked, split and sampled before anything is trained or written."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from softcue.errors import ConfigurationError, as_configuration_error
from softcue.tasks.catalogue import TASK_SUFFIXES, find_task, library_names, sources
from softcue.tasks.config import TaskConfig
from softcue.tasks.readers import Source, size_of
from softcue.tasks.rows import examples_from, with_labels
from softcue.tasks.sampling import distinct, few_shot, sample, sample_examples, split_off, with_swapped, without_copies
from softcue.tasks.task import SPLITS, Task
from softcue.types import Example

STREAMED_FROM = 1 << 28  # bytes of files that are not held in memory where a sample of them will do
FEW_SHOT_VALIDATION_ROWS = 1000  # IDPG (Wu et al. 2022) validates on 1000 rows whatever K is


@dataclass(frozen=True)
class Splits:
    """A task and its examples, all checked."""

    task: Task
    train: list[Example]
    validation: list[Example]
    test: list[Example]


def read_splits_of_each(config: TaskConfig, tasks: Sequence[str], cap: int) -> list[Splits]:
    """The rows of every task of a mixture, none with more than `cap` training or validation rows.

    What `config` says of sampling holds for each of them.
    """
    own = [
        key
        for key in (
            "train",
            "validation",
            "test",
            "text",
            "label",
            "format",
            "kind",
            "label_words",
            "label_descriptions",
            "metric",
            "template",
        )
        if getattr(config, key)
    ]
    if own:
        raise ConfigurationError(
            setting=f"task.{own[0]}",
            got=getattr(config, own[0]),
            expected="nothing of one task beside mixture.tasks",
            fix="write a task file (.yaml) for each and name those",
        )
    if len(set(tasks)) < len(tasks) or len(tasks) < 2:
        raise ConfigurationError(
            setting="mixture.tasks",
            got=", ".join(tasks),
            expected="at least two different tasks",
            fix="train a single one with `task=NAME`",
        )
    found = []
    for name in tasks:
        changes: dict[str, Any] = {"name": name}
        if not config.few_shot:  # which has sizes of its own
            for key in ("train_rows", "validation_rows"):
                changes[key] = min(getattr(config, key) or cap, cap)
        found.append(read_splits(config.model_copy(update=changes), {}))
    if len({rows.task.name for rows in found}) < len(found):
        raise ConfigurationError(
            setting="mixture.tasks",
            got=", ".join(tasks),
            expected="task files with names of their own",
            fix="change `name:` in one",
        )
    return found


def read_splits(config: TaskConfig, objects: Mapping[str, Any]) -> Splits:
    """Read and check every row the run will touch."""
    task = resolve_task(config)
    _check_sampling(config, task)
    given: dict[str, Source] = {split: getattr(task, split) for split in SPLITS}
    if config.data and not config.train:
        below = sources(task, config.data)
        given = {split: getattr(config, split) or below.get(split, "") for split in SPLITS}
    if "train" in objects:  # a bundled task's other splits do not belong to the user's rows
        given |= {"validation": config.validation, "test": config.test}
    given |= objects
    if not _is_given(given["train"]):
        hint = "pass `train=FILE`, or `task=NAME` with a name of `softcue tasks`"
        if "train" in task.files:
            hint = f"pass `data=FOLDER` with {' or '.join(task.files['train'])}"
        elif task.published:
            hint = f"it is for testing only: evaluate a cue with `task={task.name}`"
        raise ConfigurationError(setting="task.train", got="", expected="training rows", fix=hint)
    skips = config.skip_bad_rows
    train = (
        sample_examples(given["train"], task, config.train_rows, config.sample_seed, skips)
        if _is_sampled_unread(config, task, given)
        else examples_from(given["train"], task, skip_bad_rows=skips)
    )
    if task.has_classes or (task.kind == "tags" and not task.labels):
        task = with_labels(task, train, config.label_words, config.label_descriptions)
    validation, test = (
        examples_from(given[split], task, skip_bad_rows=skips) if _is_given(given[split]) else []
        for split in ("validation", "test")
    )
    choose = _few_shot if config.few_shot else _train_and_validation
    train, validation = choose(config, task, train, validation)
    if task.has_classes and len({example.target for example in train}) < 2:
        setting = "few_shot" if config.few_shot else "train_rows"
        raise ConfigurationError(
            setting=f"task.{setting}",
            got=getattr(config, setting),
            expected="a sample with at least two classes",
            fix="raise it, or change task.sample_seed",
        )
    if config.swap_pairs:
        train = with_swapped(train)
    return Splits(task, train, validation, limit_rows(test, config.test_rows, config.sample_seed))


def _check_sampling(config: TaskConfig, task: Task) -> None:
    """Refuse, before any row is read, what contradicts itself or the task."""
    if config.few_shot and config.train_rows:
        raise ConfigurationError(
            setting="task.few_shot",
            got=config.few_shot,
            expected=f"no task.train_rows beside it (here {config.train_rows})",
            fix="set one of the two",
        )
    if config.stratified and not task.has_classes:
        raise ConfigurationError(
            setting="task.stratified", got=True, expected=f"a task with classes, not {task.kind}", fix="leave it out"
        )
    if config.swap_pairs and task.kind not in ("classification", "regression"):
        raise ConfigurationError(
            setting="task.swap_pairs",
            got=True,
            expected=f"a task with labels or scores, not {task.kind}",
            fix="leave it out",
        )
    if config.swap_pairs and len(task.text) != 2:
        raise ConfigurationError(
            setting="task.swap_pairs",
            got=True,
            expected=f"a task that reads two texts, not only '{task.text[0]}'",
            fix="name two columns in task.text, or leave it out",
        )


def _train_and_validation(
    config: TaskConfig, task: Task, train: list[Example], validation: list[Example]
) -> tuple[list[Example], list[Example]]:
    """The rows given, a share of the training rows held out if there are none to validate on, both cut to size."""
    if not validation:
        train, validation = split_off(train, config.validation_share, config.sample_seed, by_class=task.has_classes)
        if not validation:
            raise ConfigurationError(
                setting="task.validation",
                got="",
                expected="validation rows",
                fix="pass `validation=FILE`: too few training rows to hold any out",
            )
    train = limit_rows(train, config.train_rows, config.sample_seed, config.stratified)
    return train, limit_rows(validation, config.validation_rows, config.sample_seed)


def _few_shot(
    config: TaskConfig, task: Task, train: list[Example], validation: list[Example]
) -> tuple[list[Example], list[Example]]:
    """K distinct training rows, and rows to validate on that are no copies: from their own file, else from the rest."""
    num_asked = config.validation_rows or FEW_SHOT_VALIDATION_ROWS
    chosen, left = few_shot(train, config.few_shot, num_asked, config.sample_seed, config.stratified)
    num_texts = len(distinct(train))
    source, next_step = f"{num_texts} distinct training texts", "lower it, or pass `validation=FILE`"
    if validation:
        if len(chosen) < config.few_shot:
            raise ConfigurationError(
                setting="task.few_shot",
                got=config.few_shot,
                expected=f"at most {num_texts}, the number of distinct training texts",
                fix="lower it",
            )
        source, next_step = f"{len(validation)} validation rows", "pass other rows with `validation=FILE`"
        left = sample(without_copies(validation, chosen), num_asked, config.sample_seed)
    if not left:
        raise ConfigurationError(
            setting="task.few_shot",
            got=config.few_shot,
            expected=f"rows of the {source} to be left to validate on, none a copy of a training row",
            fix=next_step,
        )
    # A file of the user's own may well have fewer rows than the usual number, which nobody asked for.
    if len(left) < num_asked and (config.validation_rows or not validation):
        warnings.warn(
            f"{len(left)} rows to validate on instead of {num_asked}: the {source} have no more beside "
            f"task.few_shot={config.few_shot}",
            stacklevel=4,
        )
    return chosen, left


def _is_sampled_unread(config: TaskConfig, task: Task, given: Mapping[str, Source]) -> bool:
    """Whether training rows are sampled from a large file without holding it: nothing else may need the others."""
    is_plain = not config.few_shot and not config.stratified and _is_given(given["validation"])
    knows_labels = bool(task.labels) or not (task.has_classes or task.kind == "tags")
    return bool(config.train_rows) and is_plain and knows_labels and size_of(given["train"]) > STREAMED_FROM


def is_task_name(name: str) -> bool:
    """Whether a name stands for a task that is written down: one of softcue's, or a file of the user's.

    Example:
        >>> is_task_name("rte"), is_task_name("mine.yaml"), is_task_name("mine")
        (True, True, False)
    """
    return name in library_names() or Path(name).suffix.lower() in TASK_SUFFIXES


def _is_given(source: Source) -> bool:
    return not isinstance(source, str) or bool(source)


def limit_rows(examples: list[Example], num_rows: int, seed: int, stratified: bool = False) -> list[Example]:
    """A seeded sample of that many rows; 0 keeps all."""
    return sample(examples, num_rows, seed, stratified) if num_rows else examples


def resolve_task(config: TaskConfig) -> Task:
    """The bundled task of that name with the user's changes, or a new one from the user's columns."""
    given: dict[str, Any] = {
        key: value
        for key in ("train", "validation", "test", "text", "label", "format", "kind", "metric", "template")
        if (value := getattr(config, key))
    }
    is_known = is_task_name(config.name) or (config.name and not (config.text or config.label))
    base = find_task(config.name).model_dump() if is_known else {"name": config.name or "task"}
    if config.train:
        base |= {"validation": "", "test": ""}
    try:
        return Task.model_validate(base | given)
    except ValidationError as error:
        raise as_configuration_error("task", error) from error
