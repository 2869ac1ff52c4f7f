"""The rows of a run: read, checked, split and sampled before training starts. The seed alone decides each sample."""

from __future__ import annotations

import hashlib
import random
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from softcue.errors import ConfigurationError, DataError, as_configuration_error
from softcue.tasks.catalogue import TASK_SUFFIXES, find_task, library_names, sources
from softcue.tasks.label_column import LabelColumn, cell_text
from softcue.tasks.readers import Source, size_of, splits_of
from softcue.tasks.rows import (
    collect_examples,
    examples_from,
    has_targets,
    holds_label_lists,
    kinds_for,
    stream_examples,
    with_labels,
)
from softcue.tasks.stored_examples import collect_as, store_examples, take
from softcue.tasks.task import SPLITS, Task, TaskKind, text_columns
from softcue.types import Example

if TYPE_CHECKING:
    import numpy


class TaskConfig(BaseModel):
    """The task of a run: a task of the library, a task file, or columns of the user's files."""

    # A column or a label may be called 1, which YAML reads as a number.
    model_config = ConfigDict(frozen=True, extra="forbid", coerce_numbers_to_str=True)

    name: str = Field("", description="a task of `softcue tasks`, a task file (.yaml), or a name for a new task")
    data: str = Field("", description="a folder with a task's published files; else its rows come from the hub")
    train: str = Field("", description="training rows: csv, tsv, json, jsonl (also .gz), parquet, hub:NAME@SPLIT")
    validation: str = Field("", description="validation rows; without them a share of the training rows is held out")
    test: str = Field("", description="test rows, scored once at the end")
    text: tuple[str, ...] = Field((), description="the column to read, or several of them")
    label: str = Field("", description="the column with the target")
    format: str = Field(
        "", description="the format of the files: squad, conll, semeval, ...; empty: one example per row"
    )
    kind: TaskKind | None = Field(
        None,
        description="classification, multi-label, regression, generation, span, tags or referent; without it, the rows "
        "decide between the first three",
    )
    separator: str | None = Field(
        None,
        min_length=1,
        description="makes the task multi-label: what stands between the labels of a row, where a cell is a text; "
        "without it the task's, usually `;`",
    )
    label_words: dict[str, str] = Field(default_factory=dict, description="label -> the words for it")
    label_descriptions: dict[str, str] = Field(
        default_factory=dict, description="label -> what it means, in a sentence"
    )
    metric: str = Field("", description="the metric of early stopping")
    template: str = Field("", description="source text for text-to-text backbones, with {column} fields")
    train_rows: int = Field(0, ge=0, description="use only this many training rows (seeded sample); 0 uses all")
    validation_rows: int = Field(0, ge=0, description="use only this many validation rows; 0 uses all")
    test_rows: int = Field(0, ge=0, description="use only this many test rows; 0 uses all")
    few_shot: int = Field(
        0,
        ge=0,
        description="train on this many rows, validate on other training rows (validation_rows, else 1000); 0 is off",
    )
    shots_per_class: int = Field(
        0, ge=0, description="as few_shot, with this many training rows of each class or label; 0 is off"
    )
    stratified: bool = Field(False, description="every class gets its share of few_shot or train_rows")
    swap_pairs: bool = Field(False, description="every training pair also with its two texts swapped")
    validation_share: float = Field(0.15, gt=0, lt=1, description="held out of training if validation is empty")
    spread_numbers: bool = Field(
        True,
        description="of a regression: hold out rows evenly from the lowest to the highest number; false draws them "
        "from all rows, as runs did that have no such setting",
    )
    hold_out_validation: bool = Field(
        False,
        description="validate on held-out training rows and score the published validation rows at the end, for tasks "
        "without test rows",
    )
    use_test_rows: bool = Field(True, description="false reads no test rows: a search must not see them")
    skip_bad_rows: bool = Field(False, description="leave out rows that cannot be used instead of stopping")
    sample_seed: int = Field(0, ge=0, description="decides which rows are sampled or held out")

    @property
    def is_few_shot(self) -> bool:
        """Whether the run trains on a few rows and validates on other training rows."""
        return bool(self.few_shot or self.shots_per_class)

    @field_validator("text", mode="before")
    @classmethod
    def _split_list(cls, columns: object) -> object:
        """Split `a,b` of the command line into two columns."""
        if isinstance(columns, str):
            return [column.strip() for column in columns.split(",")] if columns else []
        return [columns] if isinstance(columns, int) else columns

    @field_validator("text")
    @classmethod
    def _check_columns(cls, columns: tuple[str, ...]) -> tuple[str, ...]:
        return text_columns(columns) if columns else ()

    @field_validator("label_words", "label_descriptions", mode="before")
    @classmethod
    def _name_labels(cls, values: object) -> object:
        """Labels by their text, also where they are numbers or booleans: {True: "yes"}."""
        return {cell_text(label): value for label, value in values.items()} if isinstance(values, Mapping) else values


# keys of a task that settings may change
TASK_KEYS = (
    "train",
    "validation",
    "test",
    "text",
    "label",
    "format",
    "kind",
    "separator",
    "metric",
    "template",
)
MIN_STREAMED_BYTES = 1 << 28  # bytes of the files from which a sample is drawn without loading them
MIN_STORED_BYTES = 1 << 23  # bytes of the files from which training rows are kept in a file instead of memory
FEW_SHOT_VALIDATION_ROWS = 1000  # IDPG (Wu et al. 2022) validates on 1000 rows for every K
MIN_SHARE_OF_COPIES = 0.01  # of the validation or test texts: fewer training texts among them are not worth a warning
USUAL_SEPARATORS = "|,"  # that users write between labels, beside the task's
MAX_ROUNDING = 0.03  # a share of validation rows that differs by more from that of the settings is explained
MIN_ROWS_TO_TELL = 10  # from so many rows on, a label of its own for nearly every row is a sign of a wrong column
MAX_SHARE_OF_LABELS = 0.9  # different labels among the rows


@dataclass(frozen=True)
class Splits:
    """A task and its checked examples. `origin` tells where validation rows of no file of their own come from."""

    task: Task
    train: Sequence[Example]
    validation: Sequence[Example]
    test: Sequence[Example]
    origin: str = ""


def read_splits_of_each(
    config: TaskConfig, tasks: Sequence[str], cap: int, check_task: Callable[[Task], None] | None = None
) -> list[Splits]:
    """Read the rows of every task of a mixture, with at most `cap` training and validation rows each.

    The sampling settings of `config` apply to each task.
    """
    given_keys = [key for key in (*TASK_KEYS, "label_words", "label_descriptions") if getattr(config, key)]
    if given_keys:
        raise ConfigurationError(
            setting=f"task.{given_keys[0]}",
            got=getattr(config, given_keys[0]),
            expected="no setting of a single task beside mixture.tasks",
            fix="write a task file (.yaml) for each task and name the files",
        )
    if len(set(tasks)) < len(tasks) or len(tasks) < 2:
        raise ConfigurationError(
            setting="mixture.tasks",
            got=", ".join(tasks),
            expected="at least two different tasks",
            fix="train a single task with `task=NAME`",
        )
    splits_of_each = []
    for name in tasks:
        changes: dict[str, Any] = {"name": name}
        if not config.is_few_shot:  # few_shot has its own sizes
            for key in ("train_rows", "validation_rows"):
                changes[key] = min(getattr(config, key) or cap, cap)
        splits_of_each.append(read_splits(config.model_copy(update=changes), {}, check_task))
    if len({splits.task.name for splits in splits_of_each}) < len(splits_of_each):
        raise ConfigurationError(
            setting="mixture.tasks",
            got=", ".join(tasks),
            expected="task files with different names",
            fix="change `name:` in one of them",
        )
    return splits_of_each


def read_splits(
    config: TaskConfig,
    objects: Mapping[str, Any],
    check_task: Callable[[Task], None] | None = None,
    weights: Sequence[float] | None = None,
) -> Splits:
    """Read and check every row of a run. `objects` holds rows in memory by split, which replace files.

    `check_task` may reject the task before any row is read. `weights` has the weight of each training row.

    Example:
        >>> rows = [{"text": f"text {number}", "label": "ab"[number % 2]} for number in range(20)]
        >>> splits = read_splits(TaskConfig(), {"train": rows})
        >>> len(splits.train), len(splits.validation), splits.task.label_names
        (16, 4, ('a', 'b'))
    """
    task = resolve_task(config)
    if check_task is not None:
        check_task(task)
    _check_sampling(config, task)
    origins = _split_sources(config, task, objects)
    if not _is_given(origins["train"]):
        hint = "pass `train=FILE`, or `task=NAME` with a name of `softcue tasks`"
        if "train" in task.files:
            hint = f"pass `data=FOLDER` with {' or '.join(task.files['train'])}"
        elif task.published:
            hint = f"it is for testing only: evaluate a cue with `task={task.name}`"
        raise ConfigurationError(setting="task.train", got="", expected="training rows", fix=hint)
    is_open = "kind" not in task.model_fields_set and not (task.format or task.published)
    if is_open and holds_label_lists(origins["train"], task):
        task = task.model_copy(update={"kind": "multi-label"})
        if check_task is not None:
            check_task(task)
        _check_sampling(config, task)
    skip_bad_rows = config.skip_bad_rows
    settings = {split: _setting_of(split, config, objects) for split in SPLITS}
    has_open_labels = task.has_row_labels and not task.labels
    train: Sequence[Example]
    if _should_stream(config, task, origins):
        train = sample_examples(
            origins["train"], task, config.train_rows, config.sample_seed, skip_bad_rows, settings["train"]
        )
    elif has_open_labels:
        task, train = _read_labels(config, task, origins["train"], settings["train"])
        if check_task is not None:
            check_task(task)
        _check_not_swapped(task, train)
    else:
        collect = _collector(origins["train"])
        train = collect_examples(
            origins["train"], task, collect, skip_bad_rows=skip_bad_rows, setting=settings["train"]
        )
    if weights is not None:
        train = [replace(example, weight=weight) for example, weight in zip(train, weights, strict=True)]
    if task.has_row_labels or (task.kind == "tags" and not task.labels):
        task = with_labels(task, train, config.label_words, config.label_descriptions)
    validation: Sequence[Example]
    test: Sequence[Example]
    validation, test = (
        examples_from(origins[split], task, skip_bad_rows=skip_bad_rows, setting=settings[split])
        if _is_given(origins[split])
        else []
        for split in ("validation", "test")
    )
    if config.is_few_shot and not config.validation and "validation" not in objects:
        validation, test = _reserve_scored_rows(task, validation, test)
    elif config.hold_out_validation and not test:
        validation, test = [], validation
    if not config.use_test_rows:
        test = []
    choose = _choose_few_shot if config.is_few_shot else _choose_rows
    all_train, is_held_out = train, not validation
    train, validation = choose(config, task, train, validation)
    origin = _describe_origin(config, task, all_train, validation) if is_held_out else ""
    if has_open_labels and not config.is_few_shot and (hint := _own_labels_hint(task, all_train)):
        warnings.warn(hint, stacklevel=2)
    num_labels = len({name for example in train for name in task.labels_of(example)})
    if task.has_row_labels and num_labels < task.min_labels:
        setting = "few_shot" if config.is_few_shot else "train_rows"
        raise ConfigurationError(
            setting=f"task.{setting}",
            got=getattr(config, setting),
            expected=f"a sample with at least {'two classes' if task.has_classes else 'one label'}",
            fix="raise it, or change task.sample_seed",
        )
    if config.swap_pairs:
        train = with_swapped(train)
    return Splits(task, train, validation, limit_rows(test, config.test_rows, config.sample_seed), origin)


def _setting_of(split: str, config: TaskConfig, objects: Mapping[str, Any]) -> str:
    """The setting by which the user has named the rows of a split, for messages."""
    if split in objects or getattr(config, split):
        return split
    if split != "train" and "train" in objects:  # a split of a DatasetDict
        return "train"
    return "data" if config.data else "task"


def copies_notes(splits: Splits) -> list[str]:
    """Warnings about validation and test texts that are also training texts, each with the numbers and what follows.

    Pairs in either order are the same texts. Below 1 % of the rows nothing is said: published tasks have a few copies.

    Example:
        >>> rows = [Example(("hello",), "a"), Example(("bye",), "b")]
        >>> copies_notes(Splits(Task(name="toy"), rows, rows[:1], []))[0].partition(":")[0]
        '1 of 1 validation texts are also training texts'
    """
    scored = {
        "validation": (splits.validation, "they do not tell which step is best on new texts"),
        "test": (splits.test, "their scores do not tell how good the cue is on new texts"),
    }
    texts = {split: [tuple(sorted(row.texts)) for row in examples] for split, (examples, _) in scored.items()}
    distinct_texts = set(chain.from_iterable(texts.values()))
    trained = {key for row in splits.train if (key := tuple(sorted(row.texts))) in distinct_texts}
    notes = []
    for split, (examples, consequence) in scored.items():
        num_copies = sum(key in trained for key in texts[split])
        # Estimators without validation rows give the training rows themselves.
        if examples is not splits.train and num_copies and num_copies >= MIN_SHARE_OF_COPIES * len(examples):
            advice = (
                ", or leave them out: a share of the training rows is then held out" if split == "validation" else ""
            )
            notes.append(
                f"{num_copies:,} of {len(examples):,} {split} texts are also training texts: {consequence}; "
                f"use other {split} rows{advice}"
            )
    return notes


def _collector(source: Source) -> Callable[[Iterator[Example]], Sequence[Example]]:
    """What keeps the training rows of a source: a file if the source is large, else a list."""
    return store_examples if size_of(source) > MIN_STORED_BYTES else list


def _read_labels(config: TaskConfig, task: Task, source: Source, setting: str) -> tuple[Task, Sequence[Example]]:
    """Read the training rows of a task that leaves its labels to them, and complete the task by its label column.

    The labels get the type they have in the rows. Numbers that are no classes make the task a regression, unless a
    setting says that there are classes.
    """
    column = LabelColumn(task.label)
    collect = _collector(source)
    train = collect_examples(
        source, task, collect, skip_bad_rows=config.skip_bad_rows, label_column=column, setting=setting
    )
    says_classes = "kind" in task.model_fields_set or task.metric or config.label_words or config.label_descriptions
    if not says_classes and not config.stratified and column.holds_numbers():
        warnings.warn(
            f"column '{task.label}' has {column.num_distinct} different numbers, so this is a regression; "
            "task.kind=classification makes each of them a class",
            stacklevel=3,
        )
        task = task.model_copy(update={"kind": "regression"})
        return task, collect_examples(source, task, collect, skip_bad_rows=config.skip_bad_rows, setting=setting)
    is_split_text = task.kind == "multi-label" and not holds_label_lists(source, task)
    if is_split_text and all(len(example.labels) < 2 for example in train):
        if "separator" not in task.model_fields_set:
            _check_separator(task, train)
        warnings.warn(
            f"no row of column '{task.label}' has more than one label; in a text, '{task.separator}' stands between "
            "labels (task.separator)",
            stacklevel=3,
        )
    task = task.model_copy(update={"label_type": column.label_type()})
    return with_labels(task, train, {}, class_names=column.class_names), train


def _check_separator(task: Task, train: Sequence[Example]) -> None:
    """Check that labels without the task's separator do not have another usual one in most rows."""
    labels = [example.labels[0] for example in train if example.labels]
    for separator in USUAL_SEPARATORS:
        with_other = [label for label in labels if separator in label]
        if 2 * len(with_other) > len(labels):
            counted = f"{len(with_other):,} of {len(labels):,} cells have '{separator}', none has '{task.separator}'"
            raise DataError(
                setting=f"column '{task.label}'",
                got=with_other[0],
                expected=f"'{task.separator}' between the labels of a row; {counted}",
                fix=f"pass `separator='{separator}'`, or `separator='{task.separator}'` if each cell is one label",
            )


def _own_labels_hint(task: Task, train: Sequence[Example]) -> str:
    """What is odd about training rows of which nearly each has its own class, and what to do; else empty."""
    num_labels, num_rows = len(task.labels), len(train)
    if not task.has_classes or num_rows < MIN_ROWS_TO_TELL or num_labels < MAX_SHARE_OF_LABELS * num_rows:
        return ""
    return (
        f"{num_rows:,} training rows have {num_labels:,} different labels in the column '{task.label}'; the columns "
        f"may be swapped (text: {', '.join(task.text)}), or set task.kind={kinds_for(task.labels)}"
    )


def _check_not_swapped(task: Task, train: Sequence[Example]) -> None:
    """Check that the columns are not swapped: nearly each row has its own label, and few texts are different."""
    if not _own_labels_hint(task, train):
        return
    num_texts = len(distinct(train))
    if 2 * num_texts <= len(train):
        raise DataError(
            setting=f"label column '{task.label}'",
            got=f"{len(task.labels):,} labels and {num_texts:,} different texts in {len(train):,} rows",
            expected="labels that several rows share",
            fix=f"the columns may be swapped: pass `text={task.label}` and `label={task.text[0]}`",
        )


def _split_sources(config: TaskConfig, task: Task, objects: Mapping[str, Any]) -> dict[str, Source]:
    """The source of each split: rows in memory, else files of the user, else files below `data`, else of the task."""
    origins: dict[str, Source] = {split: getattr(task, split) for split in SPLITS}
    if config.data and not config.train:
        files = sources(task, config.data)
        origins = {split: getattr(config, split) or files.get(split, "") for split in SPLITS}
    if "train" in objects:  # the other splits of a bundled task do not belong to the user's rows
        origins |= {"validation": config.validation, "test": config.test}
        dataset_splits = splits_of(objects["train"]) or {}
        for split in ("validation", "test"):
            if not origins[split] and split in dataset_splits and has_targets(dataset_splits[split], task):
                origins[split] = dataset_splits[split]
    return origins | {split: _choose_split(source, split) for split, source in objects.items()}


def _choose_split(source: Any, split: str) -> Source:
    """The rows of a split: of a `DatasetDict` the split of that name. Rows that can be read only once are kept."""
    dataset_splits = splits_of(source)
    if dataset_splits is None:
        return list(source) if isinstance(source, Iterator) else source
    if split not in dataset_splits:
        raise ConfigurationError(
            setting=split,
            got=f"a DatasetDict with {', '.join(dataset_splits)}",
            expected=f"the split '{split}' in it",
            fix=f"pass one of its splits, such as data['{next(iter(dataset_splits), split)}']",
        )
    return dataset_splits[split]


def _check_sampling(config: TaskConfig, task: Task) -> None:
    """Check, before any row is read, that the sampling settings fit each other and the task."""
    if config.few_shot and config.shots_per_class:
        raise ConfigurationError(
            setting="task.shots_per_class",
            got=config.shots_per_class,
            expected=f"no task.few_shot beside it (here {config.few_shot})",
            fix="set one of the two",
        )
    if config.shots_per_class and not task.has_row_labels:
        raise ConfigurationError(
            setting="task.shots_per_class",
            got=config.shots_per_class,
            expected=f"a task with classes, not {task.kind}",
            fix="set task.few_shot instead",
        )
    if config.is_few_shot and config.train_rows:
        raise ConfigurationError(
            setting="task.few_shot" if config.few_shot else "task.shots_per_class",
            got=config.few_shot or config.shots_per_class,
            expected=f"no task.train_rows beside it (here {config.train_rows})",
            fix="set one of the two",
        )
    if config.stratified and not task.has_classes:
        raise ConfigurationError(
            setting="task.stratified", got=True, expected=f"a task with classes, not {task.kind}", fix="leave it out"
        )
    if config.swap_pairs and task.kind not in ("classification", "multi-label", "regression"):
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


def _choose_rows(
    config: TaskConfig, task: Task, train: Sequence[Example], validation: Sequence[Example]
) -> tuple[Sequence[Example], Sequence[Example]]:
    """Training and validation rows, limited to their sizes. Without validation rows, training rows are held out."""
    if not validation:
        train, validation = split_off(
            train,
            config.validation_share,
            config.sample_seed,
            by_class=task.has_classes,
            spread_numbers=config.spread_numbers,
        )
        if not validation:
            fix = "pass `validation=FILE`: too few training rows to hold any out"
            if hint := _own_labels_hint(task, train):
                fix = hint
            raise ConfigurationError(setting="task.validation", got="", expected="validation rows", fix=fix)
    train = limit_rows(train, config.train_rows, config.sample_seed, config.stratified)
    return train, limit_rows(validation, config.validation_rows, config.sample_seed)


def _describe_origin(config: TaskConfig, task: Task, train: Sequence[Example], validation: Sequence[Example]) -> str:
    """Where validation rows come from that were held out of all training rows, and why they are so many."""
    share = len(validation) / len(train)
    text = f"held out of {len(train):,} training rows: {100 * share:.0f} %"
    has_own_size = config.is_few_shot or config.validation_rows
    if has_own_size or abs(share - config.validation_share) <= MAX_ROUNDING:
        return text
    reasons = []
    sizes = Counter(example.target if task.has_classes else None for example in train)
    num_by_class = sum(_num_held_out(config.validation_share, size) for size in sizes.values())
    num_by_share = round(config.validation_share * len(train))
    if num_by_class != num_by_share:
        reasons.append("at least one of each class" if num_by_class > num_by_share else "each class keeps a row")
    if task.kind == "multi-label" and len(validation) < num_by_class:
        reasons.append("each label keeps a row")
    elif len(validation) != num_by_class:
        reasons.append("copies of a text stay together")
    return (
        f"{text} instead of {100 * config.validation_share:.0f} %, because {' and '.join(reasons)}" if reasons else text
    )


def _reserve_scored_rows(
    task: Task, validation: Sequence[Example], test: Sequence[Example]
) -> tuple[Sequence[Example], Sequence[Example]]:
    """The validation and test rows of a few-shot run on a task's own files.

    Scores of a task without test rows (GLUE, SuperGLUE) are reported on its validation file. A few-shot run therefore
    scores that file at the end and validates on training rows, as IDPG does on every published task (Wu et al. 2022,
    section 4.4).
    """
    if not test:
        return [], validation
    return ([], test) if task.files else (validation, test)


def _choose_few_shot(
    config: TaskConfig, task: Task, train: Sequence[Example], validation: Sequence[Example]
) -> tuple[Sequence[Example], Sequence[Example]]:
    """K distinct training rows, and validation rows that are no copies: from the rest, or from a file of their own."""
    num_validation = config.validation_rows or FEW_SHOT_VALIDATION_ROWS
    if config.shots_per_class:
        _check_classes(config.shots_per_class, task, train)
    chosen, remaining = few_shot(
        train, config.few_shot, num_validation, config.sample_seed, config.stratified, config.shots_per_class
    )
    if config.shots_per_class:
        config = config.model_copy(update={"few_shot": len(chosen)})
    num_texts = len(distinct(train))
    origin, fix = f"{num_texts} distinct training texts", "lower it, or pass `validation=FILE`"
    if validation:
        if len(chosen) < config.few_shot:
            raise ConfigurationError(
                setting="task.few_shot",
                got=config.few_shot,
                expected=f"at most {num_texts}, the number of distinct training texts",
                fix="lower it",
            )
        origin, fix = f"{len(validation)} validation rows", "pass other rows with `validation=FILE`"
        remaining = sample(without_copies(validation, chosen), num_validation, config.sample_seed)
    if not remaining:
        raise ConfigurationError(
            setting="task.few_shot",
            got=config.few_shot,
            expected=f"rows of the {origin} to be left to validate on, none a copy of a training row",
            fix=fix,
        )
    # A validation file with fewer rows than the default number needs no warning.
    if len(remaining) < num_validation and (config.validation_rows or not validation):
        warnings.warn(
            f"{len(remaining)} rows to validate on instead of {num_validation}: the {origin} have no more beside "
            f"task.few_shot={config.few_shot}",
            stacklevel=4,
        )
    return chosen, remaining


def _check_classes(num_rows: int, task: Task, train: Sequence[Example]) -> None:
    """Check that each class or label has so many distinct training rows."""
    counts = Counter(name for example in distinct(train) for name in task.labels_of(example))
    rarest = min(counts, key=counts.__getitem__)
    noun = "class" if task.has_classes else "label"
    if counts[rarest] < num_rows:
        raise ConfigurationError(
            setting="task.shots_per_class",
            got=num_rows,
            expected=f"at most {counts[rarest]}, the distinct rows of the {noun} '{rarest}'",
            fix="lower it, or set task.few_shot" + (" with task.stratified=true" if task.has_classes else ""),
        )


def _should_stream(config: TaskConfig, task: Task, origins: Mapping[str, Source]) -> bool:
    """Whether to sample training rows from a large file without loading it: nothing else may need the other rows."""
    is_plain_sample = not config.is_few_shot and not config.stratified and _is_given(origins["validation"])
    has_labels = bool(task.labels) or not (task.has_row_labels or task.kind == "tags")
    is_large = size_of(origins["train"]) > MIN_STREAMED_BYTES
    return bool(config.train_rows) and is_plain_sample and has_labels and is_large


def is_task_name(name: str) -> bool:
    """Whether a name is a task of the library or a task file.

    Example:
        >>> is_task_name("rte"), is_task_name("mine.yaml"), is_task_name("mine")
        (True, True, False)
    """
    return name in library_names() or Path(name).suffix.lower() in TASK_SUFFIXES


def _is_given(source: Source) -> bool:
    return not isinstance(source, str) or bool(source)


def limit_rows(examples: Sequence[Example], num_rows: int, seed: int, stratified: bool = False) -> Sequence[Example]:
    """Draw a seeded sample of at most `num_rows` rows; 0 keeps all rows.

    Example:
        >>> rows = [Example((str(number),)) for number in range(9)]
        >>> len(limit_rows(rows, 4, seed=0)), len(limit_rows(rows, 0, seed=0))
        (4, 9)
    """
    return sample(examples, num_rows, seed, stratified) if num_rows else examples


def resolve_task(config: TaskConfig) -> Task:
    """The library task or task file of that name with the user's changes, or a new task from the user's columns.

    Example:
        >>> resolve_task(TaskConfig(name="rte", metric="f1")).main_metric
        'f1'
    """
    changes: dict[str, Any] = {key: value for key in TASK_KEYS if (value := getattr(config, key))}
    if config.separator is not None and changes.setdefault("kind", "multi-label") != "multi-label":
        raise ConfigurationError(
            setting="task.separator",
            got=config.separator,
            expected=f"task.kind=multi-label beside it, not {config.kind}",
            fix="leave one of the two out",
        )
    # A name without columns must be a known task, so that a misspelt name is an error.
    is_existing = is_task_name(config.name) or (config.name and not (config.text or config.label))
    base = find_task(config.name).model_dump(exclude_unset=True) if is_existing else {"name": config.name or "task"}
    if config.train:
        base |= {"validation": "", "test": ""}
    try:
        return Task.model_validate(base | changes)
    except ValidationError as error:
        raise as_configuration_error("task", error) from error


# --- sampling ---


def split_off(
    examples: Sequence[Example], share: float, seed: int, by_class: bool = True, spread_numbers: bool = True
) -> tuple[Sequence[Example], Sequence[Example]]:
    """Hold out a share of every class (or of all rows together) for validation; the seed alone decides which.

    Every class, and every label of sets of labels, keeps at least one row for training. Numbers (of a regression) are
    held out evenly from the lowest to the highest. Copies of a text, or of a pair in either order, stay together.

    Example:
        >>> rows = [Example((str(i),), "ab"[i % 2]) for i in range(20)]
        >>> train, validation = split_off(rows, 0.2, seed=0)
        >>> len(train), len(validation), {row.target for row in validation} == {"a", "b"}
        (16, 4, True)
    """
    import numpy

    identities = _number_identities(examples)  # [N]
    class_numbers: dict[object, int] = {}
    classes = numpy.zeros(int(identities.max(initial=-1)) + 1, numpy.int32)  # of each identity: that of its last row
    numbers = numpy.full(len(classes), numpy.nan)  # of each identity: the number of its last row
    label_sets: dict[int, Counter[str]] = defaultdict(Counter)
    num_left: Counter[str] = Counter()  # label -> rows left for training
    for identity, example in zip(identities.tolist(), examples, strict=True):
        target = example.target if by_class and isinstance(example.target, str) else None
        classes[identity] = class_numbers.setdefault(target, len(class_numbers))
        if isinstance(example.target, float):
            numbers[identity] = example.target
        if example.labels:
            label_sets[identity].update(example.labels)
            num_left.update(example.labels)
    generator = random.Random(seed)
    is_held_out = numpy.zeros(len(classes), bool)
    _, first_identities = numpy.unique(classes, return_index=True)
    for first in sorted(first_identities.tolist()):
        members: list[int] = numpy.nonzero(classes == classes[first])[0].tolist()
        generator.shuffle(members)
        num_held_out = _num_held_out(share, len(members))
        if spread_numbers and not numpy.isnan(numbers[members]).any():
            members = _one_of_each_part(members, numbers, num_held_out)
        for identity in members:
            labels = label_sets.get(identity) or Counter[str]()
            if num_held_out and all(num_left[label] > count for label, count in labels.items()):
                is_held_out[identity] = True
                num_left.subtract(labels)
                num_held_out -= 1
    mask = is_held_out[identities]
    return take(examples, numpy.nonzero(~mask)[0].tolist()), take(examples, numpy.nonzero(mask)[0].tolist())


def _num_held_out(share: float, num_rows: int) -> int:
    """How many rows of a class are held out: at least one, and at least one is left."""
    return min(max(1, round(share * num_rows)), num_rows - 1)


def _one_of_each_part(
    members: Sequence[int], numbers: numpy.ndarray[Any, numpy.dtype[numpy.float64]], num_parts: int
) -> list[int]:
    """The first member of each part when the members are ordered by their numbers and cut into parts of equal size."""
    ranks = {member: rank for rank, member in enumerate(sorted(members, key=lambda member: numbers[member]))}
    firsts: dict[int, int] = {}
    for member in members if num_parts else ():
        firsts.setdefault(ranks[member] * num_parts // len(members), member)
    return list(firsts.values())


def _number_identities(examples: Sequence[Example]) -> numpy.ndarray[Any, numpy.dtype[numpy.int64]]:
    """The number of each example's identity, in the order of their first rows. [N]

    Identities are compared by 64 bits of their digest, so that memory does not grow with the texts.
    """
    import numpy

    digests = numpy.fromiter(map(_identity_digest, examples), numpy.uint64, len(examples))
    _, first, inverse = numpy.unique(digests, return_index=True, return_inverse=True)
    numbers = numpy.empty(len(first), numpy.int64)
    numbers[numpy.argsort(first)] = numpy.arange(len(first))
    return numbers[inverse]


def _identity_digest(example: Example) -> int:
    text = repr(_identity(example)).encode("utf-8", "surrogatepass")
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")


def sample(examples: Sequence[Example], num_rows: int, seed: int, stratified: bool = False) -> list[Example]:
    """Draw a seeded sample without replacement, in the order of the rows; all rows if there are not more.

    A stratified sample has the `shares` of the classes. Rows of one group are drawn together, so the sample may be a
    little smaller than `num_rows`.

    Example:
        >>> len(sample([Example((str(i),)) for i in range(9)], 4, seed=1))
        4
    """
    if num_rows >= len(examples):
        return list(examples)
    if stratified:
        chosen = set(_draw_by_class(examples, _random_order(len(examples), seed), num_rows))
    else:
        chosen = _draw_indices([example.group for example in examples], num_rows, seed)
    return [examples[index] for index in sorted(chosen)]


def sample_examples(
    source: Source, task: Task, num_rows: int, seed: int, skip_bad_rows: bool = False, setting: str = "data"
) -> list[Example]:
    """Draw the same rows as `sample` from a source larger than memory: it is read twice, and every row is checked.

    Example:
        >>> rows = [{"text": str(i), "label": "ab"[i % 2]} for i in range(9)]
        >>> len(sample_examples(rows, Task(name="toy"), 4, seed=0))
        4
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the second pass warns about skipped rows
        first_pass = stream_examples(source, task, skip_bad_rows=skip_bad_rows, setting=setting)
        groups = [example.group for example in first_pass]
    chosen = _draw_indices(groups, num_rows, seed)
    rows = stream_examples(source, task, skip_bad_rows=skip_bad_rows, setting=setting)
    return [example for index, example in enumerate(rows) if index in chosen]


def _draw_indices(groups: Sequence[str], num_rows: int, seed: int) -> set[int]:
    """The indices of a sample. Of rows in groups, complete groups are taken as long as they fit."""
    if num_rows >= len(groups):
        return set(range(len(groups)))
    if not any(groups):
        return set(random.Random(seed).sample(range(len(groups)), num_rows))
    members: dict[str, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        members[group or f"row {index}"].append(index)
    indices: set[int] = set()
    for name in random.Random(seed).sample(list(members), len(members)):
        if len(indices) + len(members[name]) <= num_rows:
            indices.update(members[name])
    return indices or set(members[next(iter(members))])


def few_shot(
    examples: Sequence[Example],
    num_train: int,
    num_validation: int,
    seed: int,
    stratified: bool = False,
    per_class: int = 0,
) -> tuple[list[Example], list[Example]]:
    """Draw training rows, and validation rows from the rest; no row is a copy of another.

    Of the copies of a text only the first row is used. If too few rows are left, there are fewer validation rows. The
    seed alone decides, in every process and Python version. With `per_class` there are so many training rows of each
    class. Of sets of labels, each label then has at least so many rows, and so many rows have none, if there are.

    Example:
        >>> rows = [Example((str(i),), "ab"[i % 2]) for i in range(20)]
        >>> train, validation = few_shot(rows, 4, 10, seed=0, stratified=True)
        >>> [row.target for row in train].count("a"), len(validation), set(train) & set(validation)
        (2, 10, set())
    """
    pool = distinct(examples)
    order = _random_order(len(pool), seed)
    if per_class:
        chosen = _draw_each_label(pool, order, per_class)
    else:
        chosen = _draw_by_class(pool, order, num_train) if stratified else order[:num_train]
    used = {_identity(pool[index]) for index in chosen}
    remaining = [index for index in order if _identity(pool[index]) not in used][:num_validation]
    return [pool[index] for index in sorted(chosen)], [pool[index] for index in sorted(remaining)]


def distinct(examples: Sequence[Example]) -> list[Example]:
    """The first row of every distinct text (or ordered pair).

    Example:
        >>> rows = [Example(("hi",), "a"), Example(("hi",), "b"), Example(("ho",), "b")]
        >>> distinct(rows) == [rows[0], rows[2]]
        True
    """
    first_rows: dict[tuple[str, ...], Example] = {}
    for example in examples:
        first_rows.setdefault(example.texts, example)
    return list(first_rows.values())


def shares(sizes: Mapping[str, int], num_rows: int) -> dict[str, int]:
    """The number of rows per class in a stratified sample, by the largest remainder; ties go to the first class.

    If there are at least as many rows as classes, every class gets a row. It is taken from the class that is furthest
    above its exact share and has more than one row.

    Example:
        >>> shares({"a": 6, "b": 3, "c": 1}, 4)  # 2.4, 1.2 and 0.4 rows; c would get none
        {'a': 2, 'b': 1, 'c': 1}
    """
    total = sum(sizes.values())
    parts = {name: divmod(num_rows * size, total) for name, size in sizes.items()}  # integers, so no rounding
    counts = {name: whole for name, (whole, _) in parts.items()}
    by_remainder = sorted(parts, key=lambda name: -parts[name][1])
    for name in by_remainder[: num_rows - sum(counts.values())]:
        counts[name] += 1
    if num_rows >= len(counts):
        for name in [name for name, count in counts.items() if count == 0]:
            donors = [donor for donor, count in counts.items() if count > 1]
            counts[max(donors, key=lambda donor: counts[donor] * total - num_rows * sizes[donor])] -= 1
            counts[name] = 1
    return counts


def with_swapped(examples: Sequence[Example]) -> Sequence[Example]:
    """All pairs, then all pairs with their texts in the other order (IDPG, Wu et al. 2022, appendix A.4).

    Example:
        >>> with_swapped([Example(("first", "second"), "same")])[1].texts
        ('second', 'first')
    """
    swapped = (replace(example, texts=example.texts[::-1]) for example in examples)
    return collect_as(examples, chain(examples, swapped))


def without_copies(examples: Sequence[Example], others: Sequence[Example]) -> list[Example]:
    """The rows that are not copies of any of the others. Targets do not matter; a swapped pair is a copy.

    Example:
        >>> rows = [Example(("b", "a")), Example(("b", "c"))]
        >>> [row.texts for row in without_copies(rows, [Example(("a", "b"))])]
        [('b', 'c')]
    """
    identities = {_identity(other) for other in others}
    return [example for example in examples if _identity(example) not in identities]


def _identity(example: Example) -> tuple[str, ...]:
    """The key that copies share. Pairs in either order and rows of one group count as copies, so none leak."""
    if example.group:
        return (example.group,)
    # Questions about one text give away each other's answers.
    return (example.texts[-1],) if example.answers else tuple(sorted(example.texts))


def _random_order(num_rows: int, seed: int) -> list[int]:
    """All indices in a seeded random order."""
    # Only random() gives the same numbers for a seed in every Python version; sample() and shuffle() may change.
    generator = random.Random(seed)
    keys = [generator.random() for _ in range(num_rows)]
    return sorted(range(num_rows), key=keys.__getitem__)


def _draw_each_label(examples: Sequence[Example], order: Sequence[int], per_class: int) -> list[int]:
    """The indices, in that order, of rows with a class or label that fewer than `per_class` rows before them have."""
    counts: Counter[str] = Counter()
    chosen = []
    for index in order:
        labels = examples[index].labels or (str(examples[index].target),)  # rows without labels are a class too
        if any(counts[label] < per_class for label in labels):
            counts.update(labels)
            chosen.append(index)
    return chosen


def _draw_by_class(examples: Sequence[Example], order: Sequence[int], num_rows: int) -> list[int]:
    """The first indices of each class in that order, as many as its share of `num_rows`."""
    classes: dict[str, list[int]] = {name: [] for name in sorted({str(example.target) for example in examples})}
    for index in order:
        classes[str(examples[index].target)].append(index)
    counts = shares({name: len(indices) for name, indices in classes.items()}, num_rows)
    return [index for name, indices in classes.items() for index in indices[: counts[name]]]
