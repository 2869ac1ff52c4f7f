"""In the first layer of late prompts, gradients flow to the prompt's positions alone.

The states of the text that enter this layer are constants, so the gradients of its projections at their positions are
never used. Autograd knows tensors, not positions, and would compute them: a quarter of the layer's products.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from softcue.backbones.injection import running_pass


def keep_prompt_gradients(layer: nn.Module, paths: Iterable[str], owner: int) -> None:
    """Let the projections of a layer, by path, compute gradients of their inputs at the prompt's positions only.

    `owner` is the identity of the base model whose passes say where the prompt is. Modules that are not linear stay.

    Example:
        keep_prompt_gradients(backbone.layers[0], ["attention.self.query"], id(backbone.base))
    """
    from transformers.pytorch_utils import Conv1D

    for path in dict.fromkeys(paths):
        module: Any = layer.get_submodule(path)
        if type(module) in (nn.Linear, Conv1D):
            module.forward = _make_forward(module, module.forward, isinstance(module, Conv1D), owner)


def _make_forward(module: Any, forward: Any, is_transposed: bool, owner: int) -> Any:
    def run(states: Tensor) -> Tensor:
        active = running_pass(owner) if torch.is_grad_enabled() and states.requires_grad else None
        layout = None if active is None else active.layout
        if layout is None or states.shape[:2] != layout.index.shape:
            return forward(states)  # type: ignore[no-any-return]
        weight = module.weight.t() if is_transposed else module.weight  # [out in]
        rows = layout.is_prompt.flatten().nonzero().squeeze(1)  # [B*P] among [B*S]
        return _LinearAtPrompt.apply(states, weight, module.bias, rows)  # type: ignore[no-any-return,no-untyped-call]

    return run


class _LinearAtPrompt(torch.autograd.Function):
    """A frozen linear map whose input has a gradient in some rows only; in the others it is left at zero."""

    @staticmethod
    def forward(ctx: Any, states: Tensor, weight: Tensor, bias: Tensor | None, rows: Tensor) -> Tensor:
        ctx.save_for_backward(weight, rows)
        return functional.linear(states, weight, bias)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        weight, rows = ctx.saved_tensors
        (gradient,) = gradients  # [B S out]
        rows = rows.to(gradient.device)
        of_inputs = gradient.new_zeros(*gradient.shape[:2], weight.shape[1])
        of_inputs.view(-1, weight.shape[1])[rows] = gradient.flatten(0, 1)[rows] @ weight
        return of_inputs, None, None, None
