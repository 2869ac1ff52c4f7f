"""A tiny GGUF file."""

from __future__ import annotations

import json
from pathlib import Path

from tiny import VOCABULARY, tiny_tokenizer


def write_tiny_gguf(path: Path, architecture: str = "llama", **flags: bool) -> None:
    """Write a Llama (or Qwen2) with random weights, each rounded to float16 as GGUF files often are.

    `flags` are keys below tokenizer.ggml, such as add_bos_token.
    """
    import gguf
    import numpy

    writer = gguf.GGUFWriter(path, architecture)
    writer.add_block_count(2)
    writer.add_context_length(96)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(48)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(10000.0)
    num_words = VOCABULARY + 8  # the tokenizer of a GGUF file adds special tokens of its own
    writer.add_vocab_size(num_words)
    writer.add_tokenizer_model("gpt2")
    state = json.loads(tiny_tokenizer("llama").backend_tokenizer.to_str())["model"]
    writer.add_token_list(list(state["vocab"]))
    writer.add_token_types([1] * len(state["vocab"]))
    writer.add_token_merges([" ".join(pair) for pair in state["merges"]])
    writer.add_bos_token_id(2)
    writer.add_eos_token_id(1)
    for name, value in flags.items():
        writer.add_bool(f"tokenizer.ggml.{name}", value)
    layer = {"attn_q": 32, "attn_k": 16, "attn_v": 16, "attn_output": 32, "ffn_gate": 48, "ffn_up": 48}
    shapes = {"token_embd": (num_words, 32), "output": (num_words, 32)}
    for number in range(2):
        shapes |= {f"blk.{number}.{name}": (rows, 32) for name, rows in layer.items()}
        shapes[f"blk.{number}.ffn_down"] = (32, 48)
    generator = numpy.random.default_rng(0)
    for name, shape in shapes.items():
        writer.add_tensor(f"{name}.weight", generator.normal(size=shape).astype(numpy.float16))
    if architecture == "qwen2":
        for name in [name for name in shapes if name.endswith(("attn_q", "attn_k", "attn_v"))]:
            writer.add_tensor(f"{name}.bias", generator.normal(size=shapes[name][0]).astype(numpy.float32))
    for name in ("output_norm", *(f"blk.{number}.{part}_norm" for number in range(2) for part in ("attn", "ffn"))):
        writer.add_tensor(f"{name}.weight", numpy.ones(32, numpy.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
