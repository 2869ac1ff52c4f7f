"""Backbones that one process loads once, for callers that ask again and again: the folds of a cross-validation."""

from __future__ import annotations

from collections import OrderedDict
from pathlib import Path
from threading import Lock

from softcue.backbones.backbone import Backbone
from softcue.backbones.loading.load import BackboneConfig, load_backbone

MAX_SHARED = 2  # backbones that stay in memory; the one that was not used for longest makes room
FileState = tuple[str, int, int]  # name, time of change, bytes

_shared: OrderedDict[tuple[BackboneConfig, tuple[FileState, ...]], Backbone] = OrderedDict()
_lock = Lock()


def share_backbone(config: BackboneConfig) -> Backbone:
    """Load a backbone, or return the one that this process has loaded with the same settings.

    `max_length` and `dropout` belong to a run, not to the loaded model. A folder whose files have changed is loaded
    again.

    Example:
        share_backbone(BackboneConfig(name="minilm")) is share_backbone(BackboneConfig(name="minilm"))     # True
    """
    loaded_config = config.model_copy(update={"max_length": None, "dropout": 0.0})
    key = (loaded_config, _file_states(Path(config.name)))
    with _lock:  # a second thread waits instead of loading the same model
        if key not in _shared:
            _shared[key] = load_backbone(loaded_config)
        _shared.move_to_end(key)
        while len(_shared) > MAX_SHARED:
            _shared.popitem(last=False)
        return _shared[key]


def forget_backbones() -> None:
    """Let go of all shared backbones, to free their memory.

    Example:
        >>> forget_backbones()
    """
    with _lock:
        _shared.clear()


def _file_states(path: Path) -> tuple[FileState, ...]:
    """The files of a model folder, or a model file, with time and size; none for an alias or a hub id."""
    files = sorted(path.iterdir()) if path.is_dir() else [path] if path.is_file() else []
    return tuple((file.name, (facts := file.stat()).st_mtime_ns, facts.st_size) for file in files)
