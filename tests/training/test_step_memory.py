"""The memory of a step is foreseen without taking it, and a step that runs out of memory goes on in smaller pieces."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import tiny
from tolerance import REORDERED_FLOAT32, REORDERED_STEPS
from toy import EXAMPLES, make_model

from softcue.errors import TrainingError
from softcue.inference import TaskModel
from softcue.training import TaskData, Trainer, TrainingConfig
from softcue.training import loop as training_loop
from softcue.training.step_memory import MemoryMeter, measure_step, rows_that_fit


def test_views_and_freed_tensors_need_no_memory() -> None:
    weight = torch.empty(1024, device="meta")
    with MemoryMeter([weight]) as meter:
        view = weight.view(32, 32).t()
        first = view + 1
        del first
        second = view + 1
    assert (meter.live, meter.peak) == (4096, 4096)
    assert second.is_meta


@pytest.mark.parametrize("case", ["prompt-tuning", "vip", "m-idpg-phm kv", "adapter", "fine-tuning"])
def test_memory_grows_with_rows_and_nothing_changes(case: str) -> None:
    backbone = tiny("bert")
    model = make_model(backbone, case, readout={"name": "classifier"})
    before = {name: value.clone() for name, value in model.state_dict().items()}
    small, large = (measure_step(backbone, model, rows, length=20, target_length=0) for rows in (2, 8))
    assert small.activations < large.activations
    if case != "fine-tuning":  # there gradients of all weights share the peak
        assert 3 * small.activations < large.activations < 6 * small.activations
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    assert large.gradients == 4 * trained and 8 * trained <= large.optimizer <= 8 * trained + 400
    assert large.peak == sum(vars(large).values())
    assert str(backbone.device) == "cpu"
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_weights_are_counted_in_their_format() -> None:
    backbone = tiny("gpt2")
    memory = measure_step(backbone, make_model(backbone), 2, length=12, target_length=3)
    parameters = sum(parameter.numel() for parameter in backbone.model.parameters())
    assert 4 * parameters <= memory.weights < 4.5 * parameters  # and buffers


def trained(monkeypatch: pytest.MonkeyPatch, most_rows: int, **settings: Any) -> tuple[list[float], TaskModel, Trainer]:
    """Train two steps with a model that has memory for so many rows."""
    backbone = tiny("bert")
    model = make_model(backbone, "vip", readout={"name": "classifier", "dropout": 0.3})
    forward = TaskModel.forward

    def limited(self: TaskModel, backbone: Any, batch: Any, *args: Any, **kwargs: Any) -> Any:
        output = forward(self, backbone, batch, *args, **kwargs)
        if batch.size > most_rows:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20 MiB\nmore")
        return output

    losses: list[float] = []
    with monkeypatch.context() as patch:
        patch.setattr(TaskModel, "forward", limited)
        config = TrainingConfig.model_validate({"steps": 2, "batch_size": 5, **settings})
        trainer = Trainer(backbone, [TaskData(model, EXAMPLES, EXAMPLES)], config)
        trainer.listener = lambda kind, values: losses.append(values["loss"]) if kind == "step" else None
        trainer.advance(2)
    return losses, model, trainer


def test_a_step_that_runs_out_of_memory_goes_on_in_halves_with_the_same_numbers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    whole, model, plenty = trained(monkeypatch, most_rows=99)
    halved, other, scarce = trained(monkeypatch, most_rows=1)
    assert halved == REORDERED_FLOAT32.approx(whole)
    for (name, value), wanted in zip(other.named_parameters(), model.parameters(), strict=True):
        if "attend.bias" not in name:  # the keys' bias has no gradient, and AdamW scales its rounding up
            REORDERED_STEPS.assert_close(value, wanted, name)
    assert plenty.rows_at_once == 0 and scarce.rows_at_once == 1
    assert not [warning for warning in plenty.finish().warnings if "memory" in warning]
    [warning] = [warning for warning in scarce.finish().warnings if "memory" in warning]
    assert warning.startswith("memory ran out, so steps took 1 rows at once: set training.micro_batch_size=1")


def test_one_row_that_does_not_fit_is_one_line_that_says_what_to_change(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TrainingError) as caught:
        trained(monkeypatch, most_rows=0)
    message = str(caught.value)
    assert "\n" not in message
    assert "training.micro_batch_size: got '1 at once" in message
    assert "set backbone.gradient_checkpointing=true or backbone.dtype=bfloat16 or backbone.max_length below" in message


def test_other_errors_are_not_taken_for_a_lack_of_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(self: TaskModel, *args: Any, **kwargs: Any) -> Any:
        raise RuntimeError("shape mismatch")

    backbone = tiny("bert")
    trainer = Trainer(backbone, [TaskData(make_model(backbone), EXAMPLES, EXAMPLES)], TrainingConfig())
    monkeypatch.setattr(TaskModel, "forward", fail)
    with pytest.raises(RuntimeError, match="shape mismatch"):
        trainer._step()


def test_pieces_are_as_large_as_the_device_allows(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = tiny("bert")
    model = make_model(backbone)
    config = TrainingConfig(batch_size=16)
    one, two = (measure_step(backbone, model, rows, 20, 0, config) for rows in (1, 2))
    dynamic = one.activations + one.gradients + one.optimizer
    for num_rows in (1, 5, 100):
        free = (dynamic + (num_rows - 0.5) * (two.activations - one.activations)) / 0.92
        assert rows_that_fit(backbone, model, 20, 0, config, free) == min(num_rows, 16)
    assert rows_that_fit(backbone, model, 20, 0, config, 1.0) == 1
    data = [TaskData(model, EXAMPLES, EXAMPLES)]
    assert Trainer(backbone, data, config).rows_at_once == 0  # a processor has memory for what is set
    monkeypatch.setattr(training_loop, "free_memory", lambda device: 1.0)
    monkeypatch.setattr(training_loop, "SIZED_DEVICES", ("cpu",))
    assert Trainer(backbone, data, config).rows_at_once == 1
    assert Trainer(backbone, data, config.model_copy(update={"micro_batch_size": 3})).rows_at_once == 0
    late = [TaskData(make_model(backbone, "prompt-tuning late"), EXAMPLES, EXAMPLES)]
    assert Trainer(backbone, late, config).rows_at_once == 0
