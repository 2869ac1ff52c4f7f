"""`softcue.train`: turns its arguments into the settings of a run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack, overload

from softcue.auto_run import make_training_run
from softcue.backbones import Backbone
from softcue.configuration import Settings, merged, override, parse_overrides, read_settings
from softcue.cue import Cue
from softcue.errors import ConfigurationError
from softcue.run import Run
from softcue.tasks import Source

# Settings whose argument has another name.
PYTHON_NAMES = {
    ("backbone", "name"): "backbone",
    ("method", "name"): "method",
    ("task", "name"): "task",
    ("task", "kind"): "multi_label",
}


class TrainArguments(TypedDict, total=False):
    """The arguments of `train` besides the folder and `tasks`, for editors and type checkers."""

    backbone: str | Path | Backbone | None
    method: str | None
    recipe: str | None
    task: str | None
    data: str | Path | None
    train: Source | None
    validation: Source | None
    test: Source | None
    text: str | Sequence[str] | None
    label: str | None
    multi_label: bool | None
    separator: str | None
    epochs: int | None
    learning_rate: float | None
    network_learning_rate: float | None
    batch_size: int | None
    prompt_length: int | None
    max_length: int | None
    allow_pickle: bool | None
    few_shot: int | None
    shots_per_class: int | None
    seed: int | None
    init_from: str | Path | None
    skip_bad_rows: bool | None
    config: str | Path | Mapping[str, Any] | None
    overrides: Mapping[str, Any] | Iterable[str]
    resume: bool
    overwrite: bool
    progress: bool


@overload
def train(output_dir: str | Path, *, tasks: Sequence[str], **arguments: Unpack[TrainArguments]) -> dict[str, Cue]: ...
@overload
def train(output_dir: str | Path, *, tasks: None = None, **arguments: Unpack[TrainArguments]) -> Cue: ...


def train(
    output_dir: str | Path,
    *,
    backbone: str | Path | Backbone | None = None,
    method: str | None = None,
    recipe: str | None = None,
    task: str | None = None,
    tasks: Sequence[str] | None = None,
    data: str | Path | None = None,
    train: Source | None = None,
    validation: Source | None = None,
    test: Source | None = None,
    text: str | Sequence[str] | None = None,
    label: str | None = None,
    multi_label: bool | None = None,
    separator: str | None = None,
    epochs: int | None = None,
    learning_rate: float | None = None,
    network_learning_rate: float | None = None,
    batch_size: int | None = None,
    prompt_length: int | None = None,
    max_length: int | None = None,
    allow_pickle: bool | None = None,
    few_shot: int | None = None,
    shots_per_class: int | None = None,
    seed: int | None = None,
    init_from: str | Path | None = None,
    skip_bad_rows: bool | None = None,
    config: str | Path | Mapping[str, Any] | None = None,
    overrides: Mapping[str, Any] | Iterable[str] = (),
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = True,
) -> Cue | dict[str, Cue]:
    """Train a task on a frozen backbone and write its cue folder; with `tasks`, one prompt for several tasks.

    If no method is named, it is `p-tuning-v2` on encoders and `prompt-tuning` on other backbones; with `init_from`,
    that of the cue.

    Rows come from a known task (`task="tickets"`, or `task="rte"` with the folder of its published files as `data`)
    or from your own files, DataFrames, Datasets or lists of dictionaries with the columns `text` and `label`. A
    `datasets.DatasetDict` as `train` also gives its validation and test rows. If `label` holds lists, a row has a set
    of labels (multi-label): none, one or several. `multi_label=True` says so of a column with texts such as
    "billing; shipping"; `separator` is what stands between the labels. Settings that are not given come from
    the method's preset for this kind of backbone, or with `recipe="paper"` from the method's paper. The common ones
    have names: `epochs`, `learning_rate` (of prompt vectors), `network_learning_rate` (of heads, generators and
    adapters), `batch_size`, `prompt_length` and `max_length`. `overrides` sets any setting that `softcue config`
    lists: `{"training.patience": 3}`. The same setting with two values, as argument and as override, is an error;
    arguments and overrides win over `config`. With `few_shot`, only that many training rows are used; with
    `shots_per_class`, that many of each class. `init_from`
    starts from a finished cue of the same method and backbone. `skip_bad_rows` leaves out rows that cannot be used;
    without it they are an error. `allow_pickle` opens a backbone whose weights are a pickle, which can run code; a
    configuration file alone cannot say it.

    `method="auto"` tries several methods and keeps the best on validation rows; `selection.*` overrides say which, and
    for how long. `cue.selection` tells what was tried.

    `tasks` names several tasks (or task files) that share one prompt. The run then writes a cue folder for each below
    `output_dir` and returns the cues by task name. `mixture.*` overrides set how rows are mixed. The run
    keeps the prompt with the best mean validation score over the tasks.

    Example:
        cue = softcue.train("cues/tickets", task="tickets", epochs=5, prompt_length=10)
        cue = softcue.train("cues/mine", train=frame, text="message", label="team", backbone="minilm")
        cue = softcue.train("cues/topics", train="news.csv", text="title", label="topics", multi_label=True)
        cue = softcue.train("cues/rte", task="rte", method="m-idpg-phm", recipe="paper", backbone="roberta-large")
        cue = softcue.train("cues/best", task="tickets", method="auto", overrides={"selection.seconds": 600})
        cues = softcue.train("cues/help-desk", tasks=["tickets", "urgency"])
    """
    requested = request_run(
        tasks,
        backbone=backbone,
        method=method,
        recipe=recipe,
        task=task,
        data=data,
        train=train,
        validation=validation,
        test=test,
        text=text,
        label=label,
        multi_label=multi_label,
        separator=separator,
        epochs=epochs,
        learning_rate=learning_rate,
        network_learning_rate=network_learning_rate,
        batch_size=batch_size,
        prompt_length=prompt_length,
        max_length=max_length,
        allow_pickle=allow_pickle,
        few_shot=few_shot,
        shots_per_class=shots_per_class,
        seed=seed,
        init_from=init_from,
        skip_bad_rows=skip_bad_rows,
        config=config,
        overrides=overrides,
    )
    run = make_training_run(Path(output_dir), requested.settings, **requested.options)
    cues = run.execute(resume=resume, overwrite=overwrite, progress=progress)
    return cues[0] if tasks is None else {cue.task.name: cue for cue in cues}


@dataclass(frozen=True)
class RequestedRun:
    """The run that arguments of `train` ask for. Nothing is read or loaded yet."""

    settings: Settings  # of the configuration file, with arguments and overrides on top
    given: Settings  # of arguments and overrides alone
    recipe: str
    tables: Mapping[str, Any]  # rows that are no files, by split
    backbone: Backbone | None  # if it is loaded already
    is_joint: bool

    @property
    def options(self) -> dict[str, Any]:
        """What `Run` takes beside folder and settings."""
        return {
            "backbone": self.backbone,
            "tables": self.tables,
            "is_joint": self.is_joint,
            "recipe": self.recipe,
        }

    def make_run(self, output_dir: str | Path, changes: Settings) -> Run:
        """Make the run of one method with changed settings: models are built, nothing is trained or written."""
        return Run(Path(output_dir), merged(self.settings, changes), **self.options)


def request_run(tasks: Sequence[str] | None = None, **arguments: Unpack[TrainArguments]) -> RequestedRun:
    """Turn arguments of `train` into settings; those of how it is executed, such as `resume`, are left to the caller.

    Example:
        >>> request_run(task="tickets", epochs=5).settings["training"]
        {'epochs': 5}
    """
    rows = {"train": arguments.get("train"), "validation": arguments.get("validation"), "test": arguments.get("test")}
    text, label = arguments.get("text"), arguments.get("label")
    if tasks is not None:
        single_task_arguments = {"task": arguments.get("task"), **rows, "text": text, "label": label}
        for argument, value in single_task_arguments.items():
            if value is not None:
                raise ConfigurationError(
                    setting=argument,
                    got=value,
                    expected="no argument of a single task beside `tasks`",
                    fix="leave it out",
                )
    files = {split: str(source) for split, source in rows.items() if isinstance(source, (str, Path))}
    tables = {split: source for split, source in rows.items() if source is not None and split not in files}
    backbone = arguments.get("backbone")
    sections: Settings = {
        "backbone": {
            "name": backbone.name if isinstance(backbone, Backbone) else str(backbone) if backbone else backbone,
            "max_length": arguments.get("max_length"),
            "allow_pickle": arguments.get("allow_pickle"),
        },
        "method": {"name": arguments.get("method"), "prompt_length": arguments.get("prompt_length")},
        "task": {
            "name": arguments.get("task"),
            "data": _as_text(arguments.get("data")),
            "text": text,
            "label": label,
            "kind": "multi-label" if arguments.get("multi_label") else None,
            "separator": arguments.get("separator"),
            "few_shot": arguments.get("few_shot"),
            "shots_per_class": arguments.get("shots_per_class"),
            "skip_bad_rows": arguments.get("skip_bad_rows"),
            **files,
        },
        "mixture": {"tasks": list(tasks) if tasks else None},
        "training": {
            "seed": arguments.get("seed"),
            "epochs": arguments.get("epochs"),
            "learning_rate": arguments.get("learning_rate"),
            "network_learning_rate": arguments.get("network_learning_rate"),
            "batch_size": arguments.get("batch_size"),
            "init_from": _as_text(arguments.get("init_from")),
        },
    }
    config, recipe = arguments.get("config"), arguments.get("recipe")
    base = read_settings(config) if isinstance(config, (str, Path)) else dict(config or {})
    recipe_of_file = base.pop("recipe", "default")
    overrides = arguments.get("overrides", ())
    overrides = overrides if isinstance(overrides, Mapping) else list(overrides)
    settings, given = _merge_settings(base, sections, overrides), _merge_settings({}, sections, overrides)
    if isinstance(config, (str, Path)):
        _check_pickle_is_named(config, settings, given)
    return RequestedRun(
        settings,
        given,
        recipe_of_file if recipe is None else recipe,
        tables,
        backbone if isinstance(backbone, Backbone) else None,
        is_joint=tasks is not None,
    )


def _merge_settings(base: Settings, arguments: Settings, overrides: Mapping[str, Any] | Iterable[str]) -> Settings:
    """Merge the settings of the configuration file with the given arguments and the overrides, which win over it."""
    given = {
        section: {key: value for key, value in values.items() if value is not None}
        for section, values in arguments.items()
    }
    if isinstance(overrides, Mapping):
        plain = {key: str(value) if isinstance(value, Path) else value for key, value in overrides.items()}
        override_settings = merged(*(override(key, value) for key, value in plain.items()))
    else:
        override_settings = parse_overrides(overrides)
    _check_no_conflict(given, override_settings)
    if "epochs" in given.get("training", {}) and base.get("training", {}).get("steps"):
        base = merged(base, {"training": {"steps": 0}})  # a number of steps would win over the epochs
    return merged(base, given, override_settings)


def _check_pickle_is_named(file: str | Path, settings: Settings, given: Settings) -> None:
    """Raise an error if only the file allows pickles: it may have come with somebody else's cue."""
    if settings.get("backbone", {}).get("allow_pickle") and "allow_pickle" not in given.get("backbone", {}):
        raise ConfigurationError(
            setting="backbone.allow_pickle",
            got=f"true, in {file} only",
            expected="your own word beside the file: a pickle can run any code when it is opened",
            fix="pass --allow-pickle (softcue.train: allow_pickle=True) if you trust the backbone's source",
        )


def _check_no_conflict(arguments: Settings, overrides: Settings) -> None:
    """Raise an error if an argument and an override give one setting two values."""
    for section, values in arguments.items():
        for key, value in values.items():
            other = overrides.get(section, {}).get(key, value)
            if other != value:
                raise ConfigurationError(
                    setting=f"{section}.{key}",
                    got=other,
                    expected=f"one value; the argument `{PYTHON_NAMES.get((section, key), key)}` says {value}",
                    fix="leave one of the two out",
                )
    epochs = arguments.get("training", {}).get("epochs")
    if epochs is not None and (num_steps := overrides.get("training", {}).get("steps")):
        raise ConfigurationError(
            setting="training.steps",
            got=num_steps,
            expected=f"no number of steps beside `epochs={epochs}`",
            fix="leave one of the two out",
        )


def _as_text(path: str | Path | None) -> str | None:
    return None if path is None else str(path)
