"""Cues of one task, which may be on different backbones; each backbone is loaded once."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from pathlib import Path

from softcue.backbones import Backbone
from softcue.cue import Cue, load
from softcue.cue.cue_file import check_each_once, read_cue_file
from softcue.errors import ConfigurationError
from softcue.evaluation import check_one_task
from softcue.tasks import Task


def check_several(cues: Sized) -> None:
    """Raise an error if there are fewer than two cues to compare.

    Example:
        >>> check_several(["cues/seed0", "cues/seed1"])
    """
    if len(cues) < 2:
        raise ConfigurationError(
            setting="cues",
            got=len(cues),
            expected="at least two cues",
            fix="name another cue folder (softcue evaluate scores one), or methods to train: `methods=A,B`",
        )


def task_of(cue: str | Path | Cue) -> Task:
    """The task of a cue, which need not be loaded.

    Example:
        task_of("cues/tickets").labels
    """
    return cue.task if isinstance(cue, Cue) else read_cue_file(Path(cue)).task


def num_trainable(cue: Cue) -> int:
    """The number of trained parameters, with the head.

    Example:
        num_trainable(softcue.load("cues/tickets"))
    """
    return cue.cue_file.counts.get("gradient", 0) + cue.cue_file.counts.get("head", 0)


def load_cues_of_one_task(cues: Sequence[str | Path | Cue], allow_pickle: bool = False) -> dict[str, Cue]:
    """Load cues by name: that of the folder, or as much of its path as tells it from the others.

    Cues that are loaded already stay as they are. Cues of other tasks than the first one are an error.

    Example:
        cues = load_cues_of_one_task(["cues/seed0", "cues/seed1"])
    """
    paths = [cue.path or Path(cue.name) if isinstance(cue, Cue) else Path(cue) for cue in cues]
    check_each_once(paths)
    check_one_task({str(path): task_of(cue) for path, cue in zip(paths, cues, strict=True)})
    backbones: dict[tuple[str, ...], Backbone] = {}
    loaded = {}
    for name, cue in zip(_short_names(paths), cues, strict=True):
        if not isinstance(cue, Cue):
            recorded = read_cue_file(Path(cue)).backbone
            key = (recorded.dtype, *recorded.fingerprint.values())
            cue = load(cue, backbones.get(key), allow_pickle=allow_pickle)
            backbones[key] = cue.backbone
        loaded[name] = cue
    return loaded


def _short_names(paths: Sequence[Path]) -> list[str]:
    """The last parts of each path, as many as tell all of them apart."""
    parts = [path.absolute().parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(path_parts[-length:]) for path_parts in parts]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]
