"""VIP and its ablations as a user meets them: saved and loaded, wrong settings, warnings, and mixed with other cues."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from command import check_error, run
from safetensors.torch import load_file
from tiny import ONE_OF_EACH_KIND, tiny
from tolerance import REORDERED_PROBABILITIES
from torch import Tensor
from toy import EXAMPLES, TASK, make_model

import softcue
from softcue import Cue
from softcue.configuration import method_config, parse_overrides, preset
from softcue.errors import ConfigurationError
from softcue.inference import TaskModel, predict, predict_mixed
from softcue.inputs.collate import collate
from softcue.prompts import VIP
from softcue.training import TaskData, Trainer, TrainingConfig, TrainingResult, loop

Settings = dict[str, Any]
TEXTS = [example.texts[0] for example in EXAMPLES]
ROWS = [{"text": example.texts[0] + more, "label": example.target} for more in ("", " again") for example in EXAMPLES]
TRAINING: Settings = {"training.steps": 2, "training.batch_size": 4}
# The paper's settings, whatever the presets are, in sizes that fit tiny backbones; codes as long as their word vectors.
SIZES: dict[str, Settings] = {
    "vip": {
        "method.prompt_length": 4,
        "method.width": 8,
        "method.scale": 1.0,
        "method.dropout": 0.1,
        "method.decay": 0.99,
        "method.temperature": 2.0,
        "method.relative_temperature": False,
        "method.dedicated": False,
        "method.codes_from": "words",
        "method.input_gain": 0,
        "method.codes_norm": 0,
        "method.reset_below": 0.0,
    },
    "vip-c": {"method.prompt_length": 4, "method.width": 8, "method.scale": 1.0, "method.skip": False},
    "vip-idp": {"method.prompt_length": 4, "method.bottleneck": 8},
    "prompt-tuning": {"method.prompt_length": 3},
    "m-idpg-phm": {"method.prompt_length": 3, "method.phm_n": 4, "method.bottleneck": 8},
}


def train(folder: Path, method: str, family: str = "bert", overrides: Settings | None = None, **given: Any) -> Cue:
    settings = {**TRAINING, **SIZES[method], **(overrides or {})}
    source: dict[str, Any] = {"backbone": tiny(family), "train": ROWS, "validation": ROWS[:3], **given}
    return softcue.train(
        folder, method=method, text="text", label="label", overrides=settings, progress=False, **source
    )


def encoder_of(model: TaskModel) -> VIP:
    encoder = model.method.encoder
    assert isinstance(encoder, VIP)
    return encoder


def codebook_of(model: TaskModel) -> Tensor:
    quantizer = encoder_of(model).quantizer
    assert quantizer is not None
    return quantizer.codebook


@torch.no_grad()
def prompt_tokens(model: TaskModel, family: str) -> Tensor:
    """The prompts of all examples. [B P D]"""
    backbone = tiny(family)
    batch = collate(model.rows(backbone, EXAMPLES), backbone.tokenizer.pad_token_id)
    prompt = model.prompt(backbone, batch, backbone.embed(batch.ids))
    assert prompt is not None
    return prompt.tokens


# --- answers ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
def test_a_row_alone_is_answered_as_in_a_padded_batch_however_codes_are_chosen(family: str) -> None:
    backbone = tiny(family)
    tensors = {}
    for evaluation in ("expectation", "sample", "argmax"):
        model = make_model(backbone, "vip", evaluation=evaluation, draws=3)
        together = predict(backbone, [(model, example) for example in EXAMPLES]).predictions
        assert predict(backbone, [(model, example) for example in EXAMPLES]).predictions == together
        for example, answer in zip(EXAMPLES, together, strict=True):
            (alone,) = predict(backbone, [(model, example)]).predictions
            assert alone.scores == REORDERED_PROBABILITIES.approx(answer.scores)
        tensors[evaluation] = list((together[0].scores or {}).values())
    assert tensors["expectation"] != pytest.approx(tensors["sample"], abs=1e-4)
    assert tensors["expectation"] != pytest.approx(tensors["argmax"], abs=1e-4)
    assert tensors["sample"] != pytest.approx(tensors["argmax"], abs=1e-4)


def test_draws_outside_training_follow_their_own_seed_alone() -> None:
    backbone = tiny("bert")
    models = [make_model(backbone, "vip", evaluation="sample", draws=2, sample_seed=seed) for seed in (0, 0, 1)]
    answers = []
    for number, model in enumerate(models):
        torch.manual_seed(number)
        answers.append(predict(backbone, [(model, example) for example in EXAMPLES]).predictions)
    assert answers[0] == answers[1]
    assert answers[0] != answers[2]


# --- cue folders -----------------------------------------------------------------------------------------------------

SAVED: dict[str, tuple[str, Settings]] = {
    "vip": ("vip", {}),
    "vip mixed": ("vip", {"method.soft_tokens": 2, "method.hard_prompt": "task", "method.scale": 0}),
    "vip text": ("vip", {"method.hard_prompt": "sort this", "method.evaluation": "sample", "method.dedicated": True}),
    "vip context": ("vip", {"method.codes_from": "context", "method.ema_rule": "literal", "method.scale": 0}),
    "vip-c": ("vip-c", {"method.hard_prompt": "task"}),
    "vip-c skip": ("vip-c", {"method.skip": True, "method.soft_tokens": 1, "method.scale": 0}),
    "vip-idp": ("vip-idp", {}),
}


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
@pytest.mark.parametrize("kind", SAVED)
def test_a_loaded_cue_answers_as_the_trained_one(kind: str, family: str, tmp_path: Path) -> None:
    method, overrides = SAVED[kind]
    trained = train(tmp_path / "cue", method, family, overrides)
    loaded = softcue.load(tmp_path / "cue", tiny(family))
    assert loaded.predict(TEXTS) == trained.predict(TEXTS)
    assert torch.equal(prompt_tokens(loaded.model, family), prompt_tokens(trained.model, family))
    assert loaded.cue_file.counts == vars(loaded.counts) == vars(trained.counts)
    assert loaded.model.method.config == trained.model.method.config
    file = load_file(tmp_path / "cue/cue.safetensors")
    assert file.keys() == trained.model.state_dict().keys()
    codes = [name for name in file if ".quantizer." in name]
    assert codes == (["method.encoder.quantizer.codebook"] if method == "vip" else [])
    assert not any("hard" in name for name in file)


@pytest.mark.parametrize("method", ["vip", "vip-c", "vip-idp"])
@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
def test_a_cue_by_its_preset_is_recorded_whole(method: str, family: str, tmp_path: Path) -> None:
    chosen = {**TRAINING, "method.prompt_length": 3}
    trained = softcue.train(
        tmp_path / "cue",
        method=method,
        train=ROWS,
        validation=ROWS[:3],
        text="text",
        label="label",
        backbone=tiny(family),
        overrides=chosen,
        progress=False,
    )
    expected = {**preset(method, tiny(family).kind)["method"], "prompt_length": 3}
    recorded = json.loads((tmp_path / "cue/cue.json").read_text())["method"]
    if expected.get("scale") == 0:  # measured
        expected["scale"] = recorded["scale"]
        assert recorded["scale"] > 0
    assert recorded.items() >= expected.items()
    assert softcue.load(tmp_path / "cue", tiny(family)).predict(TEXTS) == trained.predict(TEXTS)


def test_a_loaded_cue_needs_its_codebook(tmp_path: Path) -> None:
    trained = train(tmp_path / "cue", "vip")
    loaded = softcue.load(tmp_path / "cue", tiny("bert"))
    codebook_of(loaded.model).mul_(2)
    assert loaded.predict(TEXTS) != trained.predict(TEXTS)


@pytest.mark.parametrize("method", ["vip", "vip-c"])
def test_a_scale_of_zero_is_settled_to_the_size_of_word_vectors(method: str, tmp_path: Path) -> None:
    train(tmp_path / "cue", method, overrides={"method.scale": 0})
    measured = float(tiny("bert").word_table.detach().float().square().mean().sqrt())
    scale = json.loads((tmp_path / "cue/cue.json").read_text())["method"]["scale"]
    assert 0.01 < scale == pytest.approx(measured, rel=5e-4)
    assert scale == float(f"{scale:.4g}")  # the last digits of a sum depend on the number of threads
    loaded = softcue.load(tmp_path / "cue", tiny("bert"))
    assert encoder_of(loaded.model).contextualizer.shape.scale == scale
    assert "scale: 0" in (tmp_path / "cue/config.yaml").read_text()


def test_a_hard_prompt_is_words_of_the_backbone_in_front() -> None:
    backbone = tiny("bert")
    words = "account billing my order"  # of the task, which has no description
    ids = backbone.tokenizer(words, add_special_tokens=False)["input_ids"]
    expected = backbone.word_table.detach()[ids]
    for wanted in ("task", words):
        model = make_model(backbone, "vip", hard_prompt=wanted, soft_tokens=1)
        assert model.method.prompt_length == len(ids) + 4
        tokens = prompt_tokens(model, "bert")
        for row in tokens:
            assert torch.equal(row[: len(ids)], expected)
            assert torch.equal(row[len(ids)], encoder_of(model).prompt[0])
        assert float((tokens[0, len(ids) + 1 :] - tokens[1, len(ids) + 1 :]).abs().max()) > 1e-3
    described = TASK.model_copy(update={"description": "which team"})
    longer = make_model(backbone, "vip", task=described, hard_prompt="task")
    more = backbone.tokenizer(f"{words} which team", add_special_tokens=False)["input_ids"]
    assert torch.equal(prompt_tokens(longer, "bert")[0, : len(more)], backbone.word_table.detach()[more])


@pytest.mark.parametrize("settings", [{}, {"method.codes_from": "context", "method.fill_after": 2}])
def test_a_run_from_a_cue_begins_with_its_codebook(
    settings: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    origin = train(tmp_path / "first", "vip", overrides={**settings, "training.steps": 4})
    begun: list[dict[str, Tensor]] = []
    after: list[Tensor] = []
    step = Trainer._step

    def spied(self: Trainer) -> None:
        begun.append({name: value.clone() for name, value in self.model.method.state_dict().items()})
        step(self)
        after.append(codebook_of(self.model).clone())

    monkeypatch.setattr(Trainer, "_step", spied)
    train(tmp_path / "second", "vip", overrides=settings, seed=5, init_from=tmp_path / "first")
    expected = origin.model.method.state_dict()
    assert begun[0].keys() == expected.keys()
    assert all(torch.equal(begun[0][name], value) for name, value in expected.items())
    codes = expected["encoder.quantizer.codebook"]
    assert float(codes.abs().sum()) > 0
    for moved in after:  # by a running average, not set anew
        assert float((moved - codes).norm() / codes.norm()) < 0.1
        assert not torch.equal(moved, codes)


# --- refusals --------------------------------------------------------------------------------------------------------

# method, words, setting, value, what the expectation and the next step name
REFUSED: list[tuple[str, Settings, str, Any, str, str]] = [
    ("vip", {"soft_tokens": 4}, "soft_tokens", 4, "prompt_length (4)", "prompt-tuning"),
    ("vip", {"soft_tokens": 9}, "soft_tokens", 9, "prompt_length (4)", "prompt-tuning"),
    ("vip-c", {"soft_tokens": 4}, "soft_tokens", 4, "prompt_length (4)", "prompt-tuning"),
    ("vip", {"heads": 3}, "heads", 3, "method.width (8)", "change one"),
    ("vip-c", {"heads": 16}, "heads", 16, "method.width (8)", "change one"),
    ("vip", {"dedicated": True, "codes": 10}, "codes", 10, "each of 4 tokens", "leave it out"),
    ("vip", {"dedicated": True, "codes": 4, "soft_tokens": 1}, "codes", 4, "each of 3 tokens", "leave it out"),
    ("vip", {"codes": 397}, "codes", 397, "at most 396 codes", "codes_from=context"),
    ("vip", {"noise_resilience": 1, "dropout": 0}, "noise_resilience", 1.0, "method.dropout above 0", "the noise"),
]
OUT_OF_RANGE: list[tuple[str, Settings]] = [
    ("vip", {"temperature": 0}),
    ("vip", {"draws": 0}),
    ("vip", {"decay": 1}),
    ("vip", {"decay": -0.1}),
    ("vip", {"reset_below": 1}),
    ("vip", {"fill_after": 0}),
    ("vip", {"codes": -1}),
    ("vip", {"ema_epsilon": 0}),
    ("vip", {"ema_rule": "qt"}),
    ("vip", {"evaluation": "mean"}),
    ("vip", {"codes_from": "noise"}),
    ("vip", {"commitment_reduction": "max"}),
    ("vip", {"commitment": -1}),
    ("vip", {"scale": -1}),
    ("vip-c", {"dropout": 1}),
    ("vip-c", {"layers": 0}),
    ("vip-c", {"codes": 40}),
    ("vip-c", {"noise_resilience": -1}),
    ("vip-idp", {"bottleneck": 0}),
    ("vip-idp", {"soft_tokens": 1}),
    ("vip", {"temperature": "inf"}),
]


@pytest.mark.parametrize(("method", "words", "setting", "value", "expected", "next_step"), REFUSED)
def test_combinations_that_cannot_work_are_refused_with_a_way_out(
    method: str, words: Settings, setting: str, value: Any, expected: str, next_step: str
) -> None:
    with pytest.raises(ConfigurationError) as caught:
        make_model(tiny("bert"), method, **{"prompt_length": 4, "width": 8, **words})
    error = caught.value
    assert (error.setting, error.got) == (f"method.{setting}", value)
    assert expected in error.expected
    assert next_step in error.fix


@pytest.mark.parametrize(("method", "words"), OUT_OF_RANGE)
def test_a_field_out_of_range_is_refused_by_its_name(method: str, words: Settings) -> None:
    ((key, value),) = words.items()
    with pytest.raises(ConfigurationError) as caught:
        method_config({"name": method, **words})
    assert (caught.value.setting, caught.value.got) == (f"method.{key}", value)
    assert caught.value.expected and caught.value.fix


def test_the_nearest_settings_that_can_work_are_taken() -> None:
    taken: list[Settings] = [
        {"soft_tokens": 3},
        {"heads": 8},
        {"dedicated": True, "codes": 12},
        {"codes": 396},
        {"decay": 0.0},
        {"codes": 500, "codes_from": "context"},
        {"reset_below": 0.99},
    ]
    for words in taken:
        assert make_model(tiny("bert"), "vip", **{"prompt_length": 4, "width": 8, **words}).counts().ema > 0


@pytest.fixture
def rows_file(tmp_path: Path) -> Path:
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return path


def test_refusals_are_one_line_and_exit_2_on_the_command_line(
    rows_file: Path, model_folders: dict[str, Path], tmp_path: Path
) -> None:
    common = [
        "--train",
        rows_file,
        "--validation",
        rows_file,
        "--text",
        "text",
        "--label",
        "label",
        "--backbone",
        model_folders["bert"],
        "--output-dir",
        tmp_path / "cue",
        "training.steps=1",
    ]
    combinations = [(method, words, setting, value) for method, words, setting, value, *_ in REFUSED]
    fields = [(method, words, *next(iter(words.items()))) for method, words in OUT_OF_RANGE[:3]]
    for method, words, setting, value in [*combinations, *fields]:
        given = [f"{key}={json.dumps(value)}" for key, value in SIZES[method].items()]
        given += [f"method.{key}={json.dumps(value)}" for key, value in words.items()]
        check_error(run("train", "--method", method, *common, *given), f"method.{setting}: got {value};")
        assert not (tmp_path / "cue").exists()
        if setting != "codes" or "dedicated" in words:  # words to start from are no part of a count
            check_error(run("params", "--method", method, *given), f"method.{setting}: got {value};")


# --- health ----------------------------------------------------------------------------------------------------------

CODEBOOK_KEYS = {"codes_drawn", "perplexity", "code_distance", "temperature", "commitment"}
HEALTH_KEYS = {*CODEBOOK_KEYS, "prompt_ratio", "prompt_variation", "codes_reset", "noise_resilience"}


def reported(folder: Path) -> tuple[list[dict[str, Any]], list[dict[str, Any]], dict[str, Any]]:
    """Lines of steps, lines of evaluations, and metrics.json."""
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    kinds = [[line for line in lines if line["kind"] == kind] for kind in ("step", "evaluation")]
    return kinds[0], kinds[1], json.loads((folder / "metrics.json").read_text())


def test_a_vip_run_tells_how_its_codebook_and_prompt_are(tmp_path: Path) -> None:
    extra = {"method.reset_below": 0.1, "method.noise_resilience": 1.0, "training.evaluate_every": 1}
    extra["training.label_share"] = 0  # an odd number of rows could leave one alone in a step, with nothing to compare
    train(tmp_path / "cue", "vip", overrides={**extra, "training.steps": 4})
    steps, evaluations, metrics = reported(tmp_path / "cue")
    assert len(steps) == len(evaluations) - 1 == 4  # the solved head is evaluated first
    for line in steps:
        assert HEALTH_KEYS & line.keys() == HEALTH_KEYS - {"prompt_variation"}
        assert 1 <= line["codes_drawn"] <= 40
        assert 1 <= line["perplexity"] <= 40
        assert line["temperature"] == 2.0
        assert line["code_distance"] > 0 and line["prompt_ratio"] > 0 and line["commitment"] > 0
    for line in evaluations:
        assert HEALTH_KEYS & line.keys() == {"prompt_variation"}
        assert line["prompt_variation"] > 1e-3
    expected = {key: steps[-1][key] for key in HEALTH_KEYS - {"prompt_variation"}}
    assert metrics["health"] == {**expected, "prompt_variation": evaluations[-1]["prompt_variation"]}


def test_codes_drawn_are_counted_by_epoch(tmp_path: Path) -> None:
    """Three steps an epoch, one draw for each of four tokens and ten rows."""
    few = {"method.draws": 1, "method.codes": 300, "method.temperature": 1e4, "training.steps": 6}
    train(tmp_path / "cue", "vip", overrides={**few, "training.label_share": 0})
    drawn = [line["codes_drawn"] for line in reported(tmp_path / "cue")[0]]
    assert drawn[0] < drawn[1] < drawn[2] <= 40
    assert drawn[3] < drawn[2]
    assert drawn[3] < drawn[4] < drawn[5] <= 40


def test_the_ablations_tell_what_they_have(tmp_path: Path) -> None:
    train(tmp_path / "context", "vip-c")
    steps, evaluations, metrics = reported(tmp_path / "context")
    assert all(HEALTH_KEYS & line.keys() == {"prompt_ratio"} for line in steps)
    assert all(HEALTH_KEYS & line.keys() == {"prompt_variation"} for line in evaluations)
    assert metrics["health"].keys() == {"prompt_ratio", "prompt_variation"}
    train(tmp_path / "projected", "vip-idp")
    steps, evaluations, metrics = reported(tmp_path / "projected")
    assert not any(HEALTH_KEYS & line.keys() for line in steps)
    assert all(HEALTH_KEYS & line.keys() == {"prompt_variation"} for line in evaluations)
    assert metrics["health"].keys() == {"prompt_variation"}


def test_a_static_prompt_tells_nothing_of_the_kind(tmp_path: Path) -> None:
    train(tmp_path / "cue", "prompt-tuning")
    steps, evaluations, metrics = reported(tmp_path / "cue")
    assert steps and evaluations
    assert not any(HEALTH_KEYS & line.keys() for line in [*steps, *evaluations])
    assert metrics["health"] == {}


def result_of(model: TaskModel, **training: object) -> TrainingResult:
    """A short run that leaves prompts and networks as they are."""
    settings = {"steps": 3, "batch_size": 4, "learning_rate": 0.0, "network_learning_rate": 0.0, "evaluate_every": 3}
    config = TrainingConfig.model_validate({**settings, **training})
    return Trainer(tiny("bert"), [TaskData(model, EXAMPLES, EXAMPLES)], config).run()


def health_warnings(warnings: list[str]) -> list[str]:
    """Those of a prompt and its codebook."""
    return [text for text in warnings if "codebook" in text or "prompt hardly" in text or "resilience" in text]


def collapsed() -> TaskModel:
    """One code in the middle of all vectors; the others where nobody goes."""
    model = make_model(tiny("bert"), "vip", temperature=1e-3)
    codebook_of(model)[1:] += 1e4
    codebook_of(model)[0] = 0.0
    return model


def constant(method: str = "vip") -> TaskModel:
    """A network that says the same of every text."""
    model = make_model(tiny("bert"), method)
    encoder_of(model).contextualizer.back.weight.data.zero_()
    return model


@pytest.mark.parametrize("case", ["vip", "vip mixed", "vip dedicated", "vip-c", "vip-idp"])
def test_a_healthy_run_raises_no_worry(case: str) -> None:
    assert health_warnings(result_of(make_model(tiny("bert"), case)).warnings) == []


def test_a_collapsed_codebook_is_warned_about_with_what_to_try() -> None:
    result = result_of(collapsed())
    assert result.state.health["perplexity"] == pytest.approx(1.0)
    assert result.state.health["codes_drawn"] == 1
    (warning,) = [text for text in health_warnings(result.warnings) if "collapsed" in text]
    assert "of 40 codes 1.0 are in use" in warning
    for setting in ("method.scale=0", "method.codes_from=context", "method.relative_temperature=true"):
        assert setting in warning


@pytest.mark.parametrize("method", ["vip", "vip-c"])
def test_a_prompt_that_does_not_read_the_input_is_warned_about(method: str) -> None:
    result = result_of(constant(method))
    assert result.state.health["prompt_variation"] < 1e-6
    (warning,) = health_warnings(result.warnings)
    assert "hardly depends on the input" in warning
    assert "training.network_learning_rate" in warning


@pytest.mark.parametrize("method", ["vip", "vip-c"])
def test_warnings_propose_settings_that_the_method_has(method: str, tmp_path: Path) -> None:
    models = [constant(method)] + [collapsed()] * (method == "vip")
    texts = " ".join(text for model in models for text in health_warnings(result_of(model).warnings))
    advice = parse_overrides(re.findall(r"method\.\w+=[\w.]+", texts))["method"]
    codebook = {
        "codes_from": "context",
        "relative_temperature": True,
        "temperature": 0.05,
        "reset_below": 0.1,
        "dedicated": True,
        "decay": 0.9,
    }
    assert advice == {"scale": 0, "dropout": 0, **(codebook if method == "vip" else {})}
    train(tmp_path / "cue", method, overrides={f"method.{key}": value for key, value in advice.items()})
    steps, _, metrics = reported(tmp_path / "cue")
    assert health_warnings(metrics["warnings"]) == []
    assert steps[-1].get("temperature") != 0.05  # in units of the codes' distances


def test_one_code_for_each_token_of_its_own_is_a_collapse_and_advice_is_news() -> None:
    settings = {
        "dedicated": True,
        "relative_temperature": True,
        "temperature": 1e-4,
        "decay": 0.5,
        "scale": 0.5,
        "reset_below": 0.01,
        "dropout": 0.0,
    }
    model = make_model(tiny("bert"), "vip", **settings)
    result = result_of(model, steps=1)
    health = {**result.state.health, "perplexity": 4.5}  # four tokens
    (warning,) = [text for text in encoder_of(model).health_warnings(health) if "collapsed" in text]
    assert "one each would be 4" in warning
    assert "method.scale=0" not in warning
    assert "method.dedicated" not in warning
    assert not [
        text for text in encoder_of(model).health_warnings({**health, "perplexity": 6.5}) if "collapsed" in text
    ]


def test_noise_resilience_that_never_had_rows_to_compare_is_warned_about() -> None:
    resilient = make_model(tiny("bert"), "vip", noise_resilience=1.0)
    (warning,) = health_warnings(result_of(resilient, steps=2, batch_size=1).warnings)
    assert "training.batch_size" in warning
    for micro_batch_size in (0, 1):
        resilient = make_model(tiny("bert"), "vip", noise_resilience=1.0)
        result = result_of(resilient, steps=2, batch_size=4, micro_batch_size=micro_batch_size)
        assert health_warnings(result.warnings) == []  # a last batch of one row is no matter


def test_a_run_that_ends_before_its_codebook_is_filled_says_so() -> None:
    model = make_model(tiny("bert"), "vip", codes_from="context", fill_after=4)
    (warning,) = health_warnings(result_of(model, steps=3).warnings)
    assert "codebook is still empty" in warning
    assert "method.fill_after" in warning
    model = make_model(tiny("bert"), "vip", codes_from="context", fill_after=3)
    assert health_warnings(result_of(model, steps=3).warnings) == []


def test_best_numbers_of_a_time_before_the_codebook_are_no_early_end(monkeypatch: pytest.MonkeyPatch) -> None:
    scores = iter([90.0, 80.0, 70.0])
    evaluate = loop.evaluate_requests
    monkeypatch.setattr(loop, "evaluate_requests", lambda *given: replace(evaluate(*given), main=next(scores)))
    model = make_model(tiny("bert"), "vip", codes_from="context", fill_after=2)
    result = result_of(model, steps=3, evaluate_every=1)
    assert (result.state.step, result.state.best_step) == (3, 1)
    (warning,) = health_warnings(result.warnings)
    assert "codebook is still empty" in warning and "method.fill_after" in warning
    assert "ended" not in warning


def test_warnings_reach_the_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    late = {"method.codes_from": "context", "method.fill_after": 50}
    train(tmp_path / "cue", "vip", overrides=late)
    steps, _, metrics = reported(tmp_path / "cue")
    assert any("codebook is still empty" in text for text in metrics["warnings"])
    assert "warning: the codebook is still empty" in capsys.readouterr().err
    assert HEALTH_KEYS & steps[-1].keys() == {"prompt_ratio"}  # nothing to say of codes yet
    loaded = softcue.load(tmp_path / "cue", tiny("bert"))  # and it is a cue that answers
    assert len(loaded.predict(TEXTS)) == len(TEXTS)


# --- with other cues in one batch ------------------------------------------------------------------------------------

MIXED = ["vip", "vip mixed", "vip sample", "vip-c", "vip-idp", "prompt-tuning", "m-idpg-phm"]


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
def test_a_mixed_batch_equals_each_cue_alone(family: str) -> None:
    backbone = tiny(family)
    models = [make_model(backbone, case, seed=seed, prompt_length=3 + seed % 3) for seed, case in enumerate(MIXED)]
    rows = [
        (model, row)
        for first in range(3)
        for number, model in enumerate(models)
        for row in model.rows(backbone, [EXAMPLES[(first + number) % 5]])
    ]
    for row, answer in zip(rows, predict_mixed(backbone, rows), strict=True):
        (alone,) = predict_mixed(backbone, [row])
        assert answer.label == alone.label
        assert answer.scores == REORDERED_PROBABILITIES.approx(alone.scores)


def test_several_cues_on_the_command_line_answer_as_each_alone(
    rows_file: Path, model_folders: dict[str, Path], tmp_path: Path
) -> None:
    folder = str(model_folders["bert"])
    names = ["vip", "vip-c", "vip-idp", "prompt-tuning", "m-idpg-phm"]
    for name in names:
        train(tmp_path / name, name, backbone=folder)
    predictions = run("predict", *(tmp_path / name for name in names), "--input", rows_file, "--json").json["rows"]
    for name in names:
        alone = run("predict", tmp_path / name, "--input", rows_file, "--json").json["rows"]
        for row, single in zip(predictions, alone, strict=True):
            assert row["cues"][name]["label"] == single["label"]
            assert row["cues"][name]["scores"] == REORDERED_PROBABILITIES.approx(single["scores"])
    assert len({json.dumps(row["cues"]["vip"]["scores"]) for row in predictions}) > 1
