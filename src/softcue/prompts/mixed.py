"""Prompts of several cues joined into one batch (Lester et al. 2021, figure 2), whatever their lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

import torch
from torch import Tensor

from softcue.types import LayerPrompt, Prompt


def join_prompts(prompts: Sequence[Prompt]) -> Prompt:
    """Join prompts into one for a batch whose rows are in the order of the prompts.

    Shorter prompts are padded and masked. Where a cue has no prompt in a layer, its rows keep their hidden states.

    Example:
        >>> from softcue.prompts.encoder import make_prompt
        >>> short, long = make_prompt(torch.ones(1, 1, 4)), make_prompt(torch.ones(1, 3, 4))
        >>> join_prompts([long, short]).mask.tolist()
        [[True, True, True], [True, False, False]]
    """
    if len(prompts) == 1:
        return prompts[0]
    ends = list(accumulate(len(prompt.tokens) for prompt in prompts))
    num_rows = ends[-1]
    row_slices = [slice(end - len(prompt.tokens), end) for prompt, end in zip(prompts, ends, strict=True)]
    length = max(prompt.tokens.shape[1] for prompt in prompts)
    first = prompts[0].tokens
    tokens = first.new_zeros(num_rows, length, first.shape[2])  # [B P D]
    mask = torch.zeros(num_rows, length, dtype=torch.bool, device=first.device)  # [B P]
    for prompt, rows in zip(prompts, row_slices, strict=True):
        tokens[rows, : prompt.tokens.shape[1]] = prompt.tokens
        mask[rows, : prompt.tokens.shape[1]] = prompt.mask
    deep_prompts = [
        (prompt.layer_prompts, rows)
        for prompt, rows in zip(prompts, row_slices, strict=True)
        if prompt.layer_prompts is not None
    ]

    def layer_prompts(layer: int, hidden: Tensor, text_mask: Tensor) -> LayerPrompt | None:
        parts = [(make(layer, hidden[rows], text_mask[rows]), rows) for make, rows in deep_prompts]
        return _join_layer_prompts([(part, rows) for part, rows in parts if part is not None], num_rows, length)

    aux_loss = torch.stack([prompt.aux_loss for prompt in prompts]).sum()
    row_numbers = [torch.arange(rows.start, rows.stop, device=first.device) for rows in row_slices]
    return Prompt(
        tokens,
        mask,
        aux_loss,
        layer_prompts if deep_prompts else None,
        parts=tuple(zip(row_numbers, prompts, strict=True)),
        is_parallel=any(prompt.is_parallel for prompt in prompts),
        reads_states=any(prompt.reads_states for prompt in prompts),
    )


def first_row(prompt: Prompt) -> Prompt:
    """Return the prompt of the first row alone, where all rows have the same.

    Example:
        >>> from softcue.prompts.encoder import make_prompt
        >>> first_row(make_prompt(torch.ones(5, 3, 4))).tokens.shape
        torch.Size([1, 3, 4])
    """
    make = prompt.layer_prompts

    def layer_prompts(layer: int, hidden: Tensor, text_mask: Tensor) -> LayerPrompt | None:
        part = None if make is None else make(layer, hidden, text_mask)
        return None if part is None else part.rows(slice(1))

    one_row = replace(prompt, tokens=prompt.tokens[:1], mask=prompt.mask[:1])
    return one_row if make is None else replace(one_row, layer_prompts=layer_prompts)


def _join_layer_prompts(parts: Sequence[tuple[LayerPrompt, slice]], num_rows: int, length: int) -> LayerPrompt | None:
    """Join the prompts of one layer.

    Rows without a prompt in this layer keep their states: zeros are added to them, and no keys are set.
    """
    joined: dict[str, Tensor] = {}
    for part, rows in parts:
        for name in ("states", "keys", "values"):
            vectors = getattr(part, name)  # [b p X]
            if vectors is None:
                continue
            if name not in joined:
                joined[name] = vectors.new_zeros(num_rows, length, vectors.shape[2])
            joined[name][rows, : vectors.shape[1]] = vectors
    joined |= _join_parallel([(part, rows) for part, rows in parts if part.parallel_keys is not None], num_rows)
    # `adds` says which rows add to states rather than replace them, `sets` which rows set keys and values.
    for flag, vectors_name, default in (("adds", "states", True), ("sets", "keys", False)):
        flags = [(getattr(part, flag), rows) for part, rows in parts if getattr(part, vectors_name) is not None]
        # If no part says which rows add, all rows do. Keys must not be set for rows of other cues.
        if flags and not (default and all(row_flags is None for row_flags, _ in flags)):
            joined[flag] = torch.full((num_rows,), default, device=joined[vectors_name].device)
            for row_flags, rows in flags:
                joined[flag][rows] = True if row_flags is None else row_flags
    return LayerPrompt(**joined) if joined else None


def _join_parallel(parts: Sequence[tuple[LayerPrompt, slice]], num_rows: int) -> dict[str, Tensor]:
    """Join vectors that are attended to beside the text; rows without any have values of zero and no mask."""
    vectors = [(part.parallel_keys, part.parallel_values, rows) for part, rows in parts]
    if not vectors or vectors[0][0] is None:
        return {}
    first = vectors[0][0]
    length = max(keys.shape[1] for keys, _, _ in vectors if keys is not None)
    joined = {name: first.new_zeros(num_rows, length, first.shape[2]) for name in ("parallel_keys", "parallel_values")}
    mask = torch.zeros(num_rows, length, dtype=torch.bool, device=first.device)
    for keys, values, rows in vectors:
        assert keys is not None and values is not None
        joined["parallel_keys"][rows, : keys.shape[1]] = keys
        joined["parallel_values"][rows, : values.shape[1]] = values
        mask[rows, : keys.shape[1]] = True
    return {**joined, "parallel_mask": mask}
