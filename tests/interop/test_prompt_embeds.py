"""`softcue export --to prompt-embeds`: a decoder that is given the embeddings answers as the cue does."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from serving_cues import TEXTS, TOPICS, save_cue
from tolerance import REORDERED_FLOAT32

from softcue.errors import ConfigurationError
from softcue.inputs.collate import collate
from softcue.interop import ExportOptions, export_cue, prompt_embeds
from softcue.types import Example


def write_rows(folder: Path) -> str:
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    return str(file)


@pytest.mark.parametrize(
    ("family", "case"),
    [("gpt2", "prompt-tuning"), ("llama", "s-idpg-phm"), ("opt", "vip"), ("gpt2", "vip-c")],
)
@torch.no_grad()
def test_the_embeddings_of_a_row_give_the_cues_logits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, family: str, case: str
) -> None:
    monkeypatch.setattr(prompt_embeds, "ROWS_AT_ONCE", 2)
    monkeypatch.setattr(prompt_embeds, "ROWS_PER_FILE", 4)
    cue = save_cue(tmp_path / "cue", TOPICS, case, family)
    report = export_cue(cue, "prompt-embeds", tmp_path / "out", ExportOptions(data=write_rows(tmp_path)))
    assert report.facts["rows"] == len(TEXTS)
    lines: list[dict[str, Any]] = [
        json.loads(line) for line in (tmp_path / "out" / "rows.jsonl").read_text().splitlines()
    ]
    assert [line["texts"] for line in lines] == [[text] for text in TEXTS]
    assert {line["file"] for line in lines} == {"rows-00001.safetensors", "rows-00002.safetensors"}
    model, backbone = cue.model, cue.backbone
    for line in lines:
        tensors = load_file(tmp_path / "out" / line["file"])
        embeds, prompt = tensors[f"{line['row']}.inputs_embeds"], tensors[f"{line['row']}.prompt"]
        assert len(embeds) == line["num_tokens"] and prompt.shape == (4, 32)
        row = model.rows(backbone, [Example(tuple(line["texts"]))])[0]
        assert torch.equal(embeds[row.insert_at : row.insert_at + 4], prompt)
        batch = collate([row], backbone.tokenizer.pad_token_id)
        expected = model.read(model.method.view_of(backbone), batch)[0].first_logits()[0]
        REORDERED_FLOAT32.assert_close(backbone.model(inputs_embeds=embeds[None]).logits[0, -1], expected)


@pytest.mark.parametrize(
    ("family", "case", "message"),
    [
        ("bert", "prompt-tuning", "backbone: got 'tiny-bert'; expected a decoder"),
        ("gpt2", "m-idpg-phm", r"method\.name: got 'm-idpg-phm'.*enters at the input only"),
        ("gpt2", "prompt-tuning late", r"method\.insert_layer: got 1"),
        ("gpt2", "lora", r"method\.name: got 'lora'.*`to=peft`"),
        ("gpt2", "prompt-tuning tuned", r"method\.name.*softcue backbones export"),
    ],
)
def test_what_is_no_prompt_of_the_input_is_refused(tmp_path: Path, family: str, case: str, message: str) -> None:
    cue = save_cue(tmp_path / "cue", TOPICS, case, family)
    with pytest.raises(ConfigurationError, match=message):
        export_cue(cue, "prompt-embeds", tmp_path / "out", ExportOptions(data=write_rows(tmp_path)))
    assert not (tmp_path / "out").exists()


def test_rows_are_needed(tmp_path: Path) -> None:
    cue = save_cue(tmp_path / "cue", TOPICS, "prompt-tuning", "gpt2")
    with pytest.raises(ConfigurationError, match="`data=FILE`"):
        export_cue(cue, "prompt-embeds", tmp_path / "out")
    (tmp_path / "empty.jsonl").write_text("")
    with pytest.raises(Exception, match="row"):
        export_cue(cue, "prompt-embeds", tmp_path / "out", ExportOptions(data=str(tmp_path / "empty.jsonl")))


def test_a_head_is_refused(tmp_path: Path) -> None:
    from toy import SETS

    cue = save_cue(tmp_path / "cue", SETS, "prompt-tuning", "gpt2")
    with pytest.raises(ConfigurationError, match=r"readout\.name: got 'classifier'"):
        export_cue(cue, "prompt-embeds", tmp_path / "out", ExportOptions(data=write_rows(tmp_path)))
