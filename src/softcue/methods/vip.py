"""VIP (Bhardwaj et al. 2022) and its ablations VIP-C and VIP-IDP: settings and initial values."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from softcue.backbones import Backbone
from softcue.errors import ConfigurationError
from softcue.methods.hard_prompt import hard_text, hard_vectors
from softcue.methods.method import MOST_LAYERS, MOST_SEED, MOST_WIDTH, MethodConfig, Prompted, PromptedConfig
from softcue.methods.prompt_tuning import InitConfig, initial_prompt
from softcue.prompts import VIP, VIPIDP, ContextShape, InputPart, LossWeights, Quantizer, QuantizerShape
from softcue.sentence_vectors import SentenceVector
from softcue.tasks import Task
from softcue.types import WordVectors

CODES_PER_TOKEN = 10
MOST_CODES = 65_536


class ContextConfig(InitConfig):
    """Settings that VIP and VIP-C share: soft and contextualised prompt vectors, and the contextualiser."""

    fields_free_to_differ: ClassVar[tuple[str, ...]] = ("hard_prompt", "input_decay", "noise_resilience", "noise_self")

    prompt_length: int = Field(100, ge=1, le=1000, description="number of prompt vectors, with the soft ones")
    soft_tokens: int = Field(
        0, ge=0, le=1000, description="the first of them, plain soft prompts that do not read the input (table 8)"
    )
    hard_prompt: str = Field(
        "",
        description="frozen words before the prompt, T: a text, or 'task' for the label words and the description, of "
        "each task its own",
    )
    width: int = Field(32, ge=1, le=MOST_WIDTH, description="d', the contextualiser's width")
    layers: int = Field(2, ge=1, le=MOST_LAYERS, description="the contextualiser's layers")
    heads: int = Field(4, ge=1, le=MOST_WIDTH, description="the contextualiser's attention heads")
    dropout: float = Field(0.1, ge=0, lt=1, description="in the contextualiser")
    scale: float = Field(
        1.0, ge=0, description="unit of the contextualiser's inputs and outputs; 0 measures the backbone's word vectors"
    )
    input_gain: float = Field(
        0.0,
        ge=0,
        description="0: P^c as in the paper; above 0: only what the input changes in P^c, at this size in units "
        "of scale",
    )
    input_decay: float = Field(
        0.5, ge=0, lt=1, description="input_gain above 0: decay of the running mean and variance of P^c over inputs"
    )
    noise_resilience: float = Field(0.0, ge=0, description="weight of the noise resilience loss (equation 9); paper: 1")
    noise_self: bool = Field(False, description="include the term j = i of the same view in equation 9")


class VIPConfig(ContextConfig):
    """VIP: contextualiser and quantiser."""

    fields_free_to_differ: ClassVar[tuple[str, ...]] = (
        "commitment",
        "commitment_reduction",
        "ema_rule",
        "decay",
        "ema_epsilon",
        "reset_below",
        "codes_from",
        "codes_norm",
        "fill_after",
    )

    skip: bool = Field(True, description="P + P^q (equation 2) rather than P^q alone")
    codes: int = Field(0, ge=0, le=MOST_CODES, description="codes in the codebook, K; 0: ten per VIP token")
    draws: int = Field(10, ge=1, le=MOST_CODES, description="codes drawn and averaged per token in training, m")
    temperature: float = Field(100.0, gt=0, description="divides squared distances before the softmax")
    relative_temperature: bool = Field(
        False, description="temperature in units of the mean squared distance between the codes a token may take"
    )
    dedicated: bool = Field(False, description="each token has its own codes (section 6)")
    commitment: float = Field(0.1, ge=0, description="weight of the commitment loss, beta; of vectors divided by scale")
    commitment_reduction: Literal["mean", "sum"] = Field(
        "mean", description="over the values of a row: mean as in the authors' code, sum as in equation 6"
    )
    ema_rule: Literal["vqvae", "literal"] = Field(
        "vqvae", description="update rule of the codes; literal: equations 7 and 8"
    )
    decay: float = Field(0.99, ge=0, lt=1, description="decay of the codes' running averages")
    ema_epsilon: float | None = Field(
        None, gt=0, description="keeps counts above zero; unset: 1e-5, with ema_rule=literal 0.01"
    )
    reset_below: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="codes drawn less often than this share of the mean are reset from the batch; 0: never",
    )
    evaluation: Literal["expectation", "sample", "argmax"] = Field(
        "expectation",
        description="P^q outside training. expectation: weighted mean of codes; sample: draws by sample_seed; argmax: "
        "the nearest code",
    )
    sample_seed: int = Field(
        0, ge=0, le=MOST_SEED, description="seed of evaluation=sample; it is the same for every row"
    )
    codes_from: Literal["words", "context"] = Field(
        "words", description="initial codes: word vectors, as in the authors' code, or P^c of a training batch"
    )
    codes_norm: float = Field(100.0, ge=0, description="codes_from=words: norm of each initial code; 0: unchanged")
    fill_after: int = Field(
        1,
        ge=1,
        le=MOST_SEED,
        description="codes_from=context: the step whose P^c become the codes; before it P^c is not quantised",
    )


class VIPCConfig(ContextConfig):
    """VIP-C: the contextualiser alone."""

    skip: bool = Field(False, description="P + P^c instead of P^c (the paper's VIP-C has no skip connection)")


class _ContextualizedMethod(Prompted):
    """VIP or VIP-C: prompt vectors with a contextualiser."""

    paper = "Bhardwaj et al. 2022"

    @classmethod
    def build(cls, config: MethodConfig, backbone: Backbone, task: Task, generator: torch.Generator | None) -> Self:
        """Make the encoder: initial vectors and codes as configured, the contextualiser as torch initialises it."""
        assert isinstance(config, VIPConfig | VIPCConfig)
        _check(config)
        if config.scale == 0 and generator is not None:
            config = config.model_copy(update={"scale": backbone.word_size})
        # The cue records the text itself. Several tasks that share a prompt have their own: see `for_task`.
        config = config.model_copy(update={"hard_prompt": hard_text(config.hard_prompt, task)})
        shape = ContextShape(
            backbone.width, config.width, config.layers, config.heads, config.dropout, config.scale or 1.0
        )
        initial = torch.zeros(config.prompt_length, backbone.width)
        if generator is not None:
            initial = initial_prompt(config, backbone, task, generator)
        encoder = VIP(
            initial,
            config.soft_tokens,
            shape,
            _make_quantizer(config, backbone, generator is not None) if isinstance(config, VIPConfig) else None,
            config.skip,
            _loss_weights(config),
            hard_vectors(config.hard_prompt, backbone),
            _make_input_part(config, backbone),
        )
        if generator is not None:
            encoder.contextualizer.initialize(generator)
        return cls(encoder, config)

    def __init__(self, encoder: VIP, config: ContextConfig) -> None:
        super().__init__(encoder, config)
        self.encoder: VIP = encoder
        self.config: ContextConfig = config
        self.num_input_dependent = num_contextualized(config)

    def for_task(self, config: MethodConfig, backbone: Backbone, task: Task) -> Self:
        """Return this method with the task's own T; all parameters are shared."""
        assert isinstance(config, ContextConfig)
        text = hard_text(config.hard_prompt, task)
        encoder = self.encoder.with_hard_prompt(hard_vectors(text, backbone).to(self.encoder.hard))
        return type(self)(encoder, self.config.model_copy(update={"hard_prompt": text}))


def _check(config: ContextConfig) -> None:
    """Raise an error for settings that do not work together."""
    if config.soft_tokens >= config.prompt_length:
        raise ConfigurationError(
            setting="method.soft_tokens",
            got=config.soft_tokens,
            expected=f"fewer than method.prompt_length ({config.prompt_length})",
            fix="a prompt of plain vectors alone is method.name=prompt-tuning",
        )
    if config.width % config.heads:
        raise ConfigurationError(
            setting="method.heads",
            got=config.heads,
            expected=f"a divisor of method.width ({config.width})",
            fix="change one of them",
        )
    if config.noise_resilience and not config.dropout:
        raise ConfigurationError(
            setting="method.noise_resilience",
            got=config.noise_resilience,
            expected="method.dropout above 0",
            fix="dropout is the noise; set method.dropout=0.1",
        )
    if config.hard_prompt and config.tune_backbone:
        raise ConfigurationError(
            setting="method.hard_prompt",
            got=config.hard_prompt,
            expected="none with method.tune_backbone, which changes the words that T would keep frozen",
            fix="set method.hard_prompt='' in this stage",
        )
    if isinstance(config, VIPConfig) and config.input_gain and config.codes_from != "context":
        raise ConfigurationError(
            setting="method.codes_from",
            got=config.codes_from,
            expected="context with method.input_gain, whose codes are no words",
            fix="set method.codes_from=context, or method.input_gain=0",
        )
    if isinstance(config, VIPConfig) and config.dedicated and config.codes % num_contextualized(config):
        raise ConfigurationError(
            setting="method.codes",
            got=config.codes,
            expected=f"with method.dedicated the same number for each of {num_contextualized(config)} tokens",
            fix="leave it out for ten each",
        )


def num_contextualized(config: ContextConfig) -> int:
    """Return the number of contextualised vectors, n.

    Example:
        >>> num_contextualized(VIPConfig(name="vip", prompt_length=100, soft_tokens=80))
        20
    """
    return config.prompt_length - config.soft_tokens


def _loss_weights(config: ContextConfig) -> LossWeights:
    if isinstance(config, VIPConfig):
        return LossWeights(config.commitment, config.commitment_reduction, config.noise_resilience, config.noise_self)
    return LossWeights(noise_resilience=config.noise_resilience, noise_self=config.noise_self)


def _make_input_part(config: ContextConfig, backbone: Backbone) -> InputPart | None:
    if not config.input_gain:
        return None
    return InputPart(num_contextualized(config), backbone.width, config.input_decay, config.input_gain)


def _make_quantizer(config: VIPConfig, backbone: Backbone, is_new: bool) -> Quantizer:
    num_codes = config.codes or CODES_PER_TOKEN * num_contextualized(config)
    codebook = torch.zeros(num_codes, backbone.width)
    if is_new and config.codes_from == "words":
        codebook = _word_codes(backbone.word_input_states, num_contextualized(config), num_codes, config.codes_norm)
    epsilon = config.ema_epsilon or (0.01 if config.ema_rule == "literal" else 1e-5)
    shape = QuantizerShape(
        codes=num_codes,
        draws=config.draws,
        temperature=config.temperature,
        is_relative=config.relative_temperature,
        tokens=num_contextualized(config) if config.dedicated else 0,
        evaluation=config.evaluation,
        sample_seed=config.sample_seed,
        rule=config.ema_rule,
        decay=config.decay,
        epsilon=epsilon,
        reset_below=config.reset_below,
        fill_after=config.fill_after,
    )
    return Quantizer(shape, codebook)


def _word_codes(table: WordVectors, first: int, num_codes: int, norm: float) -> Tensor:
    """Return the authors' initial codes: rows n to n+K-1 of the word embeddings, scaled to one norm. [K D]"""
    if first + num_codes > len(table):
        raise ConfigurationError(
            setting="method.codes",
            got=num_codes,
            expected=f"at most {len(table) - first} codes that start as words",
            fix="lower it, or set method.codes_from=context",
        )
    words = table[torch.arange(first, first + num_codes)].cpu().float()
    if norm == 0:
        return words.clone()
    scaled: Tensor = words / words.norm(dim=1, keepdim=True).clamp(min=1e-12) * norm
    return scaled


class VIPMethod(_ContextualizedMethod):
    """VIP: contextualiser and codebook."""

    Config: ClassVar[type[MethodConfig]] = VIPConfig
    summary = "prompt vectors that read the input through a small network and a codebook"


class VIPCMethod(_ContextualizedMethod):
    """VIP-C: VIP without the codebook."""

    Config: ClassVar[type[MethodConfig]] = VIPCConfig
    summary = "prompt vectors that read the input through a small network, without the codebook"


class VIPIDPConfig(PromptedConfig):
    """VIP-IDP: a generator without biases."""

    prompt_length: int = Field(100, ge=1, le=1000, description="number of prompt vectors, n")
    bottleneck: int = Field(
        12, ge=1, le=MOST_WIDTH, description="the generator's inner width; 12 makes it as large as VIP on T5-base"
    )


class VIPIDPMethod(Prompted):
    """VIP-IDP: prompts generated from the mean of the encoder's states."""

    Config: ClassVar[type[MethodConfig]] = VIPIDPConfig
    summary = "one prompt among the embeddings, generated from the encoder's states without biases"
    paper = "Bhardwaj et al. 2022"

    @classmethod
    def build(cls, config: MethodConfig, backbone: Backbone, task: Task, generator: torch.Generator | None) -> Self:
        """Make the two matrices, as torch initialises them."""
        assert isinstance(config, VIPIDPConfig)
        representation = SentenceVector("backbone", "mean")
        encoder = VIPIDP(representation.width(backbone), config.bottleneck, config.prompt_length, backbone.width)
        if generator is not None:
            encoder.initialize(generator)
        method = cls(encoder, config)
        method.representation = representation
        method.num_input_dependent = config.prompt_length
        return method
