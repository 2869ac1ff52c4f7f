"""Adapters (Houlsby et al. 2019) and Compacter (Karimi Mahabadi et al. 2021), as IDPG compares with them.

Each layer has two modules, on the output of the attention and of the feed-forward network, before the residual sum
and its LayerNorm: x + drop(U . act(D . x)). The backbone stays frozen, also its LayerNorms. There is no prompt.
"""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from softcue.backbones import Backbone
from softcue.methods.method import MOST_WIDTH, Method, MethodConfig
from softcue.phm import check_divides, kronecker_sum
from softcue.randomness import RowDropout
from softcue.tasks import Task


class BottleneckConfig(MethodConfig):
    """Width and dropout of the modules on sub-layers."""

    fields_free_to_differ: ClassVar[tuple[str, ...]] = ("init_std", "up_std")

    bottleneck: int = Field(16, ge=1, le=MOST_WIDTH, description="m, the adapter's inner width")
    dropout: float = Field(
        0.1, ge=0, lt=1, description="on the adapter's output, in training; it drops whole channels of a row"
    )


class AdapterConfig(BottleneckConfig):
    """Adapters: width, dropout and initial values."""

    init_std: float = Field(0.02, ge=0, description="standard deviation of the initial down-projections")
    up_std: float = Field(0.0, ge=0, description="standard deviation of the initial up-projections; 0: the identity")


class Bottleneck(nn.Module):
    """x + drop(U . gelu(D . x)).

    Dropout draws once per row and channel, the same for all positions. A row's noise then does not depend on the
    padding of its batch.
    """

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.width = width
        self.dropout = RowDropout(dropout)

    def matrices(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return D [width m], its bias, U [m width], its bias."""
        raise NotImplementedError

    def forward(self, states: Tensor) -> Tensor:
        """Add the bottleneck's output to the hidden states. [B S D] -> [B S D]"""
        down, down_bias, up, up_bias = self.matrices()
        inputs = states.float()
        change = functional.gelu(inputs @ down + down_bias) @ up + up_bias
        changed: Tensor = inputs + change * self.dropout(torch.ones_like(change[:, :1]))  # [B S D] * [B 1 D]
        return changed.to(states.dtype)


class Adapter(Bottleneck):
    """A bottleneck with plain matrices: 2*D*m + m + D parameters."""

    def __init__(self, width: int, config: AdapterConfig) -> None:
        super().__init__(width, config.dropout)
        self.down = nn.Parameter(torch.zeros(width, config.bottleneck))
        self.down_bias = nn.Parameter(torch.zeros(config.bottleneck))
        self.up = nn.Parameter(torch.zeros(config.bottleneck, width))
        self.up_bias = nn.Parameter(torch.zeros(width))

    def initialize(self, config: AdapterConfig, generator: torch.Generator) -> None:
        """Draw initial values near the identity."""
        self.down.data.normal_(std=config.init_std, generator=generator)
        self.up.data.normal_(std=config.up_std, generator=generator)

    def matrices(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the parameters themselves."""
        return self.down, self.down_bias, self.up, self.up_bias


def _initialize(adapters: nn.ModuleList, config: MethodConfig, generator: torch.Generator | None) -> nn.ModuleList:
    """Draw the initial values of all modules, unless saved ones will be loaded."""
    if generator is not None:
        for adapter in adapters:
            adapter.initialize(config, generator)  # type: ignore[operator]
    return adapters


class AdapterTuning(Method):
    """Adapters (Houlsby et al. 2019)."""

    Config: ClassVar[type[MethodConfig]] = AdapterConfig
    summary = "small bottleneck networks on every attention and feed-forward output"
    paper = "Houlsby et al. 2019"

    def __init__(self, adapters: nn.ModuleList, config: MethodConfig) -> None:
        super().__init__()
        self.adapters = adapters
        self.config = config

    @classmethod
    def build(cls, config: MethodConfig, backbone: Backbone, task: Task, generator: torch.Generator | None) -> Self:
        """Make one adapter per sub-layer."""
        assert isinstance(config, AdapterConfig)
        adapters = nn.ModuleList(Adapter(backbone.hidden_width, config) for _ in backbone.sublayers)
        return cls(_initialize(adapters, config, generator), config)

    def view_of(self, backbone: Backbone) -> Backbone:
        """Return the backbone with the adapters in it."""
        advice = "use prompt-tuning: adapters do not work"
        backbone.require("sub-layers", "method.name", self.config.name, "prompts", advice)
        return backbone.with_sublayers(list(self.adapters))


class CompacterConfig(BottleneckConfig):
    """Compacter: adapters whose matrices are PHM sums of rank-one factors."""

    phm_n: int = Field(4, ge=1, le=MOST_WIDTH, description="n of the PHM layers; divides width and bottleneck")
    init_std: float = Field(0.05, ge=0, description="standard deviation of all initial factors but one")
    up_std: float = Field(
        0.05, ge=0, description="standard deviation of the factor s of the initial up-projections; 0: the identity"
    )
    share_a: Literal["module", "all"] = Field(
        "module", description="A is shared by a module's two projections (IDPG's form), or by all modules (Compacter's)"
    )


class CompacterModule(Bottleneck):
    """A bottleneck with W = sum_i A_i (x) (s_i t_i): n^3 parameters of A, D + m per projection, and biases."""

    def __init__(self, width: int, config: CompacterConfig, a: nn.Parameter | None) -> None:
        super().__init__(width, config.dropout)
        n, m = config.phm_n, config.bottleneck
        check_divides("method.phm_n", n, {"width": width, "bottleneck": m})
        if a is None:
            self.own_a = nn.Parameter(torch.zeros(n, n, n))
        # In a tuple, so that torch does not register it here: the method does, once for all modules.
        self._shared_a = None if a is None else (a,)
        self.down_s, self.down_t = nn.Parameter(torch.zeros(n, width // n, 1)), nn.Parameter(torch.zeros(n, 1, m // n))
        self.up_s, self.up_t = nn.Parameter(torch.zeros(n, m // n, 1)), nn.Parameter(torch.zeros(n, 1, width // n))
        self.down_bias = nn.Parameter(torch.zeros(m))
        self.up_bias = nn.Parameter(torch.zeros(width))

    @property
    def a(self) -> nn.Parameter:
        """The A_i of both projections. [n n n]"""
        return self.own_a if self._shared_a is None else self._shared_a[0]

    def initialize(self, config: CompacterConfig, generator: torch.Generator) -> None:
        """Draw all factors from N(0, init_std): a product of three is near zero. With up_std=0 it is zero."""
        for factor in (self.a, self.down_s, self.down_t, self.up_s, self.up_t):
            std = config.up_std if factor is self.up_s else config.init_std
            factor.data.normal_(std=std, generator=generator)

    def matrices(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Build the matrices from their factors."""
        down = kronecker_sum(self.a, self.down_s @ self.down_t)  # [D m]
        up = kronecker_sum(self.a, self.up_s @ self.up_t)  # [m D]
        return down, self.down_bias, up, self.up_bias


class Compacter(AdapterTuning):
    """Compacter (Karimi Mahabadi et al. 2021)."""

    Config: ClassVar[type[MethodConfig]] = CompacterConfig
    summary = "adapters with Kronecker-factored matrices of rank one"
    paper = "Karimi Mahabadi et al. 2021"

    @classmethod
    def build(cls, config: MethodConfig, backbone: Backbone, task: Task, generator: torch.Generator | None) -> Self:
        """Make one module per sub-layer."""
        assert isinstance(config, CompacterConfig)
        n = config.phm_n
        shared_a = None if config.share_a == "module" else nn.Parameter(torch.zeros(n, n, n))
        adapters = nn.ModuleList(CompacterModule(backbone.hidden_width, config, shared_a) for _ in backbone.sublayers)
        method = cls(_initialize(adapters, config, generator), config)
        if shared_a is not None:
            method.common_a = shared_a
        return method
