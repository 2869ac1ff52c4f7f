"""Other software on the rows of a study: logistic regression, SetFit and PEFT's LoRA, each with its defaults.

A study names them below `methods` (benchmarks/studies/evidence.yaml):

    - {name: SetFit, function: "benchmarks.peers:train_setfit"}
"""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

from softcue.backbones.loading.sources import find_source
from softcue.errors import MissingExtraError
from softcue.studies.peers import PeerResult, PeerRun
from softcue.types import Example, Prediction

LORA_RATE, LORA_EPOCHS, LORA_BATCH = 2e-4, 3, 8  # PEFT's quick tour: its rate; transformers' own epochs and batch


def train_logistic_regression(run: PeerRun) -> PeerResult:
    """scikit-learn's defaults on the sentence vectors of sentence-transformers."""
    from sklearn.linear_model import LogisticRegression

    model = import_peer("sentence_transformers").SentenceTransformer(str(run.backbone.folder), device="cpu")
    vectors, scored = (
        model.encode(texts_of(examples), show_progress_bar=False) for examples in (run.splits.train, scored_rows(run))
    )
    head = LogisticRegression(max_iter=1000).fit(vectors, labels_of(run.splits.train))
    return PeerResult(predictions_of(head.predict(scored)), trainable=head.coef_.size)


def train_setfit(run: PeerRun) -> PeerResult:
    """SetFit's defaults: one epoch of contrastive pairs, then a logistic regression."""
    return fit_and_predict_setfit(run.backbone.folder, run.splits.train, scored_rows(run), run.seed)


def fit_and_predict_setfit(
    backbone: Path | None, train: Sequence[Example], scored: Sequence[Example], seed: int
) -> PeerResult:
    """Load a sentence-transformers folder, train SetFit on some rows and predict others."""
    model = import_peer("setfit").SetFitModel.from_pretrained(str(backbone), device="cpu")
    run_setfit(model, train, seed)
    predicted = model.predict(texts_of(scored), as_numpy=True)
    return PeerResult(predictions_of(predicted), trainable=sum(p.numel() for p in model.model_body.parameters()))


def run_setfit(model: Any, examples: Sequence[Example], seed: int = 42, callbacks: Sequence[Any] = ()) -> None:
    """Train a SetFit model with its defaults, quietly."""
    setfit, datasets = import_peer("setfit"), import_peer("datasets")
    from transformers import ProgressCallback

    with tempfile.TemporaryDirectory() as folder:
        arguments = setfit.TrainingArguments(
            output_dir=folder,
            report_to="none",
            save_strategy="no",
            eval_strategy="no",
            logging_strategy="no",
            show_progress_bar=False,
            seed=seed,
        )
        rows = datasets.Dataset.from_dict({"text": texts_of(examples), "label": labels_of(examples)})
        trainer = setfit.Trainer(model, arguments, train_dataset=rows, callbacks=list(callbacks))
        trainer.remove_callback(ProgressCallback)
        with contextlib.redirect_stdout(sys.stderr):  # standard output is for results
            trainer.train()


def train_lora(run: PeerRun) -> PeerResult:
    """PEFT's LoRA with its defaults for sequence classification, trained by transformers' Trainer with its defaults."""
    peft, transformers = import_peer("peft"), import_module("transformers")
    source = find_source(run.backbone.name)
    names = list(run.splits.task.label_names)
    tokenizer = transformers.AutoTokenizer.from_pretrained(source.name, **source.options)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token
    torch.manual_seed(run.seed)
    base = transformers.AutoModelForSequenceClassification.from_pretrained(
        source.name, num_labels=len(names), **source.options
    )
    base.config.pad_token_id = tokenizer.pad_token_id
    if source.gguf_file is not None:  # its weights are plain float32 by now
        base.hf_quantizer, base.is_quantized = None, False
        del base.config.quantization_config
    model = peft.get_peft_model(base, peft.LoraConfig(task_type="SEQ_CLS"))
    max_length = run.backbone_settings.get("max_length") or 512

    def encode(examples: Sequence[Example]) -> list[dict[str, Any]]:
        columns = [list(texts) for texts in zip(*(example.texts for example in examples), strict=True)]
        encoded = tokenizer(*columns, truncation=True, max_length=max_length)
        return [
            {**{key: values[number] for key, values in encoded.items()}, "labels": names.index(str(example.target))}
            for number, example in enumerate(examples)
        ]

    with tempfile.TemporaryDirectory() as output:
        arguments = transformers.TrainingArguments(
            output_dir=output,
            learning_rate=LORA_RATE,
            num_train_epochs=LORA_EPOCHS,
            per_device_train_batch_size=LORA_BATCH,
            per_device_eval_batch_size=32,
            report_to="none",
            save_strategy="no",
            logging_strategy="no",
            disable_tqdm=True,
            use_cpu=True,
            seed=run.seed,
        )
        trainer = transformers.Trainer(
            model,
            arguments,
            train_dataset=encode(run.splits.train),
            data_collator=transformers.DataCollatorWithPadding(tokenizer),
        )
        with contextlib.redirect_stdout(sys.stderr):
            trainer.train()
            outputs = trainer.predict(encode(scored_rows(run))).predictions
    logits = outputs[0] if isinstance(outputs, tuple) else outputs  # a T5 gives its encoder's states too
    predicted = [names[index] for index in torch.tensor(logits).argmax(dim=1).tolist()]
    return PeerResult(
        predictions_of(predicted), trainable=sum(p.numel() for p in model.parameters() if p.requires_grad)
    )


def scored_rows(run: PeerRun) -> Sequence[Example]:
    """The rows that are scored."""
    return run.splits.test or run.splits.validation


def texts_of(examples: Sequence[Example]) -> list[str]:
    """The text of each row; two texts in one, as software for single texts needs it."""
    return [" ".join(example.texts) for example in examples]


def labels_of(examples: Sequence[Example]) -> list[str]:
    """The label of each row."""
    return [str(example.target) for example in examples]


def predictions_of(labels: Sequence[Any]) -> list[Prediction]:
    """Labels as predictions."""
    return [Prediction(str(label)) for label in labels]


def import_peer(package: str) -> Any:
    """Import a package of the extra `bench`, or say how to install it."""
    try:
        return import_module(package)
    except ImportError as error:
        raise MissingExtraError(package, "bench") from error
