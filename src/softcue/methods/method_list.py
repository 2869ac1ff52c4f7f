"""The list of methods that `softcue.methods()` returns."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from softcue.listing import Listing
from softcue.methods.method import Method


@dataclass(frozen=True)
class ListedMethod:
    """A method that can be trained, as `softcue.methods()` lists it."""

    name: str
    paper: str
    summary: str
    settings: Mapping[str, Any] = field(default_factory=dict, repr=False, compare=False)  # key -> default


def describe_methods(methods: Mapping[str, type[Method]]) -> Listing[ListedMethod]:
    """The methods with paper, summary and the defaults of their settings."""
    return Listing([_describe(name, method) for name, method in methods.items()])


def _describe(name: str, method: type[Method]) -> ListedMethod:
    settings = {
        key: setting.get_default(call_default_factory=True)
        for key, setting in method.Config.model_fields.items()
        if key != "name"
    }
    return ListedMethod(name, method.paper, method.summary, settings)
