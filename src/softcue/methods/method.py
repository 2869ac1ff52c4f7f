"""The contract of a method: what is trained for one task on a frozen backbone.

The trainer, the injection and the server know only this contract. Most methods are one prompt encoder: they
subclass `Prompted` and `PromptedConfig`, or `DeepConfig` if they put prompts into several layers.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, ClassVar, Literal, Protocol, Self, TypeVar, get_args

import torch
from pydantic import BaseModel, ConfigDict, Field, field_validator
from torch import Tensor, nn

from softcue.backbones import Backbone
from softcue.backbones.attention_sizes import attention_sizes
from softcue.errors import BackboneError, ConfigurationError
from softcue.inputs.formatter import NUMBERED_POSITIONS, InputFormatter, InsertAt
from softcue.methods.backbone_weights import BackboneWeights
from softcue.prompts import PromptedLayers, PromptEncoder
from softcue.readouts import Readout
from softcue.sentence_vectors import SentenceVector
from softcue.tasks import Task
from softcue.types import BackboneKind, Example, Instance, Prediction, Prompt, TokenizedRow

DeepRule = Literal["auto", "add", "replace", "kv", "parallel"]
# A cue's file may say any size. These are far above all published ones and keep a pass over a batch within memory.
MOST_WIDTH = 8192  # of a trained network's inner layers
MOST_LAYERS = 1000
MOST_SEED = 2**63 - 1
Presets = Mapping[str, Mapping[str, Mapping[str, Any]]]  # kind of backbone -> section -> key -> value


class MethodConfig(BaseModel):
    """Settings that every method has. Each method adds its own."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    # Fields that only say how parameters start or how they are trained. A subclass names its own fields.
    fields_free_to_differ: ClassVar[tuple[str, ...]] = ("dropout",)

    name: str = Field(description="the method: a name from `softcue methods`")

    @property
    def tunes_backbone(self) -> bool:
        """Whether a copy of the backbone's weights is trained too. The cue then holds them."""
        return False

    @property
    def stands_among_words(self) -> bool:
        """Whether the trained prompt vectors stand among words, whose size is then the unit of learning rates."""
        return False

    def after(self, first_stage: Mapping[str, Any]) -> Self:
        """Return these settings for a run that starts from a cue whose method has the settings `first_stage`."""
        return self

    def view_of(self, backbone: Backbone) -> Backbone:
        """Return the backbone that a method with these settings is built for."""
        return backbone

    def notes(self) -> list[str]:
        """Return what a user of a cue with these settings should know, for the run's first lines and the model card."""
        return []

    def settings_to_try(self, task: Task) -> list[str]:
        """Return settings of the method that may help when nothing was learned and that are not set already."""
        return []

    def settings_to_match(self) -> dict[str, Any]:
        """Return the settings that decide what trained parameters compute: all but `fields_free_to_differ`."""
        left_out = {
            name for config_class in type(self).__mro__ for name in vars(config_class).get("fields_free_to_differ", ())
        }
        return {name: value for name, value in self.model_dump(mode="json").items() if name not in left_out}


class TaskReformulation(Protocol):
    """A task asked as another task: how its examples become examples of that task, and predictions come back."""

    task: Task

    def split(self, example: Example) -> list[Example]:
        """Return the examples of the other task that stand for this example."""

    def merge(self, predictions: Sequence[Prediction]) -> Prediction:
        """Join the predictions for those examples into one prediction of the original task."""


class Method(nn.Module, ABC):
    """The trainable parameters that one task adds to the backbone, without its readout's head."""

    Config: ClassVar[type[MethodConfig]]
    summary: ClassVar[str]  # one line for `softcue methods`
    paper: ClassVar[str]  # authors and year, or "-"
    presets: ClassVar[Presets] = {}  # of a method outside softcue; softcue's own are in presets.yaml
    needs_head: ClassVar[bool] = False  # it trains a head only, so it needs one also on backbones that write text
    length_setting: ClassVar[str] = "method.prompt_length"  # the setting to shorten if the prompt leaves no room
    needs_training: ClassVar[bool] = True  # False: it trains nothing, and its cue is written at once
    kinds: ClassVar[tuple[BackboneKind, ...]] = get_args(BackboneKind)  # the kinds of backbone that it works on
    readout_defaults: ClassVar[Mapping[str, str]] = {}  # key of the readout -> what its `auto` means for this method

    config: MethodConfig  # without any `auto` left, as the cue records it
    prompt_length: int = 0
    insert_at: InsertAt = "start"
    answer_prefix: str | None = None  # where the target of a text begins; None: what the readout has
    representation: SentenceVector | None = None  # the M(x) that its prompts read, if they do
    num_input_dependent: int = 0  # the last tokens of the prompt, which should differ between inputs
    prompt_unit: float | None = None  # the size of words among which its prompt vectors stand; None: they do not
    changes_hidden_states: bool = True  # False: the backbone computes the same states as without the method
    weights: BackboneWeights | None  # the backbone's weights, if they are trained too

    def __init__(self) -> None:
        super().__init__()
        self.register_module("weights", None)

    @property
    def prompt_text(self) -> str:
        """The prompt, if it is a text. It may hold training rows, so a server never shows it."""
        return ""

    @property
    def reserved_length(self) -> int:
        """The prompt vectors for which every text leaves room: all of them, unless long texts get fewer."""
        return self.prompt_length

    @property
    def reads_input(self) -> bool:
        """Whether prompts differ between inputs."""
        return self.num_input_dependent > 0 or self.representation is not None

    @classmethod
    @abstractmethod
    def build(cls, config: MethodConfig, backbone: Backbone, task: Task, generator: torch.Generator | None) -> Self:
        """Make a new method for a task.

        The generator draws the initial values. None means that saved values will be loaded: use zeros of the
        right shapes.
        """

    @classmethod
    def make(cls, config: MethodConfig, backbone: Backbone, task: Task, generator: torch.Generator | None) -> Self:
        """Build the method on the part of the backbone that it sees, with a copy of its weights if they are tuned."""
        if backbone.kind not in cls.kinds:
            raise BackboneError(
                setting="method.name",
                got=config.name,
                expected=f"a method that works on backbones of kind {backbone.kind} ({backbone.name})",
                fix=f"{config.name} needs one of kind {' or '.join(cls.kinds)}; or choose another method",
            )
        if config.tunes_backbone and backbone.quantization != "none":
            raise BackboneError(
                setting="backbone.quantization",
                got=backbone.quantization,
                expected=f"none for a method that trains the backbone's own weights ({config.name})",
                fix="integers take no gradient: set backbone.quantization=none, or train prompts or LoRA beside them "
                "(method.tune_backbone=false)",
            )
        if config.tunes_backbone and backbone.is_split:
            raise BackboneError(
                setting="backbone.device_map",
                got=f"{backbone.name}, split over devices",
                expected=f"a backbone on one device for a method that trains its weights ({config.name})",
                fix="set backbone.device_map=none, or train prompts or LoRA (method.tune_backbone=false)",
            )
        view = config.view_of(backbone)
        method = cls.build(config, view, task, generator)
        if method.config.stands_among_words and generator is not None:
            method.prompt_unit = view.word_size
        if config.tunes_backbone:
            method.weights = BackboneWeights(backbone)
        return method

    def for_task(self, config: MethodConfig, backbone: Backbone, task: Task) -> Method:
        """Return this method for one of the tasks that share it, with what belongs to that task alone.

        All of them share the parameters. `config` is the configuration as the user wrote it.
        """
        return self

    def make_for_task(self, config: MethodConfig, backbone: Backbone, task: Task) -> Method:
        """Return `for_task` on the part of the backbone that the method sees, with the same copy of its weights."""
        method = self.for_task(config, config.view_of(backbone), task)
        method.weights, method.prompt_unit = self.weights, self.prompt_unit
        return method

    def notes(self) -> list[str]:
        """Return what a user should know about this method: notes of its settings, and about the training rows."""
        return self.config.notes()

    def with_rows(
        self,
        examples: Sequence[Example],
        formatter: InputFormatter,
        readout: Readout,
        backbone: Backbone,
        seed: int,
    ) -> Method:
        """Return this method with what it takes from the training rows of a task, once, before training.

        It must be in the configuration of the result, from which `build` makes the same method for a loaded cue.
        `formatter` and `readout` make the texts of rows and targets.
        """
        return self

    @classmethod
    def reformulate(cls, task: Task) -> TaskReformulation | None:
        """Return how the task is asked as another task, or None if it is asked as it is."""
        return None

    def prompt(self, instance: Instance) -> Prompt | None:
        """Return the prompt of each row, or None for a method without prompts."""
        return None

    def view_of(self, backbone: Backbone) -> Backbone:
        """Return the backbone with this method's changes, such as adapters or fine-tuned weights.

        Rows of several methods share a batch if this returns the same object for all of them.
        """
        return self.config.view_of(self.tuned_backbone(backbone) or backbone)

    def tuned_backbone(self, backbone: Backbone) -> Backbone | None:
        """Return the whole backbone with the weights that this method has trained, or None if it trains none."""
        return None if self.weights is None else self.weights.twin_of(backbone)

    def prompt_parameters(self) -> list[nn.Parameter]:
        """Return the parameters that use `training.learning_rate`, mostly prompt vectors.

        Of the others, `weights` use `training.backbone_learning_rate`, and the rest `training.network_learning_rate`.
        """
        return []

    def prompt_encoder(self) -> PromptEncoder | None:
        """Return the prompt encoder, if there is one: for its codebook, and to inspect its vectors."""
        return None

    def closed_form_solutions(self, readout: Readout, rows: Sequence[TokenizedRow]) -> Iterator[None] | None:
        """Set one closed-form solution after the other, for methods that have them.

        The trainer keeps the best on the validation rows. None means that the method is trained by steps.
        """
        return None

    @property
    def num_solutions(self) -> int:
        """Return how many closed-form solutions there are, for methods that have them."""
        return 0


class PromptedConfig(MethodConfig):
    """Settings of every method that puts prompt vectors beside the text."""

    fields_free_to_differ: ClassVar[tuple[str, ...]] = ("insert_at", "tune_backbone")

    prompt_length: int = Field(20, ge=1, le=1000, description="number of prompt vectors, P")
    insert_at: InsertAt = Field(
        "start",
        description="front: before everything; start: after a leading [CLS]/BOS; first-end, second-start: of two "
        "texts; end: after the text; appended: behind it between separators; around: a quarter each at the start, "
        "before the mask, behind it and at the end (WARP); or IDPG's numbers 0 to 4 for start, first-end, "
        "second-start, end, appended",
    )

    insert_layer: int = Field(
        0,
        ge=0,
        le=MOST_LAYERS,
        description="the layer at which prompts enter; the layers below read the text alone, once (0: word embeddings)",
    )
    tune_backbone: bool = Field(
        False,
        description="train the backbone's weights too, in a copy that the cue holds: supplementary training (IDPG, "
        "appendix A.4); their rate is training.backbone_learning_rate",
    )

    @property
    def tunes_backbone(self) -> bool:
        """Whether `tune_backbone` is on."""
        return self.tune_backbone

    @property
    def stands_among_words(self) -> bool:
        """Prompt vectors do, unless a rule puts them elsewhere."""
        return True

    def view_of(self, backbone: Backbone) -> Backbone:
        """Return the part of the backbone from the layer on at which prompts enter."""
        return backbone.from_layer(self.insert_layer) if self.insert_layer else backbone

    @field_validator("insert_at", mode="before")
    @classmethod
    def _name_position(cls, position: object) -> object:
        """Turn IDPG's number of a position into its name."""
        if str(position).isdigit() and not isinstance(position, bool) and int(str(position)) < len(NUMBERED_POSITIONS):
            return NUMBERED_POSITIONS[int(str(position))]
        return position


class DeepConfig(PromptedConfig):
    """Settings of methods that put prompts into every layer, or into the layers named."""

    rule: DeepRule = Field(
        "add",
        description="how a layer takes its prompt: add to hidden states, replace them, kv (keys and values), or "
        "parallel (keys and values of an attention of their own, which is added to the layer's); auto: the last of "
        "these that the backbone can have",
    )
    layers: tuple[int, ...] = Field((), description="layers that get prompts, from 0; empty: all of them")
    units: tuple[tuple[float, float], ...] = Field(
        (),
        description="rule=parallel: the size of each prompted layer's keys and values, in which prompts are measured; "
        "empty: those of the backbone",
    )

    def after(self, first_stage: Mapping[str, Any]) -> Self:
        """Take over the units in which the parameters of a first stage are measured."""
        units = first_stage.get("units")
        if self.units or not units or first_stage.get("name") != self.name:
            return self
        return self.model_copy(update={"units": tuple(tuple(pair) for pair in units)})

    @property
    def stands_among_words(self) -> bool:
        """Keys and values do not."""
        return self.rule in ("add", "replace")

    @field_validator("layers", mode="before")
    @classmethod
    def _parse_layers(cls, layers: object) -> object:
        """Accept `0,2,4` as on the command line, or one number."""
        if isinstance(layers, int) and not isinstance(layers, bool):
            return (layers,)
        return tuple(part.strip() for part in layers.split(",")) if isinstance(layers, str) and layers else layers


Deep = TypeVar("Deep", bound=DeepConfig)


def with_rule(config: Deep, backbone: Backbone) -> Deep:
    """Return the configuration with the rule that `auto` means on this backbone."""
    if config.rule != "auto":
        return config
    with suppress(BackboneError):
        assert backbone.query_width
        return config.model_copy(update={"rule": "parallel"})
    with suppress(BackboneError):
        assert backbone.key_width
        return config.model_copy(update={"rule": "kv"})
    return config.model_copy(update={"rule": "add"})


def make_prompted_layers(config: DeepConfig, backbone: Backbone, num_layers: int | None = None) -> PromptedLayers:
    """Return the layers that a configuration names, among the first `num_layers` of the backbone (unset: all)."""
    assert config.rule != "auto", "with_rule replaces it"
    available = range(backbone.num_layers if num_layers is None else num_layers)
    if config.rule in ("kv", "parallel") or len(available) > 1:
        advice = "use prompt-tuning: prompts of deeper layers do not work"
        backbone.require("layers", "method.name", config.name, "prompts among the words", advice)
    layers = tuple(sorted(set(config.layers))) or tuple(available)
    if unknown := [layer for layer in layers if layer not in available]:
        raise ConfigurationError(
            setting="method.layers",
            got=unknown[0],
            expected=f"layers 0 to {len(available) - 1} of {backbone.name}",
            fix="leave it out for all of them",
        )
    if config.rule == "kv" and len(layers) < backbone.num_layers:
        raise ConfigurationError(
            setting="method.rule",
            got="kv",
            expected="prompts in every layer, or the rules add and replace",
            fix="elsewhere the text would attend to empty positions",
        )
    widths = {"kv": lambda: backbone.key_width, "parallel": lambda: backbone.query_width}
    key_width = widths[config.rule]() if config.rule in widths else 0
    return PromptedLayers(layers, config.rule, backbone.width, backbone.hidden_width, key_width)


def with_units(config: Deep, prompted_layers: PromptedLayers, backbone: Backbone) -> Deep:
    """Return the configuration with the sizes of the prompted layers' keys and values, if its rule needs them."""
    if prompted_layers.rule != "parallel" or config.units:
        return config
    if backbone.word_table.is_meta:  # only its shapes are known
        return config.model_copy(update={"units": ((1.0, 1.0),) * len(prompted_layers.layers)})
    sizes = attention_sizes(backbone)
    return config.model_copy(
        update={
            "units": tuple((_rounded(sizes[layer, 0]), _rounded(sizes[layer, 1])) for layer in prompted_layers.layers)
        }
    )


def _rounded(size: Tensor) -> float:
    """Return a size with four digits: the last digits of a sum depend on the number of threads."""
    return float(f"{float(size):.4g}")


def unit_keys(length: int, width: int, generator: torch.Generator | None) -> Tensor:
    """Return keys from N(0, 1) in the layer's units, and values of zero: step 0 is the frozen model. [P 2Q]"""
    keys = torch.zeros(length, width) if generator is None else torch.randn(length, width, generator=generator)
    return torch.cat([keys, torch.zeros(length, width)], dim=1)


class Prompted(Method):
    """A method whose trainable part is a prompt encoder, and the backbone's weights with `tune_backbone`."""

    def __init__(self, encoder: PromptEncoder, config: PromptedConfig) -> None:
        super().__init__()
        self.encoder = encoder
        self.config = config
        self.prompt_length = encoder.prompt_length
        self.insert_at = config.insert_at

    def prompt(self, instance: Instance) -> Prompt:
        """Return the encoder's prompt."""
        return self.encoder(instance)  # type: ignore[no-any-return]

    def prompt_parameters(self) -> list[nn.Parameter]:
        """Return the encoder's prompt vectors."""
        return self.encoder.prompt_parameters()

    def prompt_encoder(self) -> PromptEncoder:
        """Return the encoder."""
        return self.encoder
