"""scikit-learn's estimator checks. They give numbers, so here each row of numbers is first turned into a text."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
import pytest
from sklearn.utils.estimator_checks import check_estimator
from sklearn.utils.validation import check_array, check_is_fitted

from softcue.sklearn import CueClassifier, CueRegressor

# Checks that make no sense for texts, with the reason.
NOT_FOR_TEXTS = {
    "check_n_features_in": "n_features_in_ is the number of texts in a row, not of numbers",
    "check_n_features_in_after_fitting": "n_features_in_ is the number of texts in a row, not of numbers",
    "check_methods_subset_invariance": "a row among others is padded, which changes float32 sums by more than 1e-7",
}
SETTINGS: dict[str, Any] = {
    "method": "linear-probe",
    "validation_fraction": 0.0,
    "random_state": 0,
    "overrides": {"method.strengths": [1.0]},
}


class OfNumbers:
    """Turns each row of numbers into a text, and leaves the rest to the estimator."""

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        self.num_numbers_ = np.shape(check_array(X))[1]
        return super().fit(as_texts(X), y, sample_weight)  # type: ignore[misc, no-any-return]

    def _predictions(self, X: Any) -> Any:
        texts = as_texts(X)
        check_is_fitted(self)
        if np.shape(check_array(X))[1] != self.num_numbers_:
            raise ValueError(
                f"X has {np.shape(X)[1]} features, but {type(self).__name__} is expecting {self.num_numbers_} features"
            )
        return super()._predictions(texts)  # type: ignore[misc]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()  # type: ignore[misc]
        tags.input_tags.string, tags.input_tags.one_d_array, tags.input_tags.two_d_array = False, False, True
        return tags


class ClassifierOfNumbers(OfNumbers, CueClassifier):
    pass


class RegressorOfNumbers(OfNumbers, CueRegressor):
    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.regressor_tags.poor_score = True  # of a random backbone
        return tags


def as_texts(X: Any) -> list[str]:
    """A word for the rounded size of each number: "2 0 -1" is "c2 b0 a1"."""
    sizes = np.clip(np.round(np.asarray(check_array(X), dtype=float)), -5, 5).astype(int)
    return [" ".join(f"{'abc'[np.sign(size) + 1]}{abs(size)}" for size in row) for row in sizes]


@pytest.mark.parametrize("estimator", [ClassifierOfNumbers, RegressorOfNumbers])
def test_the_checks_that_make_sense_for_texts_pass(estimator: type[Any], model_folders: dict[str, Path]) -> None:
    results = check_estimator(
        estimator(str(model_folders["bert"]), **SETTINGS),
        expected_failed_checks=NOT_FOR_TEXTS,
        on_skip=None,
        on_fail=None,
    )
    failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}
    assert not failed
    assert {result["check_name"] for result in results if result["status"] == "xfail"} == set(NOT_FOR_TEXTS)
    assert sum(result["status"] == "passed" for result in results) > 50
