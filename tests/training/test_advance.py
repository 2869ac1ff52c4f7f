"""A trainer that stops between steps and goes on later."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny
from toy import EXAMPLES, make_model

from softcue.training import TaskData, Trainer, TrainingConfig

SETTINGS = {"steps": 6, "batch_size": 4, "learning_rate": 0.1, "evaluate_every": 2}


def make_trainer(method: str = "prompt-tuning", **settings: object) -> Trainer:
    backbone = tiny("bert")
    model = make_model(backbone, method, readout={"name": "classifier"})
    config = TrainingConfig.model_validate({**SETTINGS, **settings})
    return Trainer(backbone, [TaskData(model, EXAMPLES * 2, EXAMPLES)], config)


@pytest.mark.parametrize("method", ["prompt-tuning", "vip"])
def test_training_in_pieces_gives_the_same_parameters_and_scores(method: str) -> None:
    whole, pieces = make_trainer(method), make_trainer(method)
    whole.run()
    interruption = make_trainer("compacter")  # another model on the same backbone between the pieces
    for step in (1, 4, 4, 2, 6):
        pieces.advance(step)
        interruption.advance(step)
        torch.rand(3)
    result = pieces.finish()
    assert result.state.history == whole.state.history
    tensors = whole.model.state_dict()
    assert all(torch.equal(tensors[name], value) for name, value in pieces.model.state_dict().items())


def test_a_trainer_advances_to_the_step_and_no_further() -> None:
    trainer = make_trainer()
    assert not trainer.is_done
    trainer.advance(3)
    assert trainer.state.step == 3
    assert [entry["step"] for entry in trainer.state.history] == [2]
    assert not trainer.is_done
    trainer.advance(100)
    assert trainer.state.step == 6
    assert trainer.is_done


def test_a_closed_form_is_done_at_once() -> None:
    trainer = make_trainer("linear-probe")
    assert not trainer.is_done
    trainer.advance(1)
    assert trainer.is_done
    num_solutions = len(trainer.state.history)
    trainer.advance(100)
    assert len(trainer.state.history) == num_solutions == trainer.finish().state.step


def test_a_run_that_stops_early_is_done() -> None:
    trainer = make_trainer(learning_rate=0.0, network_learning_rate=0.0, patience=1)
    trainer.advance(100)
    assert trainer.state.is_over
    assert trainer.is_done
    assert trainer.state.step < 6
