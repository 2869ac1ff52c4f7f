"""`softcue export --to peft` and `softcue import`, against the real PEFT."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import peft
import pytest
import torch
from serving_cues import PAIRS, TOPICS, save_cue
from tolerance import REORDERED_FLOAT32
from torch import Tensor
from toy import make_model

from softcue.cue import Cue
from softcue.errors import BackboneError, ConfigurationError
from softcue.inputs.collate import collate
from softcue.interop import export_cue
from softcue.interop.peft import make_adapter
from softcue.tasks import Task
from softcue.types import Example

TEXT = "I cannot sign in to my account since this morning"
TARGET = [[9, 17, 33]]


def make_cue(folder: Path, family: str, case: str, task: Task = TOPICS) -> Cue:
    return save_cue(folder / "cue", task, case, family)


def load_peft(cue: Cue, folder: Path) -> Any:
    """The exported folder on a copy of the backbone's model, as a user loads it."""
    return peft.PeftModel.from_pretrained(copy.deepcopy(cue.backbone.model), str(folder)).eval()


def text_ids(cue: Cue, num_left_out: int) -> Tensor:
    """The token ids of a text, by the README: the template, the tokenizer, and the tokens left out. [1 T]"""
    [template] = cue.model.formatter.templates
    ids = cue.backbone.tokenizer(template.replace("{text}", TEXT))["input_ids"]
    return torch.tensor([ids[num_left_out:]])


def cue_outputs(cue: Cue) -> Tensor:
    """Logits behind the text of a decoder or in the decoder, hidden states of an encoder's text."""
    model, backbone = cue.model, cue.backbone
    batch = collate(model.rows(backbone, [Example((TEXT,))]), backbone.tokenizer.pad_token_id)
    forward_pass, _ = model.read(model.method.view_of(backbone), batch)
    if backbone.kind == "encoder":
        return forward_pass.text()[0]
    if backbone.kind == "encoder-decoder":
        return forward_pass.target_logits(torch.tensor([[*TARGET[0], 1]]))[0]  # type: ignore[no-any-return]
    return forward_pass.first_logits()[0]  # type: ignore[no-any-return]


def peft_outputs(model: Any, kind: str, ids: Tensor) -> Tensor:
    inputs: dict[str, Any] = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if kind == "encoder-decoder":
        return model(
            **inputs, decoder_input_ids=torch.tensor([[model.config.decoder_start_token_id, *TARGET[0]]])
        ).logits[0]  # type: ignore[no-any-return]
    if kind == "decoder":
        return model(**inputs).logits[0, -1]  # type: ignore[no-any-return]
    return model(**inputs, output_hidden_states=True).hidden_states[-1][0]  # type: ignore[no-any-return]


EXPORTED = [  # family, case, tokens of the text that are virtual tokens
    ("t5", "prompt-tuning", 0),
    ("bart", "prompt-tuning", 1),
    ("mbart", "prompt-tuning", 0),
    ("gpt2", "prompt-tuning", 0),
    ("llama", "prompt-tuning", 0),
    ("opt", "prompt-tuning", 1),
    ("gemma", "prompt-tuning", 0),
    ("bert", "prompt-tuning", 1),
    ("distilbert", "prompt-tuning", 1),
    ("electra", "prompt-tuning", 1),
    ("gpt2", "prefix-tuning", 0),
    ("llama", "prefix-tuning", 0),
    ("qwen3", "prefix-tuning", 0),
    ("opt", "prefix-tuning", 0),
    ("llama", "prefix-tuning network", 0),
    ("bert", "prefix-tuning", 0),
    ("roberta", "prefix-tuning", 0),
    ("gpt2", "p-tuning-v2", 0),
    ("gpt2", "p-tuning-v2 deeper", 0),
    ("llama", "p-tuning-v2 kv", 0),
    ("opt", "p-tuning-v2 replace", 1),
    ("t5", "lora", 0),
    ("gpt2", "lora", 0),
    ("llama", "lora", 0),
    ("bert", "lora", 0),
    ("albert", "lora", 0),
]


@pytest.mark.parametrize(("family", "case", "num_left_out"), EXPORTED)
@torch.no_grad()
def test_an_exported_cue_computes_the_same_in_peft(tmp_path: Path, family: str, case: str, num_left_out: int) -> None:
    cue = make_cue(tmp_path, family, case)
    report = export_cue(cue, "peft", tmp_path / "out")
    assert {path.name for path in (tmp_path / "out").iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "README.md",
    }
    actual = peft_outputs(load_peft(cue, tmp_path / "out"), cue.backbone.kind, text_ids(cue, num_left_out))
    expected = cue_outputs(cue)
    if cue.backbone.kind == "encoder":  # text positions behind the virtual tokens; [CLS] may be one of these
        num_text = len(expected) - num_left_out
        REORDERED_FLOAT32.assert_close(actual[-num_text:], expected[-num_text:])
        REORDERED_FLOAT32.assert_close(actual[:num_left_out], expected[:num_left_out])
    else:
        REORDERED_FLOAT32.assert_close(actual, expected)
    plain = copy.deepcopy(cue.backbone.model)
    assert (peft_outputs(plain, cue.backbone.kind, text_ids(cue, 0))[-1] - actual[-1]).abs().max() > 1e-2
    assert report.facts["parameters"] > 0


REFUSED = [
    ("bert", "m-idpg-phm", TOPICS, r"method\.name: got 'm-idpg-phm'.*no prompts that read the input"),
    ("gpt2", "vip", TOPICS, r"method\.name: got 'vip'.*`to=prompt-embeds`"),
    ("bert", "p-tuning-v2 parallel", TOPICS, r"method\.rule: got 'parallel'.*share one softmax"),
    ("bert", "p-tuning-v2", TOPICS, r"method\.rule: got 'add'.*kv on an encoder"),
    ("bert", "p-tuning-v2 kv", TOPICS, r"method\.insert_at: got 'start'.*method\.insert_at=front"),
    ("t5", "prefix-tuning", TOPICS, r"method\.name: got 'prefix-tuning'.*PEFT's prefixes are in the decoder"),
    ("bert", "prompt-tuning late", TOPICS, r"method\.insert_layer: got 1"),
    ("bert", "adapter", TOPICS, r"method\.name: got 'adapter'.*no equivalent"),
    ("bert", "linear-probe", TOPICS, r"method\.name: got 'linear-probe'.*no equivalent"),
    ("bert", "prompt-tuning tuned", TOPICS, r"method\.name.*holds no weights of the backbone"),
    ("bert", "warp", TOPICS, r"method\.insert_at: got 'around'"),
    ("bert", "prompt-tuning", PAIRS, r"task: got 'pairs'.*token types"),
]


@pytest.mark.parametrize(("family", "case", "task", "message"), REFUSED)
def test_what_peft_cannot_express_is_refused_with_the_reason(
    tmp_path: Path, family: str, case: str, task: Task, message: str
) -> None:
    cue = make_cue(tmp_path, family, case, task)
    with pytest.raises(ConfigurationError, match=message):
        export_cue(cue, "peft", tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(("family", "case"), [("modernbert", "prefix-tuning"), ("mpnet", "prefix-tuning")])
def test_a_model_on_which_peft_computes_something_else_is_refused(tmp_path: Path, family: str, case: str) -> None:
    with pytest.raises(BackboneError, match=r"backbone: got 'tiny-.*PEFT's virtual tokens"):
        export_cue(make_cue(tmp_path, family, case), "peft", tmp_path / "out")


def test_the_readme_has_template_labels_and_what_is_left_out(tmp_path: Path) -> None:
    cue = make_cue(tmp_path, "opt", "prompt-tuning")
    report = export_cue(cue, "peft", tmp_path / "out")
    readme = (tmp_path / "out" / "README.md").read_text()
    assert "{text}\nAnswer:" in readme
    assert "| c | my order |" in readme
    assert "AutoModelForCausalLM" in readme
    assert any("Leave out the first token of a tokenized text (<s>)" in note for note in report.notes)
    assert all(note in readme for note in report.notes)


def test_a_head_is_said_to_stay_in_the_cue(tmp_path: Path) -> None:
    report = export_cue(make_cue(tmp_path, "bert", "lora"), "peft", tmp_path / "out")
    assert any("The trained head is not in the folder" in note for note in report.notes)


def test_targets_that_peft_would_find_outside_of_layers_are_full_paths(tmp_path: Path) -> None:
    cue = make_cue(tmp_path, "bert", "lora")
    cue.model.method = make_model(cue.backbone, "lora", targets="dense").method
    targets = make_adapter(cue).settings["target_modules"]
    assert "bert.encoder.layer.0.output.dense" in targets
    assert not any("predictions" in path for path in targets)
