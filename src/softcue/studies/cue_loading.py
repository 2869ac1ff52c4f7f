"""Cues of one task, which may be on different backbones; each backbone is loaded once."""

from __future__ import annotations

from collections.abc import Sequence, Sized
from pathlib import Path

from softcue.backbones import Backbone
from softcue.cue import Cue, load
from softcue.cue.cue_file import check_each_once, read_cue_file
from softcue.errors import ConfigurationError
from softcue.evaluation import check_one_task


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
            fix="name another cue folder (softcue evaluate scores one), or methods to train: --methods A,B",
        )


def load_cues_of_one_task(folders: Sequence[str | Path], allow_pickle: bool = False) -> dict[str, Cue]:
    """Load cues by name: that of the folder, or as much of its path as tells it from the others.

    Cues of other tasks than the first one are an error.

    Example:
        cues = load_cues_of_one_task(["cues/seed0", "cues/seed1"])
    """
    paths = [Path(folder) for folder in folders]
    check_each_once(paths)
    check_one_task({str(path): read_cue_file(path).task for path in paths})
    backbones: dict[tuple[str, ...], Backbone] = {}
    cues = {}
    for name, path in zip(_short_names(paths), paths, strict=True):
        recorded = read_cue_file(path).backbone
        key = (recorded.dtype, *recorded.fingerprint.values())
        cue = load(path, backbones.get(key), allow_pickle=allow_pickle)
        backbones[key] = cue.backbone
        cues[name] = cue
    return cues


def _short_names(paths: Sequence[Path]) -> list[str]:
    """The last parts of each path, as many as tell all of them apart."""
    parts = [path.absolute().parts for path in paths]
    for length in range(1, max(map(len, parts)) + 1):
        names = ["/".join(path_parts[-length:]) for path_parts in parts]
        if len(set(names)) == len(names):
            return names
    return [str(path) for path in paths]
