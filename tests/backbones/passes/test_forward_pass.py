from __future__ import annotations

import copy
import gc

import pytest
import torch
from tiny import DECODERS, ENCODER_DECODERS, ENCODERS, ONE_OF_EACH_KIND, tiny
from tolerance import REORDERED_BFLOAT16
from toy import EVERYWHERE, EXAMPLES, TASK, make_model, works_on

from softcue.backbones import Backbone, Decoding, pool
from softcue.backbones.passes.forward_pass import ForwardPass
from softcue.errors import BackboneError
from softcue.inference import predict
from softcue.inputs.collate import collate
from softcue.inputs.formatter import InputFormatter
from softcue.types import Example


@pytest.mark.parametrize("family", ENCODERS)
@torch.no_grad()
def test_the_word_head_gives_the_models_own_logits(family: str) -> None:
    backbone = tiny(family)
    formatter = InputFormatter(TASK, backbone.tokenizer, "encoder", 90, suffix=" <mask>")
    rows = [formatter.source(example) for example in EXAMPLES]
    batch = collate(rows, 0)
    logits = backbone.read(batch, None, backbone.embed(batch.ids)).first_logits()
    inputs = {"input_ids": batch.ids, "attention_mask": batch.mask.long()}
    if batch.segments is not None:
        inputs["token_type_ids"] = batch.segments
    model_logits = backbone.model(**inputs).logits
    expected = model_logits[batch.ids == backbone.tokenizer.mask_token_id]
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", [*ENCODERS, *DECODERS])
@torch.no_grad()
def test_unprompted_states_are_the_models_own(family: str) -> None:
    backbone = tiny(family)
    formatter = InputFormatter(TASK, backbone.tokenizer, backbone.kind, 90)
    for example in EXAMPLES:
        batch = collate([formatter.source(example)], 0)
        states = backbone.read(batch, None, backbone.embed(batch.ids)).text()
        inputs = {"input_ids": batch.ids}
        if batch.segments is not None:
            inputs["token_type_ids"] = batch.segments
        torch.testing.assert_close(states, backbone.base(**inputs).last_hidden_state, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("family", ENCODER_DECODERS)
@torch.no_grad()
def test_target_logits_are_those_of_the_model_with_labels(family: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, "no-prompt")
    batch = collate(model.rows(backbone, EXAMPLES[:1], with_target=True), 0)
    logits = backbone.read(batch, None, backbone.embed(batch.ids)).target_logits(batch.target_ids)
    expected = backbone.model(input_ids=batch.ids, labels=batch.target_ids).logits
    torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


def test_pooling_skips_padding_on_either_side() -> None:
    hidden = torch.tensor([[[5.0], [1.0], [2.0], [6.0]]])
    mask = torch.tensor([[False, True, True, False]])
    assert [pool(hidden, mask, how).item() for how in ("cls", "mean", "last")] == [1.0, 1.5, 2.0]


def test_writing_text_with_an_encoder_is_an_error() -> None:
    backbone = tiny("bert")
    with pytest.raises(BackboneError, match="classifier"):
        make_model(backbone, readout={"name": "generation"})


@pytest.mark.parametrize(
    ("family", "case"),
    [
        (family, case)
        for case in (*EVERYWHERE, "m-idpg-phm kv", "fine-tuning")
        for family in ONE_OF_EACH_KIND
        if works_on(case, family)
    ],
)
def test_on_a_bfloat16_backbone_trainable_parameters_and_outputs_stay_in_float32(family: str, case: str) -> None:
    plain = tiny(family)
    backbone = Backbone(copy.deepcopy(plain.model).bfloat16(), plain.tokenizer, "half")
    sums = []
    for each_backbone in (plain, backbone):
        model = make_model(each_backbone, case)
        batch = collate(model.rows(each_backbone, [Example(("My invoice",), "a")], with_target=True), 0)
        losses, *_ = model(each_backbone, batch)
        if model.method.needs_training:
            losses.sum().backward()
        assert losses.dtype == torch.float32
        for name, parameter in model.named_parameters():
            assert parameter.dtype == torch.float32, name
            assert parameter.grad is None or bool(parameter.grad.isfinite().all()), name
        sums.append(losses.sum().item())
    assert sums[1] == REORDERED_BFLOAT16.approx(sums[0])
    assert backbone.dtype == torch.bfloat16


@pytest.mark.parametrize("family", ["gpt2", "llama", "t5"])
@torch.no_grad()
def test_the_word_head_gets_contiguous_states(family: str) -> None:
    """Of a slice torch would copy the matrix of words for each row."""
    backbone = tiny(family)
    copied = backbone.with_weights()
    for view in (backbone, copied):
        head = view.model.get_output_embeddings()
        seen: list[bool] = []
        handle = head.register_forward_pre_hook(lambda module, args, seen=seen: seen.append(args[0].is_contiguous()))
        formatter = InputFormatter(TASK, view.tokenizer, view.kind, 90)
        batch = collate([formatter.source(example) for example in EXAMPLES], 0)
        forward_pass = view.read(batch, None, view.embed(batch.ids))
        forward_pass.rank([torch.tensor([7, 8, 1]), torch.tensor([9, 1])])
        forward_pass.generate(Decoding(max_new_tokens=2))
        handle.remove()
        assert seen and all(seen)
        assert len(head._forward_pre_hooks) == 1  # also of a copied model


@pytest.mark.parametrize("is_training", [True, False])
@pytest.mark.parametrize(
    ("family", "case"), [(family, case) for case in EVERYWHERE for family in ONE_OF_EACH_KIND if works_on(case, family)]
)
def test_a_pass_and_its_states_are_freed_without_a_search_for_cycles(family: str, case: str, is_training: bool) -> None:
    backbone = tiny(family)
    model = make_model(backbone, case)
    rows = model.rows(backbone, EXAMPLES, with_target=True)
    requests = [(model, example) for example in EXAMPLES]
    gc.collect()
    gc.disable()
    try:
        output = model(backbone, collate(rows, 0), with_features=True) if is_training else predict(backbone, requests)
        left = sum(isinstance(found, ForwardPass) for found in gc.get_objects())
    finally:
        gc.enable()
    assert left == 0
    del output  # the graph of a training pass lived until here
