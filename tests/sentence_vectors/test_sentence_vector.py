"""M(x) is worked out once per backbone and text, whoever asks (Wu et al. 2022, section 3.1)."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import ONE_OF_EACH_KIND, tiny, tiny_model, tiny_tokenizer
from tolerance import REORDERED_BFLOAT16, REORDERED_FLOAT32, REORDERED_PROBABILITIES
from torch import Tensor, nn
from toy import EXAMPLES, PAIRS, TASK, make_model

import softcue
from softcue.backbones import Backbone, Summary
from softcue.errors import ConfigurationError
from softcue.inference import TaskModel, make_task_model
from softcue.inputs.collate import collate
from softcue.methods import METHODS
from softcue.readouts import ReadoutConfig
from softcue.sentence_vectors import SentenceVector, sentence_vectors_of
from softcue.tasks import Label, Task, examples_from, library_task
from softcue.types import Batch, Example

POOLINGS: list[Summary] = ["cls", "mean", "last"]
TEXTS = [
    Example(("My invoice is wrong.",)),
    Example(("ok",)),
    Example(("Where is my order, it never came",)),
]
PAIR = [Example(("My invoice", "is wrong")), Example(("My invoice is", "wrong"))]


@pytest.fixture(autouse=True)
def _own_store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTCUE_HOME", str(tmp_path / "home"))


@pytest.fixture
def word_vectors(tmp_path: Path) -> str:
    """A GloVe file of three words."""
    path = tmp_path / "glove.txt"
    path.write_text(
        "".join(
            f"{word} {' '.join([number] * 8)}\n" for word, number in [("my", "1"), ("order", "3"), ("invoice", "-2")]
        )
    )
    return str(path)


@contextmanager
def passes(*backbones: Backbone) -> Iterator[list[int]]:
    """The rows of every pass that any of the backbones runs meanwhile."""
    lengths: list[int] = []

    def count(module: Any, args: Any, kwargs: Any) -> None:
        lengths.append(len(args[0] if args else kwargs["hidden_states"]))

    handles = [backbone.layers[0].register_forward_pre_hook(count, with_kwargs=True) for backbone in backbones]
    try:
        yield lengths
    finally:
        for handle in handles:
            handle.remove()


def fresh(family: str = "bert", **changes: Any) -> Backbone:
    """A backbone of one's own: equal to the shared one unless something is changed."""
    model, tokenizer = tiny_model(family), tiny_tokenizer(family)
    if changes.get("weights"):
        model.base_model.get_submodule("encoder.layer.1.output.dense").weight.data.mul_(1.5)
    if changes.get("words"):
        tokenizer.add_tokens(["invoice wrong"])
    if dtype := changes.get("dtype"):
        model = model.to(dtype)
    if changes.get("settings"):
        model.config.hidden_act = "relu"
    return Backbone(model, tokenizer, changes.get("name", "fresh"))


# --- who gets a vector from disk -------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
def test_the_second_call_runs_nothing_and_gives_the_same_bits(family: str) -> None:
    backbone = tiny(family)
    with passes(backbone) as ran:
        first = sentence_vectors_of(SentenceVector(), backbone, TASK, TEXTS)
        assert sum(ran) == 3
        again = sentence_vectors_of(SentenceVector(), backbone, TASK, TEXTS)
        backwards = sentence_vectors_of(SentenceVector(), backbone, TASK, TEXTS[::-1])
    assert sum(ran) == 3
    assert torch.equal(first, again)
    assert torch.equal(first, backwards.flip(0))
    assert first.dtype == torch.float32 and first.shape == (3, 32)
    assert not first.requires_grad


def test_only_texts_that_are_new_are_read_and_each_of_them_once() -> None:
    backbone = tiny("bert")
    sentence_vectors_of(SentenceVector(), backbone, TASK, TEXTS[:1])
    with passes(backbone) as ran:
        vectors = sentence_vectors_of(SentenceVector(), backbone, TASK, [*TEXTS, TEXTS[1], TEXTS[0], TEXTS[1]])
    assert sum(ran) == 2
    assert (
        torch.equal(vectors[3], vectors[1])
        and torch.equal(vectors[5], vectors[1])
        and torch.equal(vectors[4], vectors[0])
    )


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
def test_vectors_do_not_depend_on_the_batch_they_are_computed_in(family: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTCUE_CACHE_MB", "0")
    backbone = tiny(family)
    for pooling in POOLINGS:
        together = sentence_vectors_of(SentenceVector("backbone", pooling), backbone, TASK, EXAMPLES)
        small = sentence_vectors_of(SentenceVector("backbone", pooling), backbone, TASK, EXAMPLES, batch_size=2)
        alone = torch.cat(
            [
                sentence_vectors_of(SentenceVector("backbone", pooling), backbone, TASK, [example])
                for example in EXAMPLES
            ]
        )
        REORDERED_FLOAT32.assert_close(together, alone)
        REORDERED_FLOAT32.assert_close(small, alone)


def test_another_seed_and_another_task_with_the_same_texts_run_nothing(tmp_path: Path) -> None:
    backbone = tiny("bert")
    rows = [{"text": f"message {n}", "label": "xy"[n % 2], "other": "pqr"[n % 3]} for n in range(12)]

    def train(name: str, label: str = "label", **settings: Any) -> int:
        with passes(backbone) as ran:
            softcue.train(
                tmp_path / name,
                backbone=backbone,
                method="no-prompt",
                train=rows,
                validation=rows[:4],
                text="text",
                label=label,
                progress=False,
                overrides={"training.epochs": 1},
                **settings,
            )
        return sum(ran)

    assert train("first", seed=0) == 12 + 2  # the texts, and the two labels for the zero-shot score
    assert train("again", seed=0) == 0
    assert train("seed", seed=7) == 0
    assert train("task", label="other", seed=3, task="another name") == 3  # its three labels, and no text


def test_a_method_reads_what_another_method_left(tmp_path: Path) -> None:
    backbone = tiny("bert")
    cases = ["m-idpg-phm", "s-idpg-dnn", "m-idpg-dnn", "m-idpg-phm kv", "no-prompt", "linear-probe"]
    with passes(backbone) as ran:
        for seed, case in enumerate(cases):
            make_model(backbone, case, seed=seed).rows(backbone, EXAMPLES)
    assert sum(ran) == len(EXAMPLES)


@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_for_a_text_to_text_backbone_the_text_is_what_the_template_makes_of_it(family: str) -> None:
    backbone = tiny(family)
    plain = Task(name="plain", labels={"a": Label(words="a"), "b": Label(words="b")})
    framed = Task(name="framed", template="topic of: {text}")
    with passes(backbone) as ran:
        first = sentence_vectors_of(SentenceVector(), backbone, plain, TEXTS)
        sentence_vectors_of(SentenceVector(), backbone, Task(name="other", text=("message",)), TEXTS)
        assert sum(ran) == 3
        other = sentence_vectors_of(SentenceVector(), backbone, framed, TEXTS)
        assert sum(ran) == 6
        spelled = [Example((f"topic of: {example.texts[0]}",)) for example in TEXTS]
        assert torch.equal(sentence_vectors_of(SentenceVector(), backbone, plain, spelled), other)
        assert sum(ran) == 6
    assert not torch.allclose(first, other, atol=1e-3)


def test_where_one_text_ends_and_the_next_begins_counts() -> None:
    backbone = tiny("bert")
    with passes(backbone) as ran:
        vectors = sentence_vectors_of(SentenceVector(), backbone, PAIRS, PAIR)
        join_prompts = sentence_vectors_of(SentenceVector(), backbone, TASK, [Example(("My invoice is wrong",))])
    assert ran == [2, 1]
    assert not torch.allclose(vectors[0], vectors[1], atol=1e-4)
    assert not torch.allclose(vectors[0], join_prompts[0], atol=1e-4)


@pytest.mark.parametrize(
    ("changes", "hits"),
    [
        ({}, True),
        ({"name": "the same under another name"}, True),
        ({"weights": True}, False),
        ({"words": True}, False),
        ({"settings": True}, False),
        ({"dtype": torch.bfloat16}, False),
    ],
)
def test_another_backbone_never_gets_this_ones_vectors(changes: dict[str, Any], hits: bool) -> None:
    first, second = fresh(), fresh(**changes)
    first_vectors = sentence_vectors_of(SentenceVector(), first, TASK, TEXTS)
    with passes(second) as ran:
        second_vectors = sentence_vectors_of(SentenceVector(), second, TASK, TEXTS)
    assert sum(ran) == (0 if hits else 3)
    assert torch.equal(second_vectors, first_vectors) == hits or "words" in changes or "settings" in changes


def test_another_pooling_is_another_vector() -> None:
    backbone = tiny("bert")
    kinds: list[Summary] = [*POOLINGS, "compared"]
    with passes(backbone) as ran:
        vectors = [sentence_vectors_of(SentenceVector("backbone", kind), backbone, PAIRS, PAIR) for kind in kinds]
    assert ran == [2] * 4
    assert [tuple(pooled.shape) for pooled in vectors] == [(2, 32)] * 3 + [(2, 64)]
    assert len({tuple(pooled[0, :4].tolist()) for pooled in vectors}) == 4


def test_without_a_store_everything_is_computed_anew(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("SOFTCUE_CACHE_MB", "0")
    backbone = tiny("bert")
    with passes(backbone) as ran:
        first, again = (sentence_vectors_of(SentenceVector(), backbone, TASK, TEXTS) for _ in range(2))
    assert sum(ran) == 6
    assert torch.equal(first, again)
    assert not list((tmp_path / "home").rglob("*.sqlite"))


def test_words_and_word_vectors_run_nothing_and_keep_nothing(word_vectors: str, tmp_path: Path) -> None:
    backbone = tiny("bert")
    with passes(backbone) as ran:
        sentence_vectors_of(SentenceVector("words", "mean"), backbone, TASK, TEXTS)
        vectors = sentence_vectors_of(
            SentenceVector("glove", "mean", glove=word_vectors, glove_width=8), backbone, TASK, TEXTS
        )
    assert ran == []
    assert vectors[:, 0].tolist() == [-0.5, 0.0, 2.0]  # the mean over the words that are known
    assert not list((tmp_path / "home").rglob("representations.sqlite"))


def test_word_vectors_of_another_width_or_content_are_refused(word_vectors: str) -> None:
    backbone = tiny("bert")
    with pytest.raises(
        ConfigurationError, match=r"method\.glove_width.*method\.glove=FILE to word vectors of width 50.*glove_width=8"
    ):
        sentence_vectors_of(SentenceVector("glove", "mean", glove=word_vectors, glove_width=50), backbone, TASK, TEXTS)
    other = SentenceVector("glove", "mean", glove=word_vectors, glove_width=8, glove_digest="0" * 64)
    with pytest.raises(ConfigurationError, match=r"method\.glove:.*trained with"):
        sentence_vectors_of(other, backbone, TASK, TEXTS)


@pytest.mark.parametrize("method", ["m-idpg-phm", "no-prompt"])
def test_a_cue_answers_the_same_with_a_full_an_empty_and_no_store(
    method: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = tiny("bert")
    rows = [{"text": f"message {n}", "label": "xy"[n % 2]} for n in range(8)]
    sizes = {"method.prompt_length": 3, "method.phm_n": 4, "method.bottleneck": 8} if method == "m-idpg-phm" else {}
    cue = softcue.train(
        tmp_path / "cue",
        backbone=backbone,
        method=method,
        train=rows,
        validation=rows,
        text="text",
        label="label",
        overrides={"training.epochs": 1, **sizes},
        progress=False,
    )
    texts = ["message 3", "something else", "a message much longer than the others are"]
    full = cue.predict(texts)
    loaded = softcue.load(tmp_path / "cue", backbone)
    assert loaded.predict(texts) == full
    for variable, value in (("SOFTCUE_HOME", str(tmp_path / "other")), ("SOFTCUE_CACHE_MB", "0")):
        monkeypatch.setenv(variable, value)
        for prediction, wanted in zip(loaded.predict(texts), full, strict=True):
            assert prediction.scores == REORDERED_PROBABILITIES.approx(wanted.scores)
        assert loaded.predict(texts[:1])[0].scores == REORDERED_PROBABILITIES.approx(full[0].scores)


@torch.no_grad()
def test_a_head_reads_texts_as_its_run_cuts_them_and_prompts_read_whole_ones() -> None:
    backbone = tiny("bert")
    long = [Example(("my order is late and the invoice is wrong, please help me with both of them",))]
    bare, prompted = (
        make_task_model(
            TASK,
            (METHODS[name], METHODS[name].Config.model_validate({"name": name, **settings})),
            ReadoutConfig(),
            backbone,
            None,
            max_length=12,
        )
        for name, settings in (("no-prompt", {}), ("m-idpg-phm", {"prompt_length": 4, "phm_n": 4, "bottleneck": 4}))
    )
    whole = sentence_vectors_of(SentenceVector("backbone", "cls"), backbone, TASK, long)[0]
    (row,) = prompted.rows(backbone, long)
    assert row.is_truncated and row.representation is not None
    assert torch.equal(row.representation, whole)
    (row,) = bare.rows(backbone, long)
    assert row.is_truncated and row.representation is not None and len(row.ids) <= 12
    batch = collate([row], 0)
    read = backbone.read(batch, None, backbone.embed(batch.ids)).features("cls")[0]
    REORDERED_FLOAT32.assert_close(row.representation, read)
    assert not torch.allclose(row.representation, whole, atol=1e-3)
    with passes(backbone) as ran:  # each of the two has its own place on disk
        assert torch.equal(bare.rows(backbone, long)[0].representation, row.representation)  # type: ignore[arg-type]
        assert torch.equal(prompted.rows(backbone, long)[0].representation, whole)  # type: ignore[arg-type]
    assert ran == []


# --- the authors' dropout --------------------------------------------------------------------------------------------


def batch_of(model: TaskModel, backbone: Backbone, answers: bool = False) -> Batch:
    return collate(model.rows(backbone, EXAMPLES, with_target=answers), backbone.tokenizer.pad_token_id)


def tokens_of(model: TaskModel, backbone: Backbone, batch: Batch) -> Tensor:
    prompt = model.prompt(backbone, batch, backbone.embed(batch.ids))
    assert prompt is not None
    return prompt.tokens.detach()


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
def test_dropout_makes_the_sentence_vector_noisy_in_training_only(family: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, "s-idpg-phm", representation_dropout=True, dropout=0.0)
    quiet = make_model(backbone, "s-idpg-phm", dropout=0.0)
    batch = batch_of(model, backbone)
    wanted = tokens_of(quiet, backbone, batch)
    model.train()
    first, second = tokens_of(model, backbone, batch), tokens_of(model, backbone, batch)
    assert not torch.allclose(first, second, atol=1e-3)
    assert not torch.allclose(first, wanted, atol=1e-3)
    model.eval()
    assert torch.equal(tokens_of(model, backbone, batch), wanted)
    assert torch.equal(tokens_of(model, backbone, batch), wanted)
    assert not backbone.model.training
    assert torch.equal(quiet.train() and tokens_of(quiet, backbone, batch), wanted)  # off by default


def test_noise_repeats_with_the_draws_and_leaves_no_gradient_in_the_backbone() -> None:
    backbone = tiny("bert")
    model = make_model(backbone, "m-idpg-phm", representation_dropout=True).train()
    batch = batch_of(model, backbone, answers=True)
    losses = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        losses.append(model(backbone, batch)[0].sum())
    assert float(losses[0].detach()) == float(losses[1].detach()) != float(losses[2].detach())
    losses[0].backward()
    assert all(value.grad is None for value in backbone.model.parameters())
    assert all(value.grad is not None for value in model.method.parameters())


def without_noise(family: str) -> Backbone:
    """A backbone whose dropout drops nothing: with it on, M(x) must be what it is with it off."""
    backbone = fresh(family)
    for module in backbone.model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        elif isinstance(getattr(module, "dropout", None), float):
            module.dropout = 0.0  # type: ignore[assignment]
    return backbone


@pytest.mark.parametrize(
    ("family", "settings", "readout"),
    [
        ("bert", {}, "classifier"),
        ("bert", {"insert_at": "appended"}, "classifier"),
        ("bert", {}, "label-words"),
        ("t5", {}, "generation"),
        ("t5", {"insert_at": "appended"}, "generation"),
        ("gpt2", {}, "classifier"),
        ("gpt2", {}, "generation"),
    ],
)
def test_training_with_dropout_and_evaluation_speak_of_the_same_sentence_vector(
    family: str, settings: dict[str, object], readout: str
) -> None:
    backbone = without_noise(family)
    task = Task(name="words", labels={"a": Label(words="the"), "b": Label(words="is")})
    model = make_model(
        backbone,
        "s-idpg-phm",
        task=task,
        readout={"name": readout},
        representation_dropout=True,
        dropout=0.0,
        **settings,
    )
    batch = batch_of(model, backbone)
    quiet = tokens_of(model.eval(), backbone, batch)
    torch.testing.assert_close(tokens_of(model.train(), backbone, batch), quiet, rtol=1e-3, atol=1e-3)
    assert not torch.allclose(quiet[0], quiet[1], atol=1e-2)


def test_rows_of_unlike_methods_in_one_batch_have_their_own_vectors(word_vectors: str) -> None:
    """Vectors of two widths in one batch: none is handed to the wrong row."""
    backbone = tiny("bert")
    rows = make_model(backbone, "m-idpg-phm").rows(backbone, EXAMPLES[:2])
    rows += make_model(backbone, "m-idpg-phm-glove", glove=word_vectors).rows(backbone, EXAMPLES[:2])
    assert collate(rows, 0).representation is None
    assert collate(rows[:2], 0).representation is not None
    assert collate([rows[0], replace(rows[1], representation=None)], 0).representation is None


def with_default_prompt(folder: Path, prompt: str) -> Backbone:
    """A tiny BERT whose folder names a default prompt."""
    folder.mkdir()
    names = {"prompts": {"query": prompt}, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(names))
    return Backbone(tiny_model("bert"), tiny_tokenizer("bert"), "bert", folder)


def test_a_prompt_is_read_in_front_of_the_first_text() -> None:
    backbone = tiny("bert")
    prompted = SentenceVector(prompt="ok ")
    written = [Example(("ok " + example.texts[0],)) for example in TEXTS]
    expected = sentence_vectors_of(SentenceVector(), backbone, TASK, written, use_disk_cache=False)
    vectors = sentence_vectors_of(prompted, backbone, TASK, TEXTS, use_disk_cache=False)
    assert torch.equal(vectors, expected)


def test_stored_vectors_with_different_prompts_are_not_mixed() -> None:
    backbone = tiny("bert")
    kinds = [SentenceVector(), SentenceVector(prompt="ok "), SentenceVector(prompt="my ")]
    computed = [sentence_vectors_of(kind, backbone, TASK, TEXTS, use_disk_cache=False) for kind in kinds]
    for _ in range(2):  # the second time from the store
        for kind, expected in zip(kinds, computed, strict=True):
            REORDERED_FLOAT32.assert_close(sentence_vectors_of(kind, backbone, TASK, TEXTS), expected)
    assert not torch.allclose(computed[0], computed[1])


def idpg(backbone: Backbone, **settings: Any) -> TaskModel:
    method = METHODS["m-idpg-phm"]
    config = method.Config(name="m-idpg-phm", prompt_length=2, phm_n=2, bottleneck=4, **settings)
    return make_task_model(TASK, (method, config), ReadoutConfig(), backbone, torch.Generator().manual_seed(0))


def test_idpg_takes_the_default_prompt_of_the_folder_and_records_it(tmp_path: Path) -> None:
    model = idpg(with_default_prompt(tmp_path / "bert", "ok "))
    assert model.representation is not None and model.representation.prompt == "ok "
    assert model.method.config.model_dump()["representation_prompt"] == "ok "


def test_idpg_takes_no_prompt_from_a_folder_that_names_none_or_against_the_users_word(tmp_path: Path) -> None:
    for model in (idpg(tiny("bert")), idpg(with_default_prompt(tmp_path / "bert", "ok "), representation_prompt="")):
        assert model.representation is not None and model.representation.prompt == ""


def test_a_cue_from_before_the_prompt_setting_reads_none(tmp_path: Path) -> None:
    method = METHODS["m-idpg-phm"]
    config = method.Config(name="m-idpg-phm", prompt_length=2, phm_n=2, bottleneck=4)
    backbone = with_default_prompt(tmp_path / "bert", "ok ")
    model = make_task_model(TASK, (method, config), ReadoutConfig(), backbone, None)
    assert model.representation is not None and model.representation.prompt == ""


def test_a_prompt_for_sentence_vectors_that_read_none_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="representation_prompt"):
        idpg(tiny("bert"), representation_prompt="ok ", representation="words")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
def test_stored_vectors_are_computed_without_padding(
    family: str, dtype: torch.dtype, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runs of a study read vectors that any of them has stored: which texts were computed with them must not show.

    Sums of batches of other sizes may still be taken in another order, which some processors' kernels do.
    """
    task = library_task("tickets")
    texts = list(examples_from(task.train, task))[:40]
    backbone = Backbone(copy.deepcopy(tiny(family).model).to(dtype), tiny(family).tokenizer, f"{family}-{dtype}")
    mean = SentenceVector("backbone", "mean")
    read = Backbone.read
    has_padding: list[bool] = []

    def note_padding(self: Backbone, batch: Any, *args: Any, **options: Any) -> Any:
        has_padding.append(not bool(batch.mask.all()))
        return read(self, batch, *args, **options)

    monkeypatch.setattr(Backbone, "read", note_padding)

    def compute(home: str, *parts: list[Example]) -> Tensor:
        monkeypatch.setenv("SOFTCUE_HOME", str(tmp_path / home))
        for part in parts:
            sentence_vectors_of(mean, backbone, task, part)
        return sentence_vectors_of(mean, backbone, task, texts)

    tolerance = REORDERED_FLOAT32 if dtype == torch.float32 else REORDERED_BFLOAT16
    whole = compute("whole")
    tolerance.assert_close(compute("parts", texts[5:9], texts[30:31], texts[::3]), whole)
    monkeypatch.setenv("SOFTCUE_CACHE_MB", "0")
    tolerance.assert_close(compute("none"), whole)
    assert has_padding and not any(has_padding)
