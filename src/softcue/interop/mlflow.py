"""`softcue export --to mlflow`: a pyfunc model of MLflow. It holds the cue's folder and loads it through softcue.

MLflow names this module in the model's record and calls `_load_pyfunc`: nothing is pickled. The backbone is not in the
model. It is loaded by its name, or from `model_config={"backbone": ...}`.
"""

from __future__ import annotations

import json
import os
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from softcue.cue import Cue, load
from softcue.cue.cue_file import CueBackbone, package_versions
from softcue.interop.export import ExportOptions, ExportReport
from softcue.interop.onnx import require
from softcue.tasks import Task
from softcue.training.trackers.mlflow import ENVIRONMENT
from softcue.types import Prediction, label_text

if TYPE_CHECKING:
    from mlflow.models import ModelSignature
    from pandas import DataFrame

SCORE_COLUMN = "score_{}"  # of one label
LABEL_TYPES = {"text": "string", "boolean": "boolean", "integer": "long", "float": "double"}


class CueModel:
    """What MLflow calls: rows with the cue's text columns to a table of predictions.

    Example:
        CueModel(softcue.load("cues/tickets")).predict(DataFrame({"text": ["My invoice is wrong."]}))
    """

    def __init__(self, cue: Cue) -> None:
        self.cue = cue

    def predict(self, rows: Any, params: Mapping[str, Any] | None = None) -> DataFrame:
        """Predict each row; the columns are those of the signature."""
        from pandas import DataFrame

        names = [name for name, _ in output_columns(self.cue.task)]
        predictions = self.cue.predict(rows)
        return DataFrame([_as_row(prediction, names) for prediction in predictions], columns=names)


def _load_pyfunc(path: str, model_config: Mapping[str, Any] | None = None) -> CueModel:
    """Load the cue, on the backbone that the model's configuration names."""
    return CueModel(load(path, (model_config or {}).get("backbone")))


def output_columns(task: Task) -> list[tuple[str, str]]:
    """The columns of a prediction and their types in MLflow.

    Example:
        >>> output_columns(Task(name="t", kind="regression"))
        [('value', 'double')]
    """
    label = LABEL_TYPES[task.label_type]
    scores = [(SCORE_COLUMN.format(name), "double") for name in task.label_names]
    if task.kind == "multi-label":
        return [("labels", f"[{label}]"), *scores]
    if task.kind == "regression":
        return [("value", "double")]
    if task.kind in ("span", "tags"):
        return [("label", "string"), ("spans", "string")]
    return [("label", label), *([("score", "double")] if scores else []), *scores]


def _as_row(prediction: Prediction, names: list[str]) -> dict[str, Any]:
    """A prediction as values of these columns; what it does not have stays out."""
    row: dict[str, Any] = {**prediction.as_dict(), "score": prediction.score}
    row |= {SCORE_COLUMN.format(label_text(label)): score for label, score in (prediction.scores or {}).items()}
    if "spans" in names:
        row["spans"] = json.dumps(row.get("spans", []))
    return {name: row[name] for name in names if name in row}


def export_mlflow(cue: Cue, folder: Path, options: ExportOptions) -> ExportReport:
    """Write a model folder of MLflow with signature and input example.

    Example:
        export_cue(softcue.load("cues/tickets"), "mlflow", "tickets-mlflow")
        mlflow.pyfunc.load_model("tickets-mlflow").predict(DataFrame({"text": ["My invoice is wrong."]}))
    """
    require(("mlflow", "pandas"), "mlflow")
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    from pandas import DataFrame

    backbone = CueBackbone.of(cue.backbone, cue.model.max_length).name  # of a folder the full path: it loads anywhere
    example = DataFrame({column: ["a text", "another text"] for column in cue.task.text})
    with tempfile.TemporaryDirectory() as temporary, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # MLflow's own, also as it is imported
        import mlflow.pyfunc

        copied = Path(temporary) / "cue"
        Cue(cue.model, cue.backbone, cue.cue_file).save(copied)  # a cue that has no folder can be exported too
        mlflow.pyfunc.save_model(
            path=str(folder),
            loader_module=__name__,
            data_path=str(copied),
            signature=_signature(cue.task),
            input_example=example,
            model_config={"backbone": backbone},
            pip_requirements=[f"{name}=={version}" for name, version in package_versions().items()],
        )
    note = f"the backbone is not in it: {backbone} is loaded by this name, or from model_config.backbone"
    return ExportReport({"loader": __name__}, (note,))


def _signature(task: Task) -> ModelSignature:
    from mlflow.models import ModelSignature
    from mlflow.types import ColSpec, Schema
    from mlflow.types.schema import Array

    inputs = [ColSpec("string", column) for column in task.text]
    outputs = []
    for name, type_name in output_columns(task):
        is_list = type_name.startswith("[")
        outputs.append(ColSpec(Array(type_name[1:-1]) if is_list else type_name, name, required=False))
    return ModelSignature(Schema(inputs), Schema(outputs))
