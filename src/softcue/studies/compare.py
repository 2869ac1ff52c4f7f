"""`softcue.compare`: finished cues of one task on the same rows, or methods that are trained for it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any, Unpack, overload

from softcue.api import TrainArguments
from softcue.cue import Cue
from softcue.cue.hub import find_cue_folder
from softcue.errors import ConfigurationError, near_matches
from softcue.evaluation import read_evaluation_set
from softcue.studies.cue_loading import check_several, load_cues_of_one_task, task_of
from softcue.studies.methods import MethodComparison, compare_methods, make_line_report
from softcue.studies.predictions import PredictionComparison, compare_predictions
from softcue.tasks import Source
from softcue.tasks.columns import rename_columns

# Arguments of finished cues that are also arguments of `softcue.train`.
SHARED_NAMES = ("batch_size", "allow_pickle", "skip_bad_rows")


@overload
def compare(
    cues: Sequence[str | Path | Cue],
    *,
    data: Source | None = None,
    split: str = "",
    rows: int = 0,
    columns: Mapping[str, str] | None = None,
    batch_size: int = 64,
    allow_pickle: bool = False,
    skip_bad_rows: bool = False,
) -> PredictionComparison: ...
@overload
def compare(
    *,
    methods: Sequence[str],
    output_dir: str | Path,
    seeds: int = 3,
    backbones: Sequence[str] | None = None,
    **arguments: Unpack[TrainArguments],
) -> MethodComparison: ...


def compare(
    cues: Sequence[str | Path | Cue] | None = None,
    *,
    data: Source | None = None,
    split: str = "",
    rows: int = 0,
    columns: Mapping[str, str] | None = None,
    methods: Sequence[str] | None = None,
    output_dir: str | Path | None = None,
    seeds: int | None = None,
    backbones: Sequence[str] | None = None,
    **arguments: Any,
) -> PredictionComparison | MethodComparison:
    """Compare finished cues of one task on the same rows, or train methods with several seeds and compare those.

    Finished cues are folders, `hub:OWNER/NAME` or loaded cues. `data` holds rows with targets: a file, a DataFrame, a
    Dataset or a list of dictionaries; without it, `split` names one of the task's own rows. `rows` takes a sample of
    that many. `columns` is {name in the data: name that the cue reads}. `batch_size`, `allow_pickle` and
    `skip_bad_rows` are those of `cue.evaluate` and `softcue.load`.

    With `methods`, every method is trained on every backbone with the seeds 0, 1, ...; further arguments are those of
    `softcue.train`. The cues are in `output_dir`. Called again, it goes on where it was, unless `overwrite` is true.
    Each finished run is a line on standard error; `progress=False` leaves them out.

    The result is used like a DataFrame: `result["mean"]` is a column, `result.to_pandas()` a frame. It also has
    `baselines` (majority class and zero-shot on the same rows), `pairs`, `sentences`, `notes` and `save(folder)`, and
    shows all of this in a notebook.

    Example:
        result = softcue.compare(["cues/a", "cues/b"], data="held-out.csv")
        result["accuracy"], result.pairs["p_value"], result.sentences
        result = softcue.compare(methods=["linear-probe", "vip"], output_dir="runs/tickets", task="tickets", seeds=3)
        result.to_pandas().plot.scatter("trainable", "mean")
    """
    cue_arguments = {"split": split or None, "rows": rows or None, "columns": columns or None}
    method_arguments = {"output_dir": output_dir, "seeds": seeds, "backbones": backbones, **arguments}
    if methods is None:
        given = _given(method_arguments)
        shared = {name: given.pop(name) for name in SHARED_NAMES if name in given}
        _check_names(given)
        _refuse(given, expected="`methods` beside it", fix="name methods to train, or leave it out")
        return _compare_cues(_as_list(cues), data, split, rows, columns or {}, **shared)
    _refuse(_given({"cues": cues, **cue_arguments}), expected="finished cues, without `methods`", fix="leave it out")
    if output_dir is None:
        raise ConfigurationError(
            setting="output_dir", got=None, expected="a folder for the cues", fix="pass `output_dir=runs/NAME`"
        )
    if data is not None and not isinstance(data, (str, Path)):
        raise ConfigurationError(
            setting="data",
            got=type(data).__name__,
            expected="a folder with the task's files, beside `methods`",
            fix="pass rows as `train=ROWS`, `validation=ROWS` and `test=ROWS`",
        )
    given = _given({**method_arguments, "data": data, "backbones": _as_list(backbones) or None})
    report = make_line_report(given.pop("progress", True))
    return compare_methods(methods=_as_list(methods), report=report, **given)


def _compare_cues(
    cues: Sequence[str | Path | Cue],
    data: Source | None,
    split: str,
    num_rows: int,
    columns: Mapping[str, str],
    batch_size: int = 64,
    allow_pickle: bool = False,
    skip_bad_rows: bool = False,
) -> PredictionComparison:
    check_several(cues)
    cues = [cue if isinstance(cue, Cue) else find_cue_folder(cue) for cue in cues]
    [row_task] = rename_columns([task_of(cues[0])], columns)
    evaluation_set = read_evaluation_set(row_task, data, "", split, num_rows, skip_bad_rows)
    loaded = load_cues_of_one_task(cues, allow_pickle)
    predictions = {
        name: cue.evaluate_set(evaluation_set, batch_size, baselines=False)[1] for name, cue in loaded.items()
    }
    # Cues on one backbone share its zero-shot predictions, which are kept while it is loaded.
    baselines = {name: cue.baseline_predictions(evaluation_set, batch_size) for name, cue in loaded.items()}
    return compare_predictions(loaded, evaluation_set, predictions, baselines=baselines)


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


def _as_list(values: Any) -> list[Any]:
    """A single name or cue is a list of one."""
    return [values] if isinstance(values, (str, Path, Cue)) else list(values or ())


def _check_names(arguments: Mapping[str, Any]) -> None:
    names = {*signature(compare).parameters, *TrainArguments.__annotations__} - {"arguments"}
    for name in arguments.keys() - names:
        raise ConfigurationError(
            setting=name, got=arguments[name], expected="an argument of softcue.compare", fix=near_matches(name, names)
        )


def _refuse(arguments: Mapping[str, Any], expected: str, fix: str) -> None:
    """Raise an error if an argument of the other form is given."""
    for name, value in arguments.items():
        raise ConfigurationError(setting=name, got=value, expected=expected, fix=fix)
