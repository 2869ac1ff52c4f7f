"""IDPG (Wu et al. 2022): prompts generated from a vector of the input.

    G(h) = W2 . drop(act(W1 . drop(h) + b1)) + b2        reshaped to [P D]

The dropout on h applies only to M(x), as in the authors' code; hidden states of the same pass have none.
The single-layer form puts G(M(x)) among the embeddings. The multi-layer form has one prompt per layer, whose
generator reads either M(x) again (`first`) or the previous layer's output in the same pass (`previous`). Layers of some
backbones give states a hundred times larger than others; with `normalizes_input` h is divided by its root mean square.
Sharing between layers (section 3.3): S shares everything, M has one b2 per layer, L shares nothing.
W1 and W2 are plain matrices or sums of Kronecker products (phm.py). With W2 = 0 this is prompt tuning with P = b2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from softcue.phm import check_divides, kronecker_sum
from softcue.prompts.deep import PromptedLayers, Units
from softcue.prompts.encoder import PromptEncoder, make_prompt
from softcue.randomness import RowDropout
from softcue.types import Instance, LayerPrompt, Prompt

Sharing = Literal["S", "M", "L"]
ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "gelu": functional.gelu,
    "relu": functional.relu,
    "tanh": torch.tanh,
    "none": lambda values: values,
}


@dataclass(frozen=True)
class GeneratorShape:
    """Sizes and settings of a generator."""

    inputs: int  # R
    bottleneck: int  # m
    outputs: int  # P * X
    phm_n: int  # 0: plain matrices
    shares_a: bool  # one set of A_i for W1 and W2
    activation: str
    dropout: float
    init_std: float  # of PHM factors and b1, or of plain matrices (whose b1 starts at 0)


class Generator(nn.Module):
    """W1, b1 and W2. The output bias b2 belongs to a layer and is added outside."""

    def __init__(self, shape: GeneratorShape) -> None:
        super().__init__()
        self.shape = shape
        n, sizes = shape.phm_n, ((shape.inputs, shape.bottleneck), (shape.bottleneck, shape.outputs))
        self.bias = nn.Parameter(torch.zeros(shape.bottleneck))  # b1
        if n:
            check_divides(
                "method.phm_n",
                n,
                {
                    "generator's input": shape.inputs,
                    "bottleneck": shape.bottleneck,
                    "generator's output": shape.outputs,
                },
            )
            self.a = nn.ParameterList(nn.Parameter(torch.zeros(n, n, n)) for _ in range(1 if shape.shares_a else 2))
            self.b = nn.ParameterList(nn.Parameter(torch.zeros(n, i // n, o // n)) for i, o in sizes)
        else:
            self.w = nn.ParameterList(nn.Parameter(torch.zeros(i, o)) for i, o in sizes)
        self.dropout = RowDropout(shape.dropout)

    def initialize(self, generator: torch.Generator, starts_at_bias: bool = False) -> None:
        """Draw the initial values of the authors' runs: N(0, 0.05) for PHM, N(0, 0.02) for plain matrices.

        With `starts_at_bias` W2 is 0, so that the first prompt is b2 for every input.
        """
        for name, parameter in self.named_parameters():
            if self.shape.phm_n or name != "bias":
                parameter.data.normal_(std=self.shape.init_std, generator=generator)
        if starts_at_bias:
            (self.b if self.shape.phm_n else self.w)[1].data.zero_()

    def matrices(self) -> tuple[Tensor, Tensor]:
        """Return W1 [R m] and W2 [m P*X], built once for all rows and layers of a pass."""
        if not self.shape.phm_n:
            return self.w[0], self.w[1]
        return kronecker_sum(self.a[0], self.b[0]), kronecker_sum(self.a[-1], self.b[1])

    def forward(self, vectors: Tensor, matrices: tuple[Tensor, Tensor]) -> Tensor:
        """Return G(h) without b2. [B R] -> [B P*X]"""
        first, second = matrices
        hidden = ACTIVATIONS[self.shape.activation](vectors @ first + self.bias)  # [B m]
        return self.dropout(hidden) @ second  # type: ignore[no-any-return]


class IDPG(PromptEncoder):
    """Prompts generated for each input, for one layer or for several."""

    def __init__(
        self,
        prompted_layers: PromptedLayers,
        length: int,
        shape: GeneratorShape,
        sharing: Sharing,
        reads_previous: bool,
        pool: Callable[[Tensor, Tensor], Tensor],
        residual: bool = False,
        layer_norm: bool = False,
        units: Sequence[tuple[float, float]] = (),
        normalizes_input: bool = False,
    ) -> None:
        super().__init__()
        self.prompted_layers, self.num_vectors, self.sharing = prompted_layers, length, sharing
        self.normalizes_input = normalizes_input
        self.prompt_length = prompted_layers.num_positions(length)
        self.units = Units(units) if units else None
        self.reads_previous, self.pool, self.residual = reads_previous, pool, residual
        outputs = [length * prompted_layers.vector_width(layer) for layer in prompted_layers.layers]
        num_generators = len(outputs) if sharing == "L" else 1
        num_biases = 1 if sharing == "S" else len(outputs)
        self.generators = nn.ModuleList(Generator(replace(shape, outputs=size)) for size in outputs[:num_generators])
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(size)) for size in outputs[:num_biases])  # b2
        self.dropout = RowDropout(shape.dropout)
        # The paper's ablations (appendix A.5.1): a norm of the sentence vector, of the tokens, and of their sum.
        norms = (["tokens"] if layer_norm else []) + (["sentence", "sum"] if layer_norm and residual else [])
        width = prompted_layers.vector_width(prompted_layers.layers[0])
        self.norms = nn.ModuleDict({name: nn.LayerNorm(width) for name in norms})

    def prompt_parameters(self) -> list[nn.Parameter]:
        """Return b2, which is a plain soft prompt."""
        return list(self.biases)

    def static_vectors(self) -> Tensor | None:
        """Return b2 among the embeddings: it is the same for every input."""
        has_prompt = self.prompted_layers.has_embedding_prompt
        return self.biases[0].view(self.num_vectors, -1) if has_prompt else None

    def forward(self, instance: Instance) -> Prompt:
        """Generate the prompt of each row from its M(x)."""
        assert instance.representation is not None, "this prompt needs M(x)"
        sentence = self.dropout(instance.representation)  # [B R]
        matrices = [generator.matrices() for generator in self.generators]  # type: ignore[operator]
        indices = {layer: index for index, layer in enumerate(self.prompted_layers.layers)}
        if self.prompted_layers.has_embedding_prompt:
            tokens = self._generate(indices.pop(0), sentence, matrices)
        else:
            tokens = self.prompted_layers.zero_embeddings(sentence.shape[0], self.prompt_length, instance.embeds)

        def layer_prompts(layer: int, hidden: Tensor, mask: Tensor) -> LayerPrompt | None:
            if layer not in indices:
                return None
            # No layer comes before layer 0, so its generator reads M(x).
            reads_previous = self.reads_previous and layer > 0
            vectors = self.pool(hidden.float(), mask).to(sentence.device) if reads_previous else sentence  # [B R]
            generated = self._generate(indices[layer], vectors, matrices)
            if self.units is not None:
                generated = self.units(generated, indices[layer])
            return self.prompted_layers.make_layer_prompt(generated)

        return replace(
            make_prompt(tokens),
            layer_prompts=layer_prompts if indices else None,
            is_parallel=self.prompted_layers.rule == "parallel",
            needs_positions=self.prompted_layers.needs_positions,
            reads_states=self.reads_previous,
        )

    def _generate(self, index: int, vectors: Tensor, matrices: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """Return G(h) of the prompted layer with this index. [B R] -> [B P X]"""
        generator_index = index if self.sharing == "L" else 0
        inputs = functional.rms_norm(vectors, vectors.shape[-1:]) if self.normalizes_input else vectors  # [B R]
        output = self.generators[generator_index](inputs, matrices[generator_index])
        output = output + self.biases[0 if self.sharing == "S" else index]
        tokens: Tensor = output.view(vectors.shape[0], self.num_vectors, -1)
        if "tokens" in self.norms:
            tokens = self.norms["tokens"](tokens)
        if self.residual:
            added = self.norms["sentence"](vectors) if "sentence" in self.norms else vectors
            tokens = tokens + added.unsqueeze(1)
            if "sum" in self.norms:
                tokens = self.norms["sum"](tokens)
        return tokens
