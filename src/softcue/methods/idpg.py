"""IDPG (Wu et al. 2022): its settings, and the five variants in the paper's tables."""

from __future__ import annotations

from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import torch
from pydantic import Field, create_model

from softcue.backbones import Backbone, pool
from softcue.errors import ConfigurationError
from softcue.methods.method import (
    MOST_WIDTH,
    DeepConfig,
    MethodConfig,
    Prompted,
    make_prompted_layers,
    unit_keys,
    with_rule,
    with_units,
)
from softcue.methods.prompt_tuning import InitConfig, initial_prompt
from softcue.prompts import IDPG, GeneratorShape, PromptedLayers
from softcue.sentence_vectors import SentenceVector
from softcue.sentence_vectors.glove import PACKAGED, load_glove
from softcue.tasks import Task
from softcue.types import Instance, Prompt


class IDPGConfig(DeepConfig, InitConfig):
    """IDPG: the generator, its input, and where its prompts go."""

    fields_free_to_differ: ClassVar[tuple[str, ...]] = (
        "init_std",
        "factor_std",
        "representation_dropout",
        "glove",
    )

    prompt_length: int = Field(5, ge=1, le=1000, description="number of prompt vectors per layer, P")
    depth: Literal["single", "multi"] = Field("multi", description="prompts among the embeddings only, or per layer")
    generator: Literal["phm", "dnn"] = Field("phm", description="W1 and W2: sums of Kronecker products, or plain")
    bottleneck: int = Field(16, ge=1, le=MOST_WIDTH, description="m, the generator's inner width")
    phm_n: int = Field(16, ge=1, le=MOST_WIDTH, description="n of the PHM layers; divides input, bottleneck and output")
    share_a: bool | None = Field(None, description="one set of A for both PHM layers; unset: only with depth=single")
    activation: Literal["gelu", "relu", "tanh", "none"] = Field(
        "gelu", description="the generator's activation, after W1"
    )
    dropout: float = Field(0.1, ge=0, lt=1, description="on the sentence vector and after the activation")
    residual: bool = Field(False, description="add the sentence vector to each token (appendix A.5.1)")
    layer_norm: bool = Field(False, description="normalise the generated tokens (appendix A.5.1)")
    normalize_input: bool = Field(
        False,
        description="divide the generator's input by its root mean square: states of T5 and of many decoders grow from "
        "layer to layer",
    )
    sharing: Literal["S", "M", "L"] = Field(
        "M", description="between layers: S shares W and b, M has an output bias per layer, L shares nothing"
    )
    input: Literal["previous", "first"] = Field(
        "previous",
        description="input of the generators of deeper layers: the states of the layer before, or M(x) again",
    )
    representation: Literal["auto", "backbone", "words", "glove", "entering"] = Field(
        "auto",
        description="source of M(x). backbone: the frozen backbone's last states; words: its word embeddings; glove: "
        "GloVe vectors; entering: the hidden states that enter layer insert_layer, which need no second pass. "
        "auto: entering with insert_layer, else backbone",
    )
    pooling: Literal["auto", "cls", "mean", "last"] = Field(
        "auto",
        description="how states become M(x); auto: the mean of word embeddings, else the backbone's own pooling",
    )
    representation_dropout: bool = Field(
        False, description="use the backbone's dropout for M(x) in training, as the authors' code does"
    )
    representation_prompt: str | None = Field(
        None, description="words in front of a text for M(x); unset: the default prompt its folder names, if any"
    )
    glove: str = Field("kumo", description="representation=glove: a text file, or kumo for the package of that name")
    glove_width: int = Field(300, ge=1, le=MOST_WIDTH, description="width of the GloVe vectors")
    glove_digest: str = Field("", description="set by training: identifies the GloVe vectors of a cue")
    init: Literal["normal", "uniform", "vocabulary", "labels", "text", "file"] = Field(  # type: ignore[assignment]
        "normal", description="initial output biases (plain soft prompts); words only among the embeddings"
    )
    init_std: float = Field(0.02, ge=0, description="standard deviation of the initial output biases")
    factor_std: float = Field(
        0.05, ge=0, description="standard deviation of the initial PHM factors (plain matrices: 0.02)"
    )

    def settings_to_try(self, task: Task) -> list[str]:
        """Return the initialiser with the words of the labels, if the prompts are among the word embeddings."""
        return super().settings_to_try(task) if self.depth == "single" else []

    @property
    def shares_a(self) -> bool:
        """Whether W1 and W2 have the same A."""
        return self.depth == "single" if self.share_a is None else self.share_a


class IDPGMethod(Prompted):
    """Instance-dependent prompt generation: prompts generated from the input."""

    Config: ClassVar[type[MethodConfig]] = IDPGConfig
    summary = "prompts in every layer, generated from the input by a small shared network"
    paper = "Wu et al. 2022"

    @classmethod
    def build(cls, config: MethodConfig, backbone: Backbone, task: Task, generator: torch.Generator | None) -> Self:
        """Make the generators, with the paper's initial values."""
        assert isinstance(config, IDPGConfig)
        config = with_rule(config, backbone)
        if config.representation == "auto":
            source = "entering" if config.insert_layer else "backbone"
            config = config.model_copy(update={"representation": source})
        if config.representation == "glove" and generator is not None:
            # The full path, so that the cue works from any working directory.
            glove = config.glove if config.glove == PACKAGED else str(Path(config.glove).expanduser().resolve())
            config = config.model_copy(update={"glove": glove, "glove_digest": load_glove(glove).digest})
        if config.pooling == "auto":
            # The embedding of one word, such as [CLS] or the last, does not describe the text.
            pooling = "mean" if config.representation == "words" else backbone.default_pooling
            config = config.model_copy(update={"pooling": pooling})
        if config.representation_prompt is None:
            # A cue without this setting is older than it, and was trained without words in front.
            has_prompt = config.representation == "backbone" and generator is not None
            prompt = backbone.sentence_transformers.default_prompt if has_prompt else ""
            config = config.model_copy(update={"representation_prompt": prompt})
        assert config.pooling != "auto" and config.representation != "auto"
        prompted_layers = make_prompted_layers(config, backbone, num_layers=1 if config.depth == "single" else None)
        representation = None
        if config.representation != "entering":
            representation = SentenceVector(
                config.representation,
                config.pooling,
                config.representation_dropout,
                config.glove,
                config.glove_width,
                config.glove_digest,
                config.representation_prompt or "",
            )
        width = backbone.width if representation is None else representation.width(backbone)
        _check(config, prompted_layers, width, backbone)
        config = with_units(config, prompted_layers, backbone)
        assert config.pooling != "auto"
        encoder = IDPG(
            prompted_layers,
            config.prompt_length,
            GeneratorShape(
                inputs=width,
                bottleneck=config.bottleneck,
                outputs=0,
                phm_n=config.phm_n if config.generator == "phm" else 0,
                shares_a=config.shares_a,
                activation=config.activation,
                dropout=config.dropout,
                init_std=config.factor_std if config.generator == "phm" else 0.02,
            ),
            config.sharing,
            config.input == "previous",
            partial(pool, pooling=config.pooling),
            config.residual,
            config.layer_norm,
            config.units,
            config.normalize_input,
        )
        if generator is not None:
            _initialize(encoder, config, backbone, task, generator)
        method = cls(encoder, config)
        method.representation = representation
        return method

    def prompt(self, instance: Instance) -> Prompt:
        """Generate prompts from M(x), or from the states that enter layer `insert_layer`."""
        if self.representation is None:
            assert isinstance(self.config, IDPGConfig) and self.config.pooling != "auto"
            sentence_vectors = pool(instance.embeds, instance.mask, self.config.pooling)  # [B R]
            instance = replace(instance, representation=sentence_vectors)
        return super().prompt(instance)


def _check(config: IDPGConfig, prompted_layers: PromptedLayers, width: int, backbone: Backbone) -> None:
    """Raise an error for settings that do not work together. `width` is that of M(x)."""
    widths = {prompted_layers.vector_width(layer) for layer in prompted_layers.layers}
    if len(widths) > 1 and config.sharing != "L":
        raise ConfigurationError(
            setting="method.sharing",
            got=config.sharing,
            expected=f"L with {backbone.name}",
            fix="its embeddings and hidden states differ in width: no sharing",
        )
    reads_layers = config.input == "previous" and any(layer > 0 for layer in prompted_layers.layers)
    if reads_layers and width != backbone.hidden_width:
        raise ConfigurationError(
            setting="method.input",
            got="previous",
            expected=f"first: M(x) has {width} numbers here",
            fix=f"the layers' states have {backbone.hidden_width}",
        )
    if config.representation_dropout and config.representation != "backbone":
        raise ConfigurationError(
            setting="method.representation_dropout",
            got=True,
            expected="representation=backbone",
            fix="word vectors have no dropout",
        )
    if config.representation_prompt and config.representation != "backbone":
        raise ConfigurationError(
            setting="method.representation_prompt",
            got=config.representation_prompt,
            expected="representation=backbone",
            fix="other sentence vectors read no prompt: leave it out",
        )
    if config.representation == "entering" and not config.insert_layer:
        raise ConfigurationError(
            setting="method.representation",
            got="entering",
            expected="prompts that enter at a deeper layer",
            fix="set method.insert_layer, or representation=words",
        )
    if config.residual and widths != {width}:
        raise ConfigurationError(
            setting="method.residual",
            got=True,
            expected=f"prompt vectors as wide as M(x), {width}",
            fix=f"they have {sorted(widths)}; leave residual out",
        )
    if config.init not in ("normal", "uniform") and not prompted_layers.has_embedding_prompt:
        raise ConfigurationError(
            setting="method.init",
            got=config.init,
            expected="normal or uniform, or a prompt among the embeddings",
            fix=f"set method.rule=add: with {config.rule} there is no place for words",
        )
    if config.layer_norm and len(widths) > 1:
        raise ConfigurationError(
            setting="method.layer_norm",
            got=True,
            expected="prompts of one width in all layers",
            fix=f"they have {sorted(widths)}",
        )


def _initialize(encoder: IDPG, config: IDPGConfig, backbone: Backbone, task: Task, generator: torch.Generator) -> None:
    is_parallel = encoder.prompted_layers.rule == "parallel"
    for prompt_generator in encoder.generators:
        prompt_generator.initialize(generator, starts_at_bias=is_parallel)  # type: ignore[operator]
    for number, bias in enumerate(encoder.biases):
        if is_parallel:
            width = encoder.prompted_layers.key_width
            bias.data.copy_(unit_keys(config.prompt_length, width, generator).flatten())
        elif config.init == "uniform":
            bias.data.uniform_(-0.5, 0.5, generator=generator)
        elif config.init == "normal" or number > 0 or not encoder.prompted_layers.has_embedding_prompt:
            bias.data.normal_(std=config.init_std, generator=generator)
        else:
            bias.data.copy_(initial_prompt(config, backbone, task, generator).flatten())


def _make_config(name: str, **defaults: Any) -> type[IDPGConfig]:
    """Make a configuration class with other defaults than IDPG's."""
    fields: dict[str, Any] = {}
    for key, value in defaults.items():
        field = copy(IDPGConfig.model_fields[key])
        field.default = value
        fields[key] = (field.annotation, field)
    return create_model(name, __base__=IDPGConfig, __doc__=IDPGConfig.__doc__, **fields)


class SingleLayerPHM(IDPGMethod):
    """S-IDPG-PHM."""

    Config = _make_config("SingleLayerPHMConfig", depth="single", bottleneck=256)
    summary = "one prompt among the embeddings, generated from the input (PHM generator)"


class SingleLayerDNN(IDPGMethod):
    """S-IDPG-DNN."""

    Config = _make_config("SingleLayerDNNConfig", depth="single", bottleneck=256, generator="dnn")
    summary = "one prompt among the embeddings, generated from the input (plain generator)"


class MultiLayerPHM(IDPGMethod):
    """M-IDPG-PHM."""

    Config = _make_config("MultiLayerPHMConfig")
    summary = "prompts in every layer, generated from the input by one shared PHM generator"


class MultiLayerDNN(IDPGMethod):
    """M-IDPG-DNN."""

    Config = _make_config("MultiLayerDNNConfig", generator="dnn")
    summary = "prompts in every layer, generated from the input by one shared plain generator"


class MultiLayerGloVe(IDPGMethod):
    """M-IDPG-PHM-GloVe."""

    Config = _make_config("MultiLayerGloVeConfig", representation="glove", input="first", phm_n=4)
    summary = "prompts in every layer, generated from the mean of the input's GloVe vectors"
