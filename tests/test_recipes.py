"""Recipes: every value is a setting with a source, the user's settings win, and the papers' recipes run everywhere."""

from __future__ import annotations

import json
import re
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from command import check_error, run
from tiny import KINDS, ONE_OF_EACH_KIND, tiny, tiny_tokenizer
from toy import EXAMPLES, TASK

import softcue
from softcue.backbones import Backbone
from softcue.configuration import merged, preset, recipe_settings, resolve
from softcue.cue.cue_file import cue_file_digest
from softcue.cue.model_card import model_card
from softcue.errors import ConfigurationError
from softcue.methods import METHODS
from softcue.methods.registry import BACKBONE_KINDS
from softcue.recipe_summary import summarise
from softcue.recipes import TaskForm, check_recipe, describe_condition, paper_recipe, recipe_names

ROOT = Path(__file__).parents[1]
DATA = files("softcue.methods").joinpath("recipes")
ALL_FILES = [
    *(f"{name}.yaml" for name in recipe_names()),
    *(f"shared/{e.name}" for e in DATA.joinpath("shared").iterdir()),
]
CASES = [(method, kind) for method, method_class in METHODS.built_in.items() for kind in method_class.kinds]
WITHOUT_PAPER = ("linear-probe", "no-prompt")
# Parts of presets that no paper has, and their values without a preset.
BEYOND_THE_PAPERS = {
    "training.relative_rate": 0.0,
    "training.head_learning_rate": None,
    "training.min_steps": 0,
    "training.contrastive": 0.0,
    "training.label_share": 0.0,
    "training.evaluate_start": False,
    "readout.head_start": "random",
    "readout.centre": False,
    "readout.refit": False,
}
ROWS = [{"text": example.texts[0], "label": example.target} for example in EXAMPLES] * 2
LABELS = {
    f"task.{part}.{name}": getattr(label, attribute)
    for name, label in TASK.labels.items()
    for part, attribute in (("label_words", "words"), ("label_descriptions", "description"))
}
FORMS = [
    TaskForm(),
    TaskForm(num_texts=2, num_rows=100, is_few_shot=True),
    TaskForm(task_kind="generation", has_several_tasks=True),
    TaskForm(num_texts=2, tunes_backbone=True),
]


# --- the data files ---


@pytest.mark.parametrize("name", ALL_FILES)
def test_a_data_file_has_only_keys_that_are_read(name: str) -> None:
    content = yaml.safe_load(DATA.joinpath(name).read_text("utf-8"))
    assert set(content) <= {"paper", "used_on", "extends", "shared", "settings", "kinds"}
    assert set(content.get("used_on", {})) | set(content.get("kinds", {})) <= set(BACKBONE_KINDS)
    groups = [content.get("settings", {})]
    for of_kind in content.get("kinds", {}).values():
        assert set(of_kind) <= {"extends", "paper", "note", "settings"}
        groups.append(of_kind.get("settings", {}))
    for entry in (entry for group in groups for entry in group.values() if entry is not None):
        for given in (entry, *entry.get("cases", ())):
            assert set(given) <= {"value", "source", "choice", "searched", "cases", "when"}
            assert ("source" in given) != ("choice" in given), "where the paper says so, or why it was chosen"
            assert len(given.get("source") or given["choice"]) > 3
            assert not given.get("searched") or given["value"] in given["searched"]
        for case in entry.get("cases", ()):
            assert describe_condition(case["when"])
            TaskForm().has(case["when"])


@pytest.mark.parametrize(("method", "kind"), CASES)
def test_every_value_of_a_recipe_is_a_valid_setting(method: str, kind: str) -> None:
    for form in FORMS:
        recipe = paper_recipe(method, kind, form)
        config = resolve({"method": {"name": method}}, kind, "paper", form)
        for path, setting in recipe.settings.items():
            section, _, key = path.partition(".")
            assert getattr(getattr(config, section), key) == setting.value
            for value in setting.searched:
                resolve(merged({"method": {"name": method}}, {section: {key: value}}), kind, "paper", form)
        assert bool(recipe.paper) == bool(recipe.settings) == (method not in WITHOUT_PAPER)
        assert recipe.backbone or recipe.note or method in WITHOUT_PAPER, "say what is taken on other kinds"


def test_parts_that_no_paper_has_are_off_unless_a_preset_sets_them() -> None:
    plain = resolve({}).as_settings()
    for name, value in BEYOND_THE_PAPERS.items():
        section, _, key = name.partition(".")
        assert plain[section][key] == value


@pytest.mark.parametrize(("method", "kind"), [case for case in CASES if case[0] not in WITHOUT_PAPER])
def test_a_recipe_says_something_about_every_setting_of_the_preset(method: str, kind: str) -> None:
    in_preset = {f"{section}.{key}" for section, keys in preset(method, kind).items() for key in keys}
    silent = in_preset - set(paper_recipe(method, kind).settings)
    # steps take the place of epochs, glove is the user's file; what has no networks or prompt vectors needs no rate
    rates = {"training.learning_rate", "training.network_learning_rate"}
    heads = {"readout.pooling"} if kind != "encoder" else set()  # where the papers' backbones write, there is no head
    assert silent <= {"training.epochs", "method.glove", *rates, *heads, *BEYOND_THE_PAPERS}
    assert rates & set(paper_recipe(method, kind).settings) or not METHODS[method].needs_training


@pytest.mark.parametrize(
    ("method", "kind", "values"),
    [
        ("prompt-tuning", "encoder-decoder", {"method.prompt_length": 100, "training.batch_size": 32}),
        ("prompt-tuning", "encoder-decoder", {"training.steps": 30_000, "training.learning_rate": 0.3}),
        ("prompt-tuning", "encoder-decoder", {"training.optimizer": "adafactor", "readout.decoding": "greedy"}),
        ("m-idpg-phm", "encoder", {"method.prompt_length": 5, "method.rule": "add", "training.beta2": 0.98}),
        ("m-idpg-phm", "encoder", {"training.weight_decay": 0.1, "readout.head": "mlp", "training.epochs": 10}),
        ("vip", "encoder-decoder", {"method.prompt_length": 100, "method.codes": 1000, "method.draws": 10}),
        ("vip", "encoder-decoder", {"method.dedicated": False, "method.temperature": 100, "method.decay": 0.99}),
        ("vip", "encoder-decoder", {"method.commitment": 0.1, "method.evaluation": "sample"}),
        ("vip", "encoder-decoder", {"training.steps": 30_000, "method.hard_prompt": "task"}),
        ("fine-tuning", "encoder-decoder", {"training.optimizer": "adafactor", "training.learning_rate": 0.001}),
        ("fine-tuning", "encoder", {"training.warmup_share": 0.06, "training.schedule": "linear"}),
        ("compacter", "encoder", {"method.phm_n": 4, "method.bottleneck": 16, "method.share_a": "module"}),
        ("adapter", "encoder", {"method.bottleneck": 16}),
        ("p-tuning-v2", "encoder", {"method.prompt_length": 5, "method.rule": "add"}),
        ("warp", "encoder", {"method.prompt_length": 20, "method.init": "mask", "training.batch_size": 8}),
    ],
)
def test_the_papers_numbers(method: str, kind: str, values: dict[str, Any]) -> None:
    recipe = paper_recipe(method, kind, TaskForm())
    assert {path: recipe.settings[path].value for path in values} == values


def test_values_depend_on_the_form_of_the_task() -> None:
    def value(method: str, kind: str, path: str, **form: Any) -> Any:
        return paper_recipe(method, kind, TaskForm(**form)).settings[path].value

    assert [value("m-idpg-phm", "encoder", "training.epochs", num_rows=rows) for rows in (8_662, 67_349)] == [50, 10]
    assert [value("s-idpg-phm", "encoder", "method.insert_at", num_texts=n) for n in (1, 2)] == ["start", "first-end"]
    assert value("m-idpg-phm", "encoder", "training.learning_rate", is_few_shot=True) == 0.0005
    assert value("m-idpg-phm", "encoder", "method.input", is_few_shot=True) == "first"
    assert value("vip", "encoder-decoder", "training.steps", has_several_tasks=True) == 50_000
    assert value("vip", "encoder-decoder", "training.batch_size", has_several_tasks=True) == 128
    assert value("vip", "encoder-decoder", "method.hard_prompt", task_kind="span") == ""


# --- what lies on top ---


def test_the_users_settings_lie_on_top_of_either_recipe() -> None:
    for recipe in ("default", "paper"):
        config = resolve({"method": {"name": "vip", "prompt_length": 7}}, "encoder-decoder", recipe)
        assert config.method.prompt_length == 7  # type: ignore[attr-defined]
    assert config.training.steps == 30_000


def test_epochs_of_the_user_win_over_the_steps_of_a_recipe() -> None:
    name = {"method": {"name": "prompt-tuning"}}
    config = resolve({**name, "training": {"epochs": 3}}, "encoder-decoder", "paper")
    assert (config.training.epochs, config.training.steps, config.training.evaluate_every) == (3, 0, 0)
    config = resolve({**name, "training": {"steps": 9}}, "encoder-decoder", "paper")
    assert (config.training.steps, config.training.evaluate_every) == (9, 1000)


def test_the_papers_recipe_does_not_lie_on_the_preset() -> None:
    config = resolve({"method": {"name": "vip"}}, "encoder-decoder", "paper")
    assert config.training.patience == 0 != preset("vip", "encoder-decoder")["training"]["patience"]


def test_without_a_paper_the_recipe_is_the_preset() -> None:
    for method in WITHOUT_PAPER:
        assert recipe_settings("paper", method, "encoder") == preset(method, "encoder")


@pytest.mark.parametrize("name", ["papers", "", None, ["paper"]])
def test_an_unknown_recipe_is_an_error(name: Any) -> None:
    with pytest.raises(ConfigurationError, match="recipe: got"):
        check_recipe(name)


def test_an_unknown_recipe_in_a_file_or_as_argument_is_an_error(tmp_path: Path) -> None:
    for arguments in ({"recipe": "papers"}, {"config": {"recipe": "papers"}}):
        with pytest.raises(ConfigurationError, match="recipe: got 'papers'; expected default or paper"):
            softcue.train(tmp_path / "cue", backbone=tiny("bert"), train=ROWS, **arguments)
    (tmp_path / "run.yaml").write_text("recipe: papers\n")
    words = ["train", tmp_path / "run.yaml", "--task", "tickets", "--output-dir", tmp_path / "cue"]
    check_error(run(*words), "recipe", "papers")


# --- what a run says ---


def test_differences_are_named_in_words() -> None:
    config = resolve({"method": {"name": "m-idpg-phm", "rule": "parallel"}}, "encoder")
    summary = summarise("default", paper_recipe("m-idpg-phm", "encoder", TaskForm()), config.as_settings())
    assert summary.line.startswith(
        "m-idpg-phm, default recipe: 20 vectors (paper 5), an attention of their own (paper: added states), "
    )
    assert "weight decay 0.01 (paper 0.1)" in summary.text and summary.line.count("\n") == 0


def test_values_the_authors_chose_from_are_no_difference() -> None:
    paper = paper_recipe("m-idpg-phm", "encoder", TaskForm())
    settings = {"method": {"name": "m-idpg-phm"}, "training": {"learning_rate": 0.005, "batch_size": 32}}
    assert not summarise("paper", paper, resolve(settings, "encoder", "paper").as_settings()).differences


def test_a_number_of_steps_is_compared_with_the_papers_epochs() -> None:
    paper = paper_recipe("m-idpg-phm", "encoder", TaskForm())
    settings = {"method": {"name": "m-idpg-phm"}, "training": {"steps": 2}}
    summary = summarise("paper", paper, resolve(settings, "encoder", "paper").as_settings())
    assert summary.differences == ("2 steps (paper: 10 epochs)",)


@pytest.mark.parametrize("recipe", ["default", "paper"])
def test_a_run_its_card_and_its_cue_say_the_recipe(
    recipe: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    overrides = {"training.steps": 2, "training.evaluate_every": 2}
    cue = softcue.train(
        tmp_path / "cue",
        backbone=tiny("bert"),
        method="m-idpg-phm",
        recipe=recipe,
        train=ROWS,
        validation=ROWS,
        overrides=overrides,
    )
    expected = f"m-idpg-phm, {recipe} recipe: "
    [line] = [line for line in capsys.readouterr().err.splitlines() if line.startswith(expected)]
    assert "2 steps (paper: 50 epochs)" in line
    assert ("20 vectors (paper 5)" in line) == (recipe == "default")
    assert expected in (tmp_path / "cue/README.md").read_text()
    assert yaml.safe_load((tmp_path / "cue/config.yaml").read_text())["recipe"] == recipe
    loaded = softcue.load(tmp_path / "cue", tiny("bert"))
    assert loaded.cue_file.recipe is not None and loaded.cue_file.recipe.name == recipe
    assert loaded.cue_file.recipe.summary.startswith(expected)
    assert f"  recipe      {recipe}" in repr(loaded)
    again = softcue.train(
        tmp_path / "again",
        backbone=tiny("bert"),
        config=tmp_path / "cue/config.yaml",
        train=ROWS,
        validation=ROWS,
        progress=False,
    )
    assert again.cue_file.recipe == cue.cue_file.recipe
    states = zip(again.model.state_dict().values(), cue.model.state_dict().values(), strict=True)
    assert all(torch.equal(one_value, other) for one_value, other in states)


def test_a_cue_without_a_recipe_loads(tmp_path: Path) -> None:
    softcue.train(
        tmp_path / "cue",
        backbone=tiny("bert"),
        train=ROWS,
        validation=ROWS,
        overrides={"training.steps": 1},
        progress=False,
    )
    file = tmp_path / "cue/cue.json"
    values = json.loads(file.read_text())
    del values["recipe"]  # as in a cue of version 0.1
    file.write_text(json.dumps({**values, "record_sha256": cue_file_digest(values)}))
    cue = softcue.load(tmp_path / "cue", tiny("bert"))
    assert cue.cue_file.recipe is None
    assert "recipe" not in repr(cue) and "recipe" not in model_card(cue.cue_file, "cue")


def test_the_command_line_passes_the_recipe_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    class Recorded(Exception):
        """Raised instead of running."""

    def record(*_: Any, **options: Any) -> Any:
        raise Recorded(options["recipe"])

    monkeypatch.setattr("softcue.api.make_training_run", record)
    for words, expected in (([], "default"), (["--recipe", "paper"], "paper")):
        with pytest.raises(Recorded, match=expected):
            run("train", "--task", "tickets", "--output-dir", tmp_path, *words)
    assert run("train", "--recipe", "papers").code == 2


# --- docs/papers.md ---


@pytest.mark.parametrize(
    ("heading", "num_tables", "num_figures"),
    [("Lester et al. 2021", 16, 4), ("Wu et al. 2022", 7, 9), ("Bhardwaj et al. 2022", 9, 5)],
)
def test_the_page_of_the_papers_has_every_table_and_figure(heading: str, num_tables: int, num_figures: int) -> None:
    page = (ROOT / "docs/papers.md").read_text("utf-8")
    [part] = [part for part in page.split("\n## ") if part.startswith(heading)]
    for kind, count in (("table", num_tables), ("figure", num_figures)):
        numbers: set[int] = set()
        for words in re.findall(rf"\b{kind}s? ([0-9]+[a-d]?(?:(?:, | and | to )[0-9]+)*)", part):
            given = [int(number) for number in re.findall(r"[0-9]+", words)]
            numbers |= set(range(given[0], given[-1] + 1)) if " to " in words else set(given)
        assert numbers >= set(range(1, count + 1)), kind


def test_the_page_of_the_papers_names_methods_and_settings_that_exist() -> None:
    page = (ROOT / "docs/papers.md").read_text("utf-8")
    named = set(re.findall(r"--method ([a-z0-9-]+)", page))
    assert named == set(METHODS.built_in) - set(WITHOUT_PAPER) - {"s-idpg-dnn", "m-idpg-dnn", "compacter"}
    fields = {key for method in METHODS.built_in.values() for key in method.Config.model_fields}
    assert set(re.findall(r"\bmethod\.([a-z_]+)=", page)) <= fields


# --- two steps of every paper ---


@cache
def backbone_of(model_type: str) -> Backbone:
    """A tiny backbone. T5 has no table of positions, so all 100 vectors of the papers fit into 512 tokens."""
    if model_type != "t5":
        return tiny(model_type)
    tokenizer = tiny_tokenizer(model_type)
    tokenizer.model_max_length = 512
    return Backbone(tiny(model_type).model, tokenizer, "tiny-t5")


def settings_for(method: str, backbone: Backbone, word_file: Path) -> dict[str, Any]:
    """What must be smaller on a tiny backbone with 96 positions and 400 words."""
    values: dict[str, Any] = {"training.steps": 2}
    recipe = paper_recipe(method, backbone.kind, TaskForm())
    length = recipe.settings.get("method.prompt_length")
    if length is not None and length.value >= backbone.max_length:
        values["method.prompt_length"] = 8
    if "method.codes" in recipe.settings:
        values["method.codes"] = 200
    if "method.glove_width" in recipe.settings:
        values["method.glove"] = str(word_file)
    return values


@pytest.fixture(scope="module")
def word_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """GloVe vectors of the paper's width for some words of the rows."""
    file = tmp_path_factory.mktemp("glove") / "glove.txt"
    numbers = torch.randn(3, 300, generator=torch.Generator().manual_seed(2)).tolist()
    words = ("invoice", "account", "refund")
    file.write_text(
        "".join(f"{word} {' '.join(f'{x:.3f}' for x in row)}\n" for word, row in zip(words, numbers, strict=True))
    )
    return file


@pytest.mark.parametrize(
    ("method", "model_type"),
    [
        (method, model_type)
        for method in METHODS.built_in
        for model_type in ONE_OF_EACH_KIND
        if KINDS[model_type] in METHODS[method].kinds
        and (method != "no-prompt" or model_type == "bert")  # without a head it has nothing to train
    ],
)
def test_the_papers_recipe_runs_two_steps(method: str, model_type: str, word_file: Path, tmp_path: Path) -> None:
    cue = softcue.train(
        tmp_path / "cue",
        backbone=backbone_of(model_type),
        method=method,
        recipe="paper",
        train=ROWS,
        validation=ROWS[:5],
        overrides={**LABELS, **settings_for(method, backbone_of(model_type), word_file)},
        progress=False,
    )
    assert cue.cue_file.recipe is not None and cue.cue_file.recipe.name == "paper"
    assert ("no recipe of a paper" in cue.cue_file.recipe.summary) == (method in WITHOUT_PAPER)
    if method != "linear-probe":
        assert cue.cue_file.training["steps_done"] == (2 if METHODS[method].needs_training else 0)
    assert len(cue.predict([EXAMPLES[0].texts[0]])) == 1
