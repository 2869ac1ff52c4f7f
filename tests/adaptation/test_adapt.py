"""`softcue.adaptation.adapt` as a whole: it learns, resumes bit for bit, and its folder is an ordinary model."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from command import TORCHRUN, check_error
from command import run as run_command
from resigned_checkpoint import Change, change_state, change_tensor, rewrite
from safetensors.torch import load_file
from tiny import tiny_model, tiny_tokenizer
from tolerance import ONE_SUM_FLOAT32, REORDERED_STEPS

import softcue
from softcue.adaptation import AdaptationConfig, adapt
from softcue.adaptation.checkpoints import AdaptationCheckpoints
from softcue.adaptation.loop import AdaptationLoop
from softcue.backbones import load_backbone
from softcue.errors import BackboneError, ConfigurationError, DataError, RunError
from softcue.tasks import examples_from, library_task
from softcue.training.optimizers import Adafactor

SMALL = {
    "steps": 6,
    "batch_size": 4,
    "length": 24,
    "evaluate_every": 3,
    "checkpoint_every": 1,
    "shuffle_chunks": 10,
    "held_out_rows": 6,
    "held_out_every": 5,
    "num_samples": 2,
    "sample_tokens": 4,
}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample messages, several times over."""
    task = library_task("tickets")
    path = tmp_path_factory.mktemp("text") / "messages.txt"
    messages = "\n".join(row.texts[0] for row in examples_from(task.train, task))
    path.write_text((messages + "\n") * 3)
    return path


def run(folder: Path, text: Path, **settings: Any) -> Any:
    return adapt(folder, text=text, progress=False, **{**SMALL, **settings})


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_file(folder / "model.safetensors")


def losses(folder: Path) -> list[float]:
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line["kind"] == "step"]


def test_an_adaptation_reports_to_trackers_which_are_no_part_of_it(tmp_path: Path, text: Path) -> None:
    adapted = run(tmp_path / "model", text, new="tiny", report_to="tensorboard")
    assert list((tmp_path / "model/tensorboard").glob("events.*"))
    again = run(tmp_path / "model", text, new="tiny", resume=True)
    assert again.history == adapted.history
    with pytest.raises(ConfigurationError, match=r"adapt\.report_to: got 'tensorbord'; .* did you mean 'tensorboard'"):
        run(tmp_path / "other", text, new="tiny", report_to="tensorbord")


@pytest.mark.parametrize("objective", ["prefix-lm", "span-corruption"])
def test_a_new_model_learns_and_cues_can_be_trained_on_its_folder(tmp_path: Path, text: Path, objective: str) -> None:
    adapted = run(tmp_path / "model", text, new="tiny", objective=objective, steps=12, checkpoint_every=0)
    assert adapted.perplexity < 0.5 * adapted.history[0]["perplexity"]
    assert [entry["step"] for entry in adapted.history] == [0, 3, 6, 9, 12]
    assert len(adapted.samples) == 2
    assert all(sample.source and sample.target for sample in adapted.samples)
    if objective == "span-corruption":
        assert adapted.samples[0].target.startswith("<extra_id_0>")
    assert not [path for path in adapted.path.iterdir() if path.is_dir()]  # no checkpoints, no first weights
    report = json.loads((adapted.path / "adaptation.json").read_text())
    assert report["settings"]["objective"] == objective
    assert "/tmp" not in report["model"]
    cue = softcue.train(
        tmp_path / "cue",
        task="tickets",
        backbone=str(adapted.path),
        few_shot=8,
        progress=False,
        overrides={"training.steps": 1, "method.prompt_length": 8},
    )
    assert cue.predict(["My invoice is wrong."])


@pytest.mark.parametrize("family", ["t5", "mt5", "bart"])
def test_every_encoder_decoder_can_be_adapted_and_reads_back_as_it_was_written(
    tmp_path: Path, text: Path, family: str
) -> None:
    tiny_model(family).save_pretrained(tmp_path / "first")
    tiny_tokenizer(family).save_pretrained(tmp_path / "first")
    adapted = run(tmp_path / "model", text, backbone=tmp_path / "first", steps=3)
    before, after = weights(tmp_path / "first"), weights(adapted.path)
    assert before.keys() == after.keys()
    assert any(not torch.equal(before[name], after[name]) for name in before)
    configs = [json.loads((path / "config.json").read_text()) for path in (tmp_path / "first", adapted.path)]
    assert configs[0] == configs[1]  # dropout was off, but the folder keeps it
    assert load_backbone(str(adapted.path)).kind == "encoder-decoder"


def test_an_untied_t5_stays_untied(tmp_path: Path, text: Path) -> None:
    model = tiny_model("t5", tie_word_embeddings=False)
    model.config.tie_word_embeddings = False
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight.detach() * 0.5)
    model.save_pretrained(tmp_path / "first")
    tiny_tokenizer("t5").save_pretrained(tmp_path / "first")
    adapted = run(tmp_path / "model", text, backbone=tmp_path / "first", steps=1)
    loaded = load_backbone(str(adapted.path)).model
    assert not torch.equal(loaded.lm_head.weight, loaded.shared.weight)


class Crash(Exception):
    pass


@pytest.fixture(scope="module")
def stopped(tmp_path_factory: pytest.TempPathFactory, text: Path, model_folders: dict[str, Path]) -> Path:
    """The folder of an adaptation that stopped after its second checkpoint."""
    folder = tmp_path_factory.mktemp("stopped") / "model"
    save, steps = AdaptationCheckpoints.save, []

    def dying(self: AdaptationCheckpoints, checkpoint: Any) -> None:
        save(self, checkpoint)
        steps.append(checkpoint.state.step)
        if len(steps) == 2:
            raise Crash

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(AdaptationCheckpoints, "save", dying)
        with pytest.raises(Crash):
            run(folder, text, backbone=model_folders["t5"])
    return folder


OTHER_RUNS = {
    "a step beyond the last": change_state(step=10**9),
    "a step that is a text": change_state(step="2"),
    "a history that is no list": change_state(history=7),
    "a history without perplexities": change_state(history=[{"step": 1}]),
    "weights of another shape": change_tensor("model/", lambda value: value[:1]),
    "weights that are not finite": change_tensor("model/", lambda value: value * float("nan")),
    "a missing weight": lambda _, tensors: tensors.pop(min(name for name in tensors if "model/" in name)),
    "an optimizer of another model": lambda _, tensors: tensors.update({"optimizer/x|exp_avg": torch.zeros(2)}),
    "chunks of another length": change_tensor("stream/buffer", lambda value: value[:, :-1]),
    "more chunks than the buffer has": change_tensor("stream/buffer", lambda value: torch.cat([value, value])),
    "tokens below zero": change_tensor("stream/buffer", lambda value: value - 10**6),
    "no place in the text": lambda _, tensors: tensors.pop("stream/numbers"),
}


@pytest.mark.parametrize("change", OTHER_RUNS.values(), ids=OTHER_RUNS.keys())
def test_checkpoints_that_do_not_fit_are_refused(
    stopped: Path, tmp_path: Path, text: Path, model_folders: dict[str, Path], change: Change
) -> None:
    folder = shutil.copytree(stopped, tmp_path / "model")
    for checkpoint in (folder / "checkpoints").glob("step-*"):
        rewrite(checkpoint, change)
    with pytest.raises(RunError, match="remove the folder `checkpoints`"):
        run(folder, text, backbone=model_folders["t5"], resume=True)


@pytest.mark.parametrize("moment", ["before", "after"])
@pytest.mark.parametrize("dies_at", [1, 4, 6])
def test_a_run_that_dies_around_a_checkpoint_resumes_to_the_same_weights(
    tmp_path: Path,
    text: Path,
    model_folders: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    moment: str,
    dies_at: int,
) -> None:
    whole = run(tmp_path / "whole", text, backbone=model_folders["t5"])
    save, count = AdaptationCheckpoints.save, 0

    def dying(self: AdaptationCheckpoints, checkpoint: Any) -> None:
        nonlocal count
        count += 1
        if moment == "after" or count < dies_at:
            save(self, checkpoint)
        if count == dies_at:
            raise Crash

    monkeypatch.setattr(AdaptationCheckpoints, "save", dying)
    with pytest.raises(Crash):
        run(tmp_path / "broken", text, backbone=model_folders["t5"])
    monkeypatch.setattr(AdaptationCheckpoints, "save", save)
    resumed = run(tmp_path / "broken", text, backbone=model_folders["t5"], resume=True)
    assert (tmp_path / "broken/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()
    assert (resumed.history, resumed.samples) == (whole.history, whole.samples)
    assert losses(tmp_path / "broken") == losses(tmp_path / "whole")


@pytest.mark.processes
def test_kill_9_then_resume_gives_the_same_bytes(tmp_path: Path, text: Path) -> None:
    def words(folder: Path) -> list[str]:
        options = [f"{name}={value}" for name, value in SMALL.items() if name != "steps"]
        return ["-m", "softcue", "adapt", str(text), "--new", "tiny", "--output-dir", str(folder), "--json", *options]

    def start(folder: Path, *more: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, *words(folder), "--steps", "16", "--resume", *more]
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)

    def steps_done(folder: Path) -> int:
        path = folder / "metrics.jsonl"
        return path.read_text().count('"kind": "step"') if path.is_file() else 0

    broken = tmp_path / "broken"
    process = start(broken)
    while steps_done(broken) < 5 and process.poll() is None:
        time.sleep(0.002)
    # The tokenizer of a new model is trained once: a second run continues from the same first weights.
    whole = tmp_path / "whole"
    (whole / "start").mkdir(parents=True)
    for file in (broken / "start").iterdir():
        (whole / "start" / file.name).write_bytes(file.read_bytes())
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert not (broken / "adaptation.json").exists()
    for folder in (broken, whole):
        process = start(folder)
        _, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
    assert (broken / "model.safetensors").read_bytes() == (whole / "model.safetensors").read_bytes()
    assert losses(broken) == losses(whole)


def test_a_run_that_dies_while_its_model_is_written_resumes_to_the_same_weights(
    tmp_path: Path, text: Path, model_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    run(tmp_path / "whole", text, backbone=model_folders["t5"])
    replace = os.replace

    def dying(source: Path, target: Path) -> None:
        if Path(target) == tmp_path / "broken/config.json":
            raise Crash
        replace(source, target)

    monkeypatch.setattr(os, "replace", dying)
    with pytest.raises(Crash):
        run(tmp_path / "broken", text, backbone=model_folders["t5"])
    monkeypatch.setattr(os, "replace", replace)
    with pytest.raises(RunError, match="`resume=True`"):
        run(tmp_path / "broken", text, backbone=model_folders["t5"])
    run(tmp_path / "broken", text, backbone=model_folders["t5"], resume=True)
    assert (tmp_path / "broken/model.safetensors").read_bytes() == (tmp_path / "whole/model.safetensors").read_bytes()


def test_a_finished_model_is_read_by_resume_and_replaced_only_if_told(
    tmp_path: Path, text: Path, model_folders: dict[str, Path]
) -> None:
    settings = {"backbone": model_folders["t5"], "steps": 1}
    first = run(tmp_path / "model", text, **settings)
    again = run(tmp_path / "model", text, resume=True, **settings)
    assert (again.history, again.samples) == (first.history, first.samples)
    with pytest.raises(RunError, match="`overwrite=True`"):
        run(tmp_path / "model", text, **settings)
    with pytest.raises(RunError, match="finished, with others"):
        run(tmp_path / "model", text, resume=True, seed=1, **settings)
    other = run(tmp_path / "model", text, overwrite=True, seed=1, **settings)
    assert other.perplexity != first.perplexity
    assert other.history[0] == first.history[0]  # the held-out rows are those of every seed


def test_another_runs_checkpoint_is_not_continued(
    tmp_path: Path, text: Path, model_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def dying(*values: object) -> None:
        raise Crash

    with monkeypatch.context() as patch:
        patch.setattr("softcue.adaptation.run.write_samples", dying)
        with pytest.raises(Crash):
            run(tmp_path / "model", text, backbone=model_folders["t5"])
    with pytest.raises(RunError, match="same adaptation"):
        run(tmp_path / "model", text, backbone=model_folders["t5"], seed=3, resume=True)


@pytest.mark.processes
def test_two_processes_give_the_weights_of_one(tmp_path: Path, text: Path, model_folders: dict[str, Path]) -> None:
    options = [f"{name}={value}" for name, value in SMALL.items()]
    for name, launcher in (("one", [sys.executable]), ("two", TORCHRUN)):
        words = [*launcher, "-m", "softcue", "adapt", str(text), "--backbone", str(model_folders["t5"]), *options]
        result = subprocess.run(
            [*words, "--output-dir", str(tmp_path / name), "--json"],
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert result.returncode == 0, result.stderr
        assert len(result.stdout.splitlines()) == 1  # only the first process speaks
    assert losses(tmp_path / "two") == pytest.approx(losses(tmp_path / "one"), rel=1e-3)
    REORDERED_STEPS.assert_close(weights(tmp_path / "two"), weights(tmp_path / "one"))


def test_micro_batches_and_gradient_checkpointing_change_nothing(
    tmp_path: Path, text: Path, model_folders: dict[str, Path]
) -> None:
    settings = {"backbone": model_folders["t5"], "steps": 3}
    run(tmp_path / "plain", text, **settings)
    run(tmp_path / "checkpointed", text, gradient_checkpointing=True, **settings)
    run(tmp_path / "micro", text, micro_batch_size=1, **settings)
    for name in ("checkpointed", "micro"):
        REORDERED_STEPS.assert_close(weights(tmp_path / name), weights(tmp_path / "plain"))


def test_bfloat16_computes_near_float32_and_keeps_float32_weights(
    tmp_path: Path, text: Path, model_folders: dict[str, Path]
) -> None:
    full = run(tmp_path / "full", text, backbone=model_folders["t5"])
    short = run(tmp_path / "short", text, backbone=model_folders["t5"], dtype="bfloat16")
    assert {tensor.dtype for tensor in weights(tmp_path / "short").values()} == {torch.float32}
    assert losses(tmp_path / "short") != losses(tmp_path / "full")
    assert short.perplexity == pytest.approx(full.perplexity, rel=0.2)


def test_the_loss_and_perplexity_are_those_of_transformers(
    tmp_path: Path, text: Path, model_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    loops: list[AdaptationLoop] = []
    start = AdaptationLoop.run
    monkeypatch.setattr(AdaptationLoop, "run", lambda self: (loops.append(self), start(self))[1])
    adapted = run(tmp_path / "model", text, backbone=model_folders["t5"], steps=1)
    [loop] = loops
    cross_entropy = num_tokens = 0.0
    for row in loop.held_out:
        output = loop.model(input_ids=row.source[None], labels=row.target[None])
        cross_entropy += output.loss.item() * len(row.target)
        num_tokens += len(row.target)
    assert adapted.perplexity == ONE_SUM_FLOAT32.approx(float(torch.tensor(cross_entropy / num_tokens).exp()))


def test_parameter_scaling_moves_each_parameter_by_a_share_of_its_size() -> None:
    large, small = torch.nn.Parameter(torch.full((4,), 10.0)), torch.nn.Parameter(torch.zeros(4))
    optimizer = Adafactor([{"params": [large, small], "lr": 0.01}], weight_decay=0.0, scales_by_parameter=True)
    for parameter in (large, small):
        parameter.grad = torch.ones(4)
    optimizer.step()
    assert large[0].item() == pytest.approx(10.0 - 0.01 * 10.0)
    assert small[0].item() == pytest.approx(-0.01 * 1e-3)


def test_the_schedule_is_t5s() -> None:
    config = AdaptationConfig()
    assert config.rate_at(9_999, is_new=True) == 0.01
    assert config.rate_at(999_999, is_new=True) == pytest.approx(0.001)
    assert config.rate_at(0, is_new=False) == pytest.approx(0.001, rel=1e-5)
    assert AdaptationConfig(schedule="constant").rate_at(999_999, is_new=True) == 0.01
    assert AdaptationConfig(steps_before=30_000).rate_at(9_999, is_new=False) == pytest.approx(0.005)


def test_memory_is_told_before_the_first_step(
    tmp_path: Path, text: Path, model_folders: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    adapt(tmp_path / "model", text=text, backbone=model_folders["t5"], **{**SMALL, "steps": 1})
    lines = capsys.readouterr().err.splitlines()
    assert "prefix-lm on" in lines[0]
    assert lines[2].startswith("memory: about ")
    assert "activations of 4 rows" in lines[2]
    assert "step 0/1, held-out perplexity" in lines[3]


def test_too_little_memory_is_a_warning(
    tmp_path: Path,
    text: Path,
    model_folders: dict[str, Path],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("softcue.adaptation.run.free_memory", lambda device: 1000.0)
    run(tmp_path / "model", text, backbone=model_folders["t5"], steps=1)
    assert "more memory than is free: lower micro_batch_size" in capsys.readouterr().err


def test_held_out_texts_can_be_given(tmp_path: Path, text: Path, model_folders: dict[str, Path]) -> None:
    (tmp_path / "other.txt").write_text("quite another text about ships and the sea " * 30)
    settings = {"backbone": model_folders["t5"], "steps": 1}
    inside = run(tmp_path / "inside", text, **settings)
    outside = run(tmp_path / "outside", text, held_out=tmp_path / "other.txt", **settings)
    assert "ships" in outside.samples[0].source + outside.samples[0].target
    assert "ships" not in inside.samples[0].source + inside.samples[0].target


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({}, ConfigurationError, "pass `backbone=FOLDER` or `new=tiny`"),
        ({"new": "tiny", "backbone": "x"}, ConfigurationError, "either a model to continue, or the size"),
        ({"new": "tinny"}, ConfigurationError, "did you mean 'tiny'"),
        ({"new": "tiny", "objective": "prefix"}, ConfigurationError, "adapt.objective: got 'prefix'"),
        ({"new": "tiny", "stepps": 3}, ConfigurationError, "adapt.stepps"),
        ({"new": "tiny", "length": 100_000}, DataError, "enough held-out text"),
    ],
)
def test_wrong_settings_are_clear_errors_and_leave_no_model(
    tmp_path: Path, text: Path, settings: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        run(tmp_path / "model", text, **settings)
    assert not (tmp_path / "model/config.json").exists()


@pytest.mark.parametrize("kind", ["bert", "gpt2"])
def test_only_encoder_decoders_are_adapted(
    tmp_path: Path, text: Path, model_folders: dict[str, Path], kind: str
) -> None:
    with pytest.raises(BackboneError, match="expected an encoder-decoder: T5, mT5 or BART"):
        run(tmp_path / "model", text, backbone=model_folders[kind])


def test_the_folder_of_the_model_itself_is_never_overwritten(
    tmp_path: Path, text: Path, model_folders: dict[str, Path]
) -> None:
    before = weights(model_folders["t5"])
    with pytest.raises(RunError, match="another folder than that of the model"):
        run(model_folders["t5"], text, backbone=model_folders["t5"], overwrite=True)
    assert weights(model_folders["t5"]).keys() == before.keys()
    assert (model_folders["t5"] / "config.json").is_file()


def test_the_command_prints_samples_and_perplexity(
    tmp_path: Path, text: Path, model_folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    options = [f"{name}={value}" for name, value in SMALL.items() if name != "steps"]
    words = ["adapt", text, "--backbone", model_folders["t5"], "--steps", 1, *options]
    result = run_command(*words, "--output-dir", tmp_path / "model")
    assert result.code == 0, result.err
    assert "after 1 steps of prefix-lm" in result.out
    assert f"softcue train --backbone {tmp_path / 'model'}" in result.out
    printed = run_command(*words, "--output-dir", tmp_path / "model", "--resume", "--json").json
    assert printed["steps"] == 1
    assert printed["perplexity"] == printed["history"][-1]["perplexity"]
    check_error(run_command(*words, "--output-dir", tmp_path / "model"), "--output-dir: got", "--overwrite")
    check_error(run_command("adapt", "/no/such", "--new", "tiny", "--output-dir", tmp_path / "x"), "text: got")


def make_loss(num_rows: int) -> Callable[[], torch.Tensor]:
    values = torch.ones(num_rows, 3, requires_grad=True)
    return lambda: values.exp().sum()


def test_activations_are_counted_with_the_largest_gradients_and_without_weights() -> None:
    from softcue.adaptation.memory import count_activation_bytes

    assert count_activation_bytes(torch.nn.Linear(2, 2), make_loss(5)) == 4 * (5 * 3 * 4)
