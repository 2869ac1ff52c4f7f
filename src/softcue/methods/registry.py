"""The methods that can be trained, by name: softcue's own, and those of other packages.

Another package adds a method in one of two ways:

    softcue.register_method("my-method", MyMethod)             # in a script or a notebook

    [project.entry-points."softcue.methods"]                   # in its pyproject.toml: found once it is installed
    my-method = "my_package:MyMethod"
"""

from __future__ import annotations

import inspect
import re
import threading
import warnings
from collections.abc import Iterator, Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import get_args

from softcue.errors import ConfigurationError, near_matches
from softcue.methods.method import Method, MethodConfig
from softcue.types import BackboneKind

ENTRY_POINTS = "softcue.methods"
BACKBONE_KINDS: tuple[str, ...] = get_args(BackboneKind)


class MethodRegistry(Mapping[str, type[Method]]):
    """Method classes by name.

    Entry points are loaded at the first look at a name that is not built in, or at all names. A plug-in that cannot
    be loaded causes a warning, and the other methods stay available.

    Example:
        >>> from softcue.methods import METHODS
        >>> METHODS["prompt-tuning"].__name__
        'PromptTuning'
    """

    def __init__(self, built_in: Mapping[str, type[Method]]) -> None:
        self._built_in = dict(built_in)
        self._registered: dict[str, type[Method]] = {}
        self._broken: dict[str, str] = {}  # name of a plug-in's method -> why it is not available
        self._has_loaded_plugins = False
        self._lock = threading.RLock()  # reentrant: a plug-in may look at the registry while it is imported

    @property
    def built_in(self) -> Mapping[str, type[Method]]:
        """The methods that come with softcue."""
        return self._built_in

    def __getitem__(self, name: str) -> type[Method]:
        if name in self._built_in:
            return self._built_in[name]
        self._load_plugins()
        return self._registered[name]

    def __contains__(self, name: object) -> bool:
        if name in self._built_in:
            return True
        self._load_plugins()
        return name in self._registered

    def __iter__(self) -> Iterator[str]:
        self._load_plugins()
        return iter([*self._built_in, *self._registered])

    def __len__(self) -> int:
        self._load_plugins()
        return len(self._built_in) + len(self._registered)

    def register(self, name: str, method_class: type[Method]) -> None:
        """Add a method. A name that another class has already is an error."""
        _check_method(name, method_class)
        with self._lock:
            other = self._built_in.get(name) or self._registered.get(name)
            if other is not None and other is not method_class:
                raise ConfigurationError(
                    setting="name of a method",
                    got=name,
                    expected=f"a name that no method has yet (this is {other.__module__}.{other.__qualname__})",
                    fix="choose another name",
                )
            if other is None:
                self._registered[name] = method_class

    def find(self, name: str) -> type[Method]:
        """Return the method of this name, or raise an error that says what to do."""
        if name in self:
            return self[name]
        if name in self._broken:
            raise ConfigurationError(
                setting="method.name", got=name, expected="a method that can be loaded", fix=self._broken[name]
            )
        raise ConfigurationError(
            setting="method.name",
            got=name,
            expected="a known method",
            fix=f"{near_matches(name, self)}; for a method of another package, install that package",
        )

    def _load_plugins(self) -> None:
        with self._lock:
            if self._has_loaded_plugins:
                return
            self._has_loaded_plugins = True
            for entry_point in entry_points(group=ENTRY_POINTS):
                try:
                    self.register(entry_point.name, entry_point.load())
                except Exception as error:  # whatever a plug-in raises, the other methods must stay available
                    self._broken[entry_point.name] = _describe_failure(entry_point, error)
            problems = list(self._broken.values())
        for problem in problems:
            warnings.warn(problem, RuntimeWarning, stacklevel=3)


def _describe_failure(entry_point: EntryPoint, error: Exception) -> str:
    """Return one line that names the package, the method and the reason."""
    package = "an unknown package" if entry_point.dist is None else f"the package {entry_point.dist.name}"
    reason = " ".join(f"{type(error).__name__}: {error}".split())
    return f"{package} offers the method '{entry_point.name}' ({entry_point.value}), which cannot be used: {reason}"


def _check_method(name: object, method_class: object) -> None:
    """Raise an error if this is not a complete method with a name that can be typed."""
    if not isinstance(name, str) or not re.fullmatch(r"[a-z0-9][a-z0-9._-]*", name):
        raise ConfigurationError(
            setting="name of a method",
            got=name,
            expected="lower-case letters, digits, hyphens and dots, such as my-method",
            fix="choose another name",
        )
    if not (isinstance(method_class, type) and issubclass(method_class, Method)) or inspect.isabstract(method_class):
        raise ConfigurationError(
            setting=f"method '{name}'",
            got=method_class,
            expected="a subclass of softcue.methods.Method that defines `build`",
            fix="see docs/extending.md, 'Add a method'",
        )
    config_class = getattr(method_class, "Config", None)
    if not (isinstance(config_class, type) and issubclass(config_class, MethodConfig)):
        raise ConfigurationError(
            setting=f"Config of method '{name}'",
            got=config_class,
            expected="a subclass of softcue.methods.MethodConfig",
            fix="set the class attribute Config",
        )
    for attribute in ("summary", "paper"):
        if not isinstance(getattr(method_class, attribute, None), str):
            raise ConfigurationError(
                setting=f"{attribute} of method '{name}'",
                got=getattr(method_class, attribute, None),
                expected="one line of text for `softcue methods`",
                fix=f"set the class attribute {attribute}",
            )
    if unknown := [kind for kind in method_class.presets if kind not in BACKBONE_KINDS]:
        raise ConfigurationError(
            setting=f"presets of method '{name}'",
            got=unknown[0],
            expected=f"a kind of backbone: {', '.join(BACKBONE_KINDS)}",
            fix="set presets to {kind: {section: {key: value}}}",
        )
