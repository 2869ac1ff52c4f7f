from __future__ import annotations

import re
import string
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import yaml

from softcue.errors import ConfigurationError, DataError
from softcue.evaluation import check_metric
from softcue.evaluation.evaluation_set import match_labels
from softcue.tasks import examples_from
from softcue.tasks.catalogue import (
    LIBRARY,
    find_task,
    library_names,
    library_task,
    match_files,
    sources,
    with_local_files,
)
from softcue.tasks.formats import FORMATS
from softcue.tasks.task import SPLITS, Task
from softcue.tasks.task_docs import input_formats, page, section, sizes

SAMPLES = {"reply-form", "same-request", "tickets", "urgency"}
NAMED = {
    "sst2",
    "qnli",
    "rte",
    "mrpc",
    "stsb",
    "qqp",
    "mnli",
    "cr",
    "mr",
    "subj",
    "mpqa",
    "trec",
    "boolq",
    "cb",
    "copa",
    "multirc",
    "record",
    "superglue-rte",
    "wic",
    "wsc",
    "axb",
    "axg",
    "squad",
    "newsqa",
    "triviaqa",
    "searchqa",
    "hotpotqa",
    "naturalquestions",
    "bioasq",
    "drop",
    "duorc",
    "mrqa-race",
    "relation-extraction",
    "textbookqa",
    "squadshifts-amazon",
    "squadshifts-new-wiki",
    "squadshifts-nyt",
    "squadshifts-reddit",
    "race-middle",
    "semeval2010-8",
    "tacred",
    "conll2003",
    "anli",
    "anli-r1",
    "anli-r2",
    "anli-r3",
    "snli",
}
# Tables 8 to 16 of Lester et al. 2021: the share of a label in per cent. Its 51.2 for RTE's training rows is left out:
# it makes 101 with the 49.8 beside it.
LESTER = {
    ("boolq", "train"): {"false": 37.7, "true": 62.3},
    ("boolq", "validation"): {"false": 37.8, "true": 62.2},
    ("cb", "train"): {"contradiction": 47.6, "entailment": 46.0, "neutral": 6.4},
    ("cb", "validation"): {"contradiction": 50.0, "entailment": 41.1, "neutral": 8.9},
    ("copa", "train"): {"choice1": 48.8, "choice2": 51.2},
    ("copa", "validation"): {"choice1": 55.0, "choice2": 45.0},
    ("multirc", "train"): {"false": 55.9, "true": 44.1},
    ("multirc", "validation"): {"false": 57.2, "true": 42.8},
    ("wic", "train"): {"false": 50.0, "true": 50.0},
    ("wic", "validation"): {"false": 50.0, "true": 50.0},
    ("wsc", "validation"): {"false": 63.5, "true": 36.5},
    ("superglue-rte", "train"): {"not_entailment": 49.8},
    ("superglue-rte", "validation"): {"entailment": 52.7, "not_entailment": 47.3},
    ("mrpc", "train"): {"equivalent": 67.4, "not_equivalent": 32.6},
    ("mrpc", "validation"): {"equivalent": 68.4, "not_equivalent": 31.6},
    ("qqp", "validation"): {"duplicate": 36.8, "not_duplicate": 63.2},
}
TASKS = [library_task(name) for name in library_names()]
PUBLISHED = [task for task in TASKS if task.name not in SAMPLES]
every = pytest.mark.parametrize("task", TASKS, ids=lambda task: task.name)
every_published = pytest.mark.parametrize("task", PUBLISHED, ids=lambda task: task.name)


def fields(template: str) -> set[str]:
    return {name for _, name, _, _ in string.Formatter().parse(template) if name}


def test_library_has_the_tasks_of_the_papers() -> None:
    assert set(library_names()) == NAMED | SAMPLES


@every
def test_task_has_the_name_of_its_file_and_all_fields(task: Task) -> None:
    assert library_task(task.name) is library_task(task.name)
    assert yaml.safe_load((LIBRARY / f"{task.name}.yaml").read_text("utf-8"))["name"] == task.name
    assert re.fullmatch(r"[A-Z].*\.", task.description)
    assert task.citation and task.licence
    assert task.format in {"", *FORMATS}
    check_metric(task)


@every
def test_templates_use_the_columns(task: Task) -> None:
    read = task.text[:-1] if task.kind == "referent" else task.text
    assert fields(task.template or "".join(f"{{{name}}}" for name in task.text)) == set(read)
    if len(task.text) > 2:
        assert len(task.sentences) == 2  # the plain columns would be one long text
    if task.sentences and task.kind != "span":  # an encoder marks the answer in the text; it needs no list of entities
        assert set().union(*map(fields, task.sentences)) == set(task.text)
    assert "{" not in "".join(input_formats(task).values())


@every
def test_labels_are_distinct(task: Task) -> None:
    assert bool(task.labels) == (task.kind in ("classification", "tags", "referent"))
    assert len(set(task.label_words)) == len(task.labels)
    values = Counter(value for name, label in task.labels.items() for value in (name, *label.also))
    assert [value for value, count in values.items() if count > 1] == []
    assert all(task.label_of(value) == name for name, label in task.labels.items() for value in label.also)
    assert all(re.fullmatch(r"\S.*", label.description) and label.words.strip() for label in task.labels.values())
    if task.name not in SAMPLES:  # sentences, which EFL reads as hypotheses
        assert all(re.fullmatch(r"[A-Z].*\.", label.description) for label in task.labels.values())


@every_published
def test_published_label_counts_add_up(task: Task) -> None:
    assert task.published
    for size in (*task.published.values(), *task.parts.values()):
        assert set(size.labels) <= set(task.labels)
        if size.labels and task.kind != "tags":
            assert set(size.labels) == set(task.labels)
            assert sum(size.labels.values()) == size.rows
    listed = [place for split in task.files.values() for place in split]
    assert set(task.parts) <= set(listed)
    for split, of_split in task.files.items():
        assert split in task.published  # so that a check has something to compare with
        for place in set(of_split) & set(task.parts):
            assert task.parts[place].rows < task.published[split].rows


@every_published
def test_rows_come_from_known_sources(task: Task) -> None:
    for split in SPLITS:
        source = getattr(task, split)
        assert not source or re.fullmatch(r"hub:[\w.-]+/[\w.-]+(#[\w.-]+)?@\w+(\+\w+)*", source)
        assert not source or split in task.published
    assert task.files
    assert all(not Path(place).is_absolute() for split in task.files.values() for place in split)


@pytest.mark.parametrize(("key", "shares"), LESTER.items(), ids=lambda value: "-".join(value))
def test_label_shares_equal_those_of_the_paper(key: tuple[str, str], shares: dict[str, float]) -> None:
    size = library_task(key[0]).published[key[1]]
    for name, share in shares.items():
        assert abs(100 * size.labels[name] / size.rows - share) <= 0.1


def test_rounds_of_anli_add_up_to_the_whole() -> None:
    rounds = [library_task(f"anli-r{number}").published for number in (1, 2, 3)]
    for split, size in library_task("anli").published.items():
        assert size.rows == sum(published[split].rows for published in rounds)
        assert size.labels == dict(sum((Counter(published[split].labels) for published in rounds), Counter()))


def test_relations_are_complete() -> None:
    assert len(library_task("semeval2010-8").labels) == 19
    assert len(library_task("tacred").labels) == 42
    assert library_task("semeval2010-8").labels["Cause-Effect(e1,e2)"].words == "cause-effect (e1,e2)"


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("qqp", "mrpc"),
        ("mrpc", "qqp"),
        ("sst2", "cr"),
        ("mr", "sst2"),
        ("rte", "cb"),
        ("superglue-rte", "axb"),
        ("anli", "cb"),
        ("anli", "axb"),
        ("anli", "axg"),
        ("snli", "rte"),
        ("mnli", "snli"),
        ("snli", "anli-r3"),
        ("squad", "squadshifts-amazon"),
        ("squad", "duorc"),
        ("newsqa", "mrqa-race"),
    ],
)
def test_related_tasks_match(ours: str, theirs: str) -> None:
    match_labels(library_task(ours), library_task(theirs))


def test_meanings_of_related_tasks() -> None:
    def meanings(name: str) -> dict[str, set[str]]:
        return {name: {name, *label.means} for name, label in library_task(name).labels.items()}

    assert meanings("qqp")["duplicate"] & meanings("mrpc")["equivalent"] == {"paraphrase"}
    assert meanings("qqp")["not_duplicate"] & meanings("mrpc")["not_equivalent"] == {"not_paraphrase"}
    for name in ("mnli", "cb", "anli", "anli-r1", "snli"):
        assert [label for label, means in meanings(name).items() if "not_entailment" in means] == [
            "neutral",
            "contradiction",
        ]


# --- rows as the public releases spell them; the texts are written for these tests ---

PAIR = {"premise": "Ann won.", "hypothesis": "Ann ran."}
ROWS: list[tuple[str, dict[str, Any], object]] = [
    ("mrpc", {"Quality": "1", "#1 ID": "3", "#1 String": "Ann won.", "#2 String": "Ann ran."}, "equivalent"),
    ("qqp", {"question1": "Who won?", "question2": "Who ran?", "is_duplicate": "0"}, "not_duplicate"),
    ("stsb", {"sentence1": "Ann won.", "sentence2": "Ann ran.", "score": "3.800"}, 3.8),
    ("stsb", {"sentence1": "Ann won.", "sentence2": "Ann ran.", "label": 2.5}, 2.5),
    ("mnli", {"sentence1": "Ann won.", "sentence2": "Ann ran.", "gold_label": "neutral"}, "neutral"),
    ("snli", {"text_a": "Ann won.", "text_b": "Ann ran.", "label": "contradiction"}, "contradiction"),
    ("snli", {**PAIR, "label": "2"}, "contradiction"),
    ("cb", {**PAIR, "label": 2}, "neutral"),
    ("anli-r2", {"context": "Ann won.", "hypothesis": "Ann ran.", "label": "n"}, "neutral"),
    ("boolq", {"question": "did ann win", "passage": "Ann won.", "label": True}, "true"),
    ("boolq", {"question": "did ann win", "passage": "Ann won.", "label": "False"}, "false"),
    ("copa", {**PAIR, "choice1": "She ran.", "choice2": "She sat.", "question": "cause", "label": 1}, "choice2"),
    ("wic", {"word": "run", "sentence1": "A run.", "sentence2": "To run.", "label": False}, "false"),
    ("trec", {"text": "Who won?", "coarse_label": "HUM", "fine_label": "HUM:ind"}, "HUM"),
    ("cr", {"text": "It works.", "label": 1}, "positive"),
    ("subj", {"sentence": "A gem.", "label": "0"}, "subjective"),
    (
        "wsc",
        {
            "text": "Ann beat Eve as she ran.",
            "span1_text": "Ann",
            "span2_text": "she",
            "span2_index": 4,
            "label": "True",
        },
        "true",
    ),
    ("multirc", {"paragraph": "Ann won.", "question": "Who?", "answer": "Ann", "label": 1}, "true"),
    (
        "race-middle",
        {"article": "Ann won.", "question": "Who?", "options": ["Ann", "Bo", "Cy", "Di"], "answer": "B"},
        "B",
    ),
    (
        "semeval2010-8",
        {"sentence": "<e1>Rain</e1> made <e2>mud</e2>.", "relation": "Cause-Effect(e1,e2)"},
        "Cause-Effect(e1,e2)",
    ),
    (
        "tacred",
        {
            "token": ["Ann", "won"],
            "subj_start": 0,
            "subj_end": 0,
            "obj_start": 1,
            "obj_end": 1,
            "subj_type": "PERSON",
            "obj_type": "TITLE",
            "relation": "per:title",
        },
        "per:title",
    ),
    ("squad", {"question": "Who?", "context": "Ann won.", "answers": {"text": ["Ann"], "answer_start": [0]}}, "Ann"),
    (
        "record",
        {"query": "@placeholder won.", "passage": "Ann beat Bo", "entities": ["Ann", "Bo"], "answers": ["Ann"]},
        "Ann",
    ),
]


@pytest.mark.parametrize(("name", "row", "target"), ROWS, ids=lambda value: value if isinstance(value, str) else "")
def test_rows_of_public_releases_are_read(name: str, row: dict[str, Any], target: object) -> None:
    assert examples_from([row], library_task(name))[0].target == target


def test_rows_of_other_rounds_and_without_a_label_are_left_out() -> None:
    rows = [{**PAIR, "label": "e", "tag": f"r{number}_test"} for number in (1, 2, 3, 3)]
    assert [len(examples_from(rows, library_task(f"anli-r{number}"))) for number in (1, 2, 3)] == [1, 1, 2]
    assert len(examples_from(rows, library_task("anli"))) == 4
    rows = [{**PAIR, "label": label} for label in ("entailment", "-", -1, "-1", "0")]
    assert len(examples_from(rows, library_task("snli"))) == 2


# --- a user's own task file ---


def task_file(folder: Path, text: str) -> Path:
    path = folder / "teams.yaml"
    path.write_text(text, "utf-8")
    return path


def test_paths_of_a_task_file_are_relative_to_it(tmp_path: Path) -> None:
    text = "text: [message]\nlabel: team\ntrain: rows/train.csv\ntest: hub:me/teams@test\nvalidation: /rows/v.csv\n"
    task = find_task(task_file(tmp_path, text))
    assert (task.name, task.text, task.label) == ("teams", ("message",), "team")
    assert (task.train, task.validation, task.test) == (
        str(tmp_path / "rows/train.csv"),
        "/rows/v.csv",
        "hub:me/teams@test",
    )
    assert "message" in section(task)


def test_name_is_a_library_task() -> None:
    assert find_task("rte") is library_task("rte")
    with pytest.raises(ConfigurationError, match="did you mean 'tickets'"):
        find_task("ticket")


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("a: b: c", ["task file", "teams.yaml", "valid YAML"]),
        ("- a", ["task file", "keys with values"]),
        ("", ["task file", "keys with values"]),
        ("texts: [a]", ["teams.yaml, key 'texts'", "did you mean 'text'?"]),
        ("kind: guess", ["teams.yaml, key 'kind'", "'guess'", "'classification'"]),
        ("text: [a, a]", ["key 'text'", "different text columns"]),
        ("labels: {a: {word: x}}", ["key 'labels.a.words'", "required"]),
        ("labels: {a: {words: x, also: [1]}}", ["key 'labels.a.also.0'", "a valid string", "in quotes"]),
        ("labels: {yes: {words: x}}", ["key 'labels': got True", "a valid string", "in quotes"]),
        ("text: [a]\ntemplate: '{b}'", ["teams.yaml", "text columns ['a']", "['b']"]),
        ("day: 2024-99-99", ["task file", "valid YAML"]),
    ],
)
def test_error_of_a_task_file_names_the_key(text: str, parts: list[str], tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as caught:
        find_task(task_file(tmp_path, text))
    for part in parts:
        assert part in str(caught.value)


def test_missing_task_file_suggests_the_nearest(tmp_path: Path) -> None:
    task_file(tmp_path, "text: [a]")
    with pytest.raises(ConfigurationError, match=r"did you mean 'teams.yaml'"):
        find_task(tmp_path / "team.yaml")


# --- files below a data folder ---


def toy(**files: tuple[str, ...]) -> Task:
    return Task(name="toy", train="hub:me/toy@train", files=files)


def test_first_pattern_with_files_is_used(tmp_path: Path) -> None:
    for name in ("b/2.csv", "b/1.csv", "c.csv"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("text,label\nhello,a\n")
    task = toy(train=("a.csv", "b/*.csv", "c.csv"), test=("c.csv",), validation=("none.csv",))
    assert sources(task, tmp_path) == {
        "train": [tmp_path / "b/1.csv", tmp_path / "b/2.csv"],
        "test": [tmp_path / "c.csv"],
    }
    assert match_files(task, tmp_path)["train"][0] == "b/*.csv"
    assert len(examples_from(sources(task, tmp_path)["train"], task)) == 2
    with pytest.raises(DataError, match="one file for train"):
        with_local_files(task, tmp_path)
    moved = with_local_files(toy(test=("c.csv",)), tmp_path)
    assert (moved.train, moved.validation, moved.test) == ("", "", str(tmp_path / "c.csv"))


def test_missing_files_are_listed(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"looked for a/\*\.csv, b\.csv"):
        sources(toy(train=("a/*.csv",), test=("b.csv",)), tmp_path)
    with pytest.raises(DataError, match="names no files"):
        sources(toy(), tmp_path)
    with pytest.raises(DataError, match="an existing folder"):
        sources(toy(train=("a.csv",)), tmp_path / "none")
    with pytest.raises(ConfigurationError, match="paths below a data folder"):
        sources(toy(train=("/a.csv",)), tmp_path)


# --- the page ---


def test_page_describes_every_task() -> None:
    text = page(TASKS)
    for task in TASKS:
        assert f"\n## {task.name}\n" in text
        assert f"| [{task.name}](#{task.name}) |" in text
        assert task.licence in text
    assert "| 2,490 / 277 / - |" in text


def test_sizes_are_counted_or_published() -> None:
    assert sizes(library_task("tickets")).keys() == set(SPLITS)
    assert sizes(library_task("axb")) == {"test": 1104}


def test_templates_equal_those_of_t5() -> None:
    assert {
        name: input_formats(library_task(name))["reads"] for name in ("boolq", "multirc", "record", "squad", "wsc")
    } == {
        "boolq": "passage: [passage] question: [question]",
        "multirc": "question: [question] answer: [answer] paragraph: [paragraph]",
        "record": "query: [query] entities: [entities] passage: [passage]",
        "squad": "question: [question] context: [context]",
        "wsc": "[text]",
    }
    assert input_formats(library_task("stsb"))["writes"] == "the number, from 0 to 5 in steps of 0.2"
