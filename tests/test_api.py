"""softcue.train: its arguments as settings, its inputs, its results, and the same options on the command line."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from command import check_error, run
from tiny import tiny

import softcue
from softcue import Cue, api
from softcue.cli import evaluate, predict, train
from softcue.cli.app import with_options
from softcue.errors import ConfigurationError, DataError, RunError

ROWS = [
    {"message": f"{text} {number}", "team": team, "text": f"{text} {number}", "label": team}
    for number in range(8)
    for text, team in (("please refund invoice", "billing"), ("badge reader is dead", "hardware"))
]
QUICK = {"training.steps": 1, "method.prompt_length": 2}


def quick(folder: Path, **arguments: Any) -> Any:
    given = {"backbone": tiny("bert"), "overrides": QUICK, "progress": False, **arguments}
    return softcue.train(folder, **given)


# --- arguments to settings ---


class Recorded(Exception):
    """Raised instead of running, with the settings of the run."""


@pytest.fixture
def settings_of(monkeypatch: pytest.MonkeyPatch) -> Any:
    def record(folder: Path, settings: dict[str, Any], **options: Any) -> Any:
        raise Recorded(settings, options)

    monkeypatch.setattr(api, "make_training_run", record)

    def settings_of(**arguments: Any) -> tuple[dict[str, Any], dict[str, Any]]:
        with pytest.raises(Recorded) as caught:
            softcue.train("out", **arguments)
        return caught.value.args  # type: ignore[return-value]

    return settings_of


def test_arguments_become_settings(settings_of: Any) -> None:
    settings, options = settings_of(
        backbone="minilm",
        method="vip",
        train=Path("rows.csv"),
        text=["first", "second"],
        label="team",
        few_shot=32,
        seed=3,
        init_from=Path("cues/nli"),
        skip_bad_rows=True,
        epochs=4,
        learning_rate=0.1,
        network_learning_rate=0.2,
        batch_size=8,
        prompt_length=5,
        max_length=64,
    )
    assert settings["backbone"] == {"name": "minilm", "max_length": 64}
    assert settings["method"] == {"name": "vip", "prompt_length": 5}
    assert settings["task"] == {
        "text": ["first", "second"],
        "label": "team",
        "few_shot": 32,
        "skip_bad_rows": True,
        "train": "rows.csv",
    }
    assert settings["training"] == {
        "seed": 3,
        "epochs": 4,
        "learning_rate": 0.1,
        "network_learning_rate": 0.2,
        "batch_size": 8,
        "init_from": "cues/nli",
    }
    assert options == {"backbone": None, "tables": {}, "is_joint": False, "recipe": "default"}


def test_arguments_that_are_not_given_are_no_settings(settings_of: Any) -> None:
    settings, _ = settings_of(task="tickets")
    assert {section: values for section, values in settings.items() if values} == {"task": {"name": "tickets"}}


def test_overrides_and_arguments_win_over_the_file(settings_of: Any, tmp_path: Path) -> None:
    file = tmp_path / "run.yaml"
    file.write_text(yaml.safe_dump({"training": {"seed": 1, "epochs": 1, "batch_size": 1}}))
    for config in (file, {"training": {"seed": 1, "epochs": 1, "batch_size": 1}}):
        for overrides in ({"training.epochs": 9}, ["training.epochs=9"]):
            settings, _ = settings_of(config=config, seed=2, overrides=overrides)
            assert settings["training"] == {"seed": 2, "epochs": 9, "batch_size": 1}


def test_an_argument_and_an_override_with_two_values_for_one_setting_are_an_error(
    settings_of: Any, tmp_path: Path
) -> None:
    for overrides in ({"training.epochs": 9}, ["training.epochs=9"]):
        with pytest.raises(ConfigurationError, match=r"training.epochs: got 9; expected one value; .* `epochs` says 3"):
            settings_of(epochs=3, overrides=overrides)
        assert settings_of(epochs=9, overrides=overrides)[0]["training"] == {"epochs": 9}
    with pytest.raises(ConfigurationError, match=r"method.name: got 'vip'; .* `method` says prompt-tuning"):
        settings_of(method="prompt-tuning", overrides={"method.name": "vip"})
    words = ["--epochs", "3", "training.epochs=9", "--task", "tickets", "--output-dir", tmp_path / "cue"]
    check_error(run("train", *words), "training.epochs", "the argument --epochs says 3", "leave one of the two out")


def test_rows_given_as_objects_are_tables_and_paths_are_settings(settings_of: Any) -> None:
    settings, options = settings_of(train=ROWS, test="held-out.csv")
    assert options["tables"] == {"train": ROWS}
    assert settings["task"] == {"test": "held-out.csv"}


def test_a_loaded_backbone_is_used_as_it_is(settings_of: Any) -> None:
    backbone = tiny("bert")
    settings, options = settings_of(backbone=backbone)
    assert options["backbone"] is backbone
    assert settings["backbone"] == {"name": backbone.name}


# --- runs ---


def test_rows_may_be_a_list_of_dictionaries_or_a_frame(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    columns = {"text": "message", "label": "team"}
    from_list = quick(tmp_path / "list", train=ROWS, validation=ROWS, **columns)
    from_frame = quick(tmp_path / "frame", train=pandas.DataFrame(ROWS), validation=ROWS, **columns)
    assert isinstance(from_list, Cue)
    assert from_list.task.label_names == from_frame.task.label_names
    assert from_list.scores == from_frame.scores


def test_bad_rows_are_an_error_unless_they_are_skipped(tmp_path: Path) -> None:
    bad = [*ROWS, {"text": None, "label": "billing"}, {"text": "", "label": "billing"}]
    with pytest.raises(DataError, match="`skip_bad_rows=True`"):
        quick(tmp_path / "cue", train=bad, validation=ROWS)
    assert not (tmp_path / "cue").exists()
    with pytest.warns(UserWarning, match="skipped 2 of 18 rows"):
        cue = quick(tmp_path / "cue", train=bad, validation=ROWS, skip_bad_rows=True)
    assert cue.cue_file.training["train_rows"] == len(ROWS)
    with pytest.raises(DataError, match="`skip_bad_rows=True`"):
        cue.predict(bad)
    with pytest.warns(UserWarning, match="skipped 2 of 18 rows"):
        assert len(cue.predict(bad, skip_bad_rows=True)) == len(ROWS)


def test_several_tasks_return_a_cue_by_task_name(tmp_path: Path) -> None:
    few = {**QUICK, "method.prompt_length": 9, "task.train_rows": 8, "task.validation_rows": 8, "task.test_rows": 8}
    cues = quick(tmp_path, tasks=["tickets", "urgency"], overrides=few)
    assert list(cues) == ["tickets", "urgency"]
    assert {name: cue.path for name, cue in cues.items()} == {name: tmp_path / name for name in cues}


@pytest.mark.parametrize("argument", ["task", "train", "validation", "test", "text", "label"])
def test_an_argument_of_a_single_task_beside_tasks_is_an_error(tmp_path: Path, argument: str) -> None:
    with pytest.raises(ConfigurationError, match=f"^{argument}: got 'x'; expected .* beside `tasks`; leave it out"):
        softcue.train(tmp_path / "out", tasks=["tickets", "urgency"], **{argument: "x"})
    ended = run("train", "--tasks", "tickets,urgency", f"--{argument}", "x", "--output-dir", tmp_path / "out")
    check_error(ended, f"--{argument}: got 'x'", "beside --tasks")


# --- the same options on the command line ---


def option_names(command: Any) -> set[str]:
    return set(inspect.signature(command).parameters)


def test_every_option_of_softcue_train_is_a_keyword_and_the_other_way_round() -> None:
    keywords, options = option_names(api.train), option_names(train.train)
    assert keywords - options == {"config", "overrides", "progress"}  # words of the command line; --json is quiet
    assert options - keywords == {"words", "as_json"}


def test_editors_and_type_checkers_see_every_argument_of_train() -> None:
    assert set(api.TrainArguments.__annotations__) == option_names(api.train) - {"output_dir", "tasks"}
    types = {name: str(parameter.annotation) for name, parameter in inspect.signature(api.train).parameters.items()}
    for name, annotation in api.TrainArguments.__annotations__.items():
        assert types[name] == annotation.__forward_arg__


def test_options_of_evaluate_and_predict_are_keywords_of_a_cue() -> None:
    # `rows` is `num_rows` in Python
    of_load = {"cues", "backbone", "allow_pickle", "require_signature", "device", "dtype", "attention", "quantization"}
    of_load |= {"runtime", "runtime_dtype", "runtime_data"}  # arguments of softcue.load
    engines = {"engine", "workers", "shard_rows", "ray_address", "vllm_url", "vllm_python", "vllm_arguments"}
    other = {*of_load, "by_vote", "by_mean", "as_json", "columns", "output"}
    assert option_names(evaluate.evaluate) - other - {"rows"} == option_names(Cue.evaluate) - {"self", "num_rows"}
    of_command = {*other, *engines, "words", "source", "with_scores"}
    assert option_names(predict.predict) - of_command == option_names(Cue.predict) - {
        "self",
        "texts",
    }


def test_errors_name_python_arguments_in_python_and_options_on_the_command_line(
    tmp_path: Path, model_folders: dict[str, Path]
) -> None:
    quick(tmp_path / "cue", train=ROWS, validation=ROWS)
    with pytest.raises(RunError, match=r"^output_dir: got .* pass `overwrite=True`$"):
        quick(tmp_path / "cue", train=ROWS, validation=ROWS)
    options = ["--task", "tickets", "--backbone", model_folders["bert"], "--output-dir", tmp_path / "cue"]
    check_error(run("train", *options), "--output-dir: got", "pass --overwrite")
    cue = softcue.load(tmp_path / "cue", tiny("bert"))
    with pytest.raises(ConfigurationError, match=r"^data: got .* pass `data=FILE`, `data=FOLDER`"):
        cue.evaluate()
    with pytest.raises(ConfigurationError, match=r"^split: got 'dev'"):
        cue.evaluate(split="dev")


def test_only_options_of_the_command_are_written_as_options() -> None:
    message = "rows: got 0; expected `data`; see `positive` or pass `data=FILE`"
    assert with_options(message, ["data"]) == "rows: got 0; expected --data; see `positive` or pass --data FILE"
    assert with_options(message, ["rows"]) == "--rows: got 0; expected `data`; see `positive` or pass --data FILE"


# --- what a run says about itself ---


def test_config_yaml_holds_what_auto_became(tmp_path: Path) -> None:
    cue = quick(tmp_path / "cue", train=ROWS, method="m-idpg-phm", overrides={**QUICK, "method.phm_n": 2})
    settings = yaml.safe_load((tmp_path / "cue/config.yaml").read_text())
    backbone = cue.backbone
    assert settings["backbone"]["dtype"] == "float32"
    assert settings["backbone"]["attention"] == backbone.attention != "auto"
    assert settings["backbone"]["device"] == "auto"  # the next machine may have another one
    assert settings["readout"]["name"] == "classifier"
    assert settings["readout"]["pooling"] == backbone.default_pooling
    assert settings["method"]["pooling"] == backbone.default_pooling
    assert settings["method"]["representation"] == "backbone"


def test_a_run_can_be_resumed_from_its_config_yaml(tmp_path: Path) -> None:
    first = quick(tmp_path / "cue", train=ROWS)
    again = quick(tmp_path / "cue", train=ROWS, config=tmp_path / "cue/config.yaml", overrides={}, resume=True)
    assert again.cue_file == first.cue_file


def test_a_run_says_what_it_trains_on_how_many_rows(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = {"train": ROWS, "validation": ROWS[:4], "test": ROWS[:6], "text": "message", "label": "team"}
    quick(tmp_path / "cue", method="prompt-tuning", progress=True, **rows)
    lines = capsys.readouterr().err.splitlines()
    attention = tiny("bert").attention
    assert lines[0] == f"prompt-tuning on {tiny('bert').name}: encoder, cpu, float32, {attention} attention"
    assert lines[1] == "readout classifier with cls pooling; 64 trainable parameters and a head of 66"
    assert lines[2].startswith("prompt-tuning, default recipe: 2 vectors (paper 5), ")
    assert lines[3] == "rows: 16 training, 4 validation, 6 test"
    assert "warning: 4 of 4 validation texts are also training texts: " in lines[4]
    assert "warning: 6 of 6 test texts are also training texts: " in lines[5]


def test_a_run_says_that_validation_rows_are_held_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    quick(tmp_path / "cue", method="prompt-tuning", progress=True, train=ROWS, text="message", label="team")
    captured = capsys.readouterr().err
    assert "rows: 14 training, 2 validation (held out of 16 training rows: 12 %)" in captured
    assert "also training texts" not in captured


@pytest.mark.parametrize(
    ("family", "method", "setting", "other"),
    [
        ("bert", "adapter", "learning_rate", "network_learning_rate"),
        ("gpt2", "prompt-tuning", "network_learning_rate", "learning_rate"),
    ],
)
def test_a_learning_rate_without_effect_is_reported(
    family: str, method: str, setting: str, other: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    steps = {"training.steps": 1}
    arguments: dict[str, Any] = {"backbone": tiny(family), "method": method, "overrides": steps, "train": ROWS}
    quick(tmp_path / "wrong", **arguments, **{setting: 0.01})
    assert f"warning: training.{setting} has no effect on {method}" in capsys.readouterr().err
    quick(tmp_path / "right", **arguments, **{other: 0.01})
    assert "has no effect" not in capsys.readouterr().err


def test_a_longer_input_than_the_backbone_takes_is_said_to_have_no_effect(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments: dict[str, Any] = {"method": "prompt-tuning", "train": ROWS, "overrides": {"training.steps": 1}}
    quick(tmp_path / "cue", **arguments, max_length=5000)
    lines = [line for line in capsys.readouterr().err.splitlines() if "backbone.max_length=5000 has no effect" in line]
    assert len(lines) == 1
    assert f"takes {tiny('bert').max_length} tokens" in lines[0]


@pytest.mark.parametrize(
    ("method", "reason"),
    [
        ("linear-probe", "it is solved in closed form, which has no learning rate"),
        ("manual-prompt", "it trains nothing"),
    ],
)
@pytest.mark.parametrize("setting", ["learning_rate", "network_learning_rate"])
def test_a_method_without_steps_has_no_learning_rate(
    method: str, reason: str, setting: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    family = "bert" if method == "linear-probe" else "gpt2"
    arguments: dict[str, Any] = {"backbone": tiny(family), "method": method, "overrides": {}, "train": ROWS}
    quick(tmp_path / "cue", **arguments, **{setting: 0.1})
    lines = [line for line in capsys.readouterr().err.splitlines() if "has no effect" in line]
    assert lines == [f"warning: training.{setting} has no effect on {method}: {reason}"]


def test_a_head_that_was_solved_again_at_the_end_is_explained(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    still = {"training.learning_rate": 0.0, "training.network_learning_rate": 0.0, "readout.head_start": "random"}
    cue = quick(
        tmp_path / "cue",
        train=ROWS,
        validation=ROWS,
        progress=True,
        overrides={**QUICK, **still, "readout.refit": True},
    )
    metrics = json.loads((tmp_path / "cue" / "metrics.json").read_text("utf-8"))
    assert metrics["refit_gain"] > 0  # a random head was not the best
    before, after = metrics["history"][-1]["score"], cue.scores["validation"]["accuracy"]
    line = f"the head was solved again at the end (best step 1): accuracy {before:.1f} -> {after:.1f}"
    assert line in capsys.readouterr().err


def test_epochs_win_over_the_steps_of_a_file_and_clash_with_those_of_an_override(settings_of: Any) -> None:
    settings, _ = settings_of(config={"training": {"steps": 9, "epochs": 2}}, epochs=3)
    assert settings["training"] == {"steps": 0, "epochs": 3}
    with pytest.raises(ConfigurationError, match=r"training\.steps: got 9.*beside `epochs=3`"):
        softcue.train("out", epochs=3, overrides={"training.steps": 9})
