"""`python -m benchmarks host`: what a row costs besides the backbone's layers, and what choosing a batch costs.

The backbone has one narrow layer, so nearly all the time is that of reading, tokenizing, batching and writing. Its
tokenizer is trained on the sample texts. Processor seconds count, of all threads.
"""

from __future__ import annotations

import csv
import gc
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from pathlib import Path
from typing import Any

import softcue
from benchmarks.measuring import interleave_values, make_figure, median_and_spread
from benchmarks.plan import Figures, Plan, measure_parts
from benchmarks.workloads import real_texts
from softcue import Cue, Engine
from softcue.backbones import Backbone
from softcue.serving.engine.batcher import Limits, choose_batch
from softcue.serving.engine.registry import LoadedCue
from softcue.serving.engine.requests import BatchRow, Options, RequestRow
from softcue.types import TokenizedRow

NUM_ROWS = 16384
FEW_ROWS = 256  # of the run that is subtracted: its time is that of loading
NUM_WAITING = 512  # rows that wait while a batch is chosen
GPU_TOKENS = 16384  # of a batch
WORDS = 4000
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def host_figures(plan: Plan, num_rows: int = NUM_ROWS) -> Figures:
    """Measure every figure of `python -m benchmarks host`.

    Example:
        host_figures(Plan(repeats=3))["host_rows_per_second"]["ratio"]
    """
    with tempfile.TemporaryDirectory() as name, _one_layer_cue(Path(name), plan) as cue:
        texts = numbered_texts(plan.data, num_rows)

        def from_file_to_file(plan: Plan) -> Figures:
            return file_figures(plan, cue, texts, Path(name))

        def through_the_engine(plan: Plan) -> Figures:
            return engine_figures(plan, cue, texts)

        def choice_of_a_batch(plan: Plan) -> Figures:
            return choice_figures(plan, cue)

        return measure_parts((from_file_to_file, through_the_engine, choice_of_a_batch), plan)


def file_figures(plan: Plan, cue: Cue, texts: Sequence[str], folder: Path) -> Figures:
    """`softcue predict CUE --input rows.csv --output predictions.jsonl`, less the time of a file with few rows."""
    from softcue.cli.predict import predict

    assert cue.path is not None
    files = {len(rows): folder / f"{len(rows)}.csv" for rows in (texts, texts[:FEW_ROWS])}
    for size, file in files.items():
        with file.open("w", newline="", encoding="utf-8") as stream:
            writer = csv.writer(stream)
            writer.writerows([["text"], *([text] for text in texts[:size])])

    def rate() -> float:
        seconds = {}
        for size, file in files.items():
            started = time.process_time()
            predict([str(cue.path)], source=str(file), output=file.with_suffix(".jsonl"))
            seconds[size] = time.process_time() - started
            assert file.with_suffix(".jsonl").read_bytes().count(b"\n") == size
        return (len(texts) - FEW_ROWS) / (seconds[len(texts)] - seconds[FEW_ROWS])

    meaning = f"rows of a csv file to a jsonl file in a processor second, {len(texts)} rows, one-layer encoder"
    return {"host_rows_per_second": _rate_figure(plan, rate, meaning)}


def engine_figures(plan: Plan, cue: Cue, texts: Sequence[str]) -> Figures:
    """Texts through the engine of the server. Their numbers are new in each run: known words save time."""
    with Engine(cue.backbone, {"cue": cue}, Limits(max_in_flight=8192, max_rows=256)) as engine:
        runs = count()

        def rate() -> float:
            run = next(runs)
            items = [("cue", f"{text}{run:03}") for text in texts]
            gc.freeze()  # as `softcue predict` does
            started = time.process_time()
            engine.predict(items)
            seconds = time.process_time() - started
            gc.unfreeze()
            return len(items) / seconds

        meaning = f"texts through the engine in a processor second, {len(texts)} texts, one-layer encoder"
        return {"host_engine_rows_per_second": _rate_figure(plan, rate, meaning)}


def choice_figures(plan: Plan, cue: Cue) -> Figures:
    """One choice of a batch while many rows wait, with the token budgets of a processor and of a GPU."""
    lengths = [
        len(row.ids) for row in cue.model.rows(cue.backbone, cue.examples(numbered_texts(plan.data, NUM_WAITING)))
    ]
    figures: Figures = {}
    for key, budget in (("", None), ("_gpu_budget", GPU_TOKENS)):
        limits = Limits(token_budget=budget)
        rows = waiting_rows(cue, lengths)

        def milliseconds(limits: Limits = limits, rows: Sequence[BatchRow] = rows) -> float:
            started = time.process_time()
            for _ in range(20):
                choose_batch(rows, time.monotonic(), limits, cue.backbone.pass_tokens)
            return 1000 * (time.process_time() - started) / 20

        values = interleave_values({"choice": milliseconds}, max(3, plan.repeats), warmup=1)["choice"]
        median, spread = median_and_spread(values)
        meaning = f"milliseconds to choose a batch among {NUM_WAITING} rows, {budget or 'the usual'} tokens"
        figures[f"batch_choice_ms{key}"] = make_figure(median, 0.3, spread, len(values), meaning)
    return figures


def _rate_figure(plan: Plan, rate: Any, meaning: str) -> dict[str, Any]:
    median, spread = median_and_spread(interleave_values({"rate": rate}, plan.repeats, warmup=1)["rate"])
    return make_figure(median, 10_000, spread, plan.repeats, meaning, ">=")


def waiting_rows(cue: Cue, lengths: Sequence[int]) -> list[BatchRow]:
    """Rows of these lengths that wait for a batch, in the order of arrival."""
    example = cue.examples(["a"])[0]
    loaded = LoadedCue.of("cue", cue)
    request_rows = [RequestRow(loaded, cue.model, example, Options()) for _ in lengths]
    tokens = [TokenizedRow((1,) * length, None, 0) for length in lengths]
    return [BatchRow.of(row, 0, row_tokens) for row, row_tokens in zip(request_rows, tokens, strict=True)]


def numbered_texts(data: Path | None, num_texts: int) -> list[str]:
    """Different texts: those of published files or samples, again and again with a number.

    Example:
        >>> len(set(numbered_texts(None, 1000)))
        1000
    """
    texts = real_texts(data, num_texts)
    return [f"{texts[number % len(texts)]} {number}" for number in range(num_texts)]


@contextmanager
def _one_layer_cue(folder: Path, plan: Plan) -> Iterator[Cue]:
    backbone = one_layer_backbone(real_texts(plan.data, WORDS))
    backbone.save(folder / "backbone")
    yield softcue.train(
        folder / "cue",
        task="tickets",
        method="prompt-tuning",
        backbone=str(folder / "backbone"),
        overrides={
            "training.steps": 1,
            "training.min_steps": 0,
            "task.test_rows": 1,
            "method.prompt_length": 6,
            "backbone.dtype": "float32",
        },
        progress=False,
    )


def one_layer_backbone(texts: Sequence[str]) -> Backbone:
    """An encoder with one layer of width 8 and random weights, and a tokenizer that these texts train."""
    import transformers as hf
    from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors, trainers

    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer = normalizers.BertNormalizer()
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.train_from_iterator(
        texts, trainers.WordPieceTrainer(vocab_size=WORDS, special_tokens=list(SPECIAL), show_progress=False)
    )
    ends = [(token, SPECIAL.index(token)) for token in ("[CLS]", "[SEP]")]
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=ends
    )
    roles = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token", "mask_token"), SPECIAL, strict=True))
    fast = hf.BertTokenizerFast(tokenizer_object=tokenizer, model_max_length=512, **roles)
    config = hf.BertConfig(
        vocab_size=WORDS, hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8
    )
    return Backbone(hf.BertModel(config), fast, "one layer")
