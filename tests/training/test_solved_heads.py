"""Heads that start as the linear probe, heads that are solved again, and the evaluation before the first step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny import tiny
from tolerance import REORDERED_FLOAT32
from torch.nn import functional
from toy import EXAMPLES, TASK, make_model
from toy_training import trained

from softcue.errors import ConfigurationError, TrainingError
from softcue.inference import PreparedRequests, make_task_model, predict
from softcue.methods import METHODS
from softcue.readouts import ReadoutConfig
from softcue.readouts.closed_form import solve_linear
from softcue.tasks import Task
from softcue.training import TaskData, Trainer, TrainingConfig
from softcue.training.loop import plan_steps
from softcue.training.solved_heads import MAX_ROWS, HeadSolver
from softcue.types import Example

RESTING = {"learning_rate": 0.0, "network_learning_rate": 0.0}  # training changes nothing


def head_weight(model: Any) -> torch.Tensor:
    return model.readout.state_dict()["head.1.weight"]  # type: ignore[no-any-return]


def test_a_solved_start_answers_as_the_probe_does() -> None:
    result, model, _ = trained({"head_start": "solved"}, method="no-prompt", **RESTING)
    probe, literal, _ = trained(method="linear-probe")
    assert result.state.history[0]["step"] == 0
    assert result.evaluations[0].main == probe.evaluations[0].main
    directions = [functional.normalize(head_weight(head).flatten(), dim=0) for head in (model, literal)]
    assert float(directions[0] @ directions[1]) == pytest.approx(1.0, abs=1e-4)  # but for a temperature


@pytest.mark.parametrize("family", ["bert", "gpt2", "t5"])
@pytest.mark.parametrize(
    ("method", "settings"),
    [
        ("p-tuning-v2", {"rule": "parallel"}),
        ("m-idpg-phm", {"rule": "parallel", "bottleneck": 8, "phm_n": 4}),
        ("adapter", {"bottleneck": 4}),
        ("compacter", {"up_std": 0, "bottleneck": 4}),
    ],
)
def test_a_run_that_starts_as_the_frozen_model_never_ends_below_the_probe(
    method: str, settings: dict[str, Any], family: str
) -> None:
    probe, _, _ = trained(family=family, method="linear-probe")
    backbone, config = tiny(family), METHODS[method].Config.model_validate({"name": method, **settings})
    readout = ReadoutConfig(name="classifier", head_start="solved")
    model = make_task_model(TASK, (METHODS[method], config), readout, backbone, torch.Generator().manual_seed(0))
    ruinous = TrainingConfig(steps=2, learning_rate=1000.0, network_learning_rate=1000.0)
    result = Trainer(backbone, [TaskData(model, EXAMPLES * 2, EXAMPLES)], ruinous).run()
    assert result.state.history[0]["score"] == probe.evaluations[0].main
    assert result.evaluations[0].main >= probe.evaluations[0].main


def test_start_is_evaluated_and_kept_if_training_makes_it_worse() -> None:
    result, _, _ = trained(evaluate_start=True, **RESTING)
    assert [entry["step"] for entry in result.state.history] == [0, 2, 4]
    assert result.state.best_step == 4  # equal scores: the later one
    ruined, _, _ = trained(evaluate_start=True, learning_rate=1000.0, network_learning_rate=1000.0)
    scores = {entry["step"]: entry["score"] for entry in ruined.state.history}
    assert scores[ruined.state.best_step] == max(scores.values())
    assert ruined.evaluations[0].main == max(scores.values())


def test_head_is_solved_again_and_kept_only_if_it_scores_higher() -> None:
    plain, before, _ = trained(**RESTING)
    refitted, after, _ = trained({"refit": True}, **RESTING)
    gain = refitted.refit_gain
    assert gain > 0  # a random head was not the best
    assert refitted.evaluations[0].main == plain.evaluations[0].main + gain
    assert not torch.equal(head_weight(before), head_weight(after))


def test_worse_refit_leaves_the_head_as_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    from softcue.readouts.heads import PooledHead

    def ruin(self: PooledHead, features: torch.Tensor, labels: Any, strength: float, weights: Any) -> None:
        assert self.linear is not None and features.shape == (len(EXAMPLES) * 2, self.feature_width)
        self.linear.weight.data.zero_()
        self.linear.bias.data.copy_(-torch.arange(self.linear.out_features, dtype=torch.float32))

    _, plain, _ = trained(steps=40)
    monkeypatch.setattr(PooledHead, "solve", ruin)
    result, model, _ = trained({"refit": True}, steps=40)
    assert result.refit_gain == 0.0
    for name, value in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], value)


def test_centred_heads_read_vectors_with_mean_zero_and_size_one() -> None:
    backbone = tiny("bert")
    model = make_model(backbone, "no-prompt", readout={"centre": True, "dropout": 0.0})
    rows = model.rows(backbone, EXAMPLES, with_target=True)
    HeadSolver(model, rows, PreparedRequests.of(backbone, [(model, EXAMPLES[0])]), 4).start(backbone)
    features = model.features(backbone, rows, 4)
    tensors = model.readout.state_dict()
    centred = (features - tensors["feature_mean"]) / tensors["feature_scale"]
    assert float(centred.mean(dim=0).abs().max()) < 1e-4
    assert float(centred.square().mean()) == pytest.approx(1.0, rel=1e-4)
    outputs = model.readout.eval().outputs(features)  # type: ignore[operator]
    literal = centred @ tensors["head.1.weight"].T + tensors["head.1.bias"]
    REORDERED_FLOAT32.assert_close(outputs.detach(), literal, "outputs")


def test_centring_does_not_change_what_the_probe_answers() -> None:
    for_centred, _, _ = trained({"centre": True}, method="linear-probe")
    for_plain, _, _ = trained(method="linear-probe")
    assert for_centred.evaluations[0].main == for_plain.evaluations[0].main


def test_solved_heads_are_as_sure_as_validation_rows_allow() -> None:
    backbone = tiny("bert")
    model = make_model(backbone, "no-prompt", readout={"dropout": 0.0})
    features = torch.randn(200, model.readout.feature_width, generator=torch.Generator().manual_seed(0))
    labels = [int(row[0] > 0) for row in features]
    noisy = [1 - label if number % 5 == 0 else label for number, label in enumerate(labels)]  # every fifth is wrong
    model.readout.solve(features, labels, strength=100.0)
    model.readout.eval()
    before = model.readout.outputs(features).detach()  # type: ignore[operator]
    model.readout.calibrate(features, noisy)
    after = model.readout.outputs(features).detach()  # type: ignore[operator]
    assert torch.equal(before.argmax(dim=1), after.argmax(dim=1))
    temperatures = [before[0, 0] / after[0, 0] * factor for factor in (0.5, 1.0, 2.0)]
    losses = [float(functional.cross_entropy(before / t, torch.tensor(noisy))) for t in temperatures]
    assert losses[1] == min(losses)
    assert float(after.softmax(dim=1).max(dim=1).values.mean()) == pytest.approx(0.8, abs=0.1)


def test_large_sets_are_solved_on_evenly_spaced_rows() -> None:
    backbone = tiny("bert")
    model = make_model(backbone, "no-prompt")
    row = model.rows(backbone, EXAMPLES[:1], with_target=True)[0]
    requests = PreparedRequests.of(backbone, [(model, EXAMPLES[0])])
    assert len(HeadSolver(model, [row] * (MAX_ROWS * 2 + 2), requests, 4).rows) <= MAX_ROWS
    assert len(HeadSolver(model, [row] * MAX_ROWS, requests, 4).rows) == MAX_ROWS


def test_the_solution_is_sklearns_for_standardised_features() -> None:
    from sklearn.linear_model import LogisticRegression
    from sklearn.preprocessing import StandardScaler

    features = torch.randn(40, 6) * torch.tensor([1.0, 5.0, 0.1, 2.0, 1.0, 3.0]) + 7.0
    labels = [number % 3 for number in range(40)]
    layer = torch.nn.Linear(6, 3)
    solve_linear(layer, features, labels, strength=0.5)
    scaler = StandardScaler().fit(features.numpy())
    literal = LogisticRegression(C=0.5, max_iter=2000).fit(scaler.transform(features.numpy()), labels)
    wanted = torch.tensor(literal.predict_proba(scaler.transform(features.numpy()))).float()
    torch.testing.assert_close(layer(features).softmax(dim=1).detach(), wanted, rtol=1e-3, atol=1e-4)


def test_one_class_alone_is_always_predicted() -> None:
    layer = torch.nn.Linear(2, 3)
    solve_linear(layer, torch.randn(4, 2), [1, 1, 1, 1], strength=1.0)
    assert layer(torch.randn(5, 2)).argmax(dim=1).tolist() == [1] * 5


def test_only_a_single_linear_layer_can_be_solved_for() -> None:
    with pytest.raises(ConfigurationError, match="linear"):
        trained({"head": "mlp", "head_start": "solved"})
    with pytest.raises(ConfigurationError, match="classifier or regression"):
        trained({"name": "auto", "head_start": "solved"}, family="t5")


def test_a_score_head_starts_as_ridge_regression() -> None:
    backbone = tiny("bert")
    task = Task(name="scores", kind="regression")
    examples = [Example(example.texts, float(number)) for number, example in enumerate(EXAMPLES)]
    model = make_model(backbone, "no-prompt", task=task)
    model.readout.fit_statistics(examples)
    rows = model.rows(backbone, examples, with_target=True)
    features = torch.stack([row.representation for row in rows if row.representation is not None])
    model.readout.solve(features, [row.label for row in rows if row.label is not None], strength=1000.0)
    scores = [answer.value for answer in predict(backbone, [(model, example) for example in examples]).predictions]
    assert scores == pytest.approx([0.0, 1.0, 2.0, 3.0, 4.0], abs=0.05)


def test_few_rows_get_the_least_number_of_steps_and_five_evaluations() -> None:
    assert plan_steps(TrainingConfig(epochs=10, min_steps=100), steps_per_epoch=7) == (100, 20)
    assert plan_steps(TrainingConfig(epochs=10, min_steps=100), steps_per_epoch=20) == (200, 20)
    assert plan_steps(TrainingConfig(epochs=10, min_steps=100, evaluate_every=3), steps_per_epoch=7) == (100, 3)
    assert plan_steps(TrainingConfig(steps=5, min_steps=100), steps_per_epoch=7) == (5, 7)


def test_a_class_without_training_rows_does_not_make_the_head_unsure() -> None:
    backbone = tiny("bert")
    absent = TASK.label_names[-1]
    rows = [example for example in EXAMPLES if example.target != absent]
    missing = [Example(example.texts, absent) for example in EXAMPLES[:2]]
    sure = []
    for validation in (rows, [*rows, *missing]):
        model = make_model(backbone, "no-prompt", readout={"head_start": "solved", "dropout": 0.0})
        tokenized = model.rows(backbone, rows, with_target=True)
        requests = PreparedRequests.of(backbone, [(model, example) for example in validation])
        HeadSolver(model, tokenized, requests, 4).start(backbone)
        assert model.readout.linear is not None
        sure.append(model.readout.linear.weight.detach().clone())
    assert torch.equal(*sure)


def test_heads_on_a_mask_are_not_solved_again() -> None:
    result, _, _ = trained({"pooling": "mask", "refit": True})
    assert result.refit_gain == 0.0


def test_vectors_that_are_not_finite_are_a_training_error(monkeypatch: pytest.MonkeyPatch) -> None:
    from softcue.inference import TaskModel

    def broken(self: TaskModel, backbone: Any, rows: Any, batch_size: int) -> torch.Tensor:
        return torch.full((len(rows), self.readout.feature_width), float("nan"))

    monkeypatch.setattr(TaskModel, "features", broken)
    with pytest.raises(TrainingError, match="not finite"):
        trained({"refit": True})
