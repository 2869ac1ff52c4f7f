"""Compare the tensors and predictions of two commits: the same runs, trained by each, must agree bit for bit.

    python scripts/compare_behaviour.py --old 2f0e5b5            # against the working tree
    python scripts/compare_behaviour.py --old 2f0e5b5 --new HEAD --json result.json

Every run trains a tiny random model (encoder, encoder-decoder, decoder) in float32 on one thread with a fixed seed.
The models are made once, by the old commit's tests/tiny.py, and read by both. A configuration key that was renamed in
between is given to each commit under its own name (`RENAMED`). Digests depend on the processor, so both commits run on
this one. Exit code 1 if anything differs.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import platform
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# key at the old commit -> key from then on
RENAMED = {"training.prompt_rate": "training.learning_rate", "training.network_rate": "training.network_learning_rate"}

MODELS = ("bert", "t5", "gpt2")
METHODS = (
    "prompt-tuning",
    "m-idpg-phm",
    "vip",  # the three papers
    "s-idpg-phm",
    "m-idpg-dnn",
    "vip-c",
    "vip-idp",
    "p-tuning-v2",
    "prefix-tuning",
    "adapter",
    "compacter",
    "fine-tuning",
)
SHORT = {"method.prompt_length": 6, "training.steps": 8, "training.epochs": None, "training.batch_size": 8}
RATES = {"training.prompt_rate": 0.01, "training.network_rate": 0.005}
SMALL = {  # settings that fit a width of 32
    "m-idpg-phm": {"method.phm_n": 4, "method.bottleneck": 8},
    "s-idpg-phm": {"method.phm_n": 4, "method.bottleneck": 8},
    "m-idpg-dnn": {"method.bottleneck": 8},
    "vip": {"method.width": 8, "method.heads": 2, "method.layers": 1, "method.codes": 24, "method.draws": 3},
    "vip-c": {"method.width": 8, "method.heads": 2, "method.layers": 1},
    "vip-idp": {"method.bottleneck": 8},
    "adapter": {"method.bottleneck": 8},
    "compacter": {"method.bottleneck": 8, "method.phm_n": 4},
}
NO_PROMPT = ("adapter", "compacter", "fine-tuning")
EXTRA = {  # beside method x model, on tickets: task, model, method, settings
    "pairs": ("same-request", "bert", "prompt-tuning", {}),
    "late": ("tickets", "gpt2", "m-idpg-phm", {"method.insert_layer": 1}),
    "probe": ("tickets", "bert", "linear-probe", {}),
    "adafactor": ("urgency", "t5", "prompt-tuning", {"training.optimizer": "adafactor"}),
    "micro-batches": ("urgency", "gpt2", "vip", {"training.micro_batch_size": 3}),
}


def cases() -> dict[str, dict[str, Any]]:
    """Every run by its name."""
    runs = {f"{model} {method}": ("tickets", model, method, {}) for model in MODELS for method in METHODS}
    runs |= {
        f"{name}: {model} {method}": (task, model, method, more) for name, (task, model, method, more) in EXTRA.items()
    }
    described = {}
    for name, (task, model, method, more) in runs.items():
        settings: dict[str, Any] = {**SHORT, **RATES, **SMALL.get(method, {}), **more}
        settings |= {
            "task.train_rows": 48,
            "task.validation_rows": 24,
            "task.test_rows": 24,
            "backbone.dtype": "float32",
        }
        settings["backbone.attention"] = "eager"
        if method in NO_PROMPT or method == "linear-probe":
            settings.pop("method.prompt_length")
        if method == "linear-probe":
            settings = {key: value for key, value in settings.items() if not key.startswith("training.")}
        described[name] = {
            "task": task,
            "model": model,
            "method": method,
            "settings": {key: value for key, value in settings.items() if value is not None},
        }
    return described


def train_all(models: Path) -> dict[str, dict[str, str]]:
    """Run in a process of one commit: train every case and take the digest of each tensor and of the predictions."""
    import torch
    from safetensors.torch import load_file

    import softcue
    from softcue.training import TrainingConfig

    torch.set_num_threads(1)
    has_new_names = "learning_rate" in TrainingConfig.model_fields
    keys: Mapping[str, str] = RENAMED if has_new_names else {}
    digests: dict[str, dict[str, str]] = {}
    for name, case in cases().items():
        overrides = {keys.get(key, key): value for key, value in case["settings"].items()}
        with tempfile.TemporaryDirectory() as folder:
            cue = softcue.train(
                Path(folder) / "cue",
                task=case["task"],
                method=case["method"],
                seed=3,
                backbone=str(models / case["model"]),
                overrides=overrides,
                progress=False,
            )
            tensors = load_file(Path(folder) / "cue" / "cue.safetensors")
            taken = {key: hashlib.sha256(value.numpy().tobytes()).hexdigest() for key, value in sorted(tensors.items())}
            rows = [("My invoice is wrong.", "Where is my parcel?")[: len(cue.task.text)]] * 2
            told = [
                prediction.as_dict() for prediction in cue.predict([row if len(row) > 1 else row[0] for row in rows])
            ]
            scores = json.loads((Path(folder) / "cue" / "metrics.json").read_text())["scores"]
            taken["(predictions)"] = hashlib.sha256(json.dumps(told).encode()).hexdigest()
            taken["(scores)"] = json.dumps(scores)
        digests[name] = taken
        print(name, file=sys.stderr)
    return digests


def run_commit(root: Path, work: Path, models: Path) -> dict[str, dict[str, str]]:
    """The digests of a checked-out commit, taken in a process of its own."""
    home = tempfile.mkdtemp(dir=work)
    environment = {**os.environ, "PYTHONPATH": str(root / "src"), "SOFTCUE_HOME": home, "HF_HUB_OFFLINE": "1"}
    output = Path(home) / "digests.json"
    words = [sys.executable, __file__, "--worker", str(output), "--models", str(models)]
    subprocess.run(words, env=environment, check=True, cwd=work)
    return json.loads(output.read_text())  # type: ignore[no-any-return]


def checked_out(commit: str, folder: Path) -> Path:
    """A commit's files in a folder of their own."""
    folder.mkdir()
    archive = subprocess.run(["git", "archive", commit], cwd=ROOT, check=True, stdout=subprocess.PIPE).stdout
    subprocess.run(["tar", "-x"], cwd=folder, input=archive, check=True)
    return folder


def save_models(old: Path, folder: Path) -> None:
    """Tiny models as folders, made by the old commit."""
    program = (
        "import sys; sys.path.insert(0, sys.argv[1]); from tiny import tiny_model, tiny_tokenizer\n"
        "for name in sys.argv[3:]:\n"
        "    tiny_model(name).save_pretrained(f'{sys.argv[2]}/{name}')\n"
        "    tiny_tokenizer(name).save_pretrained(f'{sys.argv[2]}/{name}')\n"
    )
    words = [sys.executable, "-c", program, str(old / "tests"), str(folder), *MODELS]
    subprocess.run(words, env={**os.environ, "PYTHONPATH": str(old / "src")}, check=True)


def main() -> int:
    """Train with both commits and compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--old", help="the commit to compare with")
    parser.add_argument("--new", default="", help="another commit; else the working tree")
    parser.add_argument("--json", type=Path, help="write both sides' digests here")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--models", type=Path, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        given.worker.write_text(json.dumps(train_all(given.models)))
        return 0
    with tempfile.TemporaryDirectory() as name:
        work = Path(name)
        old = checked_out(given.old, work / "old")
        new = checked_out(given.new, work / "new") if given.new else ROOT
        models = work / "models"
        models.mkdir()
        save_models(old, models)
        before = run_commit(old, work, models)
        after = run_commit(new, work, models)
    different = {
        case: [key for key in taken | after[case] if taken.get(key) != after[case].get(key)]
        for case, taken in before.items()
        if taken != after[case]
    }
    if given.json:
        facts = {"processor": platform.processor() or platform.machine(), "old": before, "new": after}
        given.json.write_text(json.dumps(facts, indent=1) + "\n")
    num_tensors = sum(len(taken) - 2 for taken in before.values())
    print(f"{len(before)} runs, {num_tensors} tensors; {len(different)} runs differ")
    for case, keys in different.items():
        print(f"  {case}: {', '.join(keys)}")
    return bool(different)


if __name__ == "__main__":
    sys.exit(main())
