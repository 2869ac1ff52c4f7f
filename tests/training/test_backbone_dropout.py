"""Dropout of the frozen backbone in training: where it acts, and that its noise belongs to rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import DECODERS, ENCODER_DECODERS, ENCODERS, ONE_OF_EACH_KIND, tiny, tiny_model, tiny_tokenizer
from tolerance import REORDERED_FLOAT32, REORDERED_STEPS
from torch import Tensor
from toy import EXAMPLES, make_model

import softcue
from softcue.backbones import Backbone
from softcue.backbones.compilation import compile_layers
from softcue.backbones.tracing import set_structure, structure_of
from softcue.errors import ConfigurationError
from softcue.inference import predict
from softcue.randomness import TokenNoise
from softcue.training import TaskData, Trainer, TrainingConfig
from softcue.types import Example

ROWS = [Example((row.texts[0] + " again" * number,), row.target) for number, row in enumerate(EXAMPLES)]


def new_trainer(
    backbone: Backbone, case: str = "prompt-tuning", share: float = 0.3, micro_batch_size: int = 0, **method: Any
) -> Trainer:
    model = make_model(backbone, case, readout={"dropout": 0.0}, **method)
    config = TrainingConfig(steps=2, batch_size=5, micro_batch_size=micro_batch_size)
    return Trainer(backbone, [TaskData(model, ROWS, ROWS)], config, backbone_dropout=share)


def step_of(trainer: Trainer) -> tuple[float, dict[str, Tensor]]:
    """The loss and the gradients of the first step."""
    losses: list[float] = []
    trainer.listener = lambda kind, values: losses.append(values["loss"]) if kind == "step" else None
    trainer._step()
    return losses[0], {name: p.grad for name, p in trainer.model.named_parameters() if p.grad is not None}


def check_same_step(first: Trainer, second: Trainer) -> None:
    (loss, gradients), (expected_loss, expected) = step_of(first), step_of(second)
    assert loss == REORDERED_FLOAT32.approx(expected_loss)
    assert expected
    REORDERED_STEPS.assert_close(gradients, expected)


@pytest.mark.parametrize("family", [*ENCODERS, *ENCODER_DECODERS, *DECODERS])
def test_a_row_has_the_same_dropout_in_whatever_micro_batch(family: str) -> None:
    backbone = tiny(family)
    for micro_batch_size in (1, 2):
        check_same_step(new_trainer(backbone, micro_batch_size=micro_batch_size), new_trainer(backbone))
    assert step_of(new_trainer(backbone))[0] != REORDERED_FLOAT32.approx(step_of(new_trainer(backbone, share=0))[0])


@pytest.mark.parametrize("family", [*ENCODERS, *ENCODER_DECODERS, *DECODERS])
def test_dropout_acts_on_embeddings_and_on_each_output_of_a_residual_sum(
    family: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone, places = tiny(family), list[int]()
    drop = TokenNoise.drop

    def recorded(noise: TokenNoise, values: Tensor, place: int) -> Tensor:
        places.append(place)
        return drop(noise, values, place)

    monkeypatch.setattr(TokenNoise, "drop", recorded)
    step_of(new_trainer(backbone))
    is_encoder_decoder = backbone.kind == "encoder-decoder"
    num_decoder_layers = len(backbone.sublayers) // 2 - backbone.num_layers
    expected = [*range(len(backbone.sublayers)), -1]
    if is_encoder_decoder:
        expected += [-2, *range(len(backbone.sublayers), len(backbone.sublayers) + num_decoder_layers)]
    assert sorted(places) == sorted(expected)  # each once: a prompt that all rows share is not run apart


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
@pytest.mark.parametrize("case", ["m-idpg-phm", "p-tuning-v2", "adapter", "vip", "fine-tuning"])
def test_dropout_is_the_same_in_pieces_for_every_kind_of_method(family: str, case: str) -> None:
    backbone = tiny(family)
    check_same_step(new_trainer(backbone, case, micro_batch_size=2), new_trainer(backbone, case))


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
def test_late_prompts_have_dropout_from_their_layer_on(family: str) -> None:
    backbone = tiny(family)
    late = {"insert_layer": 2}
    check_same_step(new_trainer(backbone, micro_batch_size=2, **late), new_trainer(backbone, **late))
    plain = step_of(new_trainer(backbone, share=0, **late))[0]
    assert step_of(new_trainer(backbone, **late))[0] != REORDERED_FLOAT32.approx(plain)
    assert step_of(new_trainer(backbone, share=0, **late))[0] == plain  # cached states have none


@pytest.mark.parametrize("family", [*ONE_OF_EACH_KIND, "opt"])
def test_a_layer_that_runs_again_has_the_dropout_of_its_first_run(family: str) -> None:
    checkpointed = Backbone(tiny_model(family), tiny_tokenizer(family), "checkpointed")
    checkpointed.checkpoint_layers()
    check_same_step(new_trainer(checkpointed), new_trainer(tiny(family)))


def test_compiled_layers_leave_dropout_as_it_is() -> None:
    model = tiny_model("bert")
    compile_layers(model, backend="eager")
    check_same_step(new_trainer(Backbone(model, tiny_tokenizer("bert"), "compiled")), new_trainer(tiny("bert")))


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
def test_predictions_have_no_dropout(family: str) -> None:
    backbone = tiny(family)
    trainer = new_trainer(backbone)
    before = predict(backbone, [(trainer.models[0], row) for row in ROWS]).predictions
    trainer.model.train()
    assert predict(backbone, [(trainer.models[0], row) for row in ROWS]).predictions == before
    assert trainer._score_validation() == new_trainer(backbone, share=0)._score_validation()


def test_noise_is_even_and_differs_between_steps_rows_places_and_tokens() -> None:
    def kept(seed: int = 1, first_row: int = 0, place: int = 0, first_token: int = 0) -> Tensor:
        rows, tokens = torch.arange(8) + first_row, (torch.arange(32) + first_token).expand(8, -1)
        return (TokenNoise(0.2, seed, rows, tokens).drop(torch.ones(8, 32, 64), place) > 0).float() - 0.8

    base = kept()
    assert abs(float(base.mean())) < 0.01
    assert float(base.mean((0, 1)).std()) < 0.04 and float(base.mean(2).std()) < 0.08
    for other in (kept(seed=2), kept(first_row=8), kept(place=1), kept(first_token=32)):
        assert abs(float((base * other).mean())) < 0.01
    shifted = kept(first_row=1, first_token=1)  # the same rows and tokens elsewhere in the tensor
    assert torch.equal(shifted[:-1, :-1], base[1:, 1:])
    dropped = TokenNoise(0.2, 1, torch.arange(8), torch.arange(32).expand(8, -1)).drop(torch.ones(8, 32, 64), 0)
    assert sorted(set(dropped.flatten().tolist())) == [0.0, 1.25]


def test_values_are_not_dropped_twice() -> None:
    with pytest.raises(ConfigurationError, match=r"backbone.dropout.*method.dropout=false"):
        new_trainer(tiny("bert"), "fine-tuning", share=0.1, dropout=True)


def test_unknown_sublayers_are_an_error_rather_than_dropout_of_the_embeddings_alone() -> None:
    model = tiny_model("bert")
    set_structure(model, structure_of(model).model_copy(update={"why_no_sublayers": "none was found"}))
    with pytest.raises(ConfigurationError, match=r"backbone.dropout=0.*none was found"):
        new_trainer(Backbone(model, tiny_tokenizer("bert"), "unknown"), share=0.1)


def test_a_run_takes_its_dropout_from_the_settings(tmp_path: Path) -> None:
    rows = [{"text": row.texts[0], "label": row.target} for row in ROWS]
    losses = {}
    for share in (0.0, 0.4):
        cue = softcue.train(
            tmp_path / str(share),
            train=rows,
            validation=rows,
            text="text",
            label="label",
            backbone=tiny("bert"),
            progress=False,
            overrides={"training.steps": 2, "method.prompt_length": 3, "backbone.dropout": share},
        )
        assert cue.cue_file.training.get("backbone_dropout", 0.0) == share
        losses[share] = (tmp_path / str(share) / "metrics.jsonl").read_text()
    assert losses[0.0] != losses[0.4]
