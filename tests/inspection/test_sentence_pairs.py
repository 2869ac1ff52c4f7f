"""Cosines of sentence pairs with and without prompts, against reading one sentence at a time and sorting by numpy."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from command import check_error, run
from tiny import ONE_OF_EACH_KIND, tiny
from tolerance import REORDERED_FLOAT32
from torch import Tensor
from toy import CASES, PAIRS, make_model, works_on

import softcue
from softcue.backbones import Backbone, Pooling
from softcue.cue.cue import Cue
from softcue.errors import ConfigurationError, CueError
from softcue.inference import TaskModel
from softcue.inputs.collate import collate
from softcue.inspection import PairCosines, PairStudy, pair_parts, pair_picture, pair_study, text_vectors
from softcue.inspection.sentence_pairs import group_pairs, head_pooling
from softcue.tasks import Label, Task, examples_from
from softcue.types import Example, Instance, TokenizedRow

PNG = b"\x89PNG\r\n\x1a\n"
SENTENCES = [
    "The invoice is wrong.",
    "I cannot sign in to my account since this morning, please help me",
    "Where is it",
    "My order 77 never came and nobody answers the phone at all",
    "refund",
    "The parcel was sent to the wrong street",
    "Please send the invoice again",
]
ROWS = [
    {"one": first, "two": second, "score": (3 * row + 7 * column) % 26 / 5, "same": "yes" if row == column else "no"}
    for row, first in enumerate(SENTENCES)
    for column, second in enumerate(SENTENCES)
]
SCORES = Task(name="near", kind="regression", text=("one", "two"), label="score", scale=(0, 5, 0.2))
LABELS = Task(
    name="same",
    text=("one", "two"),
    label="same",
    labels={"no": Label(words="no"), "yes": Label(words="yes")},
)
PROMPTED = ["prompt-tuning", "m-idpg-phm", "vip", "prefix-tuning", "prompt-tuning late", "s-idpg-phm", "p-tuning-v2"]
CHANGED = ["adapter", "fine-tuning"]


def as_cue(model: TaskModel, backbone: Backbone) -> Cue:
    file: Any = type("File", (), {"task": model.task, "method": {"name": model.method.config.name}})
    return Cue(model, backbone, file)


def vector_of_one(model: TaskModel, backbone: Backbone, text: str, pooling: Pooling) -> Tensor:
    """A sentence vector by hand: one row, M(x) of this text alone, and the prompt's positions taken out."""
    ids = backbone.tokenizer(text)["input_ids"]
    if backbone.kind == "decoder" and ids[-1] == backbone.tokenizer.eos_token_id:
        ids = ids[:-1]
    method = model.method
    insert_at = int(method.insert_at == "start" and ids[0] in backbone.tokenizer.all_special_ids)
    view = method.view_of(backbone)
    batch = collate([TokenizedRow(tuple(ids), None, insert_at)], pad_id=0)
    representation = None
    if method.representation is not None:
        encoder = backbone.model.get_encoder() if backbone.kind == "encoder-decoder" else backbone.base
        states = encoder(input_ids=torch.tensor([ids])).last_hidden_state
        representation = pooled(states[0], method.representation.summary)[None]
    with torch.no_grad():
        embeds = view.input_states(batch)
        prompt = method.prompt(Instance(embeds, batch.mask, representation))
        hidden = view.read(batch, prompt, embeds).hidden()[0].float()
    num_prompt = 0 if prompt is None else prompt.tokens.shape[1]
    is_shared = len(hidden) == len(ids)  # a decoder may run a static prompt apart
    if not is_shared:
        hidden = torch.cat([hidden[:insert_at], hidden[insert_at + num_prompt :]])
    return pooled(hidden, pooling)


def pooled(states: Tensor, pooling: str) -> Tensor:
    return {"cls": states[0], "mean": states.mean(0), "last": states[-1]}[pooling]


@pytest.mark.parametrize("family", ONE_OF_EACH_KIND)
@pytest.mark.parametrize("case", [*PROMPTED, *CHANGED])
@torch.no_grad()
def test_sentence_vectors_are_those_of_reading_one_sentence_at_a_time(case: str, family: str) -> None:
    backbone = tiny(family)
    model = make_model(backbone, case, PAIRS, {"name": "classifier"})
    cue = as_cue(model, backbone)
    pooling = head_pooling(cue)
    vectors = text_vectors(cue, SENTENCES, batch_size=3)
    expected = torch.stack([vector_of_one(model, backbone, text, pooling) for text in SENTENCES])
    REORDERED_FLOAT32.assert_close(vectors, expected)
    plain = text_vectors(cue, SENTENCES, with_prompts=False, batch_size=3)
    assert float((vectors - plain).abs().amax(1).min()) > 1e-3  # prompts move every sentence


@torch.no_grad()
def test_a_prompt_among_the_embeddings_is_read_by_the_plain_model() -> None:
    """From token ids to vectors with nothing but the model of transformers."""
    backbone = tiny("bert")
    model = make_model(backbone, "prompt-tuning", PAIRS)
    prompt = model.method.prompt_parameters()[0]  # [P D]
    for pooling in ("cls", "mean", "last"):
        vectors = text_vectors(as_cue(model, backbone), SENTENCES, pooling=pooling)
        plain = text_vectors(as_cue(model, backbone), SENTENCES, pooling=pooling, with_prompts=False)
        for number, text in enumerate(SENTENCES):
            ids = torch.tensor(backbone.tokenizer(text)["input_ids"])
            words = backbone.model.get_input_embeddings()(ids)
            states = backbone.base(inputs_embeds=torch.cat([words[:1], prompt, words[1:]])[None]).last_hidden_state[0]
            without = backbone.base(input_ids=ids[None]).last_hidden_state[0]
            expected = pooled(torch.cat([states[:1], states[1 + len(prompt) :]]), pooling)
            REORDERED_FLOAT32.assert_close(vectors[number], expected)
            REORDERED_FLOAT32.assert_close(plain[number], pooled(without, pooling))


def test_a_method_that_reads_the_input_gives_each_sentence_its_own_prompt() -> None:
    backbone = tiny("bert")
    model = make_model(backbone, "s-idpg-phm", PAIRS)
    seen: list[Tensor] = []
    make_prompt = model.method.prompt

    def record(instance: Instance) -> Any:
        prompt = make_prompt(instance)
        assert prompt is not None
        seen.extend(prompt.tokens.detach())
        return prompt

    model.method.prompt = record  # type: ignore[method-assign]
    text_vectors(as_cue(model, backbone), SENTENCES)
    assert len(seen) == len(SENTENCES)
    distances = torch.cdist(torch.stack(seen).flatten(1), torch.stack(seen).flatten(1))
    assert float((distances + torch.eye(len(seen))).min()) > 1e-3


def test_a_prompt_between_two_texts_stands_behind_the_separator_of_one() -> None:
    backbone = tiny("bert")
    model = make_model(backbone, "prompt-tuning", PAIRS, insert_at="second-start")
    appended = make_model(backbone, "prompt-tuning", PAIRS, insert_at="appended")
    vectors = [text_vectors(as_cue(one_of_two, backbone), SENTENCES) for one_of_two in (model, appended)]
    REORDERED_FLOAT32.assert_close(vectors[0], vectors[1])


@pytest.mark.parametrize("case", ["linear-probe", "no-prompt"])
def test_a_method_that_changes_no_state_has_the_vectors_of_the_backbone(case: str) -> None:
    backbone = tiny("bert")
    cue = as_cue(make_model(backbone, case, PAIRS), backbone)
    REORDERED_FLOAT32.assert_close(text_vectors(cue, SENTENCES), text_vectors(cue, SENTENCES, with_prompts=False))


def test_prompts_around_a_mask_are_refused() -> None:
    backbone = tiny("bert")
    with pytest.raises(CueError, match="around a mask"):
        text_vectors(as_cue(make_model(backbone, "warp", LABELS), backbone), SENTENCES)


@pytest.mark.parametrize("case", sorted(case for case in CASES if works_on(case, "bert") and case != "warp"))
def test_every_method_can_be_studied(case: str) -> None:
    backbone = tiny("bert")
    settings = {"insert_at": "start"} if case.startswith("prompt-tuning") else {}
    cue = as_cue(make_model(backbone, case, LABELS, **settings), backbone)
    study = pair_study(cue, ROWS)
    assert [len(model.cosines) for model in study.models] == [49, 49]
    assert all(abs(cosine) <= 1 + 1e-9 for model in study.models for cosine in model.cosines)
    for model in study.models:  # a sentence with itself
        assert all(model.cosines[8 * number] == pytest.approx(1.0) for number in range(7))


@pytest.mark.parametrize("case", ["m-idpg-phm", "prompt-tuning"])
def test_counts_are_those_of_numpy_sorting(case: str) -> None:
    backbone = tiny("bert")
    model = make_model(backbone, case, SCORES)
    study = pair_study(as_cue(model, backbone), ROWS, tops=[20, 5, 12], batch_size=4)
    assert study.tops == [5, 12, 20]
    assert study.groups == ["0 to 1", "1 to 2", "2 to 3", "3 to 4", "4 to 5"]
    scores = numpy.array([float(row["score"]) for row in ROWS])  # type: ignore[arg-type]
    groups = numpy.minimum(numpy.floor(scores + 1e-9), 4).astype(int)
    assert study.group_sizes == numpy.bincount(groups, minlength=5).tolist()
    vectors = {text: vector_of_one(model, backbone, text, study.pooling).double().numpy() / 1.0 for text in SENTENCES}
    u, v = (numpy.stack([vectors[str(row[column])] for row in ROWS]) for column in ("one", "two"))
    cosines = (u * v).sum(1) / numpy.linalg.norm(u, axis=1) / numpy.linalg.norm(v, axis=1)
    assert study.models[1].cosines == REORDERED_FLOAT32.approx(cosines.tolist())
    assert study.models[0].cosines != REORDERED_FLOAT32.approx(cosines.tolist())
    for entry in study.models:
        order = numpy.argsort(-numpy.array(entry.cosines), kind="stable")
        for top in study.tops:
            assert study.counts(entry, top) == numpy.bincount(groups[order[:top]], minlength=5).tolist()
        means = [numpy.array(entry.cosines)[groups == group].mean() for group in range(5)]
        assert study.mean_cosines(entry) == pytest.approx(means)
    assert sum(study.by_chance(12)) == pytest.approx(12)
    assert study.by_chance(49) == pytest.approx(study.group_sizes)


def test_the_correlation_is_that_of_ranks() -> None:
    study = PairStudy("toy", "mean", ["all"], [0, 0, 0, 0], [1], [PairCosines("m", [0.1, 0.2, 0.4, 0.3])], [1, 2, 3, 4])
    assert study.correlation(study.models[0]) == pytest.approx(80.0)  # 1 - 6 * 2 / (4 * 15)


def test_of_equal_pairs_the_first_in_the_file_comes_first() -> None:
    assert PairCosines("m", [0.5, 1.0, 0.5, 1.0, 0.5]).nearest(4) == [1, 3, 0, 2]


def test_groups_are_ranges_of_the_scale_or_of_the_rows_or_labels() -> None:
    def numbers(task: Task, *targets: float | str, num_groups: int = 5) -> tuple[list[str], list[int]]:
        return group_pairs(task, [Example(("a", "b"), target) for target in targets], num_groups)

    assert numbers(SCORES, 0.0, 0.999, 1.0, 3.999, 4.0, 5.0)[1] == [0, 0, 1, 3, 4, 4]
    assert numbers(SCORES, -1.0, 6.0)[1] == [0, 4]  # outside of the scale
    free = SCORES.model_copy(update={"scale": None})
    assert numbers(free, 10.0, 20.0, 14.0, num_groups=2) == (["10 to 15", "15 to 20"], [0, 1, 0])
    assert numbers(free, 0.0, 0.6, 1.0)[1] == [0, 3, 4]  # 0.6 / 0.2 is below 3 in floating point
    assert numbers(free, 2.0, 2.0) == (["2"], [0, 0])
    assert numbers(LABELS, "yes", "no") == (["no", "yes"], [1, 0])
    assert numbers(LABELS.model_copy(update={"labels": {}}), "b", "a") == (["a", "b"], [1, 0])


def test_labels_are_groups_and_few_pairs_have_the_papers_shares() -> None:
    backbone = tiny("bert")
    study = pair_study(as_cue(make_model(backbone, "prompt-tuning", LABELS), backbone), ROWS)
    assert (study.groups, study.group_sizes, study.tops) == (["no", "yes"], [42, 7], [3, 7, 10])
    assert study.scores == [] and study.correlation(study.models[0]) is None
    assert study.counts(study.models[1], 7) == [0, 7]  # equal sentences are nearest
    assert study.lengths is not None and study.lengths.mean_difference == 0


def test_a_cue_for_one_text_is_studied_on_the_pairs_of_another_task() -> None:
    backbone = tiny("bert")
    cue = as_cue(make_model(backbone), backbone)
    with pytest.raises(ConfigurationError, match="two texts"):
        pair_study(cue, ROWS)
    study = pair_study(cue, ROWS, SCORES)
    assert study.num_pairs == 49
    assert pair_study(cue, task="same-request").name == "same-request (test)"
    with pytest.raises(ConfigurationError, match="a score or a label"):
        pair_study(cue, ROWS, Task(name="free", kind="generation", text=("one", "two"), label="same"))


def test_several_cues_are_compared_on_one_backbone_only() -> None:
    backbone = tiny("bert")
    cues = [as_cue(make_model(backbone, case, LABELS), backbone) for case in ("prompt-tuning", "m-idpg-phm")]
    study = pair_study(cues, ROWS)
    assert [model.name for model in study.models] == ["without prompts", "same (prompt-tuning)", "same (m-idpg-phm)"]
    alone = pair_study(cues[1], ROWS)
    assert study.models[2].cosines == REORDERED_FLOAT32.approx(alone.models[1].cosines)
    other = tiny("roberta")
    with pytest.raises(CueError, match="one backbone"):
        pair_study([cues[0], as_cue(make_model(other, "prompt-tuning", LABELS), other)], ROWS)


def test_more_nearest_pairs_than_pairs_are_refused() -> None:
    backbone = tiny("bert")
    cue = as_cue(make_model(backbone, "prompt-tuning", LABELS), backbone)
    for top in (0, 50):
        with pytest.raises(ConfigurationError, match="1 to 49"):
            pair_study(cue, ROWS, tops=[top])


def test_long_sentences_are_cut_and_counted() -> None:
    backbone = tiny("bert")
    cue = as_cue(make_model(backbone, "prompt-tuning", LABELS), backbone)
    rows = [{"one": "refund " * 200, "two": "refund", "same": "no"}, {"one": "a", "two": "b", "same": "yes"}]
    assert pair_study(cue, rows).num_truncated == 1


def test_the_part_of_the_page_and_the_picture_show_every_k() -> None:
    groups, names = ["<low>", "high"], ["without prompts", "a <cue>"]
    models = [PairCosines(name, [0.1 * number, 0.5, 0.9]) for number, name in enumerate(names)]
    study = PairStudy("rows", "mean", groups, [0, 1, 1], [1, 2], models, [0.0, 1.0, 2.0])
    page = "".join(pair_parts(study))
    assert page.count("<svg") == 3
    assert page.count("by chance") >= 3
    assert "&lt;low&gt;" in page and "<low>" not in page and "<cue>" not in page
    assert re.search(r"the 2 nearest of 3 pairs", page)
    assert pair_picture(study).startswith(PNG)
    empty_group = PairStudy("rows", "mean", ["a", "b", "c"], [0, 1, 1], [1], models)
    assert "-" in "".join(pair_parts(empty_group)) and pair_picture(empty_group).startswith(PNG)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pairs")
    tiny("bert").save(folder / "backbone")
    (folder / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    given: dict[str, Any] = {"backbone": str(folder / "backbone"), "train": ROWS, "validation": ROWS}
    few = {"training.steps": 2, "task.kind": "regression"}
    for name, method in {"plain": "prompt-tuning", "reading": "m-idpg-phm"}.items():
        softcue.train(
            folder / name,
            method=method,
            text=["one", "two"],
            label="score",
            overrides=few,
            prompt_length=3,
            progress=False,
            **given,
        )
    return {path.name: path for path in folder.iterdir()}


def test_inspect_shows_pairs_in_the_terminal_in_json_and_on_the_page(folders: dict[str, Path], tmp_path: Path) -> None:
    words = ["inspect", folders["reading"], "--pairs", folders["rows.jsonl"]]
    shown = run(*words, "--output-dir", tmp_path / "page")
    assert shown.code == 0
    for part in ("49 sentence pairs", "nearest 7", "without prompts", "by chance", "mean cosine", "Spearman", "m-idpg"):
        assert part in shown.out
    assert "loss" in shown.out  # and what it shows without pairs
    page = (tmp_path / "page" / "index.html").read_text("utf-8")
    assert "Sentence pairs of" in page and "Lengths of the two sentences" in page and "<h2>Scores</h2>" in page
    assert not re.search(r"(src|href)=[\"'](?!data:)", page)
    assert (tmp_path / "page" / "pairs.png").read_bytes().startswith(PNG)
    printed = run(*words, "--json", "--pairs-top", "5,20").json["pairs"]
    assert printed["pairs"] == 49 and list(printed["models"][1]["top"]) == ["5", "20"]
    assert sum(printed["models"][1]["top"]["20"].values()) == 20
    cue = softcue.load(folders["reading"])
    study = pair_study(cue, folders["rows.jsonl"], tops=[5, 20])
    assert printed == study.as_dict()
    assert examples_from(folders["rows.jsonl"], cue.task)[0].target == study.scores[0]
    assert run("inspect", folders["reading"], "--json").json["pairs"] is None


def test_inspect_compares_several_cues_on_pairs(folders: dict[str, Path], tmp_path: Path) -> None:
    words = ["inspect", folders["plain"], folders["reading"], "--pairs", folders["rows.jsonl"]]
    shown = run(*words, "--output-dir", tmp_path / "page")
    assert shown.code == 0
    assert "plain (prompt-tuning)" in shown.out and "reading (m-idpg-phm)" in shown.out
    assert sorted(path.name for path in (tmp_path / "page").iterdir()) == ["index.html", "pairs.png"]
    printed = run(*words, "--json").json
    assert [model["name"] for model in printed["pairs"]["models"]][1:] == [
        "plain (prompt-tuning)",
        "reading (m-idpg-phm)",
    ]
    assert printed["cues"] == [str(folders["plain"]), str(folders["reading"])]


@pytest.mark.filterwarnings("default:skipped")
def test_inspect_reads_pairs_with_other_columns(folders: dict[str, Path], tmp_path: Path) -> None:
    file = tmp_path / "other.jsonl"
    names = {"one": "left", "two": "right", "score": "value"}
    lines = ({names[key]: value for key, value in row.items() if key in names} for row in ROWS)
    file.write_text("".join(json.dumps(line) + "\n" for line in [*lines, {"left": "", "right": "b", "value": 1}]))
    columns = [word for key, name in names.items() for word in ("--column", f"{name}={key}")]
    words = ["inspect", folders["plain"], "--pairs", file, *columns]
    check_error(run(*words), "line 50", "not empty")
    skipped = run(*words, "--skip-bad-rows", "--json")
    assert skipped.json["pairs"]["pairs"] == 49
    assert "skipped 1 of 50" in skipped.err
    same = run("inspect", folders["plain"], "--pairs", folders["rows.jsonl"], "--pairs-task", "rte")
    check_error(same, "sentence1")


def test_wrong_words_about_pairs_are_errors_of_one_line(folders: dict[str, Path], tmp_path: Path) -> None:
    words = ["inspect", folders["plain"], "--pairs", folders["rows.jsonl"]]
    check_error(run(*words, "--pairs-top", "ten"), "--pairs-top", "100,200,300")
    check_error(run(*words, "--pairs-top", "500"), "1 to 49")
    check_error(run(*words, "--pairs-task", "stsp"), "stsb")
    check_error(run(*words[:3], tmp_path / "none.csv"), "none.csv")
    check_error(run(*words[:3], tmp_path, "--column", "a=one"), "column")
    for option in (("--pairs-top", "5"), ("--pairs-task", "rte")):
        check_error(run("inspect", folders["plain"], *option), "--pairs FILE")


def test_pairs_without_matplotlib_lack_only_the_picture(
    folders: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    shown = run("inspect", folders["plain"], "--pairs", folders["rows.jsonl"], "--output-dir", tmp_path / "page")
    assert shown.code == 0
    assert "on the page only" in shown.err
    assert [path.name for path in (tmp_path / "page").iterdir()] == ["index.html"]
