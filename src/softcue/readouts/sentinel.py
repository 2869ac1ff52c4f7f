"""Sentinel targets (Lester et al. 2021, section 3.2): `<extra_id_0>` before every target of an encoder-decoder.

A T5 that was trained by span corruption alone has never seen a target without sentinels. With one in front, targets
look like those of its training.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from softcue.backbones import Backbone
from softcue.errors import BackboneError

SENTINEL = "<extra_id_{}>"


@dataclass(frozen=True)
class Sentinels:
    """The token before every target, and all tokens that end a span.

    Example:
        >>> sentinels = Sentinels(first=99, all_ids=frozenset([98, 99]))
        >>> list(sentinels.answer([0, 99, 5, 6, 98, 7])), list(sentinels.answer([0, 5]))
        ([5, 6], [0, 5])
    """

    first: int
    all_ids: frozenset[int]

    def answer(self, ids: Sequence[int], is_complete: bool = True) -> Sequence[int]:
        """Return the ids between the first sentinel and the next; a complete text without it is the answer itself."""
        if self.first not in ids:
            return ids if is_complete else ()
        behind = ids[list(ids).index(self.first) + 1 :]
        end = next((place for place, token in enumerate(behind) if token in self.all_ids), len(behind))
        return behind[:end]


def find_sentinels(backbone: Backbone) -> Sentinels:
    """Return the sentinels of an encoder-decoder's tokenizer; a backbone without them is an error."""
    if backbone.kind != "encoder-decoder":
        raise BackboneError(
            setting="readout.sentinel",
            got="true",
            expected=f"an encoder-decoder trained by span corruption; {backbone.name} is of kind {backbone.kind}",
            fix="set readout.sentinel=false",
        )
    vocabulary = backbone.tokenizer.get_vocab()
    all_ids: list[int] = []
    while (token := SENTINEL.format(len(all_ids))) in vocabulary:
        all_ids.append(vocabulary[token])
    if not all_ids:
        raise BackboneError(
            setting="readout.sentinel",
            got="true",
            expected=f"a tokenizer with {SENTINEL.format(0)}; that of {backbone.name} has none",
            fix="set readout.sentinel=false",
        )
    return Sentinels(all_ids[0], frozenset(all_ids))
