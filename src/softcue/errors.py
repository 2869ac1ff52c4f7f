"""The tree of errors a user can cause.

    SoftcueError
    ├── ConfigurationError     a setting has an unknown name or a wrong value
    ├── DataError              a data file cannot be read or holds unusable rows
    ├── BackboneError          a model folder, alias or hub id cannot be loaded or used
    ├── CueError               a cue folder is damaged or belongs to another backbone
    │   └── BackboneMismatchError  a cue was trained on another backbone
    ├── RunError               an output folder or a checkpoint does not allow the run
    │   ├── FolderInUseError       another run is writing to the folder
    │   └── LostProcessError       another process of the run has died or does not answer
    ├── TrainingError          training produced values that no cue may hold
    ├── EstimatorError         a scikit-learn estimator got rows or settings that it cannot use
    └── MissingExtraError      an optional package is not installed

Each message names the setting, the value received, what was expected and the next step. The command line
prints the message on one line, and its details, such as bad rows, below it on a line each; it exits with 2. Any other
exception is a bug and keeps its traceback.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError


class SoftcueError(Exception):
    """Base of all errors meant for users.

    Example:
        >>> error = SoftcueError(setting="method.prompt_length", got=0, expected="at least 1", fix="raise it")
        >>> str(error)
        'method.prompt_length: got 0; expected at least 1; raise it'
    """

    def __init__(self, *, setting: str, got: object, expected: str, fix: str, details: Sequence[str] = ()) -> None:
        self.setting = setting
        self.got = got
        self.expected = expected
        self.fix = fix
        parts = _cut(setting), f"got {_quoted(got)}; expected {_cut(expected)}", _cut(fix)
        self.headline = f"{parts[0]}: {parts[1]}; {parts[2]}"
        self.details = tuple(details)
        super().__init__("\n".join([self.headline, *(f"  {detail}" for detail in self.details)]))


class ConfigurationError(SoftcueError):
    """A setting has an unknown name or a wrong value."""


class DataError(SoftcueError):
    """A data file cannot be read or holds unusable rows."""


class BackboneError(SoftcueError):
    """A model folder, alias or hub id cannot be loaded or used."""


class CueError(SoftcueError):
    """A cue folder is damaged or belongs to another backbone."""


class BackboneMismatchError(CueError):
    """A cue was trained on another backbone; `differences` names the parts of the fingerprint that differ."""

    def __init__(self, differences: Sequence[str], *, setting: str, got: object, expected: str) -> None:
        fix = f"{' and '.join(differences)} differ; load the cue on the backbone it was trained on"
        super().__init__(setting=setting, got=got, expected=expected, fix=fix)
        self.differences = tuple(differences)


class RunError(SoftcueError):
    """An output folder or a checkpoint does not allow the run."""


class FolderInUseError(RunError):
    """Another run is writing to the output folder."""


class LostProcessError(RunError):
    """Another process of the run has died or does not answer."""


class TrainingError(SoftcueError):
    """Training produced values that no cue may hold, such as a loss that is not a number."""


class EstimatorError(SoftcueError, ValueError):
    """A scikit-learn estimator got rows or settings that it cannot use. It is a ValueError, as scikit-learn expects."""


class MissingExtraError(SoftcueError):
    """An optional package is not installed.

    Example:
        >>> MissingExtraError("datasets", "hub").fix
        "run in the checkout: pip install -c constraints.txt -e '.[hub]'"
    """

    def __init__(self, package: str, extra: str) -> None:
        super().__init__(
            setting=f"package '{package}'",
            got="not installed",
            expected="it for this command",
            fix=f"run in the checkout: pip install -c constraints.txt -e '.[{extra}]'",
        )


MOST_NAMES = 100  # that a message lists
MOST_LISTED = 1000  # characters of all these names
MOST_CHARACTERS = 3000  # of a part of a message: names of columns and keys come from files
MOST_SHOWN = 200  # characters of a value in a message
BRACKETS: dict[type, str] = {list: "[]", tuple: "()", set: "{}", dict: "{}"}


def near_matches(name: str, known_names: Iterable[str]) -> str:
    """Advice about an unknown name: the closest known name, then all known names, unless they are very many.

    Example:
        >>> near_matches("promt-tuning", ["prompt-tuning", "vip"])
        "did you mean 'prompt-tuning'? known: prompt-tuning, vip"
    """
    names = sorted(known_names)
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean '{close[0]}'? " if close else ""
    listed = ", ".join(names)
    is_short = len(names) <= MOST_NAMES and len(listed) <= MOST_LISTED
    return f"{hint}known: {listed}" if is_short else hint.rstrip() or "check the name"


def first_line(error: BaseException) -> str:
    """The first line of an error's message, or the name of its class if it has none.

    Example:
        >>> first_line(ValueError("\\n  wrong size\\nmore")), first_line(KeyError())
        ('wrong size', 'KeyError')
    """
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def _cut(text: str) -> str:
    return text if len(text) <= MOST_CHARACTERS else f"{text[: MOST_CHARACTERS - 3]}..."


def _quoted(value: object) -> str:
    """A value, cut to fit on one line. Names and paths are quoted, so that an empty one is visible."""
    text = ""
    for part in _parts(value):  # only as many as are shown: a value may be too large to write out
        text += part
        if len(text) > MOST_SHOWN:
            break
    if not isinstance(value, (int, float, bool, type(None))):
        text = repr(text[: MOST_SHOWN + 1])
    return text if len(text) <= MOST_SHOWN else text[: MOST_SHOWN - 3] + "..."


def _parts(value: object) -> Iterator[str]:
    """The text of a value, in parts. Of the built-in collections it is that of `str`."""
    brackets = BRACKETS.get(type(value), "")
    if isinstance(value, str):
        yield value[: MOST_SHOWN + 1]
    elif isinstance(value, int) and value.bit_length() > 1000:  # Python itself does not write out much larger ones
        yield f"an integer of {value.bit_length()} bits"
    elif brackets and value:
        yield brackets[0]
        assert isinstance(value, Iterable)
        for number, item in enumerate(value):
            yield ", " if number else ""
            yield from _item_parts(item)
            if isinstance(value, dict):
                yield ": "
                yield from _item_parts(value[item])
        yield (",)" if isinstance(value, tuple) and len(value) == 1 else brackets[1])
    else:
        yield str(value)


def _item_parts(item: object) -> Iterator[str]:
    if isinstance(item, (str, bytes)):
        yield repr(item[: MOST_SHOWN + 1])
    elif isinstance(item, int) or type(item) in BRACKETS:
        yield from _parts(item)
    else:
        yield repr(item)


def as_configuration_error(section: str, error: ValidationError) -> ConfigurationError:
    """Turn pydantic's first error into a ConfigurationError."""
    first = error.errors()[0]
    path = ".".join([section, *(str(part) for part in first["loc"])])
    expected = first["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    value = first["input"]
    if not first["loc"] and isinstance(value, Mapping):  # an error about keys that exclude each other
        value = value.get("name", ", ".join(map(str, value)))
    return ConfigurationError(setting=path, got=value, expected=expected, fix="correct the value")
