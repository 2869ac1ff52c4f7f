"""softcue teaches a frozen language model new tasks with small learned prompts that read the input.

import softcue

cue = softcue.train("cues/tickets", task="tickets", backbone="minilm")
cue = softcue.load("cues/tickets")
cue.predict(["My invoice is wrong."])
softcue.compare(["cues/tickets", "cues/other"], data="held-out.csv")  # can they be told apart?
softcue.tune("cues/best", task="tickets", method="p-tuning-v2")  # settings searched on validation rows
softcue.methods()  # what can be trained; also softcue.tasks() and softcue.backbones()
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from softcue import errors

if TYPE_CHECKING:
    from softcue.api import train
    from softcue.backbones import list_backbones as backbones
    from softcue.backbones import load_backbone
    from softcue.cue.cue import Cue, load
    from softcue.methods import list_methods as methods
    from softcue.methods import register_method
    from softcue.prompts import PromptEncoder
    from softcue.serving.engine.batcher import Limits
    from softcue.serving.engine.engine import Engine
    from softcue.studies.compare import compare
    from softcue.studies.tune import tune
    from softcue.tasks import Task
    from softcue.tasks import list_tasks as tasks
    from softcue.types import Prediction

__version__ = "0.1.0"
__all__ = [
    "Cue",
    "Engine",
    "Limits",
    "Prediction",
    "PromptEncoder",
    "Task",
    "__version__",
    "backbones",
    "compare",
    "errors",
    "load",
    "load_backbone",
    "methods",
    "register_method",
    "tasks",
    "train",
    "tune",
]

_HOMES = {
    "train": "softcue.api",
    "load": "softcue.cue",
    "compare": "softcue.studies.compare",
    "tune": "softcue.studies.tune",
    "Cue": "softcue.cue",
    "load_backbone": "softcue.backbones",
    "register_method": "softcue.methods",
    "Engine": "softcue.serving.engine.engine",
    "Limits": "softcue.serving.engine.batcher",
    "Task": "softcue.tasks",
    "Prediction": "softcue.types",
    "PromptEncoder": "softcue.prompts",
}
# Packages that can be called: softcue.methods() lists the methods (docs/decisions/46-callable-packages.md).
_CALLABLE_PACKAGES = ("backbones", "methods", "tasks")


def __getattr__(name: str) -> Any:
    """Public names are imported when first used: `import softcue` alone must not load torch."""
    from importlib import import_module

    if name in _CALLABLE_PACKAGES:
        return import_module(f"softcue.{name}")
    if name not in _HOMES:
        raise AttributeError(f"module 'softcue' has no attribute '{name}'")
    return getattr(import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted(__all__)
