"""IDPG (Wu et al. 2022) and its relatives against literal re-computations of the paper (literal_idpg.py)."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from paper import literal_baselines
from paper import literal_idpg as literal
from paper.gradients import assert_same_with_gradients
from tiny import ONE_OF_EACH_KIND, in_float64, tiny, tiny_float64, tiny_tokenizer
from tokenizers import processors
from tolerance import ONE_SUM_FLOAT32
from torch import Tensor
from toy import EXAMPLES, PAIRS, TASK, make_model

from softcue.backbones import Backbone
from softcue.errors import ConfigurationError
from softcue.inference import TaskModel
from softcue.inputs.collate import PaddingSide, collate
from softcue.prompts import IDPG, DeepPrompt, GeneratorShape, PromptedLayers
from softcue.sentence_vectors import sentence_vectors_of
from softcue.sentence_vectors.glove import load_glove
from softcue.tasks import with_swapped
from softcue.types import Batch, Example, Instance, LayerPrompt, Prompt

Drop = Callable[[Tensor], Tensor]
D, P, LEVELS = 32, 4, 3  # tests/tiny.py's width and layers, tests/toy.py's prompt length
RULES = ["add", "replace", "kv"]
HEAD: dict[str, object] = {"name": "classifier"}


# --- our parameters in the paper's equations ------------------------------------------------------------------------


def encoder_of(model: TaskModel) -> IDPG:
    encoder = model.method.encoder
    assert isinstance(encoder, IDPG)
    return encoder


def matrices_of(generator: Any) -> tuple[Tensor, Tensor]:
    """The paper's W1 [m d] and W2 [td m]. Ours multiply from the right, so they and their factors are transposed."""
    if not generator.shape.phm_n:
        return generator.w[0].T, generator.w[1].T
    pairs = ((generator.a[0], generator.b[0]), (generator.a[-1], generator.b[1]))
    first, second = (literal.phm_matrix([m.T for m in a], [m.T for m in b]) for a, b in pairs)
    return first, second


def generated(model: TaskModel, level: int, vector: Tensor, drop: Drop = literal.unchanged) -> Tensor:
    """G(h) for one example and one level, in float64. [R] -> [P X]"""
    return generated_by(encoder_of(model), level, vector, drop)


def generated_by(encoder: IDPG, level: int, vector: Tensor, drop: Drop = literal.unchanged) -> Tensor:
    place = encoder.prompted_layers.layers.index(level)
    generator: Any
    generator, bias = literal.pick(encoder.sharing, place, list(encoder.generators), list(encoder.biases))
    first, second = matrices_of(generator)
    return literal.perceptron(
        vector.double(),
        (first.double(), generator.bias.double()),
        (second.double(), bias.double()),
        encoder.prompt_length,
        literal.ACTIVATIONS[generator.shape.activation],
        drop,
    )


def assert_like(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual.double(), expected.double(), rtol=1e-4, atol=1e-4)


# --- helpers ---------------------------------------------------------------------------------------------------------


def batch_of(
    model: TaskModel, backbone: Backbone, examples: list[Example], side: PaddingSide = "right", answers: bool = False
) -> Batch:
    return collate(model.rows(backbone, examples, with_target=answers), backbone.tokenizer.pad_token_id, side)


def instance_of(num_rows: int = 3, width: int = D) -> Instance:
    return Instance(torch.randn(num_rows, 5, D), torch.ones(num_rows, 5).bool(), torch.randn(num_rows, width))


def prompt_of(model: TaskModel, instance: Instance) -> Prompt:
    prompt = model.method.prompt(instance)
    assert prompt is not None
    return prompt


def vectors_of(part: LayerPrompt | None) -> Tensor:
    """All numbers a layer takes. [B P X]"""
    assert part is not None
    if part.states is not None:
        return part.states
    assert part.keys is not None and part.values is not None
    return torch.cat([part.keys, part.values], dim=2)


def by_level(model: TaskModel, instance: Instance, hidden: Tensor) -> dict[int, Tensor]:
    """What every level takes when the text's states are the same everywhere."""
    prompt = prompt_of(model, instance)
    prompted_layers = encoder_of(model).prompted_layers
    vectors = {0: prompt.tokens} if prompted_layers.has_embedding_prompt else {}
    for layer in range(LEVELS):
        if (
            prompt.layer_prompts is not None
            and (part := prompt.layer_prompts(layer, hidden, instance.mask)) is not None
        ):
            vectors[layer] = vectors_of(part)
    return vectors


@contextmanager
def captured(backbone: Backbone) -> Iterator[dict[int, Tensor]]:
    """The output of every layer of the passes meanwhile, by the number of the layer it enters."""
    vectors: dict[int, Tensor] = {}

    def keep(number: int) -> Any:
        def hook(module: Any, args: Any, output: Any) -> None:
            vectors[number + 1] = (output[0] if isinstance(output, tuple) else output).detach().clone()

        return hook

    handles = [layer.register_forward_hook(keep(number)) for number, layer in enumerate(backbone.layers)]
    try:
        yield vectors
    finally:
        for handle in handles:
            handle.remove()


def read_and_recorded(
    model: TaskModel, backbone: Backbone, batch: Batch, with_target: bool = False
) -> tuple[Prompt, dict[int, LayerPrompt | None], Tensor]:
    """A real pass: its prompt, what each layer took, and the last hidden states."""
    embeds = backbone.embed(batch.ids)
    prompt = model.prompt(backbone, batch, embeds)
    assert prompt is not None
    taken: dict[int, LayerPrompt | None] = {}
    layer_prompts = prompt.layer_prompts

    def recording(layer: int, hidden: Tensor, mask: Tensor) -> LayerPrompt | None:
        assert layer not in taken, "asked twice"
        taken[layer] = layer_prompts(layer, hidden, mask)  # type: ignore[misc]
        return taken[layer]

    if layer_prompts is not None:
        prompt = replace(prompt, layer_prompts=recording)
    states = backbone.read(batch, prompt, embeds, with_target).hidden()
    return prompt, taken, states


def text_slots(batch: Batch, row: int, length: int, side: PaddingSide, total: int) -> list[int]:
    """Where the text tokens of a row stand among all columns, counted on fingers."""
    num_text = int(batch.mask[row].sum())
    num_target = int(batch.target_mask[row].sum())
    at = int(batch.insert_at[row])
    kinds = ["text"] * at + ["prompt"] * length + ["text"] * (num_text - at) + ["target"] * num_target
    padding = ["padding"] * (total - len(kinds))
    kinds = padding + kinds if side == "left" else kinds + padding
    return [column for column, kind in enumerate(kinds) if kind == "text"]


def pooled_literally(states: Tensor, slots: list[int], pooling: str) -> Tensor:
    """[S D] -> [D]"""
    if pooling == "cls":
        return states[slots[0]].double()
    if pooling == "last":
        return states[slots[-1]].double()
    return sum((states[slot].double() for slot in slots), torch.zeros(states.shape[1]).double()) / len(slots)


# --- G(h) ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", literal.ACTIVATIONS)
@pytest.mark.parametrize("case", ["s-idpg-phm", "s-idpg-dnn"])
@torch.no_grad()
def test_a_single_layer_prompt_is_the_equation_of_the_sentence_vector(case: str, activation: str) -> None:
    model = make_model(tiny("bert"), case, activation=activation)
    instance = instance_of()
    prompt = prompt_of(model, instance)
    assert prompt.layer_prompts is None
    assert prompt.tokens.shape == (3, P, D)
    assert instance.representation is not None
    for row, vector in enumerate(instance.representation):
        assert_like(prompt.tokens[row], generated(model, 0, vector))


@pytest.mark.parametrize("sharing", ["S", "M", "L"])
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("case", ["m-idpg-phm", "m-idpg-dnn"])
@torch.no_grad()
def test_every_level_is_the_equation_of_what_it_reads(case: str, rule: str, sharing: str) -> None:
    instance = instance_of()
    hidden = torch.randn(3, 5, D)
    assert instance.representation is not None
    for source in ("previous", "first"):
        model = make_model(tiny("bert"), case, rule=rule, sharing=sharing, input=source, pooling="cls")
        for bias in encoder_of(model).biases:
            bias.data.normal_()
        actual = by_level(model, instance, hidden)
        assert list(actual) == [0, 1, 2]
        for level, vectors in actual.items():
            reads = hidden[:, 0] if source == "previous" and level > 0 else instance.representation
            for row in range(3):
                assert_like(vectors[row], generated(model, level, reads[row]))


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("seed", range(12))
def test_generators_of_any_shape_are_the_equation_with_the_gradients_of_everything(seed: int) -> None:
    choices = random.Random(seed)
    n, rule = choices.choice([0, 1, 2, 3, 4]), choices.choice(["add", "kv"])
    width, bottleneck = ((n or 1) * choices.randint(1, 4) for _ in range(2))
    num_levels, length, num_rows = (choices.randint(1, 3) for _ in range(3))
    layers = PromptedLayers(tuple(range(num_levels)), rule, width, width, width if rule == "kv" else 0)  # type: ignore[arg-type]
    shape = GeneratorShape(
        inputs=width,
        bottleneck=bottleneck,
        outputs=0,
        phm_n=n,
        shares_a=choices.random() < 0.5,
        activation=choices.choice(["gelu", "tanh", "none"]),  # relu may have no gradient here
        dropout=0.1,
        init_std=0.5,
    )
    reads_previous, residual = choices.random() < 0.5, rule == "add" and choices.random() < 0.5
    has_norm = rule == "add" and width > 1 and choices.random() < 0.5
    encoder = IDPG(
        layers,
        length,
        shape,
        choices.choice(["S", "M", "L"]),  # type: ignore[arg-type]
        reads_previous,
        lambda hidden, mask: hidden[:, 0],
        residual,
        has_norm,
    ).eval()
    for parameter in encoder.parameters():
        parameter.data.normal_()
    vectors, hidden = (torch.randn(num_rows, *size, requires_grad=True) for size in ((width,), (5, width)))
    instance = Instance(torch.zeros(num_rows, 5, width), torch.ones(num_rows, 5).bool(), vectors)
    prompt = encoder(instance)
    actual, expected = [], []
    norms: dict[str, Any] = {name: (norm.weight, norm.bias) for name, norm in encoder.norms.items()}
    for level in range(num_levels):
        is_embedded = level == 0 and rule == "add"
        actual.append(prompt.tokens if is_embedded else vectors_of(prompt.layer_prompts(level, hidden, instance.mask)))
        for row in range(num_rows):
            reads = literal.cls_vector(hidden[row]) if reads_previous and level > 0 else vectors[row]
            tokens = generated_by(encoder, level, reads)
            expected += [literal.reshaped_token(token, reads, residual, norms) for token in tokens]
    sources = dict(encoder.named_parameters()) | {"M(x)": vectors}
    if reads_previous and num_levels > 1:
        sources["hidden states"] = hidden
    assert_same_with_gradients(torch.cat([level.flatten() for level in actual]), torch.cat(expected), sources)


@torch.no_grad()
def test_a_normalized_input_has_no_size_and_the_sentence_vector_of_the_residual_keeps_its_own() -> None:
    layers = PromptedLayers((0, 1), "add", embedding_width=4, hidden_width=4, key_width=0)
    shape = GeneratorShape(4, 2, 0, 0, False, "gelu", 0.0, 0.5)

    def prompts(scale: float, normalizes: bool, residual: bool) -> list[Tensor]:
        pool = lambda hidden, mask: hidden[:, 0]  # noqa: E731
        encoder = IDPG(layers, 3, shape, "M", True, pool, residual, normalizes_input=normalizes).eval()
        drawn = torch.Generator().manual_seed(1)
        for parameter in encoder.parameters():
            parameter.data.normal_(generator=drawn)
        sentence, hidden = (scale * torch.randn(2, *size, generator=drawn) for size in ((4,), (5, 4)))
        prompt = encoder(Instance(torch.zeros(2, 5, 4), torch.ones(2, 5).bool(), sentence))
        both = [prompt.tokens, vectors_of(prompt.layer_prompts(1, hidden, torch.ones(2, 5).bool()))]
        read = [sentence, hidden[:, 0]]
        return [tokens - vectors[:, None] for tokens, vectors in zip(both, read, strict=True)] if residual else both

    for small, large in zip(prompts(0.1, True, False), prompts(100.0, True, False), strict=True):
        torch.testing.assert_close(small, large, atol=1e-3, rtol=1e-3)
    for with_residual, without in zip(prompts(1.0, True, True), prompts(1.0, True, False), strict=True):
        torch.testing.assert_close(with_residual, without, atol=1e-5, rtol=1e-5)
    assert not torch.allclose(prompts(0.1, False, False)[0], prompts(100.0, False, False)[0])


@torch.no_grad()
def test_keys_are_the_first_half_of_a_vector_and_values_the_second() -> None:
    model = make_model(tiny("bert"), "m-idpg-phm kv", input="first")
    instance = instance_of(1)
    prompt = prompt_of(model, instance)
    assert not prompt.tokens.any()  # nothing among the embeddings
    assert prompt.layer_prompts is not None and instance.representation is not None
    part = prompt.layer_prompts(1, torch.randn(1, 5, D), instance.mask)
    assert part is not None and part.states is None and part.keys is not None and part.values is not None
    wanted = generated(model, 1, instance.representation[0])
    assert_like(part.keys[0], wanted[:, :D])
    assert_like(part.values[0], wanted[:, D:])


# --- W = 0 is prompt tuning ------------------------------------------------------------------------------------------


def without_w(model: TaskModel, how: str) -> None:
    for generator in encoder_of(model).generators:
        if how == "no B":
            for factor in generator.b:  # type: ignore[union-attr]
                factor.data.zero_()
        elif how == "no A":
            generator.a[-1].data.zero_()  # type: ignore[index,union-attr]
        else:
            generator.w[1].data.zero_()  # type: ignore[index,union-attr]


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
@pytest.mark.parametrize(("case", "how"), [("s-idpg-phm", "no B"), ("s-idpg-phm", "no A"), ("s-idpg-dnn", "no W2")])
@torch.no_grad()
@pytest.mark.usefixtures("prompts_in_every_row")
def test_a_single_layer_generator_without_w_is_prompt_tuning_bit_for_bit(family: str, case: str, how: str) -> None:
    backbone = tiny(family)
    plain = make_model(backbone, "prompt-tuning", init="uniform")
    model = make_model(backbone, case)
    without_w(model, how)
    encoder_of(model).biases[0].data.copy_(plain.method.encoder.prompt.flatten())  # type: ignore[union-attr,operator]
    batch = batch_of(model, backbone, EXAMPLES)
    actual, wanted = (some_model.read(backbone, batch)[0].hidden() for some_model in (model, plain))
    assert torch.equal(actual, wanted)
    model.train()  # no noise is left to be seen either
    assert torch.equal(model.read(backbone, batch)[0].hidden(), wanted)


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("case", "how"), [("m-idpg-phm", "no B"), ("m-idpg-dnn", "no W2")])
@torch.no_grad()
@pytest.mark.usefixtures("prompts_in_every_row")
def test_a_multi_layer_generator_without_w_is_p_tuning_v2_bit_for_bit(
    family: str, rule: str, case: str, how: str
) -> None:
    backbone = tiny(family)
    plain = make_model(backbone, "p-tuning-v2", rule=rule)
    prompts = plain.method.encoder.prompts
    assert len(prompts) == LEVELS  # type: ignore[arg-type]
    for sharing in ("M", "L"):
        model = make_model(backbone, case, rule=rule, sharing=sharing)
        without_w(model, how)
        for bias, values in zip(encoder_of(model).biases, prompts, strict=True):  # type: ignore[arg-type]
            bias.data.copy_(values.flatten())
        batch = batch_of(model, backbone, EXAMPLES)
        actual, wanted = (some_model.read(backbone, batch)[0].hidden() for some_model in (model, plain))
        assert torch.equal(actual, wanted)
    bare = make_model(backbone, "no-prompt", readout=HEAD)
    unprompted = bare.read(backbone, batch)[0].text()
    assert not torch.allclose(plain.read(backbone, batch)[0].text(), unprompted, atol=1e-3)


# --- sharing ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sharing", "num_generators", "num_biases"), [("S", 1, 1), ("M", 1, LEVELS), ("L", LEVELS, LEVELS)]
)
def test_versions_of_sharing_have_their_own_parameters_and_no_others(
    sharing: str, num_generators: int, num_biases: int
) -> None:
    model = make_model(tiny("bert"), "m-idpg-phm", sharing=sharing)
    shapes = sorted(tuple(parameter.shape) for parameter in model.method.parameters())
    n, m, outputs = 4, 8, P * D
    generator = [(m,), (n, n, n), (n, n, n), (n, D // n, m // n), (n, m // n, outputs // n)]
    assert shapes == sorted(generator * num_generators + [(outputs,)] * num_biases)
    assert len(model.method.prompt_parameters()) == num_biases  # b2 alone is a plain soft prompt


def changed_levels(model: TaskModel, parameter: Tensor, instance: Instance, hidden: Tensor) -> set[int]:
    before = by_level(model, instance, hidden)
    kept = parameter.data.clone()
    parameter.data += torch.randn(parameter.shape)
    after = by_level(model, instance, hidden)
    parameter.data.copy_(kept)
    return {level for level in before if not torch.equal(before[level], after[level])}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("sharing", ["S", "M", "L"])
@torch.no_grad()
def test_a_bias_or_a_generator_moves_the_levels_it_belongs_to_and_no_others(sharing: str, rule: str) -> None:
    model = make_model(tiny("bert"), "m-idpg-phm", sharing=sharing, rule=rule)
    encoder, instance, hidden = encoder_of(model), instance_of(), torch.randn(3, 5, D)
    every = {0, 1, 2}
    for number, bias in enumerate(encoder.biases):
        assert changed_levels(model, bias, instance, hidden) == (every if sharing == "S" else {number})
    for number, generator in enumerate(encoder.generators):
        for parameter in generator.parameters():
            assert changed_levels(model, parameter, instance, hidden) == ({number} if sharing == "L" else every)


@pytest.mark.parametrize(
    ("case", "settings", "num_sets"),
    [
        ("s-idpg-phm", {}, 1),
        ("s-idpg-phm", {"share_a": False}, 2),
        ("m-idpg-phm", {}, 2),
        ("m-idpg-phm", {"share_a": True}, 1),
    ],
)
@torch.no_grad()
def test_a_is_common_to_both_layers_only_where_it_should_be(
    case: str, settings: dict[str, object], num_sets: int
) -> None:
    model = make_model(tiny("bert"), case, **settings)
    generator: Any = encoder_of(model).generators[0]
    assert sum(parameter.shape == (4, 4, 4) for parameter in generator.parameters()) == num_sets
    before = generator.matrices()
    generator.a[0].data += 1
    after = generator.matrices()
    assert [torch.equal(old, new) for old, new in zip(before, after, strict=True)] == [False, num_sets == 2]
    if num_sets == 2:
        generator.a[1].data += 1
        assert torch.equal(generator.matrices()[0], after[0])
        assert not torch.equal(generator.matrices()[1], after[1])


@torch.no_grad()
def test_only_the_levels_named_get_prompts() -> None:
    backbone = tiny("bert")
    model = make_model(backbone, "m-idpg-phm", layers="0,2")
    prompt, taken, _ = read_and_recorded(model, backbone, batch_of(model, backbone, EXAMPLES))
    assert prompt.tokens.any()
    assert {layer: part is not None for layer, part in taken.items()} == {0: False, 1: False, 2: True}
    later = make_model(backbone, "m-idpg-phm", layers=[1])
    prompt, taken, _ = read_and_recorded(later, backbone, batch_of(later, backbone, EXAMPLES))
    assert not prompt.tokens.any()
    assert {layer: part is not None for layer, part in taken.items()} == {0: False, 1: True, 2: False}
    with pytest.raises(ConfigurationError, match=r"method\.layers"):
        make_model(backbone, "m-idpg-phm", layers=[3])
    with pytest.raises(ConfigurationError, match=r"method\.layers"):
        make_model(backbone, "s-idpg-phm", layers=[1])


# --- ablations of appendix A.5.1 -------------------------------------------------------------------------------------


@pytest.mark.parametrize(("residual", "layer_norm"), [(True, False), (False, True), (True, True)])
@pytest.mark.parametrize("case", ["s-idpg-phm", "m-idpg-phm"])
@torch.no_grad()
def test_residual_and_norm_are_the_appendix_literally(case: str, residual: bool, layer_norm: bool) -> None:
    model = make_model(tiny("bert"), case, residual=residual, layer_norm=layer_norm, pooling="cls")
    norms = dict(encoder_of(model).norms.items())
    names = {(True, False): set(), (False, True): {"tokens"}, (True, True): {"tokens", "sentence", "sum"}}
    assert set(norms) == names[residual, layer_norm]
    for norm in norms.values():
        norm.weight.data.normal_()  # type: ignore[operator,union-attr]
        norm.bias.data.normal_()  # type: ignore[operator,union-attr]
    instance, hidden = instance_of(), torch.randn(3, 5, D)
    assert instance.representation is not None
    for level, vectors in by_level(model, instance, hidden).items():
        for row in range(3):
            sentence = (instance.representation if level == 0 else hidden[:, 0])[row]
            parts = {name: (norm.weight.double(), norm.bias.double()) for name, norm in norms.items()}  # type: ignore[operator,union-attr]
            for position, token in enumerate(generated(model, level, sentence)):
                wanted = literal.reshaped_token(token, sentence.double(), residual, parts)
                assert_like(vectors[row, position], wanted)


# --- dropout ---------------------------------------------------------------------------------------------------------


def every_tenth(values: Tensor) -> Tensor:
    """Draws that are below 0.1 for every tenth number and nowhere else."""
    return ((torch.arange(values.shape[-1]) % 10) / 10 + 0.05).expand_as(values)


def dropped(vector: Tensor) -> Tensor:
    return torch.tensor([0.0 if i % 10 == 0 else float(x) / 0.9 for i, x in enumerate(vector)], dtype=torch.float64)


@pytest.mark.parametrize("source", ["previous", "first"])
@pytest.mark.parametrize("case", ["m-idpg-phm", "m-idpg-dnn", "s-idpg-phm"])
@torch.no_grad()
def test_dropout_is_on_the_sentence_vector_and_behind_the_activation_but_not_on_a_layers_output(
    case: str, source: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("softcue.randomness.uniform_like", every_tenth)
    model = make_model(tiny("bert"), case, input=source, pooling="cls")
    instance, hidden = instance_of(), torch.randn(3, 5, D)
    assert instance.representation is not None
    for training in (True, False):
        model.train(training)
        for level, vectors in by_level(model, instance, hidden).items():
            for row in range(3):
                if source == "previous" and level > 0:
                    reads = hidden[row, 0]
                else:
                    reads = dropped(instance.representation[row]) if training else instance.representation[row]
                wanted = generated(model, level, reads, dropped if training else lambda x: x)
                assert_like(vectors[row], wanted)


def test_dropout_is_a_tenth_unless_set() -> None:
    modules = make_model(tiny("bert"), "m-idpg-phm").method.modules()
    assert {module.share for module in modules if hasattr(module, "share")} == {0.1}
    model = make_model(tiny("bert"), "m-idpg-phm", dropout=0.0).train()
    instance, hidden = instance_of(), torch.randn(3, 5, D)
    once, again = by_level(model, instance, hidden), by_level(model.eval(), instance, hidden)
    assert all(torch.equal(once[level], again[level]) for level in once)


# --- first numbers ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", ["m-idpg-phm", "m-idpg-dnn"])
@torch.no_grad()
def test_first_numbers_are_those_of_the_authors_runs(case: str) -> None:
    plain = {"init_std": 0.02, "factor_std": 0.05}
    model = make_model(tiny("bert"), case, prompt_length=64, bottleneck=32, layers=[0], **plain)
    generator: Any = encoder_of(model).generators[0]
    std = 0.05 if case == "m-idpg-phm" else 0.02
    for name, parameter in generator.named_parameters():
        if name == "bias" and case == "m-idpg-dnn":
            assert not parameter.any()
        else:
            assert float(parameter.std()) == pytest.approx(std, rel=0.4 if parameter.numel() < 100 else 0.15)
    assert float(encoder_of(model).biases[0].std()) == pytest.approx(0.02, rel=0.1)
    wide = make_model(tiny("bert"), case, prompt_length=64, init="uniform").method.prompt_parameters()
    for bias in wide:
        assert float(bias.abs().max()) <= 0.5
        assert float(bias.std()) == pytest.approx(1 / math.sqrt(12), rel=0.1)
    defaults = type(model.method).Config.model_validate({"name": case})
    assert (defaults.init_std, defaults.factor_std, defaults.init) == (0.02, 0.05, "normal")


@torch.no_grad()
def test_the_first_bias_may_start_from_words_as_a_plain_prompt_does() -> None:
    backbone = tiny("bert")
    plain = make_model(backbone, "prompt-tuning", init="text", init_text="my order is late and wrong")
    for case in ("s-idpg-phm", "m-idpg-phm"):
        model = make_model(backbone, case, init="text", init_text="my order is late and wrong", prompt_length=4)
        first, *others = encoder_of(model).biases
        assert torch.equal(first.view(4, D), plain.method.encoder.prompt)  # type: ignore[union-attr]
        assert all(float(bias.std()) == pytest.approx(0.5, rel=0.3) for bias in others)


# --- what `previous` and `first` read in a real pass -----------------------------------------------------------------


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
@torch.no_grad()
def test_previous_reads_the_same_passes_layer_output_at_the_pooled_position(
    family: str, pooling: str, side: PaddingSide
) -> None:
    frozen = tiny(family)
    for layout_side in ("left", "right") if frozen.kind == "decoder" else (frozen.layout_side,):
        backbone = copy.copy(frozen)
        backbone.layout_side = layout_side
        model = make_model(backbone, "m-idpg-phm", pooling=pooling)
        batch = batch_of(model, backbone, EXAMPLES, side)
        assert not bool(batch.mask.all())
        with captured(backbone) as outputs:
            prompt, taken, _ = read_and_recorded(model, backbone, batch)
        assert list(taken) == [0, 1, 2]
        assert taken[0] is None  # the embeddings have level 0
        assert batch.representation is not None
        total = outputs[1].shape[1]
        for row in range(len(EXAMPLES)):
            assert_like(prompt.tokens[row], generated(model, 0, batch.representation[row]))
            slots = text_slots(batch, row, P, layout_side, total)
            for level in (1, 2):
                reads = pooled_literally(outputs[level][row], slots, pooling)
                assert_like(vectors_of(taken[level])[row], generated(model, level, reads))


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
@torch.no_grad()
def test_first_reads_the_sentence_vector_at_every_level(family: str, rule: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, "m-idpg-phm", input="first", rule=rule)
    batch = batch_of(model, backbone, EXAMPLES)
    prompt, taken, _ = read_and_recorded(model, backbone, batch)
    assert batch.representation is not None
    layer_vectors = {level: vectors_of(part) for level, part in taken.items() if part is not None}
    if rule != "kv":
        layer_vectors[0] = prompt.tokens
    assert sorted(layer_vectors) == [0, 1, 2]
    for level, vectors in layer_vectors.items():
        for row, vector in enumerate(batch.representation):
            assert_like(vectors[row], generated(model, level, vector))


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
@torch.no_grad()
def test_no_padding_column_is_ever_read(family: str, pooling: str, side: PaddingSide) -> None:
    backbone = tiny(family)
    model = make_model(backbone, "m-idpg-phm", pooling=pooling)
    batch = batch_of(model, backbone, EXAMPLES, side)
    noise = torch.randint(5, 300, batch.ids.shape)
    other = replace(batch, ids=torch.where(batch.mask, batch.ids, noise))
    assert not torch.equal(other.ids, batch.ids)
    prompt, taken, states = read_and_recorded(model, backbone, batch)
    other_prompt, other_taken, other_states = read_and_recorded(model, backbone, other)
    assert torch.equal(prompt.tokens, other_prompt.tokens)
    assert all(torch.equal(vectors_of(taken[level]), vectors_of(other_taken[level])) for level in (1, 2))
    assert torch.equal(states, other_states)


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
@pytest.mark.parametrize("family", ["gpt2", "t5"])
@torch.no_grad()
def test_the_answer_is_never_read(family: str, pooling: str, rule: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, "m-idpg-phm", readout={"name": "generation"}, pooling=pooling, rule=rule)
    batch = batch_of(model, backbone, EXAMPLES, answers=True)
    assert batch.target_ids.shape[1] > 1
    other = replace(batch, target_ids=torch.randint(5, 300, batch.target_ids.shape))
    longer = [Example(example.texts, "abc"["abc".index(str(example.target)) - 1]) for example in EXAMPLES]
    rewritten = batch_of(model, backbone, longer, answers=True)  # other lengths as well
    prompt, taken, states = read_and_recorded(model, backbone, batch, with_target=True)
    other_prompt, other_taken, other_states = read_and_recorded(model, backbone, other, with_target=True)
    third_prompt, third_taken, _ = read_and_recorded(model, backbone, rewritten, with_target=True)
    assert torch.equal(prompt.tokens, other_prompt.tokens)
    assert torch.equal(prompt.tokens, third_prompt.tokens)
    for level in (1, 2):
        assert torch.equal(vectors_of(taken[level]), vectors_of(other_taken[level]))
        assert_like(vectors_of(taken[level]), vectors_of(third_taken[level]))
    if family == "gpt2":  # the answer was there to be read
        assert not torch.equal(states, other_states)


# --- where the vectors go --------------------------------------------------------------------------------------------


def log_probability(model: TaskModel, state: Tensor, label: int) -> Tensor:
    """Equations 2 and 3: the head on the state of [CLS]."""
    linear: Any = model.readout.linear
    return literal.class_probabilities(linear.weight, linear.bias, state)[label].log()


def gradients_of(model: TaskModel) -> dict[str, Tensor]:
    return dict(model.named_parameters())


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(
    ("case", "settings"),
    [
        ("m-idpg-phm", {}),
        ("m-idpg-phm", {"sharing": "S"}),
        ("m-idpg-phm", {"sharing": "L", "input": "first"}),
        ("m-idpg-phm", {"rule": "replace"}),
        ("m-idpg-dnn", {"input": "first"}),
        ("p-tuning-v2", {}),
        ("p-tuning-v2", {"rule": "replace"}),
    ],
    ids=str,
)
def test_a_bert_pass_is_the_papers_second_pass_layer_by_layer(case: str, settings: dict[str, Any]) -> None:
    backbone = tiny_float64("bert")
    pooling = {} if case == "p-tuning-v2" else {"pooling": "cls"}
    model = make_model(backbone, case, **settings, **pooling).double()
    bert = backbone.model.bert
    actual, expected = [], []
    for example in EXAMPLES[:2]:
        rows = model.rows(backbone, [example], with_target=True, use_disk_cache=False)
        batch = collate(rows, backbone.tokenizer.pad_token_id)
        assert batch.labels is not None
        plain = bert(input_ids=batch.ids, token_type_ids=batch.segments).last_hidden_state[0]
        vector = literal.cls_vector(plain).detach()

        def prompt_of(level: int, previous: Tensor, vector: Tensor = vector) -> Tensor:
            if case == "p-tuning-v2":
                return model.method.encoder.prompts[level]  # type: ignore[union-attr,index,return-value]
            return generated(model, level, previous if settings.get("input") != "first" else vector)

        words = bert.embeddings.word_embeddings(batch.ids)[0]  # [T D]
        first = prompt_of(0, vector)
        sequence = literal.insert_prompt([list(words[1:-1])], list(first), 0, words[0], [words[-1]])
        embedded = bert.embeddings(
            inputs_embeds=torch.stack(sequence).unsqueeze(0), position_ids=torch.arange(len(sequence)).unsqueeze(0)
        )[0]
        layers = [partial(run_layer, layer) for layer in bert.encoder.layer]
        replaces = settings.get("rule") == "replace"
        states = literal.multi_layer_pass(embedded, range(1, 1 + P), layers, prompt_of, replaces)
        actual.append(-model(backbone, batch).losses.sum())
        expected.append(log_probability(model, states[0], int(batch.labels[0])))
    assert_same_with_gradients(torch.stack(actual), torch.stack(expected), gradients_of(model))


def run_layer(layer: Any, states: Tensor) -> Tensor:
    output = layer(states.unsqueeze(0), None)
    return (output[0] if isinstance(output, tuple) else output)[0]  # type: ignore[no-any-return]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize(("num_texts", "position"), [(2, 0), (2, 1), (2, 2), (2, 3), (2, 4), (1, 0), (1, 1), (1, 4)])
@pytest.mark.parametrize("case", ["s-idpg-phm", "s-idpg-dnn"])
def test_a_single_layer_pass_of_roberta_at_every_position_of_figure_6(case: str, num_texts: int, position: int) -> None:
    tokenizer = tiny_tokenizer("roberta")
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>", pair="<s> $A </s> </s> $B </s>", special_tokens=[("<s>", 2), ("</s>", 1)]
    )
    backbone = Backbone(in_float64(copy.deepcopy(tiny("roberta").model)), tokenizer, "roberta")
    task, texts = (PAIRS, ("my order is late", "where is it")) if num_texts == 2 else (TASK, ("my order is late",))
    model = make_model(backbone, case, task=task, insert_at=position, pooling="cls").double()
    example = Example(texts, task.label_names[1])
    rows = model.rows(backbone, [example], with_target=True, use_disk_cache=False)
    batch = collate(rows, tokenizer.pad_token_id)

    roberta, table = backbone.model.roberta, backbone.model.get_input_embeddings().weight
    plain = roberta(**tokenizer(*texts, return_tensors="pt")).last_hidden_state[0]
    prompt = generated(model, 0, literal.cls_vector(plain).detach())
    sentences = [[table[token] for token in tokenizer(text, add_special_tokens=False)["input_ids"]] for text in texts]
    sequence = literal.insert_prompt(sentences, list(prompt), position, table[2], [table[1], table[1]])
    states = roberta(inputs_embeds=torch.stack(sequence).unsqueeze(0)).last_hidden_state[0]
    expected = log_probability(model, states[0], 1)
    assert_same_with_gradients(-model(backbone, batch).losses.sum(), expected, gradients_of(model))


def prompts_of(model: TaskModel) -> list[Tensor]:
    encoder = model.method.encoder
    assert isinstance(encoder, DeepPrompt)
    return [values.detach() for values in encoder.vectors()]


@pytest.mark.parametrize("settings", [{}, {"reparameterise": 6}])
@torch.no_grad()
def test_prefix_tuning_on_a_decoder_is_a_cache_of_past_keys_and_values(settings: dict[str, object]) -> None:
    from transformers import DynamicCache

    backbone = tiny("gpt2")
    model = make_model(backbone, "prefix-tuning", **settings)
    if settings:
        encoder: Any = model.method.encoder
        first, _, second = encoder.network
        whole = literal_baselines.prefix_network(
            encoder.prompts[0], (first.weight, first.bias), (second.weight, second.bias)
        )
        torch.testing.assert_close(torch.cat(prompts_of(model), dim=1), whole)
        assert encoder.prompts[0].shape == (P, D)
    for example in EXAMPLES:
        batch = batch_of(model, backbone, [example])
        pairs = []
        for vectors in prompts_of(model):  # [P 2D] -> [1 heads P D/heads], twice
            keys, values = vectors[:, :D], vectors[:, D:]
            pairs.append(tuple(part.view(1, P, 4, D // 4).transpose(1, 2).contiguous() for part in (keys, values)))
        length = batch.ids.shape[1]
        wanted = backbone.base(
            input_ids=batch.ids,
            past_key_values=DynamicCache(pairs),
            position_ids=torch.arange(P, P + length)[None],
            attention_mask=torch.ones(1, P + length),
        ).last_hidden_state
        assert_like(model.read(backbone, batch)[0].text(), wanted)


@pytest.mark.usefixtures("float64")
def test_keys_and_values_on_an_encoder_are_seen_by_every_text_token_and_by_nothing_else() -> None:
    """BERT's attention by hand: softmax over prompt keys and the text's keys, without prompt queries."""
    backbone = tiny_float64("bert")
    model = make_model(backbone, "p-tuning-v2 kv", insert_at="start").double()
    batch = collate(model.rows(backbone, EXAMPLES[:1], with_target=True), backbone.tokenizer.pad_token_id)
    assert batch.labels is not None
    positions = torch.tensor([[0, *range(1 + P, P + batch.ids.shape[1])]])
    hidden = backbone.model.bert.embeddings(input_ids=batch.ids, position_ids=positions)
    encoder = model.method.encoder
    assert isinstance(encoder, DeepPrompt)
    for layer, vectors in zip(backbone.model.bert.encoder.layer, encoder.vectors(), strict=True):
        attention = layer.attention.self
        projected = [part(hidden)[0] for part in (attention.query, attention.key, attention.value)]
        prefix = (vectors[:, :D], vectors[:, D:])
        heads = literal_baselines.attention_with_prefix(*projected, prefix, num_heads=4)
        attended = layer.attention.output(heads.unsqueeze(0), hidden)
        hidden = layer.output(layer.intermediate(attended), attended)
    expected = log_probability(model, hidden[0, 0], int(batch.labels[0]))
    assert_same_with_gradients(-model(backbone, batch).losses.sum(), expected, gradients_of(model))


# --- M(x) ------------------------------------------------------------------------------------------------------------


def alone(backbone: Backbone, text: str) -> Tensor:
    """The last hidden states of one text read by the plain model of transformers. [T D]"""
    encoded = backbone.tokenizer(text, return_tensors="pt")
    inputs = {name: encoded[name] for name in ("input_ids", "token_type_ids") if name in encoded}
    reader = backbone.model.get_encoder() if backbone.kind == "encoder-decoder" else backbone.model.base_model
    return reader(**inputs).last_hidden_state[0]  # type: ignore[no-any-return]


@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
@torch.no_grad()
def test_the_sentence_vector_is_the_unprompted_backbones_pooled_last_layer(family: str, pooling: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, "m-idpg-phm", pooling=pooling)
    assert model.method.representation is not None
    vectors = sentence_vectors_of(model.method.representation, backbone, TASK, EXAMPLES)
    rows = model.rows(backbone, EXAMPLES)
    for row, example in enumerate(EXAMPLES):
        states = alone(backbone, example.texts[0])
        assert_like(vectors[row], pooled_literally(states, list(range(len(states))), pooling))
        vector = rows[row].representation
        assert vector is not None
        assert torch.equal(vector, vectors[row])


@pytest.mark.parametrize("pooling", ["cls", "mean", "last"])
@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
@torch.no_grad()
def test_the_sentence_vector_of_words_is_the_pooled_word_embeddings(family: str, pooling: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, "m-idpg-phm", representation="words", pooling=pooling)
    for example, row in zip(EXAMPLES, model.rows(backbone, EXAMPLES), strict=True):
        words = backbone.word_table[backbone.tokenizer(example.texts[0])["input_ids"]]
        assert row.representation is not None
        assert_like(row.representation, pooled_literally(words, list(range(len(words))), pooling))


def test_the_sentence_vector_of_glove_is_equation_5(tmp_path: Path) -> None:
    generator = torch.Generator().manual_seed(4)
    vectors = {f"w{number}": torch.randn(7, generator=generator).tolist() for number in range(20)}
    (tmp_path / "glove.txt").write_text("".join(f"{word} {' '.join(map(str, v))}\n" for word, v in vectors.items()))
    glove = load_glove(str(tmp_path / "glove.txt"))
    for length in (1, 2, 9):
        words = [f"w{number}" for number in torch.randint(20, (length,), generator=generator).tolist()]
        expected = torch.tensor(literal.glove_vector(words, vectors), dtype=torch.float64)
        ONE_SUM_FLOAT32.assert_close(glove.vectors([(" ".join(words),)])[0].double(), expected)


def test_supplementary_training_doubles_pairs_with_their_order_swapped() -> None:
    pairs = [(f"first {number}", f"second {number}", "same" if number % 3 else "other") for number in range(5)]
    doubled = with_swapped([Example((first, second), label) for first, second, label in pairs])
    assert sorted((*example.texts, example.target) for example in doubled) == sorted(literal.doubled(pairs))  # type: ignore[type-var]


@torch.no_grad()
def test_the_sentence_vector_of_a_decoder_does_not_see_the_place_of_the_answer() -> None:
    backbone = tiny("gpt2")
    model = make_model(backbone, "m-idpg-phm", readout={"name": "generation"}, pooling="last")
    (row,) = model.rows(backbone, EXAMPLES[:1])
    assert row.representation is not None
    assert_like(row.representation, alone(backbone, EXAMPLES[0].texts[0])[-1])


def test_pooling_follows_the_backbone_and_is_recorded() -> None:
    natural = {"bert": "cls", "t5": "mean", "gpt2": "last"}
    for family, pooling in natural.items():
        assert make_model(tiny(family), "m-idpg-phm").method.config.pooling == pooling  # type: ignore[attr-defined]


def test_what_cannot_read_a_layer_is_refused() -> None:
    with pytest.raises(ConfigurationError, match=r"method\.input: got 'previous'.*first"):
        make_model(tiny("bert"), "m-idpg-phm-glove", input="previous")
    with pytest.raises(ConfigurationError, match=r"method\.residual"):
        make_model(tiny("bert"), "m-idpg-phm-glove", residual=True)
    with pytest.raises(ConfigurationError, match=r"method\.residual"):
        make_model(tiny("bert"), "m-idpg-phm kv", residual=True)
    with pytest.raises(ConfigurationError, match=r"method\.representation_dropout"):
        make_model(tiny("bert"), "m-idpg-phm", representation="words", pooling="mean", representation_dropout=True)


def test_keys_and_values_in_some_layers_only_are_refused() -> None:
    """The other layers would attend to positions that hold nothing."""
    for case, settings in (("m-idpg-phm", {"layers": [0, 2]}), ("s-idpg-phm", {}), ("prefix-tuning", {"layers": "1"})):
        with pytest.raises(ConfigurationError, match=r"method\.rule: got 'kv'; expected prompts in every layer"):
            make_model(tiny("bert"), case, rule="kv", **settings)
