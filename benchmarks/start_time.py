"""`python -m benchmarks start`: a whole `softcue predict CUE TEXT` against a bare script on the same MiniLM.

The bare script imports torch and transformers, loads the same model in the same number format and runs one pass.
Processor seconds count, of all threads: on a busy machine the clock says little. What a machine measures once (kernels,
the cost of a pass) is measured before, as for the second command of a user.
"""

from __future__ import annotations

import os
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.measuring import interleave_values, make_figure, median_ratio
from benchmarks.plan import Figures, Plan

TEXT = "Why was I charged twice for one order?"
BARE = """
import sys
import torch
from transformers import AutoModel, AutoTokenizer

folder, dtype, text = sys.argv[1:]
tokenizer = AutoTokenizer.from_pretrained(folder)
model = AutoModel.from_pretrained(folder, dtype=getattr(torch, dtype)).eval()
with torch.no_grad():
    model(**tokenizer([text], return_tensors="pt"))
"""


def start_figures(plan: Plan) -> Figures:
    """Measure the figure of `python -m benchmarks start`."""
    import softcue
    from softcue.backbones.loading.sources import find_source

    with tempfile.TemporaryDirectory() as folder:
        cue = softcue.train(
            Path(folder) / "cue",
            task="tickets",
            backbone="minilm",
            method="prompt-tuning",
            overrides={"training.steps": 1, "training.min_steps": 0, "task.test_rows": 1},
            progress=False,
        )
        model_folder = find_source("minilm").folder
        dtype = cue.cue_file.backbone.dtype
        seconds = interleave_values(
            {
                "ours": lambda: child_seconds(["-m", "softcue", "predict", str(cue.path), TEXT]),
                "bare": lambda: child_seconds(["-c", BARE, str(model_folder), dtype, TEXT]),
            },
            plan.repeats,
            warmup=1,
        )
    ratio, spread = median_ratio(seconds, "ours", "bare")
    meaning = "processor seconds: softcue predict CUE TEXT / a bare script"
    return {"cold_predict_vs_bare_script": make_figure(ratio, 1.2, spread, plan.repeats, meaning)}


def child_seconds(arguments: list[str]) -> float:
    """Processor seconds of a fresh Python process, user and system.

    Example:
        >>> child_seconds(["-c", "pass"]) > 0
        True
    """
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    subprocess.run([sys.executable, *arguments], check=True, env=environment, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
