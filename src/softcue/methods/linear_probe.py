"""Linear probe: logistic (or ridge) regression on the frozen representation, solved rather than trained by steps."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from softcue.errors import ConfigurationError
from softcue.methods.method import MethodConfig
from softcue.methods.prompted import NoPrompt
from softcue.readouts import Readout
from softcue.types import Tokens


class LinearProbeConfig(MethodConfig):
    """How strongly the probe is held back."""

    strengths: tuple[float, ...] = Field(
        (0.01, 0.1, 1.0, 10.0, 100.0), min_length=1, description="inverse regularisation; validation rows choose one"
    )


class LinearProbe(NoPrompt):
    """A head solved in closed form on features that are computed once."""

    Config: ClassVar[type[MethodConfig]] = LinearProbeConfig
    summary = "logistic regression on the frozen representation (a baseline)"
    paper = "-"

    def solutions(self, readout: Readout, rows: Sequence[Tokens]) -> Iterator[None]:
        """One solution per strength."""
        layers = [layer for layer in readout.modules() if isinstance(layer, nn.Linear)]
        if len(layers) != 1 or readout.summary is None:
            raise ConfigurationError("readout.name", readout.config.name, "classifier or regression, with head=linear",
                                     "a linear probe is one linear layer")  # fmt: skip
        features = torch.stack([row.representation for row in rows if row.representation is not None])  # [N R]
        return self._solutions(layers[0], readout, features, [row.label for row in rows])

    def _solutions(
        self, layer: nn.Linear, readout: Readout, features: Tensor, labels: Sequence[int | float | None]
    ) -> Iterator[None]:
        assert isinstance(self.config, LinearProbeConfig)
        mean, scale = features.mean(dim=0), features.std(dim=0, unbiased=False)
        scale = torch.where(scale == 0, 1.0, scale)
        scaled = ((features - mean) / scale).numpy()
        for strength in self.config.strengths:
            weight, bias = _solved(scaled, readout, labels, strength, layer.out_features)
            # the probe reads standardised features, the head plain ones: W (x - mean)/scale + b
            layer.weight.data.copy_(weight / scale)
            layer.bias.data.copy_(bias - (weight / scale) @ mean)
            yield


def _solved(
    features: Any, readout: Readout, labels: Sequence[Any], strength: float, num_outputs: int
) -> tuple[Tensor, Tensor]:
    """Weights [C R] and biases [C] for standardised features."""
    from sklearn.linear_model import LogisticRegression, Ridge

    if readout.task.kind == "regression":
        wanted = (torch.tensor(labels) - readout.mean) / readout.scale  # type: ignore[operator]
        ridge = Ridge(alpha=1.0 / strength).fit(features, wanted.numpy())
        return torch.tensor(ridge.coef_).float().view(1, -1), torch.tensor([float(ridge.intercept_)])
    probe = LogisticRegression(C=strength, max_iter=2000)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an unconverged probe is still scored on validation rows
        probe.fit(features, labels)
    weight, bias = torch.tensor(probe.coef_).float(), torch.tensor(probe.intercept_).float()
    if len(weight) == 1:  # two classes: one row of log-odds, halved between them
        weight, bias = torch.cat([-weight, weight]) / 2, torch.cat([-bias, bias]) / 2
    found = torch.zeros(num_outputs, weight.shape[1]), torch.full((num_outputs,), -1e4)
    for row, number in enumerate(probe.classes_):  # a class without training rows is never the answer
        found[0][number], found[1][number] = weight[row], bias[row]
    return found
