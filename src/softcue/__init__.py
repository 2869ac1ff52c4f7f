"""softcue teaches a frozen language model new tasks with small learned prompts that read the input.

import softcue

cue = softcue.train("cues/tickets", task="tickets", backbone="minilm")
cue = softcue.load("cues/tickets")
cue.predict(["My invoice is wrong."])
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from softcue import errors

if TYPE_CHECKING:
    from softcue.api import train
    from softcue.backbones import load_backbone
    from softcue.cue.cue import Cue, load
    from softcue.serving.engine.engine import Engine

__version__ = "0.1.0"
__all__ = ["Cue", "Engine", "__version__", "errors", "load", "load_backbone", "train"]

_HOMES = {
    "train": "softcue.api",
    "load": "softcue.cue",
    "Cue": "softcue.cue",
    "load_backbone": "softcue.backbones",
    "Engine": "softcue.serving.engine.engine",
}


def __getattr__(name: str) -> Any:
    """Public names are imported when first used: `import softcue` alone must not load torch."""
    if name not in _HOMES:
        raise AttributeError(f"module 'softcue' has no attribute '{name}'")
    from importlib import import_module

    return getattr(import_module(_HOMES[name]), name)
