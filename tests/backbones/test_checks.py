"""Every check notices the fault it is there for: each test breaks one thing."""

from __future__ import annotations

import json
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from command import check_error, run
from tiny import KINDS, UNLIKE, tiny_model, tiny_tokenizer
from toy import make_model

from softcue.backbones import Backbone, checks, load_backbone
from softcue.backbones.checks import Check, apply_checks, check_backbone, ensure_checked
from softcue.backbones.structure import LayerStructure, Stack, Structure
from softcue.backbones.tracing import set_structure, structure_of
from softcue.errors import BackboneError

# What fails on the tiny models of the tests, and why.
KNOWN_FAILURES = {"deberta-v2": {"keys and values"}}


def make_backbone(model_type: str, **changes: Any) -> Backbone:
    """A backbone of its own, whose structure may be wrong."""
    model = tiny_model(model_type)
    if changes:
        set_structure(model, structure_of(model).model_copy(update=changes))
    return Backbone(model, tiny_tokenizer(model_type), f"tiny-{model_type}")


def failures(backbone: Backbone) -> set[str]:
    return {check.name for check in check_backbone(backbone) if not check.passed}


def change_layers(structure: Structure, change: Callable[[LayerStructure], LayerStructure]) -> Stack:
    return structure.source.model_copy(update={"layers": tuple(map(change, structure.source.layers))})


@pytest.mark.parametrize("model_type", KINDS)
def test_every_family_passes_its_checks(model_type: str) -> None:
    assert failures(make_backbone(model_type)) == KNOWN_FAILURES.get(model_type, set())


@pytest.mark.parametrize("model_type", UNLIKE)
def test_the_same_is_found_and_passes_in_bfloat16(model_type: str) -> None:
    model = tiny_model(model_type).to(torch.bfloat16)
    assert structure_of(model) == structure_of(tiny_model(model_type))
    assert failures(Backbone(model, tiny_tokenizer(model_type), "rough")) == set()


def test_a_wrong_number_of_the_first_position_is_noticed() -> None:
    assert failures(make_backbone("roberta", first_position=0)) == {"token ids"}
    backbone = make_backbone("bert")
    backbone.first_position = None  # BERT then counts padding too, which is right for rows that are padded at the end
    assert failures(backbone) == set()
    decoder = make_backbone("gpt2")
    decoder.first_position = None
    assert "padding" in failures(decoder)


def test_words_that_enter_in_another_scale_than_in_a_text_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = make_backbone("gemma")
    checker = checks._Checker(backbone)
    monkeypatch.setattr(type(backbone), "embed", lambda self, ids: self.word_table[ids].float())
    assert {check.name for check in checker.run() if not check.passed} >= {"copied words"}


@pytest.mark.parametrize("model_type", ["bert", "gpt2", "gpt_neox"])
def test_queries_taken_for_keys_are_noticed(model_type: str) -> None:
    structure = structure_of(tiny_model(model_type))

    def swap(layer: LayerStructure) -> LayerStructure:
        assert layer.keys is not None
        if model_type == "bert":
            return layer.model_copy(update={"keys": layer.keys.model_copy(update={"module": "attention.self.query"})})
        queries = [(0, 32)] if model_type == "gpt2" else [(start, start + 8) for start in range(0, 96, 24)]
        return layer.model_copy(update={"keys": layer.keys.model_copy(update={"columns": tuple(queries)})})

    backbone = make_backbone(model_type, source=change_layers(structure, swap))
    assert failures(backbone) == {"keys and values"}


def test_keys_taken_for_values_are_noticed() -> None:
    structure = structure_of(tiny_model("llama"))
    backbone = make_backbone(
        "llama", source=change_layers(structure, lambda layer: layer.model_copy(update={"values": layer.keys}))
    )
    assert failures(backbone) == {"keys and values"}


def test_a_module_that_runs_more_than_once_in_a_layer_is_noticed() -> None:
    structure = structure_of(tiny_model("phi"))
    backbone = make_backbone(
        "phi",
        source=change_layers(
            structure, lambda layer: layer.model_copy(update={"sublayers": ("self_attn.dense", "resid_dropout")})
        ),
    )
    assert failures(backbone) == {"sub-layers"}


@pytest.mark.parametrize(
    ("model_type", "sublayers"),
    [
        ("bert", ("attention.self.query", "attention.output.LayerNorm")),
        ("llama", ("self_attn.q_proj", "mlp")),
        ("t5", ("layer.0.SelfAttention.q", "layer.1.dropout")),
    ],
)
def test_sublayers_in_other_places_are_noticed(model_type: str, sublayers: tuple[str, ...]) -> None:
    structure = structure_of(tiny_model(model_type))
    wrong = change_layers(structure, lambda layer: layer.model_copy(update={"sublayers": sublayers}))
    assert failures(make_backbone(model_type, source=wrong)) == {"sub-layers"}


def test_sublayers_of_the_decoder_that_do_not_run_are_noticed() -> None:
    structure = structure_of(tiny_model("t5"))
    assert structure.decoder is not None
    twice = tuple(
        layer.model_copy(update={"sublayers": ("layer.0.dropout",) * 2}) for layer in structure.decoder.layers
    )
    wrong = structure.decoder.model_copy(update={"layers": twice})
    assert failures(make_backbone("t5", decoder=wrong)) == {"sub-layers"}


def test_a_layer_that_is_left_out_is_noticed() -> None:
    source = structure_of(tiny_model("bert")).source
    wrong = Stack(runs=(*source.runs[:1], *source.runs[:1], *source.runs[2:]), layers=source.layers)
    assert "layers" in failures(make_backbone("bert", source=wrong))


def test_a_list_of_parts_of_layers_is_noticed() -> None:
    settings = {"n_words": 400, "emb_dim": 32, "n_layers": 3, "n_heads": 4, "max_position_embeddings": 96}
    torch.manual_seed(0)
    model = hf.XLMWithLMHeadModel(hf.XLMConfig(**settings)).eval()  # it has a list of attentions, one of norms, ...
    assert "layers" in failures(Backbone(model, tiny_tokenizer("bert"), "xlm"))


def test_a_prompt_without_gradient_is_noticed() -> None:
    backbone = make_backbone("bert")
    backbone.layers[0].register_forward_pre_hook(lambda module, args: (args[0].detach(), *args[1:]))
    assert "gradients" in failures(backbone)


def test_a_word_head_that_computes_other_logits_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = make_backbone("roberta")
    assert backbone.word_head is not None
    logits = backbone.word_head.logits
    monkeypatch.setattr(backbone.word_head, "logits", lambda hidden: logits(hidden * 1.1))
    assert failures(backbone) == {"word head"}


@pytest.mark.parametrize("model_type", ["t5", "llama"])
def test_a_cache_that_loses_keys_is_noticed(model_type: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from transformers.cache_utils import DynamicLayer

    update = DynamicLayer.update

    def forget(self: Any, keys: torch.Tensor, values: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
        all_keys, all_values = update(self, keys, values, *args, **kwargs)
        return (all_keys * 0, all_values) if keys.shape[2] == 1 < all_keys.shape[2] else (all_keys, all_values)

    monkeypatch.setattr(DynamicLayer, "update", forget)
    assert "cached decoding" in failures(make_backbone(model_type))


def test_attention_to_padding_is_noticed() -> None:
    backbone = make_backbone("bert")
    backbone.base.register_forward_pre_hook(
        lambda module, args, kwargs: (args, {**kwargs, "attention_mask": torch.ones_like(kwargs["attention_mask"])}),
        with_kwargs=True,
    )
    assert "padding" in failures(backbone)


# What a failed check leads to


def test_a_backbone_that_cannot_be_used_is_an_error_of_one_line() -> None:
    backbone = make_backbone("bert")
    with pytest.raises(BackboneError, match="a row alone and the same row in a padded batch differ") as raised:
        apply_checks(backbone, [Check(name="padding", passed=False, detail="relative difference 4.6e-01")])
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "case", "readout", "works"),
    [
        ("keys and values", "p-tuning-v2 kv", None, r"method\.rule=add"),
        ("layers", "m-idpg-phm", None, "prompt-tuning"),
        ("cached decoding", "prompt-tuning", {"name": "generation"}, r"readout\.name=classifier"),
    ],
)
def test_what_failed_is_a_warning_and_an_error_where_it_is_asked_for(
    name: Any, case: str, readout: dict[str, object] | None, works: str
) -> None:
    backbone = make_backbone("gpt2")
    failed = Check(name=name, passed=False, detail="measured so", works=checks._WORKS[name])
    with pytest.warns(UserWarning, match=f"measured so.*: .*{works}.* works"):
        apply_checks(backbone, [failed])
    make_model(backbone, "prompt-tuning", readout={"name": "classifier"})  # still works
    with pytest.raises(BackboneError, match=works):
        make_model(backbone, case, readout=readout)


def test_adapters_on_unknown_sublayers_are_an_error() -> None:
    backbone = make_backbone("bert")
    with pytest.warns(UserWarning, match="adapters do not work"):
        apply_checks(
            backbone, [Check(name="sub-layers", passed=False, detail="none", works="method.name=prompt-tuning")]
        )
    model = make_model(backbone, "adapter")
    with pytest.raises(BackboneError, match="adapters do not work"):
        model.method.view_of(backbone)


def test_a_failed_cache_turns_sharing_of_prompts_off() -> None:
    backbone = make_backbone("gpt2")
    model = make_model(backbone, "prompt-tuning", readout={"name": "classifier"})
    from conformance.test_conformance import make_batch, split_examples

    batch = make_batch(model, backbone, split_examples(model))
    assert model.read(backbone, batch)[0].shared  # type: ignore[attr-defined]
    backbone.limits["shared prefix"] = "measured so"
    assert not model.read(backbone, batch)[0].shared  # type: ignore[attr-defined]


def test_known_limits_of_a_structure_are_no_warning() -> None:
    backbone = make_backbone("deberta-v2")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        apply_checks(backbone, check_backbone(backbone))
    assert "run more than once in a layer" in backbone.limits["keys and values"]


# The begin token


def test_a_tokenizer_that_forgets_the_begin_token_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = make_backbone("llama")  # its configuration has a begin token, its tokenizer adds none
    [passed] = [check for check in check_backbone(backbone) if check.name == "begin token"]
    assert passed.passed and "nats per token" in passed.detail
    forward = backbone.model.forward

    def needs_begin_token(input_ids: Any = None, **inputs: Any) -> Any:
        output = forward(input_ids=input_ids, **inputs)
        if input_ids is not None and input_ids.shape[1] > 10 and int(input_ids[0, 0]) == 2:
            following = input_ids[:, 1:]
            output.logits[:, :-1].scatter_(2, following.unsqueeze(2), 50.0)
        return output

    monkeypatch.setattr(backbone.model, "forward", needs_begin_token)
    checker = checks._Checker(backbone)
    failed = checker._guard("begin token", checker._check_begin_token)
    with pytest.warns(UserWarning, match="does not add the begin token that this model needs"):
        apply_checks(backbone, [failed])


def test_a_begin_token_that_the_tokenizer_adds_needs_no_pass() -> None:
    [check] = [check for check in check_backbone(make_backbone("opt")) if check.name == "begin token"]
    assert (check.passed, check.detail) == (True, "added by the tokenizer")


# What was checked is kept


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("SOFTCUE_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def num_checks(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    run_checks = check_backbone

    def count(backbone: Backbone) -> list[Check]:
        names.append(backbone.name)
        return run_checks(backbone)

    monkeypatch.setattr(checks, "check_backbone", count)
    return names


def test_a_backbone_is_checked_once_on_a_machine(home: Path, num_checks: list[str]) -> None:
    for _ in range(2):
        ensure_checked(make_backbone("bert"))
    assert len(num_checks) == 1
    ensure_checked(make_backbone("roberta"))
    assert len(num_checks) == 2
    assert len(list((home / "checks").iterdir())) == 2


def test_another_class_and_other_weights_are_checked_again(home: Path, num_checks: list[str]) -> None:
    first, second = make_backbone("bert"), make_backbone("bert")
    second.model.get_parameter("bert.encoder.layer.2.output.dense.weight").mul_(2)
    headless = Backbone(make_backbone("bert").model.base_model, first.tokenizer, "headless")
    for backbone in (first, second, headless):
        ensure_checked(backbone)
    assert len(num_checks) == 3


def test_a_model_that_cannot_read_the_texts_of_the_checks_is_an_error_of_one_line() -> None:
    backbone = Backbone(tiny_model("bert", max_position_embeddings=6), tiny_tokenizer("bert"), "short")
    with pytest.raises(BackboneError, match="runs on two texts of 7 and 4 tokens") as raised:
        check_backbone(backbone)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("content", [b"", b"[]]", b'[{"name": "padding"}]', b"\xff"])
def test_a_damaged_file_of_checks_is_made_again(home: Path, num_checks: list[str], content: bytes) -> None:
    ensure_checked(make_backbone("bert"))
    [file] = (home / "checks").iterdir()
    file.write_bytes(content)
    ensure_checked(make_backbone("bert"))
    assert len(num_checks) == 2
    assert json.loads(file.read_bytes())[0]["name"] == "token ids"


def test_checks_run_where_nothing_can_be_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("SOFTCUE_HOME", str(tmp_path / "file"))
    ensure_checked(make_backbone("bert"))


def test_loading_checks(model_folders: dict[str, Path], home: Path, num_checks: list[str]) -> None:
    load_backbone(str(model_folders["bert"]))
    assert len(num_checks) == 1


# The command


def test_the_command_prints_what_was_found_and_each_check(model_folders: dict[str, Path]) -> None:
    printed = run("backbones", "check", str(model_folders["bert"]), "--json").json
    assert printed["structure"]["kind"] == "encoder"
    assert {check["name"]: check["passed"] for check in printed["checks"]} == {
        "token ids": True,
        "padding": True,
        "copied words": True,
        "gradients": True,
        "layers": True,
        "sub-layers": True,
        "keys and values": True,
        "joined keys": True,
        "word head": True,
    }
    assert printed["seconds"].keys() == {"load", "find", "check"}
    table = run("backbones", "check", str(model_folders["gpt2"]))
    assert table.code == 0
    assert all(words in table.out for words in ("cached decoding", "attn.c_attn", "shared prefix"))


def test_the_command_ends_with_an_error_if_the_backbone_cannot_be_used(
    model_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    failed = [Check(name="padding", passed=False, detail="relative difference 4.6e-01")]
    monkeypatch.setattr(checks, "check_backbone", lambda backbone: failed)
    ended = run("backbones", "check", str(model_folders["bert"]))
    assert ended.code == 2
    assert "relative difference 4.6e-01" in ended.out  # the table comes first
    assert ended.err.splitlines()[-1].startswith("error: ")
    assert "padded batch differ" in ended.err


def test_the_command_checks_its_options(model_folders: dict[str, Path]) -> None:
    check_error(run("backbones", "check", str(model_folders["bert"]), "--dtype", "int3"), "dtype", "int3")
