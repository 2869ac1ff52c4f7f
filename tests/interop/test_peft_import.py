"""`softcue import`: folders that the real PEFT has written become cues that compute the same."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from interop.test_peft import cue_outputs, peft_outputs, text_ids
from safetensors.torch import load_file, save_file
from serving_cues import TOPICS, save_cue
from tiny import tiny
from tolerance import REORDERED_FLOAT32

import softcue
from softcue.backbones import Backbone
from softcue.errors import BackboneError, ConfigurationError, CueError, SoftcueError
from softcue.interop import export_cue, import_peft, peft_import
from softcue.machine import Memory
from softcue.readouts import ReadoutConfig
from softcue.tasks import Label, Task

TASK_TYPES = {"encoder": "FEATURE_EXTRACTION", "encoder-decoder": "SEQ_2_SEQ_LM", "decoder": "CAUSAL_LM"}
PROMPT: dict[str, Any] = {"num_virtual_tokens": 4}
# Labels whose words are one token each: an encoder without a trained head predicts these.
WORDS = Task(
    name="words", labels={name: Label(words=words) for name, words in (("a", "the"), ("b", "my"), ("c", "is"))}
)
LORA: dict[str, Any] = {"r": 4, "lora_alpha": 6, "init_lora_weights": False}


def save_peft(folder: Path, backbone: Backbone, config: str, **settings: Any) -> Any:
    """A PEFT model with random numbers, saved to the folder."""
    torch.manual_seed(5)
    peft_config = getattr(peft, config)(task_type=TASK_TYPES[backbone.kind], **settings)
    model = peft.get_peft_model(copy.deepcopy(backbone.model), peft_config).eval()
    model.save_pretrained(str(folder))
    return model


def imported(folder: Path, backbone: Backbone, task: Task = TOPICS, **settings: Any) -> softcue.Cue:
    return import_peft(folder / "peft", folder / "cue", backbone=backbone, task=task, **settings)


IMPORTED: list[tuple[str, str, dict[str, Any]]] = [
    ("t5", "PromptTuningConfig", PROMPT),
    ("gpt2", "PromptTuningConfig", PROMPT),
    ("llama", "PromptTuningConfig", PROMPT),
    ("opt", "PromptTuningConfig", PROMPT),
    ("bert", "PromptTuningConfig", PROMPT),
    ("llama", "PromptEncoderConfig", {**PROMPT, "encoder_hidden_size": 16}),
    ("t5", "PromptEncoderConfig", {**PROMPT, "encoder_hidden_size": 16, "encoder_reparameterization_type": "LSTM"}),
    ("gpt2", "PrefixTuningConfig", PROMPT),
    ("llama", "PrefixTuningConfig", PROMPT),
    ("gptj", "PrefixTuningConfig", PROMPT),
    ("phi", "PrefixTuningConfig", {"num_virtual_tokens": 1}),
    ("gpt2", "PrefixTuningConfig", {**PROMPT, "prefix_projection": True, "encoder_hidden_size": 16}),
    ("bert", "PrefixTuningConfig", PROMPT),
    ("t5", "LoraConfig", {**LORA, "target_modules": ["q", "v"]}),
    ("gpt2", "LoraConfig", {**LORA, "target_modules": ["c_attn"], "fan_in_fan_out": True}),
    ("llama", "LoraConfig", {**LORA, "target_modules": "all-linear", "use_rslora": True}),
    ("llama", "LoraConfig", {**LORA, "target_modules": ["q_proj"], "layers_to_transform": [1]}),
    ("bert", "LoraConfig", {**LORA, "target_modules": ["query", "value"]}),
    ("bert", "LoraConfig", {**LORA, "target_modules": ["query"], "init_lora_weights": "gaussian"}),
]


@pytest.mark.parametrize(("family", "config", "settings"), IMPORTED)
@torch.no_grad()
def test_an_imported_folder_computes_the_same(
    tmp_path: Path, family: str, config: str, settings: dict[str, Any]
) -> None:
    backbone = tiny(family)
    model = save_peft(tmp_path / "peft", backbone, config, **settings)
    cue = imported(tmp_path, backbone, WORDS)
    if config == "PrefixTuningConfig":  # as a user loads it: PEFT's networks are left out
        model = peft.PeftModel.from_pretrained(copy.deepcopy(backbone.model), str(tmp_path / "peft")).eval()
    actual, expected = cue_outputs(cue), peft_outputs(model, backbone.kind, text_ids(cue, 0))
    if backbone.kind == "encoder":
        expected = expected[-len(actual) :]
    REORDERED_FLOAT32.assert_close(actual, expected)
    again = softcue.load(tmp_path / "cue", backbone)
    assert torch.equal(cue_outputs(again), actual)
    assert again.predict("The invoice is wrong.")[0].label in WORDS.labels


@pytest.mark.parametrize("task_id", [0, 2])
@torch.no_grad()
def test_a_multitask_prompt_gives_the_prompt_of_one_task(tmp_path: Path, task_id: int) -> None:
    backbone = tiny("llama")
    model = save_peft(tmp_path / "peft", backbone, "MultitaskPromptTuningConfig", num_tasks=3, num_ranks=2, **PROMPT)
    cue = imported(tmp_path, backbone, task_id=task_id)
    ids = text_ids(cue, 0)
    logits = model(input_ids=ids, attention_mask=torch.ones_like(ids), task_ids=torch.tensor([task_id])).logits[0, -1]
    REORDERED_FLOAT32.assert_close(cue_outputs(cue), logits)


@pytest.mark.parametrize(
    ("family", "case"),
    [("t5", "prompt-tuning"), ("gpt2", "prefix-tuning"), ("llama", "p-tuning-v2"), ("llama", "lora")],
)
@torch.no_grad()
def test_what_is_exported_and_imported_again_is_the_same_cue(tmp_path: Path, family: str, case: str) -> None:
    cue = save_cue(tmp_path / "first", TOPICS, case, family)
    export_cue(cue, "peft", tmp_path / "peft")
    REORDERED_FLOAT32.assert_close(cue_outputs(imported(tmp_path, cue.backbone)), cue_outputs(cue))


def test_the_text_of_a_row_is_the_users(tmp_path: Path) -> None:
    backbone = tiny("gpt2")
    save_peft(tmp_path / "peft", backbone, "PromptTuningConfig", **PROMPT)
    task = Task(name="tweets", template="Tweet text : {text}", labels=TOPICS.labels)
    cue = imported(tmp_path, backbone, task, readout=ReadoutConfig(answer_prefix=" Label :"))
    assert cue.model.formatter.templates == ["Tweet text : {text} Label :"]


def test_the_model_card_says_where_it_comes_from(tmp_path: Path) -> None:
    save_peft(tmp_path / "peft", tiny("gpt2"), "PromptTuningConfig", **PROMPT)
    cue = imported(tmp_path, tiny("gpt2"))
    assert "prompt-tuning" in repr(cue) and "prompt-tuning" in cue._repr_html_()
    rows = [{"text": "The invoice is wrong.", "label": "b"}, {"text": "Where is it", "label": "c"}]
    assert cue.evaluate(rows).scores["accuracy"] in (0, 50, 100)
    card = (tmp_path / "cue" / "README.md").read_text()
    assert "\n# cue\n" in card
    assert "imported from PEFT (PROMPT_TUNING): softcue has neither trained nor scored it" in card
    assert "None" not in card


# --- what is refused ---


def change_config(folder: Path, **values: Any) -> None:
    file = folder / "adapter_config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def change_tensors(folder: Path, **values: Any) -> None:
    file = folder / "adapter_model.safetensors"
    save_file({**load_file(file), **values}, file)


CHANGED_CONFIGS = [
    ({"peft_type": "IA3"}, r"peft_type: got 'IA3'.*softcue has no such method"),
    ({"num_virtual_tokens": 5}, r"tensor 'prompt_embeddings': got '\[4, 32\]'; expected shape \[5, 32\]"),
    ({"num_virtual_tokens": 10**9}, r"adapter_config\.json\.num_virtual_tokens: got 1000000000"),
    ({"num_tasks": 10_000}, r"adapter_config\.json\.num_tasks: got 10000"),
    ({"num_ranks": 8192}, r"adapter_config\.json\.num_ranks: got 8192"),
    ({"num_virtual_tokens": "many"}, r"adapter_config\.json\.num_virtual_tokens: got 'many'"),
    ({"peft_type": "MULTITASK_PROMPT_TUNING"}, r"task_id: got None; expected a number for multitask"),
]


@pytest.mark.parametrize(("values", "message"), CHANGED_CONFIGS)
def test_a_configuration_that_does_not_fit_is_refused(tmp_path: Path, values: dict[str, Any], message: str) -> None:
    save_peft(tmp_path / "peft", tiny("gpt2"), "PromptTuningConfig", **PROMPT)
    change_config(tmp_path / "peft", **values)
    with pytest.raises(ConfigurationError, match=message):
        imported(tmp_path, tiny("gpt2"))
    assert [path.name for path in tmp_path.iterdir()] == ["peft"]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (torch.full((4, 32), torch.nan), "NaN or infinity"),
        (torch.zeros(4, 32, dtype=torch.long), "floating-point numbers"),
        (torch.zeros(2_000_000), r"got '\[2000000\]'; expected shape \[4, 32\]"),
    ],
)
def test_tensors_that_no_prompt_has_are_refused(tmp_path: Path, value: torch.Tensor, message: str) -> None:
    save_peft(tmp_path / "peft", tiny("gpt2"), "PromptTuningConfig", **PROMPT)
    change_tensors(tmp_path / "peft", prompt_embeddings=value)
    with pytest.raises(ConfigurationError, match=message):
        imported(tmp_path, tiny("gpt2"))


@pytest.mark.parametrize("case", ["shape", "memory", "header"])
def test_a_file_that_does_not_fit_is_refused_before_a_tensor_is_read(
    tmp_path: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    save_peft(tmp_path / "peft", tiny("gpt2"), "PromptTuningConfig", **PROMPT)
    # A NaN would be found if the tensor was read.
    change_tensors(tmp_path / "peft", prompt_embeddings=torch.full((5 if case == "shape" else 4, 32), torch.nan))
    if case == "memory":
        monkeypatch.setattr(peft_import, "read_memory", lambda: Memory(1e-6, 1e-6, None))
    if case == "header":
        monkeypatch.setattr(peft_import, "HEADER_LIMIT", 8)
    messages = {"shape": "expected shape", "memory": "GB of numbers", "header": r"a header of \d+ bytes"}
    with pytest.raises(ConfigurationError, match=messages[case]):
        imported(tmp_path, tiny("gpt2"))


def test_absurdly_large_numbers_fail_the_checks_of_every_cue(tmp_path: Path) -> None:
    save_peft(tmp_path / "peft", tiny("gpt2"), "PromptTuningConfig", **PROMPT)
    change_tensors(tmp_path / "peft", prompt_embeddings=torch.full((4, 32), 3e38))
    with pytest.raises(CueError, match="not finite"):
        imported(tmp_path, tiny("gpt2"))
    assert [path.name for path in tmp_path.iterdir()] == ["peft"]


def test_other_weights_are_refused(tmp_path: Path) -> None:
    save_peft(tmp_path / "peft", tiny("gpt2"), "PromptTuningConfig", **PROMPT)
    change_tensors(tmp_path / "peft", **{"base_model.model.score.weight": torch.zeros(2, 2)})
    with pytest.raises(ConfigurationError, match=r"tensor 'base_model\.model\.score\.weight'.*a head"):
        imported(tmp_path, tiny("gpt2"))


def test_a_pickle_is_never_opened(tmp_path: Path) -> None:
    save_peft(tmp_path / "peft", tiny("gpt2"), "PromptTuningConfig", **PROMPT)
    (tmp_path / "peft" / "adapter_model.safetensors").rename(tmp_path / "peft" / "adapter_model.bin")
    with pytest.raises(ConfigurationError, match=r"got 'adapter_model\.bin'.*a pickle can run any code"):
        imported(tmp_path, tiny("gpt2"))


@pytest.mark.parametrize("text", ["{", "[1]", "[" * 100_000])
def test_a_configuration_that_is_no_object_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "peft").mkdir()
    (tmp_path / "peft" / "adapter_config.json").write_text(text)
    with pytest.raises(SoftcueError, match=r"adapter_config\.json"):
        imported(tmp_path, tiny("gpt2"))


CHANGED_LORA: list[tuple[dict[str, Any], dict[str, Any], str]] = [
    ({"use_dora": True}, {}, r"use_dora: got True"),
    ({"rank_pattern": {"q_proj": 2}}, {}, r"rank_pattern"),
    ({"use_bdlora": {"nblocks": 2}}, {}, r"use_bdlora: got"),
    ({"kasa_config": {"beta": 1e-4}}, {}, r"kasa_config: got"),
    ({"init_lora_weights": "corda"}, {}, r"init_lora_weights: got 'corda'.*changes the model's own weights"),
    ({"init_lora_weights": "pissa_niter_4"}, {}, r"init_lora_weights: got 'pissa_niter_4'"),
    ({"init_lora_weights": ["lora_ga"]}, {}, r"init_lora_weights: got"),
    ({"bias": "all"}, {}, r"bias: got 'all'"),
    ({"lora_alpha": 1e300}, {}, r"method\.alpha: got"),
    ({"lora_alpha": "much"}, {}, r"lora_alpha: got 'much'"),
    ({"r": 3}, {}, r"got '\[4, 32\]'; expected shape \[3, 32\]"),
    ({}, {"base_model.model.lm_head.lora_A.weight": torch.zeros(4, 32)}, r"tensor: got 'base_model.*linear module"),
    ({}, {"base_model.model.model.layers.0.mlp.up_proj.lora_A.weight": torch.zeros(4, 32)}, r"half of the update"),
]


@pytest.mark.parametrize(("values", "tensors", "message"), CHANGED_LORA)
def test_a_lora_folder_that_softcue_cannot_express_is_refused(
    tmp_path: Path, values: dict[str, Any], tensors: dict[str, Any], message: str
) -> None:
    save_peft(tmp_path / "peft", tiny("llama"), "LoraConfig", **LORA, target_modules=["q_proj", "v_proj"])
    change_config(tmp_path / "peft", **values)
    change_tensors(tmp_path / "peft", **tensors)
    with pytest.raises(ConfigurationError, match=message):
        imported(tmp_path, tiny("llama"))


@pytest.mark.parametrize("init", ["pissa", "olora"])
def test_an_update_of_changed_weights_is_refused(tmp_path: Path, init: str) -> None:
    settings = {**LORA, "init_lora_weights": init, "target_modules": ["q_proj"]}
    save_peft(tmp_path / "peft", tiny("llama"), "LoraConfig", **settings)
    with pytest.raises(ConfigurationError, match=rf"init_lora_weights: got '{init}'.*convert it to plain LoRA"):
        imported(tmp_path, tiny("llama"))


def test_prefixes_of_an_encoder_decoder_are_refused(tmp_path: Path) -> None:
    save_peft(tmp_path / "peft", tiny("t5"), "PrefixTuningConfig", **PROMPT)
    with pytest.raises(ConfigurationError, match="PEFT's prefixes are in the decoder"):
        imported(tmp_path, tiny("t5"))


def test_keys_behind_a_norm_are_refused(tmp_path: Path) -> None:
    save_peft(tmp_path / "peft", tiny("qwen3"), "PrefixTuningConfig", **PROMPT)
    with pytest.raises(BackboneError, match="its keys pass a norm"):
        imported(tmp_path, tiny("qwen3"))


def test_a_task_of_another_backbone_is_refused(tmp_path: Path) -> None:
    save_peft(tmp_path / "peft", tiny("gpt2"), "PrefixTuningConfig", **PROMPT)
    with pytest.raises(ConfigurationError, match=r"expected shape \[4, 96\]"):
        imported(tmp_path, tiny("llama"))


def test_a_readout_with_a_head_is_refused(tmp_path: Path) -> None:
    save_peft(tmp_path / "peft", tiny("bert"), "PromptTuningConfig", **PROMPT)
    with pytest.raises(ConfigurationError, match=r"readout\.name: got 'classifier'.*no head of softcue"):
        imported(tmp_path, tiny("bert"), readout=ReadoutConfig(name="classifier"))


def test_an_existing_folder_is_never_overwritten(tmp_path: Path) -> None:
    (tmp_path / "cue").mkdir()
    with pytest.raises(ConfigurationError, match="does not exist yet"):
        imported(tmp_path, tiny("gpt2"))
