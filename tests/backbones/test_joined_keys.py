"""Prompts that are keys and values without positions: they compute what they compute at positions, on shorter rows."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest
import torch
from tiny import KINDS, tiny, tiny_float64, tiny_model, tiny_tokenizer
from tolerance import REORDERED_FLOAT32, Tolerance
from torch import Tensor
from toy import EXAMPLES, TASK, make_model

from softcue.backbones import Backbone
from softcue.backbones.attention import PREFIX
from softcue.backbones.checks import check_backbone
from softcue.backbones.key_steps import rotate
from softcue.backbones.layout import lay_out
from softcue.backbones.passes.decoding import Decoding
from softcue.backbones.passes.forward_pass import ForwardPass
from softcue.inference import TaskModel
from softcue.inference.mixed_batches import predict_mixed
from softcue.inputs.collate import PaddingSide, collate
from softcue.prompts.mixed import join_prompts
from softcue.randomness import Dropout
from softcue.types import Batch, TokenizedRow

JOINING = [
    *("bert", "roberta", "distilbert", "electra", "modernbert", "albert", "nomic_bert", "t5", "umt5"),
    *("gpt2", "llama", "qwen3", "opt", "gpt_neox", "phi", "phi3", "gemma2", "gemma3_text", "olmo2", "smollm3"),
]
AT_POSITIONS = ["mpnet", "roformer", "bart", "longt5", "gpt_neo", "gptj", "bloom", "falcon"]
DECODERS = [family for family in JOINING if KINDS[family] == "decoder"]
CASES = ["prefix-tuning", "m-idpg-phm kv"]  # the same prompt in every row, one that reads the text in every layer
SAME_FLOAT64 = Tolerance(relative=1e-9, absolute=1e-9)
SAME_FLOAT32 = Tolerance(relative=1e-5, absolute=1e-5)
# Short texts: ModernBERT's tiny model has a window of 32 positions.
SHORT = [replace(example, texts=(example.texts[0][: 8 + 4 * number],)) for number, example in enumerate(EXAMPLES)]

pytestmark = pytest.mark.usefixtures("prompts_in_every_row")  # a decoder would run a static prompt once for all rows


def make_batch(model: TaskModel, backbone: Backbone, side: PaddingSide = "right") -> Batch:
    batch = collate(model.rows(backbone, SHORT), backbone.tokenizer.pad_token_id, side)
    vectors = batch.representation  # kept in float32
    return replace(batch, representation=None if vectors is None else vectors.to(torch.get_default_dtype()))


def read(model: TaskModel, backbone: Backbone, batch: Batch) -> ForwardPass:
    forward_pass, _ = model.read(model.method.view_of(backbone), batch)
    assert forward_pass.layout.joined is not None
    assert forward_pass.with_positions.layout.joined is None
    return forward_pass


def states_and_gradients(forward_pass: ForwardPass, model: TaskModel) -> tuple[Tensor, list[Tensor]]:
    states = forward_pass.text()[forward_pass.text_mask]
    weights = torch.arange(states.shape[1]).cos()
    parameters = list(model.method.parameters())
    gradients = torch.autograd.grad((states * weights).sum(), parameters, retain_graph=True, materialize_grads=True)
    return states.detach(), list(gradients)


@pytest.mark.parametrize("family", [family for family in JOINING if family != "gemma2"])  # its softmax is in float32
@pytest.mark.parametrize("case", CASES)
@pytest.mark.usefixtures("float64")
def test_states_and_gradients_are_those_of_a_prompt_at_positions(family: str, case: str) -> None:
    backbone = tiny_float64(family)
    model = make_model(backbone, case)
    for side in ("left", "right"):
        forward_pass = read(model, backbone, make_batch(model, backbone, side))
        states, gradients = states_and_gradients(forward_pass, model)
        expected_states, expected_gradients = states_and_gradients(forward_pass.with_positions, model)
        SAME_FLOAT64.assert_close(states, expected_states)
        SAME_FLOAT64.assert_close(gradients, expected_gradients)
        assert max(float(gradient.abs().max()) for gradient in gradients) > 1e-3


@pytest.mark.parametrize("family", ["bert", "t5", "gpt2", "llama", "gemma2"])
def test_states_and_gradients_are_the_same_in_float32(family: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, "prefix-tuning")
    forward_pass = read(model, backbone, make_batch(model, backbone))
    states, gradients = states_and_gradients(forward_pass, model)
    expected_states, expected_gradients = states_and_gradients(forward_pass.with_positions, model)
    SAME_FLOAT32.assert_close(states, expected_states)
    for gradient, expected in zip(gradients, expected_gradients, strict=True):
        SAME_FLOAT32.assert_close(gradient / expected.abs().max(), expected / expected.abs().max())


@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
@pytest.mark.parametrize("family", ["bert", "modernbert", "t5", "gpt2", "gemma3_text"])
@torch.no_grad()
def test_each_implementation_of_attention_joins_keys(family: str, implementation: str) -> None:
    model_of_family = tiny_model(family)
    model_of_family.set_attn_implementation(implementation)
    backbone = Backbone(model_of_family, tiny_tokenizer(family), "tiny")
    assert backbone.attention == implementation
    model = make_model(backbone, "m-idpg-phm kv")
    forward_pass = read(model, backbone, make_batch(model, backbone))
    mask = forward_pass.text_mask
    REORDERED_FLOAT32.assert_close(forward_pass.text()[mask], forward_pass.with_positions.text()[mask])


@pytest.mark.parametrize("insert_at", ["front", "start", "end"])
@pytest.mark.parametrize("family", ["roberta", "modernbert", "t5"])
@pytest.mark.usefixtures("float64")
def test_a_prompt_anywhere_in_the_text_moves_the_positions_behind_it(family: str, insert_at: str) -> None:
    backbone = tiny_float64(family)
    model = make_model(backbone, "prefix-tuning", insert_at=insert_at)
    batch = make_batch(model, backbone)
    forward_pass = read(model, backbone, batch)
    full = forward_pass.with_positions
    numbers, expected = (
        part.layout.positions.gather(1, part.layout.text_slots)[batch.mask] for part in (forward_pass, full)
    )
    assert torch.equal(numbers, expected)
    SAME_FLOAT64.assert_close(forward_pass.text()[batch.mask], full.text()[batch.mask])


def test_layers_run_on_the_text_alone() -> None:
    backbone = tiny("bert")
    model = make_model(backbone, "p-tuning-v2 kv")
    batch = make_batch(model, backbone)
    lengths: list[int] = []
    handles = [
        layer.register_forward_hook(lambda module, args, output: lengths.append(args[0].shape[1]))
        for layer in backbone.layers
    ]
    read(model, backbone, batch).text()
    for handle in handles:
        handle.remove()
    assert lengths == [batch.ids.shape[1]] * backbone.num_layers


@pytest.mark.parametrize("family", AT_POSITIONS)
@torch.no_grad()
def test_other_models_keep_positions(family: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, "prefix-tuning")
    forward_pass, _ = model.read(backbone, make_batch(model, backbone))
    assert not backbone.can_join_keys and forward_pass.layout.joined is None
    assert forward_pass.layout.is_prompt.sum() == 4 * len(SHORT)
    assert forward_pass.with_positions is forward_pass


@torch.no_grad()
def test_attention_that_is_changed_later_falls_back_to_positions() -> None:
    backbone = Backbone(tiny_model("bert"), tiny_tokenizer("bert"), "tiny")
    model = make_model(backbone, "prefix-tuning")
    batch = make_batch(model, backbone)
    expected = read(model, backbone, batch).text()
    backbone.model.set_attn_implementation("eager")
    forward_pass, _ = model.read(backbone, batch)
    assert forward_pass.layout.joined is None
    REORDERED_FLOAT32.assert_close(forward_pass.text()[batch.mask], expected[batch.mask])


@torch.no_grad()
def test_a_model_without_such_prompts_computes_the_same_numbers_as_before() -> None:
    model = tiny_model("bert")
    ids = torch.arange(5, 12).unsqueeze(0)
    before = model(input_ids=ids).logits
    Backbone(model, tiny_tokenizer("bert"), "tiny")
    assert model.config._attn_implementation == f"{PREFIX}sdpa"
    assert torch.equal(model(input_ids=ids).logits, before)


@pytest.mark.parametrize("family", ["bert", "t5", "gpt2", "llama"])
@torch.no_grad()
def test_rows_with_and_without_such_prompts_share_a_batch(family: str) -> None:
    backbone = tiny(family)
    settings: list[tuple[str, dict[str, Any]]] = [
        ("p-tuning-v2 kv", {"prompt_length": 1}),
        ("m-idpg-phm kv", {}),
        ("prompt-tuning", {}),
        ("p-tuning-v2", {}),
        ("no-prompt", {}),
        ("prefix-tuning", {"prompt_length": 6}),
    ]
    head: dict[str, object] = {"name": "classifier"}
    models = [
        make_model(backbone, case, readout=head, seed=seed, **changes) for seed, (case, changes) in enumerate(settings)
    ]
    rows = [(model, row) for model in models for row in model.rows(backbone, SHORT[:3])]
    for row, prediction in zip(rows, predict_mixed(backbone, rows), strict=True):
        alone = predict_mixed(backbone, [row])[0]
        assert prediction.scores == REORDERED_FLOAT32.approx(alone.scores)


@torch.no_grad()
def test_in_a_mixed_batch_only_rows_with_other_prompts_have_positions() -> None:
    backbone = tiny("bert")
    models = [
        make_model(backbone, "prefix-tuning"),
        make_model(backbone, "prompt-tuning", prompt_length=2, init="uniform"),
    ]
    batch = collate([row for model in models for row in model.rows(backbone, SHORT[:2])], 0)
    embeds = backbone.input_states(batch)
    rows = torch.arange(4).split(2)
    prompts = [model.prompt(backbone, batch.rows(part), embeds[part]) for model, part in zip(models, rows, strict=True)]
    prompt = join_prompts([prompt for prompt in prompts if prompt is not None])
    forward_pass = backbone.read(batch, prompt, embeds)
    assert forward_pass.layout.is_prompt.sum(dim=1).tolist() == [0, 0, 2, 2]
    assert forward_pass.layout.joined is not None
    assert forward_pass.layout.joined.mask.sum(dim=1).tolist() == [4, 4, 0, 0]
    REORDERED_FLOAT32.assert_close(forward_pass.text()[batch.mask], forward_pass.with_positions.text()[batch.mask])


@pytest.mark.parametrize("family", DECODERS)
@pytest.mark.parametrize("case", [*CASES, "p-tuning-v2 kv late"])
@torch.no_grad()
def test_rankings_logits_and_generated_text_are_those_of_a_prompt_at_positions(family: str, case: str) -> None:
    backbone = tiny(family)
    late = {"insert_layer": 1} if case.endswith("late") else {}
    model = make_model(backbone, case.removesuffix(" late"), **late)
    forward_pass = read(model, backbone, make_batch(model, backbone))
    full = forward_pass.with_positions
    candidates = [torch.tensor(ids) for ids in ([9, 8, 7, 1], [30, 1], [11, 12, 1])]
    REORDERED_FLOAT32.assert_close(forward_pass.rank(candidates), full.rank(candidates))
    REORDERED_FLOAT32.assert_close(forward_pass.first_logits(), full.first_logits())
    for num_beams in (1, 3):
        decoding = Decoding(num_beams, 5)
        assert forward_pass.generate(decoding) == full.generate(decoding)
    rows = torch.tensor([1, 3])
    REORDERED_FLOAT32.assert_close(forward_pass.rows(rows).rank(candidates), full.rank(candidates)[rows])


@pytest.mark.parametrize("family", ["gpt2", "llama"])
@torch.no_grad()
def test_text_of_one_token_is_told_from_a_decoding_step(family: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, "m-idpg-phm kv")
    batch = collate([TokenizedRow((17,), None, insert_at=0, representation=torch.randn(32))], 0)
    forward_pass = read(model, backbone, batch)
    assert forward_pass.layout.mask.shape[1] == 1
    assert forward_pass.generate(Decoding(2, 6)) == forward_pass.with_positions.generate(Decoding(2, 6))


@pytest.mark.parametrize("family", ["gpt2", "llama"])
def test_target_logits_in_training_are_those_of_a_prompt_at_positions(family: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, "m-idpg-phm kv")
    rows = [
        replace(row, target_ids=(7, 9, 1)[: 2 + number % 2]) for number, row in enumerate(model.rows(backbone, SHORT))
    ]
    batch = collate(rows, 0)
    embeds = backbone.input_states(batch)
    prompt = model.prompt(backbone, batch, embeds)
    forward_pass = backbone.read(batch, prompt, embeds, with_target=True)
    assert forward_pass.layout.joined is not None
    logits, expected = (part.target_logits(batch.target_ids) for part in (forward_pass, forward_pass.with_positions))
    REORDERED_FLOAT32.assert_close(logits[batch.target_mask], expected[batch.target_mask])


@torch.no_grad()
def test_text_before_the_prompt_does_not_see_it_in_a_decoder() -> None:
    backbone = tiny("llama")
    model = make_model(backbone, "prefix-tuning")
    batch = collate([TokenizedRow((7, 8, 9, 10), None, insert_at=2), TokenizedRow((7, 8, 9), None, insert_at=1)], 0)
    states = read(model, backbone, batch).text()
    plain = backbone.read(batch, None, backbone.input_states(batch)).text()
    for row, insert_at in enumerate((2, 1)):
        REORDERED_FLOAT32.assert_close(states[row, :insert_at], plain[row, :insert_at])
        assert float((states[row, insert_at] - plain[row, insert_at]).abs().max()) > 1e-2


@torch.no_grad()
def test_a_decoder_whose_prompt_is_behind_the_text_keeps_positions() -> None:
    backbone = tiny("gpt2")
    model = make_model(backbone, "prefix-tuning", insert_at="end", readout={"name": "generation"})
    forward_pass, _ = model.read(backbone, make_batch(model, backbone))
    assert forward_pass.layout.joined is None


@pytest.mark.parametrize("family", ["t5", "umt5"])
@torch.no_grad()
def test_an_encoder_decoders_decoder_reads_the_states_at_positions(family: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, "prefix-tuning")
    forward_pass = read(model, backbone, make_batch(model, backbone))
    full = model.read(backbone, make_batch(model, backbone))[0].with_positions
    targets = torch.tensor([[5, 6, 1]] * len(SHORT))
    assert torch.equal(forward_pass.target_logits(targets), full.target_logits(targets))
    assert forward_pass.generate(Decoding(2, 4)) == full.generate(Decoding(2, 4))
    rows = torch.tensor([2, 0])
    REORDERED_FLOAT32.assert_close(forward_pass.rows(rows).first_logits(), full.first_logits()[rows])


@torch.no_grad()
def test_rows_that_leave_a_sliding_window_take_positions() -> None:
    backbone = Backbone(tiny_model("gemma3_text", sliding_window=16), tiny_tokenizer("gemma3_text"), "tiny")
    model = make_model(backbone, "m-idpg-phm kv")
    long, _ = model.read(backbone, collate([TokenizedRow((5,) * 13, None, 0, representation=torch.randn(32))], 0))
    assert long.layout.joined is None  # 13 tokens and 4 prompt vectors
    short, _ = model.read(
        backbone, collate([TokenizedRow(tuple(range(9, 18)), None, 0, representation=torch.randn(32))], 0)
    )
    assert short.layout.joined is not None
    decoding = Decoding(1, 8)
    assert short.generate(decoding) == short.with_positions.generate(decoding)  # the last tokens leave the window
    candidates = [torch.tensor([8, 9, 10, 11, 12, 1])]
    REORDERED_FLOAT32.assert_close(short.rank(candidates), short.with_positions.rank(candidates))


@pytest.mark.parametrize("family", ["bert", "modernbert", "t5", "llama"])
@pytest.mark.usefixtures("float64")
def test_layers_that_run_again_in_the_backward_pass_give_the_same_gradients(family: str) -> None:
    plain = tiny_float64(family)
    checkpointed = Backbone(copy.deepcopy(plain.model), plain.tokenizer, "tiny")
    checkpointed.checkpoint_layers()
    gradients = []
    batch = make_batch(make_model(plain, "m-idpg-phm kv"), plain)  # one for both: stored sentence vectors are rounded
    for backbone in (plain, checkpointed):
        model = make_model(backbone, "m-idpg-phm kv")
        gradients.append(states_and_gradients(read(model, backbone, batch), model)[1])
    SAME_FLOAT64.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("family", ["bert", "llama"])
@torch.no_grad()
def test_dropout_of_the_backbone_drops_the_same_values_of_the_text(family: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, "prefix-tuning")
    batch = make_batch(model, backbone)
    embeds = backbone.input_states(batch)
    dropout = Dropout(0.3, seed=5)
    forward_pass = backbone.read(batch, model.prompt(backbone, batch, embeds), embeds, dropout=dropout)
    assert forward_pass.layout.joined is not None
    REORDERED_FLOAT32.assert_close(forward_pass.text()[batch.mask], forward_pass.with_positions.text()[batch.mask])


def test_steps_of_keys_are_found() -> None:
    steps = {
        family: [layer.key_steps for layer in tiny(family).structure.source.layers]
        for family in ("bert", "phi", "qwen3", "olmo2", "smollm3")
    }
    assert all(step is not None for family_steps in steps.values() for step in family_steps)
    assert [(step.norm, step.rotates) for step in steps["bert"] if step] == [(None, False)] * 3
    assert [(step.norm, step.rotates) for step in steps["phi"] if step] == [(None, True)] * 3
    assert [(step.norm, step.norms_heads) for step in steps["qwen3"] if step] == [("self_attn.k_norm", True)] * 3
    assert [(step.norm, step.norms_heads) for step in steps["olmo2"] if step] == [("self_attn.k_norm", False)] * 3
    assert [step.rotates for step in steps["smollm3"] if step] == [True, False, True]


def test_numbers_behind_those_that_rotate_stay() -> None:
    angle = torch.tensor([0.3, 0.3])
    turned = rotate(torch.tensor([1.0, 2.0, 7.0]), angle.cos(), angle.sin())
    complex_number = complex(1.0, 2.0) * complex(float(angle[0].cos()), float(angle[0].sin()))
    assert turned.tolist() == pytest.approx([complex_number.real, complex_number.imag, 7.0])


def test_positions_count_joined_vectors_and_columns_do_not() -> None:
    rows = [TokenizedRow((7, 8, 9), None, insert_at=1), TokenizedRow((6, 5), None, insert_at=0)]
    batch = collate(rows, pad_id=0)
    mask = torch.tensor([[True, True], [True, True]])
    joined = torch.tensor([[True, True], [False, False]])
    layout = lay_out(batch, mask, "right", joined_mask=joined)
    assert layout.index.tolist() == [[2, 3, 4, 5], [0, 1, 2, 3]]
    assert layout.positions[0, :3].tolist() == [0, 3, 4] and layout.positions[1].tolist() == [0, 1, 2, 3]
    assert layout.joined is not None and layout.joined.positions[0].tolist() == [1, 2]
    assert layout.num_positions.flatten().tolist() == [5, 4]


def test_a_backbone_whose_check_fails_keeps_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = Backbone(tiny_model("bert"), tiny_tokenizer("bert"), "tiny")
    assert next(check for check in check_backbone(backbone) if check.name == "joined keys").passed
    monkeypatch.setattr("softcue.backbones.joined_keys.apply_key_steps", lambda steps, norm, keys, *_: -keys)
    check = next(check for check in check_backbone(backbone) if check.name == "joined keys")
    assert not check.passed and "method.rule=kv with positions" in check.message
    backbone.limits["joined keys"] = check.detail
    model = make_model(backbone, "prefix-tuning", task=TASK)
    assert model.read(backbone, make_batch(model, backbone))[0].layout.joined is None
