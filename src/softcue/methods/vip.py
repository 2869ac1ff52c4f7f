"""VIP (Bhardwaj et al. 2022): its settings, its two ablations, and where its numbers start."""

from __future__ import annotations

from typing import ClassVar, Literal, Self

import torch
from pydantic import Field
from torch import Tensor

from softcue.backbones import Backbone
from softcue.errors import ConfigurationError
from softcue.methods.method import MethodConfig
from softcue.methods.prompt_tuning import InitialConfig, initial_prompt
from softcue.methods.prompted import Prompted, PromptedConfig
from softcue.prompts import VIP, ContextShape, Projection, Quantizer, QuantizerShape, Weights
from softcue.sentence_vectors import SentenceVector
from softcue.tasks import Task
from softcue.types import Words

CODES_PER_TOKEN = 10


class ContextConfig(InitialConfig):
    """What VIP and VIP-C share: prompt vectors, plain or reading the input, and the network that reads."""

    only_training: ClassVar[tuple[str, ...]] = (
        "noise_resilience",
        "noise_self",
    )

    prompt_length: int = Field(100, ge=1, le=1000, description="number of prompt vectors, plain ones included")
    soft_tokens: int = Field(0, ge=0, description="how many of them are plain soft prompts (table 8), in front")
    hard_prompt: str = Field(
        "", description="frozen words in front of them, T: 'task' for label words and description, or a text"
    )
    width: int = Field(32, ge=1, description="d', the contextualiser's width")
    layers: int = Field(2, ge=1, description="the contextualiser's layers")
    heads: int = Field(4, ge=1, description="the contextualiser's attention heads")
    dropout: float = Field(0.1, ge=0, lt=1, description="in the contextualiser")
    scale: float = Field(
        1.0, ge=0, description="unit of the contextualiser's inputs and outputs; 0 measures the backbone's word vectors"
    )
    noise_resilience: float = Field(0.0, ge=0, description="weight of the noise resilience loss (equation 9); paper: 1")
    noise_self: bool = Field(False, description="count a row's own first view among those it is told apart from")


class VIPConfig(ContextConfig):
    """VIP: contextualiser and quantiser."""

    only_training: ClassVar[tuple[str, ...]] = (
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
    codes: int = Field(0, ge=0, description="codes in the codebook, K; 0: ten per VIP token")
    draws: int = Field(10, ge=1, description="codes drawn and averaged per token in training, m")
    temperature: float = Field(100.0, gt=0, description="what squared distances are divided by before the softmax")
    relative_temperature: bool = Field(
        False, description="temperature in units of the mean squared distance between the codes a token may take"
    )
    dedicated: bool = Field(False, description="each token draws from codes of its own (section 6)")
    commitment: float = Field(0.1, ge=0, description="weight of the commitment loss, beta; vectors in units of scale")
    commitment_reduction: Literal["mean", "sum"] = Field(
        "mean", description="over the numbers of a row: mean as in the authors' code, sum as in equation 6"
    )
    ema_rule: Literal["vqvae", "literal"] = Field("vqvae", description="how codes move; literal: equations 7 and 8")
    decay: float = Field(0.99, ge=0, lt=1, description="of the codes' running averages")
    ema_epsilon: float | None = Field(None, gt=0, description="keeps counts from zero; unset: 1e-5, literal 0.01")
    reset_below: float = Field(
        0.0, ge=0, lt=1, description="codes drawn less than this share of the mean are set anew; 0: never"
    )
    evaluation: Literal["expectation", "sample", "argmax"] = Field(
        "expectation", description="P^q outside training: weighted mean of codes, draws by sample_seed, nearest code"
    )
    sample_seed: int = Field(0, ge=0, description="of evaluation=sample; every row sees the same draws")
    codes_from: Literal["words", "context"] = Field(
        "words", description="where codes start: word vectors, as in the authors' code, or P^c of a training batch"
    )
    codes_norm: float = Field(100.0, ge=0, description="codes_from=words: their length; 0 leaves it as it is")
    fill_after: int = Field(
        1, ge=1, description="codes_from=context: the step whose P^c become codes; before it P^c is not quantised"
    )


class VIPCConfig(ContextConfig):
    """VIP-C: the contextualiser alone."""

    skip: bool = Field(False, description="P + P^c instead of P^c (the paper's VIP-C has no skip connection)")


class _Contextualised(Prompted):
    """A prompt with a contextualiser."""

    paper = "Bhardwaj et al. 2022"

    @classmethod
    def build(cls, config: MethodConfig, backbone: Backbone, task: Task, generator: torch.Generator | None) -> Self:
        """Prompt vectors from words, the network as torch starts one, codes as the configuration says."""
        assert isinstance(config, VIPConfig | VIPCConfig)
        _check(config)
        if config.scale == 0 and generator is not None:
            # in four digits: sums differ in their last ones with the number of threads
            scale = float(f"{float(_all_words(backbone).double().square().mean().sqrt()):.4g}")
            config = config.model_copy(update={"scale": scale})
        # the words themselves are recorded: a prompt that several tasks share has them all
        config = config.model_copy(update={"hard_prompt": hard_text(config.hard_prompt, task)})
        shape = ContextShape(
            backbone.width, config.width, config.layers, config.heads, config.dropout, config.scale or 1.0
        )
        first = torch.zeros(config.prompt_length, backbone.width)
        if generator is not None:
            first = initial_prompt(config, backbone, task, generator)
        encoder = VIP(
            first,
            config.soft_tokens,
            shape,
            _quantizer(config, backbone, generator is not None) if isinstance(config, VIPConfig) else None,
            config.skip,
            _weights(config),
            hard_words(config.hard_prompt, backbone),
        )
        if generator is not None:
            encoder.contextualizer.start(generator)
        method = cls(encoder, config)
        method.num_reading = num_vip(config)
        return method


def _check(config: ContextConfig) -> None:
    """Combinations that cannot work, with the reason."""
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
    if isinstance(config, VIPConfig) and config.dedicated and config.codes % (num_vip(config)):
        raise ConfigurationError(
            setting="method.codes",
            got=config.codes,
            expected=f"with method.dedicated the same number for each of {num_vip(config)} tokens",
            fix="leave it out for ten each",
        )


def num_vip(config: ContextConfig) -> int:
    """How many vectors read the input, n.

    Example:
        >>> num_vip(VIPConfig(name="vip", prompt_length=100, soft_tokens=80))
        20
    """
    return config.prompt_length - config.soft_tokens


def _weights(config: ContextConfig) -> Weights:
    if isinstance(config, VIPConfig):
        return Weights(config.commitment, config.commitment_reduction, config.noise_resilience, config.noise_self)
    return Weights(noise_resilience=config.noise_resilience, noise_self=config.noise_self)


def _quantizer(config: VIPConfig, backbone: Backbone, starts: bool) -> Quantizer:
    num_codes = config.codes or CODES_PER_TOKEN * num_vip(config)
    codebook = torch.zeros(num_codes, backbone.width)
    if starts and config.codes_from == "words":
        codebook = _word_codes(backbone.word_input_states, num_vip(config), num_codes, config.codes_norm)
    epsilon = config.ema_epsilon or (0.01 if config.ema_rule == "literal" else 1e-5)
    shape = QuantizerShape(
        codes=num_codes,
        draws=config.draws,
        temperature=config.temperature,
        is_relative=config.relative_temperature,
        tokens=num_vip(config) if config.dedicated else 0,
        evaluation=config.evaluation,
        sample_seed=config.sample_seed,
        rule=config.ema_rule,
        decay=config.decay,
        epsilon=epsilon,
        reset_below=config.reset_below,
        fill_after=config.fill_after,
    )
    return Quantizer(shape, codebook)


def _word_codes(table: Words, first: int, num_codes: int, norm: float) -> Tensor:
    """The authors' start: rows n to n+K-1 of the word table, each scaled to one length. [K D]"""
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


def _all_words(backbone: Backbone) -> Tensor:
    words = backbone.word_input_states
    return words[torch.arange(len(words))]  # [V D]


def hard_text(wanted: str, task: Task) -> str:
    """The text in front of the prompt; `task` stands for the task's label words and description."""
    text = " ".join([*task.label_words, task.description]).strip() if wanted == "task" else wanted
    if wanted and not text.strip():
        raise ConfigurationError(
            setting="method.hard_prompt",
            got=wanted,
            expected="a task with label words or a description, or a text",
            fix="write the text itself, or leave it out",
        )
    return text


def hard_words(text: str, backbone: Backbone) -> Tensor:
    """T: the word vectors of a frozen text in front of the prompt. [t D]"""
    ids = backbone.tokenizer(text, add_special_tokens=False)["input_ids"] if text.strip() else []
    return backbone.word_input_states[torch.tensor(ids, dtype=torch.long)].float()


class VectorQuantised(_Contextualised):
    """VIP."""

    Config: ClassVar[type[MethodConfig]] = VIPConfig
    summary = "prompt vectors that read the input through a small network and a codebook"


class Contextualised(_Contextualised):
    """VIP-C."""

    Config: ClassVar[type[MethodConfig]] = VIPCConfig
    summary = "prompt vectors that read the input through a small network, without the codebook"


class VIPIDPConfig(PromptedConfig):
    """VIP-IDP: a generator without biases."""

    prompt_length: int = Field(100, ge=1, le=1000, description="number of prompt vectors, n")
    bottleneck: int = Field(12, ge=1, description="the generator's inner width; 12 makes it as large as VIP on T5-base")


class InstanceProjected(Prompted):
    """VIP-IDP."""

    Config: ClassVar[type[MethodConfig]] = VIPIDPConfig
    summary = "one prompt among the embeddings, generated from the encoder's states without biases"
    paper = "Bhardwaj et al. 2022"

    @classmethod
    def build(cls, config: MethodConfig, backbone: Backbone, task: Task, generator: torch.Generator | None) -> Self:
        """Two matrices, started as torch does."""
        assert isinstance(config, VIPIDPConfig)
        representation = SentenceVector("backbone", "mean")
        encoder = Projection(representation.width(backbone), config.bottleneck, config.prompt_length, backbone.width)
        if generator is not None:
            encoder.start(generator)
        method = cls(encoder, config)
        method.representation = representation
        method.num_reading = config.prompt_length
        return method
