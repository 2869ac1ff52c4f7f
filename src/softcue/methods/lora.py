"""LoRA (Hu et al. 2021): a trained low-rank update of some of the backbone's matrices, beside the frozen ones.

Section 4.1: h = W0 x + (alpha / r) B A x. A starts at random and B at zero, so step 0 is the frozen model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar, Self

import torch
from pydantic import Field, field_validator
from torch import Tensor, nn

from softcue.backbones import Backbone
from softcue.backbones.linears import linear_widths, select_linears
from softcue.errors import BackboneError, ConfigurationError, near_matches
from softcue.inputs.collate import collate
from softcue.methods.method import MOST_WIDTH, Method, MethodConfig
from softcue.randomness import RowDropout
from softcue.tasks import Task
from softcue.types import TokenizedRow

AUTO = "auto"
MOST_ALPHA = 1e6  # a cue from elsewhere may say any number; predictions must stay finite


class LoRAConfig(MethodConfig):
    """LoRA: rank, scale, the matrices that get an update, and initial values."""

    fields_free_to_differ: ClassVar[tuple[str, ...]] = ("init_std", "up_std")

    rank: int = Field(8, ge=1, le=MOST_WIDTH, description="r, the rank of an update")
    alpha: float = Field(16.0, gt=0, le=MOST_ALPHA, description="an update is multiplied by alpha / rank")
    targets: tuple[str, ...] = Field(
        (AUTO,),
        min_length=1,
        description="names of the linear modules in a layer that get an update, such as q_proj,v_proj; auto: those "
        "that compute queries and values, also where one module computes keys too (GPT-2's c_attn)",
    )
    dropout: float = Field(
        0.0, ge=0, lt=1, description="on the input of an update, in training; it drops whole channels of a row"
    )
    init_std: float = Field(0.02, ge=0, description="standard deviation of the initial A")
    up_std: float = Field(0.0, ge=0, description="standard deviation of the initial B; 0: the frozen model")

    @field_validator("targets", mode="before")
    @classmethod
    def _parse_targets(cls, targets: object) -> object:
        """Accept `q_proj,v_proj` as on the command line."""
        return tuple(part.strip() for part in targets.split(",")) if isinstance(targets, str) else targets


class LowRankUpdate(nn.Module):
    """output + scale * B A drop(input): r * (in + out) parameters.

    Dropout draws once per row and channel, the same for all positions. A row's noise then does not depend on the
    padding of its batch.
    """

    def __init__(self, widths: tuple[int, int], config: LoRAConfig) -> None:
        super().__init__()
        self.a = nn.Parameter(torch.zeros(config.rank, widths[0]))  # [r in]
        self.b = nn.Parameter(torch.zeros(widths[1], config.rank))  # [out r]
        self.scale = config.alpha / config.rank
        self.dropout = RowDropout(config.dropout)

    def initialize(self, config: LoRAConfig, generator: torch.Generator) -> None:
        """Draw initial values."""
        self.a.data.normal_(std=config.init_std, generator=generator)
        self.b.data.normal_(std=config.up_std, generator=generator)

    def forward(self, inputs: Tensor, output: Tensor) -> Tensor:
        """Add the update to what the frozen matrix gives for its inputs. [B S in], [B S out] -> [B S out]"""
        states = inputs.to(self.a.dtype)
        states = states * self.dropout(torch.ones_like(states[:, :1]))  # [B S in] * [B 1 in]
        changed: Tensor = output.to(self.a.dtype) + states @ self.a.T @ self.b.T * self.scale
        return changed.to(output.dtype)


class LoRA(Method):
    """LoRA (Hu et al. 2021)."""

    Config: ClassVar[type[MethodConfig]] = LoRAConfig
    summary = "low-rank updates of the query and value projections, or of other linear modules"
    paper = "Hu et al. 2021"

    def __init__(self, updates: Mapping[str, LowRankUpdate], config: LoRAConfig) -> None:
        super().__init__()
        self.paths = tuple(updates)  # of the linear modules, below the base model
        self.updates = nn.ModuleList(updates.values())
        self.config: LoRAConfig = config

    @classmethod
    def build(cls, config: MethodConfig, backbone: Backbone, task: Task, generator: torch.Generator | None) -> Self:
        """Make an update for each module that `targets` names, in all layers."""
        assert isinstance(config, LoRAConfig)
        if AUTO in config.targets:
            config = config.model_copy(update={"targets": _automatic_targets(config, backbone)})
        paths = _target_paths(config, backbone)
        updates = {path: LowRankUpdate(linear_widths(backbone.linears[path]), config) for path in paths}
        if generator is not None:
            _check_targets_run(config, backbone, paths)
            for update in updates.values():
                update.initialize(config, generator)
        return cls(updates, config)

    def view_of(self, backbone: Backbone) -> Backbone:
        """Return the backbone with the updates in it."""
        return backbone.with_linears(dict(zip(self.paths, self.updates, strict=True)))


def _automatic_targets(config: LoRAConfig, backbone: Backbone) -> tuple[str, ...]:
    if config.targets != (AUTO,):
        raise ConfigurationError(
            setting="method.targets",
            got=",".join(config.targets),
            expected="auto alone, or names of modules",
            fix="leave one of them out",
        )
    if not backbone.query_and_value_names:
        raise BackboneError(
            setting="method.targets",
            got=AUTO,
            expected=f"a backbone whose query and value projections are found ({backbone.name})",
            fix=f"name linear modules of its layers: {', '.join(_module_names(backbone)) or 'it has none'}",
        )
    return backbone.query_and_value_names


def _target_paths(config: LoRAConfig, backbone: Backbone) -> list[str]:
    """The modules that `targets` names, each once, in the order of the layers."""
    chosen: set[str] = set()
    for name in config.targets:
        paths = select_linears(backbone.linears, name)
        if not paths:
            raise ConfigurationError(
                setting="method.targets",
                got=name,
                expected=f"a linear module in the layers of {backbone.name}",
                fix=near_matches(name, _module_names(backbone)),
            )
        chosen.update(paths)
    return [path for path in backbone.linears if path in chosen]


class _RunRecorder(nn.Module):
    """Changes nothing and notes that its module has run."""

    has_run = False

    def forward(self, inputs: Tensor, output: Tensor) -> Tensor:
        self.has_run = True
        return output


@torch.no_grad()
def _check_targets_run(config: LoRAConfig, backbone: Backbone, paths: Sequence[str]) -> None:
    """Check on two tokens that modules of each name run: a model may use a matrix without calling its module."""
    if backbone.word_table.is_meta:
        return
    recorders = {path: _RunRecorder() for path in paths}
    view = backbone.with_linears(recorders)
    batch = collate([TokenizedRow((1, 2), None, 0)], backbone.tokenizer.pad_token_id).to(backbone.device)
    forward_pass = view.read(batch, None, view.embed(batch.ids))
    forward_pass.text()
    if backbone.kind == "encoder-decoder":
        forward_pass.target_logits(batch.ids)
    for name in config.targets:
        if not any(recorders[path].has_run for path in select_linears(backbone.linears, name)):
            raise BackboneError(
                setting="method.targets",
                got=name,
                expected=f"modules that run in a pass of {backbone.name}",
                fix="name others: an update of this one would change nothing",
            )


def _module_names(backbone: Backbone) -> list[str]:
    return list(dict.fromkeys(path.rpartition(".")[2] for path in backbone.linears))
