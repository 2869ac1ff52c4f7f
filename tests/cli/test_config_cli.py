"""`softcue config`, docs/configuration.md, `softcue methods` and the papers' settings."""

from __future__ import annotations

from pathlib import Path

import pytest
from command import check_error, run

from softcue.cli.config import KindOfBackbone
from softcue.configuration import SECTIONS, preset, recipe_settings, resolve, resolve_selection
from softcue.methods import METHODS
from softcue.methods.registry import BACKBONE_KINDS
from softcue.recipes import recipe_names
from softcue.settings_docs import configuration_page, describe_type, format_value, list_settings

DOCS = Path(__file__).parents[2] / "docs" / "configuration.md"
# Settings that no single run has: those of a choice between runs.
SELECTION = {"selection": resolve_selection({}).model_dump(mode="json")}


def test_docs_configuration_is_up_to_date() -> None:
    assert DOCS.read_text("utf-8") == configuration_page(), "softcue config --docs > docs/configuration.md"


def test_every_setting_has_a_meaning_and_a_readable_type() -> None:
    models = [*SECTIONS.values(), *(method.Config for method in METHODS.built_in.values())]
    for model in models:
        for key, field in model.model_fields.items():
            assert field.description and len(field.description) > 8, (model, key)
            assert "typing" not in describe_type(field) and "<" not in describe_type(field).replace("< 1", "")


def test_the_page_names_every_key_default_and_preset() -> None:
    page = DOCS.read_text("utf-8")
    for name, method in METHODS.built_in.items():
        part = next(part for part in page.split("\n### method: ") if name in part.splitlines()[0].split(", "))
        for key, field in method.Config.model_fields.items():
            if key != "name":
                assert f"| `{key}` |" in part
                assert f"`{format_value(field.get_default(call_default_factory=True))}`" in part
        part = next(part for part in page.split("\n### preset: ") if name in part.splitlines()[0].split(", "))
        for kind in BACKBONE_KINDS:
            for section, values in preset(name, kind).items():
                for key, value in values.items():
                    [row] = [line for line in part.splitlines() if line.startswith(f"| `{section}.{key}` |")]
                    assert row.split("|")[2 + BACKBONE_KINDS.index(kind)].strip() == f"`{format_value(value)}`"


def test_a_wrong_page_is_reported(tmp_path: Path) -> None:
    assert run("config", "--docs", "--check", DOCS).code == 0
    (tmp_path / "old.md").write_text("# Configuration\n")
    ended = run("config", "--check", tmp_path / "old.md")
    assert (ended.code, ended.out) == (1, "")
    assert "softcue config --docs > " in ended.err
    check_error(run("config", "--check", tmp_path / "no.md"), "--check", "no.md")


def test_config_lists_every_key_with_the_value_a_run_starts_from() -> None:
    for method, kind in (("prompt-tuning", "encoder"), ("vip", "encoder-decoder"), ("adapter", "decoder")):
        printed = run("config", "--method", method, "--backbone-kind", kind, "--json").json
        settings = {(entry["section"], entry["key"]): entry for entry in printed["settings"]}
        config = {**resolve({"method": {"name": method}}, kind).as_settings(), **SELECTION}
        assert {path: entry["value"] for path, entry in settings.items()} == {
            (section, key): value for section, values in config.items() for key, value in values.items()
        }
        for (section, key), entry in settings.items():
            assert (entry["from"] == "preset") == (key in preset(method, kind).get(section, {}))


def test_config_shows_the_values_of_the_paper() -> None:
    for method, kind in (("prompt-tuning", "encoder-decoder"), ("vip", "decoder"), ("adapter", "encoder")):
        printed = run("config", "--method", method, "--backbone-kind", kind, "--recipe", "paper", "--json").json
        config = {**resolve({"method": {"name": method}}, kind, "paper").as_settings(), **SELECTION}
        for entry in printed["settings"]:
            assert entry["value"] == config[entry["section"]][entry["key"]]
            in_recipe = entry["key"] in recipe_settings("paper", method, kind).get(entry["section"], {})
            assert entry["from"] == ("paper" if in_recipe else "default")
    shown = run("config", "training", "--method", "vip", "--backbone-kind", "encoder-decoder", "--recipe", "paper")
    assert "30000 *" in shown.out and "from the paper of vip" in shown.out


def test_config_shows_one_section_or_one_key() -> None:
    shown = run("config", "training")
    assert (shown.code, shown.err) == (0, "")
    assert "learning_rate" in shown.out and "0.02 *" in shown.out and "preset of p-tuning-v2" in shown.out
    assert "preset of prompt-tuning" in run("config", "training", "--backbone-kind", "decoder").out
    assert "gradient_checkpointing" not in shown.out
    [entry] = run("config", "method.prompt_length", "--method", "vip", "--json").json["settings"]
    assert (entry["default"], entry["value"], entry["from"]) == (100, 20, "preset")
    assert entry["type"] == "whole number ≥ 1, ≤ 1000"


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        (["trainig"], ["'trainig'", "did you mean 'training'?"]),
        (["training.epoch"], ["'training.epoch'", "did you mean 'epochs'?"]),
        (["--method", "promt-tuning"], ["method.name", "did you mean 'prompt-tuning'?"]),
    ],
)
def test_unknown_sections_keys_and_methods_are_refused(words: list[str], parts: list[str]) -> None:
    check_error(run("config", *words), *parts)


def test_kinds_of_backbone_are_those_of_the_presets() -> None:
    assert tuple(kind.value for kind in KindOfBackbone) == BACKBONE_KINDS
    assert run("config", "--backbone-kind", "rnn").code == 2


def test_values_are_written_as_a_user_would_type_them() -> None:
    assert [format_value(value) for value in (1e-8, 5e-5, 0.0, 18.0, " {mask}")] == [
        *("1e-08", "0.00005", "0", "18", "' {mask}'")
    ]
    assert list_settings("backbone.max_length")[0].type == "whole number ≥ 4, or unset"


# --- the papers' settings ---


def test_the_recipes_name_every_method_and_no_other() -> None:
    from softcue.cli.completion import method_names

    assert sorted(METHODS.built_in) == list(recipe_names())
    assert set(method_names()) == set(METHODS)


def test_methods_show_the_papers_settings_beside_the_presets(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "110")
    shown = run("methods")
    assert (shown.code, shown.err) == (0, "")
    assert all(name in shown.out for name in METHODS)
    lines = [line.strip() for line in shown.out.splitlines()]
    number = lines.index("prompt-tuning (Lester et al. 2021)")
    assert lines[number + 1 : number + 5] == [
        "the default on encoder-decoders and decoders",
        METHODS["prompt-tuning"].summary,
        "paper:  prompt length 100, learning rate 0.3, adafactor, batch size 32, 30000 steps (on LM-adapted T5 1.1)",
        "preset: prompt length 20, learning rate 0.2 of the words' size, network learning rate 0.005, adamw, batch",
    ]
    entries = {entry["name"]: entry for entry in run("methods", "--json").json["methods"]}
    lester = entries["prompt-tuning"]
    recipe = lester["paper_recipes"]["encoder-decoder"]
    assert (recipe["paper"], recipe["backbone"]) == ("Lester et al. 2021", "LM-adapted T5 1.1")
    assert recipe["settings"]["method.prompt_length"] == {
        "value": 100,
        "source": "section 3",
        "is_from_paper": True,
        "searched": [],
        "cases": [],
    }
    assert lester["presets"]["encoder"]["method"]["prompt_length"] == 20
    assert entries["linear-probe"]["paper_recipes"]["encoder"]["settings"] == {}


def test_one_method_is_shown_in_full() -> None:
    shown = run("methods", "m-idpg-phm")
    assert (shown.code, shown.err) == (0, "")
    for part in (
        "Wu et al. 2022",
        "appendix A.1.2",
        "searched: 0.005, 0.001, 0.0005, 0.0001",
        "with fewer than 10,000 training rows",
        "chosen here: there is no [CLS] token",
        "representation_dropout",
    ):
        assert part in shown.out
    assert run("methods", "vip", "--json").json["name"] == "vip"
    for name in METHODS:
        assert run("methods", name).code == 0
    check_error(run("methods", "vipp"), "'vipp'", "did you mean 'vip'?")
