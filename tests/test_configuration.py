from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from softcue.configuration import (
    SECTIONS,
    _presets,
    merged,
    method_config,
    parse_overrides,
    preset,
    read_settings,
    resolve,
)
from softcue.errors import ConfigurationError
from softcue.methods import DEFAULT_METHODS, METHODS

KINDS = ("encoder", "encoder-decoder", "decoder")


def resolved(*words: str, kind: str | None = None) -> Any:
    return resolve(parse_overrides(words), kind)


def message_of(*words: str) -> str:
    with pytest.raises(ConfigurationError) as caught:
        resolved(*words)
    return str(caught.value)


def test_later_layers_win_key_by_key() -> None:
    low = {"training": {"epochs": 3, "seed": 1}, "task": {"name": "tickets"}}
    high = {"training": {"epochs": 5}, "method": {"prompt_length": 7}}
    assert merged(low, high) == {
        "training": {"epochs": 5, "seed": 1},
        "task": {"name": "tickets"},
        "method": {"prompt_length": 7},
    }


def test_merging_changes_none_of_its_layers() -> None:
    low: dict[str, Any] = {"task": {"label_words": {"a": "ay"}}}
    high: dict[str, Any] = {"task": {"label_words": {"b": "bee"}}}
    assert merged(low, high) == {"task": {"label_words": {"a": "ay", "b": "bee"}}}
    assert low == {"task": {"label_words": {"a": "ay"}}}
    merged(low)["task"]["label_words"]["c"] = "sea"
    assert low == {"task": {"label_words": {"a": "ay"}}}


def test_preset_lies_below_what_the_user_sets() -> None:
    below = preset("prompt-tuning", "encoder")["training"]
    run = resolved("method.name=prompt-tuning", "training.epochs=3", kind="encoder")
    assert run.training.epochs == 3 != below["epochs"]
    assert run.training.relative_rate == below["relative_rate"]


def test_without_a_kind_no_preset_is_used() -> None:
    assert resolved().training == SECTIONS["training"]()


def test_unknown_method_has_no_preset_and_known_presets_are_not_changed() -> None:
    assert preset("no-such-method", "encoder") == {}
    before = yaml.safe_dump(_presets())
    resolved("training.epochs=99", "method.prompt_length=3", kind="encoder")
    assert yaml.safe_dump(_presets()) == before


@pytest.mark.parametrize("method", list(_presets()))
@pytest.mark.parametrize("kind", KINDS)
def test_presets_hold_only_valid_settings(method: str, kind: str) -> None:
    assert method in METHODS
    assert set(_presets()[method]) <= set(KINDS)
    run = resolve({"method": {"name": method}}, kind)
    for section, values in preset(method, kind).items():
        for key, value in values.items():
            assert getattr(getattr(run, section), key) == value


@pytest.mark.parametrize("name", list(METHODS))
@pytest.mark.parametrize("kind", KINDS)
def test_every_method_resolves_out_of_the_box(name: str, kind: str) -> None:
    run = resolve({"method": {"name": name}}, kind)
    assert type(run.method) is METHODS[name].Config
    assert resolve(run.as_settings(), kind) == run
    assert method_config(run.method.model_dump(mode="json")) == run.method


def test_settings_survive_a_yaml_file(tmp_path: Path) -> None:
    run = resolved("task.text=a,b", "task.label_words.0=no", "training.learning_rate=1e-3", kind="encoder")
    path = tmp_path / "config.yaml"
    path.write_text(yaml.safe_dump(run.as_settings()))
    assert resolve(read_settings(path), "encoder") == run


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("training.epochs=3", 3),
        ("training.learning_rate=1e-3", 0.001),
        ("training.learning_rate=1E-3", 0.001),
        ("training.learning_rate=0.3", 0.3),
        ("training.parameter_scaling=true", True),
        ("training.optimizer=adafactor", "adafactor"),
        ("backbone.max_length=null", None),
        ("task.text=first, second", ("first", "second")),
        ("task.text=[first, second]", ("first", "second")),
        ("task.text=0", ("0",)),
        ("task.label=1", "1"),
        ("task.template='{text}: a=b'", "{text}: a=b"),
        ("task.label_words={0: bad, 1: good}", {"0": "bad", "1": "good"}),
        ("task.label_words.yes=no", {"yes": "no"}),
        ("task.label_words.a=1e3", {"a": "1e3"}),
        ("task.label_words.a='on'", {"a": "on"}),
        ("task.label_words.a.b=c=d", {"a.b": "c=d"}),
    ],
)
def test_dotted_override_reaches_its_key(word: str, expected: object) -> None:
    section, key = word.partition("=")[0].split(".")[:2]
    assert getattr(getattr(resolved(word), section), key) == expected


def test_later_overrides_win_and_words_gather() -> None:
    run = resolved("training.seed=1", "task.label_words.a=x", "task.label_words.b=y", "training.seed=2")
    assert run.training.seed == 2
    assert run.task.label_words == {"a": "x", "b": "y"}


def test_override_changes_one_word_of_a_file_s_label_words() -> None:
    file = {"task": {"label_words": {0: "bad", 1: "good"}}}
    run = resolve(merged(file, parse_overrides(["task.label_words.1=great"])))
    assert run.task.label_words == {"0": "bad", "1": "great"}


@pytest.mark.parametrize("word", ["epochs=3", "training.epochs", "training.=3", ".epochs=3", "run.yaml"])
def test_override_of_another_form_is_refused(word: str) -> None:
    message = message_of(word)
    assert f"override: got '{word}'; expected section.key=value, such as training.epochs=3" in message
    assert "backbone, method, mixture, readout, selection, task, training" in message


def test_override_of_an_unknown_section_suggests_the_nearest() -> None:
    assert "did you mean 'training'?" in message_of("trainng.epochs=3")


@pytest.mark.parametrize("section", ["trainng", 1, True])
def test_unknown_section_is_refused(section: Any) -> None:
    with pytest.raises(ConfigurationError) as caught:
        merged({section: {"epochs": 3}})
    message = str(caught.value)
    assert message.startswith(f"section: got {section!r}; expected a known section; ")
    assert "known: backbone, method, mixture, readout, selection, task, training" in message
    assert ("did you mean 'training'?" in message) == (section == "trainng")


@pytest.mark.parametrize("values", [None, 3, ["epochs"], "epochs=3"])
def test_section_without_keys_is_refused(values: Any) -> None:
    with pytest.raises(ConfigurationError, match=r"training: got .*keys and values below it; indent them"):
        merged({"training": values})


def test_unknown_key_suggests_the_nearest() -> None:
    message = message_of("training.epoch=3")
    assert message.startswith("training.epoch: got 3; expected a known key; did you mean 'epochs'? known: ")


def test_key_of_another_method_is_refused() -> None:
    message = message_of("method.name=no-prompt", "method.prompt_length=3")
    assert message.startswith("method.prompt_length: got 3; expected a known key; ")


def test_a_run_that_names_no_method_takes_the_default_of_the_backbones_kind() -> None:
    assert {kind: resolve({}, kind).method.name for kind in KINDS} == DEFAULT_METHODS
    assert resolve({}, "encoder", recipe="paper").method.name == DEFAULT_METHODS["encoder"]
    assert resolve({"method": {"name": "vip"}}, "encoder").method.name == "vip"


def test_before_the_backbone_is_known_settings_may_be_those_of_any_default() -> None:
    settings = {"method": {"init_text": "the label of this text", "init": "text"}}
    assert resolve(settings).method.name == "prompt-tuning"
    assert resolve({"method": {"init": "labels"}}).method.name == "prompt-tuning"
    assert resolve({"method": {"init": "normal"}}).method.name == "p-tuning-v2"
    assert resolve({"method": {"init": "labels"}}, "decoder").method.name == "prompt-tuning"
    with pytest.raises(
        ConfigurationError, match=r"no method is named, so it is p-tuning-v2 on encoders, prompt-tuning on"
    ):
        resolve({"method": {"prompt_length": 0}})
    with pytest.raises(ConfigurationError) as caught:
        resolve(settings, "encoder")
    message = str(caught.value)
    assert "expected a known key (no method is named, so it is p-tuning-v2)" in message
    assert "name a method that has it with method.name: prompt-tuning, " in message
    with pytest.raises(ConfigurationError, match=r"'normal' or 'uniform' \(no method is named, so it is p-tuning-v2\)"):
        resolve({"method": {"init": "labels"}}, "encoder")


def test_unknown_method_suggests_the_nearest() -> None:
    message = message_of("method.name=promt-tuning")
    assert message.startswith("method.name: got 'promt-tuning'; expected a known method; did you mean 'prompt-tun")


@pytest.mark.parametrize(
    ("word", "expected"),
    [
        ("training.epochs=many", "valid integer"),
        ("training.epochs=1.5", "valid integer"),
        ("training.epochs=0", "greater than or equal to 1"),
        ("training.epochs=[1]", "valid integer"),
        ("training.learning_rate=fast", "valid number"),
        ("training.learning_rate=-1e-3", "greater than or equal to 0"),
        ("training.learning_rate=.nan", "a finite number"),
        ("training.optimizer=sgd", "'adafactor' or 'adamw'"),
        ("method.prompt_length=0", "greater than or equal to 1"),
        ("method.init=random", "'normal' or 'uniform'"),
        ("readout.name=head", "'auto', 'classifier'"),
        ("backbone.max_length=3", "greater than or equal to 4"),
        (
            "task.kind=ranking",
            "'classification', 'multi-label', 'regression', 'generation', 'span', 'tags' or 'referent'",
        ),
        ("task.validation_share=1", "less than 1"),
        ("task.text='a,a'", "different text columns"),
        ("task.text='a,'", "different text columns"),
        ("task.label_words=[a, b]", "valid dictionary"),
        ("task.label_words.a=", "valid string"),
        ("task.name=", "valid string"),
    ],
)
def test_wrong_value_is_named_with_its_key(word: str, expected: str) -> None:
    key = word.partition("=")[0]
    message = message_of(word)
    assert message.startswith(f"{key}")
    assert ": got " in message
    assert expected in message
    assert message.endswith("; correct the value")


def test_value_that_is_no_yaml_is_refused() -> None:
    assert message_of("training.epochs=[1") == "training.epochs: got '[1'; expected a plain value; quote it"


def test_settings_are_read_from_yaml(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("training:\n  learning_rate: 1e-3\ntask:\n  text: [a, b]\n  label_words: {0: bad, 1: good}\n")
    run = resolve(read_settings(path))
    assert run.training.learning_rate == 0.001
    assert run.task.text == ("a", "b")
    assert run.task.label_words == {"0": "bad", "1": "good"}
    path.write_text("# nothing yet\n")
    assert read_settings(path) == {}


@pytest.mark.parametrize(
    ("content", "expected", "next_step"),
    [
        (b"training: [1\n", "valid YAML", "line 2"),
        (b"a: b: c\n", "valid YAML", "line 1"),
        (b"!!python/object:os.system {}\n", "valid YAML", "could not determine a constructor"),
        (b"caf\xe9: 1\n", "valid YAML", "utf-8"),
        (b"- a\n- b\n", "sections such as `training:`", "README"),
        (b"just words\n", "sections such as `training:`", "README"),
    ],
)
def test_unreadable_file_is_refused(tmp_path: Path, content: bytes, expected: str, next_step: str) -> None:
    path = tmp_path / "run.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigurationError) as caught:
        read_settings(path)
    message = str(caught.value)
    assert message.startswith(f"configuration file: got '{path}'; expected {expected}; ")
    assert next_step in message
    assert "\n" not in message


@pytest.mark.parametrize("name", ["missing.yaml", "."])
def test_missing_file_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(ConfigurationError, match=r"configuration file: got .* expected a readable YAML file"):
        read_settings(tmp_path / name)


def test_true_is_not_taken_for_one() -> None:
    with pytest.raises(ConfigurationError, match=r"training\.epochs"):
        resolve({"training": {"epochs": True}})


@pytest.mark.parametrize(
    ("old", "new"), [("prompt_rate", "training.learning_rate"), ("network_rate", "training.network_learning_rate")]
)
def test_a_renamed_key_is_reported_with_its_name_today(old: str, new: str) -> None:
    with pytest.raises(ConfigurationError, match=f"it is called {new} now"):
        resolve({"training": {old: 0.1}})


def test_a_learning_rate_of_the_user_takes_the_place_of_the_preset_s_relative_rate() -> None:
    method = {"method": {"name": "prompt-tuning"}}
    assert resolve(method, "encoder").training.relative_rate > 0
    given = resolve({**method, "training": {"learning_rate": 0.03}}, "encoder").training
    assert (given.learning_rate, given.relative_rate) == (0.03, 0.0)


def test_epochs_of_the_user_take_the_place_of_the_preset_s_least_number_of_steps() -> None:
    assert resolve({}, "encoder").training.min_steps > 0
    assert resolve({"training": {"epochs": 3}}, "encoder").training.min_steps == 0


def test_half_of_a_character_in_a_setting_is_an_error() -> None:
    with pytest.raises(ConfigurationError) as caught:
        resolve({"method": {"name": "vip", "hard_prompt": "\ud800"}})
    assert str(caught.value).startswith("method.hard_prompt: got ")
    assert str(caught.value).endswith("expected text without lone surrogates; repair the escape sequence")
    str(caught.value).encode("utf-8")
