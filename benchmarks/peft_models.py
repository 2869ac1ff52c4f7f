"""PEFT's models, and transformers' Trainer on them, with their documented settings."""

from __future__ import annotations

import copy
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from softcue.backbones import Backbone
from softcue.errors import MissingExtraError
from softcue.inference import TaskModel
from softcue.inputs.collate import batch_by_length, collate
from softcue.types import Example

TASK_TYPES = {"encoder": "SEQ_CLS", "encoder-decoder": "SEQ_2_SEQ_LM", "decoder": "CAUSAL_LM"}


def make_peft_model(kind: str, model: Any, length: int, config: str = "PromptTuningConfig", **settings: Any) -> Any:
    """Wrap a transformers model with one of PEFT's prompts of that length."""
    try:
        import peft
    except ImportError as error:
        raise MissingExtraError("peft", "bench") from error
    peft_config = getattr(peft, config)(task_type=TASK_TYPES[kind], num_virtual_tokens=length, **settings)
    return peft.get_peft_model(model, peft_config)


def freeze_in_evaluation_mode(model: Any) -> None:
    """Train the prompt while the frozen model runs in evaluation mode, as softcue's does."""
    model.train()
    model.base_model.eval()


def copy_without_dropout(model: Any) -> Any:
    """A copy of a transformers model that applies no dropout even in training mode."""
    copied = copy.deepcopy(model)
    for module in copied.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(vars(module).get("dropout"), float):  # T5's attention
            module.dropout = 0.0
    return copied


def make_peft_step(model: Any, next_batch: Callable[[], Mapping[str, Any]]) -> Callable[[], float]:
    """An optimizer step as in PEFT's examples. It takes a new batch each time and returns the model's loss."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = model(**next_batch()).loss
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


@torch.no_grad()
def copy_prompt(cue: TaskModel, model: Any) -> Any:
    """Give PEFT's prompt tuning the prompt of a cue; returns the model."""
    (prompt,) = cue.method.prompt_parameters()
    # On encoder-decoders PEFT's table holds as many rows again for the decoder, which its forward pass leaves out.
    model.prompt_encoder[model.active_adapter].embedding.weight[: len(prompt)].copy_(prompt)
    return model


def make_peft_prediction(
    model: Any, backbone: Backbone, cue: TaskModel, examples: Sequence[Example], batch_size: int, max_tokens: int
) -> Callable[[], list[list[float]]]:
    """A function that returns PEFT's label probabilities: of a head on encoders, of the label words elsewhere.

    It uses every documented saving: no gradients, no unused cache, batches of similar length, logits only where a text
    ends. Tokenizing and collating happen in advance; softcue does both within its timed turn. The caller measures which
    `max_tokens` per forward pass is faster (`fastest`).
    """
    rows = cue.rows(backbone, examples)
    lengths = [len(row.ids) + cue.method.prompt_length for row in rows]
    batches = [
        (indices, collate([rows[index] for index in indices], backbone.tokenizer.pad_token_id))
        for indices in batch_by_length(lengths, batch_size, max_tokens)
    ]
    word_ids: Any = getattr(cue.readout, "word_ids", None)

    @torch.no_grad()
    def predict() -> list[list[float]]:
        probabilities: dict[int, list[float]] = {}
        for indices, batch in batches:
            inputs: dict[str, Any] = {"input_ids": batch.ids, "attention_mask": batch.mask.long()}
            if backbone.kind == "encoder":
                scores = model(**inputs).logits
            elif backbone.kind == "encoder-decoder":
                start_ids = torch.full((batch.size, 1), backbone.start_id)
                scores = model(**inputs, decoder_input_ids=start_ids).logits[:, 0, word_ids]
            else:
                ends, end_index = (batch.mask.sum(dim=1) - 1 + cue.method.prompt_length).unique(return_inverse=True)
                logits = model(**inputs, logits_to_keep=ends, use_cache=False).logits
                scores = logits[torch.arange(batch.size), end_index][:, word_ids]
            probabilities |= zip(indices, scores.softmax(dim=-1).tolist(), strict=True)
        return [probabilities[index] for index in range(len(rows))]

    return predict


def fastest(seconds: Mapping[str, Sequence[float]], *names: str) -> str:
    """The contestant with the smallest median.

    Example:
        >>> fastest({"ours": [1.0], "small": [3.0, 2.0, 3.0], "large": [4.0, 4.0, 1.0]}, "small", "large")
        'small'
    """
    return min(names, key=lambda name: statistics.median(seconds[name]))


def make_trainer_epoch(model: Any, rows: Sequence[dict[str, Any]], batch_size: int) -> Callable[[], float]:
    """One epoch of transformers' Trainer over rows in this order. Each batch is padded to its longest row.

    It returns the seconds before the first step, which are the same for a short epoch and a long one.
    """
    import transformers as hf

    tokenizer = _padding_tokenizer()
    is_labelled = isinstance(rows[0]["labels"], int)
    collator = hf.DataCollatorWithPadding(tokenizer) if is_labelled else hf.DataCollatorForSeq2Seq(tokenizer)

    def run_epoch() -> float:
        started = time.perf_counter()
        start_seconds: list[float] = []

        class FirstStep(hf.TrainerCallback):  # type: ignore[misc]
            def on_step_begin(self, *_: Any, **__: Any) -> None:
                if not start_seconds:
                    start_seconds.append(time.perf_counter() - started)

        with tempfile.TemporaryDirectory() as folder:
            arguments = hf.TrainingArguments(
                output_dir=folder,
                num_train_epochs=1,
                per_device_train_batch_size=batch_size,
                learning_rate=1e-3,
                train_sampling_strategy="sequential",
                save_strategy="no",
                logging_strategy="no",
                report_to="none",
                disable_tqdm=True,
                use_cpu=True,
                dataloader_pin_memory=False,
            )
            trainer = hf.Trainer(model, arguments, collator, rows, callbacks=[FirstStep()])
            trainer.remove_callback(hf.PrinterCallback)  # it writes to standard output
            trainer.train()
        return start_seconds[0]

    return run_epoch


def trainer_batches(lengths: Sequence[int], batch_size: int, is_grouped: bool) -> list[list[int]]:
    """The batches of an epoch as transformers' Trainer draws them: at random, or grouped by length."""
    from transformers.trainer_pt_utils import LengthGroupedSampler

    generator = torch.Generator().manual_seed(0)
    if is_grouped:
        order = list(LengthGroupedSampler(batch_size, lengths=list(lengths), generator=generator))
    else:
        order = torch.randperm(len(lengths), generator=generator).tolist()
    return [order[start : start + batch_size] for start in range(0, len(order), batch_size)]


def _padding_tokenizer() -> Any:
    """A tokenizer that only pads, with id 0 as in BERT and T5: a collator needs no more."""
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({"0": 0}, unk_token="0"))
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="0")
