"""The similarity of prompts against slow computations, where it is refused, and `inspect` with several cues."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command import check_error, run
from tiny import ONE_OF_EACH_KIND, tiny
from torch.nn import functional

import softcue
from softcue.errors import CueError
from softcue.inputs.collate import collate
from softcue.inspection.comparison import compare_cues
from softcue.inspection.comparison_page import comparison_page
from softcue.inspection.comparison_pictures import curves_picture
from softcue.inspection.similarity import WORDS, best_match, cosines_between, placed_prompt, prompt_similarity
from softcue.prompts.deep import DeepPrompt
from softcue.tasks import examples_from
from softcue.types import Instance

ROWS = [
    {"text": f"{text} {number}", "label": label}
    for number in range(3)
    for text, label in [("The invoice is wrong", "billing"), ("I cannot sign in", "access")]
]
PNG = b"\x89PNG\r\n\x1a\n"


def train(
    folder: Path, method: str = "prompt-tuning", model_type: str = "bert", backbone: object = None, **overrides: object
) -> softcue.Cue:
    given = {"training.steps": 2, "training.evaluate_every": 1, **overrides}
    return softcue.train(
        folder,
        backbone=backbone or tiny(model_type),  # type: ignore[arg-type]
        method=method,
        train=ROWS,
        validation=ROWS,
        overrides=given,
        progress=False,
    )


def test_the_best_match_is_that_of_comparing_vector_by_vector() -> None:
    generator = torch.Generator().manual_seed(0)
    first, second = torch.randn(4, 6, generator=generator), torch.randn(3, 6, generator=generator)
    cosine = [[float(functional.cosine_similarity(a, b, dim=0)) for b in second] for a in first]
    there = sum(max(row) for row in cosine) / 4
    back = sum(max(row[column] for row in cosine) for column in range(3)) / 3
    cosines = cosines_between({WORDS: first}, {WORDS: second})
    assert best_match(cosines) == pytest.approx((there + back) / 2, abs=1e-5)
    rearranged = cosines_between({WORDS: first}, {WORDS: 7 * first[[2, 0, 3, 1]]})
    assert best_match(rearranged) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("model_type", ONE_OF_EACH_KIND)
def test_prompts_in_layers_are_taken_where_they_are(model_type: str, tmp_path: Path) -> None:
    settings = {"method.prompt_length": 2, "method.rule": "kv"}
    cue = train(tmp_path / "cue", "p-tuning-v2", model_type, **settings)
    prompt = placed_prompt(cue)
    parameters = dict(cue.model.method.named_parameters())
    assert len(prompt.vectors) == 2 * len(parameters) == 2 * cue.backbone.num_layers
    for layer, value in enumerate(parameters.values()):
        keys, values = value.detach().chunk(2, dim=1)
        assert torch.allclose(prompt.vectors[f"keys of layer {layer}"], keys)
        assert torch.allclose(prompt.vectors[f"values of layer {layer}"], values)
    assert prompt.table is None


def test_a_prompt_with_an_attention_of_its_own_is_taken_in_the_layers_units(tmp_path: Path) -> None:
    settings = {"method.prompt_length": 2, "method.rule": "parallel"}
    cue = train(tmp_path / "cue", "p-tuning-v2", **settings)
    prompt, encoder = placed_prompt(cue), cue.model.method.prompt_encoder()
    assert isinstance(encoder, DeepPrompt) and encoder.units is not None
    for layer, value in enumerate(encoder.vectors()):
        keys, values = encoder.units(value.detach(), layer).chunk(2, dim=1)
        assert torch.allclose(prompt.vectors[f"parallel keys of layer {layer}"], keys)
        assert torch.allclose(prompt.vectors[f"parallel values of layer {layer}"], values)
    similarity = prompt_similarity({"cue": prompt, "other": placed_prompt(train(tmp_path / "other", "p-tuning-v2"))})
    assert similarity.best_match[0][0] == pytest.approx(1.0, abs=1e-5) and not similarity.is_empty


def test_values_of_zero_as_in_the_first_step_are_left_out(tmp_path: Path) -> None:
    cue, other = (train(tmp_path / name, "p-tuning-v2", **{"method.prompt_length": 2}) for name in ("cue", "other"))
    encoder = cue.model.method.prompt_encoder()
    assert encoder is not None
    for vectors in encoder.parameters():
        vectors.data.chunk(2, dim=1)[1].zero_()
    similarity = prompt_similarity({"cue": placed_prompt(cue), "other": placed_prompt(other)})
    assert similarity.best_match[0][0] == pytest.approx(1.0, abs=1e-5)
    assert similarity.best_match[0][1] is not None and not similarity.notes


def test_a_static_prompt_is_itself(tmp_path: Path) -> None:
    cue = train(tmp_path / "cue", **{"method.prompt_length": 3})
    encoder = cue.model.method.prompt_encoder()
    assert encoder is not None
    assert torch.equal(placed_prompt(cue).vectors[WORDS], encoder.static_vectors())  # type: ignore[arg-type]


def test_a_prompt_that_reads_the_input_is_its_mean_over_rows(tmp_path: Path) -> None:
    settings = {"method.prompt_length": 3, "method.width": 8, "method.hard_prompt": "task"}
    cue = train(tmp_path / "cue", "vip-c", **settings)
    with pytest.raises(CueError, match="depends on the input"):
        placed_prompt(cue)
    examples = examples_from(ROWS, cue.task)
    encoder = cue.model.method.prompt_encoder()
    assert encoder is not None
    total = torch.zeros(3, 32)
    with torch.no_grad():
        for row in cue.model.rows(cue.backbone, examples):
            batch = collate([row], cue.backbone.tokenizer.pad_token_id)
            # the words of the hard prompt stand in front and are not learned
            total += encoder(Instance(cue.backbone.embed(batch.ids), batch.mask)).tokens[0, -3:]
    vectors = placed_prompt(cue, examples, batch_size=4).vectors[WORDS]
    assert torch.allclose(vectors, total / len(examples), atol=1e-5)


def test_a_method_without_a_prompt_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CueError, match="not in a prompt"):
        placed_prompt(train(tmp_path / "cue", "adapter"))


def test_only_prompts_of_one_space_are_compared(tmp_path: Path) -> None:
    cue = train(tmp_path / "cue", **{"method.prompt_length": 3})
    deep = train(tmp_path / "deep", "p-tuning-v2", **{"method.prompt_length": 3, "method.rule": "kv"})
    first = placed_prompt(cue)
    moved = replace(first, vectors={WORDS: first.vectors[WORDS].flip(0)})
    similarity = prompt_similarity(
        {"first": first, "reasoned": "it is ill", "deep": placed_prompt(deep), "moved": moved}
    )
    assert similarity.names == ["first", "reasoned", "deep", "moved"]
    assert similarity.best_match[0][3] == similarity.best_match[3][0] == pytest.approx(1.0, abs=1e-5)
    assert similarity.best_match[2][2] == pytest.approx(1.0, abs=1e-5)
    missing = [(0, 1), (0, 2), (1, 1), (2, 3)]
    assert all(similarity.best_match[row][column] is None for row, column in missing)
    assert similarity.mean_vector[0][3] == pytest.approx(1.0, abs=1e-5)
    cosines = cosines_between(first.vectors, moved.vectors)
    assert similarity.all_pairs[0][3] == pytest.approx(float(cosines.mean()), abs=1e-6)
    assert similarity.random[0][3] is not None and similarity.random[0][3] < 0.9
    assert similarity.random[2][2] is None  # there are no words in layers
    assert any("it is ill" in note for note in similarity.notes)
    assert any("different places" in note and "first, moved" in note for note in similarity.notes)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("several")
    for model_type in ("bert", "gpt2"):
        tiny(model_type).save(folder / model_type)
    small = {"method.prompt_length": 3}
    train(folder / "a", backbone=str(folder / "bert"), **small)
    train(folder / "b", backbone=str(folder / "bert"), **{"method.prompt_length": 5, "method.init": "vocabulary"})
    train(folder / "vip", "vip-c", backbone=str(folder / "bert"), **{**small, "method.width": 8})
    train(folder / "gpt", backbone=str(folder / "gpt2"), **small)
    (folder / "rows.jsonl").write_text("".join(json.dumps({"message": row["text"]}) + "\n" for row in ROWS))
    return {path.name: path for path in folder.iterdir()}


def test_inspect_compares_several_cues(folders: dict[str, Path], tmp_path: Path) -> None:
    words = ["inspect", *(folders[name] for name in ("a", "vip", "gpt", "b"))]
    shown = run(*words, "--output-dir", tmp_path / "page")
    assert shown.code == 0, shown.err
    for part in ("4 cues", "default", "validation score by step", "similarity of prompts", "no other cue is on its"):
        assert part in shown.out
    assert "--data FILE" in shown.out  # for the prompt that reads the input
    names = sorted(path.name for path in (tmp_path / "page").iterdir())
    assert names == ["curves.png", "index.html", "similarity.png"]
    assert all((tmp_path / "page" / name).read_bytes().startswith(PNG) for name in ("curves.png", "similarity.png"))
    page = (tmp_path / "page" / "index.html").read_text("utf-8")
    assert page.count("<polyline") == 4
    assert not re.search(r"(src|href)=[\"'](?!data:)", page)
    printed = run(*words, "--json").json
    assert [cue["name"] for cue in printed["cues"]] == ["a", "vip", "gpt", "b"]
    assert {cue["name"]: [step for step, _ in cue["curve"]["scores"]] for cue in printed["cues"]} == {
        "a": [0, 1, 2],  # a head that is solved is evaluated before the first step
        "vip": [0, 1, 2],
        "gpt": [1, 2],
        "b": [0, 1, 2],
    }
    matrix = printed["similarity"]["best_match"]
    assert matrix[0][3] == pytest.approx(matrix[3][0], abs=1e-5)
    assert matrix[0][0] == pytest.approx(1.0, abs=1e-5)
    assert matrix[0][1] is None and matrix[0][2] is None


def test_rows_let_prompts_that_read_the_input_be_compared(folders: dict[str, Path]) -> None:
    words = ["inspect", folders["a"], folders["vip"], "--data", folders["rows.jsonl"]]
    check_error(run(*words), "text")
    check_error(run(*words, "--column", "message=txt"), "txt")
    printed = run(*words, "--column", "message=text", "--json").json
    assert printed["similarity"]["best_match"][0][1] is not None
    assert printed["similarity"]["notes"] == []
    unused = run("inspect", folders["a"], folders["b"], "--data", folders["rows.jsonl"], "--json").json
    assert "is not used" in unused["similarity"]["notes"][0]


def test_a_backbone_that_is_gone_leaves_scores_and_curves(folders: dict[str, Path], tmp_path: Path) -> None:
    tiny("bert").save(tmp_path / "gone")
    train(tmp_path / "c", backbone=str(tmp_path / "gone"))
    train(tmp_path / "d", backbone=str(tmp_path / "gone"))
    (tmp_path / "gone").rename(tmp_path / "moved")
    comparison = compare_cues([tmp_path / "c", tmp_path / "d"])
    assert comparison.similarity.is_empty
    assert len(comparison.validation_curves) == 2
    assert all("gone" in note for note in comparison.similarity.notes)
    assert run("inspect", tmp_path / "c", tmp_path / "d", "--output-dir", tmp_path / "page").code == 0
    assert "No two prompts can be compared" in (tmp_path / "page" / "index.html").read_text("utf-8")
    assert not compare_cues([tmp_path / "c", tmp_path / "d"], backbone=str(tmp_path / "moved")).similarity.is_empty


def test_cues_with_one_name_are_told_apart_and_a_copy_is_refused(folders: dict[str, Path], tmp_path: Path) -> None:
    train(tmp_path / "a", backbone=str(folders["bert"]), **{"method.prompt_length": 2})
    names = compare_cues([folders["a"], tmp_path / "a"]).similarity.names
    assert names == [str(folders["a"]), str(tmp_path / "a")]
    check_error(run("inspect", folders["a"], folders["a"]), "every cue once")


def test_tasks_that_were_trained_together_also_have_a_mean_curve(tmp_path: Path) -> None:
    tiny("bert").save(tmp_path / "backbone")
    softcue.train(
        tmp_path / "joint",
        tasks=["tickets", "urgency"],
        backbone=str(tmp_path / "backbone"),
        method="prompt-tuning",
        overrides={"training.steps": 2, "training.evaluate_every": 1, "method.prompt_length": 9},
        progress=False,
    )
    comparison = compare_cues([tmp_path / "joint" / "tickets", tmp_path / "joint" / "urgency"])
    [(name, points)] = comparison.mean_curves.items()
    assert name == "joint: prompt-tuning, mean of 2 tasks"
    curves = [dict(cue.curve.scores) for cue in comparison.cues]
    assert points == [(step, (curves[0][step] + curves[1][step]) / 2) for step in (0, 1, 2)]
    page = comparison_page(comparison)
    assert page.count("<polyline") == 3
    [*_, first, second, third, fourth] = comparison.score_rows()[1]  # each task has its own baselines
    assert [line[:2] for line in (first, second, third, fourth)] == [
        [name, task] for task in ("tickets", "urgency") for name in ("majority class", "zero-shot")
    ]
    assert first[-1] == "16.7\N{NO-BREAK SPACE}(126)" and third[-1] == "33.3\N{NO-BREAK SPACE}(126)"
    assert page.count(">zero-shot<") == 2
    assert curves_picture(comparison).startswith(PNG)
    assert comparison.similarity.best_match[0][1] == pytest.approx(1.0, abs=1e-5)  # they share their parameters


def test_baselines_stand_below_the_scores_as_the_cues_record_them(folders: dict[str, Path], tmp_path: Path) -> None:
    words = ["inspect", folders["a"], folders["b"]]
    shown = run(*words, "--output-dir", tmp_path).out
    page = (tmp_path / "index.html").read_text("utf-8")
    for part in (shown, page):
        assert part.index("prompt-tuning") < part.index("majority class") < part.index("zero-shot")
    recorded = softcue.load(folders["a"]).cue_file.baselines
    assert run(*words, "--json").json["cues"][0]["baselines"] == recorded
    comparison = compare_cues([folders["a"], folders["b"]])
    [majority, zero_shot] = comparison.score_rows()[1][2:]
    assert majority[-1].startswith(f"{recorded['validation']['majority_class']['accuracy']:.1f}")
    assert zero_shot[4] == comparison.cues[0].cue_file.backbone.name


def test_baselines_that_differ_say_whose_they_are(folders: dict[str, Path], tmp_path: Path) -> None:
    first, second, third = compare_cues([folders["a"], folders["b"], folders["vip"]]).cues
    changed = {"validation": {"majority_class": {"accuracy": 12.5}}}
    other = replace(second, cue_file=second.cue_file.model_copy(update={"baselines": changed}))
    comparison = replace(compare_cues([folders["a"], folders["b"]]), cues=[first, other, third])
    names = [line[0] for line in comparison.score_rows()[1][3:]]
    assert names == ["majority class (a, vip)", "majority class (b)", "zero-shot (a, vip)"]


def test_a_page_without_matplotlib_lacks_only_the_pictures(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    for cues in (["a", "b"], ["a"]):
        shown = run("inspect", *(folders[name] for name in cues), "--output-dir", tmp_path / cues[-1])
        assert shown.code == 0
        assert "plots" in shown.err
        assert [path.name for path in (tmp_path / cues[-1]).iterdir()] == ["index.html"]
