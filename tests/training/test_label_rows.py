"""The labels' own texts as training rows."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
import torch
from tiny import tiny
from toy import EXAMPLES, PAIRS, SETS, TASK, make_model
from toy_training import trained

from softcue.tasks import Label, Task
from softcue.training import TaskData, Trainer, TrainingConfig
from softcue.training.label_rows import MAX_PER_LABEL, MAX_TRAINING_ROWS, label_rows
from softcue.training.solved_heads import HeadSolver
from softcue.types import Example


def test_each_label_has_equally_many_rows_of_its_words_and_its_description() -> None:
    rows = label_rows(TASK, num_rows=40, share=0.3)
    assert Counter(row.target for row in rows) == {"a": 4, "b": 4, "c": 4}
    assert Counter(row.texts[0] for row in rows if row.target == "b") == {"billing": 2, "It is about a bill": 2}


def test_a_label_without_description_has_rows_of_its_words_alone() -> None:
    task = Task(name="plain", labels={"yes": Label(words="yes"), "no": Label(words="no")})
    assert {row.texts for row in label_rows(task, num_rows=20, share=1.0)} == {("yes",), ("no",)}


def test_many_rows_get_a_limited_number_of_label_rows_and_very_many_none() -> None:
    assert len(label_rows(TASK, MAX_TRAINING_ROWS, share=0.4)) == 3 * MAX_PER_LABEL
    assert label_rows(TASK, MAX_TRAINING_ROWS + 1, share=0.4) == []


NUMBERS = Task(name="numbers", labels={"0": Label(words="0"), "1": Label(words="1", description="2 or 3")})
SCORES = Task(name="scores", kind="regression")


@pytest.mark.parametrize("task", [PAIRS, SETS, SCORES, NUMBERS], ids=lambda task: task.name)
def test_labels_that_cannot_be_read_as_a_rows_text_give_no_rows(task: Task) -> None:
    assert label_rows(task, num_rows=100, share=1.0) == []


def make_trainer(method: str = "prompt-tuning", **settings: object) -> Trainer:
    backbone = tiny("bert")
    model = make_model(backbone, method, readout={"name": "classifier"})
    config = TrainingConfig.model_validate({"steps": 2, "batch_size": 6, **settings})
    return Trainer(backbone, [TaskData(model, EXAMPLES, EXAMPLES)], config)


def test_steps_learn_from_the_labels_texts_beside_the_rows() -> None:
    plain, with_labels = make_trainer(), make_trainer(label_share=1.2)
    tokenizer = with_labels.backbone.tokenizer
    texts = [tokenizer.decode(row.ids, skip_special_tokens=True) for row in with_labels.rows[len(EXAMPLES) :]]
    assert len(plain.rows) == len(EXAMPLES) and len(with_labels.rows) == len(EXAMPLES) + 6
    assert [row.label for row in with_labels.rows[len(EXAMPLES) :]] == [0, 0, 1, 1, 2, 2]
    assert "account" in texts[0]
    _, without, _ = trained()
    _, model, _ = trained(label_share=1.2)
    assert not torch.equal(without.readout.state_dict()["head.1.weight"], model.readout.state_dict()["head.1.weight"])


def test_heads_are_solved_and_warnings_counted_without_the_labels_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    first = HeadSolver.__init__

    def count(self: HeadSolver, model: Any, rows: Any, *others: Any) -> None:
        sizes.append(len(rows))
        first(self, model, rows, *others)

    monkeypatch.setattr(HeadSolver, "__init__", count)
    trained({"refit": True}, label_share=1.2)
    assert sizes == [len(EXAMPLES) * 2] * 2  # at the start and at the end


@pytest.mark.parametrize("method", ["linear-probe", "no-prompt"])
def test_methods_that_read_frozen_vectors_get_no_label_rows(method: str) -> None:
    assert len(make_trainer(method, label_share=1.2).rows) == len(EXAMPLES)


def test_rows_of_two_tasks_with_label_rows_stay_apart() -> None:
    backbone = tiny("bert")
    models = [make_model(backbone, "prompt-tuning", readout={"name": "classifier"}) for _ in range(2)]
    others = [Example((f"other {number}",), "a") for number in range(3)]
    tasks = [TaskData(model, rows, EXAMPLES) for model, rows in zip(models, (EXAMPLES, others), strict=True)]
    trainer = Trainer(backbone, tasks, TrainingConfig(steps=1, label_share=1.0))
    assert trainer.num_given_by_task == [5, 3]
    assert [row.label for row in trainer._rows_of_task(1)] == [0, 0, 0]
    assert len(trainer.task_numbers) == len(trainer.rows) == sum(trainer.num_rows_by_task)
