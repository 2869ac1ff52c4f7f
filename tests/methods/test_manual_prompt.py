"""Prompts by hand: demonstrations from training rows, nothing trained, the same predictions as the joined text."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import tiny, tiny_tokenizer
from tolerance import REORDERED_PROBABILITIES
from toy import EXAMPLES, TASK, make_model

import softcue
from softcue.backbones import Backbone
from softcue.cue import Cue
from softcue.errors import BackboneError, ConfigurationError
from softcue.inference import predict_mixed, with_readout
from softcue.inputs.formatter import ANSWER_PREFIX
from softcue.inspection import check_rows, cue_page
from softcue.methods.manual_prompt import ManualPrompt, ManualPromptConfig, choose_demonstrations
from softcue.serving.engine.requests import ServedPrediction
from softcue.serving.http.explain import explain_prompt
from softcue.types import Example, TokenizedRow

WRITERS = ("t5", "gpt2")
LABELS = ("billing", "account", "order")
TRAIN = [{"text": f"{label} {number}", "label": label} for number in range(6) for label in LABELS]
OTHERS = [{"text": f"held out {number}", "label": label} for number, label in enumerate(LABELS)]
LONG = "my order never came and nobody answers the phone at all "


def roomy(family: str) -> Backbone:
    """A tiny backbone of 300 tokens; T5 has no table of positions."""
    backbone = tiny(family)
    if family != "t5":
        return backbone
    tokenizer = tiny_tokenizer(family)
    tokenizer.model_max_length = 300
    return Backbone(backbone.model, tokenizer, "roomy")


def train(folder: Path, family: str = "t5", train_rows: Any = None, **overrides: Any) -> Cue:
    settings = {key.replace("__", "."): value for key, value in overrides.items()}
    return softcue.train(
        folder,
        backbone=roomy(family),
        method="manual-prompt",
        train=train_rows or TRAIN,
        validation=OTHERS,
        test=OTHERS,
        overrides={"method.instruction": "", **settings},
    )


def config_of(cue: Cue) -> ManualPromptConfig:
    assert isinstance(cue.model.method.config, ManualPromptConfig)
    return cue.model.method.config


# --- rows as demonstrations ---


def test_a_cue_is_written_without_training_and_predicts_the_same_when_loaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cue = train(tmp_path / "cue", method__num_demonstrations=3)
    assert cue.cue_file.training["steps_done"] == 0
    assert (cue.counts.gradient, cue.counts.stored, cue.counts.head) == (0, 0, 0)
    assert cue.cue_file.rows == {"train": 18, "validation": 3, "test": 3} and set(cue.scores) == {"validation", "test"}
    loaded = softcue.load(tmp_path / "cue", roomy("t5"))
    texts = ["Where is it", "refund"]
    assert loaded.predict(texts) == cue.predict(texts)
    note = "the cue holds the text of 3 demonstrations, which are training rows unless they were written by hand"
    assert note in capsys.readouterr().err
    assert note[1:] in (tmp_path / "cue/README.md").read_text()
    assert json.loads((tmp_path / "cue/cue.json").read_text())["method"]["demonstrations"]


def test_demonstrations_are_training_rows_balanced_over_labels_and_seeded(tmp_path: Path) -> None:
    shown = list(config_of(train(tmp_path / "cue", method__num_demonstrations=6)).demonstrations)
    rows = {f"{row['text']}{ANSWER_PREFIX} {row['label']}": row["label"] for row in TRAIN}
    assert Counter(rows[text] for text in shown) == dict.fromkeys(LABELS, 2)
    assert list(config_of(train(tmp_path / "again", method__num_demonstrations=6)).demonstrations) == shown
    fewer = config_of(train(tmp_path / "fewer", method__num_demonstrations=3)).demonstrations
    assert shown[:3] == list(fewer) and {rows[text] for text in fewer} == set(LABELS)
    other = config_of(train(tmp_path / "other", method__num_demonstrations=6, training__seed=1)).demonstrations
    assert list(other) != shown


def test_labels_take_turns_in_changing_orders_and_run_out() -> None:
    examples = [Example((str(number),), label) for number in range(20) for label in ("a", "b", "c")]
    chosen = choose_demonstrations(TASK, examples, 30, seed=0)
    orders = ["".join(str(row.target) for row in chosen[start : start + 3]) for start in range(0, 30, 3)]
    assert {"".join(sorted(order)) for order in orders} == {"abc"} and len(set(orders)) > 1
    assert len({row.texts for row in chosen if row.target == "a"}) == 10
    few = [Example(("x",), "a"), Example(("y",), "b"), Example(("z",), "a")]
    assert len(choose_demonstrations(TASK, few, 9, seed=0)) == 3
    assert choose_demonstrations(TASK, few, 0, seed=0) == []


@pytest.mark.parametrize("family", WRITERS)
@torch.no_grad()
def test_predictions_are_those_of_the_joined_text(family: str) -> None:
    backbone = roomy(family)
    texts = ("the bill\nAnswer: billing", "my order\nAnswer: account")
    model = make_model(backbone, "manual-prompt", demonstrations=texts, instruction="Team?")
    plain = make_model(backbone, "no-prompt")
    hard = backbone.tokenizer("".join(f"{text}\n\n" for text in ("Team?", *texts)), add_special_tokens=False)
    for example in (EXAMPLES[0], EXAMPLES[2], EXAMPLES[4]):
        (row,) = model.rows(backbone, [example])
        joined = replace(row, ids=(*hard["input_ids"], *row.ids), insert_at=0)
        assert row.ids[: len(row.ids) - 1] == plain_ids(backbone, example)[: len(row.ids) - 1]
        prompted, together = (predict_mixed(backbone, [pair])[0] for pair in ((model, row), (plain, joined)))
        assert prompted.scores == REORDERED_PROBABILITIES.approx(together.scores)


def plain_ids(backbone: Backbone, example: Example) -> tuple[int, ...]:
    """The row to answer as the tokenizer alone makes it."""
    return tuple(backbone.tokenizer(f"{example.texts[0]}{ANSWER_PREFIX}")["input_ids"])


# --- lengths ---


def test_a_long_row_gets_fewer_demonstrations_and_keeps_its_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    long_row = {"text": LONG * 5, "label": "order"}
    cue = train(tmp_path / "cue", train_rows=[*TRAIN, long_row], method__num_demonstrations=12)
    model, backbone = cue.model, cue.backbone
    config = config_of(cue)
    assert "1 of 19 training rows are too long for all" in capsys.readouterr().err
    rows: list[TokenizedRow] = model.rows(backbone, [Example((long_row["text"],)), Example(("Where is it",))])
    assert not rows[0].is_truncated
    pairs = [(model, row) for row in rows]
    together = predict_mixed(backbone, pairs)
    assert [predict_mixed(backbone, [pair])[0].scores for pair in pairs] == [
        REORDERED_PROBABILITIES.approx(prediction.scores) for prediction in together
    ]
    # the first demonstrations that fit, as if there were no others
    assert isinstance(model.method, ManualPrompt)
    room = config.token_limit - len(rows[0].ids)
    num_fitting = sum(end <= room for end in model.method.encoder.ends[1:])
    assert 0 < num_fitting < len(config.demonstrations)
    update = {"demonstrations": config.demonstrations[:num_fitting]}
    method = ManualPrompt.build(config.model_copy(update=update), backbone, cue.task, None)
    fewer = with_readout(cue.task, method, cue.cue_file.readout, backbone)
    assert predict_mixed(backbone, [(fewer, rows[0])])[0].scores == REORDERED_PROBABILITIES.approx(together[0].scores)


def test_demonstrations_that_do_not_fit_are_left_out_with_a_note(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    cue = train(tmp_path / "cue", "gpt2", method__num_demonstrations=18)
    config = config_of(cue)
    num_kept = len(config.demonstrations)
    assert 0 < num_kept < 18 and config.num_left_out == 18 - num_kept
    assert f"{config.num_left_out} of 18 demonstrations were left out: they do not fit" in capsys.readouterr().err
    assert not any(row.is_truncated for row in cue.model.rows(cue.backbone, [Example((row["text"],)) for row in TRAIN]))


def test_an_instruction_without_room_for_rows_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"method\.instruction.*room for text among the 96 tokens"):
        train(tmp_path / "cue", "gpt2", method__instruction=LONG * 20)


# --- the user's own texts ---


@pytest.mark.parametrize("family", WRITERS)
def test_template_instruction_prefix_and_demonstrations_are_the_user_s(family: str, tmp_path: Path) -> None:
    settings = {
        "task__template": "Note: {text}",
        "method__answer_prefix": "\nTeam: ",
        "method__instruction": "Which team?",
        "method__demonstrations": ["Note: a\nTeam: order"],
    }
    cue = train(tmp_path / "cue", family, **settings)
    config = config_of(cue)
    assert config.demonstrations == ("Note: a\nTeam: order",)
    assert config.answer_prefix == "\nTeam:"
    (row,) = cue.model.rows(cue.backbone, [Example(("hi",))])
    assert row.ids == tuple(cue.backbone.tokenizer("Note: hi\nTeam:")["input_ids"])
    assert softcue.load(tmp_path / "cue", roomy(family)).predict("hi") == cue.predict("hi")


def test_without_texts_it_is_the_backbone_alone() -> None:
    backbone = tiny("gpt2")
    model = make_model(backbone, "manual-prompt", demonstrations=(), instruction="")
    plain = make_model(backbone, "no-prompt")
    assert model.method.prompt_length == 0
    for example in EXAMPLES:
        pairs = [(each, each.rows(backbone, [example])[0]) for each in (model, plain)]
        prompted, alone = (predict_mixed(backbone, [pair])[0] for pair in pairs)
        assert prompted.scores == alone.scores


# --- other tasks and readouts ---


@pytest.mark.parametrize("family", WRITERS)
def test_free_text_and_free_decoding_work(family: str, tmp_path: Path) -> None:
    rows = [{"text": f"a {number}", "label": f"b {number}"} for number in range(4)]
    cue = softcue.train(
        tmp_path / "text",
        backbone=roomy(family),
        method="manual-prompt",
        train=rows,
        validation=rows[:2],
        overrides={"task.kind": "generation", "method.num_demonstrations": 2, "readout.max_new_tokens": 4},
        progress=False,
    )
    assert len(config_of(cue).demonstrations) == 2 and cue.cue_file.readout.stop == "\n\n"
    free = train(tmp_path / "free", family, readout__decoding="greedy", readout__max_new_tokens=4)
    assert len(free.predict(["hi"])) == 1


def test_an_answer_ends_where_a_demonstration_would_end() -> None:
    backbone = tiny("gpt2")
    settings: dict[str, Any] = {"decoding": "greedy", "max_new_tokens": 8}
    model = make_model(backbone, "manual-prompt", readout=settings, demonstrations=())
    generated = backbone.tokenizer("\n account\n\nmore", add_special_tokens=False)["input_ids"]

    class Written:
        def generate(self, decoding: object) -> list[list[int]]:
            return [generated]

    assert model.readout.predict(Written())[0].label == "a"  # type: ignore[arg-type]


def test_several_tasks_have_their_own_prompts(tmp_path: Path) -> None:
    cues = softcue.train(
        tmp_path / "both",
        tasks=["tickets", "urgency"],
        backbone=roomy("t5"),
        method="manual-prompt",
        overrides={
            "method.num_demonstrations": 2,
            "task.train_rows": 20,
            "task.validation_rows": 4,
            "task.test_rows": 4,
        },
        progress=False,
    )
    instructions = [config_of(cues[name]).instruction for name in ("tickets", "urgency")]
    assert len(set(instructions)) == 2 and "billing" in instructions[0] and "billing" not in instructions[1]
    assert all(len(config_of(cue).demonstrations) == 2 for cue in cues.values())


@pytest.mark.parametrize(
    ("family", "readout", "error"),
    [
        ("bert", {}, r"method\.name.*encoder-decoder or decoder"),
        ("t5", {"name": "classifier"}, r"readout\.name.*trains"),
    ],
)
def test_it_needs_a_backbone_that_writes_text_and_no_head(family: str, readout: dict[str, object], error: str) -> None:
    with pytest.raises((BackboneError, ConfigurationError), match=error):
        make_model(tiny(family), "manual-prompt", readout=readout)


def test_a_served_cue_gives_the_same_predictions(tmp_path: Path) -> None:
    cue = train(tmp_path / "cues/team", "gpt2", method__num_demonstrations=2)
    with softcue.Engine(roomy("gpt2"), tmp_path / "cues") as engine:
        [result] = engine.predict([("team", "Where is it")])
        explanation = explain_prompt(engine.registry["team"], "Where is it")
    assert isinstance(result, ServedPrediction)
    assert result.prediction.label == cue.predict("Where is it")[0].label
    assert not explanation["vectors"], "clients of a server must not see training rows"


def test_inspect_shows_the_prompt(tmp_path: Path) -> None:
    cue = train(tmp_path / "cue", method__num_demonstrations=2, method__instruction="Which <team>?")
    text = cue.model.method.prompt_text
    assert text == "\n\n".join(["Which <team>?", *config_of(cue).demonstrations])
    page = cue_page(cue, None, None, {}, top=3, checked=check_rows(cue, OTHERS))
    assert "Which &lt;team&gt;?" in page and config_of(cue).demonstrations[0] in page
