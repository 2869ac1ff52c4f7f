"""Answers that stand in the text: span and tag heads, windows, and the same answers as written text."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch
from tiny import tiny
from tolerance import REORDERED_FLOAT32
from toy import make_model

from softcue.errors import BackboneError, ConfigurationError
from softcue.evaluation import evaluate, score
from softcue.inference import TaskModel, predict
from softcue.inputs.collate import NO_LABEL, NO_SPAN, collate
from softcue.inputs.formatter import ANSWER_PREFIX
from softcue.readouts.generation import same_referent
from softcue.readouts.spans_and_tags import (
    CONTINUES,
    SpanHead,
    TagHead,
    find_padded_answer,
    parse_spans,
    spans_as_text,
)
from softcue.tasks import Label, Task, library_task
from softcue.tasks.catalogue import library_names
from softcue.training import TaskData, Trainer, TrainingConfig
from softcue.types import Example, Prediction, Span

ENCODERS = ["bert", "roberta"]  # pairs with segments, and byte-level pieces that begin with their space
QA = Task(name="qa", kind="span", text=("question", "context"))
NER = Task(name="ner", kind="tags", labels={"LOC": Label(words="place"), "PER": Label(words="person")})
CONTEXT = "The parcel left Oslo on Monday, and nobody signed for it at the office."
PAIR_LABELS = {"same": Label(words="yes"), "other": Label(words="no")}
QUESTION = Example(("Where did it leave?", CONTEXT), "Oslo", answers=("Oslo",), spans=(Span(16, 20),))
MARKED = Example(("Ann Lee met Bob in Oslo .",), spans=(Span(0, 7, "PER"), Span(12, 15, "PER"), Span(19, 23, "LOC")))


def tokens_of(model: TaskModel, family: str, example: Example) -> list[tuple[int, int]]:
    [row] = model.rows(tiny(family), [example])
    assert row.offsets is not None
    return list(row.offsets)


@pytest.mark.parametrize("family", ENCODERS)
def test_offsets_of_pieces_cover_the_last_text_and_no_other(family: str) -> None:
    model = make_model(tiny(family), task=QA)
    places = [place for place in tokens_of(model, family, QUESTION) if place != NO_SPAN]
    covered = {index for start, end in places for index in range(start, end)}
    assert covered == {index for index, letter in enumerate(CONTEXT) if not letter.isspace()}
    assert not any(CONTEXT[start].isspace() for start, _ in places)


@pytest.mark.parametrize("family", ENCODERS)
def test_offsets_of_words_stand_at_each_words_first_piece(family: str) -> None:
    model = make_model(tiny(family), task=NER)
    places = [place for place in tokens_of(model, family, MARKED) if place != NO_SPAN]
    assert [MARKED.texts[0][start:end] for start, end in places] == MARKED.texts[0].split()


@pytest.mark.parametrize("family", ENCODERS)
def test_span_loss_is_the_mean_cross_entropy_of_start_and_end_among_the_context(family: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, task=QA).eval()
    rows = model.rows(backbone, [QUESTION], with_target=True)
    batch = collate(rows, backbone.tokenizer.pad_token_id)
    forward_pass, _ = model.read(backbone, batch)
    assert isinstance(model.readout, SpanHead)
    logits = model.readout.outputs(forward_pass)[0].detach()  # [T 2]
    places = tokens_of(model, family, QUESTION)
    candidates = [0] + [index for index, place in enumerate(places) if place != NO_SPAN]
    inside = [index for index in candidates[1:] if places[index][0] < 20 and places[index][1] > 16]
    losses = [
        math.log(sum(math.exp(float(logits[index, edge])) for index in candidates)) - float(logits[answer, edge])
        for edge, answer in enumerate((inside[0], inside[-1]))
    ]
    [loss] = model.readout.losses(forward_pass, batch)
    assert float(loss.detach()) == REORDERED_FLOAT32.approx(sum(losses) / 2)


def test_a_context_without_the_answer_points_at_the_first_token() -> None:
    backbone = tiny("bert")
    model = make_model(backbone, task=QA)
    [row] = model.rows(backbone, [replace(QUESTION, spans=())], with_target=True)
    assert row.token_labels is not None
    assert row.token_labels[0] == 3
    assert set(row.token_labels[1:]) == {0, NO_LABEL}


def brute_force_span(model: TaskModel, family: str, example: Example) -> tuple[Span, float]:
    """The best pair of start and end, by trying all."""
    backbone = tiny(family)
    batch = collate(model.rows(backbone, [example]), backbone.tokenizer.pad_token_id)
    with torch.no_grad():
        forward_pass, _ = model.read(backbone, batch)
        logits = model.readout.outputs(forward_pass)[0].double()  # type: ignore[operator]
    places = tokens_of(model, family, example)
    candidates = [index for index, place in enumerate(places) if place != NO_SPAN]
    sums = [math.log(sum(math.exp(float(logits[index, edge])) for index in [0, *candidates])) for edge in (0, 1)]
    pairs = {
        (first, last): float(logits[first, 0] + logits[last, 1]) - sum(sums)
        for first in candidates
        for last in candidates
        if 0 <= last - first < 30
    }
    first, last = max(pairs, key=pairs.__getitem__)
    return Span(places[first][0], places[last][1]), pairs[first, last]


@pytest.mark.parametrize("family", ENCODERS)
@pytest.mark.parametrize("seed", range(4))
def test_predicted_span_is_the_best_of_all_pairs(family: str, seed: int) -> None:
    model = make_model(tiny(family), task=QA, seed=seed)
    model.readout.head[-1].weight.data *= 20  # type: ignore[index,union-attr,operator]
    [answer] = predict(tiny(family), [(model, QUESTION)]).predictions
    span, strength = brute_force_span(model, family, QUESTION)
    assert answer.spans == (span,)
    assert answer.strength == REORDERED_FLOAT32.approx(strength)
    assert answer.label == CONTEXT[span.start : span.end]


def test_an_answer_in_a_padded_mixed_batch_is_the_answer_alone() -> None:
    backbone = tiny("bert")
    model = make_model(backbone, task=QA)
    tags = make_model(backbone, task=NER, seed=3)
    other = Example(("When?", "It left on Monday " * 3))
    together = predict(backbone, [(model, QUESTION), (tags, MARKED), (model, other)]).predictions
    alone = [
        predict(backbone, [request]).predictions[0] for request in ((model, QUESTION), (tags, MARKED), (model, other))
    ]
    for ours, theirs in zip(together, alone, strict=True):
        assert (ours.label, ours.spans) == (theirs.label, theirs.spans)


LONG = " ".join(f"word{number} ends here ." for number in range(40)) + " The key is under Oslo bridge ."


@pytest.mark.parametrize("family", ENCODERS)
def test_long_contexts_are_read_in_windows_that_fit_and_overlap(family: str) -> None:
    model = make_model(tiny(family), task=QA)
    start = LONG.index("Oslo")
    example = Example(("Where is the key?", LONG), "Oslo", answers=("Oslo",), spans=(Span(start, start + 4),))
    windows = model.split(example)
    assert len(windows) > 2
    limit = model.formatter.limit
    reached = 0
    for window in windows:
        assert LONG[window.offset : window.offset + len(window.texts[1])] == window.texts[1]
        assert window.offset <= reached  # nothing is left out between windows
        reached = window.offset + len(window.texts[1])
        for span in window.spans:
            assert window.texts[1][span.start : span.end] == "Oslo"
        [row] = model.rows(tiny(family), [window])
        assert len(row.ids) <= limit
        assert not row.is_truncated
    assert reached == len(LONG)
    assert any(window.spans for window in windows)
    assert predict(tiny(family), [(model, example)]).num_truncated == 0


def test_the_surest_window_answers_in_places_of_the_whole_text() -> None:
    model = make_model(tiny("bert"), task=QA)
    windows = model.split(Example(("Where?", LONG)))
    answers = [Prediction("", spans=(Span(window.offset, window.offset + 5),), strength=-9.0) for window in windows]
    start = LONG.index("Oslo")
    answers[1] = Prediction("", spans=(Span(start, start + 4),), strength=-1.0)
    assert model.merge(Example(("Where?", LONG)), answers).label == "Oslo"


def test_tag_loss_counts_one_answer_per_word() -> None:
    backbone = tiny("roberta")
    model = make_model(backbone, task=NER)
    [row] = model.rows(backbone, [MARKED], with_target=True)
    assert row.token_labels is not None
    # outside 0; LOC begins 1, inside 2; PER begins 3, inside 4
    assert [mark for mark in row.token_labels if mark != NO_LABEL] == [3, 4, 0, 3, 0, 1, 0]
    assert model.readout.num_losses([row]) == 7


@pytest.mark.parametrize(
    ("marks", "spans"),
    [
        ([0, 0, 0], ()),
        ([1, 2, 0], (Span(0, 4, "LOC"),)),
        ([1, 1, 2], (Span(0, 1, "LOC"), Span(3, 6, "LOC"))),
        ([2, 2, 0], (Span(0, 4, "LOC"),)),  # an inside alone begins a span
        ([3, 2, 4], (Span(0, 1, "PER"), Span(3, 4, "LOC"), Span(5, 6, "PER"))),  # of another label as well
        ([4, 0, 4], (Span(0, 1, "PER"), Span(5, 6, "PER"))),
    ],
)
def test_runs_of_marks_become_spans_as_in_conlleval(marks: list[int], spans: tuple[Span, ...]) -> None:
    model = make_model(tiny("bert"), task=NER)
    assert isinstance(model.readout, TagHead)
    places = [(0, 1), (3, 4), (5, 6)]
    assert model.readout._spans([7, *marks, 1], [NO_SPAN, *places, NO_SPAN]) == spans


def test_tags_of_long_texts_are_those_of_all_windows_in_places_of_the_whole_text() -> None:
    backbone = tiny("bert")
    model = make_model(backbone, task=NER)
    model.readout.head[-1].bias.data[:] = torch.tensor([0.0, 50.0, 0, 0, 0])  # type: ignore[index,union-attr]
    [answer] = predict(backbone, [(model, Example((LONG,)))]).predictions
    assert answer.spans is not None
    assert [LONG[span.start : span.end] for span in answer.spans] == LONG.split()


def test_a_span_cut_by_a_window_is_taught_in_both_and_joined_again() -> None:
    text = " ".join(f"word{number}" for number in range(60))
    backbone = tiny("bert")
    model = make_model(backbone, task=NER)
    edge = model.split(Example((text,)))[1].offset
    start, end = text.rindex(" ", 0, edge - 1) + 1, text.index(" ", edge)
    windows = model.split(Example((text,), spans=(Span(start, end, "PER"),)))
    marks = []
    for window in windows[:2]:
        [row] = model.rows(backbone, [window], with_target=True)
        marks.append([mark for mark in row.token_labels or () if mark != NO_LABEL])
    assert marks[0][-1] == 3  # the beginning of a person
    assert marks[1][0] == 4  # and its inside
    first = Prediction("", spans=(Span(start, edge - 1, "PER"),))

    def joined(label: str, *spans: Span) -> tuple[Span, ...] | None:
        return model.readout.merge(Example((text,)), [first, Prediction(label, spans=spans)]).spans

    assert joined(CONTINUES, Span(edge, end, "PER")) == (Span(start, end, "PER"),)
    assert joined("", Span(edge, end, "PER")) == (Span(start, edge - 1, "PER"), Span(edge, end, "PER"))
    assert len(joined(CONTINUES, Span(edge, end, "LOC")) or ()) == 2
    assert joined("") == first.spans


@pytest.mark.parametrize("family", ENCODERS)
def test_text_without_spaces_is_read_in_windows_too(family: str) -> None:
    text = "荷物はオスロを出ました" * 20
    model = make_model(tiny(family), task=QA)
    windows = model.split(Example(("where?", text)))
    assert len(windows) > 2
    reached = 0
    for window in windows:
        assert window.offset <= reached
        assert text[window.offset : window.offset + len(window.texts[1])] == window.texts[1]
        reached = window.offset + len(window.texts[1])
        [row] = model.rows(tiny(family), [window])
        assert not row.is_truncated
    assert reached == len(text)


def test_a_question_that_leaves_no_room_is_cut_and_told() -> None:
    backbone = tiny("bert")
    model = make_model(backbone, task=QA)
    example = Example(("why " * 300, LONG))
    assert len(model.split(example)) < 60  # not one per word
    assert predict(backbone, [(model, example)]).num_truncated > 0


def test_the_cut_is_shared_by_the_texts_that_are_read() -> None:
    backbone = tiny("bert")
    task = Task(name="t", text=("a", "b", "c"), sentences=("{a}", "{c}"), labels=PAIR_LABELS)
    model = make_model(backbone, task=task)
    [row] = model.rows(backbone, [Example(("one " * 80, "two " * 500, "six " * 80))])
    assert row.is_truncated
    assert row.parts is not None
    assert row.parts.count(0) > 20 and row.parts.count(1) > 20


@pytest.mark.parametrize(("task", "example", "family"), [(QA, QUESTION, "bert"), (NER, MARKED, "roberta")])
def test_heads_learn_where_the_answer_stands(task: Task, example: Example, family: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, task=task, readout={"dropout": 0.0})
    config = TrainingConfig(steps=40, batch_size=1, network_learning_rate=0.05, learning_rate=0.01, evaluate_every=40)
    Trainer(backbone, [TaskData(model, [example], [example])], config).run()
    assert evaluate(backbone, model, [example]).main == 100.0


def test_dropout_of_token_heads_does_not_depend_on_padding() -> None:
    backbone = tiny("bert")
    model = make_model(backbone, task=NER, readout={"dropout": 0.5}).train()
    longer = replace(MARKED, texts=(MARKED.texts[0] + " and more words than that one has",))
    predictions = []
    for rows in ([MARKED], [MARKED, longer]):
        batch = collate(model.rows(backbone, rows, with_target=True), backbone.tokenizer.pad_token_id)
        torch.manual_seed(0)
        forward_pass, _ = model.read(backbone, batch)
        predictions.append(model.readout.outputs(forward_pass)[0])  # type: ignore[operator]
    length = len(predictions[0])
    torch.manual_seed(0)
    assert torch.allclose(predictions[0], predictions[1][:length], atol=1e-4)


@pytest.mark.parametrize(("task", "name"), [(QA, "span"), (NER, "tags")])
def test_token_heads_need_an_encoder(task: Task, name: str) -> None:
    with pytest.raises(BackboneError, match=r"an encoder.*use readout.name=generation"):
        make_model(tiny("t5"), task=task, readout={"name": name})


@pytest.mark.parametrize(("family", "name"), [("bert", "span"), ("t5", "generation"), ("gpt2", "generation")])
def test_auto_reads_spans_on_encoders_and_writes_elsewhere(family: str, name: str) -> None:
    assert make_model(tiny(family), task=QA).readout.config.name == name


def test_all_spans_of_a_text_get_more_room_than_one_answer() -> None:
    assert make_model(tiny("t5"), task=NER).readout.config.max_new_tokens == 96
    assert make_model(tiny("t5"), task=QA).readout.config.max_new_tokens == 32
    assert make_model(tiny("t5"), task=NER, readout={"max_new_tokens": 7}).readout.config.max_new_tokens == 7


def test_what_is_written_of_marked_spans_is_found_again() -> None:
    text = spans_as_text(NER, MARKED, MARKED.spans)
    assert text == "Ann Lee ! person ; Bob ! person ; Oslo ! place"
    assert parse_spans(NER, MARKED, text) == (MARKED.spans, True)
    assert parse_spans(NER, MARKED, spans_as_text(NER, MARKED, ())) == ((), True)


@pytest.mark.parametrize(
    ("answer", "spans", "is_legal"),
    [
        ("Bob ! person", (Span(12, 15, "PER"),), True),
        ("Bob ! person ; Bob ! person", (Span(12, 15, "PER"),), False),  # only one Bob is there
        ("Bo ! person", (), False),  # part of a word
        ("Bob ! robot", (), False),
        ("Bob", (), False),
        ("", (), False),
        ("Oslo ! place;Ann Lee ! person", (Span(0, 7, "PER"), Span(19, 23, "LOC")), True),
    ],
)
def test_unusable_parts_of_a_written_answer_are_told(answer: str, spans: tuple[Span, ...], is_legal: bool) -> None:
    assert parse_spans(NER, MARKED, answer) == (spans, is_legal)


def test_the_second_of_two_equal_entities_is_found_at_its_own_place() -> None:
    twice = Example(("Oslo beat Oslo",))
    assert parse_spans(NER, twice, "Oslo ! place ; Oslo ! place")[0] == (Span(0, 4, "LOC"), Span(10, 14, "LOC"))


def test_a_text_to_text_backbone_learns_spans_marks_and_scores_as_text() -> None:
    backbone = tiny("t5")
    scores = Task(name="scores", kind="regression", text=("a", "b"), scale=(0, 5, 0.2))
    scored = Example(("same", "same"), 3.27)
    for task, example, wanted in (
        (QA, QUESTION, "Oslo"),
        (NER, MARKED, "Ann Lee ! person ; Bob ! person ; Oslo ! place"),
        (scores, scored, "3.2"),
    ):
        model = make_model(backbone, task=task)
        [row] = model.rows(backbone, [example], with_target=True)
        assert backbone.tokenizer.decode(row.target_ids, skip_special_tokens=True) == wanted
    ranked = make_model(backbone, task=scores)
    [answer] = predict(backbone, [(ranked, scored)]).predictions
    assert answer.value is not None
    assert 0 <= answer.value <= 5
    assert round(answer.value * 5) == pytest.approx(answer.value * 5)
    assert len(ranked.readout.candidates) == 26  # type: ignore[arg-type]


def test_scores_without_a_scale_cannot_be_written() -> None:
    plain = Task(name="scores", kind="regression")
    assert make_model(tiny("t5"), task=plain).readout.config.name == "regression"
    with pytest.raises(ConfigurationError, match="scores are on a scale"):
        make_model(tiny("t5"), task=plain, readout={"name": "generation"})


# --- T5's padding of punctuation ---

PRICES = Example(("What's it?", "It's $3.50 (or  4)."), "$3.50 (or 4", answers=("$3.50 (or 4",))


@pytest.mark.parametrize("family", ["t5", "gpt2"])
def test_padded_texts_and_targets_give_answers_of_the_original_text(family: str) -> None:
    backbone = tiny(family)
    task = library_task("squad")
    plain, padded = (make_model(backbone, task=task, readout={"pad_punctuation": pad}) for pad in (False, True))

    def written(model: TaskModel) -> tuple[str, str]:
        [row] = model.rows(backbone, [PRICES], with_target=True)
        source, target = (backbone.tokenizer.decode(ids, skip_special_tokens=True) for ids in (row.ids, row.target_ids))
        return source.removesuffix(ANSWER_PREFIX), target.strip()

    assert written(plain) == (task.source(PRICES.texts), "$3.50 (or 4")
    assert written(padded) == (
        "question: What ' s it ? context: It ' s $ 3 . 50 ( or 4 ) .",
        "$ 3 . 50 ( or 4",
    )
    answer = padded.merge(PRICES, [Prediction("$ 3 . 50 ( or 4")])
    assert (answer.label, answer.spans) == ("$3.50 (or  4", (Span(5, 17),))
    assert padded.merge(PRICES, [Prediction("nothing , really")]) == Prediction("nothing , really", spans=())
    assert score(task, [answer], [PRICES]).main == 100.0


@pytest.mark.parametrize(
    ("answer", "expected"), [("4", "4"), ("3 . 50", "3.50"), ("It ' s", "It's"), ("or 4", "or  4")]
)
def test_padded_answers_are_found_in_the_text(answer: str, expected: str) -> None:
    text = PRICES.texts[-1]
    span = find_padded_answer(text, answer)
    assert span is not None
    assert text[span.start : span.end] == expected
    assert find_padded_answer(text, "or4") is None
    assert find_padded_answer(text, "") is None


def test_library_tasks_are_padded_where_t5_pads_them() -> None:
    padded = {name for name in library_names() if library_task(name).pads_punctuation}
    spans = {name for name in library_names() if library_task(name).kind == "span"}
    assert padded == spans - {"record"}


REFERENT = Task(
    name="wsc",
    kind="referent",
    text=("text", "candidate"),
    positive="true",
    labels={"true": Label(words="yes"), "false": Label(words="no")},
)
TRUE = Example(("Ann thanked Bea because *she* had helped.", "Bea"), "true")
FALSE = Example(("Ann thanked Bea because *she* had helped.", "Ann"), "false")


def test_text_to_text_backbones_write_the_referent_and_learn_from_true_rows_only() -> None:
    backbone = tiny("t5")
    model = make_model(backbone, task=REFERENT)
    assert model.training_examples([TRUE, FALSE]) == [TRUE]
    [row] = model.rows(backbone, [TRUE], with_target=True)
    assert backbone.tokenizer.decode(row.target_ids, skip_special_tokens=True) == "Bea"
    assert "Bea" not in backbone.tokenizer.decode(row.ids).replace(TRUE.texts[0], "")
    assert model.merge(FALSE, [Prediction("Bea")]).label == "false"
    assert model.merge(TRUE, [Prediction("the Bea")]).label == "true"
    for nothing in ("", "the", " a "):  # as T5's own scoring: never right, also where `false` would be
        assert model.merge(FALSE, [Prediction(nothing)]).is_illegal
    assert not model.merge(FALSE, [Prediction("Cleo")]).is_illegal


def test_encoders_read_the_candidate_and_learn_from_all_rows() -> None:
    model = make_model(tiny("bert"), task=REFERENT)
    assert model.readout.config.name == "classifier"
    assert model.training_examples([TRUE, FALSE]) == [TRUE, FALSE]
    with pytest.raises(ConfigurationError, match="not shown the candidate"):
        make_model(tiny("t5"), task=REFERENT, readout={"name": "classifier"})


@pytest.mark.parametrize(
    ("text", "candidate", "is_same"),
    [
        ("Mark", "mark", True),
        ("the red fox", "fox", True),
        ("fox", "a red fox", True),
        ("red box", "red fox", False),
        ("the", "the dog", False),  # nothing but a determiner
        ("", "dog", False),
        ("Ann's", "Ann's dog", True),
        ("Ann's dog", "dog", False),
    ],
)
def test_names_are_the_same_by_t5s_rule(text: str, candidate: str, is_same: bool) -> None:
    assert same_referent(text, candidate) is is_same


def test_every_right_answer_among_options_is_a_lesson() -> None:
    task = Task(name="record", kind="span", text=("query", "passage"))
    example = Example(("who?", "Ann and Bob"), "Ann", answers=("Ann", "Bob"), options=("Ann", "Bob", "Eve"))
    assert [
        training_example.target for training_example in make_model(tiny("t5"), task=task).training_examples([example])
    ] == ["Ann", "Bob"]
