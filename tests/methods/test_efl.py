"""EFL (Wang et al. 2021; notes, section 6): tasks asked as entailment of label descriptions."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import ONE_OF_EACH_KIND, tiny
from toy import EXAMPLES, PAIRS, TASK, make_model

import softcue
from softcue.errors import ConfigurationError
from softcue.inference import predict
from softcue.inputs.collate import collate
from softcue.methods import METHODS
from softcue.methods.method import TaskReformulation
from softcue.readouts.readout import class_losses
from softcue.tasks import Label, Task, library_task
from softcue.types import Example, Prediction

BINARY = Task(
    name="films",
    labels={
        "0": Label(words="bad", description="The film is not worth seeing."),
        "1": Label(words="good", description="The film is worth seeing."),
    },
)
THREE = ["It is about an account", "It is about a bill", "It is about an order"]
ROWS = [
    {"message": f"{text} {number}", "team": team}
    for number in range(4)
    for text, team in [("my invoice is wrong", "billing"), ("the parcel is late", "delivery"), ("sign in", "account")]
]


def reformulation_of(task: Task) -> TaskReformulation:
    reformulation = METHODS["efl"].reformulate(task)
    assert reformulation is not None
    return reformulation


def entailed(score: float) -> Prediction:
    label = "entailment" if score >= 0.5 else "not_entailment"
    return Prediction(label, scores={"entailment": score, "not_entailment": 1 - score})


# --- the questions ---------------------------------------------------------------------------------------------------


def test_a_binary_task_asks_for_one_description() -> None:
    reformulation = reformulation_of(BINARY)
    assert reformulation.split(Example(("A fine film.",), "1")) == [
        Example(("A fine film.", "The film is worth seeing."), "entailment")
    ]
    assert reformulation.split(Example(("A dull film.",), "0")) == [
        Example(("A dull film.", "The film is worth seeing."), "not_entailment")
    ]
    assert reformulation.split(Example(("Which?",))) == [Example(("Which?", "The film is worth seeing."), None)]


@pytest.mark.parametrize("described", ["0", "1"])
def test_one_description_will_do_for_two_labels(described: str) -> None:
    labels = {name: label if name == described else Label(words=label.words) for name, label in BINARY.labels.items()}
    reformulation = reformulation_of(BINARY.model_copy(update={"labels": labels}))
    for target in ("0", "1"):
        (question,) = reformulation.split(Example(("A film.",), target))
        assert question.texts == ("A film.", BINARY.labels[described].description)
        assert question.target == ("entailment" if target == described else "not_entailment")
    sure = reformulation.merge([entailed(0.9)])
    assert sure.label == described
    assert sure.scores == pytest.approx({described: 0.9, {"0": "1", "1": "0"}[described]: 0.1})
    assert list(sure.scores or {}) == ["0", "1"]


def test_three_classes_ask_one_question_each_and_one_of_them_is_true() -> None:
    reformulation = reformulation_of(TASK)
    for number, target in enumerate("abc"):
        questions = reformulation.split(Example(("Hello.",), target))
        assert [question.texts for question in questions] == [("Hello.", text) for text in THREE]
        wanted = ["not_entailment"] * 3
        wanted[number] = "entailment"
        assert [question.target for question in questions] == wanted
    assert [question.target for question in reformulation.split(Example(("Hello.",)))] == [None] * 3


def test_the_questions_are_a_pair_task_of_two_labels() -> None:
    for task in (BINARY, TASK):
        entailment_task = reformulation_of(task).task
        assert len(entailment_task.text) == 2
        assert entailment_task.label_names == ("entailment", "not_entailment")
        assert entailment_task.kind == "classification"


@torch.no_grad()
def test_tokens_are_the_text_a_separator_and_the_description() -> None:
    backbone = tiny("bert")
    model = make_model(backbone, "efl")

    def ids(text: str) -> list[int]:
        return list(backbone.tokenizer(text, add_special_tokens=False)["input_ids"])

    rows = model.rows(backbone, model.split(EXAMPLES[0]))
    begin, end = 2, 1
    for row, description in zip(rows, THREE, strict=True):
        assert list(row.ids) == [begin, *ids(EXAMPLES[0].texts[0]), end, *ids(description), end]


def test_tasks_of_two_texts_are_read_as_they_are() -> None:
    assert METHODS["efl"].reformulate(PAIRS) is None
    model = make_model(tiny("bert"), "efl", task=PAIRS)
    example = Example(("first", "second"), "same")
    assert model.split(example) == [example]
    assert model.readout.task.label_names == ("same", "other")
    answer = Prediction("same", scores={"same": 1.0, "other": 0.0})
    assert model.merge(example, [answer]) == answer


@pytest.mark.parametrize(
    ("labels", "named"),
    [
        ({"a": "", "b": ""}, ["a", "b"]),
        ({"a": "It is a.", "b": "", "c": "It is c."}, ["b"]),
        ({"a": "It is a.", "b": "", "c": ""}, ["b", "c"]),
    ],
)
def test_missing_descriptions_are_named(labels: dict[str, str], named: list[str]) -> None:
    task = Task(name="bare", labels={name: Label(words=name, description=text) for name, text in labels.items()})
    with pytest.raises(ConfigurationError, match=rf"task\.label_descriptions.*{', '.join(named)}'") as caught:
        reformulation_of(task)
    assert "task.label_descriptions." in caught.value.fix


def test_text_tasks_cannot_be_asked_as_entailment() -> None:
    with pytest.raises(ConfigurationError, match=r"efl.*classification or regression.*generation"):
        METHODS["efl"].reformulate(Task(name="other", kind="generation"))


# --- regression ------------------------------------------------------------------------------------------------------

STSB = library_task("stsb")
GRADED = [
    {"sentence1": f"A man plays a guitar {number}", "sentence2": f"Music {number}", "score": score}
    for number, score in enumerate([0.0, 1.0, 2.5, 4.0, 5.0, 5.0, 0.4, 3.0])
]


def test_a_score_is_the_probability_of_entailment_between_the_ends_of_the_scale() -> None:
    reformulation = reformulation_of(STSB)
    assert reformulation.task.label_names == ("entailment", "not_entailment")
    pair = ("A man sleeps.", "Somebody rests.")
    assert [reformulation.split(Example(pair, score))[0].target for score in (0.0, 4.0, 5.0)] == [0.0, 0.8, 1.0]
    assert reformulation.split(Example(pair)) == [Example(pair)]
    assert reformulation.split(Example(pair, 4.0))[0].texts == pair
    assert reformulation.merge([entailed(0.8)]) == Prediction(None, value=4.0)
    assert reformulation.merge([entailed(0.0)]) == Prediction(None, value=0.0)


def test_the_loss_of_a_score_is_the_cross_entropy_with_the_mixture() -> None:
    logits = torch.tensor([[0.3, -0.2], [1.0, 2.0]], dtype=torch.float64)
    log_probabilities = logits.log_softmax(dim=1)
    expected = -(0.8 * log_probabilities[0, 0] + 0.2 * log_probabilities[0, 1] + log_probabilities[1, 1])
    losses = class_losses(logits, torch.tensor([0.8, 0.0], dtype=torch.float64))
    torch.testing.assert_close(losses.sum(), expected)
    assert len(losses) == 2


@pytest.mark.parametrize("task", [STSB.model_copy(update={"scale": None}), Task(name="stars", kind="regression")])
def test_regression_needs_two_texts_and_a_scale(task: Task) -> None:
    with pytest.raises(ConfigurationError, match=r"efl.*two texts and a `scale`"):
        METHODS["efl"].reformulate(task)


@pytest.mark.parametrize(("family", "readout"), [("bert", "auto"), ("t5", "label-words"), ("gpt2", "classifier")])
def test_efl_trains_on_scores(tmp_path: Path, family: str, readout: str) -> None:
    settings = {"training.steps": 3, "training.batch_size": 4, "readout.name": readout}
    cue = softcue.train(
        tmp_path / "cue",
        backbone=tiny(family),
        task="stsb",
        method="efl",
        train=GRADED,
        validation=GRADED,
        overrides=settings,
        progress=False,
    )
    loaded = softcue.load(tmp_path / "cue", backbone=tiny(family))
    pairs = [(row["sentence1"], row["sentence2"]) for row in GRADED]
    predictions = loaded.predict(pairs)
    assert all(prediction.value is not None and 0.0 <= prediction.value <= 5.0 for prediction in predictions)
    assert predictions == cue.predict(pairs)
    assert set(cue.scores["validation"]) >= {"pearson", "spearman"}


def test_generated_text_has_no_probabilities(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"readout\.name.*label-words"):
        softcue.train(
            tmp_path / "cue",
            backbone=tiny("t5"),
            task="stsb",
            method="efl",
            train=GRADED,
            validation=GRADED,
            overrides={"training.steps": 1, "readout.name": "generation"},
            progress=False,
        )


# --- the answer ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scores", [(0.2, 0.7, 0.4), (0.9, 0.95, 0.99), (1e-9, 3e-9, 2e-9), (0.0, 0.0, 0.3), (1, 1, 0)])
def test_the_surest_description_is_the_answer_and_scores_sum_to_one(scores: tuple[float, ...]) -> None:
    prediction = reformulation_of(TASK).merge([entailed(score) for score in scores])
    assert prediction.label == "abc"[scores.index(max(scores))]
    assert list(prediction.scores or {}) == ["a", "b", "c"]
    wanted = [score / sum(scores) for score in scores]
    assert list((prediction.scores or {}).values()) == pytest.approx(wanted)


@pytest.mark.parametrize("score", [0.0, 0.3, 0.5, 0.501, 1.0])
def test_a_binary_answer_is_the_described_label_or_its_absence(score: float) -> None:
    prediction = reformulation_of(BINARY).merge([entailed(score)])
    assert prediction.scores == pytest.approx({"0": 1 - score, "1": score})
    if score != 0.5:
        assert prediction.label == ("1" if score > 0.5 else "0")


def test_scores_sum_to_one_even_where_nothing_is_entailed() -> None:
    nothing = [entailed(0.0)] * 3
    written = [Prediction("not_entailment")] * 3  # by greedy decoding, which has no scores
    for answers in (nothing, written):
        prediction = reformulation_of(TASK).merge(answers)
        assert math.fsum((prediction.scores or {}).values()) == pytest.approx(1)
        assert prediction.label in TASK.labels


def test_written_answers_without_scores_count_as_sure() -> None:
    answers = [Prediction("not_entailment"), Prediction("entailment"), Prediction("not_entailment")]
    assert reformulation_of(TASK).merge(answers).label == "b"


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
@torch.no_grad()
def test_predictions_are_the_entailment_probabilities_of_each_question(family: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, "efl")
    predictions = predict(backbone, [(model, example) for example in EXAMPLES], batch_size=4).predictions
    for example, answer in zip(EXAMPLES, predictions, strict=True):
        sure = []
        for question in model.split(example):
            batch = collate(model.rows(backbone, [question]), backbone.tokenizer.pad_token_id)
            (single,) = model.readout.predict(model.read(model.method.view_of(backbone), batch)[0])
            sure.append((single.scores or {})["entailment"])
        wanted = dict(zip("abc", (value / sum(sure) for value in sure), strict=True))
        assert answer.scores == pytest.approx(wanted, abs=1e-4)
        assert answer.label == max(wanted, key=wanted.__getitem__)


# --- a whole run -----------------------------------------------------------------------------------------------------


def train(folder: Path, backbone: Any, rows: list[dict[str, str]], described: dict[str, str]) -> softcue.Cue:
    return softcue.train(
        folder,
        backbone=backbone,
        method="efl",
        train=rows,
        validation=rows,
        text="message",
        label="team",
        overrides={
            "training.epochs": 6,
            "training.batch_size": 6,
            "training.learning_rate": 0.003,
            "training.network_learning_rate": 0.003,
            **{f"task.label_descriptions.{label}": text for label, text in described.items()},
        },
        progress=False,
    )


@pytest.mark.parametrize(
    "described",
    [
        {"billing": "It is about a bill.", "delivery": "It is about a parcel.", "account": "It is about signing in."},
        {"billing": "It is about a bill."},
    ],
)
def test_a_cue_is_trained_saved_and_loaded(
    described: dict[str, str], model_folders: dict[str, Path], tmp_path: Path
) -> None:
    rows = ROWS if len(described) == 3 else [row for row in ROWS if row["team"] != "account"]
    cue = train(tmp_path / "cue", str(model_folders["bert"]), rows, described)
    assert cue.scores["validation"]["accuracy"] >= 90
    assert cue.task.text == ("message",)  # the task itself stays what it was
    assert set(cue.task.labels) == {row["team"] for row in rows}
    texts = [row["message"] for row in rows]
    answers = cue.predict(texts)
    assert [answer.label for answer in answers].count(rows[0]["team"]) >= 3
    for answer in answers:
        assert math.fsum((answer.scores or {}).values()) == pytest.approx(1)
        assert set(answer.scores or {}) == set(cue.task.labels)
    loaded = softcue.load(tmp_path / "cue")
    assert loaded.predict(texts) == answers
    assert loaded.evaluate([{"message": row["message"], "team": row["team"]} for row in rows]).main == pytest.approx(
        cue.scores["validation"]["accuracy"]
    )


def test_a_run_without_descriptions_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"task\.label_descriptions"):
        train(tmp_path / "cue", tiny("bert"), ROWS, {"billing": "It is about a bill."})
    assert not (tmp_path / "cue").exists()
