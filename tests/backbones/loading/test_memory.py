"""The memory of a process that loads a model of some hundred megabytes, beside the size of its weights."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import transformers as hf
from tiny import tiny_model, tiny_tokenizer

LIMIT = 1.3  # times the weights as they are loaded
# Matrices that are unpacked for one pass, whatever the number of layers: 46 MB were measured in 4 bits.
PASSES_MEGABYTES = 60
SCRIPT = """
import json, re, sys
import torch
from softcue.backbones import BackboneConfig, load_backbone

def resident(name):
    return 1024 * int(re.search(rf"{name}:\\s+(\\d+)", open("/proc/self/status").read())[1])

def load(folder):
    return load_backbone(BackboneConfig(name=folder, device="cpu", attention="sdpa", **json.loads(sys.argv[3])))

load(sys.argv[1]).fingerprint  # what is imported and allocated once
open("/proc/self/clear_refs", "w").write("5")  # the largest size is counted from here
before = resident("VmRSS")
backbone = load(sys.argv[2])
backbone.fingerprint
size = sum(value.numel() * value.element_size() for value in backbone.model.parameters())
print(json.dumps({"ratio": (resident("VmHWM") - before) / size, "megabytes": size / 2**20}))
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A tiny model, and one of 170 million weights in shards, in two number formats."""
    root = tmp_path_factory.mktemp("models")
    sizes = {"hidden_size": 1024, "intermediate_size": 2816, "num_attention_heads": 16, "num_hidden_layers": 12}
    ends = {"bos_token_id": 2, "eos_token_id": 1, "pad_token_id": 0, "max_position_embeddings": 128}
    config = hf.LlamaConfig(vocab_size=16_000, tie_word_embeddings=True, **sizes, **ends)
    with torch.device("meta"):
        model = hf.LlamaForCausalLM(config)
    model.to_empty(device="cpu")
    for value in model.parameters():
        torch.nn.init.normal_(value, std=0.02) if value.dim() > 1 else torch.nn.init.ones_(value)
    model.tie_weights()
    tiny_model("llama").save_pretrained(root / "tiny")
    model.save_pretrained(root / "float32", max_shard_size="200MB")
    model.to(torch.bfloat16).save_pretrained(root / "bfloat16", max_shard_size="100MB")
    for name in ("tiny", "float32", "bfloat16"):
        tiny_tokenizer("llama").save_pretrained(root / name)
    assert len(list((root / "float32").glob("model-*.safetensors"))) == 4
    return {name: root / name for name in ("tiny", "float32", "bfloat16")}


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("file_format", "dtype", "quantization"),
    [
        ("float32", "float32", "none"),
        ("float32", "bfloat16", "none"),
        ("bfloat16", "float32", "none"),
        ("bfloat16", "bfloat16", "none"),
        ("bfloat16", "float16", "none"),
        ("float32", "bfloat16", "int8"),
        ("bfloat16", "bfloat16", "int4"),
    ],
)
def test_loading_takes_little_more_memory_than_the_weights(
    folders: dict[str, Path], file_format: str, dtype: str, quantization: str
) -> None:
    if quantization != "none":
        pytest.importorskip("torchao")
    settings = json.dumps({"dtype": dtype, "quantization": quantization})
    command = [sys.executable, "-c", SCRIPT, str(folders["tiny"]), str(folders[file_format]), settings]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    measured = json.loads(finished.stdout.splitlines()[-1])
    sys.stdout.write(f"{file_format} as {dtype}, {quantization}: {measured}\n")
    assert measured["megabytes"] > 90
    passes = 0 if quantization == "none" else PASSES_MEGABYTES / measured["megabytes"]
    assert measured["ratio"] <= LIMIT + passes
