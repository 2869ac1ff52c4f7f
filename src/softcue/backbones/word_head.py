"""The masked-word head of an encoder, run on hidden states that are already there.

The head is the model itself with two parts exchanged: in place of its base stands a module that returns the given
states, and, for the states that are compared with words, in place of its last layer one that returns its input. So the
head of any family works without naming its modules. All weights are shared with the model.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import Tensor, nn

from softcue.backbones.tracing import is_masked_model


def has_word_head(model: Any) -> bool:
    """Return whether a model was loaded with a masked-word head.

    Example:
        >>> from transformers import BertConfig, BertModel
        >>> has_word_head(BertModel(BertConfig(hidden_size=24, num_hidden_layers=1, num_attention_heads=2)))
        False
    """
    return is_masked_model(model) and model.get_output_embeddings() is not None


class WordHead:
    """The masked-word head of a model."""

    def __init__(self, model: Any) -> None:
        given = _GivenStates(model.base_model)
        self._head = _with_module(model, model.base_model_prefix, given)
        words = model.get_output_embeddings()
        path = next(path for path, module in model.named_modules() if module is words)
        self._states_head = _with_module(self._head, path, nn.Identity())
        self._words = words
        # Some heads use the weights of their last layer by themselves: then the hidden states are all there is.
        self.has_own_states = self._can_split(given)
        self.width = int(words.weight.shape[1]) if self.has_own_states else int(model.config.hidden_size)

    def states(self, hidden: Tensor) -> Tensor:
        """The states that the head compares with words. [N D] -> [N D']"""
        return self._run(self._states_head, hidden) if self.has_own_states else hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits over the vocabulary. [N D] -> [N V]"""
        return self._run(self._head, hidden)

    @staticmethod
    def _run(head: Any, hidden: Tensor) -> Tensor:
        logits: Tensor = head(inputs_embeds=hidden.unsqueeze(0)).logits
        return logits.squeeze(0)

    @torch.no_grad()
    def _can_split(self, given: _GivenStates) -> bool:
        weight = self._words.weight
        if weight.is_meta:
            return True
        hidden = torch.ones(1, given.width, dtype=weight.dtype, device=weight.device)
        try:
            states = self._run(self._states_head, hidden)
            return states.shape == (1, weight.shape[1])
        except Exception:  # the head needs more of its last layer than its output
            return False


class _GivenStates(nn.Module):
    """Stands in for a base model: returns what it is given, and has the attributes of the base model."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self._base = [base]  # in a list: not a child
        self.width = int(base.config.hidden_size)  # type: ignore[union-attr, arg-type]

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Return `inputs_embeds` as the states of the last layer."""
        from transformers.modeling_outputs import BaseModelOutput

        return BaseModelOutput(last_hidden_state=kwargs["inputs_embeds"])

    def __getattr__(self, name: str) -> Any:
        if name in vars(self):
            return vars(self)[name]
        return getattr(vars(self)["_base"][0], name)


def _with_module(model: Any, path: str, module: nn.Module) -> Any:
    """A copy of a model with another module at a path; it shares all other modules and all weights."""
    name, _, rest = path.partition(".")
    changed = copy.copy(model)
    changed._modules = dict(model._modules)
    changed._modules[name] = _with_module(model._modules[name], rest, module) if rest else module
    return changed
