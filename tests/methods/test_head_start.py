"""Heads that start as the linear probe of the training rows."""

from __future__ import annotations

import pytest
import torch
from tiny import tiny
from toy import EXAMPLES, make_model

from softcue.errors import ConfigurationError
from softcue.inference import predict
from softcue.readouts.closed_form import STRENGTHS, best_strength, solve_linear
from softcue.tasks import Task
from softcue.types import Example


def test_a_started_head_answers_as_the_probe_does_before_any_training() -> None:
    backbone = tiny("bert")
    model = make_model(backbone, "no-prompt")
    model.start_head(backbone, EXAMPLES)
    answers = predict(backbone, [(model, example) for example in EXAMPLES]).predictions
    assert [answer.label for answer in answers] == [example.target for example in EXAMPLES]  # separable rows


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


def test_the_strength_is_one_of_the_known_and_noise_prefers_a_weak_probe() -> None:
    torch.manual_seed(3)
    noise, labels = torch.randn(60, 200), [number % 2 for number in range(60)]
    assert best_strength(noise, labels, 2) in STRENGTHS
    clear = torch.tensor(labels).float().unsqueeze(1) * 4 + torch.randn(60, 1) * 0.01
    assert best_strength(clear, labels, 2) == min(STRENGTHS)  # of equal scores the most cautious


def test_only_a_single_linear_layer_can_be_solved_for() -> None:
    backbone = tiny("bert")
    with pytest.raises(ConfigurationError, match="linear"):
        make_model(backbone, "no-prompt", readout={"head": "mlp"}).start_head(backbone, EXAMPLES)
    with pytest.raises(ConfigurationError, match="linear"):
        make_model(tiny("t5"), "prompt-tuning").start_head(tiny("t5"), EXAMPLES)


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
