"""A trainable copy of a backbone's weights: what fine-tuning trains, and prompt methods with `tune_backbone`."""

from __future__ import annotations

import threading

import torch
from torch import nn

from softcue.backbones import Backbone

_making_twins = threading.Lock()


class BackboneWeights(nn.ParameterDict):
    """A trainable copy of the weights of a backbone, and the twin that runs with it. The backbone never changes."""

    def __init__(self, backbone: Backbone) -> None:
        # A parameter's name may not contain dots.
        super().__init__(
            {
                name.replace(".", "/"): nn.Parameter(value.detach().clone().float())
                for name, value in backbone.weights().items()
            }
        )
        self._twin: tuple[Backbone, Backbone] | None = None  # the frozen backbone and its twin

    def twin_of(self, backbone: Backbone) -> Backbone:
        """Return a backbone of the same structure that has these weights."""
        with _making_twins:  # two passes may ask for it at a time
            if self._twin is None or self._twin[0] is not backbone:
                weights = {name.replace("/", "."): value for name, value in self.items()}
                self._twin = (backbone, backbone.with_weights(weights))
            return self._twin[1]

    def are_those_of(self, backbone: Backbone) -> bool:
        """Whether a backbone has exactly these weights, in its number format: it is an export of the twin."""
        weights = {name.replace(".", "/"): value for name, value in backbone.weights().items()}
        return weights.keys() == set(self.keys()) and all(
            weights[name].shape == value.shape and torch.equal(weights[name], value.detach().to(weights[name]))
            for name, value in self.items()
        )
