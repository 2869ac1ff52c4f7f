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
from softcue.evaluation import Transfer, check_metric, transfer_between
from softcue.tasks import (
    SPLITS,
    Source,
    Task,
    distinct,
    examples_from,
    few_shot,
    find_task,
    library_names,
    sample,
    sample_examples,
    sources,
    split_off,
    with_labels,
    with_swapped,
    without_copies,
)
from softcue.tasks.catalogue import TASK_SUFFIXES
from softcue.tasks.readers import name_of, size_of
from softcue.training import MixtureConfig
from softcue.types import Example

STREAMED_FROM = 1 << 28  # bytes of files that are not held in memory where a sample of them will do
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


def rows_of_each(config: TaskConfig, mixture: MixtureConfig) -> list[Rows]:
    """The rows of every task of a mixture, none with more than `cap` training or validation rows.

    What `config` says of sampling holds for each of them.
    """
    own = [key for key in ("train", "validation", "test", "text", "label", "format", "kind", "label_words",
                           "label_descriptions", "metric", "template") if getattr(config, key)]  # fmt: skip
    if own:
        raise ConfigurationError(f"task.{own[0]}", getattr(config, own[0]), "nothing of one task beside mixture.tasks",
                                 "write a task file (.yaml) for each and name those")  # fmt: skip
    if len(set(mixture.tasks)) < len(mixture.tasks) or len(mixture.tasks) < 2:
        raise ConfigurationError("mixture.tasks", ", ".join(mixture.tasks), "at least two different tasks",
                                 "train a single one with --task")  # fmt: skip
    found = []
    for name in mixture.tasks:
        changes: dict[str, Any] = {"name": name}
        if not config.few_shot:  # which has sizes of its own
            for key in ("train_rows", "validation_rows"):
                changes[key] = min(getattr(config, key) or mixture.cap, mixture.cap)
        found.append(rows_of(config.model_copy(update=changes), {}))
    if len({rows.task.name for rows in found}) < len(found):
        raise ConfigurationError("mixture.tasks", ", ".join(mixture.tasks), "task files with names of their own",
                                 "change `name:` in one")  # fmt: skip
    return found


def rows_of(config: TaskConfig, objects: Mapping[str, Any]) -> Rows:
    """Read and check every row the run will touch."""
    task = _task(config)
    _check_sampling(config, task)
    given: dict[str, Source] = {split: getattr(task, split) for split in SPLITS}
    if config.data and not config.train:
        below = sources(task, config.data)
        given = {split: getattr(config, split) or below.get(split, "") for split in SPLITS}
    if "train" in objects:  # a bundled task's other splits do not belong to the user's rows
        given |= {"validation": config.validation, "test": config.test}
    given |= objects
    if not _is_given(given["train"]):
        hint = "pass --train FILE, or --task with a name of `softcue tasks`"
        if "train" in task.files:
            hint = f"pass --data FOLDER with {' or '.join(task.files['train'])}"
        elif task.published:
            hint = f"it is for testing only: softcue evaluate CUE --task {task.name}"
        raise ConfigurationError("task.train", "", "training rows", hint)
    check_metric(task)
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
        raise ConfigurationError(f"task.{setting}", getattr(config, setting), "a sample with at least two classes",
                                 "raise it, or change task.sample_seed")  # fmt: skip
    if config.swap_pairs:
        train = with_swapped(train)
    return Rows(task, train, validation, _limited(test, config.test_rows, config.sample_seed))


@dataclass(frozen=True)
class Test:
    """Rows with answers, and how a cue's answers to them are scored."""

    name: str
    examples: list[Example]
    transfer: Transfer


def rows_to_score(
    cue_task: Task,
    data: Source | None = None,
    task: str = "",
    split: str = "",
    num_rows: int = 0,
    skip_bad_rows: bool = False,
) -> Test:
    """Rows a cue can be scored on: of a file, of a folder with published files, or of a task's own address.

    `num_rows` takes a sample of that many (seed 0).

    Example:
        rows_to_score(library_task("tickets")).name        # the task's own test rows
        rows_to_score(cue.task, "../data", task="mrpc")    # another task's, from its published files
    """
    is_folder = isinstance(data, (str, Path)) and Path(data).is_dir()
    theirs = cue_task
    if task:
        theirs = find_task(task)
    elif (data is None or is_folder) and is_task_name(cue_task.name):
        theirs = find_task(cue_task.name)
    if theirs.has_classes and not theirs.labels:  # a file of the user's own that leaves them to the rows
        theirs = theirs.model_copy(update={"labels": cue_task.labels})
    transfer = transfer_between(cue_task, theirs)
    source = data
    if split and (split not in SPLITS or not (data is None or is_folder)):
        raise ConfigurationError("--split", split, f"{', '.join(SPLITS)}, of a task's own rows",
                                 "leave it out for a file")  # fmt: skip
    if data is None or is_folder:
        known: dict[str, Source] = {one: getattr(theirs, one) for one in SPLITS}
        known = dict(sources(theirs, str(data))) if is_folder else {k: v for k, v in known.items() if v}
        split = split or next((one for one in ("test", "validation") if one in known), "")
        source = known.get(split)
        if source is None and known:
            raise ConfigurationError("--split", split, f"one that is there: {', '.join(known)}", "name one of them")
    if source is None:
        raise ConfigurationError("--data", data if data is not None else "", f"rows with answers for {theirs.name}",
                                 "pass --data FILE, --data FOLDER with its files, or --task FILE.yaml")  # fmt: skip
    name = f"{theirs.name} ({split})" if data is None or is_folder else name_of(source)
    examples = examples_from(source, theirs, skip_bad_rows=skip_bad_rows)
    return Test(name, _limited(examples, num_rows, seed=0), transfer)


def _check_sampling(config: TaskConfig, task: Task) -> None:
    """Refuse, before any row is read, what contradicts itself or the task."""
    if config.few_shot and config.train_rows:
        raise ConfigurationError("task.few_shot", config.few_shot, "no task.train_rows beside it "
                                 f"(here {config.train_rows})", "set one of the two")  # fmt: skip
    if config.stratified and not task.has_classes:
        raise ConfigurationError("task.stratified", True, f"a task with classes, not {task.kind}", "leave it out")
    if config.swap_pairs and task.kind not in ("classification", "regression"):
        raise ConfigurationError("task.swap_pairs", True, f"a task with labels or scores, not {task.kind}",
                                 "leave it out")  # fmt: skip
    if config.swap_pairs and len(task.text) != 2:
        raise ConfigurationError("task.swap_pairs", True, f"a task that reads two texts, not only '{task.text[0]}'",
                                 "name two columns in task.text, or leave it out")  # fmt: skip


def _train_and_validation(
    config: TaskConfig, task: Task, train: list[Example], validation: list[Example]
) -> tuple[list[Example], list[Example]]:
    """The rows given, a share of the training rows held out if there are none to validate on, both cut to size."""
    if not validation:
        train, validation = split_off(train, config.validation_share, config.sample_seed, by_class=task.has_classes)
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


def _limited(examples: list[Example], num_rows: int, seed: int, stratified: bool = False) -> list[Example]:
    return sample(examples, num_rows, seed, stratified) if num_rows else examples


def _task(config: TaskConfig) -> Task:
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
