"""The head for sets of labels: its loss, its threshold, its closed form, and the readouts that do not fit."""

from __future__ import annotations

import math

import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.multiclass import OneVsRestClassifier
from sklearn.preprocessing import StandardScaler
from tiny import ONE_OF_EACH_KIND, tiny
from tolerance import REORDERED_FLOAT32, REORDERED_PROBABILITIES
from toy import EXAMPLES, SET_EXAMPLES, SETS, TASK, make_model

from softcue.errors import ConfigurationError
from softcue.inference import predict
from softcue.inputs.collate import collate
from softcue.readouts import ReadoutConfig, make_readout
from softcue.readouts.closed_form import probe_scores, solve_linear
from softcue.tasks import Task
from softcue.training import TaskData, Trainer, TrainingConfig
from softcue.types import Example


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
@torch.no_grad()
def test_the_loss_is_the_binary_cross_entropy_of_each_label(family: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, task=SETS)
    assert model.readout.config.name == "classifier"  # also on backbones that write text
    batch = collate(model.rows(backbone, SET_EXAMPLES, with_target=True), backbone.tokenizer.pad_token_id)
    assert batch.labels is not None and batch.labels.tolist() == [
        [0.0, 1.0, 0.0],
        [1.0, 0.0, 1.0],
        [0.0, 0.0, 0.0],
        [1.0, 1.0, 1.0],
        [0.0, 1.0, 0.0],
    ]
    losses = model.readout.losses(model.read(backbone, batch)[0], batch)
    predictions = predict(backbone, [(model, example) for example in SET_EXAMPLES]).predictions
    literal = 0.0
    for example, prediction in zip(SET_EXAMPLES, predictions, strict=True):
        for label, probability in (prediction.scores or {}).items():
            literal -= math.log(probability if label in example.labels else 1.0 - probability) / 3
    assert float(losses.sum()) == REORDERED_FLOAT32.approx(literal)
    assert len(losses) == len(SET_EXAMPLES)


@torch.no_grad()
def test_the_mean_loss_is_that_of_transformers() -> None:
    backbone = tiny("bert")
    model = make_model(backbone, task=SETS)
    batch = collate(model.rows(backbone, SET_EXAMPLES, with_target=True), 0)
    forward_pass, _ = model.read(backbone, batch)
    losses = model.readout.losses(forward_pass, batch)
    features = forward_pass.features(model.readout.summary)  # type: ignore[arg-type]
    logits = model.readout.head(features)  # type: ignore[operator]
    expected = torch.nn.BCEWithLogitsLoss()(logits, batch.labels)  # as problem_type="multi_label_classification"
    assert float(losses.mean()) == REORDERED_FLOAT32.approx(float(expected))


@torch.no_grad()
def test_the_threshold_decides_which_labels_are_predicted() -> None:
    backbone = tiny("bert")
    sizes = []
    for threshold in (0.05, 0.5, 0.95):
        model = make_model(backbone, task=SETS, readout={"threshold": threshold})
        predictions = predict(backbone, [(model, example) for example in SET_EXAMPLES]).predictions
        sizes.append(sum(len(prediction.labels or ()) for prediction in predictions))
    assert sizes[0] > sizes[1] > sizes[2]
    with pytest.raises(ValueError, match="less than 1"):
        ReadoutConfig(threshold=1.0)


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
@pytest.mark.parametrize("name", ["generation", "label-words", "regression"])
def test_readouts_for_a_single_target_are_refused(family: str, name: str) -> None:
    with pytest.raises(
        ConfigurationError, match=r"expected one that fits multi-label: classifier; .*needs a probability"
    ):
        make_readout(ReadoutConfig.model_validate({"name": name}), SETS, tiny(family))


def test_other_readouts_stay_as_they_were() -> None:
    for family, name in (("bert", "classifier"), ("t5", "generation"), ("gpt2", "generation")):
        assert make_readout(ReadoutConfig(), TASK, tiny(family)).config.name == name
    scores = Task(name="scores", kind="regression")
    assert make_readout(ReadoutConfig(), scores, tiny("t5")).config.name == "regression"
    with pytest.raises(ConfigurationError, match=r"change readout.name or task.kind$"):
        make_readout(ReadoutConfig(name="classifier"), scores, tiny("bert"))


def test_the_closed_form_is_sklearns_one_versus_rest() -> None:
    features = torch.randn(60, 6) * torch.tensor([1.0, 5.0, 0.1, 2.0, 1.0, 3.0]) + 7.0
    noisy = features + torch.randn(60, 6)
    targets = torch.stack([noisy[:, 0] > 7, noisy[:, 1] > 9, noisy[:, 3] > 6], dim=1).float()
    layer = torch.nn.Linear(6, 3)
    solve_linear(layer, features, [tuple(row) for row in targets.tolist()], strength=0.5)
    scaler = StandardScaler().fit(features.numpy())
    literal = OneVsRestClassifier(LogisticRegression(C=0.5, max_iter=2000))
    literal.fit(scaler.transform(features.numpy()), targets.int().numpy())
    wanted = torch.tensor(literal.predict_proba(scaler.transform(features.numpy()))).float()
    torch.testing.assert_close(layer(features).sigmoid().detach(), wanted, rtol=1e-3, atol=1e-4)


def test_a_label_of_no_row_or_of_all_rows_gets_its_smoothed_frequency() -> None:
    features, layer = torch.randn(9, 4), torch.nn.Linear(4, 2)
    solve_linear(layer, features, [(0.0, 1.0)] * 9, strength=1.0)
    torch.testing.assert_close(layer(features).sigmoid(), torch.tensor([[0.05, 0.95]]).expand(9, 2))


def test_a_single_label_can_be_solved_for() -> None:
    features, layer = torch.tensor([[0.0], [0.1], [1.0], [1.1]]), torch.nn.Linear(1, 1)
    solve_linear(layer, features, [(0.0,), (0.0,), (1.0,), (1.0,)], strength=10.0)
    assert (layer(features) > 0).flatten().tolist() == [False, False, True, True]


def test_probes_of_sets_are_compared_by_the_micro_f1_of_left_out_rows() -> None:
    features = torch.randn(60, 4, generator=torch.Generator().manual_seed(0))
    clear = [(float(row[0] > 0), float(row[1] > 0)) for row in features]
    assert float(probe_scores(features, clear, 2).mean()) > 0.8
    noise = torch.randn(60, 200, generator=torch.Generator().manual_seed(1))
    assert float(probe_scores(noise, clear, 2).mean()) < 0.8
    assert len(probe_scores(features[:4], clear[:4], 2)) == 0  # too few rows


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
def test_a_head_starts_as_the_probe_of_the_training_rows(family: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, "no-prompt", task=SETS, readout={"name": "classifier"})
    rows = model.rows(backbone, SET_EXAMPLES, with_target=True)
    features = torch.stack([row.representation for row in rows if row.representation is not None])
    model.readout.solve(features, [row.label for row in rows if row.label is not None], strength=1000.0)
    predictions = predict(backbone, [(model, example) for example in SET_EXAMPLES]).predictions
    assert [prediction.labels for prediction in predictions] == [example.labels for example in SET_EXAMPLES]
    model.readout.calibrate(features, [row.label for row in rows if row.label is not None])
    calibrated = predict(backbone, [(model, example) for example in SET_EXAMPLES]).predictions
    assert [prediction.labels for prediction in calibrated] == [example.labels for example in SET_EXAMPLES]


@torch.no_grad()
def test_a_mixed_batch_gives_each_cue_its_kind_of_prediction() -> None:
    for family in ONE_OF_EACH_KIND:
        backbone = tiny(family)
        models = [
            make_model(backbone, task=SETS, seed=1),
            make_model(backbone, "m-idpg-phm", readout={"name": "classifier"}, seed=2),
            make_model(backbone, "prefix-tuning", task=SETS, seed=3),
        ]
        requests = [(model, Example(example.texts)) for example in EXAMPLES for model in models]
        together = predict(backbone, requests, batch_size=64).predictions
        for request, prediction in zip(requests, together, strict=True):
            [alone] = predict(backbone, [request]).predictions
            assert prediction.scores == REORDERED_PROBABILITIES.approx(alone.scores)
            assert (prediction.labels is None) == (request[0] is models[1]) == (prediction.label is not None)


@pytest.mark.parametrize("contrastive", [0.0, 0.5])
def test_sets_and_classes_train_together(contrastive: float) -> None:
    """The contrastive term, which needs classes, leaves the sets of labels out."""
    backbone = tiny("bert")
    sets = make_model(backbone, task=SETS)
    classes = make_model(backbone, readout={"name": "classifier"}, seed=1)
    classes.method = sets.method
    config = TrainingConfig(steps=4, batch_size=6, contrastive=contrastive, evaluation_batch_size=8)
    data = [TaskData(sets, SET_EXAMPLES, SET_EXAMPLES), TaskData(classes, EXAMPLES, EXAMPLES)]
    before = [model.readout.linear.weight.clone() for model in (sets, classes) if model.readout.linear]
    result = Trainer(backbone, data, config).run()
    assert set(result.evaluations[0].scores) >= {"micro_f1", "subset_accuracy"}
    for model, weight in zip((sets, classes), before, strict=True):
        assert model.readout.linear is not None and not torch.equal(model.readout.linear.weight, weight)
