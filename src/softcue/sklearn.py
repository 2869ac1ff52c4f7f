"""scikit-learn estimators: a cue as a classifier or a regressor of texts, for its pipelines, searches and calibration.

Estimators turn their input into rows and weights; a `Run` does the rest. Only this module knows scikit-learn's rules.
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from numbers import Integral
from pathlib import Path
from threading import RLock
from typing import Any, ClassVar, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.metrics import accuracy_score
from sklearn.utils import assert_all_finite, check_random_state, column_or_1d
from sklearn.utils.class_weight import compute_sample_weight
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted

from softcue.api import request_run
from softcue.auto_run import make_training_run
from softcue.backbones import Backbone, BackboneConfig, share_backbone
from softcue.configuration import Settings, merged, resolve
from softcue.cue import Cue, backbone_config, load, read_cue_file
from softcue.errors import ConfigurationError, DataError, EstimatorError
from softcue.evaluation import check_metric
from softcue.tasks.label_column import cell_text, list_in
from softcue.tasks.splits import Splits, read_splits, split_off
from softcue.tasks.task import TaskKind
from softcue.types import LabelValue, Prediction, label_text

__all__ = ["CueClassifier", "CueRegressor"]

PAIR_COLUMNS = ("first", "second")  # of pairs without column names
TASK_KEYS = {"metric", "template", "label_words", "label_descriptions"}  # settings of the task that may be overridden
MIN_PROBABILITY = 1e-12  # below it a logarithm says nothing
MAX_SEED = 2**31 - 1
CUE_FILES = ("cue.json", "cue.safetensors")  # what a pickle of an estimator keeps
# A run seeds torch's global generator, so that two threads must not train at once.
_training_lock = RLock()


@dataclass(frozen=True)
class TextRows:
    """The texts of X: one or two per row, and the column names if X is a DataFrame."""

    rows: list[tuple[str, ...]]
    columns: tuple[str, ...] | None

    @property
    def num_texts(self) -> int:
        """The number of texts per row."""
        return len(self.rows[0])

    @property
    def task_columns(self) -> tuple[str, ...]:
        """The names of the texts in the task."""
        return self.columns or (("text",) if self.num_texts == 1 else PAIR_COLUMNS)

    @classmethod
    def of(cls, X: Any) -> Self:
        """Read a list, an array, a Series or a DataFrame of texts or pairs.

        Example:
            >>> TextRows.of(["first row", "second row"]).rows
            [('first row',), ('second row',)]
            >>> TextRows.of([("a", "b")]).task_columns
            ('first', 'second')
        """
        columns = None
        if hasattr(X, "columns") and hasattr(X, "to_numpy"):
            columns = tuple(map(str, X.columns))
            X = X.to_numpy()
        elif hasattr(X, "__array__"):
            X = np.asarray(X)
        items = None if isinstance(X, (str, bytes, Mapping)) or getattr(X, "ndim", 1) == 0 else list_in(X)
        if not items:
            raise EstimatorError(
                setting="X",
                got=X if items is None else "no rows",
                expected="texts or pairs of texts: a list, array, Series or DataFrame with at least one row",
                fix="pass one text, or a pair, for each row",
            )
        rows = [cls._read_row(number, item) for number, item in enumerate(items)]
        sizes = {len(row): number for number, row in reversed(list(enumerate(rows)))}
        if len(sizes) > 1:
            raise EstimatorError(
                setting=f"row {max(sizes.values())} of X",
                got=f"{len(rows[max(sizes.values())])} text(s)",
                expected=f"{len(rows[0])} text(s), as in row 0",
                fix="pass as many texts in each row",
            )
        return cls(rows, columns)

    @staticmethod
    def _read_row(number: int, item: object) -> tuple[str, ...]:
        texts = tuple(item) if isinstance(item, (list, tuple)) else (item,)
        if len(texts) not in (1, 2) or not all(isinstance(text, str) for text in texts):
            raise EstimatorError(
                setting=f"row {number} of X",
                got=item,
                expected="a text, or a pair of texts",
                fix="convert numbers to text, or choose the text columns",
            )
        return tuple(map(str, texts))


class _CueEstimator(BaseEstimator):  # type: ignore[misc]
    """What classifiers and regressors of texts share: settings, rows, training, saving."""

    _kinds: ClassVar[tuple[TaskKind, ...]]  # of the cues that the estimator can be made from

    backbone: str | Path | Backbone
    method: str | None
    recipe: str
    epochs: int | None
    learning_rate: float | None
    network_learning_rate: float | None
    batch_size: int | None
    prompt_length: int | None
    max_length: int | None
    validation_fraction: float
    random_state: Any
    overrides: Mapping[str, Any] | None
    cue_: Cue
    metrics_: dict[str, Any]
    n_features_in_: int

    @classmethod
    def from_cue(
        cls, folder: str | Path, backbone: str | Path | Backbone | None = None, *, allow_pickle: bool = False
    ) -> Self:
        """Make a fitted estimator from a cue folder; `backbone` as in `softcue.load`.

        Example:
            CueClassifier.from_cue("cues/tickets").predict(["My invoice is wrong."])
        """
        cue_file = read_cue_file(Path(folder))
        if cue_file.task.kind not in cls._kinds:
            raise EstimatorError(
                setting="cue",
                got=f"{folder}, a task of kind {cue_file.task.kind}",
                expected=f"a task of kind {' or '.join(cls._kinds)}",
                fix="CueClassifier takes labels, CueRegressor numbers; load others with softcue.load",
            )
        config = backbone_config(cue_file, None if isinstance(backbone, Backbone) else backbone, allow_pickle)
        loaded = backbone if isinstance(backbone, Backbone) else share_backbone(config)
        estimator = cls(
            backbone=backbone if isinstance(backbone, Backbone) else config.name,
            method=str(cue_file.method["name"]),
            overrides=None if isinstance(backbone, Backbone) else _backbone_overrides(config),
        )
        metrics = Path(folder) / "metrics.json"
        estimator.cue_ = load(folder, loaded)
        estimator.metrics_ = json.loads(metrics.read_text("utf-8")) if metrics.is_file() else {}
        estimator.n_features_in_ = len(cue_file.task.text)
        estimator._take_labels([cue_file.task.label_value(name) for name in cue_file.task.label_names])
        return estimator

    def save(self, folder: str | Path) -> Path:
        """Write the fitted estimator as an ordinary cue folder, for `softcue.load`, the server and `from_cue`.

        Example:
            CueClassifier().fit(texts, labels).save("cues/mine")
        """
        check_is_fitted(self)
        return self.cue_.save(folder, self.metrics_ or None)

    def _take_labels(self, labels: Sequence[LabelValue]) -> None:
        """Take the labels of a cue as classes."""

    # --- training ---

    def _train(self, texts: TextRows, targets: Sequence[object], weights: NDArray[Any], kind: TaskKind) -> None:
        """Train a cue on rows whose weight is above 0."""
        kept = [number for number, weight in enumerate(weights) if weight > 0]
        columns = texts.task_columns
        label = "label"
        while label in columns:
            label += "_"
        rows = [{**dict(zip(columns, texts.rows[number], strict=True)), label: targets[number]} for number in kept]
        settings, recipe = self._settings(columns, label, kind)
        splits = self._hold_out(settings, rows, [float(weights[number]) for number in kept])
        backbone = self._find_backbone()
        with _training_lock, tempfile.TemporaryDirectory(prefix="softcue-") as folder:
            run = make_training_run(Path(folder) / "cue", settings, backbone=backbone, splits=splits, recipe=recipe)
            [self.cue_] = run.execute(progress=False)
            self.metrics_ = json.loads((Path(folder) / "cue" / "metrics.json").read_text("utf-8"))
        self.cue_.path = None
        self.n_features_in_ = texts.num_texts
        if texts.columns is not None:
            self.feature_names_in_ = np.asarray(texts.columns, dtype=object)
        elif hasattr(self, "feature_names_in_"):
            del self.feature_names_in_

    def _find_backbone(self) -> Backbone:
        """The backbone of the settings: a loaded one, or the one that this process shares."""
        if isinstance(self.backbone, Backbone):
            return self.backbone
        settings = request_run(backbone=str(self.backbone), overrides=self.overrides or {}).settings
        return share_backbone(resolve({"backbone": settings["backbone"]}).backbone)

    def _settings(self, columns: tuple[str, ...], label: str, kind: TaskKind) -> tuple[Settings, str]:
        """The settings of the run, and the recipe below them."""
        seed = self.random_state
        if not isinstance(seed, Integral):
            seed = check_random_state(seed).randint(MAX_SEED)
        requested = request_run(
            backbone=str(self.backbone) if isinstance(self.backbone, Path) else self.backbone,
            method=self.method,
            recipe=self.recipe,
            epochs=self.epochs,
            learning_rate=self.learning_rate,
            network_learning_rate=self.network_learning_rate,
            batch_size=self.batch_size,
            prompt_length=self.prompt_length,
            max_length=self.max_length,
            seed=int(seed),
            overrides=self.overrides or {},
        )
        task = requested.settings.get("task", {})
        if refused := sorted(set(task) - TASK_KEYS):
            raise EstimatorError(
                setting="overrides",
                got=f"task.{refused[0]}",
                expected=f"of the task only {', '.join(sorted(TASK_KEYS))}",
                fix="an estimator gets its rows from fit; leave it out",
            )
        columns_and_kind = {"text": columns, "label": label, "kind": kind, "sample_seed": int(seed)}
        return merged(requested.settings, {"task": columns_and_kind}), requested.recipe

    def _hold_out(self, settings: Settings, rows: list[dict[str, Any]], weights: list[float]) -> Splits:
        """Read the rows and hold out a share of each class. If none can be spared, training rows choose the step."""
        fraction = self.validation_fraction
        if not 0 <= fraction < 1:
            raise EstimatorError(
                setting="validation_fraction", got=fraction, expected="at least 0 and below 1", fix="use 0.15"
            )
        config = resolve({"task": settings["task"]}).task
        splits = read_splits(config, {"train": rows, "validation": rows}, check_metric, weights)
        held_out: Sequence[Any] = []
        train = splits.train
        if fraction > 0:
            train, held_out = split_off(train, fraction, config.sample_seed, by_class=splits.task.has_classes)
        return Splits(splits.task, train, held_out or train, [])

    def _check_weights(self, sample_weight: Any, num_rows: int) -> NDArray[Any]:
        """The weights of the rows, 1 without `sample_weight`. [N]"""
        if sample_weight is None:
            return np.ones(num_rows)
        weights = np.asarray(sample_weight, dtype=float)
        if weights.ndim == 0:
            weights = np.full(num_rows, float(weights))
        is_usable = weights.shape == (num_rows,) and bool((np.isfinite(weights) & (weights >= 0)).all())
        if not is_usable or not weights.any():
            raise EstimatorError(
                setting="sample_weight",
                got=f"shape {weights.shape}" if weights.shape != (num_rows,) else "negative, not finite or all zero",
                expected=f"{num_rows} finite weights of at least 0, some above it",
                fix="pass one weight for each row; Sample weights must be 1D array or scalar",
            )
        return weights

    # --- prediction ---

    def _predictions(self, X: Any) -> list[Prediction]:
        check_is_fitted(self)
        with _as_estimator_errors():
            texts = TextRows.of(X)
            self._check_columns(texts)
            return self.cue_.predict([dict(zip(self.cue_.task.text, row, strict=True)) for row in texts.rows])

    def _check_columns(self, texts: TextRows) -> None:
        """Check that there are as many texts as in training, with the same names."""
        if texts.num_texts != self.n_features_in_:
            raise EstimatorError(
                setting="X",
                got=f"X has {texts.num_texts} features",
                expected=f"{type(self).__name__} is expecting {self.n_features_in_} features as input",
                fix="pass as many texts in each row as in fit",
            )
        names = getattr(self, "feature_names_in_", None)
        if names is not None and texts.columns is not None and tuple(names) != texts.columns:
            raise EstimatorError(
                setting="X",
                got=f"columns {', '.join(texts.columns)}",
                expected=f"the feature names should match those that were passed during fit: {', '.join(names)}",
                fix="choose the same columns, in the same order",
            )

    # --- what scikit-learn asks of an estimator ---

    def __sklearn_tags__(self) -> Any:
        """Say that rows are texts."""
        tags = super().__sklearn_tags__()
        tags.input_tags.string = True
        tags.input_tags.one_d_array = True
        tags.input_tags.two_d_array = False  # only of text pairs; numbers are refused
        return tags

    def __sklearn_is_fitted__(self) -> bool:
        """Say whether there is a cue."""
        return "cue_" in vars(self)

    def __sklearn_clone__(self) -> Self:
        """Copy the settings, but not a loaded backbone: all folds use the same one."""
        settings = {
            name: value if isinstance(value, Backbone) else copy.deepcopy(value)
            for name, value in self.get_params(deep=False).items()
        }
        clone = type(self)(**settings)
        for name in ("_metadata_request", "_sklearn_output_config"):
            if hasattr(self, name):
                setattr(clone, name, copy.deepcopy(getattr(self, name)))
        return clone

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        """Copy everything but the backbone and the cue, which nothing changes."""
        copied = type(self).__new__(type(self))
        memo[id(self)] = copied
        for name, value in vars(self).items():
            setattr(copied, name, value if isinstance(value, (Backbone, Cue)) else copy.deepcopy(value, memo))
        return copied

    def __getstate__(self) -> dict[str, Any]:
        """For a pickle: settings, and the cue's files. The backbone's weights stay where they were loaded from."""
        state = dict(super().__getstate__())
        if isinstance(self.backbone, Backbone):
            state["backbone"] = _StoredBackbone.of(self.backbone)
        if "cue_" in state:
            path = self.cue_.path
            with tempfile.TemporaryDirectory(prefix="softcue-") as folder:
                self.cue_.save(folder)
                self.cue_.path = path
                state["cue_"] = {name: (Path(folder) / name).read_bytes() for name in CUE_FILES}
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Load the backbone, or take the one this process has, and put the cue on it."""
        state = dict(state)
        files: dict[str, bytes] | None = state.pop("cue_", None)
        if isinstance(state.get("backbone"), _StoredBackbone):
            state["backbone"] = share_backbone(state["backbone"].config)
        super().__setstate__(state)
        if files is None:
            return
        with tempfile.TemporaryDirectory(prefix="softcue-") as folder:
            for name in CUE_FILES:
                (Path(folder) / name).write_bytes(files[name])
            self.cue_ = load(folder, self._find_backbone())
        self.cue_.path = None


class CueClassifier(ClassifierMixin, _CueEstimator):  # type: ignore[misc]
    """A classifier of texts, or of text pairs, by a small learned prompt on a frozen language model.

    `fit` takes a list, array or Series of texts, or pairs of them, or a DataFrame with one or two text columns. `y` has
    a label of any type per row; `classes_` and `predict` keep the type. For several labels per row, `y` is an indicator
    matrix (array, or DataFrame whose columns are the labels) or a list of label lists, and `predict` gives an indicator
    matrix, whose columns are `classes_`.

    Args:
        backbone: a name as in `softcue.train`, or a loaded `Backbone`, which `clone` keeps. A name is loaded once per
            process, however many folds and settings use it.
        method: a name of `softcue.methods()`, or `auto`; None is the default of the backbone's kind.
        recipe: `default` (the method's preset) or `paper`.
        epochs, learning_rate, network_learning_rate, batch_size, prompt_length, max_length: as in `softcue.train`;
            None leaves the recipe's value.
        validation_fraction: the share of each class, in distinct texts, that is not trained on but chooses the best
            step. Each class with two texts gives at least one and keeps at least one. If no row can be held out, or
            with 0, the training rows choose the step.
        class_weight: `balanced` or a weight for each class, as in scikit-learn; None: all 1. They multiply
            `sample_weight`. Rows that choose the best step are scored without weights.
        random_state: the seed of training and of the held-out rows.
        overrides: any other setting, as `{"training.patience": 3}`.

    Attributes:
        cue_: the trained cue.
        classes_: the labels, sorted.
        metrics_: scores and history of the training run.
        n_features_in_: the number of texts per row.

    Example:
        classifier = CueClassifier("minilm", epochs=5).fit(["My invoice is wrong.", ...], ["billing", ...])
        classifier.predict(["Where is my parcel?"])
        cross_val_score(CueClassifier("minilm"), texts, labels, cv=10)     # the backbone is loaded once
    """

    _kinds = ("classification", "multi-label")

    classes_: NDArray[Any]

    def __init__(
        self,
        backbone: str | Path | Backbone = "minilm",
        *,
        method: str | None = None,
        recipe: str = "default",
        epochs: int | None = None,
        learning_rate: float | None = None,
        network_learning_rate: float | None = None,
        batch_size: int | None = None,
        prompt_length: int | None = None,
        max_length: int | None = None,
        validation_fraction: float = 0.15,
        class_weight: str | Mapping[Any, float] | None = None,
        random_state: Any = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> None:
        self.backbone = backbone
        self.method = method
        self.recipe = recipe
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.network_learning_rate = network_learning_rate
        self.batch_size = batch_size
        self.prompt_length = prompt_length
        self.max_length = max_length
        self.validation_fraction = validation_fraction
        self.class_weight = class_weight
        self.random_state = random_state
        self.overrides = overrides

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train a cue. A row of weight 0 is left out; a row of weight 2 counts as two in the loss.

        Example:
            CueClassifier(class_weight="balanced").fit(frame[["question", "answer"]], frame["is_right"])
        """
        with _as_estimator_errors():
            texts = TextRows.of(X)
            y = _read_target(y, len(texts.rows))
            weights = self._check_weights(sample_weight, len(texts.rows))
            if _has_label_sets(y):
                self._fit_label_sets(texts, y, weights)
            else:
                self._fit_classes(texts, y, weights)
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the class of each row [N], or an indicator matrix for several labels per row [N C].

        Example:
            classifier.predict(["Where is my parcel?"])
        """
        predictions = self._predictions(X)
        if self._is_multi_label:
            labels = [set(map(label_text, prediction.labels or ())) for prediction in predictions]
            return np.array([[name in row for name in self._class_names] for row in labels], dtype=int)
        return self.classes_[[self._class_number(prediction) for prediction in predictions]]

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Return the probability of each class; of several labels per row, each by itself. [N C]

        Example:
            classifier.predict_proba(["Where is my parcel?"])[0, list(classifier.classes_).index("shipping")]
        """
        rows = [self._scores(prediction) for prediction in self._predictions(X)]
        probabilities = np.array(rows, dtype=float)
        return probabilities if self._is_multi_label else probabilities / probabilities.sum(axis=1, keepdims=True)

    def decision_function(self, X: Any) -> NDArray[Any]:
        """Return log-odds: of the second of two classes [N], of each label [N C]; of more classes log-probabilities.

        Example:
            classifier.decision_function(["Where is my parcel?"])
        """
        probabilities = self.predict_proba(X)
        logarithms: NDArray[Any] = np.log(probabilities.clip(MIN_PROBABILITY, 1.0))
        odds: NDArray[Any] = logarithms
        if self._is_multi_label:
            odds = logarithms - np.log((1.0 - probabilities).clip(MIN_PROBABILITY, 1.0))
        elif len(self.classes_) == 2:
            odds = logarithms[:, 1] - logarithms[:, 0]
        return odds

    def score(self, X: Any, y: Any, sample_weight: Any = None) -> float:
        """Return the accuracy; of several labels per row, the share of rows whose labels are all right.

        Example:
            classifier.score(test_texts, test_labels)
        """
        predicted = self.predict(X)
        if self._is_multi_label:
            y = self._indicators(_read_target(y, len(predicted)))
        return float(accuracy_score(y, predicted, sample_weight=sample_weight))

    def _fit_classes(self, texts: TextRows, y: Any, weights: NDArray[Any]) -> None:
        """Train on one label per row."""
        labels = column_or_1d(np.asarray(y), warn=True)
        assert_all_finite(labels, input_name="y")
        check_classification_targets(labels)
        if self.class_weight is not None:
            counted = weights > 0
            weights = weights.copy()
            weights[counted] *= compute_sample_weight(self.class_weight, labels[counted])
        classes = np.unique(labels[weights > 0])
        if len(classes) < 2:
            raise EstimatorError(
                setting="y",
                got=f"{len(classes)} class",
                expected="at least two classes among rows whose weight is above 0",
                fix="pass rows of another class",
            )
        names = _class_names(classes)
        self._train(texts, labels.tolist(), weights, "classification")
        self.classes_, self._class_names, self._is_multi_label = classes, names, False

    def _fit_label_sets(self, texts: TextRows, y: Any, weights: NDArray[Any]) -> None:
        """Train on a set of labels per row."""
        if self.class_weight is not None:
            raise EstimatorError(
                setting="class_weight",
                got=self.class_weight,
                expected="None with several labels per row",
                fix="weight the rows by sample_weight",
            )
        if _is_indicator(y):
            indicators, classes = _read_indicators(y)
            sets = [[label for label, has in zip(classes.tolist(), row, strict=True) if has] for row in indicators]
        else:
            sets = [list_in(labels) or [] for labels in y]
            classes = np.unique([label for labels in sets for label in labels])
        names = _class_names(classes)
        self._train(texts, sets, weights, "multi-label")
        self.classes_, self._class_names, self._is_multi_label = classes, names, True

    def _take_labels(self, labels: Sequence[LabelValue]) -> None:
        """Take the labels of a cue as classes."""
        self.classes_ = np.unique(np.asarray(labels))
        self._class_names = _class_names(self.classes_)
        self._is_multi_label = self.cue_.task.kind == "multi-label"

    def _class_number(self, prediction: Prediction) -> int:
        if prediction.label_text not in self._class_names:
            raise EstimatorError(
                setting="prediction",
                got=prediction.label_text,
                expected="a class of fit",
                fix="this readout writes any text: set overrides={'readout.decoding': 'rank'}",
            )
        return self._class_names.index(prediction.label_text)

    def _scores(self, prediction: Prediction) -> list[float]:
        """The probability of each class. A label that no training row had has none: 0."""
        if prediction.scores is None:
            raise EstimatorError(
                setting="predict_proba",
                got=self.cue_.cue_file.readout.name,
                expected="a readout with probabilities",
                fix="set overrides={'readout.decoding': 'rank'} or {'readout.name': 'classifier'}",
            )
        scores = {label_text(label): score for label, score in prediction.scores.items()}
        return [scores.get(name, 0.0) for name in self._class_names]

    def _indicators(self, y: Any) -> NDArray[Any]:
        """The true labels as an indicator matrix. [N C]"""
        if _is_indicator(y):
            return _read_indicators(y)[0].astype(int)
        sets = [{cell_text(label) for label in list_in(labels) or []} for labels in y]
        return np.array([[name in row for name in self._class_names] for row in sets], dtype=int)

    def __sklearn_tags__(self) -> Any:
        """Say that a row may have several labels."""
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_label = True
        return tags


class CueRegressor(RegressorMixin, _CueEstimator):  # type: ignore[misc]
    """A regressor of texts, or of text pairs, by a small learned prompt on a frozen language model.

    X and the arguments are those of `CueClassifier`. `y` has a number per row.

    Attributes:
        cue_: the trained cue.
        metrics_: scores and history of the training run.
        n_features_in_: the number of texts per row.

    Example:
        CueRegressor("minilm", epochs=5).fit(reviews, stars).predict(["It broke after a day."])
    """

    _kinds = ("regression",)

    def __init__(
        self,
        backbone: str | Path | Backbone = "minilm",
        *,
        method: str | None = None,
        recipe: str = "default",
        epochs: int | None = None,
        learning_rate: float | None = None,
        network_learning_rate: float | None = None,
        batch_size: int | None = None,
        prompt_length: int | None = None,
        max_length: int | None = None,
        validation_fraction: float = 0.15,
        random_state: Any = None,
        overrides: Mapping[str, Any] | None = None,
    ) -> None:
        self.backbone = backbone
        self.method = method
        self.recipe = recipe
        self.epochs = epochs
        self.learning_rate = learning_rate
        self.network_learning_rate = network_learning_rate
        self.batch_size = batch_size
        self.prompt_length = prompt_length
        self.max_length = max_length
        self.validation_fraction = validation_fraction
        self.random_state = random_state
        self.overrides = overrides

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Self:
        """Train a cue. A row of weight 0 is left out; a row of weight 2 counts as two in the loss.

        Example:
            CueRegressor().fit(reviews, stars, sample_weight=num_votes)
        """
        with _as_estimator_errors():
            texts = TextRows.of(X)
            y = _read_target(y, len(texts.rows))
            weights = self._check_weights(sample_weight, len(texts.rows))
            numbers = column_or_1d(np.asarray(y), warn=True).astype(float)
            assert_all_finite(numbers, input_name="y")
            self._train(texts, numbers.tolist(), weights, "regression")
        return self

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the number of each row. [N]

        Example:
            regressor.predict(["It broke after a day."])
        """
        return np.array([prediction.value for prediction in self._predictions(X)], dtype=float)


@dataclass(frozen=True)
class _StoredBackbone:
    """What stands for a loaded backbone in a pickle: how to load it again."""

    config: BackboneConfig

    @classmethod
    def of(cls, backbone: Backbone) -> Self:
        if backbone.folder is None and "/" not in backbone.name:
            raise EstimatorError(
                setting="pickle",
                got=f"the backbone '{backbone.name}', which was made in memory",
                expected="a backbone that can be loaded again by its name",
                fix="save the model to a folder and pass the folder, or save the cue with `save(folder)`",
            )
        dtype = str(backbone.dtype).removeprefix("torch.")
        return cls(BackboneConfig.model_validate({"name": backbone.name, "dtype": dtype}))


def _backbone_overrides(config: BackboneConfig) -> dict[str, Any]:
    """The overrides that load a backbone with these settings again."""
    changed = config.model_dump(exclude_defaults=True, exclude={"name"})
    return {f"backbone.{key}": value for key, value in changed.items()}


@contextmanager
def _as_estimator_errors() -> Iterator[None]:
    """Turn errors about rows and settings into those that scikit-learn expects: ValueErrors."""
    try:
        yield
    except (ConfigurationError, DataError) as error:
        raise EstimatorError(setting=error.setting, got=error.got, expected=error.expected, fix=error.fix) from error


def _read_target(y: Any, num_rows: int) -> Any:
    """Return y as an array or DataFrame, or as a list of label lists, after checking that each row has a target."""
    if y is None:
        raise EstimatorError(
            setting="y",
            got=None,
            expected="a target for each row: the estimator requires y to be passed, but the target y is None",
            fix="pass y",
        )
    if not hasattr(y, "columns") and not hasattr(y, "toarray"):
        y = np.asarray(y) if hasattr(y, "__array__") else list(y)
    num_targets = len(y) if isinstance(y, list) else y.shape[0]
    if num_targets != num_rows:
        raise EstimatorError(
            setting="y",
            got=f"{num_targets} targets",
            expected=f"as many as rows: inconsistent numbers of samples, {num_rows} and {num_targets}",
            fix="pass a target for each row",
        )
    return _as_matrix(y) if isinstance(y, list) else y


def _as_matrix(targets: list[Any]) -> Any:
    """Return a list of equally long lists of 0 and 1 as a matrix, as scikit-learn reads it; other lists as they are."""
    rows = [list_in(target) for target in targets]
    lengths = {-1 if row is None else len(row) for row in rows}
    is_matrix = len(lengths) == 1 and min(lengths) > 1
    if is_matrix and all(value in (0, 1) for row in rows for value in row or ()):
        return np.array(rows)
    return targets


def _class_names(classes: NDArray[Any]) -> list[str]:
    """The text that stands for each class in a cue."""
    names = [cell_text(value) for value in classes.tolist()]
    if "" in names or len(set(names)) < len(names):
        raise EstimatorError(
            setting="y",
            got=", ".join(map(repr, classes.tolist())),
            expected="labels that are different and not empty as text, without spaces around them",
            fix="rename the labels",
        )
    return names


def _is_indicator(y: Any) -> bool:
    """Whether y is a matrix with a column for each label."""
    return getattr(y, "ndim", 1) == 2 and y.shape[1] > 1


def _has_label_sets(y: Any) -> bool:
    """Whether rows have sets of labels: an indicator matrix, or lists of labels."""
    if getattr(y, "ndim", 1) == 2:
        return _is_indicator(y)
    return any(list_in(labels) is not None for labels in y)


def _read_indicators(y: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """The matrix, and its labels: column names of a DataFrame, else column numbers. [N C], [C]"""
    classes = np.asarray(y.columns) if hasattr(y, "columns") else np.arange(y.shape[1])
    matrix = y.toarray() if hasattr(y, "toarray") else np.asarray(y)
    if not np.isin(matrix, (0, 1)).all():
        raise EstimatorError(
            setting="y",
            got="a matrix with other values than 0 and 1",
            expected="one label per row, or an indicator matrix of 0 and 1",
            fix="choose one column, or turn labels into indicators",
        )
    return matrix.astype(bool), classes
