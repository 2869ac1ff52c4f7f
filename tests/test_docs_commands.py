"""The commands and the Python code of the pages run, on tiny models and with few steps.

Each page has a folder of its own with the files and cues that its commands name. A command may differ from the page in
the backbone (a tiny one of the same kind), in the number of steps and in placeholders such as FOLDER.
"""

from __future__ import annotations

import csv
import gzip
import re
import shlex
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from command import run
from docs_blocks import PAGES, ROOT, blocks, page_name
from published_files import write_published_files

import softcue

pytestmark = [
    pytest.mark.processes,
    pytest.mark.filterwarnings("ignore:method.prompt_length=5 holds only"),  # a short prompt on a page
]

# Pages whose commands tests run as they are.
AS_THEY_ARE = {
    "README.md": "tests/test_readme.py",
    "docs/tutorial.md": "tests/test_docs.py",
    "docs/index.md": "tests/test_readme.py",  # the same commands
}
# The beginnings of commands that other tests run: with servers, other packages, a hub, several processes.
IN_OTHER_TESTS = {
    "softcue serve": "tests/serving/test_server.py",
    "softcue serve --engine ray": "tests/serving/test_ray.py",
    "softcue client": "tests/serving/test_server.py",
    "softcue push": "tests/cue/test_hub.py",
    "softcue predict hub:": "tests/cue/test_hub.py",
    "softcue adapt hub:": "tests/adaptation/test_chunks.py",
    "softcue backbones pull": "tests/backbones/loading/test_sources.py",
    "softcue export cues/requests requests-onnx": "tests/interop/test_graphs.py",
    "softcue export cues/requests requests-int8": "tests/interop/test_graphs.py",
    "softcue export cues/requests requests-openvino": "tests/interop/test_graphs.py",
    "softcue export cues/requests requests-mlflow": "tests/interop/test_mlflow_models.py",
    "softcue train --task tickets --method m-idpg-phm-glove": "tests/sentence_vectors/test_glove.py",
    "softcue tasks check": "tests/cli/test_tasks_cli.py",
    "softcue tune": "tests/studies/test_tune.py",
    "softcue study status studies/vip-table1-superglue": "tests/studies/test_runner.py",
}
# The same for words anywhere in a command.
WORDS_IN_OTHER_TESTS = {
    "--runtime": "tests/cue/test_runtimes.py",
    "--engine vllm": "tests/serving/test_vllm.py",
    "--engine processes": "tests/serving/test_shards.py",
    "training.report_to=": "tests/training/test_real_trackers.py",
    "--backbone smollm2 --method manual-prompt": "tests/methods/test_manual_prompt.py",
    "--backbone T5 --method manual-prompt": "tests/methods/test_manual_prompt.py",
}
FEW_STEPS = ["training.steps=2", "training.batch_size=4"]
SHORT_ADAPTATION = ["batch_size=2", "length=24", "held_out_rows=2", "num_samples=1", "sample_tokens=2"]
ROWS = [("My invoice is wrong.", "billing"), ("Charged twice again.", "billing"), ("The parcel is late.", "shipping")]
PLACEHOLDER = re.compile(r"\[|\.\.\.|\b(?:NAME|OWNER|CUE|MODEL|CUES)\b|\|")


def commands_in(page: Path) -> list[str]:
    """The softcue commands in the code blocks of a page, without the general forms such as `softcue methods [NAME]`."""
    text = "\n".join(blocks(page.read_text("utf-8"), "", "bash", "sh", "console")).replace("\\\n", " ")
    lines = [re.sub(r"\s{2,}#.*$", "", line).strip() for line in text.splitlines()]
    return [line for line in lines if line.startswith("softcue ") and not PLACEHOLDER.search(line)]


def other_test(command: str) -> str | None:
    """The test file that runs such a command, if this one does not."""
    for words, path in WORDS_IN_OTHER_TESTS.items():
        if words in command:
            return path
    beginnings = [beginning for beginning in IN_OTHER_TESTS if command.startswith(beginning)]
    return IN_OTHER_TESTS[max(beginnings, key=len)] if beginnings else None


PAGES_WITH_COMMANDS = [page for page in PAGES if page_name(page) not in AS_THEY_ARE and commands_in(page)]


class Stage:
    """A folder with what the commands of a page name."""

    def __init__(self, folder: Path, model_folders: dict[str, Path]) -> None:
        self.folder = folder
        self.models = {"encoder": model_folders["bert"], "encoder-decoder": model_folders["t5"]}
        self.models["decoder"] = model_folders["gpt2"]

    def write_files(self) -> None:
        shutil.copytree(ROOT / "examples", self.folder / "examples")
        write_published_files(self.folder / "published")
        shutil.copytree(self.folder / "published/STS-B", self.folder / "STS-B")
        for name in ("tickets.csv", "more.csv", "test.csv", "held-out.csv"):
            self.write_rows(name, ("message", "team"), ROWS * 6)
        self.write_rows("messages.csv", ("message", "text"), [(row[0], row[0]) for row in ROWS])  # each cue its column
        self.write_rows("mail.csv", ("text", "team"), ROWS * 2)
        self.write_rows("rows.csv", ("text", "label", "topics"), [(*row, f"{row[1]};late") for row in ROWS * 6])
        self.write_rows(
            "reviews.csv", ("review", "stars"), [(row[0], number % 2) for number, row in enumerate(ROWS * 6)]
        )
        labels = ("entailment", "neutral", "contradiction")
        pairs = [(f"Parcel {number} came.", "It is here.", labels[number % 3]) for number in range(60)]
        self.write_rows("pairs.csv", ("left", "right", "rel"), [(*pair[:2], f"is {pair[2]}") for pair in pairs])
        self.write_rows("nli.tsv", ("premise", "hypothesis", "label"), pairs, delimiter="\t")
        (self.folder / "books").mkdir()
        sentences = "".join(f"On day {number} the parcel went from Lyon to Turin and back.\n" for number in range(200))
        (self.folder / "books/one.txt").write_text(sentences)
        with gzip.open(self.folder / "more.txt.gz", "wt") as file:
            file.write(sentences)

    def write_rows(self, name: str, header: tuple[str, ...], rows: list[Any], delimiter: str = ",") -> None:
        with (self.folder / name).open("w", newline="") as file:
            csv.writer(file, delimiter=delimiter).writerows([header, *rows])

    def train_cue(self, name: str, backbone: str = "encoder", **settings: Any) -> None:
        columns = {"train": self.folder / "tickets.csv", "text": "message", "label": "team"}
        overrides = {"training.steps": 2, "training.batch_size": 4}
        softcue.train(
            self.folder / name,
            backbone=self.models[backbone],
            overrides=overrides,
            progress=False,
            **{**columns, **settings},
        )

    def words_for(self, command: str) -> list[str]:
        """The words of a command, for this folder and few steps."""
        words = shlex.split(command)[1:]
        for number, word in enumerate(words):
            before = words[number - 1] if number else ""
            if word == "minilm":
                words[number] = str(self.models["encoder"])
            elif word == "smollm2" or word == "gpt2":
                words[number] = str(self.models["decoder"])
            elif word == "FOLDER":
                words[number] = str(self.models["encoder-decoder"] if before != "--data" else self.folder / "published")
            elif before == "--backbones":
                words[number] = str(self.models["encoder"])
            elif before in ("--steps", "--epochs", "--seeds"):
                words[number] = "2"
        if words[0] == "train" and "--backbone" not in words:
            words += ["--backbone", str(self.models["encoder"])]
        if words[0] == "compare" and "--methods" in words:
            words += [] if "--backbones" in words else ["--backbones", str(self.models["encoder"])]
            words += [] if "--seeds" in words else ["--seeds", "2"]
        if words[0] == "train" or "--methods" in words:
            words += [] if "--epochs" in words else FEW_STEPS
        if "auto" in words and not any(word.startswith("selection.methods") for word in words):
            words += ["selection.methods=linear-probe,prompt-tuning"]
        return words + (SHORT_ADAPTATION if words[0] == "adapt" else [])


def write_study(stage: Stage) -> None:
    """The study of the page, on a tiny model, without other software and with a task of its own."""
    [text] = blocks((ROOT / "docs/own-studies.md").read_text("utf-8"), "yaml")
    lines = [line for line in text.splitlines() if "benchmarks.peers" not in line]
    tasks, regimes = "[tickets, urgency, mine.yaml]", "[full, {name: K=100, few_shot: 100}]"
    study = "\n".join(lines).replace(tasks, "[mine.yaml]").replace(regimes, "[full]")
    study = study.replace("[minilm]", f"[{stage.models['encoder']}]").replace("seeds: 3", "seeds: 1")
    (stage.folder / "tickets-lengths.yaml").write_text(study.replace("training.epochs: 5", "training.epochs: 1"))


def write_task(stage: Stage) -> None:
    lines = ["name: mine", "kind: classification", "text: [text]", "label: label", "train: rows.csv", "test: rows.csv"]
    lines += ["labels: {billing: {words: billing}, shipping: {words: shipping}}", 'template: "{text}"']
    (stage.folder / "mine.yaml").write_text("\n".join(lines) + "\n")


def write_decoder_cue(stage: Stage) -> None:
    """A cue that reads the column `text` on a decoder."""
    stage.train_cue("cues/tickets", "decoder", method="prompt-tuning", train=stage.folder / "rows.csv", **COLUMNS)


def write_peft_folder(stage: Stage) -> None:
    stage.train_cue("cues/decoder", "decoder", method="prompt-tuning")
    assert run("export", "cues/decoder", "their-prompt", "--to", "peft").code == 0


MAKERS: dict[str, Callable[[Stage], None]] = {
    "cues/stsb": lambda stage: stage.train_cue("cues/stsb", task="stsb", data=stage.folder / "published", **NO_FILE),
    "their-prompt": write_peft_folder,
}
# What a page needs beside that, before its first command.
PREPARED: dict[str, list[Callable[[Stage], None]]] = {
    "docs/own-studies.md": [write_study, write_task],
    "docs/interop.md": [write_decoder_cue, write_task],
}
NO_FILE: dict[str, Any] = {"train": None, "text": None, "label": None}
COLUMNS = {"text": "text", "label": "label"}


@pytest.fixture
def stage(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, model_folders: dict[str, Path]) -> Stage:
    """The working folder, with what the page needs before its first line."""
    stage = Stage(tmp_path, model_folders)
    stage.write_files()
    monkeypatch.chdir(tmp_path)
    for prepare in PREPARED.get(page_name(page), []):
        prepare(stage)
    return stage


def make_missing(stage: Stage, name: str) -> None:
    """A cue or a folder of PEFT that a page names and does not make itself."""
    if not (stage.folder / name).exists():
        maker = MAKERS.get(name)
        if maker is None:
            stage.train_cue(name)
        else:
            maker(stage)


@pytest.mark.parametrize("page", PAGES_WITH_COMMANDS, ids=page_name)
def test_the_commands_of_a_page_run(page: Path, stage: Stage) -> None:
    for command in commands_in(page):
        if other_test(command):
            continue
        words = stage.words_for(command)
        for word in words:
            if re.fullmatch(r"cues/[\w-]+|their-prompt", word) and not is_written_by(command, word):
                make_missing(stage, word)
            elif is_written_by(command, word):
                shutil.rmtree(stage.folder / word, ignore_errors=True)
        ended = run(*words)
        assert ended.code == 0, f"{command}\n{ended.err}"
        assert ended.out.strip() or "--output" in command, command


def is_written_by(command: str, word: str) -> bool:
    return f"--output-dir {word}" in command or command.startswith(f"softcue import their-prompt {word}")


def test_commands_that_are_left_out_are_run_by_other_tests() -> None:
    others = {*IN_OTHER_TESTS.values(), *WORDS_IN_OTHER_TESTS.values()}
    for path in {*AS_THEY_ARE.values(), *others}:
        assert (ROOT / path).is_file(), path
    used = {other_test(command) for page in PAGES_WITH_COMMANDS for command in commands_in(page)}
    assert used - {None} == others
    assert sum(not other_test(command) for page in PAGES_WITH_COMMANDS for command in commands_in(page)) > 60


# --- Python code ---

# What the code of a page has at hand, and how it is made shorter: (from the page, what runs here).
CLASSIFIER = ["texts = [row[0] for row in ROWS * 8]", "labels = [row[1] for row in ROWS * 8]"]
CLASSIFIER += ["votes, new_texts = [1.0] * len(texts), texts[:2]"]
BEFORE = {
    "docs/extending.md": ["from softcue.methods import METHODS", "MyMethod = METHODS.built_in['prompt-tuning']"],
    "docs/guide.md": CLASSIFIER,
    "docs/inspect.md": ["cue = softcue.load('cues/tickets')"],
}
SHORTER = {
    "seeds=3)": "seeds=2, backbones=[ENCODER], overrides=FEW)",
    '"minilm"': "ENCODER",
    'device="cuda:1", dtype="bfloat16", quantization="int8"': 'device="cpu", dtype="bfloat16"',
    "class_weight=": "overrides=FEW, class_weight=",
    "epochs=2)": "overrides=FEW)",
    "cv=10": "cv=2",
    'read_study("quick", seeds=1,': 'read_study("tickets-lengths.yaml", seeds=1,',
    '"prompt-tuning"])\nfolder': '"short"])\nfolder',
    ', backbone=ENCODER, overwrite=True)\nprint(cue.predict(["Why two': (
        ', backbone=ENCODER, overrides=FEW, overwrite=True)\nprint(cue.predict(["Why two'
    ),
}
CODE_IN_OTHER_TESTS = {
    "push_to_hub": "tests/cue/test_hub.py",
    "lm_eval": "tests/interop/test_lm_eval.py",
    "softcue.tune": "tests/studies/test_tune.py",
}
PAGES_WITH_CODE = [
    page for page in PAGES if page_name(page) not in AS_THEY_ARE and blocks(page.read_text("utf-8"), "python")
]


@pytest.mark.parametrize("page", PAGES_WITH_CODE, ids=page_name)
def test_the_python_code_of_a_page_runs(page: Path, stage: Stage) -> None:
    codes = [
        code
        for code in blocks(page.read_text("utf-8"), "python")
        if not any(words in code for words in CODE_IN_OTHER_TESTS)
    ]
    for name in dict.fromkeys(
        re.findall(r"[\"'](cues/\w+)[\"']", "\n".join([*codes, *BEFORE.get(page_name(page), [])]))
    ):
        if f'softcue.train("{name}"' not in "\n".join(codes):
            make_missing(stage, name)
    names: dict[str, Any] = {"softcue": softcue, "ROWS": ROWS, "ENCODER": str(stage.models["encoder"]), "FEW": FEW}
    names["__name__"] = "__main__"
    exec("\n".join(BEFORE.get(page_name(page), [])), names)
    for code in codes:
        for of_the_page, here in SHORTER.items():
            code = code.replace(of_the_page, here)
        exec(compile(code, page_name(page), "exec"), names)


FEW = {"training.steps": 2, "training.batch_size": 4}


def test_code_that_is_left_out_is_run_by_other_tests() -> None:
    code = "\n".join(code for page in PAGES_WITH_CODE for code in blocks(page.read_text("utf-8"), "python"))
    for words, path in CODE_IN_OTHER_TESTS.items():
        assert words in code and words in (ROOT / path).read_text("utf-8"), path
