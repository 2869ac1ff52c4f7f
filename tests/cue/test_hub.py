"""Cues on the Hugging Face Hub, against a hub on this machine that speaks its protocol."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_hub import TOKEN, FakeHub, Repository, run_fake_hub
from huggingface_hub import ModelCard, constants
from serving_cues import PAIRS, TITLES, TOPICS, save_cue
from tiny import tiny
from typer.testing import CliRunner

import softcue
from softcue.backbones.loading.sources import hub_id_of
from softcue.cli.app import app
from softcue.cue import hub as cue_hub
from softcue.cue.cue_file import cue_file_digest, read_cue_file
from softcue.cue.hub import HubAddress, files_to_push, find_cue_folder, push_folder
from softcue.cue.model_card import model_card
from softcue.cue.signatures import sign_cue, write_new_key
from softcue.errors import BackboneMismatchError, ConfigurationError, CueError, RunError

# huggingface_hub's own upload of large files without hf_xet
pytestmark = pytest.mark.filterwarnings("ignore:Use 'content=<...>' to upload raw bytes:DeprecationWarning")
FILES = {"README.md", "metrics.json", "cue.safetensors", "cue.json"}


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[FakeHub]:
    with run_fake_hub() as running:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, running.url)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", running.url)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setenv("SOFTCUE_HOME", str(tmp_path / "home"))
        yield running


@pytest.fixture
def cue(tmp_path: Path) -> softcue.Cue:
    return save_cue(tmp_path / "topics")


def push(cue: softcue.Cue, repo_id: str = "me/topics", **options: Any) -> str:
    return cue.push_to_hub(repo_id, **options)


def damage(hub: FakeHub, name: str, content: bytes, repo_id: str = "me/topics") -> None:
    hub.repositories[repo_id].commit("main", {name: content})


def run(*words: str) -> Any:
    return CliRunner().invoke(app, list(words))


def test_a_pushed_cue_is_loaded_from_the_hub_and_predicts_the_same(hub: FakeHub, cue: softcue.Cue) -> None:
    url = push(cue, private=True, commit_message="First try")
    repository = hub.repositories["me/topics"]
    assert repository.is_private and repository.messages[-1] == "First try"
    assert url == f"{hub.url}/me/topics/commit/{repository.branches['main']}"
    loaded = softcue.load("hub:me/topics", backbone=tiny("bert"))
    assert loaded.name == "topics"
    texts = ["My invoice is wrong.", "ok"]
    assert [p.scores for p in loaded.predict(texts)] == [p.scores for p in cue.predict(texts)]


def test_one_commit_has_exactly_the_files_of_the_cue(hub: FakeHub, cue: softcue.Cue, tmp_path: Path) -> None:
    (tmp_path / "topics" / "config.yaml").write_text("task: {train: /home/me/private.csv}")
    (tmp_path / "topics" / "rows.csv").write_text("text,label\nsecret,a\n")
    push(cue)
    repository = hub.repositories["me/topics"]
    assert set(repository.commits[repository.branches["main"]]) == {*FILES, ".gitattributes"}
    assert len(repository.messages) == 2  # that of the new repository, and the upload


def test_a_signature_travels_with_the_cue(hub: FakeHub, cue: softcue.Cue, tmp_path: Path) -> None:
    public_key = write_new_key(tmp_path / "team.key")
    assert cue.path is not None
    push(cue, "me/unsigned")
    sign_cue(cue.path, tmp_path / "team.key")
    push(cue)
    softcue.load("hub:me/topics", tiny("bert"), require_signature=public_key)
    with pytest.raises(CueError, match="no signature"):
        softcue.load("hub:me/unsigned", tiny("bert"), require_signature=public_key)


def test_a_cue_without_a_folder_is_pushed_too(hub: FakeHub, cue: softcue.Cue) -> None:
    other = softcue.Cue(cue.model, cue.backbone, cue.cue_file)
    push(other)
    assert other.path is None
    assert softcue.load("hub:me/topics", backbone=tiny("bert")).counts == cue.counts


def test_a_revision_is_a_branch_of_its_own(hub: FakeHub, cue: softcue.Cue, tmp_path: Path) -> None:
    push(cue)
    other = save_cue(tmp_path / "other", seed=1)
    push(other, revision="v2")
    push(other, revision="v2")  # the branch exists already
    digests = {read_cue_file(find_cue_folder(f"hub:me/topics{at}")).record_sha256 for at in ("", "@v2")}
    assert digests == {cue.cue_file.record_sha256, other.cue_file.record_sha256}
    commit = hub.repositories["me/topics"].branches["main"]
    assert find_cue_folder(f"hub:me/topics@{commit}") == find_cue_folder("hub:me/topics")


def test_a_commit_is_downloaded_once_and_a_new_one_replaces_it(hub: FakeHub, cue: softcue.Cue, tmp_path: Path) -> None:
    push(cue)
    first = find_cue_folder("hub:me/topics")
    assert find_cue_folder("hub:me/topics") == first
    assert sorted(hub.downloads()) == sorted(FILES)
    assert {path.name for path in first.iterdir()} == FILES
    push(save_cue(tmp_path / "new", seed=1))
    assert find_cue_folder("hub:me/topics") != first


def test_threads_may_download_the_same_cue_at_once(
    hub: FakeHub, cue: softcue.Cue, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(cue)
    whole, both_are_whole = cue_hub._check_size, threading.Barrier(2, timeout=60)

    def wait_with_the_last_file(address: HubAddress, name: str, size: int, limit: int) -> None:
        whole(address, name, size, limit)
        if name == "cue.safetensors":
            both_are_whole.wait()

    monkeypatch.setattr(cue_hub, "_check_size", wait_with_the_last_file)
    with ThreadPoolExecutor(2) as threads:
        first, second = threads.map(find_cue_folder, ["hub:me/topics"] * 2)
    assert first == second and {path.name for path in first.iterdir()} == FILES
    assert first.stat().st_mode == first.parent.stat().st_mode  # as readable for others as any folder
    assert not list((Path(os.environ["SOFTCUE_HOME"]) / "hub").rglob("*.partial"))


def test_a_folder_that_stands_in_the_way_and_is_no_cue_is_an_error(hub: FakeHub, cue: softcue.Cue) -> None:
    push(cue)
    folder = find_cue_folder("hub:me/topics")
    (folder / "cue.json").unlink()
    with pytest.raises(RunError, match="Directory not empty"):
        find_cue_folder("hub:me/topics")


def test_a_cache_that_may_only_be_read_serves_what_it_has(
    hub: FakeHub, cue: softcue.Cue, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(cue)
    folder = find_cue_folder("hub:me/topics")

    def refuse(path: Path, content: bytes) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    monkeypatch.setattr(cue_hub, "write_atomically", refuse)
    assert find_cue_folder("hub:me/topics") == folder


def test_a_commit_that_was_asked_for_is_the_one_that_is_loaded(hub: FakeHub, cue: softcue.Cue, tmp_path: Path) -> None:
    push(cue)
    repository = hub.repositories["me/topics"]
    asked = repository.branches["main"]
    push(save_cue(tmp_path / "new", seed=1))
    repository.branches[asked] = repository.branches["main"]
    with pytest.raises(CueError, match=rf"expected the commit of hub:me/topics@{asked}; .* check HF_ENDPOINT"):
        find_cue_folder(f"hub:me/topics@{asked}")
    assert not hub.downloads()


def test_only_known_files_are_downloaded(hub: FakeHub, cue: softcue.Cue) -> None:
    push(cue)
    damage(hub, "pytorch_model.bin", b"pickle")
    damage(hub, "modeling.py", b"import os")
    folder = find_cue_folder("hub:me/topics")
    assert {path.name for path in folder.iterdir()} == FILES
    assert set(hub.downloads()) == FILES


@pytest.mark.parametrize(
    ("name", "size", "limit"),
    [("cue.json", 17 << 20, "16,777,216"), ("README.md", 65 << 20, "67,108,864"), ("cue.safetensors", 1 << 40, "")],
)
def test_a_file_that_is_too_large_is_not_downloaded(
    hub: FakeHub, cue: softcue.Cue, name: str, size: int, limit: str
) -> None:
    push(cue)
    hub.sizes[name] = size
    with pytest.raises(CueError, match=rf"{name} of hub:me/topics: got '{size:,} bytes'; expected at most {limit}"):
        find_cue_folder("hub:me/topics")
    assert name not in hub.downloads()
    assert not list((Path(os.environ["SOFTCUE_HOME"]) / "hub").rglob("cue.json"))


def test_a_file_that_is_larger_than_the_hub_said_is_not_kept(hub: FakeHub, cue: softcue.Cue) -> None:
    push(cue)
    damage(hub, "cue.json", b" " * (17 << 20))
    hub.sizes["cue.json"] = 10
    with pytest.raises(CueError, match=r"cue\.json of hub:me/topics: got '17,825,792 bytes'.*it was not kept"):
        find_cue_folder("hub:me/topics")
    assert not list((Path(os.environ["SOFTCUE_HOME"]) / "hub").rglob("cue.json"))


@pytest.mark.parametrize(
    ("method", "stored", "free", "expected"),
    [
        ("prompt-tuning", 10**6, 10**12, 4 * 10**6 + (64 << 20)),  # what cue.json says
        ("prompt-tuning", 10**15, 10**12, 1 << 30),
        ("prompt-tuning", 10**15, 10**6, 5 * 10**5),
        ("fine-tuning", 10**9, 10**12, 4 * 10**9 + (64 << 20)),
        ("fine-tuning", 10**15, 10**12, 5 * 10**11),
    ],
)
def test_the_tensors_are_limited_by_cue_json_by_the_disk_and_by_the_method(
    method: str, stored: int, free: int, expected: int, cue: softcue.Cue
) -> None:
    changes = {"counts": {"stored": stored}, "method": {"name": method}}
    assert cue_hub._largest_tensors(cue.cue_file.model_copy(update=changes), free) == expected


def test_a_size_that_only_a_stranger_vouches_for_is_not_downloaded(hub: FakeHub, cue: softcue.Cue) -> None:
    push(cue)
    repository = hub.repositories["me/topics"]
    values = json.loads(repository.commits[repository.branches["main"]]["cue.json"])
    values["counts"]["stored"] = 10**15
    values["record_sha256"] = cue_file_digest(values)
    damage(hub, "cue.json", json.dumps(values).encode())
    hub.sizes["cue.safetensors"] = (1 << 30) + 1
    with pytest.raises(CueError, match=r"cue\.safetensors of hub:me/topics: got '1,073,741,825 bytes'"):
        find_cue_folder("hub:me/topics")
    assert "cue.safetensors" not in hub.downloads()


def test_a_damaged_cue_of_a_stranger_is_an_error_as_any_other(hub: FakeHub, cue: softcue.Cue) -> None:
    push(cue)
    damage(hub, "cue.safetensors", b"something else")
    with pytest.raises(CueError, match=r"other content than cue\.json records"):
        softcue.load("hub:me/topics", backbone=tiny("bert"))
    damage(hub, "cue.json", b"{}")
    with pytest.raises(CueError, match="a cue record of softcue"):
        softcue.load("hub:me/topics", backbone=tiny("bert"))


def test_a_cue_of_another_backbone_is_an_error(hub: FakeHub, cue: softcue.Cue) -> None:
    push(cue)
    with pytest.raises(BackboneMismatchError, match="differ"):
        softcue.load("hub:me/topics", backbone=tiny("t5"))


def test_a_repository_without_a_cue_is_an_error(hub: FakeHub) -> None:
    hub.repositories["me/model"] = Repository()
    hub.repositories["me/model"].commit("main", {"config.json": b"{}"})
    with pytest.raises(CueError, match=r"no cue.safetensors; is it a cue of softcue\?"):
        find_cue_folder("hub:me/model")


@pytest.mark.parametrize(
    "address",
    ["hub:topics", "hub:me/topics/more", "hub:../topics", "hub:me/..", "hub:me/top--ics", "hub:", "hub:m e/x"],
)
def test_an_address_that_is_none_is_an_error(address: str) -> None:
    with pytest.raises(ConfigurationError, match="expected OWNER/NAME of a repository on the hub"):
        find_cue_folder(address)


def test_an_empty_revision_is_an_error() -> None:
    with pytest.raises(ConfigurationError, match="name a branch, a tag or a commit"):
        find_cue_folder("hub:me/topics@")


def test_a_folder_with_such_a_name_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "hub:me").mkdir()
    monkeypatch.chdir(tmp_path)
    assert find_cue_folder("hub:me") == Path("hub:me")


@pytest.mark.parametrize(
    ("failure", "message"),
    [
        ((404, "RepoNotFound"), "a repository that exists and that you may read; check the name"),
        ((401, ""), "set HF_TOKEN, or log in with `hf auth login`"),
        ((403, "GatedRepo"), "it is gated; ask for access on its page"),
        ((404, "RevisionNotFound"), "a branch, a tag or a commit of it; check the part after @"),
        ((403, ""), "a token that may do this"),
        ((400, ""), "the hub to accept it; status 400"),
        ((503, ""), r"the hub to answer \(status 503\); try again later"),
    ],
)
def test_an_error_of_the_hub_is_one_line(hub: FakeHub, failure: tuple[int, str], message: str) -> None:
    hub.failure = failure
    with pytest.raises(CueError, match=message) as caught:
        find_cue_folder("hub:me/topics")
    assert str(caught.value).startswith("hub: got 'hub:me/topics'; expected ") and "\n" not in str(caught.value)


def test_a_push_without_a_token_says_what_to_do(
    hub: FakeHub, cue: softcue.Cue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(CueError, match="HF_TOKEN"):
        push(cue)
    assert push(cue, token=TOKEN).startswith(hub.url)


def test_without_network_a_copy_is_used_with_a_warning(
    hub: FakeHub, cue: softcue.Cue, monkeypatch: pytest.MonkeyPatch
) -> None:
    push(cue)
    folder = find_cue_folder("hub:me/topics")
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.warns(UserWarning, match=r"hub:me/topics may have changed: .*; using the copy on this machine"):
        assert find_cue_folder("hub:me/topics") == folder
    with pytest.raises(CueError, match=r"expected the hub to answer .*; check the network"):
        find_cue_folder("hub:me/other")
    with pytest.raises(CueError, match=r"expected the hub to answer .*; check the network"):
        push(cue)


def test_offline_mode_uses_a_copy_or_says_so(hub: FakeHub, cue: softcue.Cue, monkeypatch: pytest.MonkeyPatch) -> None:
    push(cue)
    folder = find_cue_folder("hub:me/topics")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    num_requests = len(hub.requests)
    with pytest.warns(UserWarning, match="HF_HUB_OFFLINE is set"):
        assert find_cue_folder("hub:me/topics") == folder
    with pytest.raises(CueError, match=r"\(HF_HUB_OFFLINE is set\); unset HF_HUB_OFFLINE"):
        find_cue_folder("hub:me/other")
    assert len(hub.requests) == num_requests


def test_a_folder_whose_tensors_are_not_its_own_is_not_pushed(hub: FakeHub, cue: softcue.Cue, tmp_path: Path) -> None:
    (tmp_path / "topics" / "cue.safetensors").write_bytes(b"other")
    with pytest.raises(CueError, match="expected sha256"):
        push(cue)
    (tmp_path / "topics" / "cue.safetensors").unlink()
    with pytest.raises(CueError, match="the cue's parameters"):
        push(cue)
    with pytest.raises(CueError, match=r"a folder with cue\.json"):
        push_folder(tmp_path / "missing", "me/topics")
    with pytest.raises(ConfigurationError, match="repo_id: got 'topics'"):
        push_folder(tmp_path / "topics", "topics")
    assert not hub.requests


def test_a_cue_that_holds_its_backbone_says_its_size_in_both_directions(
    hub: FakeHub, cue: softcue.Cue, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cue_hub, "method_config", lambda _: type("Config", (), {"tunes_backbone": True}))
    with pytest.warns(UserWarning, match=r"uploading to hub:me/topics: \d+ MB, because this cue holds a trained copy"):
        push_folder(cue.path or Path(), "me/topics")
    with pytest.warns(UserWarning, match=r"downloading hub:me/topics: \d+ MB"):
        find_cue_folder("hub:me/topics")


def test_a_backbone_that_is_a_folder_here_is_named_before_a_push(cue: softcue.Cue, tmp_path: Path) -> None:
    file = tmp_path / "topics" / "cue.json"
    values = json.loads(file.read_text())
    values["backbone"]["name"] = "/models/mine"
    values["record_sha256"] = cue_file_digest(values)
    file.write_text(json.dumps(values))
    with pytest.warns(UserWarning, match="names the backbone by its folder here, /models/mine"):
        files_to_push(tmp_path / "topics", HubAddress("me/topics"))


# The model card


def card_of(cue: softcue.Cue, **changes: Any) -> tuple[dict[str, Any], str]:
    card = model_card(cue.cue_file.model_copy(update=changes), "topics", address="hub:me/topics")
    _, metadata, text = card.split("---\n", 2)
    return yaml.safe_load(metadata), text


def test_the_card_has_metadata_that_the_hub_reads(cue: softcue.Cue) -> None:
    backbone = cue.cue_file.backbone.model_copy(update={"name": "google-bert/bert-base-uncased@main"})
    task = cue.task.model_copy(update={"name": "my requests", "train": "hub:me/requests#english@train"})
    scores, rows = {"test": {"accuracy": 0.75, "f1_macro": 0.5}}, {"test": 40}
    metadata, text = card_of(cue, backbone=backbone, task=task, scores=scores, rows=rows)
    assert metadata["library_name"] == "softcue" and metadata["pipeline_tag"] == "text-classification"
    assert metadata["base_model"] == "google-bert/bert-base-uncased" and metadata["datasets"] == ["me/requests"]
    assert {"softcue", "prompt-tuning"} <= set(metadata["tags"])
    assert 'cue = softcue.load("hub:me/topics")' in text
    [result] = metadata["model-index"][0]["results"]
    assert result["dataset"] == {"name": "my requests", "type": "my-requests", "split": "test", "args": {"rows": 40}}
    assert {metric["type"]: metric["value"] for metric in result["metrics"]} == scores["test"]
    data = ModelCard(f"---\n{yaml.safe_dump(metadata)}---\n{text}").data
    assert [(entry.metric_type, entry.metric_value) for entry in data.eval_results or []] == list(
        scores["test"].items()
    )


def test_a_card_without_scores_or_a_hub_id_leaves_them_out(cue: softcue.Cue) -> None:
    metadata, _ = card_of(cue)
    assert not {"base_model", "datasets", "model-index"} & set(metadata)


@pytest.mark.parametrize(
    ("task", "tag"), [(TOPICS, "text-classification"), (PAIRS, "text-classification"), (TITLES, "text-generation")]
)
def test_the_example_of_a_card_is_code_that_runs(task: softcue.Task, tag: str, cue: softcue.Cue) -> None:
    metadata, text = card_of(cue, task=task)
    assert metadata["pipeline_tag"] == tag
    assert set(metadata["widget"][0]) == set(task.text)
    line = next(line for line in text.splitlines() if line.startswith("print(cue.predict("))
    texts = eval(line.removeprefix("print(cue.predict(").removesuffix(")[0])"))
    assert len(texts) == 1 and all(isinstance(part, str) for part in ([*texts[0]] if len(task.text) == 2 else texts))


def test_a_backbone_has_a_hub_id_or_none(tmp_path: Path) -> None:
    assert [hub_id_of(name) for name in ("mpnet", "bert-base", "me/model.gguf", str(tmp_path))] == [
        "sentence-transformers/all-mpnet-base-v2",
        "",
        "",
        "",
    ]


# The command line


def test_push_and_evaluate_on_the_command_line(
    hub: FakeHub, cue: softcue.Cue, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = run("push", str(tmp_path / "topics"), "me/topics", "--private", "--message", "By hand", "--json")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["address"] == "hub:me/topics"
    assert hub.repositories["me/topics"].is_private and hub.repositories["me/topics"].messages[-1] == "By hand"
    monkeypatch.setattr("softcue.cue.cue.load_backbone", lambda config: tiny("bert"))
    rows = tmp_path / "rows.csv"
    rows.write_text("text,label\nmy invoice,a\nwhere is it,b\n")
    other = str(save_cue(tmp_path / "other", seed=1).path)
    for words in (
        ["predict", "hub:me/topics", "My invoice is wrong.", "--json"],
        ["predict", other, "hub:me/topics", "My invoice is wrong.", "--json"],
        ["evaluate", "hub:me/topics", "--data", str(rows), "--no-baselines", "--json"],
        ["inspect", "hub:me/topics", "--json"],
        ["compare", "hub:me/topics", other, "--data", str(rows), "--json"],
    ):
        result = run(*words)
        assert result.exit_code == 0, (words, result.output, result.exception)
        assert json.loads(result.stdout)
    shown = run("push", str(tmp_path / "topics"), "me/topics", "--revision", "v2").stdout
    assert 'next: softcue predict hub:me/topics@v2 "a text"' in shown


def test_a_server_may_have_one_cue_of_the_hub(hub: FakeHub, cue: softcue.Cue, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fastapi")
    push(cue)
    served: list[Path] = []
    monkeypatch.setattr("softcue.serving.http.server.serve", lambda settings, backbone, cues: served.append(cues))
    assert run("serve", "hub:me/topics", "--backbone", "minilm").exit_code == 0
    from softcue.serving.engine.registry import Registry

    registry = Registry(served[0], tiny("bert"))
    registry.load_all()
    assert [loaded.name for loaded in registry.loaded()] == ["topics"] and not registry.broken()


@pytest.mark.processes
def test_cue_and_backbone_may_both_come_from_the_hub_at_a_revision(hub: FakeHub, tmp_path: Path) -> None:
    push(save_cue(tmp_path / "topics"))
    for name, model in (("me/tiny", "bert"), ("me/other", "roberta")):
        tiny(model).save(tmp_path / model)
        files = {path.name: path.read_bytes() for path in (tmp_path / model).iterdir()}
        hub.repositories[name] = Repository()
        hub.repositories[name].commit("v1", files)
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.url,
        "HF_HUB_OFFLINE": "0",
        "HF_HUB_DISABLE_XET": "1",
        "HF_HOME": str(tmp_path / "hf"),
    }

    def predict(backbone: str) -> subprocess.CompletedProcess[str]:
        words = ["predict", "hub:me/topics", "My invoice is wrong.", "--backbone", backbone, "--json"]
        command = [sys.executable, "-m", "softcue", *words]
        return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)

    found = predict("me/tiny@v1")
    assert found.returncode == 0, found.stderr
    assert (
        json.loads(found.stdout)["rows"][0]["label"]
        == save_cue(tmp_path / "again").predict("My invoice is wrong.")[0].label
    )
    for backbone, message in (("me/other@v1", "differ; load the cue on"), ("me/tiny@v2", "error: backbone.name: got")):
        refused = predict(backbone)
        assert refused.returncode == 2 and message in refused.stderr and refused.stderr.count("\n") == 1


@pytest.mark.processes
def test_the_hub_is_that_of_HF_ENDPOINT_and_an_error_ends_with_code_2(hub: FakeHub, tmp_path: Path) -> None:
    folder = save_cue(tmp_path / "topics").path
    environment = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HUB_OFFLINE": "0", "HF_HUB_DISABLE_XET": "1"}
    command = [sys.executable, "-m", "softcue"]
    pushed = subprocess.run(
        [*command, "push", str(folder), "me/topics"], env=environment, capture_output=True, text=True, check=False
    )
    assert pushed.returncode == 0 and pushed.stdout.startswith("uploaded: "), pushed.stderr
    missing = subprocess.run(
        [*command, "predict", "hub:me/none", "a text"], env=environment, capture_output=True, text=True, check=False
    )
    assert missing.returncode == 2 and missing.stderr.startswith("error: hub: got 'hub:me/none'; expected")
    assert missing.stderr.count("\n") == 1
