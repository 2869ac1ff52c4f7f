"""IDPG (Wu et al. 2022): prompts generated from a vector of the input.

    G(h) = W2 . drop(act(W1 . drop(h) + b1)) + b2        reshaped to [P D]

The dropout on h is for M(x) alone, as in the authors' code: states of the pass itself are read as they are.
The single-layer form puts G(M(x)) among the embeddings. The multi-layer form adds one prompt per layer, whose
generator reads either M(x) again (`first`) or the previous layer's output of the same pass (`previous`).
Versions of sharing between layers (section 3.3): S shares everything, M has its own b2 per layer, L shares nothing.
W1 and W2 are plain matrices or sums of Kronecker products (phm.py). With W2 = 0 this is prompt tuning by b2.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional

from softcue.phm import check_divides, kronecker_sum
from softcue.prompts.deep import PromptedLayers
from softcue.prompts.encoder import PromptEncoder, full_prompt
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
    """What a generator is made of."""

    inputs: int  # R
    bottleneck: int  # m
    outputs: int  # P * X
    phm_n: int  # 0: plain matrices
    shares_a: bool  # one set of A_i for W1 and W2
    activation: str
    dropout: float
    first_std: float  # of PHM factors and b1, or of plain matrices (whose b1 starts at 0)


class Generator(nn.Module):
    """W1, b1 and W2; the output bias b2 belongs to a layer and comes from outside."""

    def __init__(self, shape: GeneratorShape) -> None:
        super().__init__()
        self.shape = shape
        n, sides = shape.phm_n, ((shape.inputs, shape.bottleneck), (shape.bottleneck, shape.outputs))
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
            self.b = nn.ParameterList(nn.Parameter(torch.zeros(n, i // n, o // n)) for i, o in sides)
        else:
            self.w = nn.ParameterList(nn.Parameter(torch.zeros(i, o)) for i, o in sides)
        self.dropout = RowDropout(shape.dropout)

    def start(self, generator: torch.Generator) -> None:
        """First numbers, as they really were in the authors' runs: N(0, 0.05) for PHM, N(0, 0.02) for matrices."""
        for name, parameter in self.named_parameters():
            if self.shape.phm_n or name != "bias":
                parameter.data.normal_(std=self.shape.first_std, generator=generator)

    def matrices(self) -> tuple[Tensor, Tensor]:
        """W1 [R m] and W2 [m P*X], built once for all rows and layers of a pass."""
        if not self.shape.phm_n:
            return self.w[0], self.w[1]
        return kronecker_sum(self.a[0], self.b[0]), kronecker_sum(self.a[-1], self.b[1])

    def forward(self, vectors: Tensor, matrices: tuple[Tensor, Tensor]) -> Tensor:
        """[B R] -> [B P*X], without b2."""
        first, second = matrices
        hidden = ACTIVATIONS[self.shape.activation](vectors @ first + self.bias)  # [B m]
        return self.dropout(hidden) @ second  # type: ignore[no-any-return]


class IDPG(PromptEncoder):
    """Prompts generated for each input, on one level or on several."""

    def __init__(
        self,
        levels: PromptedLayers,
        length: int,
        shape: GeneratorShape,
        sharing: Sharing,
        reads_previous: bool,
        summarise: Callable[[Tensor, Tensor], Tensor],
        residual: bool = False,
        layer_norm: bool = False,
    ) -> None:
        super().__init__()
        self.levels, self.prompt_length, self.sharing = levels, length, sharing
        self.reads_previous, self.summarise, self.residual = reads_previous, summarise, residual
        outputs = [length * levels.width_of(level) for level in levels.numbers]
        num_generators = len(outputs) if sharing == "L" else 1
        num_biases = 1 if sharing == "S" else len(outputs)
        self.generators = nn.ModuleList(Generator(replace(shape, outputs=size)) for size in outputs[:num_generators])
        self.biases = nn.ParameterList(nn.Parameter(torch.zeros(size)) for size in outputs[:num_biases])  # b2
        self.dropout = RowDropout(shape.dropout)
        # the paper's ablations (appendix A.5.1): one norm for the sentence, one for tokens, one for their sum
        norms = (["tokens"] if layer_norm else []) + (["sentence", "sum"] if layer_norm and residual else [])
        width = levels.width_of(levels.numbers[0])
        self.norms = nn.ModuleDict({name: nn.LayerNorm(width) for name in norms})

    def prompt_parameters(self) -> list[nn.Parameter]:
        """b2, which alone is a plain soft prompt."""
        return list(self.biases)

    def embedded(self) -> Tensor | None:
        """b2 of level 0: what all inputs have in common."""
        return self.biases[0].view(self.prompt_length, -1) if self.levels.has_embeddings else None

    def forward(self, instance: Instance) -> Prompt:
        """The prompt of each row, by its M(x)."""
        assert instance.representation is not None, "this prompt asks for M(x)"
        sentence = self.dropout(instance.representation)  # [B R]
        matrices = [generator.matrices() for generator in self.generators]  # type: ignore[operator]
        places = {level: place for place, level in enumerate(self.levels.numbers)}
        if self.levels.has_embeddings:
            tokens = self._generated(places.pop(0), sentence, matrices)
        else:
            tokens = self.levels.first_tokens(len(sentence), self.prompt_length, instance.embeds)

        def layer_prompts(layer: int, hidden: Tensor, mask: Tensor) -> LayerPrompt | None:
            if layer not in places:
                return None
            # Layer 0 has no layer before it whose output could be read.
            reads_previous = self.reads_previous and layer > 0
            vectors = self.summarise(hidden.float(), mask) if reads_previous else sentence  # [B R]
            return self.levels.taken(self._generated(places[layer], vectors, matrices))

        return replace(full_prompt(tokens), layer_prompts=layer_prompts if places else None)

    def _generated(self, place: int, vectors: Tensor, matrices: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
        """G(h) of one level. [B R] -> [B P X]"""
        which = place if self.sharing == "L" else 0
        output = self.generators[which](vectors, matrices[which])
        output = output + self.biases[0 if self.sharing == "S" else place]
        tokens: Tensor = output.view(len(vectors), self.prompt_length, -1)
        if "tokens" in self.norms:
            tokens = self.norms["tokens"](tokens)
        if self.residual:
            added = self.norms["sentence"](vectors) if "sentence" in self.norms else vectors
            tokens = tokens + added.unsqueeze(1)
            if "sum" in self.norms:
                tokens = self.norms["sum"](tokens)
        return tokens
