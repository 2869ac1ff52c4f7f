"""Prompts of several cues joined into one batch (Lester et al. 2021, figure 2), whatever their lengths."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from softcue.types import LayerPrompt, Prompt


def join_prompts(prompts: Sequence[Prompt]) -> Prompt:
    """One prompt for all rows of a batch, which stand prompt by prompt.

    Shorter prompts are padded and masked; cues without deep prompts get zeros there, which add nothing.

    Example:
        >>> from softcue.prompts.encoder import full_prompt
        >>> short, long = full_prompt(torch.ones(1, 1, 4)), full_prompt(torch.ones(1, 3, 4))
        >>> join_prompts([long, short]).mask.tolist()
        [[True, True, True], [True, False, False]]
    """
    if len(prompts) == 1:
        return prompts[0]
    ends = list(accumulate(len(prompt.tokens) for prompt in prompts))
    num_rows = ends[-1]
    places = [slice(end - len(prompt.tokens), end) for prompt, end in zip(prompts, ends, strict=True)]
    length = max(prompt.tokens.shape[1] for prompt in prompts)
    first = prompts[0].tokens
    tokens = first.new_zeros(num_rows, length, first.shape[2])  # [B P D]
    mask = torch.zeros(num_rows, length, dtype=torch.bool, device=first.device)  # [B P]
    for prompt, place in zip(prompts, places, strict=True):
        tokens[place, : prompt.tokens.shape[1]] = prompt.tokens
        mask[place, : prompt.tokens.shape[1]] = prompt.mask
    parts = [(p.layer_prompts, place) for p, place in zip(prompts, places, strict=True) if p.layer_prompts is not None]

    def layer_prompts(layer: int, hidden: Tensor, text_mask: Tensor) -> LayerPrompt | None:
        taken = [(part(layer, hidden[place], text_mask[place]), place) for part, place in parts]
        return _joined_layer([(part, place) for part, place in taken if part is not None], num_rows, length)

    aux_loss = torch.stack([prompt.aux_loss for prompt in prompts]).sum()
    rows = [torch.arange(place.start, place.stop, device=first.device) for place in places]
    return Prompt(
        tokens, mask, aux_loss, layer_prompts if parts else None, parts=tuple(zip(rows, prompts, strict=True))
    )


def _joined_layer(parts: Sequence[tuple[LayerPrompt, slice]], num_rows: int, length: int) -> LayerPrompt | None:
    """Rows of a cue that takes nothing here keep their states: zeros are added, and no keys are set."""
    found: dict[str, Tensor] = {}
    for part, place in parts:
        for name in ("states", "keys", "values"):
            value = getattr(part, name)  # [b p X]
            if value is None:
                continue
            if name not in found:
                found[name] = value.new_zeros(num_rows, length, value.shape[2])
            found[name][place, : value.shape[1]] = value
    for name, of, otherwise in (("adds", "states", True), ("sets", "keys", False)):
        given = [(getattr(part, name), place) for part, place in parts if getattr(part, of) is not None]
        # Where nobody says otherwise all rows add; rows of others must not have keys set.
        if given and not (otherwise and all(own is None for own, _ in given)):
            some = found[of]
            found[name] = torch.full((num_rows,), otherwise, device=some.device)
            for own, place in given:
                found[name][place] = True if own is None else own
    return LayerPrompt(**found) if found else None
