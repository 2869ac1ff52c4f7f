"""Estimators of scikit-learn: what goes in, what comes out, and the tools of scikit-learn that use them."""

from __future__ import annotations

import copy
import pickle
import re
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.sparse import csr_matrix
from sklearn import config_context
from sklearn.base import clone
from sklearn.calibration import CalibratedClassifierCV
from sklearn.exceptions import NotFittedError
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from tiny import tiny

import softcue
from softcue.backbones import BackboneConfig, forget_backbones, share_backbone
from softcue.backbones.loading import shared
from softcue.errors import EstimatorError
from softcue.sklearn import CueClassifier, CueRegressor

ROOT = Path(__file__).parents[1]
SUBJECTS = ("the invoice is wrong", "I cannot sign in to my account", "my order never came")
TEXTS = [f"{subject}, number {number}" for number in range(8) for subject in SUBJECTS]
LABELS = ["billing", "account", "orders"] * 8
FRAME = pd.DataFrame({"message": TEXTS, "reply": TEXTS[::-1], "label": LABELS})


def probe(**settings: Any) -> CueClassifier:
    """A classifier that is trained at once."""
    return CueClassifier(**{"backbone": tiny("bert"), "method": "linear-probe", "random_state": 0, **settings})


def lower(texts: list[str]) -> list[str]:
    return [text.lower() for text in texts]


# --- what goes in and comes out ---


@pytest.mark.parametrize("kind", ["list", "array", "series", "frame", "column"])
def test_the_kind_of_table_does_not_matter(kind: str) -> None:
    tables = {
        "list": TEXTS,
        "array": np.array(TEXTS),
        "series": FRAME["message"],
        "frame": FRAME[["message"]],
        "column": np.array(TEXTS)[:, None],
    }
    expected = probe().fit(TEXTS, LABELS).predict_proba(TEXTS)
    np.testing.assert_array_equal(probe().fit(tables[kind], LABELS).predict_proba(tables[kind]), expected)


def test_pairs_are_read_from_lists_arrays_and_frames() -> None:
    pairs = list(zip(TEXTS, TEXTS[::-1], strict=True))
    expected = probe().fit(pairs, LABELS).predict_proba(pairs)
    for table in (np.array(pairs), FRAME[["message", "reply"]]):
        classifier = probe().fit(table, LABELS)
        np.testing.assert_array_equal(classifier.predict_proba(table), expected)
    assert classifier.n_features_in_ == 2
    assert classifier.cue_.task.text == ("message", "reply")
    with pytest.raises(EstimatorError, match="expecting 2 features"):
        classifier.predict(TEXTS)
    with pytest.raises(ValueError, match="feature names should match"):
        classifier.predict(FRAME[["reply", "message"]])


@pytest.mark.parametrize(
    "labels",
    [
        np.array(LABELS),
        np.array([2, 10, -1] * 8),
        np.array([3.0, 2.0, 1.0] * 8),
        np.array([True, False, True] * 8),
        pd.Series(LABELS),
        [7, 8, 9] * 8,
    ],
)
def test_labels_keep_their_type(labels: Any) -> None:
    classifier = probe().fit(TEXTS, labels)
    predicted = classifier.predict(TEXTS)
    assert predicted.dtype == classifier.classes_.dtype == np.unique(np.asarray(labels)).dtype
    assert classifier.classes_.tolist() == np.unique(np.asarray(labels)).tolist()
    assert set(predicted) <= set(labels)


def test_probabilities_and_decisions_follow_the_classes() -> None:
    classifier = probe().fit(TEXTS, LABELS)
    probabilities = classifier.predict_proba(TEXTS)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    np.testing.assert_array_equal(classifier.classes_[probabilities.argmax(axis=1)], classifier.predict(TEXTS))
    np.testing.assert_allclose(classifier.decision_function(TEXTS), np.log(probabilities))
    assert classifier.score(TEXTS, LABELS) == np.mean(classifier.predict(TEXTS) == np.array(LABELS))
    two = probe().fit(TEXTS, [label == "orders" for label in LABELS])
    odds = two.predict_proba(TEXTS)
    np.testing.assert_allclose(two.decision_function(TEXTS), np.log(odds[:, 1] / odds[:, 0]))


def test_several_labels_per_row_give_an_indicator_matrix() -> None:
    matrix = np.array([[1, 0, 1], [0, 1, 1], [0, 0, 1]] * 8)
    classifier = probe().fit(TEXTS, matrix)
    assert classifier.cue_.task.kind == "multi-label"
    predicted, probabilities = classifier.predict(TEXTS), classifier.predict_proba(TEXTS)
    np.testing.assert_array_equal(predicted, probabilities >= 0.5)
    odds = classifier.decision_function(TEXTS)
    np.testing.assert_allclose(odds, np.log(probabilities) - np.log(1 - probabilities), rtol=1e-5)
    assert classifier.score(TEXTS, matrix) == np.mean((predicted == matrix).all(axis=1))
    of_sparse = probe().fit(TEXTS, csr_matrix(matrix))
    np.testing.assert_array_equal(of_sparse.predict_proba(TEXTS), probabilities)
    named = pd.DataFrame(matrix, columns=["a", "b", "c"])
    of_frame = probe().fit(TEXTS, named)
    assert of_frame.classes_.tolist() == ["a", "b", "c"]
    np.testing.assert_allclose(of_frame.predict_proba(TEXTS), probabilities, rtol=1e-5)
    sets = [[name for name, has in zip("abc", row, strict=True) if has] for row in matrix]
    of_sets = probe().fit(TEXTS, sets)
    np.testing.assert_array_equal(of_sets.predict_proba(TEXTS), of_frame.predict_proba(TEXTS))
    assert of_sets.score(TEXTS, sets) == of_frame.score(TEXTS, named)


def test_a_column_without_rows_has_probability_zero() -> None:
    matrix = np.array([[1, 0, 0], [0, 1, 0], [1, 1, 0]] * 8)
    assert not probe().fit(TEXTS, matrix).predict_proba(TEXTS)[:, 2].any()


def test_a_regressor_predicts_numbers() -> None:
    numbers = np.array([1.0, 2.0, 4.0] * 8)
    regressor = CueRegressor(tiny("bert"), method="linear-probe", random_state=0).fit(TEXTS, numbers)
    assert regressor.predict(TEXTS).shape == (24,)
    assert regressor.score(TEXTS, numbers) > 0.5
    assert regressor.cue_.task.kind == "regression"


@pytest.mark.parametrize(
    ("rows", "labels", "message"),
    [
        ("one text", ["a"], "texts or pairs of texts"),
        ([], [], "at least one row"),
        ([["a", "b", "c"]], ["a"], "a text, or a pair of texts"),
        (["a", ("b", "c")], ["a", "b"], "as in row 0"),
        ([1.0, 2.0], ["a", "b"], "row 0 of X"),
        (["a", None], ["a", "b"], "row 1 of X"),
        (["a", " "], ["a", "b"], "a text that is not empty"),
        (["a", "b"], ["a"], "inconsistent numbers"),
        (["a", "b"], None, "the target y is None"),
        (["a", "b"], ["a", "a"], "at least two classes"),
        (["a", "b"], ["a", "a "], "different and not empty"),
    ],
)
def test_wrong_rows_are_value_errors_that_say_what_is_wrong(rows: Any, labels: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        probe().fit(rows, labels)
    assert isinstance(caught.value, EstimatorError)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"validation_fraction": 1.0}, "validation_fraction"),
        ({"overrides": {"task.train_rows": 5}}, r"task\.train_rows.*only label_descriptions"),
        ({"overrides": {"training.patiense": 3}}, "patience"),
        ({"method": "prompt-tunning"}, "prompt-tuning"),
        ({"epochs": 2, "overrides": {"training.epochs": 3}}, "leave one of the two out"),
    ],
)
def test_wrong_settings_are_value_errors_when_fit_is_called(settings: dict[str, Any], message: str) -> None:
    classifier = probe(**settings)
    with pytest.raises(ValueError, match=message):
        classifier.fit(TEXTS, LABELS)


def test_an_estimator_that_is_not_fitted_says_so(tmp_path: Path) -> None:
    with pytest.raises(NotFittedError):
        probe().predict(TEXTS)
    with pytest.raises(NotFittedError):
        probe().save(tmp_path / "cue")


# --- settings, held-out rows, weights ---


def test_settings_reach_the_run() -> None:
    classifier = CueClassifier(
        tiny("bert"),
        method="prompt-tuning",
        epochs=2,
        learning_rate=0.3,
        prompt_length=3,
        max_length=40,
        batch_size=8,
        random_state=5,
        overrides={"training.clip_norm": 1.0, "task.metric": "macro_f1", "task.label_words": {"orders": "parcels"}},
    ).fit(TEXTS, LABELS)
    cue_file = classifier.cue_.cue_file
    assert cue_file.method["name"] == "prompt-tuning" and cue_file.method["prompt_length"] == 3
    assert cue_file.backbone.max_length == 40
    expected = {"epochs": 2, "batch_size": 8, "seed": 5, "clip_norm": 1.0, "learning_rate": 0.3}
    assert {name: cue_file.training[name] for name in expected} == expected
    assert classifier.cue_.task.main_metric == "macro_f1"
    assert classifier.cue_.task.labels["orders"].words == "parcels"
    assert classifier.metrics_["history"]


def test_the_same_seed_gives_the_same_estimator() -> None:
    def probabilities(seed: int) -> Any:
        settings = {"method": "prompt-tuning", "epochs": 1, "prompt_length": 3}
        return probe(**settings, random_state=seed).fit(TEXTS, LABELS).predict_proba(TEXTS)

    np.testing.assert_array_equal(probabilities(3), probabilities(3))
    assert not np.array_equal(probabilities(3), probabilities(4))


def test_a_share_of_each_class_chooses_the_step_and_few_rows_do_both() -> None:
    rows = probe(validation_fraction=0.25).fit(TEXTS, LABELS).cue_.cue_file.rows
    assert rows == {"train": 18, "validation": 6, "test": 0}
    rows = probe(validation_fraction=0.0).fit(TEXTS, LABELS).cue_.cue_file.rows
    assert rows == {"train": 24, "validation": 24, "test": 0}
    rows = probe().fit(TEXTS[:3], LABELS[:3]).cue_.cue_file.rows  # a row per class: none can be spared
    assert rows == {"train": 3, "validation": 3, "test": 0}


@pytest.mark.parametrize("settings", [{}, {"method": "prompt-tuning", "epochs": 2, "prompt_length": 3}])
def test_a_weight_of_zero_leaves_the_row_out(settings: dict[str, Any]) -> None:
    weights = np.array([0.0, 1.0, 1.0, 1.0] * 6)
    classifier = probe(**settings).fit(TEXTS, LABELS, sample_weight=weights)
    kept = [number for number, weight in enumerate(weights) if weight]
    expected = probe(**settings).fit([TEXTS[number] for number in kept], [LABELS[number] for number in kept])
    np.testing.assert_array_equal(classifier.predict_proba(TEXTS), expected.predict_proba(TEXTS))


def test_integer_weights_are_repeated_rows() -> None:
    settings = {"validation_fraction": 0.0, "overrides": {"method.strengths": [1.0]}}
    counts = [1 + number % 3 for number in range(len(TEXTS))]
    classifier = probe(**settings).fit(TEXTS, LABELS, sample_weight=counts)
    expected = probe(**settings).fit(np.repeat(TEXTS, counts), np.repeat(LABELS, counts))
    np.testing.assert_allclose(classifier.predict_proba(TEXTS), expected.predict_proba(TEXTS), atol=1e-3)
    assert not np.allclose(
        probe(**settings).fit(TEXTS, LABELS).predict_proba(TEXTS), expected.predict_proba(TEXTS), atol=1e-3
    )


def test_class_weights_are_weights_of_rows() -> None:
    few = [number for number, label in enumerate(LABELS) if label != "orders" or number < 6]
    texts, labels = [TEXTS[number] for number in few], [LABELS[number] for number in few]
    settings = {"validation_fraction": 0.0, "overrides": {"method.strengths": [0.01]}}
    plain = probe(**settings).fit(texts, labels).predict_proba(texts)
    balanced = probe(**settings, class_weight="balanced").fit(texts, labels).predict_proba(texts)
    by_hand = {label: len(labels) / 3 / labels.count(label) for label in set(labels)}
    np.testing.assert_array_equal(
        probe(**settings, class_weight=by_hand).fit(texts, labels).predict_proba(texts), balanced
    )
    weights = [by_hand[label] for label in labels]
    np.testing.assert_array_equal(
        probe(**settings).fit(texts, labels, sample_weight=weights).predict_proba(texts), balanced
    )
    assert balanced[:, 2].mean() > plain[:, 2].mean() + 0.1  # "orders" is rare
    with pytest.raises(EstimatorError, match="None with several labels per row"):
        probe(class_weight="balanced").fit(TEXTS, np.eye(3)[[0, 1, 2] * 8])


@pytest.mark.parametrize("weights", [[1.0], [-1.0] * 24, [np.nan] * 24, [0.0] * 24, np.ones((24, 2))])
def test_weights_that_cannot_be_used_are_errors(weights: Any) -> None:
    with pytest.raises(EstimatorError, match="sample_weight"):
        probe().fit(TEXTS, LABELS, sample_weight=weights)


# --- scikit-learn's tools ---


def test_ten_folds_load_the_backbone_once(model_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    forget_backbones()
    loaded: list[str] = []
    load = shared.load_backbone
    monkeypatch.setattr(shared, "load_backbone", lambda config: loaded.append(config.name) or load(config))
    texts, labels = TEXTS + [f"{text} again" for text in TEXTS], LABELS * 2
    scores = cross_val_score(probe(backbone=str(model_folders["bert"])), texts, labels, cv=10)
    assert len(scores) == 10 and loaded == [str(model_folders["bert"])]
    probe(backbone=model_folders["bert"], max_length=30).fit(texts, labels)
    assert len(loaded) == 1  # the length belongs to the run
    forget_backbones()
    probe(backbone=str(model_folders["bert"])).fit(texts, labels)
    assert len(loaded) == 2


def test_a_deep_copy_shares_backbone_and_cue() -> None:
    classifier = probe().fit(TEXTS, LABELS)
    copied = copy.deepcopy(classifier)
    assert copied.backbone is classifier.backbone and copied.cue_ is classifier.cue_
    copied.fit(TEXTS[:6], LABELS[:6])
    assert copied.cue_ is not classifier.cue_


def test_a_clone_keeps_the_loaded_backbone_and_no_cue() -> None:
    classifier = probe(overrides={"method.strengths": [1.0]}).fit(TEXTS, LABELS)
    copied = clone(classifier)
    assert copied.backbone is classifier.backbone
    assert copied.get_params() == classifier.get_params()
    assert copied.overrides is not classifier.overrides
    assert not hasattr(copied, "cue_")
    assert copied.set_params(epochs=7).epochs == 7
    with config_context(enable_metadata_routing=True):
        requested = clone(probe().set_fit_request(sample_weight=True))
        assert requested.get_metadata_routing().fit.requests["sample_weight"] is True


def test_a_grid_search_over_a_pipeline_tries_the_settings() -> None:
    pipeline = make_pipeline(FunctionTransformer(lower), probe(validation_fraction=0.0))
    grid = {"cueclassifier__overrides": [{"method.strengths": [1e-4]}, {"method.strengths": [10.0]}]}
    search = GridSearchCV(pipeline, grid, cv=2, scoring="neg_log_loss").fit(TEXTS, LABELS)
    scores = search.cv_results_["mean_test_score"]
    assert scores[0] != scores[1]
    best = search.best_estimator_[-1]
    assert best.overrides == grid["cueclassifier__overrides"][int(scores.argmax())]
    loud = [text.upper() for text in TEXTS]
    np.testing.assert_array_equal(search.predict(loud), best.predict(lower(TEXTS)))


def test_probabilities_can_be_calibrated() -> None:
    calibrated = CalibratedClassifierCV(probe(), cv=2).fit(TEXTS, LABELS)
    probabilities = calibrated.predict_proba(TEXTS)
    assert probabilities.shape == (24, 3)
    assert calibrated.score(TEXTS, LABELS) > 0.5


def test_auto_tries_several_methods() -> None:
    classifier = probe(method="auto", overrides={"selection.methods": ["linear-probe", "no-prompt"]})
    classifier.fit(TEXTS, LABELS)
    assert len(classifier.metrics_["selection"]["tried"]) == 2


def test_a_backbone_that_writes_text_has_probabilities_too() -> None:
    classifier = CueClassifier(tiny("t5"), epochs=1, prompt_length=3, random_state=0).fit(TEXTS, LABELS)
    probabilities = classifier.predict_proba(TEXTS[:3])
    np.testing.assert_array_equal(classifier.classes_[probabilities.argmax(axis=1)], classifier.predict(TEXTS[:3]))
    free = classifier.set_params(overrides={"readout.decoding": "greedy"}).fit(TEXTS, LABELS)
    with pytest.raises(EstimatorError, match="a readout with probabilities"):
        free.predict_proba(TEXTS[:3])


# --- saving ---


def test_an_estimator_is_saved_as_an_ordinary_cue_and_made_from_one(tmp_path: Path) -> None:
    labels = [number % 3 for number in range(len(TEXTS))]
    classifier = probe().fit(TEXTS, labels)
    classifier.save(tmp_path / "cue")
    cue = softcue.load(tmp_path / "cue", tiny("bert"))
    assert [prediction.label for prediction in cue.predict(TEXTS)] == classifier.predict(TEXTS).tolist()
    again = CueClassifier.from_cue(tmp_path / "cue", tiny("bert"))
    np.testing.assert_array_equal(again.predict_proba(TEXTS), classifier.predict_proba(TEXTS))
    assert again.classes_.tolist() == [0, 1, 2]
    assert again.method == "linear-probe"
    assert again.metrics_ == classifier.metrics_
    with pytest.raises(EstimatorError, match="a task of kind regression"):
        CueRegressor.from_cue(tmp_path / "cue", tiny("bert"))


def test_a_cue_finds_its_backbone_by_name(model_folders: dict[str, Path], tmp_path: Path) -> None:
    numbers = [1.0, 2.0, 4.0] * 8
    regressor = CueRegressor(str(model_folders["bert"]), method="linear-probe", random_state=0).fit(TEXTS, numbers)
    regressor.save(tmp_path / "cue")
    again = CueRegressor.from_cue(tmp_path / "cue")
    np.testing.assert_array_equal(again.predict(TEXTS), regressor.predict(TEXTS))
    backbone = again.cue_.backbone  # a pickle and another fit load it with the same settings
    assert pickle.loads(pickle.dumps(again)).cue_.backbone is backbone
    assert again.fit(TEXTS, numbers).cue_.backbone is backbone


@pytest.mark.parametrize("is_loaded", [False, True])
def test_a_pickle_has_the_cue_but_not_the_weights(is_loaded: bool, model_folders: dict[str, Path]) -> None:
    name = str(model_folders["bert"])
    backbone = share_backbone(BackboneConfig(name=name)) if is_loaded else name
    classifier = probe(backbone=backbone).fit(TEXTS, LABELS)
    stored = pickle.dumps(classifier)
    assert len(stored) < 30_000  # the model has 60,000 weights of four bytes
    again = pickle.loads(stored)
    np.testing.assert_array_equal(again.predict_proba(TEXTS), classifier.predict_proba(TEXTS))
    assert type(again.backbone) is type(backbone)
    assert not hasattr(pickle.loads(pickle.dumps(clone(classifier))), "cue_")


def test_a_backbone_made_in_memory_is_not_pickled() -> None:
    with pytest.raises(EstimatorError, match=r"made in memory.*save\(folder\)"):
        pickle.dumps(probe())


# --- the guide ---


def test_the_guide_s_code_runs(model_folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    guide = (ROOT / "docs" / "guide.md").read_text("utf-8")
    section = guide.partition("### scikit-learn\n")[2].partition("\n## ")[0].partition("\n### ")[0]
    match = re.search(r"```python\n(.*?)```", section, re.DOTALL)
    assert match is not None
    code = match[1].replace('"minilm"', repr(str(model_folders["bert"]))).replace("cv=10", "cv=2")
    names: dict[str, Any] = {"texts": TEXTS, "labels": LABELS, "votes": [1.0] * 24, "new_texts": TEXTS[:2]}
    exec(code, names)
    assert (tmp_path / "cues" / "team" / "cue.json").is_file()
    assert len(names["scores"]) == 2
