"""The linear probe against scikit-learn on features computed by the plain models of transformers."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from sklearn.linear_model import LogisticRegression, Ridge
from tiny import ONE_OF_EACH_KIND, tiny
from tolerance import REORDERED_PROBABILITIES
from toy import EXAMPLES, PAIRS, TASK, make_model

import softcue
from softcue.backbones import Backbone
from softcue.errors import ConfigurationError
from softcue.inference import predict
from softcue.tasks import Task
from softcue.training import TaskData, Trainer, TrainingConfig
from softcue.types import Example

WORDS = ["invoice", "parcel", "account", "order", "refund", "sign", "late", "wrong", "twice", "phone", "never", "badge"]
TEAMS = {"billing": "invoice refund", "delivery": "parcel late", "account": "sign account"}
STRENGTHS = [0.01, 0.1, 1.0, 10.0, 100.0]


def rows_of(num_rows: int, teams: list[str], seed: int, noise: float = 0.3) -> list[dict[str, Any]]:
    """Messages whose words say the team, except for a share of them."""
    draw = random.Random(seed)
    rows = []
    for number in range(num_rows):
        team = teams[number % len(teams)]
        team_words = TEAMS[team].split() if draw.random() > noise else []
        words = [*team_words, *draw.choices(WORDS, k=5)]
        draw.shuffle(words)
        rows.append({"text": " ".join(words), "label": team, "stars": len(" ".join(words)) / 10 + draw.random()})
    return rows


TRAIN, VALIDATION, TEST = (rows_of(36, [*TEAMS], seed) for seed in (11, 20, 3))


def some(rows: list[dict[str, Any]], teams: list[str]) -> list[dict[str, Any]]:
    return [row for row in rows if row["label"] in teams]


def features(backbone: Backbone, rows: list[dict[str, Any]]) -> Any:
    """Pooled last-layer states of each text alone: [CLS], the mean of T5's encoder, or the last of a decoder."""
    feature_rows = []
    for row in rows:
        encoded = backbone.tokenizer(row["text"], return_tensors="pt")
        inputs = {name: encoded[name] for name in ("input_ids", "token_type_ids") if name in encoded}
        reader = backbone.model.get_encoder() if backbone.kind == "encoder-decoder" else backbone.model.base_model
        with torch.no_grad():
            states = reader(**inputs).last_hidden_state[0]
        pooled = {"encoder": states[0], "encoder-decoder": states.mean(dim=0), "decoder": states[-1]}[backbone.kind]
        feature_rows.append(pooled.numpy())
    return numpy.stack(feature_rows).astype(numpy.float64)


def standardised(backbone: Backbone, train: list[dict[str, Any]], rows: list[dict[str, Any]]) -> tuple[Any, Any]:
    train_features = features(backbone, train)
    mean, scale = train_features.mean(axis=0), train_features.std(axis=0)
    return (train_features - mean) / scale, (features(backbone, rows) - mean) / scale


def probe(folder: Path, backbone: Backbone, train: list[dict[str, Any]], **settings: Any) -> softcue.Cue:
    overrides = settings.pop("overrides", {})
    given = {"validation": VALIDATION, "text": "text", "label": "label", **settings}
    return softcue.train(
        folder, backbone=backbone, method="linear-probe", train=train, progress=False, overrides=overrides, **given
    )


@pytest.mark.parametrize("teams", [["billing", "delivery"], [*TEAMS]])
@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
def test_probabilities_are_those_of_logistic_regression(family: str, teams: list[str], tmp_path: Path) -> None:
    backbone = tiny(family)
    train, test = some(TRAIN, teams), some(TEST, teams)
    cue = probe(
        tmp_path / "cue", backbone, train, validation=some(VALIDATION, teams), overrides={"method.strengths": [0.1]}
    )
    train_features, test_features = standardised(backbone, train, test)
    wanted = LogisticRegression(C=0.1, max_iter=2000).fit(train_features, [row["label"] for row in train])
    for answer, chances in zip(
        cue.predict([row["text"] for row in test]), wanted.predict_proba(test_features).tolist(), strict=True
    ):
        named = dict(zip(wanted.classes_, chances, strict=True))
        assert answer.scores == pytest.approx({name: named[name] for name in sorted(teams)}, abs=1e-4)
        assert answer.label == max(named, key=named.__getitem__)
    assert (cue.counts.gradient, cue.counts.stored, cue.counts.head) == (0, 0, 33 * len(teams))


@pytest.mark.parametrize("family", ["bert", "gpt2"])
def test_a_score_is_that_of_ridge_regression(family: str, tmp_path: Path) -> None:
    backbone = tiny(family)
    readout = {} if family == "bert" else {"readout.name": "regression"}
    cue = probe(
        tmp_path / "cue",
        backbone,
        TRAIN,
        label="stars",
        overrides={"task.kind": "regression", "method.strengths": [0.05], **readout},
    )
    train_features, test_features = standardised(backbone, TRAIN, TEST)
    wanted = Ridge(alpha=1 / 0.05).fit(train_features, [row["stars"] for row in TRAIN]).predict(test_features)
    scores = [answer.value for answer in cue.predict([row["text"] for row in TEST])]
    assert scores == pytest.approx(wanted.tolist(), abs=1e-3)
    assert numpy.std(wanted) > 0.05  # not merely the mean


def test_a_class_without_training_rows_never_answers() -> None:
    backbone = tiny("bert")
    task = TASK  # a, b, c
    names = {"billing": "a", "delivery": "c"}
    train = [Example((row["text"],), names[row["label"]]) for row in some(TRAIN, [*names])]
    model = make_model(backbone, "linear-probe", task=task)
    Trainer(backbone, [TaskData(model, train, train)], TrainingConfig()).run()
    answers = predict(backbone, [(model, Example((row["text"],))) for row in TRAIN + TEST]).predictions
    assert {answer.label for answer in answers} == {"a", "c"}
    assert all((answer.scores or {})["b"] < 1e-6 for answer in answers)
    train_features, test_features = standardised(backbone, some(TRAIN, [*names]), TRAIN + TEST)
    labels = [names[row["label"]] for row in some(TRAIN, [*names])]
    for strength in STRENGTHS:
        chances = LogisticRegression(C=strength, max_iter=2000).fit(train_features, labels).predict_proba(test_features)
        if (answers[0].scores or {})["a"] == pytest.approx(float(chances[0, 0]), abs=1e-3):
            break
    else:
        pytest.fail("the answers are those of no strength")


def test_validation_rows_choose_the_strength(tmp_path: Path) -> None:
    backbone = tiny("bert")
    train_features, validation_features = standardised(backbone, TRAIN, VALIDATION)
    _, tested = standardised(backbone, TRAIN, TEST)
    labels, truth = ([row["label"] for row in rows] for rows in (TRAIN, VALIDATION))
    solved = {c: LogisticRegression(C=c, max_iter=2000).fit(train_features, labels) for c in STRENGTHS}
    scores = {
        c: 100 * float((estimator.predict(validation_features) == truth).mean()) for c, estimator in solved.items()
    }
    best = max(scores, key=scores.__getitem__)
    assert list(scores.values()).count(scores[best]) == 1, "the rows must tell the strengths apart"
    assert best not in (STRENGTHS[0], STRENGTHS[-1])
    cue = probe(tmp_path / "cue", backbone, TRAIN)
    assert cue.scores["validation"]["accuracy"] == pytest.approx(scores[best])
    tried = cue.cue_file.method["strengths"]
    assert sorted(tried) == STRENGTHS
    assert tried[cue.cue_file.training["best_step"] - 1] == best
    predicted_scores = [list((answer.scores or {}).values()) for answer in cue.predict([row["text"] for row in TEST])]
    numpy.testing.assert_allclose(predicted_scores, solved[best].predict_proba(tested), atol=1e-3)
    other = next(c for c in STRENGTHS if c != best)
    assert not numpy.allclose(predicted_scores, solved[other].predict_proba(tested), atol=1e-2)


def test_a_saved_probe_answers_as_the_one_that_was_solved(tmp_path: Path) -> None:
    backbone = tiny("bert")
    cue = probe(tmp_path / "cue", backbone, TRAIN)
    texts = [row["text"] for row in TEST]
    assert softcue.load(tmp_path / "cue", backbone).predict(texts) == cue.predict(texts)
    assert cue.predict(texts[:1])[0].scores == REORDERED_PROBABILITIES.approx(cue.predict(texts)[0].scores)


def test_nothing_is_drawn_and_no_step_is_taken(tmp_path: Path) -> None:
    backbone = tiny("bert")
    first = probe(tmp_path / "one", backbone, TRAIN, seed=0)
    again = probe(tmp_path / "two", backbone, TRAIN, seed=5, overrides={"training.epochs": 1})
    for name, value in first.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name])
    assert first.cue_file.training["steps_done"] == len(STRENGTHS)


def test_pairs_are_probed_as_their_readout_reads_them(tmp_path: Path) -> None:
    backbone = tiny("bert")
    rows = [{"first": row["text"], "second": row["label"], "same": str(n % 2)} for n, row in enumerate(TRAIN)]
    cue = probe(tmp_path / "cue", backbone, rows, validation=rows, text=["first", "second"], label="same")
    assert {answer.label for answer in cue.predict([("invoice", "late")] * 2)} <= {"0", "1"}
    assert len(PAIRS.text) == 2


@pytest.mark.parametrize(
    ("family", "readout"),
    [("bert", {"head": "mlp"}), ("t5", {"name": "generation"}), ("bert", {"name": "label-words"})],
)
def test_only_one_linear_layer_can_be_solved_for(family: str, readout: dict[str, str], tmp_path: Path) -> None:
    settings = {f"readout.{key}": value for key, value in readout.items()}
    words = {f"task.label_words.{team}": word for team, word in zip(TEAMS, ("the", "is", "my"), strict=True)}
    with pytest.raises(ConfigurationError):
        probe(tmp_path / "cue", tiny(family), TRAIN, overrides={**settings, **words})


def test_a_task_of_scores_has_one_output() -> None:
    task = Task(name="stars", kind="regression")
    model = make_model(tiny("bert"), "linear-probe", task=task)
    assert model.counts().head == 33


def test_the_steps_of_a_probe_are_its_solutions() -> None:
    backbone = tiny("bert")
    trainer = Trainer(
        backbone, [TaskData(make_model(backbone, "linear-probe"), EXAMPLES, EXAMPLES)], TrainingConfig(epochs=60)
    )
    assert trainer.num_steps == len(STRENGTHS)
    assert trainer.run().state.step == len(STRENGTHS)
