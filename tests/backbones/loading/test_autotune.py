from __future__ import annotations

import json
import math
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny import ONE_OF_EACH_KIND, UNLIKE, tiny_model

from softcue.backbones import BackboneConfig, load_backbone
from softcue.backbones.loading import autotune
from softcue.backbones.loading.autotune import (
    agree,
    choose_attention,
    choose_dtype,
    keep_first_layers,
    make_trial_pass,
    measure_bfloat16_speed,
    recall_entry,
    relative_speed,
    time_in_turns,
)
from softcue.backbones.loading.fingerprint import digest_weights
from softcue.errors import BackboneError

CPU = torch.device("cpu")
# families with eager and sdpa attention whose layers can be left out
BOTH = [family for family in UNLIKE if family != "albert"]

Seconds = dict[str, float]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A new cache folder; every model is large enough to be measured."""
    monkeypatch.setenv("SOFTCUE_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(autotune, "MEASURED_WEIGHTS", 0)
    return tmp_path / "home"


@pytest.fixture
def timed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Seconds], list[set[str]]]:
    """Timing returns the given seconds and runs nothing; the list holds the names timed in each call."""

    def set_times(seconds: Seconds) -> list[set[str]]:
        timed_names: list[set[str]] = []

        def report_times(runs: Mapping[str, object], device: torch.device, seconds: float) -> dict[str, list[float]]:
            timed_names.append({name.removeprefix("torch.") for name in runs})
            return {name: [given[name.removeprefix("torch.")]] * 3 for name in runs}

        given = seconds
        monkeypatch.setattr(autotune, "time_in_turns", report_times)
        return timed_names

    return set_times


def attention_of(model: Any) -> str:
    return str(model.config._attn_implementation)


def frozen(family: str) -> Any:
    return tiny_model(family).requires_grad_(False)


def test_small_models_are_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, timed: Callable[[Seconds], list[set[str]]]
) -> None:
    monkeypatch.setenv("SOFTCUE_HOME", str(tmp_path / "home"))
    races = timed({"float32": 9.0, "bfloat16": 1.0, "sdpa": 9.0, "eager": 1.0})
    model = frozen("bert")
    assert choose_dtype(model, CPU) == torch.float32
    choose_attention(model, "auto")
    assert attention_of(model) == "sdpa"  # transformers' default
    assert races == []
    assert not (tmp_path / "home").exists()


@pytest.mark.parametrize(
    ("seconds", "chosen"), [(0.5, torch.bfloat16), (0.8, torch.bfloat16), (0.95, torch.float32), (40.0, torch.float32)]
)
@pytest.mark.usefixtures("home")
def test_bfloat16_is_taken_only_where_it_is_clearly_faster(
    seconds: float, chosen: torch.dtype, timed: Callable[[Seconds], list[set[str]]]
) -> None:
    races = timed({"float32": 1.0, "bfloat16": seconds})
    assert choose_dtype(frozen("bert"), CPU) == chosen
    assert races and all(names == {"float32", "bfloat16"} for names in races)


@pytest.mark.parametrize(
    ("seconds", "chosen"),
    [
        ([0.5, 0.5, 0.5, 0.5], torch.bfloat16),
        ([2.0, 1.0, 0.5, 0.5], torch.bfloat16),  # small products say little
        ([0.5, 0.5, 0.5, 2.0], torch.float32),  # float32 had a slow moment in the third race
        ([0.5, 0.5, 2.0], torch.float32),
        ([30.0], torch.float32),
    ],
)
@pytest.mark.usefixtures("home")
def test_bfloat16_must_be_faster_twice_with_a_whole_batch(
    seconds: list[float], chosen: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    given = list(seconds)

    def report_times(runs: object, device: torch.device, seconds: float) -> dict[str, list[float]]:
        return {"torch.float32": [1.0], "torch.bfloat16": [given.pop(0)]}

    monkeypatch.setattr(autotune, "time_in_turns", report_times)
    assert choose_dtype(frozen("bert"), CPU) == chosen
    assert given == []


@pytest.mark.parametrize(("eager", "chosen"), [(0.5, "eager"), (0.95, "sdpa"), (1.0, "sdpa"), (3.0, "sdpa")])
@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
@pytest.mark.usefixtures("home")
def test_the_attention_taken_is_the_faster_one_or_the_default(
    family: str, eager: float, chosen: str, timed: Callable[[Seconds], list[set[str]]]
) -> None:
    races = timed({"sdpa": 1.0, "eager": eager})
    model = frozen(family)
    choose_attention(model, "auto")
    assert attention_of(model) == chosen
    assert races == [{"eager", "sdpa"}]


def test_a_choice_is_kept_and_not_measured_again(home: Path, timed: Callable[[Seconds], list[set[str]]]) -> None:
    timed({"float32": 1.0, "bfloat16": 0.1, "sdpa": 1.0, "eager": 0.1})
    assert choose_dtype(frozen("bert"), CPU) == torch.bfloat16
    choose_attention(frozen("bert"), "auto")
    races = timed({"float32": 0.1, "bfloat16": 1.0, "sdpa": 0.1, "eager": 1.0})
    again = frozen("bert")
    assert choose_dtype(again, CPU) == torch.bfloat16
    choose_attention(again, "auto")
    assert attention_of(again) == "eager"
    assert races == []
    kept = json.loads((home / "choices.json").read_text())
    assert sorted(entry["choice"] for entry in kept.values()) == ["bfloat16", "eager"]


@pytest.mark.parametrize("change", ["threads", "torch", "transformers", "processor", "model", "dtype"])
def test_a_choice_holds_only_for_what_it_was_measured_on(
    home: Path, change: str, monkeypatch: pytest.MonkeyPatch, timed: Callable[[Seconds], list[set[str]]]
) -> None:
    timed({"sdpa": 1.0, "eager": 0.1})
    choose_attention(frozen("bert"), "auto")
    model = frozen("bert")
    match change:
        case "threads":
            monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
        case "torch":
            monkeypatch.setattr(torch, "__version__", "9.9.9")
        case "transformers":
            monkeypatch.setattr("transformers.__version__", "9.9.9")
        case "processor":
            monkeypatch.setattr(autotune, "_processor_name", lambda: "another one")
        case "model":
            model = frozen("roberta")
        case _:
            model = model.bfloat16()
    races = timed({"sdpa": 0.1, "eager": 1.0})
    choose_attention(model, "auto")
    assert attention_of(model) == "sdpa"
    assert len(races) == 1
    assert len(json.loads((home / "choices.json").read_text())) == 2


@pytest.mark.parametrize("text", ["", "{", "[]", "\x00", "null", "[" * 20000, '"x"'])
def test_a_damaged_file_of_choices_counts_as_empty(
    home: Path, text: str, timed: Callable[[Seconds], list[set[str]]]
) -> None:
    timed({"sdpa": 1.0, "eager": 0.1})
    home.mkdir()
    (home / "choices.json").write_text(text)
    model = frozen("bert")
    choose_attention(model, "auto")
    assert attention_of(model) == "eager"
    assert len(json.loads((home / "choices.json").read_text())) == 1


@pytest.mark.parametrize("entry", [3, None, [], {}, {"choice": "flash_attention_2"}, {"choice": ["eager"]}])
def test_a_kept_choice_that_cannot_be_used_is_measured_again(
    home: Path, entry: object, timed: Callable[[Seconds], list[set[str]]]
) -> None:
    timed({"sdpa": 1.0, "eager": 0.1})
    choose_attention(frozen("bert"), "auto")
    file = home / "choices.json"
    file.write_text(json.dumps(dict.fromkeys(json.loads(file.read_text()), entry)))
    model = frozen("bert")
    choose_attention(model, "auto")
    assert attention_of(model) == "eager"


def test_a_cache_folder_that_cannot_be_written_is_no_error(
    home: Path, monkeypatch: pytest.MonkeyPatch, timed: Callable[[Seconds], list[set[str]]]
) -> None:
    home.write_text("a file")
    monkeypatch.setenv("SOFTCUE_HOME", str(home / "below"))
    races = timed({"sdpa": 1.0, "eager": 0.1})
    for _ in range(2):
        model = frozen("bert")
        choose_attention(model, "auto")
        assert attention_of(model) == "eager"
    assert len(races) == 2


@pytest.mark.usefixtures("home")
def test_of_two_at_the_same_time_the_second_uses_the_choice_of_the_first() -> None:
    measured: list[str] = []
    chosen: list[str] = []

    def choose(name: str) -> None:
        def measure() -> tuple[str, dict[str, float]]:
            measured.append(name)
            time.sleep(0.2)
            return name, {}

        chosen.append(autotune._recall_or_measure("key", ("one", "two"), measure))

    threads = [threading.Thread(target=choose, args=(name,)) for name in ("one", "two")]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(measured) == 1
    assert chosen == measured * 2


def test_a_long_measurement_holds_up_no_other_choice(home: Path) -> None:
    has_begun, may_end = threading.Event(), threading.Event()

    def measure_slowly() -> dict[str, Any]:
        has_begun.set()
        assert may_end.wait(30)
        return {"tokens": 1}

    slow = threading.Thread(target=recall_entry, args=("slow", "tokens", lambda tokens: True, measure_slowly))
    slow.start()
    assert has_begun.wait(30)
    quick = recall_entry(
        "quick", "tokens", lambda tokens: True, lambda: {"tokens": 2}
    )  # returns while the other measures
    may_end.set()
    slow.join()
    assert quick == 2
    kept = json.loads((home / "choices.json").read_text("utf-8"))
    assert kept == {"slow": {"tokens": 1}, "quick": {"tokens": 2}}


@pytest.mark.usefixtures("home")
def test_explicit_settings_are_used_without_measuring(
    model_folders: dict[str, Path], timed: Callable[[Seconds], list[set[str]]]
) -> None:
    races = timed({"float32": 1.0, "bfloat16": 0.1, "sdpa": 0.1, "eager": 1.0})
    name = str(model_folders["bert"])
    configured = load_backbone(BackboneConfig(name=name, device="cpu", dtype="float32", attention="eager"))
    assert (configured.dtype, configured.attention) == (torch.float32, "eager")
    assert races == []
    automatic = load_backbone(BackboneConfig(name=name, device="cpu"))
    assert (automatic.dtype, automatic.attention) == (torch.bfloat16, "sdpa")
    assert {frozenset(names) for names in races} == {frozenset(["float32", "bfloat16"]), frozenset(["eager", "sdpa"])}


@pytest.mark.parametrize(
    ("family", "setting", "able"),
    [
        ("deberta-v2", "sdpa", "auto, eager with deberta-v2"),
        ("deberta-v2", "flash_attention_2", "auto, eager with deberta-v2"),
        ("bert", "flash_attention_2", "auto, eager, sdpa with bert"),
        ("t5", "flash_attention_2", "auto, eager, sdpa with t5"),
    ],
)
def test_unsupported_attention_is_an_error(
    family: str, setting: str, able: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BackboneError, match=rf"backbone\.attention: got '{setting}'; expected one of {able} here"):
        choose_attention(frozen(family), setting)
    assert capfd.readouterr() == ("", "")


@pytest.mark.usefixtures("home")
def test_a_model_that_needs_eager_attention_is_not_measured(
    timed: Callable[[Seconds], list[set[str]]], capfd: pytest.CaptureFixture[str]
) -> None:
    races = timed({"eager": 1.0})
    model = frozen("deberta-v2")
    choose_attention(model, "auto")
    assert attention_of(model) == "eager"
    assert races == []
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize("fault", ["other numbers", "an error"])
@pytest.mark.usefixtures("home")
def test_attention_with_other_numbers_or_errors_is_not_chosen(
    fault: str, monkeypatch: pytest.MonkeyPatch, timed: Callable[[Seconds], list[set[str]]]
) -> None:
    from transformers.models.bert import modeling_bert

    right = modeling_bert.eager_attention_forward

    def wrong(*args: Any, **kwargs: Any) -> Any:
        if fault == "an error":
            raise RuntimeError(fault)
        states, weights = right(*args, **kwargs)
        return states * 1.01, weights

    monkeypatch.setattr(modeling_bert, "eager_attention_forward", wrong)
    races = timed({"sdpa": 1.0, "eager": 0.1})
    model = frozen("bert")
    choose_attention(model, "auto")
    assert attention_of(model) == "sdpa"
    assert races == [{"sdpa"}]


@pytest.mark.parametrize("family", BOTH)
def test_eager_and_sdpa_give_the_same_numbers(family: str) -> None:
    results = []
    for name in ("eager", "sdpa"):
        model = frozen(family)
        choose_attention(model, name)
        assert attention_of(model) == name
        results.append(make_trial_pass(model)())
    for eager, sdpa in zip(*results, strict=True):
        assert float(eager.abs().max()) > 0
        torch.testing.assert_close(eager, sdpa, rtol=1e-4, atol=1e-4 * float(eager.abs().max()))


@pytest.mark.parametrize("family", BOTH)
@pytest.mark.usefixtures("home")
def test_real_measurements_leave_the_model_and_the_random_state_unchanged(family: str, home: Path) -> None:
    model, untouched = frozen(family), frozen(family)
    draws = torch.get_rng_state()
    assert choose_dtype(model, CPU) in (torch.float32, torch.bfloat16)
    choose_attention(model, "auto")
    assert torch.equal(torch.get_rng_state(), draws)
    assert attention_of(model) in ("eager", "sdpa")
    assert [name for name, _ in model.named_modules()] == [name for name, _ in untouched.named_modules()]
    for name, value in untouched.state_dict().items():
        assert torch.equal(model.state_dict()[name], value), name
    assert digest_weights(model) == digest_weights(untouched)
    kept = json.loads((home / "choices.json").read_text())
    assert [sorted(entry["speeds"]) for entry in kept.values()] == [["bfloat16"], ["eager", "sdpa"]]


@pytest.mark.parametrize("family", [*BOTH, "deberta-v2"])
def test_padding_does_not_count_in_a_trial_pass(family: str) -> None:
    model = frozen(family)
    outputs, gradients = make_trial_pass(model)()
    assert bool(outputs.isfinite().all()) and bool(gradients.isfinite().all())
    assert len(gradients) < 8 * 64  # of real positions only
    with keep_first_layers(model, 1):
        fewer, _ = make_trial_pass(model)()
    assert fewer.shape == outputs.shape
    assert not torch.allclose(fewer, outputs, atol=1e-3)
    assert agree(make_trial_pass(model)(), (outputs, gradients), torch.float32)


def test_the_speed_of_bfloat16_is_measured_and_finite() -> None:
    assert 0 < measure_bfloat16_speed([(64, 64), (64, 128)], CPU) < math.inf


def test_timing_in_turns_leaves_out_the_first_run_of_each() -> None:
    calls: list[str] = []

    def slow_at_first() -> None:
        if "slow" not in calls:
            time.sleep(0.05)
        calls.append("slow")

    times = time_in_turns({"slow": slow_at_first, "quick": lambda: calls.append("quick")}, CPU, seconds=5, max_turns=4)
    assert calls == ["slow", "quick", *["slow", "quick", "quick", "slow"] * 2]
    assert {name: len(turns) for name, turns in times.items()} == {"slow": 4, "quick": 4}
    assert max(times["slow"]) < 0.05


def test_timing_that_would_take_too_long_ends_after_the_first_runs() -> None:
    times = time_in_turns({"a": lambda: time.sleep(0.05), "b": lambda: None}, CPU, seconds=0.01)
    assert [len(turns) for turns in times.values()] == [1, 1]
    assert relative_speed(times, "b", than="a") > 1
