"""The cue folder: the stored parameters of one task, the facts they depend on, and a model card.

    cue.json          method, task, labels, backbone with fingerprint, versions, scores; written last
    cue.safetensors   the stored parameters, in float32
    metrics.json      scores, history, time and memory
    README.md         the model card

Nothing here is pickled. Loading checks everything that could silently make predictions wrong.
"""

from __future__ import annotations

import hashlib
import math
import os
import tempfile
import warnings
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, get_args

import torch
from pydantic import ValidationError
from torch import Tensor

from softcue.backbones import (
    Attention,
    Backbone,
    BackboneConfig,
    Fingerprint,
    NumberFormat,
    Quantization,
    load_backbone,
)
from softcue.backbones.runtimes import DtypeSetting, RuntimeChoice, RuntimeSetting
from softcue.configuration import method_config
from softcue.cue.cue_file import TRY_AGAIN, CueFile, cue_file_digest, read_cue_file
from softcue.cue.hub import find_cue_folder, push_folder
from softcue.cue.model_card import model_card
from softcue.cue.score_table import score_table
from softcue.cue.signatures import PublicKeys, read_public_keys
from softcue.cue.training_curve import TrainingCurve, read_training_curve
from softcue.drawing import html_table
from softcue.errors import (
    BackboneMismatchError,
    ConfigurationError,
    CueError,
    DataError,
    as_configuration_error,
    first_line,
)
from softcue.evaluation import (
    Evaluation,
    EvaluationSet,
    count_rows,
    format_scores,
    predict_baselines,
    read_evaluation_set,
)
from softcue.files import (
    convert_write_errors,
    read_within,
    serialize_tensors,
    tensor_shapes,
    write_atomically,
    write_json,
)
from softcue.inference import TaskModel, make_task_model, predict
from softcue.machine import GIGABYTE, read_memory
from softcue.methods import METHODS, Method
from softcue.selection import SelectionRecord
from softcue.selection.record import record_of_cue
from softcue.tasks import Source, Task, examples_from
from softcue.tasks.readers import is_table
from softcue.types import Counts, Example, Prediction

Text = str | Sequence[str]
DATA_SUFFIXES = (".csv", ".tsv", ".json", ".jsonl", ".gz", ".parquet")


# counts of cue.json -> what they are
PARAMETER_NAMES = {"gradient": "trainable", "ema": "by a running average", "head": "in the head", "stored": "stored"}
# The number format in which a backbone is loaded, by the one a cue records: bfloat16 only where it is faster.
LOADED_FORMATS = {"bfloat16": "auto", "float16": "float16"}
MAX_LABELS_SHOWN = 12
LARGE_NUMBER = 1e4  # beyond which a cue predicts one text when it is loaded
COPIES_IN_MEMORY = 3  # of the parameters while they are loaded: the file, its tensors, the model
FILE_OVERHEAD = 4 << 20  # bytes of cue.safetensors besides the numbers: the names and shapes of its tensors


class Cue:
    """A trained task on its frozen backbone.

    Example:
        cue = softcue.load("cues/tickets")
        cue.predict(["My invoice is wrong."])[0].label
    """

    def __init__(self, model: TaskModel, backbone: Backbone, cue_file: CueFile, path: Path | None = None) -> None:
        self.model, self.backbone, self.cue_file, self.path = model, backbone, cue_file, path

    @property
    def name(self) -> str:
        """The folder's name, or the task's if the cue has no folder."""
        return self.path.name if self.path else self.cue_file.task.name

    @property
    def task(self) -> Task:
        """The task it was trained on."""
        return self.cue_file.task

    @property
    def scores(self) -> dict[str, dict[str, float]]:
        """Scores by split and metric."""
        return self.cue_file.scores

    @property
    def training_curve(self) -> TrainingCurve:
        """Loss and validation score by step, as far as the files of the run are in the cue's folder."""
        return read_training_curve(self.path, self.cue_file)

    @property
    def selection(self) -> SelectionRecord | None:
        """What was tried if the method was chosen by `method="auto"`, as far as metrics.json is in the cue's folder."""
        return record_of_cue(self.path)

    @property
    def counts(self) -> Counts:
        """Numbers of stored and trainable parameters."""
        return self.model.counts()

    def predict(
        self, texts: Text | Sequence[Text] | Source, batch_size: int = 64, *, skip_bad_rows: bool = False
    ) -> list[Prediction]:
        """Predict one text, a list of texts (or pairs), a DataFrame, a Dataset, rows or a file, in order.

        Labels have the type of the training labels. `skip_bad_rows` leaves out rows that cannot be read; without it
        they are an error.

        Example:
            cue.predict("Where is my parcel?")[0].label
            cue.predict("Where is my parcel?")[0].labels     # of a multi-label task
            cue.predict([("first message", "second message")])     # a task that reads two texts
        """
        requests = [(self.model, example) for example in self.examples(texts, skip_bad_rows)]
        predicted = predict(self.backbone, requests, batch_size)
        if num_truncated := predicted.num_truncated:
            limit = self.model.formatter.limit
            warnings.warn(f"{num_truncated} of {len(requests)} texts were cut to {limit} tokens", stacklevel=2)
        return [self.task.with_label_values(prediction) for prediction in predicted.predictions]

    def evaluate(
        self,
        data: Source | None = None,
        batch_size: int = 64,
        *,
        task: str = "",
        split: str = "",
        num_rows: int = 0,
        skip_bad_rows: bool = False,
        baselines: bool = True,
    ) -> Evaluation:
        """Score rows with known targets: a file, a DataFrame, a list of dictionaries, or another task's rows.

        Without `data`, the task's own rows are read; `split` names train, validation or test. `num_rows` scores a
        sample of that many rows. `skip_bad_rows` leaves out rows that cannot be read. The majority class and the
        zero-shot backbone are scored on the same rows; `baselines=False` saves their time.

        Example:
            cue.evaluate("held-out.csv").main
            cue.evaluate("../data", task="mrpc").scores     # out of domain: a folder with MRPC's published files
        """
        rows = read_evaluation_set(self.task, data, task, split, num_rows, skip_bad_rows)
        return self.evaluate_set(rows, batch_size, baselines=baselines)[0]

    def evaluate_set(
        self, rows: EvaluationSet, batch_size: int = 64, *, baselines: bool = True
    ) -> tuple[Evaluation, list[Prediction]]:
        """Score rows that are already read; returns the predictions too.

        Example:
            evaluation, predictions = cue.evaluate_set(read_evaluation_set(cue.task, "held-out.csv"))
        """
        predicted = predict(self.backbone, [(self.model, example) for example in rows.examples], batch_size)
        guesses = self.baseline_predictions(rows, batch_size) if baselines else {}
        return rows.score(predicted.predictions, predicted.num_truncated, guesses), predicted.predictions

    def baseline_predictions(self, rows: EvaluationSet, batch_size: int = 64) -> dict[str, list[Prediction]]:
        """Predictions of the baselines that the task has, by the keys of `predict_baselines`.

        Example:
            cue.baseline_predictions(read_evaluation_set(cue.task, "held-out.csv"))["zero_shot"][0].label
        """
        constant, sentinel = self.cue_file.constant_prediction, self.model.readout.config.sentinel
        return predict_baselines(self.backbone, self.task, constant, rows.examples, batch_size, sentinel)

    def __repr__(self) -> str:
        """Task, method, backbone, labels, scores with row counts, and parameters."""
        width = max(map(len, facts := self._facts()))
        return "\n".join([f"Cue {self.name!r}", *(f"  {name:{width}}  {value}" for name, value in facts.items())])

    def _repr_html_(self) -> str:
        """The same as a table, with the training curve, for a notebook."""
        facts = {name: value for name, value in self._facts().items() if name not in self.scores}
        parts = [f"<p><b>Cue {escape(self.name)}</b></p>", html_table(["", ""], [list(fact) for fact in facts.items()])]
        if self.scores:
            table = score_table(self.cue_file)
            parts.append(html_table(table.columns, table.rows))
            parts += [f"<p><small>{escape(note)}</small></p>" for note in table.notes]
        return "".join([*parts, self.training_curve.as_html()])

    def _facts(self) -> dict[str, str]:
        cue_file, task = self.cue_file, self.task
        counts = cue_file.counts
        trained = [f"{counts[key]:,} {name}" for key, name in PARAMETER_NAMES.items() if counts.get(key)]
        facts = {
            "task": f"{task.name} ({task.kind}), reads {', '.join(task.text)}",
            "method": str(cue_file.method["name"]),
            "backbone": f"{cue_file.backbone.name} ({cue_file.backbone.kind})",
        }
        if cue_file.recipe:
            facts["recipe"] = cue_file.recipe.name
        if task.labels:
            facts["labels"] = _shorten(task.label_names)
        for split, scores in self.scores.items():
            text = format_scores(scores, cue_file.baselines.get(split), task.main_metrics)
            facts[split] = f"{text}; {count_rows(cue_file.num_rows(split))}"
        facts["parameters"] = ", ".join(trained) or "none"
        return facts

    def examples(self, texts: Any, skip_bad_rows: bool = False) -> list[Example]:
        """Check the input of `predict` and turn it into examples.

        Example:
            cue.examples(["My invoice is wrong."])[0].texts
        """
        columns = self.task.text
        is_file = isinstance(texts, Path) or (isinstance(texts, str) and _names_a_file(texts))
        if is_file or is_table(texts):
            return examples_from(texts, self.task, needs_target=False, skip_bad_rows=skip_bad_rows)
        is_pair = isinstance(texts, tuple) and len(texts) == len(columns) == 2
        if isinstance(texts, (str, Mapping)) or (is_pair and all(isinstance(text, str) for text in texts)):
            texts = [texts]
        advice = "pass one string, or a pair for a task that reads two"
        if isinstance(texts, bytes) or not isinstance(texts, Iterable):
            raise DataError(setting="texts", got=texts, expected="a text, a list of texts, rows or a file", fix=advice)
        rows: list[Any] = []
        for number, text in enumerate(texts, start=1):
            if isinstance(text, Mapping):
                rows.append(text)
                continue
            parts = tuple(text) if isinstance(text, (list, tuple)) else (text,)
            if len(parts) != len(columns):
                expected = f"{len(columns)} text(s): {', '.join(columns)}"
                raise DataError(setting=f"row {number}", got=text, expected=expected, fix=advice)
            rows.append(dict(zip(columns, parts, strict=True)))
        return examples_from(rows, self.task, needs_target=False, skip_bad_rows=skip_bad_rows) if rows else []

    def save(self, folder: str | Path, metrics: dict[str, Any] | None = None) -> Path:
        """Write the cue folder; cue.json comes last, so a folder with cue.json is whole.

        Example:
            cue.save("cues/copy")
        """
        target = Path(folder)
        tensors = {name: value.float() for name, value in self.model.state_dict().items()}
        for name, value in tensors.items():
            if not bool(torch.isfinite(value).all()):
                advice = "train with a lower learning rate"
                raise CueError(setting=f"tensor '{name}'", got="NaN or infinity", expected="finite numbers", fix=advice)
        with convert_write_errors("cue folder", target):
            target.mkdir(parents=True, exist_ok=True)
            write_atomically(target / "cue.safetensors", data := serialize_tensors(tensors))
        cue_file = self.cue_file.model_copy(update={"tensors_sha256": hashlib.sha256(data).hexdigest()})
        cue_file = cue_file.model_copy(update={"record_sha256": cue_file_digest(cue_file.model_dump(mode="json"))})
        write_json(target / "metrics.json", metrics or {"scores": cue_file.scores})
        write_atomically(target / "README.md", model_card(cue_file, target.name, record_of_cue(target)).encode())
        write_json(target / "cue.json", cue_file.model_dump(mode="json"))
        self.cue_file, self.path = cue_file, target
        return target

    def push_to_hub(
        self,
        repo_id: str,
        *,
        private: bool | None = None,
        token: str | None = None,
        revision: str | None = None,
        commit_message: str | None = None,
    ) -> str:
        """Upload the cue to the Hugging Face Hub in one commit and return the address of the commit's page.

        The repository and the branch `revision` are made if they do not exist. Without `token`, that of HF_TOKEN or of
        `hf auth login` is taken. The backbone is not uploaded, unless the method has trained it.

        Example:
            cue.push_to_hub("me/tickets", private=True)
            softcue.load("hub:me/tickets")
        """
        with tempfile.TemporaryDirectory() as temporary:
            if self.path is None:  # a copy, so that this cue does not get the temporary folder as its own
                copy = Cue(self.model, self.backbone, self.cue_file)
                folder = copy.save(Path(temporary) / self.name)
            else:
                folder = self.path
            return push_folder(
                folder, repo_id, private=private, token=token, revision=revision, commit_message=commit_message
            )


def load(
    path: str | Path,
    backbone: Backbone | str | Path | None = None,
    *,
    device: str | None = None,
    dtype: NumberFormat | None = None,
    attention: Attention | None = None,
    quantization: Quantization | None = None,
    allow_pickle: bool = False,
    require_signature: str | Path | PublicKeys | None = None,
    runtime: RuntimeSetting = "torch",
    runtime_dtype: DtypeSetting = "auto",
    runtime_data: str | Path | None = None,
) -> Cue:
    """Load a cue from its folder, on the backbone it was trained on or on a given one that several cues share.

    `device`, `dtype`, `attention` and `quantization` say how the backbone is loaded, as the settings `backbone.*` do.
    Without them it is loaded as for training: in the recorded number format (bfloat16 only where it is faster) and
    quantization.

    `path` may also be `hub:OWNER/NAME` or `hub:OWNER/NAME@REVISION`, a cue on the Hugging Face Hub. `allow_pickle`
    opens a backbone whose weights are a pickle, which can run code. The cue's files cannot say it. `require_signature`
    is a file of public keys, one of which must have signed the cue (`softcue sign`). `runtime` runs the frozen layers
    of an encoder in openvino or onnx, `auto` in the fastest of them; answers are compared with torch's first, on
    rows of the task or on `runtime_data`, a file of rows or a folder of published files.

    Example:
        tickets = softcue.load("cues/tickets")
        urgency = softcue.load("cues/urgency", backbone=tickets.backbone)
        shared = softcue.load("hub:me/tickets@v2")
        small = softcue.load("cues/tickets", device="cuda:1", dtype="bfloat16", quantization="int8")
    """
    folder = find_cue_folder(path)
    if isinstance(require_signature, (str, Path)):
        require_signature = read_public_keys(require_signature)
    cue_file = read_cue_file(folder, require_signature)
    settings = backbone_settings(device, dtype, attention, quantization)
    if isinstance(backbone, Backbone):
        check_no_settings(settings)
    else:
        settings = settings if runtime == "torch" else settings_for_runtime(settings)
        backbone = load_backbone(backbone_config(cue_file, backbone, allow_pickle, settings))
    _check_backbone(folder, cue_file, backbone)
    if (difference := describe_quantization(cue_file, backbone)) is not None:
        warnings.warn(f"cue {folder.name}: {difference}", stacklevel=2)
    cue = Cue(_load_model(folder, cue_file, backbone), backbone, cue_file, folder)
    if runtime != "torch" or backbone.runtime is not None:
        from softcue.cue.runtimes import admit, start_runtime

        if backbone.runtime is not None:
            admit(cue)
        else:
            start_runtime(backbone, [cue], RuntimeChoice.of(runtime, runtime_dtype, runtime_data))
    return cue


def backbone_config(
    cue_file: CueFile,
    name: str | Path | None = None,
    allow_pickle: bool = False,
    settings: Mapping[str, str] | None = None,
) -> BackboneConfig:
    """The settings with which the backbone of a cue is loaded, or the same model under another name.

    `settings` go before those that the cue records.

    Example:
        backbone_config(read_cue_file(Path("cues/tickets")), settings={"dtype": "float32"}).name
    """
    recorded = {
        "name": str(name or cue_file.backbone.name),
        "dtype": LOADED_FORMATS.get(cue_file.backbone.dtype, "float32"),
    }
    if cue_file.backbone.quantization in get_args(Quantization):  # else it is the checkpoint's
        recorded["quantization"] = cue_file.backbone.quantization
    values = {**recorded, "allow_pickle": allow_pickle, **(settings or {})}
    try:
        return BackboneConfig.model_validate(values)
    except ValidationError as error:
        raise as_configuration_error("backbone", error) from error


def backbone_settings(
    device: str | None, dtype: str | None, attention: str | None, quantization: str | None
) -> dict[str, str]:
    """The settings of a backbone that were said, by name.

    Example:
        >>> backbone_settings(None, "bfloat16", None, "int8")
        {'dtype': 'bfloat16', 'quantization': 'int8'}
    """
    settings = {"device": device, "dtype": dtype, "attention": attention, "quantization": quantization}
    return {name: value for name, value in settings.items() if value is not None}


def settings_for_runtime(settings: Mapping[str, str]) -> dict[str, str]:
    """The settings of a backbone whose layers run elsewhere: in float32, with which answers are compared.

    Example:
        >>> settings_for_runtime({"device": "cpu"})
        {'device': 'cpu', 'dtype': 'float32', 'quantization': 'none'}
    """
    plain = {"dtype": "float32", "quantization": "none"}
    for name, value in plain.items():
        if settings.get(name, value) != value:
            raise ConfigurationError(
                setting=name,
                got=settings[name],
                expected=f"{value} beside another runtime than torch, which has a number format of its own",
                fix="pass runtime_dtype instead",
            )
    return {**settings, **plain}


def check_no_settings(settings: Mapping[str, str]) -> None:
    """Raise an error if a backbone that is loaded already should be loaded in another way.

    Example:
        >>> check_no_settings({})
    """
    for name, value in settings.items():
        raise ConfigurationError(
            setting=name,
            got=value,
            expected="no such setting beside a backbone that is loaded already",
            fix=f"load the backbone with it, or pass the backbone's name: backbone=NAME, {name}={value!r}",
        )


def describe_quantization(cue_file: CueFile, backbone: Backbone) -> str | None:
    """How the quantization of a backbone differs from the one a cue was trained on, in words; None if it does not.

    Example:
        describe_quantization(cue.cue_file, cue.backbone)     # None
    """
    trained = cue_file.backbone.quantization
    if trained == backbone.quantization:
        return None
    return (
        f"trained on a backbone with quantization={trained}, loaded on one with quantization={backbone.quantization}; "
        "its predictions may differ: score it again with `softcue evaluate`"
    )


def _load_model(folder: Path, cue_file: CueFile, backbone: Backbone) -> TaskModel:
    """The model of a cue with its parameters, on a backbone that fits it.

    The file must hold what cue.json describes before memory is taken for it: a small file may describe any size.
    """
    try:
        with torch.random.fork_rng(devices=[]):  # a head draws initial values; they are replaced below
            shapes = _recorded_shapes(cue_file, backbone)
            tensors = _checked_tensors(folder, cue_file, shapes)
            model = build_model(cue_file, backbone)
    except ConfigurationError as error:
        expected = "a method and a readout of this softcue"
        raise CueError(setting=str(folder / "cue.json"), got=str(error), expected=expected, fix=TRY_AGAIN) from error
    model.load_state_dict(tensors)
    model = model.to(backbone.device).eval()
    if any(value.numel() and float(value.abs().max()) > LARGE_NUMBER for value in tensors.values()):
        _check_with_trial(folder, model, backbone)
    return model


def _check_with_trial(folder: Path, model: TaskModel, backbone: Backbone) -> None:
    """Predict one short text: finite parameters that are absurdly large may give states that are not finite."""
    try:
        states, predictions = model.trial(backbone)
    except Exception as error:
        is_finite, reason = False, first_line(error)
    else:
        is_finite = bool(torch.isfinite(states).all()) and all(map(_is_finite, predictions))
        reason = "numbers so large that predictions are not finite"
    if not is_finite:
        file = folder / "cue.safetensors"
        raise CueError(setting=str(file), got=reason, expected="parameters of a trained cue", fix=TRY_AGAIN)


def _is_finite(prediction: Prediction) -> bool:
    numbers = [*(prediction.scores or {}).values(), *([] if prediction.value is None else [prediction.value])]
    return all(map(math.isfinite, numbers))


def _recorded_shapes(cue_file: CueFile, backbone: Backbone) -> dict[str, torch.Size]:
    """The shapes of the parameters that cue.json describes, from a model without memory."""
    try:
        with torch.device("meta"):
            model = build_model(cue_file, backbone)
    except (RuntimeError, NotImplementedError):
        # A method of another package may read numbers while it is built. The package is trusted, as all installed code.
        if cue_file.method["name"] in METHODS.built_in:
            raise
        model = build_model(cue_file, backbone)
    return {name: value.shape for name, value in model.state_dict().items()}


def build_model(cue_file: CueFile, backbone: Backbone) -> TaskModel:
    """The model that cue.json describes; its parameters are to be loaded afterwards."""
    config = method_config(cue_file.method)
    method = (METHODS[config.name], config)
    return make_task_model(cue_file.task, method, cue_file.readout, backbone, None, cue_file.backbone.max_length)


def start_from(model: TaskModel, origin: str, backbone: Backbone) -> str:
    """Initialise a new model with the parameters of a finished cue, and its head if both have the same labels.

    Returns the digest of the cue. This is supplementary training: a first cue on NLI rows, a second one from it. If the
    first stage has tuned the backbone too, the second one is on the exported backbone.
    """
    folder = Path(origin)
    cue_file = read_cue_file(folder)
    first = _load_first_stage(folder, cue_file, backbone)
    weights = first.method.weights
    # Weights are taken over if this run trains them too. Otherwise the backbone must have them already.
    with_weights = weights is not None and model.method.weights is not None
    first_tensors, tensors = (_method_tensors(stage.method, with_weights) for stage in (first, model))
    meanings = [stage.method.config.settings_to_match() for stage in (first, model)]
    if not tensors or tensor_shapes(first_tensors) != tensor_shapes(tensors) or meanings[0] != meanings[1]:
        raise ConfigurationError(
            setting="training.init_from",
            got=f"{origin} ({cue_file.method['name']})",
            expected=f"a cue of the same method and settings as this run ({model.method.config.name})",
            fix="train it with the same method.* settings" + _describe_differences(*meanings),
        )
    if weights is not None and model.method.weights is None and not weights.are_those_of(backbone):
        raise ConfigurationError(
            setting="training.init_from",
            got=f"{origin}, which has tuned its backbone",
            expected="its backbone in this run",
            fix=f"export it: softcue backbones export {origin} FOLDER, then --backbone FOLDER",
        )
    model.method.load_state_dict({**model.method.state_dict(), **first_tensors})
    # The scale of regression targets comes from the new rows.
    head, new_head = (
        {name: value for name, value in stage.readout.state_dict().items() if name not in ("mean", "scale")}
        for stage in (first, model)
    )
    has_same_labels = first.readout.task.label_names == model.readout.task.label_names
    reads_same = type(first.readout) is type(model.readout) and first.readout.summary == model.readout.summary
    if head and has_same_labels and reads_same and tensor_shapes(head) == tensor_shapes(new_head):
        model.readout.load_state_dict({**model.readout.state_dict(), **head})
        model.readout.is_taken_over = True
    return cue_file.record_sha256


def _load_first_stage(folder: Path, cue_file: CueFile, backbone: Backbone) -> TaskModel:
    """The model of a cue on the backbone it was trained on, or on an export of the backbone that it has tuned."""
    differences = Fingerprint(**cue_file.backbone.fingerprint).differences(backbone.fingerprint)
    if differences == ["weights"] and method_config(cue_file.method).tunes_backbone:
        model = _load_model(folder, cue_file, backbone)
        if model.method.weights is not None and model.method.weights.are_those_of(backbone):
            return model
    _check_backbone(folder, cue_file, backbone)
    return _load_model(folder, cue_file, backbone)


def _method_tensors(method: Method, with_weights: bool) -> dict[str, Tensor]:
    """The tensors of a method, with or without the backbone's weights."""
    tensors: dict[str, Tensor] = method.state_dict()
    return {name: value for name, value in tensors.items() if with_weights or not name.startswith("weights.")}


def _describe_differences(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """The settings of a method that differ between two stages."""
    if first["name"] != second["name"]:
        return ""
    differences = [
        f"method.{key} is {first[key]} there and {value} here" for key, value in second.items() if first[key] != value
    ]
    return f": {', '.join(differences)}" if differences else ""


def _check_backbone(folder: Path, cue_file: CueFile, backbone: Backbone) -> None:
    expected = Fingerprint(**cue_file.backbone.fingerprint)
    if differences := expected.differences(backbone.fingerprint):
        raise BackboneMismatchError(
            differences,
            setting=f"backbone of {folder}",
            got=f"{_format_fingerprint(backbone.fingerprint)} ({backbone.name})",
            expected=f"{_format_fingerprint(expected)} ({cue_file.backbone.name})",
        )


def _format_fingerprint(fingerprint: Fingerprint) -> str:
    return " ".join(f"{part} {digest}" for part, digest in vars(fingerprint).items())


def _checked_tensors(folder: Path, cue_file: CueFile, expected: Mapping[str, torch.Size]) -> dict[str, Tensor]:
    """The tensors of a cue, read once: finite numbers of the expected names and shapes, with the recorded digest."""
    from safetensors import SafetensorError
    from safetensors.torch import load as parse_tensors

    file = folder / "cue.safetensors"
    limit = FILE_OVERHEAD + sum(torch.float32.itemsize * shape.numel() for shape in expected.values())
    available = read_memory().available
    if available is not None:
        limit = min(limit, int(available * GIGABYTE / COPIES_IN_MEMORY))
    try:
        data = read_within(file, limit)  # once: what is checked is what is loaded
    except OSError as error:
        raise CueError(
            setting=str(file), got=error.strerror or "unreadable", expected="the cue's parameters", fix=TRY_AGAIN
        ) from error
    if hashlib.sha256(data).hexdigest() != cue_file.tensors_sha256:
        raise CueError(
            setting=str(file),
            got="other content than cue.json records",
            expected=f"sha256 {cue_file.tensors_sha256}",
            fix="restore the file; if a run was interrupted here, continue it with `resume=True`",
        )
    try:
        tensors: dict[str, Tensor] = parse_tensors(data)
    except (SafetensorError, ValueError, KeyError) as error:
        raise CueError(
            setting=str(file), got=str(error), expected="a readable safetensors file", fix=TRY_AGAIN
        ) from error
    if missing := sorted(set(expected) - set(tensors)):
        raise CueError(
            setting=str(file), got=f"no tensor '{missing[0]}'", expected=f"tensors {sorted(expected)}", fix=TRY_AGAIN
        )
    if extra := sorted(set(tensors) - set(expected)):
        raise CueError(
            setting=str(file), got=f"tensor '{extra[0]}'", expected=f"tensors {sorted(expected)} only", fix=TRY_AGAIN
        )
    for name, value in tensors.items():
        where = f"{file}, tensor '{name}'"
        if value.shape != expected[name]:
            raise CueError(
                setting=where, got=list(value.shape), expected=f"shape {list(expected[name])}", fix=TRY_AGAIN
            )
        if value.dtype != torch.float32:
            raise CueError(setting=where, got=value.dtype, expected="float32", fix=TRY_AGAIN)
        if not bool(torch.isfinite(value).all()):
            raise CueError(setting=where, got="NaN or infinity", expected="finite numbers", fix=TRY_AGAIN)
    return tensors


def _shorten(labels: Sequence[str]) -> str:
    """Labels in one line; of very many, the first ones and their number."""
    if len(labels) <= MAX_LABELS_SHOWN:
        return ", ".join(labels)
    return f"{', '.join(labels[:MAX_LABELS_SHOWN])}, ... ({len(labels)} in all)"


def _names_a_file(text: str) -> bool:
    """Whether a text is the path of an existing file with rows."""
    return text.lower().endswith(DATA_SUFFIXES) and os.path.isfile(text)
