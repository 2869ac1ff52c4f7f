"""Prompts of several cues joined into one batch (Lester et al. 2021, figure 2), whatever their lengths."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from softcue.types import LayerPrompt, Prompt


def joined(prompts: Sequence[Prompt], rows: Sequence[Tensor]) -> Prompt:
    """One prompt for all rows: row `rows[g][i]` of the batch takes row i of prompt g.

    Shorter prompts are padded and masked; cues without deep prompts get zeros there, which add nothing.

    Example:
        >>> from softcue.prompts.encoder import whole_prompt
        >>> short, long = whole_prompt(torch.ones(1, 1, 4)), whole_prompt(torch.ones(1, 3, 4))
        >>> joined([short, long], [torch.tensor([1]), torch.tensor([0])]).mask.tolist()
        [[True, True, True], [True, False, False]]
    """
    if len(prompts) == 1:
        return prompts[0]
    num_rows = sum(len(index) for index in rows)
    length = max(prompt.tokens.shape[1] for prompt in prompts)
    first = prompts[0].tokens
    tokens = first.new_zeros(num_rows, length, first.shape[2])  # [B P D]
    mask = torch.zeros(num_rows, length, dtype=torch.bool, device=first.device)  # [B P]
    for prompt, index in zip(prompts, rows, strict=True):
        tokens[index, : prompt.tokens.shape[1]] = prompt.tokens
        mask[index, : prompt.tokens.shape[1]] = prompt.mask
    parts = [(p.deeper, index) for p, index in zip(prompts, rows, strict=True) if p.deeper is not None]

    def deeper(layer: int, hidden: Tensor, text_mask: Tensor) -> LayerPrompt | None:
        taken = [(part(layer, hidden[index], text_mask[index]), index) for part, index in parts]
        return _joined_layer([(part, index) for part, index in taken if part is not None], num_rows, length)

    aux_loss = torch.stack([prompt.aux_loss for prompt in prompts]).sum()
    return Prompt(tokens, mask, aux_loss, deeper if parts else None, parts=tuple(zip(rows, prompts, strict=True)))


def _joined_layer(parts: Sequence[tuple[LayerPrompt, Tensor]], num_rows: int, length: int) -> LayerPrompt | None:
    """Rows of a cue that takes nothing here keep their states: zeros are added, and no keys are set."""
    found: dict[str, Tensor] = {}
    for part, index in parts:
        for name in ("states", "keys", "values"):
            value = getattr(part, name)  # [b p X]
            if value is None:
                continue
            if name not in found:
                found[name] = value.new_zeros(num_rows, length, value.shape[2])
            found[name][index, : value.shape[1]] = value.to(found[name].dtype)
        for name, is_set, otherwise in (("adds", part.states, True), ("sets", part.keys, False)):
            if is_set is not None:
                flags = found.setdefault(name, torch.full((num_rows,), otherwise, device=index.device))
                given = getattr(part, name)
                flags[index] = True if given is None else given
    return LayerPrompt(**found) if found else None
