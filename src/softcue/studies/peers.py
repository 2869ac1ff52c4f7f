"""Other software in a study: a Python function that trains it on the same rows as the methods.

In the file of a study:

    methods:
      - prompt-tuning
      - {name: SetFit, function: "benchmarks.peers:train_setfit"}
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from softcue.backbones import Backbone
from softcue.errors import ConfigurationError
from softcue.tasks.splits import Splits
from softcue.types import Prediction


@dataclass(frozen=True)
class PeerRun:
    """What other software gets: the backbone, whose folder it may load, its settings, the rows and a seed."""

    backbone: Backbone
    splits: Splits
    seed: int
    backbone_settings: Mapping[str, Any]


@dataclass(frozen=True)
class PeerResult:
    """What other software gives: a prediction for each test row, or validation row if there are no test rows."""

    predictions: Sequence[Prediction]
    trainable: int = 0  # parameters


Peer = Callable[[PeerRun], PeerResult]


def find_peer(path: str) -> Peer:
    """Import the function that a study names.

    Example:
        find_peer("benchmarks.peers:train_setfit")
    """
    module, _, name = path.partition(":")
    if os.getcwd() not in sys.path:  # a command does not look into the folder in which it is called
        sys.path.append(os.getcwd())
    try:
        function = getattr(import_module(module), name)
    except (ImportError, AttributeError, SyntaxError) as error:
        raise ConfigurationError(
            setting="function",
            got=path,
            expected="module:function that Python can import here",
            fix=f"install the module, or run the study in the folder that holds it: {error}",
        ) from error
    if not callable(function):
        raise ConfigurationError(
            setting="function", got=path, expected="a function of a PeerRun", fix=f"{name} cannot be called"
        )
    return function  # type: ignore[no-any-return]
