"""Prompts that enter at a deeper layer: the layers below run on the text alone, once."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from tiny import DECODERS, ENCODER_DECODERS, ENCODERS, ONE_OF_EACH_KIND, tiny
from torch import Tensor, nn
from toy import EXAMPLES, PAIRS, make_model

from softcue.backbones import Backbone
from softcue.backbones import state_cache as state_cache
from softcue.backbones.late_prompts import LateBackbone
from softcue.backbones.passes.decoder import DecoderPass
from softcue.backbones.passes.decoding import Decoding
from softcue.backbones.state_cache import StateCache
from softcue.errors import BackboneError, ConfigurationError
from softcue.inference import TaskModel, predict
from softcue.inputs.collate import collate
from softcue.types import Batch, Example

# ALBERT's layers share weights: none can be left out
FAMILIES = [family for family in ENCODERS + ENCODER_DECODERS + DECODERS if family != "albert"]


def fresh(backbone: Backbone) -> Backbone:
    """A copy of the backbone without the views that other tests have made."""
    view = copy.copy(backbone)
    view._views_from_layers = {}
    return view


def late(backbone: Backbone, layer: int) -> LateBackbone:
    view = fresh(backbone).from_layer(layer)
    assert isinstance(view, LateBackbone)
    return view


def batch_of(model: TaskModel, backbone: Backbone, answers: bool = False) -> Batch:
    return collate(model.rows(backbone, EXAMPLES, with_target=answers), backbone.tokenizer.pad_token_id)


@pytest.mark.parametrize("layer", [1, 2])
@pytest.mark.parametrize("family", FAMILIES)
@torch.no_grad()
def test_without_a_prompt_both_halves_compute_the_states_of_the_whole(family: str, layer: int) -> None:
    backbone = tiny(family)
    model = make_model(backbone, "no-prompt")
    batch = batch_of(model, backbone)
    whole = backbone.read(batch, None, backbone.input_states(batch)).text()
    view = late(backbone, layer)
    upper = view.read(batch, None, view.input_states(batch)).text()
    torch.testing.assert_close(upper[batch.mask], whole[batch.mask], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ENCODER_DECODERS + DECODERS)
@torch.no_grad()
def test_without_a_prompt_both_halves_generate_the_text_of_the_whole(family: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, "no-prompt", readout={"name": "generation"})
    batch = batch_of(model, backbone)
    view = late(backbone, 1)
    for beams in (1, 3):
        whole, upper = (seen.read(batch, None, seen.input_states(batch)) for seen in (backbone, view))
        torch.testing.assert_close(upper.first_logits(), whole.first_logits(), rtol=1e-4, atol=1e-4)
        assert upper.generate(Decoding(beams, 6)) == whole.generate(Decoding(beams, 6))
        candidates = [torch.tensor([7, 8, 1]), torch.tensor([9, 1])]
        torch.testing.assert_close(upper.rank(candidates), whole.rank(candidates), rtol=1e-4, atol=1e-4)


def literal_states(backbone: Backbone, text: Tensor, prompt: Tensor, at: int, layer: int) -> Tensor:
    """BERT by hand: layers below on the text alone, then insert the prompt, then the others. One row. [S D]"""
    base = backbone.base
    hidden = base.embeddings(input_ids=text.unsqueeze(0))
    for number, block in enumerate(base.encoder.layer):
        if number == layer:
            hidden = torch.cat([hidden[:, :at], prompt.unsqueeze(0), hidden[:, at:]], dim=1)
        output = block(hidden)
        hidden = output if isinstance(output, Tensor) else output[0]
    return hidden[0]


@pytest.mark.parametrize("layer", [1, 2])
@torch.no_grad()
def test_a_late_prompt_equals_running_the_layers_by_hand(layer: int) -> None:
    backbone = tiny("bert")
    model = make_model(backbone, "prompt-tuning", insert_layer=layer)
    encoder = model.method.prompt_encoder()
    assert encoder is not None
    prompt = encoder.static_vectors()
    assert prompt is not None
    for row in model.rows(backbone, EXAMPLES):
        forward_pass, _ = model.read(model.method.view_of(backbone), collate([row], backbone.tokenizer.pad_token_id))
        wanted = literal_states(backbone, torch.tensor(row.ids), prompt, row.insert_at, layer)
        torch.testing.assert_close(forward_pass.hidden()[0], wanted, rtol=1e-4, atol=1e-4)


def count_runs(module: nn.Module) -> Callable[[], int]:
    runs = []
    module.register_forward_hook(lambda *_: runs.append(1))
    return lambda: len(runs)


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
def test_layers_below_run_once_for_a_text_and_have_no_gradient(family: str) -> None:
    backbone = Backbone(copy.deepcopy(tiny(family).model), tiny(family).tokenizer, family)
    model = make_model(backbone, "prompt-tuning", insert_layer=2)
    batch = batch_of(model, backbone, answers=True)
    runs = count_runs(backbone.layers[0])
    whole = count_runs(backbone.layers[2])
    losses = []
    for _ in range(3):
        model.zero_grad()
        loss = model(backbone, batch).losses.sum()
        loss.backward()
        losses.append(float(loss.detach()))
    assert runs() == 1
    assert whole() == 0, "the layers from insert_layer on belong to the view"
    assert losses[0] == losses[1] == losses[2]
    encoder = model.method.prompt_encoder()
    assert encoder is not None
    assert all(p.grad is not None and float(p.grad.abs().max()) > 0 for p in encoder.parameters())
    view = model.method.view_of(backbone)
    assert isinstance(view, LateBackbone)
    assert not view.input_states(batch).requires_grad


def test_a_view_shares_every_weight() -> None:
    backbone = tiny("t5")
    weights = {id(value) for value in backbone.model.parameters()}
    view = late(backbone, 2)
    assert {id(value) for value in view.model.parameters()} <= weights
    assert view.num_layers == 1
    assert backbone.num_layers == 3


@pytest.mark.parametrize("family", DECODERS)
@torch.no_grad()
def test_decoders_rank_as_they_would_token_by_token(family: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, "prompt-tuning", readout={"name": "generation"}, insert_layer=1).eval()
    candidates = [torch.tensor([7, 8, 1]), torch.tensor([9, 1]), torch.tensor([3, 4, 5, 1])]
    batch = batch_of(model, backbone)
    scores = model.read(model.method.view_of(backbone), batch)[0].rank(candidates)  # [B C]
    for column, candidate in enumerate(candidates):
        target = candidate.expand(batch.size, -1)
        taught = Batch(batch.ids, batch.mask, batch.segments, batch.insert_at, target, torch.ones_like(target).bool())
        forward_pass, _ = model.read(model.method.view_of(backbone), taught, with_target=True)
        logits = forward_pass.target_logits(target).log_softmax(dim=-1)
        wanted = logits.gather(2, target.unsqueeze(2)).sum(dim=(1, 2))
        torch.testing.assert_close(scores[:, column], wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", DECODERS)
@torch.no_grad()
def test_decoders_write_the_likeliest_word_at_every_step(family: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, "prompt-tuning", readout={"name": "generation"}, insert_layer=1).eval()
    batch = batch_of(model, backbone)
    written = torch.tensor(model.read(model.method.view_of(backbone), batch)[0].generate(Decoding(1, 5)))  # [B U]
    assert written.shape[1] > 1
    taught = Batch(batch.ids, batch.mask, batch.segments, batch.insert_at, written, torch.ones_like(written).bool())
    forward_pass, _ = model.read(model.method.view_of(backbone), taught, with_target=True)
    wanted = forward_pass.target_logits(written).argmax(dim=-1)
    for row, likeliest in zip(written.tolist(), wanted.tolist(), strict=True):
        length = row.index(1) + 1 if 1 in row else len(row)
        assert row[:length] == likeliest[:length]
        assert set(row[length:]) <= {backbone.tokenizer.pad_token_id}


@pytest.mark.parametrize("layer", [3, 30])
def test_a_layer_that_does_not_exist_is_an_error(layer: int) -> None:
    with pytest.raises(BackboneError, match=r"method\.insert_layer.*0 to 2"):
        make_model(tiny("bert"), "prompt-tuning", insert_layer=layer)


def test_the_entering_representation_needs_an_insert_layer() -> None:
    with pytest.raises(ConfigurationError, match=r"method\.representation"):
        make_model(tiny("bert"), "s-idpg-phm", representation="entering")


@torch.no_grad()
def test_the_generator_uses_the_states_of_its_entry_layer_without_another_pass() -> None:
    backbone = fresh(tiny("bert"))
    model = make_model(backbone, "s-idpg-phm late").eval()
    assert model.representation is None
    batch = batch_of(model, backbone)
    view = model.method.view_of(backbone)
    states = view.input_states(batch)
    generated = model.prompt(view, batch, states)
    mean = (states * batch.mask.unsqueeze(2)).sum(1) / batch.mask.sum(1, keepdim=True)
    cls = states[:, 0]
    pooling = model.method.config.pooling  # type: ignore[attr-defined]
    encoder = model.method.prompt_encoder()
    assert encoder is not None and generated is not None
    vector = {"mean": mean, "cls": cls}[pooling]
    first, second = encoder.generators[0].matrices()  # type: ignore[union-attr, index]
    hidden = torch.nn.functional.gelu(vector @ first + encoder.generators[0].bias)  # type: ignore[union-attr, index]
    wanted = hidden @ second + encoder.biases[0]  # type: ignore[union-attr, index]
    torch.testing.assert_close(generated.tokens.flatten(1), wanted, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_word_states_are_those_of_texts_of_one_word() -> None:
    backbone = tiny("bert")
    view = late(backbone, 1)
    ids = torch.tensor([7, 11, 7])
    states = view.word_input_states[ids]
    first, last = backbone.tokenizer("a")["input_ids"][0], backbone.tokenizer("a")["input_ids"][-1]
    assert {first, last} <= set(backbone.tokenizer.all_special_ids)
    texts = torch.tensor([[first, word, last] for word in ids.tolist()])
    wanted = backbone.base.encoder.layer[0](backbone.base.embeddings(input_ids=texts))
    wanted = (wanted if isinstance(wanted, Tensor) else wanted[0])[:, 1]
    torch.testing.assert_close(states, wanted, rtol=1e-4, atol=1e-4)
    assert len(view.word_input_states) == len(backbone.word_table)


@pytest.mark.parametrize("family", FAMILIES)
def test_prompts_that_start_as_words_differ(family: str) -> None:
    prompt = late(tiny(family), 2).word_input_states[torch.tensor([7, 11, 60, 99])]
    alike = torch.nn.functional.normalize(prompt, dim=1) @ torch.nn.functional.normalize(prompt, dim=1).T
    assert float(alike.fill_diagonal_(0).max()) < 0.99


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
def test_cues_with_different_entry_layers_share_one_batch(family: str) -> None:
    backbone = tiny(family)
    models = [make_model(backbone, "prompt-tuning", seed=layer, insert_layer=layer) for layer in (0, 1, 2)]
    requests = [(models[number % 3], example) for number, example in enumerate([*EXAMPLES, *EXAMPLES])]
    together = predict(backbone, requests).predictions
    for request, answer in zip(requests, together, strict=True):
        [alone] = predict(backbone, [request]).predictions
        assert answer.label == alone.label
        assert answer.scores == pytest.approx(alone.scores, abs=1e-4)


def test_states_of_pairs_differ_from_those_of_one_text_with_the_same_words() -> None:
    backbone = fresh(tiny("bert"))
    model = make_model(backbone, "prompt-tuning", task=PAIRS, insert_layer=1)
    rows = model.rows(backbone, [Example(("one text", "another"), "same"), Example(("it", "is so"), "other")])
    batch = collate(rows, backbone.tokenizer.pad_token_id)
    assert batch.segments is not None and bool(batch.segments.any())
    view = model.method.view_of(backbone)
    with_pairs = view.input_states(batch)
    flat = Batch(
        batch.ids, batch.mask, torch.zeros_like(batch.segments), batch.insert_at, batch.target_ids, batch.target_mask
    )
    assert not torch.allclose(view.input_states(flat), with_pairs, atol=1e-3)


def test_states_beyond_memory_are_loaded_from_disk_and_states_beyond_disk_are_dropped() -> None:
    values = {bytes([number]): torch.full((2, 4), float(number)) for number in range(6)}  # 32 bytes each
    kept = StateCache(memory_bytes=64, disk_bytes=96)
    for key, value in values.items():
        kept.put({key: value})
    loaded = kept.get(list(values))
    present = [value for value in loaded if value is not None]
    assert len(present) == 5
    for key, value in zip(values, loaded, strict=True):
        assert value is None or torch.equal(value, values[key])
    kept.put({b"\x00": values[b"\x00"]})  # a tensor on disk is not kept twice
    assert kept._file_end == 96


def test_a_full_disk_only_makes_the_run_slower(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError("no space left on device")

    monkeypatch.setattr(state_cache.os, "pwrite", full)
    kept = StateCache(memory_bytes=32)
    kept.put({b"a": torch.zeros(8), b"b": torch.ones(8)})
    first, second = kept.get([b"a", b"b"])
    assert first is None
    assert second is not None and torch.equal(second, torch.ones(8))


def test_bfloat16_states_are_restored_from_disk() -> None:
    kept = StateCache(memory_bytes=0)
    value = torch.randn(3, 5).to(torch.bfloat16)
    kept.put({b"a": value})
    [loaded] = kept.get([b"a"])
    assert loaded is not None and torch.equal(loaded, value)


def test_states_are_kept_within_the_backbones_bounds() -> None:
    backbone = fresh(tiny("bert"))
    backbone.state_cache_bytes = (64, 0)
    view = backbone.from_layer(1)
    assert isinstance(view, LateBackbone)
    assert (view.state_cache.memory_bytes, view.state_cache.disk_bytes) == (64, 0)


@pytest.mark.parametrize("family", ["bert", "mpnet", "modernbert", "t5", "gpt2", "llama"])
@pytest.mark.parametrize("case", ["prompt-tuning late", "m-idpg-phm late"])
def test_gradients_that_skip_the_text_are_those_of_the_whole_layer(
    family: str, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = fresh(tiny(family))
    model = make_model(backbone, case)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    batch = batch_of(model, backbone, answers=True)
    monkeypatch.setattr(DecoderPass, "shared", property(lambda self: [], lambda self, value: None), raising=False)
    loss = model(backbone, batch).losses.sum()
    gradients = torch.autograd.grad(loss, parameters, allow_unused=True)
    view = model.method.view_of(backbone)
    projections = [module for module in view.layers[0].modules() if "forward" in vars(module)]
    assert projections
    for module in projections:
        vars(module).pop("forward")
    expected = torch.autograd.grad(model(backbone, batch).losses.sum(), parameters, allow_unused=True)
    for one, other in zip(gradients, expected, strict=True):
        assert (one is None) == (other is None)
        if one is not None and other is not None:
            torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-6)


def test_projections_compute_no_gradient_at_the_text() -> None:
    backbone = fresh(tiny("bert"))
    model = make_model(backbone, "prompt-tuning late")
    view = model.method.view_of(backbone)
    batch = batch_of(model, backbone, answers=True)
    forward_pass, _ = model.read(view, batch)
    forward_pass.embeds.retain_grad()
    seen: list[Tensor] = []
    query = view.layers[0].get_submodule("attention.self.query")
    query.register_full_backward_hook(lambda module, inputs, outputs: seen.append(inputs[0]))
    model.readout.losses(forward_pass, batch).sum().backward()
    is_prompt = forward_pass.layout.is_prompt
    assert seen[0][is_prompt].abs().max() > 0
    assert seen[0][~is_prompt].abs().max() == 0
