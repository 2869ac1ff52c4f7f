"""Adapter and Compacter as IDPG compares with them, against literal re-computations (literal_baselines.py)."""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from paper import literal_baselines as literal
from paper.gradients import assert_same_with_gradients
from tiny import ONE_OF_EACH_KIND, tiny, tiny_float64
from torch import Tensor
from toy import EXAMPLES, make_model

from softcue.backbones import Backbone, Decoding, ForwardPass
from softcue.errors import ConfigurationError
from softcue.inference import TaskModel
from softcue.inputs.collate import collate
from softcue.methods import METHODS
from softcue.methods.adapter import Adapter, AdapterConfig, CompacterConfig, CompacterModule
from softcue.training import TaskData, Trainer, TrainingConfig
from softcue.types import Batch

D, M, LAYERS = 32, 8, 3
KINDS_OF_ADAPTER = ["adapter", "compacter", "compacter one A"]


def batch_of(model: TaskModel, backbone: Backbone, num_rows: int = 5) -> Batch:
    return collate(model.rows(backbone, EXAMPLES[:num_rows]), backbone.tokenizer.pad_token_id)


def read(model: TaskModel, backbone: Backbone, batch: Batch, with_target: bool = False) -> ForwardPass:
    return model.read(model.method.view_of(backbone), batch, with_target)[0]


def adapters_of(model: TaskModel) -> list[Any]:
    return list(model.method.adapters)  # type: ignore[arg-type]


def matrices(adapter: Any) -> tuple[Tensor, Tensor]:
    """D [width m] and U [m width]."""
    if hasattr(adapter, "down"):
        return adapter.down, adapter.up
    pairs = ((adapter.down_s, adapter.down_t), (adapter.up_s, adapter.up_t))
    down, up = (literal.compacter_matrix(list(adapter.a), list(s.squeeze(2)), list(t.squeeze(1))) for s, t in pairs)
    return down, up


def adapted(adapter: Any, states: Tensor, drop: Callable[[Tensor], Tensor] = literal.unchanged) -> Tensor:
    """[B S D] -> [B S D]"""
    down, up = matrices(adapter)  # ours multiply from the right
    rows = [literal.adapter(row, (down.T, adapter.down_bias), (up.T, adapter.up_bias), drop) for row in states]
    return torch.stack(rows)


def with_biases(model: TaskModel) -> TaskModel:
    for adapter in adapters_of(model):
        adapter.down_bias.data.normal_(std=0.5)
        adapter.up_bias.data.normal_(std=0.5)
    return model


def assert_like(actual: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(actual, expected, rtol=1e-4, atol=1e-4)


# --- the identity ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
@torch.no_grad()
def test_adapters_start_as_the_identity(family: str) -> None:
    backbone = tiny(family)
    bare = make_model(backbone, "no-prompt", readout={"name": "classifier"})
    model = make_model(backbone, "adapter", readout={"name": "classifier"}, init_std=0.7, up_std=0.0)
    batch = batch_of(model, backbone)
    for training in (False, True):
        model.train(training)
        assert torch.equal(
            read(model, backbone, batch).hidden(), backbone.read(batch, None, backbone.embed(batch.ids)).hidden()
        )
    defaults = METHODS["adapter"].Config.model_validate({"name": "adapter"})
    assert (defaults.up_std, defaults.init_std, defaults.bottleneck) == (0.0, 0.02, 16)  # type: ignore[attr-defined]
    assert batch_of(bare, backbone).ids.tolist() == batch.ids.tolist()


@pytest.mark.parametrize("family", ["t5", "gpt2"])
@torch.no_grad()
def test_what_adapters_start_with_writes_as_the_bare_backbone_does(family: str) -> None:
    backbone = tiny(family)
    settings: dict[str, object] = {"name": "generation"}
    model = make_model(backbone, "adapter", readout=settings, init_std=0.7, up_std=0.0)
    rows = model.rows(backbone, EXAMPLES, with_target=True)
    batch = collate(rows, backbone.tokenizer.pad_token_id)
    candidates = model.readout.candidates
    moved = make_model(backbone, "adapter", readout=settings, up_std=0.5)

    def outputs(with_method: TaskModel | None) -> list[Any]:
        seen = backbone if with_method is None else with_method.method.view_of(backbone)
        plain = seen.read(batch, None, seen.embed(batch.ids))
        taught = seen.read(batch, None, seen.embed(batch.ids), with_target=True)
        return [
            plain.rank(candidates),
            plain.first_logits(),
            taught.target_logits(batch.target_ids),  # type: ignore[arg-type]
            torch.tensor(plain.generate(Decoding(1, 5))),
        ]

    for actual, wanted, other in zip(outputs(model), outputs(None), outputs(moved), strict=True):
        assert torch.equal(actual, wanted)
        assert other.shape != wanted.shape or not torch.equal(other, wanted)


# --- where they stand ------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("case", KINDS_OF_ADAPTER)
def test_a_bert_layer_has_them_before_the_residual_sum_and_the_norm(case: str) -> None:
    backbone = tiny_float64("bert")
    model = with_biases(make_model(backbone, case)).double()
    modules = adapters_of(model)
    assert len(modules) == 2 * LAYERS
    batch = batch_of(model, backbone, 1)
    hidden = backbone.model.bert.embeddings(input_ids=batch.ids)
    for number, layer in enumerate(backbone.model.bert.encoder.layer):
        attention = layer.attention.self
        query, key, value = (
            part(hidden)[0].view(-1, 4, 8).transpose(0, 1) for part in (attention.query, attention.key, attention.value)
        )
        attended = (query @ key.transpose(1, 2) / math.sqrt(8)).softmax(dim=2) @ value
        projected = layer.attention.output.dense(attended.transpose(0, 1).reshape(1, -1, D))
        hidden = layer.attention.output.LayerNorm(adapted(modules[2 * number], projected) + hidden)
        inner = literal.gelu(layer.intermediate.dense(hidden))
        hidden = layer.output.LayerNorm(adapted(modules[2 * number + 1], layer.output.dense(inner)) + hidden)
    sources = dict(model.method.named_parameters())
    assert_same_with_gradients(read(model, backbone, batch).text(), hidden, sources)


@torch.no_grad()
def test_a_gpt2_layer_has_them_before_the_residual_sum() -> None:
    backbone = tiny("gpt2")
    model = with_biases(make_model(backbone, "adapter"))
    modules = adapters_of(model)
    batch = batch_of(model, backbone, 1)
    length = batch.ids.shape[1]
    hidden = backbone.base.wte(batch.ids) + backbone.base.wpe(torch.arange(length))
    causal = torch.full((length, length), -math.inf).triu(1)
    for number, layer in enumerate(backbone.base.h):
        packed = layer.attn.c_attn(layer.ln_1(hidden))[0]
        query, key, value = (part.view(-1, 4, 8).transpose(0, 1) for part in packed.split(D, dim=1))
        attended = (query @ key.transpose(1, 2) / math.sqrt(8) + causal).softmax(dim=2) @ value
        projected = layer.attn.c_proj(attended.transpose(0, 1).reshape(1, -1, D))
        hidden = hidden + adapted(modules[2 * number], projected)
        hidden = hidden + adapted(modules[2 * number + 1], layer.mlp(layer.ln_2(hidden)))
    assert_like(read(model, backbone, batch).text(), backbone.base.ln_f(hidden))


@torch.no_grad()
def test_t5_has_them_before_the_residual_sum_in_encoder_and_decoder() -> None:
    backbone = tiny("t5")
    model = with_biases(make_model(backbone, "adapter"))
    modules = adapters_of(model)
    assert len(modules) == 2 * (LAYERS + LAYERS)
    batch = batch_of(model, backbone, 1)
    base = backbone.base

    def self_attended(part: Any, states: Tensor, bias: Tensor) -> Tensor:
        attention = part.SelfAttention
        normed = part.layer_norm(states)[0]
        query, key, value = (
            what(normed).view(-1, 4, 8).transpose(0, 1) for what in (attention.q, attention.k, attention.v)
        )
        weights = (query @ key.transpose(1, 2) + bias).softmax(dim=2)  # T5 does not scale
        return attention.o((weights @ value).transpose(0, 1).reshape(1, -1, D))  # type: ignore[no-any-return]

    def bias_of(stack: Any, length: int) -> Tensor:
        return stack.block[0].layer[0].SelfAttention.compute_bias(length, length)[0]  # type: ignore[no-any-return]

    def fed(part: Any, states: Tensor) -> Tensor:
        return part.DenseReluDense(part.layer_norm(states))  # type: ignore[no-any-return]

    hidden = base.shared(batch.ids)
    bias = bias_of(base.encoder, batch.ids.shape[1])
    for number, block in enumerate(base.encoder.block):
        hidden = hidden + adapted(modules[2 * number], self_attended(block.layer[0], hidden, bias))
        hidden = hidden + adapted(modules[2 * number + 1], fed(block.layer[1], hidden))
    source = base.encoder.final_layer_norm(hidden)
    assert_like(read(model, backbone, batch).text(), source)

    target = torch.tensor([[9, 17, 33, 1]])
    hidden = base.shared(torch.tensor([[0, 9, 17, 33]]))  # from the start token, shifted by one
    bias = bias_of(base.decoder, 4) + torch.full((4, 4), -math.inf).triu(1)
    for number, block in enumerate(base.decoder.block):
        place = 2 * (LAYERS + number)
        hidden = hidden + adapted(modules[place], self_attended(block.layer[0], hidden, bias))
        cross = block.layer[1].EncDecAttention
        query = cross.q(block.layer[1].layer_norm(hidden))[0].view(-1, 4, 8).transpose(0, 1)
        key, value = (what(source)[0].view(-1, 4, 8).transpose(0, 1) for what in (cross.k, cross.v))
        attended = (query @ key.transpose(1, 2)).softmax(dim=2) @ value
        hidden = hidden + cross.o(attended.transpose(0, 1).reshape(1, -1, D))  # no third adapter here
        hidden = hidden + adapted(modules[place + 1], fed(block.layer[2], hidden))
    scale = D**-0.5 if base.config.tie_word_embeddings else 1.0
    logits = backbone.model.lm_head(base.decoder.final_layer_norm(hidden) * scale)
    actual_logits = read(model, backbone, batch).target_logits(target)
    torch.testing.assert_close(actual_logits.log_softmax(dim=2), logits.log_softmax(dim=2), rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
@torch.no_grad()
def test_every_adapter_changes_the_outcome_and_only_in_its_own_passes(family: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, "adapter")
    batch = batch_of(model, backbone)
    target = torch.tensor([[9, 17, 1]]).expand(batch.size, -1)
    bare = backbone.read(batch, None, backbone.embed(batch.ids)).hidden()

    def outcome() -> Tensor:
        forward_pass = read(model, backbone, batch)
        return forward_pass.target_logits(target) if family == "t5" else forward_pass.hidden()

    before = outcome()
    for adapter in adapters_of(model):
        kept = adapter.up.data.clone()
        adapter.up.data += torch.randn(M, D)
        assert not torch.allclose(outcome(), before, atol=1e-2)
        adapter.up.data.copy_(kept)
    assert torch.equal(outcome(), before)
    assert torch.equal(backbone.read(batch, None, backbone.embed(batch.ids)).hidden(), bare)


# --- one module ------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("seed", range(8))
def test_a_module_of_any_shape_is_its_formula_with_the_gradients_of_everything(seed: int) -> None:
    choices = random.Random(seed)
    n, num_rows, length = (choices.randint(1, 4) for _ in range(3))
    width, bottleneck = (n * choices.randint(1, 4) for _ in range(2))
    module: Adapter | CompacterModule
    if seed % 2:
        module = Adapter(width, AdapterConfig(name="adapter", bottleneck=bottleneck))
    else:
        shared = torch.nn.Parameter(torch.zeros(n, n, n)) if choices.random() < 0.5 else None
        config = CompacterConfig(name="compacter", bottleneck=bottleneck, phm_n=n)
        module = CompacterModule(width, config, shared)
    sources = dict(module.named_parameters())
    if isinstance(module, CompacterModule):
        sources["a"] = module.a
    for parameter in sources.values():
        parameter.data.normal_()
    states = torch.randn(num_rows, length, width, requires_grad=True)
    assert_same_with_gradients(module.eval()(states), adapted(module, states), sources | {"states": states})


@pytest.mark.parametrize("case", KINDS_OF_ADAPTER)
@torch.no_grad()
def test_dropout_is_on_the_modules_output_in_training_only(case: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def every_tenth(values: Tensor) -> Tensor:
        return ((torch.arange(values.shape[-1]) % 10) / 10 + 0.05).expand_as(values)

    def dropped(values: Tensor) -> Tensor:
        return torch.where(torch.arange(values.shape[-1]) % 10 == 0, 0.0, values / 0.9)

    monkeypatch.setattr("softcue.randomness.uniform_like", every_tenth)
    model = with_biases(make_model(tiny("bert"), case))
    states = torch.randn(2, 3, D)
    for adapter in adapters_of(model):
        assert_like(adapter.train()(states), adapted(adapter, states, dropped))
        assert_like(adapter.eval()(states), adapted(adapter, states))


@torch.no_grad()
def test_a_is_common_to_a_compacter_modules_projections_and_to_no_other_module() -> None:
    model = make_model(tiny("bert"), "compacter")
    modules = adapters_of(model)
    before = [matrices(adapter) for adapter in modules]
    modules[1].a.data += 1
    after = [matrices(adapter) for adapter in modules]
    for number, (old, new) in enumerate(zip(before, after, strict=True)):
        assert [torch.equal(*pair) for pair in zip(old, new, strict=True)] == [number != 1] * 2


@torch.no_grad()
def test_one_a_can_be_common_to_all_modules_and_is_stored_once() -> None:
    model = make_model(tiny("bert"), "compacter one A")
    modules = adapters_of(model)
    assert len({id(adapter.a) for adapter in modules}) == 1
    shapes = [tuple(value.shape) for value in model.method.state_dict().values()]
    assert shapes.count((4, 4, 4)) == 1
    assert sum(tuple(value.shape) == (4, 4, 4) for value in model.method.parameters()) == 1
    twin = make_model(tiny("bert"), "compacter one A", seed=3)
    twin.load_state_dict(model.state_dict())
    states = torch.randn(1, 2, D)
    for ours, theirs in zip(modules, adapters_of(twin), strict=True):
        assert torch.equal(ours(states), theirs(states))


@torch.no_grad()
def test_first_numbers_are_near_the_identity() -> None:
    plain = make_model(tiny("bert"), "adapter", bottleneck=64, init_std=0.02, up_std=0.0)
    for adapter in adapters_of(plain):
        assert float(adapter.down.std()) == pytest.approx(0.02, rel=0.1)
        assert not any(part.any() for part in (adapter.up, adapter.up_bias, adapter.down_bias))
    config = METHODS["compacter"].Config.model_validate({"name": "compacter"})
    assert (config.init_std, config.phm_n, config.share_a) == (0.05, 4, "module")  # type: ignore[attr-defined]
    compact = adapters_of(make_model(tiny("bert"), "compacter", init_std=0.05))
    for name in ("a", "down_s", "down_t", "up_s", "up_t"):
        factors = torch.cat([getattr(adapter, name).flatten() for adapter in compact])
        assert float(factors.std()) == pytest.approx(0.05, rel=0.3)
    assert not any(adapter.up_bias.any() or adapter.down_bias.any() for adapter in compact)


@pytest.mark.parametrize("case", KINDS_OF_ADAPTER)
def test_norms_and_all_other_weights_of_the_backbone_stay_frozen(case: str) -> None:
    backbone = tiny("bert")
    before = {name: value.clone() for name, value in backbone.model.state_dict().items()}
    model = make_model(backbone, case)
    assert not any("norm" in name.lower() for name, _ in model.method.named_parameters())
    numbers = {name: value.clone() for name, value in model.method.state_dict().items()}
    Trainer(
        backbone,
        [TaskData(model, EXAMPLES, EXAMPLES)],
        TrainingConfig(steps=2, batch_size=5, network_learning_rate=0.1),
    ).run()
    assert all(torch.equal(value, before[name]) for name, value in backbone.model.state_dict().items())
    assert not any(value.requires_grad for value in backbone.model.parameters())
    assert all(not torch.equal(value, numbers[name]) for name, value in model.method.state_dict().items())


def test_a_compacter_needs_n_to_divide_width_and_bottleneck() -> None:
    with pytest.raises(ConfigurationError, match=r"method\.phm_n: got 5;.*width, 32"):
        make_model(tiny("bert"), "compacter", phm_n=5, bottleneck=10)
    with pytest.raises(ConfigurationError, match=r"method\.phm_n: got 4;.*bottleneck, 6"):
        make_model(tiny("bert"), "compacter", bottleneck=6)
