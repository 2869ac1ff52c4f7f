"""PEFT's models and a Hugging Face trainer on them, at their documented settings."""

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
from softcue.inputs.collate import by_length, collate
from softcue.types import Example

TASK_TYPES = {"encoder": "SEQ_CLS", "encoder-decoder": "SEQ_2_SEQ_LM", "decoder": "CAUSAL_LM"}


def peft_model(kind: str, model: Any, length: int, config: str = "PromptTuningConfig", **settings: Any) -> Any:
    """A transformers model with one of PEFT's prompts of that length."""
    try:
        import peft
    except ImportError as error:
        raise MissingExtraError("peft", "bench") from error
    made = getattr(peft, config)(task_type=TASK_TYPES[kind], num_virtual_tokens=length, **settings)
    return peft.get_peft_model(model, made)


def without_dropout(model: Any) -> None:
    """Train the prompt while the frozen model runs as it does in evaluation, which is how ours always runs."""
    model.train()
    model.base_model.eval()


def dropout_free(model: Any) -> Any:
    """A copy of a transformers model that has no dropout even in training."""
    found = copy.deepcopy(model)
    for module in found.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(vars(module).get("dropout"), float):  # T5's attention
            module.dropout = 0.0
    return found


def peft_step(model: Any, batch: Callable[[], Mapping[str, Any]]) -> Callable[[], float]:
    """A step as PEFT's examples do one, with the model's own loss, which it gives; each on a batch of its own."""
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = model(**batch()).loss
        loss.backward()
        optimizer.step()
        return float(loss.detach())

    return step


@torch.no_grad()
def with_prompt_of(model: Any, cue: TaskModel) -> Any:
    """PEFT's prompt tuning with our numbers."""
    (prompt,) = cue.method.prompt_parameters()
    # On encoder-decoders its table has as many rows again for the decoder, which its forward pass leaves out.
    model.prompt_encoder[model.active_adapter].embedding.weight[: len(prompt)].copy_(prompt)
    return model


def peft_answering(
    model: Any, backbone: Backbone, cue: TaskModel, examples: Sequence[Example], batch_size: int, max_tokens: int
) -> Callable[[], list[list[float]]]:
    """PEFT's probabilities of the labels: of a head on encoders, of the label words elsewhere.

    All that is documented is used: no gradients, no cache that nobody will read, batches of like length, logits only
    where some text ends. Tokens and batches are made in advance, which ours makes in its turn. How many tokens a pass
    should have is for the caller to find out (`faster`).
    """
    rows = cue.rows(backbone, examples)
    lengths = [len(row.ids) + cue.method.prompt_length for row in rows]
    batches = [
        (some, collate([rows[number] for number in some], backbone.tokenizer.pad_token_id))
        for some in by_length(lengths, batch_size, max_tokens)
    ]
    words: Any = getattr(cue.readout, "word_ids", None)

    @torch.no_grad()
    def step() -> list[list[float]]:
        found: dict[int, list[float]] = {}
        for some, batch in batches:
            asked: dict[str, Any] = {"input_ids": batch.ids, "attention_mask": batch.mask.long()}
            if backbone.kind == "encoder":
                scores = model(**asked).logits
            elif backbone.kind == "encoder-decoder":
                first = torch.full((batch.size, 1), backbone.start_id)
                scores = model(**asked, decoder_input_ids=first).logits[:, 0, words]
            else:
                ends, where = (batch.mask.sum(dim=1) - 1 + cue.method.prompt_length).unique(return_inverse=True)
                logits = model(**asked, logits_to_keep=ends, use_cache=False).logits
                scores = logits[torch.arange(batch.size), where][:, words]
            found |= zip(some, scores.softmax(dim=-1).tolist(), strict=True)
        return [found[number] for number in range(len(rows))]

    return step


def faster(seconds: Mapping[str, Sequence[float]], *names: str) -> str:
    """Which of some contestants is a peer at its best.

    Example:
        >>> faster({"ours": [1.0], "small": [3.0, 2.0, 3.0], "large": [4.0, 4.0, 1.0]}, "small", "large")
        'small'
    """
    return min(names, key=lambda name: statistics.median(seconds[name]))


def trainer_epoch(model: Any, rows: Sequence[dict[str, Any]], batch_size: int) -> Callable[[], float]:
    """One epoch of transformers' Trainer over rows in this order; each batch is padded to its longest row.

    It gives the seconds before the first step, which are the same for a short epoch and a long one.
    """
    import transformers as hf

    tokenizer = _padding_tokenizer()
    is_labelled = isinstance(rows[0]["labels"], int)
    collator = hf.DataCollatorWithPadding(tokenizer) if is_labelled else hf.DataCollatorForSeq2Seq(tokenizer)

    def step() -> float:
        began = time.perf_counter()
        first: list[float] = []

        class Start(hf.TrainerCallback):  # type: ignore[misc]
            def on_step_begin(self, *_: Any, **__: Any) -> None:
                if not first:
                    first.append(time.perf_counter() - began)

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
            trainer = hf.Trainer(model, arguments, collator, rows, callbacks=[Start()])
            trainer.remove_callback(hf.PrinterCallback)  # which writes to standard output
            trainer.train()
        return first[0]

    return step


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
    """All that a collator needs of a tokenizer: how to pad, with 0 as in BERT and T5."""
    import tokenizers
    from transformers import PreTrainedTokenizerFast

    words = tokenizers.Tokenizer(tokenizers.models.WordLevel({"0": 0}, unk_token="0"))
    return PreTrainedTokenizerFast(tokenizer_object=words, pad_token="0")
