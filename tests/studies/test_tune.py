"""softcue.tune: what is searched, the preset first, trials without a score, searches that were stopped, the cue."""

from __future__ import annotations

import json
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import check_error, run
from study_grids import write_backbone, write_task
from tiny import tiny

import softcue
from softcue.api import request_run
from softcue.configuration import resolve
from softcue.errors import ConfigurationError, MissingExtraError, RunError, SoftcueError, TrainingError
from softcue.run import Run
from softcue.studies.search_space import Space, default_space, make_search, parse_values, read_space
from softcue.studies.study import Range
from softcue.studies.tuning import FILE
from softcue.training.checkpoints import Checkpoints

QUICK = {"training.steps": 2, "training.batch_size": 4}
GRID: dict[str, Any] = {"method.prompt_length": [2, 3], "training.learning_rate": [0.01, 0.05]}
NUM_TRIALS = 5  # the preset, and the grid of four


def preset_rate() -> float:
    """The learning rate of prompt tuning's preset on the tiny backbone."""
    preset = resolve({"method": {"name": "prompt-tuning"}}, "encoder")
    return float(f"{preset.training.relative_rate * tiny('bert').word_size:.4g}")


class Crash(Exception):
    pass


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tune")
    write_task(folder, "desk")
    write_backbone(folder)
    return folder


@pytest.fixture(scope="module")
def arguments(place: Path) -> dict[str, Any]:
    files = {split: str(place / f"desk-{split}.csv") for split in ("train", "validation", "test")}
    backbone = {"backbone": str(place / "bert"), "method": "prompt-tuning"}
    return {**files, **backbone, "text": "text", "label": "team", "overrides": QUICK, "progress": False}


@pytest.fixture(scope="module")
def tuning(place: Path, arguments: dict[str, Any]) -> Any:
    return softcue.tune(place / "whole", space=GRID, **arguments)


def read_file(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / FILE).read_text("utf-8"))
    return content


def timeless(folder: Path) -> list[dict[str, Any]]:
    return [{**trial, "seconds": 0} for trial in read_file(folder)["trials"]]


# --- what is searched ---


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("5,10,20", [5, 10, 20]),
        ("0.1, 1e-3", [0.1, 0.001]),
        ("add,kv", ["add", "kv"]),
        ("true,false", [True, False]),
        ("[0, 1],[2]", [[0, 1], [2]]),
        ("0.001..0.1", Range(low=0.001, high=0.1, log=True)),
        ("1e-4..5e-4", Range(low=1e-4, high=5e-4)),
        ("5..20", Range(low=5, high=20, whole=True)),
        ("1..50", Range(low=1, high=50, whole=True, log=True)),
        ("0..50", Range(low=0, high=50, whole=True)),
        ("1.0..4.0", Range(low=1, high=4)),
    ],
)
def test_text_names_values_or_a_range(text: str, values: Any) -> None:
    assert parse_values("training.learning_rate", text) == values


@pytest.mark.parametrize("text", ["", "0.1..0.01", "0.1..x", "[", "1..1"])
def test_other_text_is_an_error(text: str) -> None:
    with pytest.raises(ConfigurationError, match=r"^training\.learning_rate: got .*; expected .*low\.\.high"):
        parse_values("training.learning_rate", text)


def space_of(method: str, changes: dict[str, Any] | None = None, family: str = "bert") -> Space:
    rows = [{"text": f"{team} {number}", "label": team} for team in ("a", "b") for number in range(4)]
    values: dict[str, Any] = {"train": rows, "validation": rows, "backbone": tiny(family), "method": method}
    requested = request_run(**values, overrides=changes or {})
    return default_space(requested.make_run("nowhere", {}), requested.given)


def test_a_prompt_has_rates_lengths_and_a_late_layer_around_its_preset() -> None:
    training = resolve({"method": {"name": "prompt-tuning"}}, "encoder").training
    words, head = training.relative_rate * tiny("bert").word_size, training.head_learning_rate
    assert head is not None
    space = space_of("prompt-tuning")
    for key, rate in (("training.learning_rate", words), ("training.head_learning_rate", head)):
        rates = space.pop(key)
        assert isinstance(rates, Range) and rates.log
        assert (rates.low, rates.high) == (pytest.approx(rate / 10, rel=1e-3), pytest.approx(rate * 10, rel=1e-3))
    assert space == {"method.prompt_length": [5, 10, 20, 40], "method.insert_layer": [0, 1]}
    assert "training.head_learning_rate" not in space_of("prompt-tuning", family="t5")  # it writes words: no head


def test_prompts_of_layers_have_halves_of_them_unless_they_are_keys_and_values() -> None:
    halves = [[], [0], [1, 2]]
    assert space_of("p-tuning-v2", {"method.rule": "add"})["method.layers"] == halves
    phm = {"method.phm_n": 4, "method.bottleneck": 8}
    assert space_of("m-idpg-phm", {**phm, "method.rule": "parallel"})["method.layers"] == halves
    with_keys = space_of("p-tuning-v2", {"method.rule": "kv"})
    assert "method.layers" not in with_keys and with_keys["method.insert_layer"] == [0, 1]
    assert "method.layers" not in space_of("s-idpg-phm", phm)


def test_what_the_user_sets_and_what_the_method_lacks_is_not_searched() -> None:
    assert "method.prompt_length" not in space_of("prompt-tuning", {"method.prompt_length": 3})
    rates = ["training.network_learning_rate", "training.head_learning_rate"]
    assert sorted(space_of("adapter", {"method.bottleneck": 8})) == sorted(rates)
    own_rate = space_of("prompt-tuning", {"training.head_learning_rate": 0.2})
    assert "training.head_learning_rate" not in own_rate and "training.network_learning_rate" not in own_rate
    assert list(space_of("fine-tuning")) == ["training.learning_rate", "training.network_learning_rate"]
    assert "method.insert_layer" not in space_of("prompt-tuning", family="albert")  # its layers share weights
    assert space_of("linear-probe") == {}


def test_lists_are_a_grid_if_there_are_trials_for_all_of_it() -> None:
    start = {"method.prompt_length": 20, "training.learning_rate": 0.01}
    assert make_search(GRID, 5, 1, start).trials == 0
    assert make_search(GRID, 4, 1, start).trials == 3  # the preset is not in the grid
    assert make_search(GRID, 4, 1, {**start, "method.prompt_length": 2}).trials == 0
    assert make_search(GRID, 0, 1, start).trials == 0
    with pytest.raises(ConfigurationError, match=r"^search: .*a number of trials, because .* is a range"):
        make_search({"training.learning_rate": Range(low=1, high=2)}, 0, 1, {"training.learning_rate": 1})


def test_values_of_python_become_plain() -> None:
    assert read_space({"method.layers": [(0, 1), ()], "training.learning_rate": {"low": 0.1, "high": 0.2}}) == {
        "method.layers": [[0, 1], []],
        "training.learning_rate": Range(low=0.1, high=0.2),
    }


# --- trials and the cue ---


def test_the_first_trial_is_the_preset_and_the_best_is_an_ordinary_cue(
    tuning: Any, place: Path, arguments: dict[str, Any]
) -> None:
    assert len(tuning) == len(tuning.trials) == NUM_TRIALS
    assert tuning.trials[0].settings == {"method.prompt_length": 20, "training.learning_rate": preset_rate()}
    plain = softcue.train(place / "plain", **arguments)
    assert tuning.trials[0].score == pytest.approx(plain.scores["validation"]["accuracy"])
    assert tuning["score"] == sorted(tuning["score"], reverse=True)
    assert tuning.best == tuning.best_trial.settings and tuning.best_trial.score == tuning["score"][0]
    cue = softcue.load(place / "whole")
    assert cue.scores["validation"]["accuracy"] == pytest.approx(tuning.best_trial.score)
    assert cue.scores["test"] == tuning.cue.scores["test"]
    config = yaml.safe_load((place / "whole" / "config.yaml").read_text("utf-8"))
    for key, value in tuning.best.items():
        section, name = key.split(".")
        assert config[section][name] == value
    assert config["task"]["use_test_rows"] is True
    assert {path.name for path in (place / "whole").iterdir()} == {
        path.name for path in (place / "plain").iterdir()
    } | {FILE}


def test_a_result_is_a_table_with_sentences(tuning: Any) -> None:
    frame = tuning.to_pandas()
    assert list(frame) == ["trial", "score", "spread", *GRID, "seconds", "reason"]
    assert frame["score"].tolist() == tuning["score"]
    for part in (tuning.title, "1 (preset)", "no trial has read", "too high", "prompt_length"):
        assert part in repr(tuning) and part in tuning._repr_html_()
    assert "why no score" not in repr(tuning)
    assert tuning.title.startswith("5 trials of prompt-tuning on ")


def test_baselines_on_the_validation_rows_stand_below_the_trials(tuning: Any) -> None:
    recorded = tuning.cue.cue_file.baselines["validation"]
    expected = {name: pytest.approx(scores["accuracy"]) for name, scores in recorded.items()}
    assert dict(zip(tuning.baselines["baseline"], tuning.baselines["score"], strict=True)) == expected
    assert {"majority_class", "zero_shot"} == expected.keys() and len(tuning) == NUM_TRIALS
    for shown in (repr(tuning), tuning._repr_html_()):
        assert shown.index("1 (preset)") < shown.index("majority class") < shown.index("zero-shot")
    assert any("(majority class " in sentence and "test rows" in sentence for sentence in tuning.sentences)


def test_warnings_of_trials_stand_below_the_table_once(
    arguments: dict[str, Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings: dict[str, Any] = {**arguments, "progress": True, "max_length": 24}
    tuning = softcue.tune(tmp_path, space={"method.prompt_length": [20, 21]}, **settings)
    shown = [note for note in tuning.notes if "validation texts were cut" in note]
    assert len(shown) == 1 and shown[0].startswith("all runs: ")
    assert shown[0] in repr(tuning) and shown[0] in tuning.as_dict()["notes"]
    lines = capsys.readouterr().err.splitlines()
    first = next(number for number, line in enumerate(lines) if line.startswith("trial 1 "))
    assert "bert: encoder, cpu, float32, sdpa attention" in lines[0]
    described = [number for number, line in enumerate(lines) if "attention" in line or line.startswith("rows: ")]
    assert len(described) == 2 and max(described) < first
    content = read_file(tmp_path)
    for trial in content["trials"]:  # as an earlier version wrote them
        del trial["warnings"]
    (tmp_path / FILE).write_text(json.dumps(content))
    again = softcue.tune(tmp_path, space={"method.prompt_length": [20, 21]}, **settings)
    assert [trial.warnings for trial in again.trials] == [()] * len(tuning.trials)


def test_the_command_trains_the_same_cue(tuning: Any, place: Path) -> None:
    words = shlex.split(tuning.command)
    assert words[:2] == ["softcue", "train"] and words[-2:] == ["--output-dir", "NEW"]
    assert run(*words[1:-1], place / "repeated").code == 0
    assert softcue.load(place / "repeated").scores == tuning.cue.scores
    assert (place / "repeated" / "cue.safetensors").read_bytes() == (place / "whole" / "cue.safetensors").read_bytes()


def test_trials_read_no_test_rows(arguments: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: dict[str, int] = {}
    execute = Run.execute

    def watched(self: Run, **options: Any) -> Any:
        sizes[str(self.folder.relative_to(tmp_path))] = len(self.splits[0].test)
        return execute(self, **options)

    monkeypatch.setattr(Run, "execute", watched)
    space = {"method.prompt_length": [2]}
    tuning = softcue.tune(tmp_path / "cue", space=space, seeds=2, keep_trials=True, seed=3, **arguments)
    trials = [f"cue/trials/{number}/seed-{seed}" for number in ("01", "02") for seed in (0, 1)]
    assert sizes == dict.fromkeys(trials, 0) | {"cue": 12}
    for trial, number in zip(tuning.trials, ("01", "02"), strict=True):
        cues = [softcue.load(tmp_path / "cue" / "trials" / number / f"seed-{seed}") for seed in (0, 1)]
        assert [cue.cue_file.training["seed"] for cue in cues] == [3, 4]
        assert trial.scores == tuple(cue.scores["validation"]["accuracy"] for cue in cues)
    assert tuning.cue.cue_file.training["seed"] == 3
    assert None not in tuning["spread"] and "spread" in repr(tuning)


def test_trials_that_do_not_fit_or_break_down_have_the_lowest_score(arguments: dict[str, Any], tmp_path: Path) -> None:
    space = {"method.prompt_length": [4, 400], "training.learning_rate": [0.01, 1e30], "method.insert_layer": [0, 7]}
    tuning = softcue.tune(tmp_path / "cue", space=space, **arguments)
    reasons = {tuple(trial.settings.values()): trial.reason for trial in tuning.trials}
    assert reasons[4, 0.01, 0] == "" and reasons[20, preset_rate(), 0] == ""
    assert reasons[400, 0.01, 0].startswith("method.prompt_length: got 400")
    assert reasons[4, 0.01, 7].startswith("method.insert_layer: got 7")
    assert reasons[4, 1e30, 0].startswith("loss at step")
    assert tuning["score"][:2] == sorted(tuning["score"][:2], reverse=True) and set(tuning["score"][2:]) == {None}
    assert "why no score" in repr(tuning)
    assert all(trial["reason"] for trial in read_file(tmp_path / "cue")["trials"] if not trial["scores"])


def test_nothing_that_can_be_trained_is_an_error(arguments: dict[str, Any], tmp_path: Path) -> None:
    overrides = {**QUICK, "training.learning_rate": 1e30}
    with pytest.raises(TrainingError, match=r"^trials: got '2 without a score'.*the first: loss at step"):
        softcue.tune(tmp_path, space={"method.prompt_length": [4]}, **{**arguments, "overrides": overrides})


def test_no_trial_begins_when_the_time_is_over(arguments: dict[str, Any], tmp_path: Path) -> None:
    tuning = softcue.tune(tmp_path, space=GRID, seconds=1e-6, **arguments)
    assert len(tuning.trials) == 1 and tuning.cue.scores["test"]


# --- searches that were stopped ---


@pytest.mark.parametrize("dies_at", [1, 4, 9, 11])
def test_a_search_that_dies_goes_on_to_the_same_end(
    tuning: Any,
    place: Path,
    arguments: dict[str, Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    dies_at: int,
) -> None:
    """Every run has two checkpoints: it dies in the first, second and last trial, and in the last run."""
    arguments = {**arguments, "overrides": {**QUICK, "training.checkpoint_every": 1}}
    count, save, executed = 0, Checkpoints.save, 0
    execute = Run.execute

    def dying(self: Any, checkpoint: Any) -> None:
        nonlocal count
        save(self, checkpoint)
        count += 1
        if count == dies_at:
            raise Crash

    def counted(self: Run, **options: Any) -> Any:
        nonlocal executed
        executed += 1
        return execute(self, **options)

    monkeypatch.setattr(Checkpoints, "save", dying)
    with pytest.raises(Crash):
        softcue.tune(tmp_path / "cue", space=GRID, **arguments)
    assert len(read_file(tmp_path / "cue")["trials"]) == (dies_at - 1) // 2
    monkeypatch.setattr(Run, "execute", counted)
    again = softcue.tune(tmp_path / "cue", space=GRID, **arguments)
    assert executed == NUM_TRIALS + 1 - (dies_at - 1) // 2
    assert timeless(tmp_path / "cue") == timeless(place / "whole")
    assert (tmp_path / "cue" / "cue.safetensors").read_bytes() == (place / "whole" / "cue.safetensors").read_bytes()
    executed = 0
    assert softcue.tune(tmp_path / "cue", space=GRID, **arguments).to_dict() == again.to_dict()
    assert executed == 1  # the cue is loaded


def test_a_folder_takes_no_other_search(tuning: Any, place: Path, arguments: dict[str, Any], tmp_path: Path) -> None:
    before = (place / "whole" / FILE).read_bytes()
    changes: list[tuple[dict[str, Any], str]] = [
        ({"space": {"method.prompt_length": [2]}}, "searched settings"),
        ({"trials": 9}, "numbers of trials"),
        ({"seeds": 2}, "numbers of seeds"),
        ({"batch_size": 3, "overrides": {"training.steps": 2}}, "backbone, rows or settings"),
        ({"validation": arguments["test"]}, "backbone, rows or settings"),
    ]
    for change, name in changes:
        with pytest.raises(RunError, match=f"^output_dir: .*{name} differ .*`overwrite=True`"):
            softcue.tune(place / "whole", **{"space": GRID, **arguments, **change})
    assert (place / "whole" / FILE).read_bytes() == before
    softcue.train(tmp_path / "cue", **arguments)
    with pytest.raises(RunError, match=r"^output_dir: .*without the cue or checkpoints of another run"):
        softcue.tune(tmp_path / "cue", space=GRID, **arguments)
    anew = softcue.tune(tmp_path / "cue", space={"method.prompt_length": [2]}, overwrite=True, **arguments)
    assert len(anew.trials) == 2 and anew.cue.path == tmp_path / "cue"
    (tmp_path / "cue" / FILE).write_text("{")
    with pytest.raises(RunError, match="it is damaged"):
        softcue.tune(tmp_path / "cue", space={"method.prompt_length": [2]}, **arguments)


# --- optuna ---


def test_without_optuna_a_range_says_what_to_install(
    arguments: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    with pytest.raises(MissingExtraError, match=r"optuna.*pip install"):
        softcue.tune(tmp_path / "cue", **arguments)
    assert not (tmp_path / "cue").exists()


def test_optuna_searches_around_the_preset_and_proposes_the_same_again(
    arguments: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("optuna")
    whole = softcue.tune(tmp_path / "whole", trials=7, **arguments)
    assert 2 <= len(whole.trials) <= 7
    rate = preset_rate()
    assert whole.trials[0].settings["training.learning_rate"] == rate
    ends = 0.1 * rate - 1e-9, 10 * rate + 1e-9
    assert all(ends[0] <= trial.settings["training.learning_rate"] <= ends[1] for trial in whole.trials)
    execute, count = Run.execute, 0

    def dying(self: Run, **options: Any) -> Any:
        nonlocal count
        count += 1
        if count == 4:
            raise Crash
        return execute(self, **options)

    monkeypatch.setattr(Run, "execute", dying)
    with pytest.raises(Crash):
        softcue.tune(tmp_path / "broken", trials=7, **arguments)
    softcue.tune(tmp_path / "broken", trials=7, **arguments)
    assert timeless(tmp_path / "broken") == timeless(tmp_path / "whole")


def test_optuna_goes_on_after_trials_without_a_score_and_with_a_preset_outside_of_the_space(
    arguments: dict[str, Any], tmp_path: Path
) -> None:
    pytest.importorskip("optuna")
    space = {"method.prompt_length": "60..400", "method.insert_at": ["start", "end"]}
    tuning = softcue.tune(tmp_path / "cue", trials=10, space=space, **arguments)
    assert tuning.trials[0].settings["method.prompt_length"] == 20
    assert any(trial.reason for trial in tuning.trials) and tuning.best_trial.score is not None


# --- errors and the command ---


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"trials": 1}, "trials: got 1; expected at least 2"),
        ({"seeds": 0}, "seeds: got 0"),
        ({"seconds": 0}, "seconds: got 0"),
        ({"resume": True}, "resume: .*always goes on"),
        ({"trails": 3}, "trails: .*did you mean 'trials'"),
        ({"method": "linear-probe"}, "space: got 'none, with linear-probe'"),
        ({"space": {"training.seed": [1, 2]}}, "training.seed: got 'a search'"),
        ({"space": {"backbone.dtype": "float32,bfloat16"}}, "backbone.dtype: got 'a search'"),
        ({"space": {"training.steps": [1, 2]}}, "training.steps: got 'a search'; .*it is set to 2"),
        ({"space": {"training.lr": [1, 2]}}, "training.lr: got 1; expected a known key"),
        ({"space": {"lr": [1, 2]}}, "override: got 'lr'"),
        ({"space": {"method.prompt_length": [5, 5]}}, "search: got 'method.prompt_length'; .*not 5 twice"),
        ({"space": {"method.prompt_length": []}}, "search: got 'method.prompt_length'; expected values"),
        ({"space": {"method.prompt_length": [0]}}, "method.prompt_length: got 0"),
    ],
)
def test_wrong_arguments_are_errors_before_anything_is_written(
    arguments: dict[str, Any], changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    with pytest.raises(SoftcueError, match=f"^{message}"):
        softcue.tune(tmp_path / "cue", **{**arguments, **changes})
    assert not (tmp_path / "cue").exists()


def words_of(arguments: dict[str, Any], output_dir: Path) -> list[str]:
    options = [word for name in ("train", "validation", "test") for word in (f"--{name}", arguments[name])]
    options += ["--backbone", arguments["backbone"], "--method", "prompt-tuning", "--text", "text", "--label", "team"]
    searches = ["--search", "method.prompt_length=2,3", "--search", "training.learning_rate=0.01,0.05"]
    settings = [f"{key}={value}" for key, value in QUICK.items()]
    return ["tune", *options, *searches, "--output-dir", str(output_dir), *settings]


def test_the_command_prints_the_table_and_how_to_train_the_best(
    tuning: Any, place: Path, arguments: dict[str, Any], tmp_path: Path
) -> None:
    words = words_of(arguments, tmp_path / "cue")
    shown = run(*words)
    assert shown.code == 0, shown.err
    assert shown.out.splitlines()[-1] == tuning.command
    assert f"trial 1 (preset), prompt_length 20, learning_rate {preset_rate():g}, " in shown.err
    assert timeless(tmp_path / "cue") == timeless(place / "whole")
    printed = run(*words, "--json").json
    assert printed["best"] == tuning.best and len(printed["trials"]) == NUM_TRIALS
    assert printed["command"] == tuning.command and printed["scores"] == tuning.cue.scores


def test_common_settings_are_options_that_are_not_searched(arguments: dict[str, Any], tmp_path: Path) -> None:
    words = [word for word in words_of(arguments, tmp_path / "cue") if "=" not in word and word != "--search"]
    options = ["--epochs", "1", "--batch-size", "4", "--learning-rate", "0.02", "--shots-per-class", "2"]
    printed = run(*words, *options, "--search", "method.prompt_length=2,3", "--json").json
    assert all(list(trial["settings"]) == ["method.prompt_length"] for trial in printed["trials"])
    assert printed["baselines"][0]["trial"] == "majority class"
    config = yaml.safe_load((tmp_path / "cue" / "config.yaml").read_text("utf-8"))
    assert (config["training"]["epochs"], config["training"]["learning_rate"]) == (1, 0.02)
    assert config["task"]["shots_per_class"] == 2


def test_errors_of_the_command_name_its_options(arguments: dict[str, Any], tmp_path: Path) -> None:
    check_error(run("tune", "--task", "tickets"), "--output-dir: got None")
    check_error(run("tune", "--output-dir", tmp_path, "--search", "training.epochs"), "--search: got", "each key once")
    check_error(run(*words_of(arguments, tmp_path / "cue"), "--trials", "1"), "--trials: got 1")


@pytest.mark.processes
@pytest.mark.timeout(600)
def test_a_killed_command_ends_with_the_same_cue(
    tuning: Any, place: Path, arguments: dict[str, Any], tmp_path: Path
) -> None:
    words = [*words_of(arguments, tmp_path / "cue"), "training.checkpoint_every=1"]
    command = [sys.executable, "-m", "softcue", *words]
    for num_done in (1, 3):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        wait_for_trials(tmp_path / "cue", num_done, process)
        process.send_signal(signal.SIGKILL)
        process.wait()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert timeless(tmp_path / "cue") == timeless(place / "whole")
    assert (tmp_path / "cue" / "cue.safetensors").read_bytes() == (place / "whole" / "cue.safetensors").read_bytes()
    assert not (tmp_path / "cue" / "trials").exists()


def wait_for_trials(folder: Path, num_done: int, process: subprocess.Popen[bytes]) -> None:
    end = time.monotonic() + 120
    while time.monotonic() < end and process.poll() is None:
        if (folder / FILE).exists() and len(read_file(folder)["trials"]) >= num_done:
            return
        time.sleep(0.01)


def test_auto_has_no_settings_to_search(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="one method"):
        softcue.tune(tmp_path / "tuned", method="auto", task="tickets", trials=2)
