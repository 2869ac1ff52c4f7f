"""`softcue export --to peft`: a cue as a folder that `PeftModel.from_pretrained` loads.

PEFT puts virtual tokens in front of everything, as embeddings (PROMPT_TUNING) or as keys and values of each layer
(PREFIX_TUNING). So a leading special token that a cue has in front of its prompt becomes a virtual token too. On a
decoder every static prompt is keys and values, whatever its rule: those of its positions do not depend on the text.
What PEFT cannot express is an error. A prompt is run as PEFT runs it and compared with the cue before anything is
written.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

import torch
from torch import Tensor

from softcue.backbones import Backbone
from softcue.backbones.linears import is_transposed, select_linears
from softcue.backbones.passes.decoder import DecoderPass, KeyValueCache, make_cache
from softcue.backbones.tracing import LARGEST_DIFFERENCE, ROUGH_DIFFERENCE, relative_difference
from softcue.cue import Cue
from softcue.errors import BackboneError, ConfigurationError, first_line
from softcue.files import serialize_tensors, write_atomically, write_json
from softcue.inference import TaskModel
from softcue.inputs.collate import collate
from softcue.interop.export import ExportOptions, ExportReport
from softcue.interop.peft_readme import base_model_of, peft_readme
from softcue.methods.lora import LoRA
from softcue.methods.method import PromptedConfig
from softcue.prompts import DeepPrompt, StaticPrompt
from softcue.types import BackboneKind, Batch, Example, TokenizedRow

CONFIG_FILE, TENSORS_FILE = "adapter_config.json", "adapter_model.safetensors"
TASK_TYPES: dict[BackboneKind, str] = {
    "encoder": "FEATURE_EXTRACTION",
    "encoder-decoder": "SEQ_2_SEQ_LM",
    "decoder": "CAUSAL_LM",
}
PROMPT_EMBEDDINGS = "prompt_embeddings"  # the tensor of PEFT's prompts
MODEL_PREFIX = "base_model.model."  # of PEFT's names of modules
TRIAL_TEXT = "A text on which the export is compared with the cue before it is written."

PeftType = Literal["PROMPT_TUNING", "PREFIX_TUNING", "LORA"]


@dataclass(frozen=True)
class PeftAdapter:
    """The content of a PEFT folder."""

    peft_type: PeftType
    settings: Mapping[str, Any]  # of adapter_config.json, beside those of every adapter
    tensors: Mapping[str, Tensor]
    tokens_before: tuple[int, ...] = ()  # ids of tokens that are virtual tokens now
    difference: float | None = None  # of hidden states from the cue's, relative to their size; None: not compared


def export_peft(cue: Cue, folder: Path, options: ExportOptions) -> ExportReport:
    """Write a cue of prompt tuning, prefix tuning, P-tuning v2 or LoRA as a PEFT folder.

    Example:
        export_cue(softcue.load("cues/tickets"), "peft", "tickets-peft")
    """
    adapter = make_adapter(cue)
    config = {
        "peft_type": adapter.peft_type,
        "task_type": TASK_TYPES[cue.backbone.kind],
        "base_model_name_or_path": base_model_of(cue),
        "inference_mode": True,
        **adapter.settings,
    }
    write_json(folder / CONFIG_FILE, config)
    tensors = {name: value.detach().float() for name, value in adapter.tensors.items()}
    write_atomically(folder / TENSORS_FILE, serialize_tensors(tensors))
    readme = peft_readme(cue, adapter.peft_type, adapter.settings.get("num_virtual_tokens", 0), adapter.tokens_before)
    write_atomically(folder / "README.md", readme.text.encode())
    facts: dict[str, str | int | float] = {
        "peft_type": adapter.peft_type,
        "task_type": config["task_type"],
        "parameters": sum(value.numel() for value in adapter.tensors.values()),
    }
    if "num_virtual_tokens" in adapter.settings:
        facts["num_virtual_tokens"] = adapter.settings["num_virtual_tokens"]
    if adapter.difference is not None:
        facts["difference of hidden states"] = float(f"{adapter.difference:.2g}")
    return ExportReport(facts, readme.notes)


def make_adapter(cue: Cue) -> PeftAdapter:
    """Turn the parameters of a cue into those of PEFT, or raise an error that says what PEFT cannot express."""
    method = cue.model.method
    if isinstance(method, LoRA):
        return _lora_adapter(method, cue.backbone)
    if method.weights is not None:
        _refuse(
            "method.name", method.config.name, "a frozen backbone", "a PEFT folder holds no weights of the backbone"
        )
    if method.reads_input:
        advice = (
            "PEFT has no prompts that read the input; on a decoder `to=prompt-embeds` writes the prompt of each row"
        )
        _refuse("method.name", method.config.name, "a prompt that is the same for every input", advice)
    encoder = method.prompt_encoder()
    if not isinstance(method.config, PromptedConfig) or not isinstance(encoder, (StaticPrompt, DeepPrompt)):
        advice = "PEFT has no equivalent of this method"
        _refuse("method.name", method.config.name, "prompt-tuning, prefix-tuning, p-tuning-v2 or lora", advice)
    if method.config.insert_layer:
        advice = "PEFT has no prompts that enter at a deeper layer"
        _refuse("method.insert_layer", method.config.insert_layer, "0", advice)
    if method.insert_at not in ("front", "start"):
        advice = "PEFT puts virtual tokens in front of the text"
        _refuse("method.insert_at", method.insert_at, "front or start", advice)
    row = trial_row(cue.model, cue.backbone)
    if row.segments is not None and any(row.segments):
        advice = "with virtual tokens PEFT drops the token types that tell the two texts apart"
        _refuse("task", cue.task.name, f"one text with {cue.backbone.model.config.model_type}", advice)
    with torch.no_grad():
        if isinstance(encoder, StaticPrompt):
            return _prompt_adapter(cue, row, encoder)
        return _prefix_adapter(cue, row, encoder)


def _refuse(setting: str, got: object, expected: str, fix: str) -> NoReturn:
    raise ConfigurationError(setting=setting, got=got, expected=f"{expected} for an export to PEFT", fix=fix)


def trial_row(model: TaskModel, backbone: Backbone) -> TokenizedRow:
    """A short row, on which two ways to compute the same are compared.

    Example:
        trial_row(cue.model, cue.backbone).insert_at
    """
    [example, *_] = model.split(Example((TRIAL_TEXT,) * len(model.task.text)))
    return model.rows(backbone, [example], use_disk_cache=False)[0]


def batch_of(row: TokenizedRow, backbone: Backbone) -> Batch:
    """A batch of one row.

    Example:
        batch_of(trial_row(cue.model, cue.backbone), cue.backbone).ids.shape
    """
    return collate([row], backbone.tokenizer.pad_token_id).to(backbone.device)


def _prompt_adapter(cue: Cue, row: TokenizedRow, encoder: StaticPrompt) -> PeftAdapter:
    """Tokens before the prompt and the prompt as embeddings."""
    backbone = cue.backbone
    batch = batch_of(row, backbone)
    num_before = row.insert_at
    words = backbone.model.get_input_embeddings()(batch.ids)[0]  # [T D]
    vectors = torch.cat([words[:num_before].float(), encoder.prompt])  # [N D]
    embeds = torch.cat([vectors.to(words.dtype), words[num_before:]]).unsqueeze(0)  # [1 S D]
    states = _run_source(backbone, inputs_embeds=embeds, attention_mask=embeds.new_ones(embeds.shape[:2]).long())[0]
    states = torch.cat([states[:num_before], states[len(vectors) :]])  # [T D] without the prompt's
    difference = _check_states(cue, states, _read_text(cue.model, backbone, batch))
    settings = {
        **_prompt_settings(backbone, len(vectors), backbone.width, _num_heads(backbone)),
        "prompt_tuning_init": "RANDOM",
    }
    before = row.ids[:num_before]
    return PeftAdapter("PROMPT_TUNING", settings, {PROMPT_EMBEDDINGS: vectors}, before, difference)


def _prefix_adapter(cue: Cue, row: TokenizedRow, encoder: DeepPrompt) -> PeftAdapter:
    """Keys and values of the prompt, and of tokens before it, in each layer."""
    backbone, rule = cue.backbone, encoder.prompted_layers.rule
    if rule == "parallel":
        advice = (
            "PEFT's keys and values share one softmax with the text; train with method.rule=kv (on an encoder also "
            "with method.insert_at=front), or take prompt-tuning"
        )
        _refuse("method.rule", rule, "kv", advice)
    if backbone.kind == "encoder-decoder":
        advice = "PEFT's prefixes are in the decoder, those of softcue in the encoder; take prompt-tuning or lora"
        _refuse("method.name", cue.model.method.config.name, "an encoder or a decoder", advice)
    num_before = row.insert_at
    batch = batch_of(row, backbone)
    if backbone.kind == "decoder":
        keys_values = read_prefix(cue.model, backbone, batch)
    else:
        if rule != "kv":
            advice = (
                "the states of added prompts change with the text; train with method.rule=kv method.insert_at=front"
            )
            _refuse("method.rule", rule, "kv on an encoder", advice)
        if num_before:
            advice = "the first token of the text would move behind the prompt; train with method.insert_at=front"
            _refuse("method.insert_at", cue.model.method.insert_at, "front on an encoder", advice)
        keys_values = split_heads(encoder.vectors(), backbone)
    length, num_heads, head_width = (keys_values[0][0].shape[axis] for axis in (2, 1, 3))
    num_tokens = len(row.ids) - num_before
    inputs: dict[str, Any] = {
        "input_ids": batch.ids[:, num_before:],
        "attention_mask": batch.ids.new_ones(1, length + num_tokens),
        "past_key_values": make_cache(list(keys_values)),
    }
    states = _run_source(backbone, **inputs)[0]  # [T D] of the text alone
    difference = _check_states(cue, states, _read_text(cue.model, backbone, batch)[num_before:])
    settings = {
        **_prompt_settings(backbone, length, num_heads * head_width, num_heads),
        "encoder_hidden_size": num_heads * head_width,
        "prefix_projection": False,
    }
    tensors = {PROMPT_EMBEDDINGS: _join_layers(keys_values)}
    return PeftAdapter("PREFIX_TUNING", settings, tensors, row.ids[:num_before], difference)


def read_prefix(model: TaskModel, backbone: Backbone, batch: Batch) -> KeyValueCache:
    """Keys and values of a decoder's prompt, and of tokens before it, as attention reads them. Each [1 H N d]

    Example:
        read_prefix(cue.model, cue.backbone, batch)[0][0].shape
    """
    forward_pass, _ = model.read(model.method.view_of(backbone), batch)
    assert isinstance(forward_pass, DecoderPass)
    keys_values = forward_pass.prefix_keys_values
    if keys_values is None:
        advice = "its prompt cannot run once for all rows: attention has a sliding window, or there is no cache"
        expected = "a model whose prompt is keys and values"
        raise BackboneError(setting="backbone", got=backbone.name, expected=expected, fix=advice)
    return keys_values


def split_heads(vectors: Sequence[Tensor], backbone: Backbone) -> KeyValueCache:
    """Split the keys and values [P 2K] of each layer into heads. Each [1 H P d]

    Example:
        split_heads([torch.zeros(4, 64)] * backbone.num_layers, backbone)
    """
    head_width = backbone.structure.head_width

    def split(part: Tensor) -> Tensor:  # [P K] -> [1 H P d]
        heads = part.view(len(part), -1, head_width).transpose(0, 1).unsqueeze(0)
        return heads.to(backbone.device, backbone.dtype)

    return [(split(keys), split(values)) for keys, values in (layer.chunk(2, dim=1) for layer in vectors)]


def _join_layers(keys_values: KeyValueCache) -> Tensor:
    """PEFT's matrix of a prefix: of each position the keys and the values of one layer after the other. [N 2LHd]"""
    parts = [part[0].transpose(0, 1).flatten(1) for pair in keys_values for part in pair]  # each [N Hd]
    return torch.cat(parts, dim=1)


def _run_source(backbone: Backbone, **inputs: Any) -> Tensor:
    """The last hidden states of the source, from the model as transformers has it. [1 S D]"""
    module = backbone.model.get_encoder() if backbone.kind == "encoder-decoder" else backbone.base
    try:
        return module(**inputs).last_hidden_state  # type: ignore[no-any-return]
    except (RuntimeError, TypeError, ValueError) as error:  # a model that takes no keys and values from outside
        raise _other_states_error(backbone, f"a pass fails ({first_line(error)})") from error


def _read_text(model: TaskModel, backbone: Backbone, batch: Batch) -> Tensor:
    """The cue's states of the text. [T D]"""
    return model.read(model.method.view_of(backbone), batch)[0].text()[0]


def _check_states(cue: Cue, states: Tensor, expected: Tensor) -> float:
    """Check that the states of PEFT's way are the cue's; returns their relative difference."""
    difference = relative_difference(states, expected)
    if difference > LARGEST_DIFFERENCE.get(cue.backbone.dtype, ROUGH_DIFFERENCE):
        raise _other_states_error(cue.backbone, f"hidden states differ by {difference:.1e}")
    return difference


def _other_states_error(backbone: Backbone, reason: str) -> BackboneError:
    return BackboneError(
        setting="backbone",
        got=backbone.name,
        expected="a model on which PEFT's virtual tokens compute what the cue computes",
        fix=f"with {backbone.model.config.model_type} {reason}; prompt-tuning or lora may do",
    )


def _prompt_settings(backbone: Backbone, length: int, width: int, num_heads: int) -> dict[str, Any]:
    return {
        "num_virtual_tokens": length,
        "token_dim": width,
        "num_layers": backbone.num_layers,
        "num_attention_heads": num_heads,
        "num_transformer_submodules": 1,  # the source alone, also of an encoder-decoder
    }


def _num_heads(backbone: Backbone) -> int:
    return max(1, backbone.structure.query_width // backbone.structure.head_width)


def _lora_adapter(method: LoRA, backbone: Backbone) -> PeftAdapter:
    """The matrices of each module, under the names that PEFT gives them."""
    config, place = method.config, path_of_base(backbone)
    paths = [f"{place}{path}" for path in method.paths]
    tensors = {}
    for path, update in zip(paths, method.updates, strict=True):
        for name, value in (("lora_A", update.a), ("lora_B", update.b)):
            assert isinstance(value, Tensor)
            tensors[f"{MODEL_PREFIX}{path}.{name}.weight"] = value
    # PEFT looks for names in the whole model, softcue in its layers: full paths where names would find more.
    modules = dict(backbone.model.named_modules())
    by_name = {path for name in config.targets for path in select_linears(modules, name)}
    transposed = [is_transposed(backbone.linears[path]) for path in method.paths]
    settings = {
        "r": config.rank,
        "lora_alpha": int(config.alpha) if config.alpha == int(config.alpha) else config.alpha,
        "lora_dropout": config.dropout,
        "target_modules": list(config.targets) if by_name == set(paths) else paths,
        "fan_in_fan_out": all(transposed),
        "bias": "none",
    }
    return PeftAdapter("LORA", settings, tensors)


def path_of_base(backbone: Backbone) -> str:
    """The path of the base model in the model, with a dot behind it; empty if they are the same.

    Example:
        path_of_base(load_backbone("gpt2"))     # "transformer."
    """
    [path] = [name for name, module in backbone.model.named_modules() if module is backbone.base]
    return f"{path}." if path else ""
