from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from gguf_files import write_tiny_gguf
from safetensors.torch import load_file, save_file
from tiny import KINDS, ONE_OF_EACH_KIND, SIZES, VOCABULARY, tiny_model, tiny_tokenizer
from torch import Tensor

from softcue.backbones import Backbone, BackboneConfig, load_backbone
from softcue.errors import BackboneError
from softcue.readouts import ReadoutConfig, make_readout
from softcue.tasks import Task
from softcue.tasks.task import Label


def load(folder: Path | str, dtype: str = "float32") -> Backbone:
    return load_backbone(BackboneConfig.model_validate({"name": str(folder), "dtype": dtype}))


def error_message(folder: Path | str, **settings: str) -> str:
    """The error's message, which must be one line."""
    with pytest.raises(BackboneError) as caught:
        load_backbone(BackboneConfig.model_validate({"name": str(folder), **settings}))
    message = str(caught.value)
    assert "\n" not in message
    assert "Traceback" not in message
    assert "expected" in message
    assert caught.value.fix
    return message


@pytest.fixture
def copied(model_folders: dict[str, Path], tmp_path: Path) -> Callable[[str], Path]:
    """A copy of a model folder, to be damaged."""
    return lambda model_type: shutil.copytree(model_folders[model_type], tmp_path / model_type)


def change_config(folder: Path, **values: Any) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def change_tensors(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> dict[str, Tensor]:
    tensors = load_file(folder / "model.safetensors")
    tensors = {name: value.clone() for name, value in tensors.items()}
    change(tensors)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return tensors


def saved(model: Any, folder: Path, model_type: str = "bert") -> Path:
    model.save_pretrained(folder)
    tiny_tokenizer(model_type).save_pretrained(folder)
    return folder


@pytest.mark.parametrize("model_type", ONE_OF_EACH_KIND)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_each_kind_loads_frozen_and_in_eval_mode(model_folders: dict[str, Path], model_type: str, dtype: str) -> None:
    backbone = load(model_folders[model_type], dtype)
    assert backbone.kind == KINDS[model_type]
    assert backbone.folder == model_folders[model_type]
    assert backbone.name == str(model_folders[model_type])
    assert not any(parameter.requires_grad for parameter in backbone.model.parameters())
    assert not any(module.training for module in backbone.model.modules())
    assert {parameter.dtype for parameter in backbone.model.parameters()} == {getattr(torch, dtype)}
    assert backbone.embed(torch.tensor([[5, 6]])).dtype == torch.float32
    assert backbone.max_length == 96


@pytest.mark.parametrize("model_type", ONE_OF_EACH_KIND)
def test_loaded_numbers_are_those_in_the_file(model_folders: dict[str, Path], model_type: str) -> None:
    loaded = load(model_folders[model_type]).model.state_dict()
    for name, value in load_file(model_folders[model_type] / "model.safetensors").items():
        assert torch.equal(loaded[name], value), name


# DeBERTa v1 of transformers mixes formats in bfloat16
@pytest.mark.parametrize("model_type", [family for family in KINDS if family != "deberta"])
def test_bfloat16_is_what_transformers_loads_in_bfloat16(model_type: str, tmp_path: Path) -> None:
    model = tiny_model(model_type)
    folder = saved(model, tmp_path / model_type, model_type)
    expected = type(model).from_pretrained(folder, dtype=torch.bfloat16).eval()
    loaded = load(folder, "bfloat16")
    for kind in ("named_parameters", "named_buffers"):
        tensors, expected_tensors = dict(getattr(loaded.model, kind)()), dict(getattr(expected, kind)())
        assert tensors.keys() == expected_tensors.keys()
        for name, value in expected_tensors.items():
            assert tensors[name].dtype == value.dtype, name
            assert torch.equal(tensors[name], value), name
    # The last positions, where rounded rotary frequencies are furthest from the exact ones.
    inputs = {"input_ids": torch.arange(5, 95)[None]}  # [1 T]
    if loaded.kind == "encoder-decoder":
        inputs["decoder_input_ids"] = torch.arange(5, 20)[None]
    with torch.no_grad():
        assert torch.equal(loaded.model(**inputs).logits, expected(**inputs).logits)
    assert loaded.fingerprint == load(folder).fingerprint


def test_a_model_that_cannot_run_in_bfloat16_says_so_and_takes_float32_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tiny_model("deberta"), tmp_path / "deberta", "deberta")
    with pytest.raises(BackboneError, match=r"set backbone\.dtype=float32"):
        load(folder, "bfloat16")
    monkeypatch.setattr("softcue.backbones.loading.load.choose_dtype", lambda model, device: torch.bfloat16)
    assert load_backbone(str(folder)).dtype == torch.float32


@pytest.mark.parametrize("method", ["fine-tuned", "with dropout"])
def test_copies_of_a_bfloat16_backbone_keep_its_rotary_frequencies(method: str, tmp_path: Path) -> None:
    backbone = load(saved(tiny_model("llama"), tmp_path / "llama", "llama"), "bfloat16")
    weights = {name: torch.nn.Parameter(value.float()) for name, value in backbone.weights().items()}
    view = backbone.with_weights(weights) if method == "fine-tuned" else backbone.with_dropout
    exact = tiny_model("llama").model.rotary_emb.inv_freq
    assert torch.equal(view.model.model.rotary_emb.inv_freq, exact)
    assert not torch.equal(exact.bfloat16().float(), exact)


def test_the_number_format_is_chosen_before_any_weight_is_read(
    model_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """So a model that runs in bfloat16 never takes the memory of float32."""
    from softcue.backbones.loading import load as loading

    devices = []

    def choose(model: Any, device: torch.device) -> torch.dtype:
        devices.append(model.get_input_embeddings().weight.device.type)
        return torch.bfloat16

    monkeypatch.setattr(loading, "choose_dtype", choose)
    assert load(model_folders["bert"], "auto").dtype == torch.bfloat16
    assert devices == ["meta"]


def test_loading_prints_nothing_and_restores_the_verbosity(
    model_folders: dict[str, Path], capfd: pytest.CaptureFixture[str]
) -> None:
    before = hf.logging.get_verbosity(), hf.logging.is_progress_bar_enabled()
    load(model_folders["bert"])
    error_message(model_folders["bert"].parent)
    assert (hf.logging.get_verbosity(), hf.logging.is_progress_bar_enabled()) == before
    assert capfd.readouterr() == ("", "")


def test_auto_takes_float32_for_a_tiny_model(model_folders: dict[str, Path]) -> None:
    backbone = load_backbone(BackboneConfig(name=str(model_folders["bert"]), device="cpu", dtype="auto"))
    assert backbone.dtype == torch.float32


@pytest.mark.parametrize(
    "name", ["/no/such/folder", "./nowhere", "~/nowhere", "~nobody-here/x", "a/b/c", "", "x" * 5000]
)
def test_a_name_that_does_not_exist_is_an_error(name: str) -> None:
    assert "existing model folder" in error_message(name)


def test_empty_name_is_not_the_current_folder(model_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(model_folders["bert"])
    assert "existing model folder" in error_message("")
    assert load(".").kind == "encoder"


def test_file_instead_of_a_folder_is_an_error(model_folders: dict[str, Path]) -> None:
    assert "existing model folder" in error_message(model_folders["bert"] / "model.safetensors")


def test_folder_without_a_model_is_an_error(tmp_path: Path) -> None:
    assert "config.json" in error_message(tmp_path)


def test_gguf_file_in_bfloat16_is_the_rounded_float32_model_with_exact_frequencies(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    write_tiny_gguf(tmp_path / "model.gguf")
    exact, rounded = load(tmp_path), load(tmp_path, "bfloat16")
    assert rounded.fingerprint == exact.fingerprint
    for (name, value), other in zip(exact.model.named_parameters(), rounded.model.parameters(), strict=True):
        assert torch.equal(value.bfloat16(), other), name
    for (name, value), other in zip(exact.model.named_buffers(), rounded.model.buffers(), strict=True):
        assert torch.equal(value, other), name
    assert load(tmp_path, "auto").dtype == torch.float32  # a small model is not measured


def test_two_gguf_files_are_an_error(tmp_path: Path) -> None:
    for name in "ab":
        (tmp_path / f"{name}.gguf").write_bytes(b"GGUF")
    assert "exactly one .gguf" in error_message(tmp_path)


def test_broken_gguf_file_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.gguf").write_bytes(b"GGUF\x03\x00\x00\x00" + b"\xff" * 40)
    error_message(tmp_path)


@pytest.mark.parametrize("model_type", ONE_OF_EACH_KIND)
@pytest.mark.parametrize("length", [0, 5, 2000, -1])
def test_truncated_weights_are_an_error(copied: Callable[[str], Path], model_type: str, length: int) -> None:
    folder = copied(model_type)
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:length])
    assert "check its files" in error_message(folder)


def test_garbage_weights_are_an_error(copied: Callable[[str], Path]) -> None:
    folder = copied("bert")
    (folder / "model.safetensors").write_bytes(b"\xff" * 5000)
    assert "check its files" in error_message(folder)


@pytest.mark.parametrize(
    ("model_type", "name"),
    [
        ("bert", "bert.encoder.layer.1.output.dense.weight"),
        ("bert", "bert.embeddings.word_embeddings.weight"),
        ("bert", "cls.predictions.transform.dense.bias"),
        ("t5", "decoder.block.2.layer.1.EncDecAttention.k.weight"),
        ("t5", "shared.weight"),
        ("gpt2", "transformer.h.0.attn.c_attn.weight"),
        ("gpt2", "transformer.wte.weight"),
    ],
)
@pytest.mark.parametrize("change", ["dropped", "reshaped"])
def test_missing_or_reshaped_weights_are_an_error_by_name(
    copied: Callable[[str], Path], model_type: str, name: str, change: str
) -> None:
    folder = copied(model_type)
    if change == "dropped":
        change_tensors(folder, lambda tensors: tensors.pop(name))
    else:
        change_tensors(folder, lambda tensors: tensors.update({name: torch.zeros(3, 3)}))
    assert name in error_message(folder)


def test_config_with_more_layers_than_the_file_is_an_error(copied: Callable[[str], Path]) -> None:
    folder = copied("bert")
    change_config(folder, num_hidden_layers=5)
    assert "encoder.layer.3" in error_message(folder)


@pytest.mark.parametrize("text", ["{not json", "[]", "{}", "", "\x00", '{"model_type": "bert", "hidden_size": "wide"}'])
def test_broken_config_is_an_error(copied: Callable[[str], Path], text: str) -> None:
    folder = copied("bert")
    (folder / "config.json").write_text(text)
    assert "check its files" in error_message(folder)


def test_a_model_that_reads_no_text_is_an_error(copied: Callable[[str], Path]) -> None:
    folder = copied("bert")
    change_config(folder, model_type="whisper")
    message = error_message(folder)
    assert "'whisper'" in message
    assert "a text model" in message


def test_family_unknown_to_transformers_is_an_error(copied: Callable[[str], Path]) -> None:
    folder = copied("bert")
    change_config(folder, model_type="nonesuch")
    assert "nonesuch" in error_message(folder)


@pytest.mark.parametrize("model_type", ["bert", "nonesuch"])
def test_code_in_a_model_folder_is_never_run_and_no_question_is_asked(
    copied: Callable[[str], Path], tmp_path: Path, model_type: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    questions: list[object] = []
    monkeypatch.setattr("builtins.input", lambda *words: questions.append(words) or "n")
    folder = copied("bert")
    (folder / "evil.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\nclass C: ...\n")
    names = ("AutoConfig", "AutoModel", "AutoModelForMaskedLM")
    change_config(folder, model_type=model_type, auto_map=dict.fromkeys(names, "evil.C"))
    if model_type == "bert":
        assert type(load(folder).model) is hf.BertForMaskedLM
    else:
        error_message(folder)
    assert questions == []
    assert not (tmp_path / "ran").exists()


class Bomb:
    """Unpickling it writes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return open, (str(self.path), "w")


def test_pickled_weights_are_an_error_and_not_read(copied: Callable[[str], Path], tmp_path: Path) -> None:
    folder = copied("bert")
    (folder / "model.safetensors").unlink()
    torch.save({"bomb": Bomb(tmp_path / "ran")}, folder / "pytorch_model.bin")
    assert "safetensors" in error_message(folder)
    assert not (tmp_path / "ran").exists()


def test_adapter_folder_is_an_error(copied: Callable[[str], Path]) -> None:
    folder = copied("bert")
    (folder / "adapter_config.json").write_text("{}")
    assert "merge the adapter" in error_message(folder)
    shutil.copytree(folder, folder / "0_Transformer")
    (folder / "adapter_config.json").unlink()
    (folder / "modules.json").write_text(
        '[{"type": "sentence_transformers.models.Transformer", "path": "0_Transformer"}]'
    )
    assert "merge the adapter" in error_message(folder)


@pytest.mark.parametrize("model_type", ONE_OF_EACH_KIND)
def test_model_without_tokenizer_files_is_an_error(copied: Callable[[str], Path], model_type: str) -> None:
    folder = copied(model_type)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer_config.json").unlink()
    assert "tokenizer" in error_message(folder)


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("text", ["{", ""])
def test_broken_tokenizer_is_an_error(copied: Callable[[str], Path], file: str, text: str) -> None:
    folder = copied("gpt2")
    (folder / file).write_text(text)
    error_message(folder)


def test_tokenizer_of_a_larger_model_is_an_error(copied: Callable[[str], Path]) -> None:
    folder = copied("bert")
    tokenizer = tiny_tokenizer("bert")
    tokenizer.add_tokens(["another"])
    tokenizer.save_pretrained(folder)
    assert f"{VOCABULARY} word embeddings" in error_message(folder)


@pytest.mark.parametrize("name", ["nobody/nothing", "nothing"])
def test_hub_id_offline_is_an_error(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    message = error_message(name)
    assert "HF_HUB_OFFLINE is set" in message
    assert "minilm" in message


@pytest.mark.parametrize("device", ["cuda:99", "teapot"])
def test_a_missing_device_is_an_error(model_folders: dict[str, Path], device: str) -> None:
    assert "backbone.device" in error_message(model_folders["bert"], device=device)


def test_encoder_with_a_masked_word_head_has_one(model_folders: dict[str, Path], tmp_path: Path) -> None:
    assert load(model_folders["bert"]).word_head is not None
    config = hf.BertConfig(vocab_size=VOCABULARY, **SIZES)
    assert load(saved(hf.BertForPreTraining(config), tmp_path)).word_head is not None


@pytest.mark.parametrize("how", ["bare", "classifier", "electra discriminator", "architecture unnamed"])
def test_label_words_without_a_masked_word_head_are_an_error(how: str, tmp_path: Path) -> None:
    config = hf.BertConfig(vocab_size=VOCABULARY, **SIZES)
    match how:
        case "bare":
            saved(hf.BertModel(config, add_pooling_layer=False), tmp_path)
        case "classifier":
            saved(hf.BertForSequenceClassification(config), tmp_path)
        case "electra discriminator":
            small = hf.ElectraConfig(vocab_size=VOCABULARY, **SIZES, embedding_size=24)
            saved(hf.ElectraForPreTraining(small), tmp_path, "electra")
        case _:
            saved(hf.BertForMaskedLM(config), tmp_path)
            change_config(tmp_path, architectures=None)
    backbone = load(tmp_path)
    assert backbone.word_head is None
    task = Task(name="toy", labels={"a": Label(words="a"), "b": Label(words="b")})
    with pytest.raises(BackboneError, match="masked-word head"):
        make_readout(ReadoutConfig(name="label-words"), task, backbone)


def literal_t5_logits(w: dict[str, Tensor], ids: Tensor, decoder_ids: Tensor, is_scaled: bool) -> Tensor:
    """The paper's T5 from a file's tensors, for one row without padding: [V] at the last decoder position."""

    def norm(x: Tensor, name: str) -> Tensor:
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * w[f"{name}.layer_norm.weight"]

    def heads(x: Tensor, name: str) -> Tensor:
        return (x @ w[f"{name}.weight"].T).view(len(x), 4, 8).transpose(0, 1)

    def bias(stack: str, length: int) -> Tensor:
        table = w[f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]  # [32 heads]
        biases = torch.zeros(4, length, length)
        for query in range(length):
            for key in range(length):
                distance, half = key - query, 16 if stack == "encoder" else 32
                first = half if stack == "encoder" and distance > 0 else 0
                size = abs(distance) if stack == "encoder" else max(-distance, 0)
                exact = half // 2
                if size >= exact:
                    size = min(half - 1, exact + int(math.log(size / exact) / math.log(128 / exact) * (half - exact)))
                biases[:, query, key] = table[first + size]
                if stack == "decoder" and distance > 0:
                    biases[:, query, key] = -torch.inf
        return biases

    def attend(x: Tensor, source: Tensor, name: str, added: Tensor | float) -> Tensor:
        scores = heads(x, f"{name}.q") @ heads(source, f"{name}.k").transpose(1, 2) + added  # T5 does not scale
        mixed = scores.softmax(-1) @ heads(source, f"{name}.v")
        return mixed.transpose(0, 1).reshape(len(x), 32) @ w[f"{name}.o.weight"].T

    def stack(kind: str, x: Tensor, read: Tensor | None) -> Tensor:
        added = bias(kind, len(x))
        for number in range(3):
            layer = f"{kind}.block.{number}.layer"
            normed = norm(x, f"{layer}.0")
            x = x + attend(normed, normed, f"{layer}.0.SelfAttention", added)
            if read is not None:
                x = x + attend(norm(x, f"{layer}.1"), read, f"{layer}.1.EncDecAttention", 0.0)
            last = f"{layer}.{1 if read is None else 2}"
            inner = (norm(x, last) @ w[f"{last}.DenseReluDense.wi.weight"].T).relu()
            x = x + inner @ w[f"{last}.DenseReluDense.wo.weight"].T
        final = w[f"{kind}.final_layer_norm.weight"]
        return x * (x.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * final

    read = stack("encoder", w["shared.weight"][ids], None)
    hidden = stack("decoder", w["shared.weight"][decoder_ids], read)[-1]
    return (hidden * 32**-0.5 if is_scaled else hidden) @ w.get("lm_head.weight", w["shared.weight"]).T


@pytest.mark.parametrize(
    ("says_tied", "has_own_head"), [(None, True), (None, False), (True, True), (True, False), (False, True)]
)
def test_t5_computes_with_the_output_words_of_its_file(
    copied: Callable[[str], Path], says_tied: bool | None, has_own_head: bool
) -> None:
    folder = copied("t5")
    config = json.loads((folder / "config.json").read_text())
    del config["tie_word_embeddings"], config["scale_decoder_outputs"]  # as files of transformers 4 have them
    (folder / "config.json").write_text(json.dumps(config))
    if says_tied is not None:
        change_config(folder, tie_word_embeddings=says_tied)
    head = {"lm_head.weight": torch.randn(VOCABULARY, 32)} if has_own_head else {}
    tensors = change_tensors(folder, lambda tensors: tensors.update(head))
    model = load(folder).model
    assert torch.equal(model.shared.weight, tensors["shared.weight"])
    assert torch.equal(model.encoder.embed_tokens.weight, tensors["shared.weight"])
    assert torch.equal(model.decoder.embed_tokens.weight, tensors["shared.weight"])
    assert torch.equal(model.lm_head.weight, head.get("lm_head.weight", tensors["shared.weight"]))
    ids, decoder_ids = torch.randint(5, VOCABULARY, (25,)), torch.tensor([0, 17, 300])
    logits = model(input_ids=ids[None], decoder_input_ids=decoder_ids[None]).logits[0, -1]
    wanted = literal_t5_logits(tensors, ids, decoder_ids, is_scaled=says_tied is not False)
    torch.testing.assert_close(logits, wanted, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("says_tied", [True, False])
def test_t5_saved_again_computes_the_same(copied: Callable[[str], Path], tmp_path: Path, says_tied: bool) -> None:
    folder = copied("t5")
    change_config(folder, tie_word_embeddings=says_tied, scale_decoder_outputs=says_tied)
    change_tensors(folder, lambda tensors: tensors.update({"lm_head.weight": torch.randn(VOCABULARY, 32)}))
    first = load(folder)
    second = load(saved(first.model, tmp_path / "again", "t5"))
    inputs = {"input_ids": torch.tensor([[7, 8, 9]]), "decoder_input_ids": torch.tensor([[0, 3]])}
    assert torch.equal(first.model(**inputs).logits, second.model(**inputs).logits)


@pytest.mark.parametrize(
    ("model_type", "values", "length"),
    [("bert", {"max_position_embeddings": 40}, 40), ("gpt2", {"n_positions": 40}, 40)],
)
def test_max_length_follows_the_positions(tmp_path: Path, model_type: str, values: dict[str, int], length: int) -> None:
    config = tiny_model(model_type).config
    config.update(values)
    maker = hf.BertForMaskedLM if model_type == "bert" else hf.GPT2LMHeadModel
    assert load(saved(maker(config), tmp_path, model_type)).max_length == length


def test_max_length_of_roberta_leaves_out_the_rows_for_padding(tmp_path: Path) -> None:
    config = hf.RobertaConfig(vocab_size=VOCABULARY, **(SIZES | {"pad_token_id": 1, "max_position_embeddings": 98}))
    assert load(saved(hf.RobertaForMaskedLM(config), tmp_path, "roberta")).max_length == 96


@pytest.mark.parametrize(("model_max_length", "length"), [(40, 40), (10**30, 512)])
def test_max_length_of_t5_follows_its_tokenizer(
    copied: Callable[[str], Path], model_max_length: int, length: int
) -> None:
    folder = copied("t5")
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"model_max_length": model_max_length}))
    assert load(folder).max_length == length


@pytest.mark.parametrize(
    ("model_type", "config", "pooling"),
    [
        ("bert", None, "cls"),
        ("bert", {"pooling_mode_cls_token": False, "pooling_mode_mean_tokens": True}, "mean"),
        ("bert", {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False}, "cls"),
        ("t5", None, "mean"),
        ("gpt2", None, "last"),
    ],
)
def test_natural_pooling_follows_the_pooling_config(
    copied: Callable[[str], Path], model_type: str, config: dict[str, bool] | None, pooling: str
) -> None:
    folder = copied(model_type)
    if config is not None:
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(json.dumps(config))
    assert load(folder).default_pooling == pooling
