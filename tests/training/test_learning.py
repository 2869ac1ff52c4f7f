"""What no gradient moves, VIP's codebook: once per optimizer step, however the step is cut, resumed or evaluated.

Run as a script by torchrun, this file trains `SHARED_RUNS` with several processes and leaves what each ended with.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import torch
from command import TORCHRUN
from safetensors.torch import load_file, save_file
from tiny import ONE_OF_EACH_KIND, tiny, tiny_model, tiny_tokenizer
from tolerance import REORDERED_FLOAT32, REORDERED_STEPS
from torch import Tensor
from toy import EXAMPLES, make_model

import softcue
from softcue.backbones import Backbone
from softcue.inference import TaskModel, predict
from softcue.prompts import VIP, Quantizer
from softcue.training import Checkpoints, Processes, TaskData, Trainer, TrainingConfig, TrainingResult
from softcue.training.loop import ProgressListener
from softcue.types import Example

Settings = dict[str, Any]
LONGER = [Example((row.texts[0] + " again" * number,), row.target) for number, row in enumerate(EXAMPLES, start=1)]
ROWS = [*EXAMPLES, *LONGER]  # several lengths in every batch
TRAINING: Settings = {
    "steps": 4,
    "batch_size": 4,
    "learning_rate": 0.01,
    "network_learning_rate": 0.01,
    "evaluate_every": 4,
}
# Ways a codebook moves. `decay` is low where few steps must be enough to leave codes behind.
RULES: dict[str, Settings] = {
    "vqvae": {},
    "literal": {"ema_rule": "literal"},
    "relative": {"relative_temperature": True, "temperature": 0.1},
    "dedicated": {"dedicated": True},
    "context": {"codes_from": "context", "fill_after": 2},
    "dedicated context": {"codes_from": "context", "fill_after": 2, "dedicated": True},
    "reset": {"reset_below": 0.5, "decay": 0.5},
    "input part": {"codes_from": "context", "fill_after": 2, "input_gain": 0.2},
}


@dataclass
class Run:
    """What a run leaves, and what it said."""

    model: TaskModel
    result: TrainingResult | None = None
    steps: list[dict[str, Any]] = field(default_factory=list)

    @property
    def losses(self) -> list[float]:
        return [values["loss"] for values in self.steps]


def new_trainer(
    training: Settings,
    method: Settings,
    backbone: Backbone | None = None,
    seed: int = 0,
    case: str = "vip",
    listener: ProgressListener | None = None,
    checkpoints: Checkpoints | None = None,
) -> Trainer:
    frozen = backbone or tiny("bert")
    model = make_model(frozen, case, readout={"dropout": 0.1}, seed=seed, **method)
    config = TrainingConfig.model_validate({**TRAINING, **training})
    return Trainer(frozen, [TaskData(model, ROWS, EXAMPLES)], config, checkpoints, listener, Processes())


def trained(training: Settings, method: Settings, backbone: Backbone | None = None, case: str = "vip") -> Run:
    trainer = new_trainer(training, method, backbone, case=case)
    run = Run(trainer.model)
    trainer.listener = lambda kind, values: run.steps.append(values) if kind == "step" else None
    run.result = trainer.run()
    return run


def quantizer_of(model: TaskModel) -> Quantizer:
    encoder = model.method.encoder
    assert isinstance(encoder, VIP) and encoder.quantizer is not None
    return encoder.quantizer


def everything(model: TaskModel) -> dict[str, Tensor]:
    """All numbers, those that a cue does not keep included."""
    return {name: value.detach().clone() for name, value in [*model.state_dict().items(), *model.named_buffers()]}


def learned(model: TaskModel) -> dict[str, Tensor]:
    """What only `update_state` changes."""
    return {name: value.clone() for name, value in quantizer_of(model).named_buffers()}


def check_equal(first: Mapping[str, Tensor], second: Mapping[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    for name, value in first.items():
        assert torch.equal(value, second[name]), name


def check_same_learning(result: Run, expected: Run) -> None:
    """Codes, their running sums and the loss curve, but for rounding."""
    REORDERED_FLOAT32.assert_close(learned(result.model), learned(expected.model))
    assert result.losses == REORDERED_FLOAT32.approx(expected.losses)


# --- once per step, however it is cut --------------------------------------------------------------------------------


@pytest.mark.parametrize(("micro_batch_size", "pieces"), [(0, [1, 1, 1]), (1, [2, 4, 4]), (3, [1, 2, 2])])
def test_the_codebook_moves_in_learn_alone_and_that_once_after_each_update(
    micro_batch_size: int, pieces: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    trainer = new_trainer({"micro_batch_size": micro_batch_size, "steps": 3, "evaluate_every": 1}, {})
    quantizer = quantizer_of(trainer.model)
    forward, update_state = quantizer.forward, quantizer.update_state
    events: list[str] = []
    last = learned(trainer.model)

    def spied_forward(*given: Any) -> Any:
        check_equal(learned(trainer.model), last)
        events.append("piece" if quantizer.training else "evaluation")
        return forward(*given)

    def spied_learn(*given: Any) -> dict[str, float]:
        nonlocal last
        check_equal(learned(trainer.model), last)
        events.append("update_state")
        result = update_state(*given)
        assert not torch.equal(quantizer.codebook, last["codebook"])
        last = learned(trainer.model)
        return result

    monkeypatch.setattr(quantizer, "forward", spied_forward)
    monkeypatch.setattr(quantizer, "update_state", spied_learn)
    trainer.optimizer.register_step_post_hook(lambda *_: events.append("update"))
    result = []
    for _ in range(3):  # one epoch: batches of 4, 4 and 2 rows, in some order
        events.clear()
        trainer._step()
        result.append(events.count("piece"))
        assert events == ["piece"] * result[-1] + ["update", "update_state"]
        trainer._after_step()
        assert set(events[result[-1] + 2 :]) == {"evaluation"}
        check_equal(learned(trainer.model), last)
    assert sorted(result) == pieces
    assert float(quantizer.steps) == 3


@pytest.mark.parametrize("rule", RULES)
def test_the_codebook_is_the_same_in_pieces_as_in_the_whole_batch(rule: str) -> None:
    start = new_trainer({}, RULES[rule])
    batches = [start._batch_of_step(step) for step in range(4)]
    lengths = [{len(start.rows[row].ids) for row in batch} for batch in batches]
    # In micro-batches, the rows of a step are padded to other lengths than in one batch.
    assert all(len(step_lengths) > 1 for step_lengths in lengths)
    whole = trained({}, RULES[rule])
    moved = quantizer_of(whole.model).codebook - quantizer_of(start.model).codebook
    assert float(moved.norm(dim=1).max()) > 1e-2
    assert sum(values.get("codes_reset", 0) for values in whole.steps) > 0 or rule != "reset"
    for micro_batch_size in (1, 3) if rule == "vqvae" else (3,):
        check_same_learning(trained({"micro_batch_size": micro_batch_size}, RULES[rule]), whole)


@pytest.mark.parametrize("case", ["vip", "vip-c"])
@pytest.mark.parametrize("cut", [{"micro_batch_size": 1}, {"micro_batch_size": 3}, {"micro_batch_tokens": 40}], ids=str)
def test_noise_resilience_compares_all_rows_of_a_step_however_it_is_cut(case: str, cut: Settings) -> None:
    method = {"noise_resilience": 1.0, "dropout": 0.3}
    whole, pieces = trained({}, method, case=case), trained(cut, method, case=case)
    assert pieces.losses == REORDERED_FLOAT32.approx(whole.losses)
    key = "noise_resilience"
    assert [step[key] for step in pieces.steps] == REORDERED_FLOAT32.approx([step[key] for step in whole.steps])
    assert all(step[key] > 0 for step in whole.steps)
    gradients = []
    for training in ({}, cut):
        trainer = new_trainer({**training, "batch_size": 5}, method, case=case)
        trainer._step()
        gradients.append({name: parameter.grad for name, parameter in trainer.model.named_parameters()})
    assert all(gradient is not None and gradient.any() for gradient in gradients[0].values())
    REORDERED_STEPS.assert_close(gradients[1], gradients[0])


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
def test_the_codebook_is_the_same_with_gradient_checkpointing(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    calls, update_state = 0, Quantizer.update_state

    def counted(*given: Any) -> dict[str, float]:
        nonlocal calls
        calls += 1
        return update_state(*given)

    monkeypatch.setattr(Quantizer, "update_state", counted)
    plain = Backbone(tiny_model(family), tiny_tokenizer(family), "plain")
    checkpointed = Backbone(tiny_model(family), tiny_tokenizer(family), "checkpointed")
    checkpointed.checkpoint_layers()
    runs, passes = [], []
    for backbone in (plain, checkpointed):
        inside = next(module for module in backbone.layers[1].modules() if not list(module.children()))
        seen: list[bool] = []
        inside.register_forward_pre_hook(lambda *_, seen=seen: seen.append(torch.is_grad_enabled()))
        runs.append(trained({"micro_batch_size": 3, "steps": 3}, RULES["reset"], backbone))
        passes.append(sum(seen))
    assert passes == [5, 10]  # pieces of three steps, each run a second time
    assert calls == 6
    check_same_learning(runs[1], runs[0])


# --- several processes -----------------------------------------------------------------------------------------------

# name -> training, method, family. Batches of one row leave the second process with none.
SHARED_RUNS: dict[str, tuple[Settings, Settings, str]] = {
    "whole": ({}, {}, "bert"),
    "pieces": ({"micro_batch_size": 1}, {"hard_prompt": "task", "soft_tokens": 2}, "t5"),
    "context": ({}, {"codes_from": "context", "fill_after": 2}, "gpt2"),
    "reset": ({}, {"reset_below": 0.5, "decay": 0.5}, "bert"),
    "noise": ({"micro_batch_size": 1}, {"noise_resilience": 1.0}, "bert"),
    "input part": ({"micro_batch_size": 1}, RULES["input part"], "bert"),
    "one row": ({"batch_size": 1}, {"codes_from": "context", "fill_after": 2}, "bert"),
}


def write_shared_runs(folder: Path) -> None:
    """Train all of them as the process this is, and write what it ended with."""
    rank = Processes().rank
    for name, (training, method, family) in SHARED_RUNS.items():
        run = trained(training, method, tiny(family))
        save_file(everything(run.model), folder / f"{name}-{rank}.safetensors")
        (folder / f"{name}-{rank}.json").write_text(json.dumps(run.steps))


@pytest.fixture(scope="module")
def two_processes(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("processes")
    paths = [str(Path(__file__).parents[1]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
    words = [*TORCHRUN, __file__, str(folder)]
    result = subprocess.run(words, env=environment, capture_output=True, text=True, timeout=280)
    assert result.returncode == 0, result.stderr
    return folder


@pytest.mark.parametrize("name", SHARED_RUNS)
def test_two_processes_learn_what_one_does(name: str, two_processes: Path) -> None:
    training, method, family = SHARED_RUNS[name]
    alone = trained(training, method, tiny(family))
    expected = everything(alone.model)
    states = [load_file(two_processes / f"{name}-{rank}.safetensors") for rank in (0, 1)]
    steps = [json.loads((two_processes / f"{name}-{rank}.json").read_text()) for rank in (0, 1)]
    check_equal(states[1], states[0])
    assert steps[1] == steps[0]
    assert [values["loss"] for values in steps[0]] == pytest.approx(alone.losses, rel=1e-3)
    codes = [part for part in expected if ".quantizer." in part]
    assert len(codes) == 5
    for part in codes:
        REORDERED_FLOAT32.assert_close(states[0][part], expected[part], part)
    for key in ("perplexity", "codes_drawn", "code_distance", "prompt_ratio", "commitment"):
        assert steps[0][-1][key] == pytest.approx(alone.steps[-1][key], rel=1e-3)


# --- evaluation ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("evaluation", ["expectation", "sample", "argmax"])
def test_evaluating_moves_nothing_and_gives_the_same_answers_twice(evaluation: str) -> None:
    model = trained({"steps": 2}, {**RULES["reset"], "evaluation": evaluation}).model
    before = everything(model)
    torch.manual_seed(1)
    first = predict(tiny("bert"), [(model.train(), example) for example in EXAMPLES]).predictions
    torch.manual_seed(2)
    assert predict(tiny("bert"), [(model.train(), example) for example in EXAMPLES]).predictions == first
    check_equal(everything(model), before)


@pytest.mark.parametrize("rule", ["context", "reset"])
def test_training_is_the_same_however_often_it_is_evaluated(rule: str) -> None:
    def ended(evaluate_every: int) -> list[dict[str, Tensor]]:
        trainer = new_trainer({"evaluate_every": evaluate_every}, RULES[rule])
        result: list[dict[str, Tensor]] = []
        trainer.listener = lambda kind, values: result.append(everything(trainer.model)) if kind == "step" else None
        trainer.run()
        return result

    often, seldom = ended(1), ended(4)
    assert len(often) == len(seldom) == 4
    for often_step, seldom_step in zip(often, seldom, strict=True):
        check_equal(often_step, seldom_step)


# --- resuming --------------------------------------------------------------------------------------------------------

RESUMED: dict[str, Settings] = {
    "vqvae": {},
    "literal": {"ema_rule": "literal"},
    "filled before": {"codes_from": "context", "fill_after": 2},
    "filled after": {"codes_from": "context", "fill_after": 5},
    "reset": {"reset_below": 0.5, "decay": 0.5},
    "input part": RULES["input part"],
    "mixed": {"soft_tokens": 2, "hard_prompt": "task", "scale": 0, "noise_resilience": 1.0},
}


class Crash(Exception):
    pass


@pytest.mark.parametrize("kind", RESUMED)
def test_a_resumed_run_ends_with_the_very_same_numbers(kind: str, tmp_path: Path) -> None:
    training: Settings = {"steps": 6, "checkpoint_every": 3, "evaluate_every": 6}
    whole = trained(training, RESUMED[kind])

    def dying(kind: str, values: dict[str, Any]) -> None:
        if kind == "step" and values["step"] == 5:  # two steps behind its checkpoint
            raise Crash

    checkpoints = Checkpoints(tmp_path, "digest")
    with pytest.raises(Crash):
        new_trainer(training, RESUMED[kind], listener=dying, checkpoints=checkpoints).run()
    checkpoint, skipped = checkpoints.newest()
    assert checkpoint is not None and not skipped
    assert checkpoint.state.step == 3

    resumed = new_trainer(training, RESUMED[kind], seed=7, checkpoints=checkpoints)  # all its numbers are replaced
    again = Run(resumed.model)
    resumed.listener = lambda kind, values: again.steps.append(values) if kind == "step" else None
    resumed.resume(checkpoint)
    again.result = resumed.run()
    check_equal(everything(again.model), everything(whole.model))
    assert again.steps == whole.steps[3:]
    assert whole.result is not None
    assert again.result.state == whole.result.state
    assert again.result.evaluations == whole.result.evaluations
    assert not quantizer_of(whole.model).is_empty


def test_a_checkpoint_holds_what_only_training_needs_and_its_best_numbers_do_not(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path, "digest")
    trainer = new_trainer({"steps": 2}, {}, checkpoints=checkpoints)
    trainer.run()
    checkpoint, _ = checkpoints.newest()
    assert checkpoint is not None
    inside = "method.encoder.quantizer."
    held = {name.removeprefix(inside) for name in checkpoint.tensors["model"] if name.startswith(inside)}
    kept = {name.removeprefix(inside) for name in checkpoint.tensors["best"] if name.startswith(inside)}
    assert held == {"codebook", "counts", "recent", "drawn", "steps"}
    assert kept == {"codebook"}
    check_equal({name: checkpoint.tensors["model"][inside + name] for name in held}, learned(trainer.model))


@pytest.mark.parametrize("fill_after", [1, 4])
def test_a_run_that_dies_resumes_to_the_same_cue(
    fill_after: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    overrides = {
        "training.steps": 6,
        "training.batch_size": 4,
        "training.checkpoint_every": 1,
        "training.evaluate_every": 6,
        "method.prompt_length": 4,
        "method.width": 8,
        "method.codes_from": "context",
        "method.scale": 0,
        "method.fill_after": fill_after,
        "method.reset_below": 0.5,
        "method.decay": 0.5,
    }
    rows = [{"text": row.texts[0], "label": row.target} for row in ROWS]

    def run(folder: Path, resume: bool = False) -> None:
        softcue.train(
            folder,
            train=rows,
            validation=rows,
            text="text",
            label="label",
            backbone=tiny("bert"),
            method="vip",
            overrides=overrides,
            resume=resume,
            progress=False,
        )

    run(tmp_path / "whole")
    save, count = Checkpoints.save, 0

    def dying(self: Checkpoints, checkpoint: Any) -> None:
        nonlocal count
        save(self, checkpoint)
        count += 1
        if count == 3:
            raise Crash

    monkeypatch.setattr(Checkpoints, "save", dying)
    with pytest.raises(Crash):
        run(tmp_path / "broken")
    monkeypatch.setattr(Checkpoints, "save", save)
    run(tmp_path / "broken", resume=True)
    for file in ("cue.json", "cue.safetensors", "metrics.jsonl"):
        assert (tmp_path / "broken" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()
    health = [json.loads((tmp_path / name / "metrics.json").read_text())["health"] for name in ("whole", "broken")]
    assert health[0] == health[1]
    assert health[0]["perplexity"] > 1


# --- two learning rates ----------------------------------------------------------------------------------------------


def names_of(model: TaskModel, parameters: Sequence[Tensor]) -> set[str]:
    return {name for name, value in model.named_parameters() if any(value is item for item in parameters)}


@pytest.mark.parametrize(
    ("case", "prompts"),
    [
        ("vip", {"method.encoder.prompt"}),
        ("vip mixed", {"method.encoder.prompt"}),
        ("vip-c", {"method.encoder.prompt"}),
        ("vip-idp", set()),
    ],
)
def test_prompt_vectors_take_the_prompt_rate_and_networks_the_network_rate(case: str, prompts: set[str]) -> None:
    rates: Settings = {"optimizer": "adafactor", "learning_rate": 0.3, "network_learning_rate": 0.001, "batch_size": 10}
    trainer = new_trainer(rates, {}, case=case)
    model = trainer.model
    groups = {group["base_rate"]: names_of(model, group["params"]) for group in trainer.optimizer.param_groups}
    every = {name for name, _ in model.named_parameters()}
    assert groups == {rate: names for rate, names in {0.3: prompts, 0.001: every - prompts}.items() if names}
    given = [parameter for group in trainer.optimizer.param_groups for parameter in group["params"]]
    assert not any(parameter is buffer for parameter in given for buffer in model.buffers())
    assert not any(buffer.requires_grad for buffer in model.buffers())
    before = everything(model)
    trainer._step()
    for name, value in model.named_parameters():
        # Adafactor's first update is the gradient's sign: each number moves by the very rate
        rate = 0.3 if name in prompts else 0.001
        assert float((value.detach() - before[name]).abs().max()) == pytest.approx(rate, rel=1e-2), name
    for name in prompts:  # every vector of them, plain ones too, is taught
        moved = (model.get_parameter(name).detach() - before[name]).abs()
        assert bool((moved > 0.1).any(dim=1).all())


def test_the_codebook_moves_at_rates_of_zero_and_nothing_else_does() -> None:
    trainer = new_trainer({"learning_rate": 0.0, "network_learning_rate": 0.0}, {})
    before = everything(trainer.model)
    trainer._step()
    moved = {name for name, value in everything(trainer.model).items() if not torch.equal(value, before[name])}
    inside = "method.encoder.quantizer."
    assert moved == {inside + name for name in ("codebook", "counts", "recent", "drawn", "steps")}
    assert quantizer_of(trainer.model).codebook.grad is None


if __name__ == "__main__":
    write_shared_runs(Path(sys.argv[1]))
