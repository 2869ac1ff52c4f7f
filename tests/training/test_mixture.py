"""Several tasks that share one prompt: how rows are mixed, what is shared, what is written."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest
import torch
from tiny import tiny
from tolerance import REORDERED_FLOAT32
from toy import EXAMPLES, PAIRS, TASK, make_model

import softcue
from softcue.backbones import load_backbone
from softcue.errors import ConfigurationError, RunError
from softcue.inference import predict, with_readout
from softcue.inputs.collate import collate
from softcue.prompts import VIP
from softcue.readouts import ReadoutConfig
from softcue.tasks import Label, Task, joint_task, library_names, library_task
from softcue.tasks.splits import TaskConfig, read_splits_of_each
from softcue.training import Checkpoints, MixtureConfig, TaskData, Trainer, TrainingConfig
from softcue.training.joint_model import JointModel
from softcue.training.mixture import epoch_rows, rows_per_task
from softcue.types import Example, Span

PAIR_ROWS = [Example(("one", "one"), "same"), Example(("one", "two"), "other"), Example(("four", "four four"), "same")]


@pytest.mark.parametrize(
    ("sizes", "settings", "expected"),
    [
        ([60, 30, 10], {}, [60, 30, 10]),
        ([60, 30, 10], {"cap": 20}, [40, 40, 20]),
        ([60, 30, 10], {"sampling": "equal"}, [34, 33, 33]),
        ([64, 16, 20], {"sampling": "temperature", "temperature": 1}, [64, 16, 20]),
        ([81, 16], {"sampling": "temperature", "temperature": 4}, [58, 39]),  # roots 3 and 2 of 97 rows
        ([1000, 1], {"sampling": "temperature", "temperature": 1}, [1000, 1]),
    ],
)
def test_tasks_come_as_often_as_their_sizes_say(
    sizes: list[int], settings: dict[str, object], expected: list[int]
) -> None:
    assert rows_per_task(sizes, MixtureConfig.model_validate(settings)) == expected


def test_every_row_of_a_task_comes_once_before_any_comes_twice() -> None:
    sizes, config = [10, 4], MixtureConfig(sampling="equal")
    seen = [row for epoch in range(6) for row in epoch_rows(sizes, config, seed=1, epoch=epoch)]
    first = [row for row in seen if row < 10]
    second = [row for row in seen if row >= 10]
    assert (len(first), len(second)) == (42, 42)
    for task_rows, size in ((first, 10), (second, 4)):
        for turn in range(len(task_rows) // size):
            assert len(set(task_rows[turn * size : (turn + 1) * size])) == size


def test_an_epochs_rows_are_a_function_of_seed_and_epoch() -> None:
    config = MixtureConfig(sampling="equal")
    assert epoch_rows([9, 5], config, 3, 2) == epoch_rows([9, 5], config, 3, 2)
    assert epoch_rows([9, 5], config, 3, 2) != epoch_rows([9, 5], config, 4, 2)
    assert epoch_rows([9, 5], config, 3, 2) != epoch_rows([9, 5], config, 3, 3)


def make_trainer(family: str, case: str = "prompt-tuning", **settings: object) -> Trainer:
    backbone = tiny(family)
    first = make_model(backbone, case, readout={"dropout": 0.0})
    torch.manual_seed(5)
    second = with_readout(PAIRS, first.method, ReadoutConfig(dropout=0.0), backbone)
    config = TrainingConfig.model_validate({"steps": 4, "batch_size": 6, **settings})
    return Trainer(backbone, [TaskData(first, EXAMPLES, EXAMPLES), TaskData(second, PAIR_ROWS, PAIR_ROWS)], config)


@pytest.mark.parametrize("family", ["bert", "t5", "gpt2"])
@pytest.mark.parametrize("case", ["prompt-tuning", "vip"])
def test_one_prompt_is_trained_by_rows_of_all_tasks(family: str, case: str) -> None:
    trainer = make_trainer(family, case)
    assert isinstance(trainer.model, JointModel)
    names = set(trainer.model.state_dict())
    assert {name.split(".")[0] for name in names} <= {"method", "readouts"}
    owners = Counter(trainer.task_numbers[row] for step in range(2) for row in trainer._batch_of_step(step))
    assert set(owners) == {0, 1}
    before = {name: value.clone() for name, value in trainer.model.method.state_dict().items()}
    result = trainer.run()
    assert len(result.evaluations) == 2
    assert any(not torch.equal(value, before[name]) for name, value in trainer.model.method.state_dict().items())
    assert trainer.models[0].method is trainer.models[1].method
    entry = result.state.history[0]
    assert {"toy/accuracy", "pairs/accuracy"} <= entry.keys()
    mains = [evaluation.main for evaluation in result.evaluations]
    assert result.state.best_score == pytest.approx(sum(mains) / 2)


@pytest.mark.parametrize("family", ["bert", "t5"])
def test_gradient_of_a_mixed_batch_is_that_of_its_rows_one_by_one(family: str) -> None:
    gradients = []
    for pieces in (0, 1):
        trainer = make_trainer(family, micro_batch_size=pieces, batch_size=8, optimizer="adamw")
        trainer._step()
        gradients.append({name: p.grad.clone() for name, p in trainer.model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, value in gradients[0].items():
        REORDERED_FLOAT32.assert_close(value, gradients[1][name], name)


def test_a_mixture_resumes_where_it_stood(tmp_path: Path) -> None:
    whole = make_trainer("bert", steps=6, evaluate_every=2)
    whole.run()
    first = make_trainer("bert", steps=6, evaluate_every=2)
    first.checkpoints = Checkpoints(tmp_path, "run")
    for _ in range(4):
        first._step()
        first._after_step()
    again = make_trainer("bert", steps=6, evaluate_every=2)
    checkpoint, _ = Checkpoints(tmp_path, "run").newest()
    assert checkpoint is not None
    again.resume(checkpoint)
    again.run()
    for name, value in whole.model.state_dict().items():
        assert torch.equal(value, again.model.state_dict()[name]), name


def test_a_closed_form_cannot_be_shared() -> None:
    with pytest.raises(ConfigurationError, match="a method that tasks can share"):
        make_trainer("bert", "linear-probe").run()


def test_any_tasks_of_the_library_can_share_a_prompt() -> None:
    tasks = [library_task(name) for name in library_names()]
    for first in tasks:
        for second in tasks:
            words = joint_task([first, second]).init_words
            assert set(words) >= set(second.init_words or second.label_words)


def test_a_task_weighs_as_much_as_it_has_rows_however_many_words_its_loss_counts() -> None:
    backbone = tiny("bert")
    marked = Example(("Ann saw Bob in Rome near the old bridge",), spans=(Span(0, 3, "PER"),))
    ner = Task(name="ner", kind="tags", labels={"PER": Label(words="person")})
    first = make_model(backbone, readout={"dropout": 0.0})
    second = with_readout(ner, first.method, ReadoutConfig(dropout=0.0), backbone)
    config = TrainingConfig(steps=1, batch_size=8)
    trainer = Trainer(backbone, [TaskData(first, EXAMPLES, EXAMPLES), TaskData(second, [marked], [marked])], config)
    losses: list[float] = []
    trainer.listener = lambda kind, values: losses.append(values["loss"]) if kind == "step" else None
    means = []
    for model, rows in ((first, EXAMPLES), (second, [marked])):
        tokenized = model.rows(backbone, rows, with_target=True)
        output = model.train()(backbone, collate(tokenized, backbone.tokenizer.pad_token_id))
        means.append(float(output.losses.sum().detach()) / model.readout.num_losses(tokenized))
    trainer._step()
    assert losses[0] == REORDERED_FLOAT32.approx((5 * means[0] + means[1]) / 6)


def test_a_few_shot_mixture_validates_as_a_few_shot_run_does() -> None:
    config = TaskConfig(few_shot=8, validation_rows=20)
    assert [
        len(rows.validation) for rows in read_splits_of_each(config, ("tickets", "urgency"), MixtureConfig().cap)
    ] == [
        20,
        20,
    ]
    capped = read_splits_of_each(TaskConfig(), ("tickets", "urgency"), cap=7)
    assert {(len(rows.train), len(rows.validation)) for rows in capped} == {(7, 7)}


def test_a_shared_prompt_starts_from_the_words_of_all_tasks() -> None:
    other = Task(name="other", labels={"x": Label(words="account"), "y": Label(words="new")})
    assert joint_task([TASK, other]).label_words == ("account", "billing", "my order", "new")
    assert joint_task([TASK]) is TASK


SHORT_RUN = [
    "training.steps=4",
    "method.prompt_length=9",
    "task.train_rows=20",
    "task.validation_rows=10",
    "task.test_rows=10",
    "mixture.sampling=equal",
]


@pytest.fixture
def trained(tmp_path: Path, model_folders: dict[str, Path]) -> dict[str, softcue.Cue]:
    return softcue.train(
        tmp_path / "desk",
        tasks=["tickets", "urgency"],
        backbone=str(model_folders["bert"]),
        progress=False,
        overrides=SHORT_RUN,
    )


def test_every_task_gets_a_cue_of_its_own_with_the_same_prompt(trained: dict[str, softcue.Cue], tmp_path: Path) -> None:
    assert list(trained) == ["tickets", "urgency"]
    again = {name: softcue.load(tmp_path / "desk" / name) for name in trained}
    prompts = [cue.model.method.state_dict() for cue in again.values()]
    assert prompts[0].keys() == prompts[1].keys()
    assert all(torch.equal(value, prompts[1][name]) for name, value in prompts[0].items())
    texts = ["My invoice is wrong.", "the door is open"]
    for name, cue in again.items():
        assert cue.predict(texts) == trained[name].predict(texts)
        assert set(cue.scores) == {"validation", "test"}
        assert cue.cue_file.training["together_with"] == ["tickets", "urgency"]
    history = json.loads((tmp_path / "desk" / "urgency" / "metrics.json").read_text())["history"]
    assert {"tickets/accuracy", "urgency/accuracy"} <= history[0].keys()


@pytest.mark.parametrize("family", ["bert", "t5", "gpt2"])
def test_each_row_of_a_mixture_has_its_own_tasks_hard_prompt(
    family: str, tmp_path: Path, model_folders: dict[str, Path]
) -> None:
    backbone = load_backbone(str(model_folders[family]))
    words = [*SHORT_RUN, "method.hard_prompt=task", "method.width=8", "training.batch_size=4"]
    cues = softcue.train(
        tmp_path / "desk",
        method="vip",
        tasks=["tickets", "urgency"],
        backbone=backbone,
        progress=False,
        overrides=words,
    )
    models = {name: cue.model for name, cue in cues.items()}
    lengths = set()
    for name, cue in cues.items():
        task = library_task(name)
        text = " ".join([*task.label_words, task.description]).strip()
        ids = backbone.tokenizer(text, add_special_tokens=False)["input_ids"]
        assert json.loads((tmp_path / "desk" / name / "cue.json").read_text())["method"]["hard_prompt"] == text
        encoder = cue.model.method.prompt_encoder()
        assert isinstance(encoder, VIP)
        assert torch.equal(encoder.hard, backbone.word_table[torch.tensor(ids)].float())
        assert cue.model.method.prompt_length == len(ids) + 9
        lengths.add(len(ids))
    assert len(lengths) == 2  # rows of both tasks in one batch have prompts of two lengths
    parameters = [dict(model.method.named_parameters()) for model in models.values()]
    assert all(value is parameters[1][name] for name, value in parameters[0].items())
    texts = ["wrong", "an open door"]
    loaded = {name: softcue.load(tmp_path / "desk" / name, backbone) for name in cues}
    alone = {name: cue.predict(texts) for name, cue in loaded.items()}
    assert alone == {name: cue.predict(texts) for name, cue in cues.items()}
    requests = [(loaded[name].model, Example((text,))) for text in texts for name in loaded]
    mixed = predict(backbone, requests).predictions
    for number, prediction in enumerate(mixed):
        wanted = alone[list(loaded)[number % 2]][number // 2]
        assert prediction.label == wanted.label
        assert prediction.scores == REORDERED_FLOAT32.approx(wanted.scores)


def test_a_finished_mixture_is_not_overwritten_and_resumes_as_itself(
    trained: dict[str, softcue.Cue], tmp_path: Path, model_folders: dict[str, Path]
) -> None:
    arguments = {"backbone": str(model_folders["bert"]), "progress": False, "overrides": SHORT_RUN}
    with pytest.raises(RunError, match="a folder without a finished cue"):
        softcue.train(tmp_path / "desk", tasks=["tickets", "urgency"], **arguments)  # type: ignore[arg-type]
    again = softcue.train(tmp_path / "desk", tasks=["tickets", "urgency"], resume=True, **arguments)  # type: ignore[arg-type]
    assert {name: cue.cue_file for name, cue in again.items()} == {name: cue.cue_file for name, cue in trained.items()}


@pytest.mark.parametrize(
    ("tasks", "words", "expected"),
    [
        (["tickets"], [], "at least two different tasks"),
        (["tickets", "tickets"], [], "at least two different tasks"),
        (["tickets", "nonsense"], [], "a task that comes with softcue"),
        (["tickets", "urgency"], ["task.text=message"], "no setting of a single task beside mixture.tasks"),
        (["tickets", "urgency"], ["mixture.cap=0"], "greater than or equal to 1"),
        (["tickets", "urgency"], ["mixture.temperature=0.5"], "greater than or equal to 1"),
    ],
)
def test_what_is_no_mixture_is_refused_before_anything_is_loaded(
    tmp_path: Path, tasks: list[str], words: list[str], expected: str
) -> None:
    with pytest.raises(ConfigurationError, match=expected):
        softcue.train(tmp_path / "out", tasks=tasks, backbone="no-such-model", overrides=words, progress=False)
    assert not (tmp_path / "out").exists()


def test_a_single_run_names_the_way_to_train_several(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"tasks=A,B"):
        softcue.train(tmp_path / "out", overrides={"mixture.tasks": ["tickets", "urgency"]}, progress=False)
