"""LoRA (Hu et al. 2021) against merged weights, against PEFT's LoRA, and the counts of its paper."""

from __future__ import annotations

import copy
from typing import Any

import peft
import pytest
import torch
from paper.gradients import assert_same_with_gradients
from tiny import ONE_OF_EACH_KIND, tiny, tiny_float64, tiny_model, tiny_tokenizer
from tolerance import Tolerance
from torch import Tensor
from torch.func import functional_call
from toy import EXAMPLES, make_model

from softcue.backbones import Backbone
from softcue.backbones.linears import is_transposed, query_and_value_names
from softcue.errors import BackboneError, ConfigurationError
from softcue.inference import TaskModel, predict_mixed
from softcue.inputs.collate import collate
from softcue.methods.lora import LoRA, LowRankUpdate
from softcue.training import TaskData, Trainer, TrainingConfig
from softcue.types import Batch

# In float64, but T5 rounds attention weights to float32.
SOFTMAX_IN_FLOAT32 = Tolerance(relative=1e-6, absolute=1e-6)
TARGET = [[9, 17, 33, 1]]


def batch_of(model: TaskModel, backbone: Backbone, num_rows: int = 5) -> Batch:
    return collate(model.rows(backbone, EXAMPLES[:num_rows]), backbone.tokenizer.pad_token_id)


def outputs_of(model: TaskModel, backbone: Backbone, batch: Batch) -> Tensor:
    """Hidden states of an encoder and a decoder, logits of the target of an encoder-decoder."""
    forward_pass, _ = model.read(model.method.view_of(backbone), batch)
    if backbone.kind == "encoder-decoder":
        return forward_pass.target_logits(torch.tensor(TARGET))  # type: ignore[no-any-return]
    return forward_pass.text()


def plain_inputs(backbone: Backbone, batch: Batch) -> dict[str, Any]:
    """One row, so that nothing is padded."""
    inputs: dict[str, Any] = {"input_ids": batch.ids}
    if backbone.kind == "encoder-decoder":
        inputs["decoder_input_ids"] = torch.tensor([[backbone.start_id, *TARGET[0][:-1]]])
    return inputs


def states_or_logits(backbone: Backbone, output: Any) -> Tensor:
    return output.logits if backbone.kind == "encoder-decoder" else output.hidden_states[-1]  # type: ignore[no-any-return]


def updates_of(model: TaskModel) -> dict[str, LowRankUpdate]:
    assert isinstance(model.method, LoRA)
    return dict(zip(model.method.paths, model.method.updates, strict=True))  # type: ignore[arg-type]


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("family", ["bert", "t5", "gpt2", "llama", "albert"])
@pytest.mark.parametrize("targets", ["auto", "all"])
def test_updates_equal_merged_weights_in_output_and_gradient(family: str, targets: str) -> None:
    backbone = tiny_float64(family)
    names = ",".join({path.rpartition(".")[2] for path in backbone.linears}) if targets == "all" else targets
    model = make_model(backbone, "lora", targets=names, alpha=6).double()
    batch = batch_of(model, backbone, 1)
    base = copy.deepcopy(backbone.model)
    place = next(name for name, module in base.named_modules() if module is base.base_model)
    merged = {}
    for path, update in updates_of(model).items():
        change = 6 / 4 * update.b @ update.a  # [out in]
        name = f"{place}.{path}.weight".removeprefix(".")
        module = base.get_submodule(name.removesuffix(".weight"))
        merged[name] = module.weight + (change.T if is_transposed(module) else change)
    output = functional_call(base, merged, kwargs={**plain_inputs(backbone, batch), "output_hidden_states": True})
    expected = states_or_logits(backbone, output)
    sources = dict(model.method.named_parameters())
    assert_same_with_gradients(outputs_of(model, backbone, batch), expected, sources, SOFTMAX_IN_FLOAT32)


@pytest.mark.usefixtures("float64")
@pytest.mark.parametrize("family", ["bert", "t5", "gpt2", "llama"])
def test_updates_equal_pefts_in_output_and_gradient(family: str) -> None:
    backbone = tiny_float64(family)
    model = make_model(backbone, "lora", alpha=6).double()
    batch = batch_of(model, backbone, 1)
    config = peft.LoraConfig(
        r=4, lora_alpha=6, target_modules=list(backbone.query_and_value_names), fan_in_fan_out=family == "gpt2"
    )
    wrapped = peft.get_peft_model(copy.deepcopy(backbone.model), config)
    matrices: dict[str, Tensor] = {}
    for path, update in updates_of(model).items():
        [(name, module)] = [item for item in wrapped.named_modules() if item[0].endswith(f"{path}.lora_A.default")]
        module.weight.data.copy_(update.a)
        other = wrapped.get_submodule(name.replace("lora_A", "lora_B"))
        other.weight.data.copy_(update.b)
        matrices |= {f"{path}.a": module.weight, f"{path}.b": other.weight}
    assert len(matrices) == len(list(model.method.parameters()))  # PEFT changes the same modules
    assert len(matrices) == sum("lora_" in name for name, _ in wrapped.named_parameters())
    expected = states_or_logits(backbone, wrapped(**plain_inputs(backbone, batch), output_hidden_states=True))
    actual = outputs_of(model, backbone, batch)
    SOFTMAX_IN_FLOAT32.assert_close(actual, expected)
    pull = torch.randn(expected.shape, generator=torch.Generator().manual_seed(1))
    ours = torch.autograd.grad((actual * pull).sum(), list(model.method.parameters()))
    theirs = torch.autograd.grad((expected * pull).sum(), list(matrices.values()))
    for name, mine, other in zip(matrices, ours, theirs, strict=True):
        assert other.any(), name
        SOFTMAX_IN_FLOAT32.assert_close(mine, other, name)


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
@torch.no_grad()
def test_it_starts_as_the_frozen_model(family: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, "lora", readout={"name": "classifier"}, init_std=0.7, up_std=0.0)
    batch = batch_of(model, backbone)
    plain = backbone.read(batch, None, backbone.embed(batch.ids)).hidden()
    for training in (False, True):
        model.train(training)
        assert torch.equal(model.read(model.method.view_of(backbone), batch)[0].hidden(), plain)


@torch.no_grad()
def test_an_update_acts_in_its_own_passes_only() -> None:
    backbone = tiny("bert")
    bare = make_model(backbone, "prompt-tuning", readout={"name": "classifier"})
    models = [make_model(backbone, "lora", readout={"name": "classifier"}, seed=seed) for seed in (1, 2)]
    rows = [(model, model.rows(backbone, EXAMPLES[:1])[0]) for model in (bare, *models)]
    alone = [predict_mixed(backbone, [row])[0].scores for row in rows]
    together = [prediction.scores for prediction in predict_mixed(backbone, rows)]
    assert alone[1] != alone[2]
    for one, other in zip(alone, together, strict=True):
        assert one == pytest.approx(other, abs=1e-5)


def test_dropout_drops_channels_of_a_row_in_training_only() -> None:
    backbone = tiny("bert")
    model = make_model(backbone, "lora", dropout=0.5)
    update = updates_of(model)["encoder.layer.0.attention.self.query"]
    inputs, output = torch.ones(2, 3, 32), torch.zeros(2, 3, 32)
    changed = update.train()(inputs, output)
    assert torch.equal(changed[:, :1].expand_as(changed), changed)  # the same at all positions
    assert not torch.equal(changed[0], changed[1])
    assert not torch.equal(changed, update.eval()(inputs, output))


def test_training_moves_every_update_and_no_weight_of_the_backbone() -> None:
    backbone = tiny("bert")
    model = make_model(backbone, "lora", init_std=0.5, up_std=0.0)
    weights, updates = (
        {name: value.clone() for name, value in part.state_dict().items()} for part in (backbone.model, model.method)
    )
    config = TrainingConfig(steps=3, batch_size=5, network_learning_rate=0.05)
    Trainer(backbone, [TaskData(model, EXAMPLES, EXAMPLES)], config).run()
    assert all(torch.equal(value, weights[name]) for name, value in backbone.model.state_dict().items())
    assert all(not torch.equal(value, updates[name]) for name, value in model.method.state_dict().items())


@pytest.mark.parametrize("family", ["bert", "modernbert", "t5", "bart", "gpt2", "llama", "phi3", "falcon"])
def test_known_names_are_those_that_the_trace_finds(family: str) -> None:
    backbone = tiny(family)
    source = backbone.structure.source
    bare = [layer.model_copy(update={"queries": None, "values": None}) for layer in source.layers]
    by_name = query_and_value_names(source.model_copy(update={"layers": tuple(bare)}), backbone.linears)
    assert set(by_name) == set(backbone.query_and_value_names)


def test_an_unknown_target_is_an_error_with_the_names_there_are() -> None:
    with pytest.raises(ConfigurationError, match=r"method\.targets: got 'qurey'.*did you mean 'query'"):
        make_model(tiny("bert"), "lora", targets="qurey,value")


def test_auto_and_a_name_together_are_an_error() -> None:
    with pytest.raises(ConfigurationError, match=r"method\.targets.*auto alone"):
        make_model(tiny("bert"), "lora", targets="auto,dense")


def test_a_backbone_whose_projections_are_not_found_asks_for_names(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = copy.copy(tiny("bert"))
    monkeypatch.setitem(vars(backbone), "query_and_value_names", ())
    with pytest.raises(BackboneError, match=r"method\.targets.*name linear modules.*query, key, value"):
        make_model(backbone, "lora")


def test_the_cue_records_the_names_that_auto_found() -> None:
    assert make_model(tiny("gpt2"), "lora").method.config.model_dump()["targets"] == ("c_attn",)


def test_a_module_that_does_not_run_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("softcue.backbones.backbone.install_linear_hooks", lambda base, paths: None)
    with pytest.raises(BackboneError, match=r"method\.targets: got 'query'; expected modules that run"):
        make_model(Backbone(tiny_model("bert"), tiny_tokenizer("bert"), "bypassed"), "lora")
