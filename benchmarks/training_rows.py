"""`python -m benchmarks rows`: resident memory and seconds of a training run by the number of its rows.

Each size is a csv file of short rows and a process of its own that trains a few steps on all of them. The peak has the
pages of mapped files too, which the system takes back when memory is short; `own` is without them.
"""

from __future__ import annotations

import json
import random
import resource
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.load import child_environment

SIZES = (100_000, 1_000_000, 10_000_000)
VALIDATION_ROWS = 200
WORDS_PER_ROW = 6
BLOCK = 10_000  # rows that are written at once
POLL_SECONDS = 0.2
# One small layer: what is measured does not depend on the backbone.
SHAPE = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 4, "intermediate_size": 128}


def measure_rows(sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Measure a run of each size; a size after the first also has the bytes that each further row takes.

    Example:
        measure_rows([1_000_000, 10_000_000])[1]["peak_megabytes"]
    """
    points: list[dict[str, Any]] = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            train, validation = Path(folder) / "train.csv", Path(folder) / "validation.csv"
            write_rows(train, size, seed=0)
            write_rows(validation, VALIDATION_ROWS, seed=1)
            words = [sys.executable, "-m", "benchmarks.training_rows", str(train), str(validation), folder]
            environment = child_environment() | {"SOFTCUE_HOME": str(Path(folder) / "home")}
            ended = subprocess.run(words, env=environment, check=True, stdout=subprocess.PIPE)
            point = {"rows": size, "file_megabytes": train.stat().st_size / 2**20, **json.loads(ended.stdout)}
        if points:
            further = size - points[0]["rows"]
            grown = point["peak_megabytes"] - points[0]["peak_megabytes"]
            point["bytes_per_row"] = grown * 2**20 / further
        points.append(point)
    return points


def write_rows(path: Path, size: int, seed: int) -> None:
    """Write a csv file of short rows: texts of written-out token ids, and two labels.

    Example:
        write_rows(Path("rows.csv"), 1000, seed=0)
    """
    draws = random.Random(seed)
    with path.open("w") as file:
        file.write("text,label\n")
        for first in range(0, size, BLOCK):
            lines = []
            for number in range(first, min(size, first + BLOCK)):
                text = " ".join(str(draws.randrange(10, 1000)) for _ in range(WORDS_PER_ROW))
                lines.append(f"{text},{'ab'[number % 2]}\n")
            file.write("".join(lines))


def train_once(train: str, validation: str, folder: str) -> dict[str, float]:
    """Train a few steps on a file, and return seconds and megabytes of this process.

    Example:
        train_once("train.csv", "validation.csv", "runs/rows")
    """
    from transformers import BertConfig, BertModel

    from softcue import train as run
    from softcue.backbones import Backbone

    tokenizer = number_tokenizer()
    config = BertConfig(vocab_size=len(tokenizer), **SHAPE)
    backbone = Backbone(BertModel(config), tokenizer, "random encoder")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    own, is_over = [0.0], threading.Event()

    def poll() -> None:
        while not is_over.wait(POLL_SECONDS):
            own[0] = max(own[0], _anonymous_megabytes())

    poller = threading.Thread(target=poll, daemon=True)
    poller.start()
    started = time.perf_counter()
    settings: dict[str, Any] = {"training.steps": 20, "training.batch_size": 16, "training.evaluate_every": 20}
    settings |= {
        "readout.head_start": "random",
        "readout.refit": False,
        "readout.pooling": "cls",
    }  # no passes over thousands of rows
    run(
        Path(folder) / "cue",
        train=train,
        validation=validation,
        text="text",
        label="label",
        backbone=backbone,
        method="prompt-tuning",
        overrides=settings,
        progress=False,
    )
    seconds = time.perf_counter() - started
    is_over.set()
    poller.join()
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"seconds": seconds, "before_megabytes": before, "peak_megabytes": peak, "own_megabytes": own[0]}


def number_tokenizer() -> Any:
    """A fast tokenizer of transformers, as real models have, whose words are numbers.

    Example:
        number_tokenizer()("12 13")["input_ids"]
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {word: number for number, word in enumerate([*special, *map(str, range(10, 1000))])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="[PAD]",
        unk_token="[UNK]",
        cls_token="[CLS]",
        sep_token="[SEP]",
        mask_token="[MASK]",
    )


def _anonymous_megabytes() -> float:
    """Resident memory of this process without pages of files."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith("RssAnon"))


if __name__ == "__main__":
    print(json.dumps(train_once(*sys.argv[1:])))
