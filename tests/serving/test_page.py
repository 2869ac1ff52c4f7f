"""The page at / and what it asks for: its headers, explanations, and the page itself in a real Chromium."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import re
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
import uvicorn
from serving_cues import LONG, SUBJECTS, TONE, TOPICS, save_cue
from starlette.testclient import TestClient
from tiny import tiny
from tolerance import REORDERED_PROBABILITIES

from softcue.cue.cue import Cue
from softcue.inputs.collate import collate
from softcue.inspection import nearest_words
from softcue.serving.engine.engine import Engine
from softcue.serving.engine.streaming import TextStreamer
from softcue.serving.http import explain as explain_module
from softcue.serving.http.examples import LabelledMessage, is_of_sample_task, labelled_messages
from softcue.serving.http.routes import create_app
from softcue.serving.http.service import Service
from softcue.serving.settings import ServerSettings
from softcue.tasks import Label, Task, examples_from, library_task
from softcue.types import Instance

MESSAGE = "My invoice is wrong."
EVIL = "<img src=x onerror=\"document.title='taken'\">"
Serve = Callable[..., TestClient]


@pytest.fixture(scope="module")
def client(serving: Serve) -> TestClient:
    return serving()


# --- the file and its headers ---


def test_policy_allows_the_pages_own_script_and_style_only(client: TestClient) -> None:
    response = client.get("/")
    assert response.headers["Content-Type"].startswith("text/html")
    policy = dict(part.strip().split(" ", 1) for part in response.headers["Content-Security-Policy"].split(";"))
    assert policy["default-src"] == policy["base-uri"] == policy["form-action"] == policy["frame-ancestors"] == "'none'"
    assert policy["connect-src"] == "'self'"
    for tag, source in (("script", "script-src"), ("style", "style-src")):
        [part] = re.findall(rf"<{tag}>(.*?)</{tag}>", response.text, re.DOTALL)
        digest = base64.b64encode(hashlib.sha256(part.encode()).digest()).decode()
        assert policy[source] == f"'sha256-{digest}'"


def test_page_is_whole_in_itself_and_writes_texts_only(client: TestClient) -> None:
    page = client.get("/").text
    assert not re.search(r"""(src|href|action)=["'](?!data:)|@import|url\(|https?:""", page)
    assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|eval\(|\son\w+=|\sstyle=", page)


def test_page_is_open_where_data_need_a_key(serve: Serve) -> None:
    client = serve(api_keys=("key-one",))
    assert client.get("/").status_code == 200
    for response in (client.get("/v1/tasks"), client.get("/metrics"), explain(client)):
        assert response.status_code == 401
    assert client.put("/").status_code == 405


# --- explanations ---


def explain(client: TestClient, task: Any = "tone-vip", text: Any = MESSAGE) -> Any:
    return client.post("/v1/explain", json={"inputs": [{"task": task, "text": text}]})


def explanation_of(client: TestClient, task: Any = "tone-vip", text: Any = MESSAGE) -> Any:
    [result] = explain(client, task, text).json()["results"]
    return result


def test_codes_are_the_likeliest_of_the_text(client: TestClient, cues: dict[str, Cue]) -> None:
    explanation = explanation_of(client)
    cue = cues["tone-vip"]
    assert (explanation["task"], explanation["version"], explanation["method"]) == (
        "tone-vip",
        cue.cue_file.record_sha256[:12],
        "vip",
    )
    assert explanation["reads_input"] is True
    encoder = cue.model.method.prompt_encoder()
    assert encoder is not None
    batch = collate(cue.model.rows(cue.backbone, cue.examples([MESSAGE])), cue.backbone.tokenizer.pad_token_id)
    with torch.no_grad():
        shares = encoder.assignment(Instance(cue.backbone.embed(batch.ids), batch.mask))[0]
    assert len(explanation["vectors"]) == len(shares) == 4
    for vector, share in zip(explanation["vectors"], shares, strict=True):
        assert [code["code"] for code in vector["codes"]] == share.topk(3).indices.tolist()
        assert [code["share"] for code in vector["codes"]] == pytest.approx(share.topk(3).values.tolist(), abs=1e-4)
        assert all(len(code["words"]) == 3 for code in vector["codes"])


@pytest.mark.parametrize("words_at_once", [7, 16384])
def test_words_of_a_prompt_for_every_text_are_those_of_inspect(
    client: TestClient, cues: dict[str, Cue], monkeypatch: pytest.MonkeyPatch, words_at_once: int
) -> None:
    inspected = nearest_words(cues["topics"], top=3).vectors  # the whole vocabulary at once
    monkeypatch.setattr("softcue.inspection.nearest.WORDS_AT_ONCE", words_at_once)
    explanation = explanation_of(client, "topics")
    assert explanation["reads_input"] is False
    for vector, wanted in zip(explanation["vectors"], inspected, strict=True):
        assert [near["word"] for near in vector["words"]] == [near.word for near in wanted.neighbours]
        cosines = [near["cosine"] for near in vector["words"]]
        assert cosines == pytest.approx([near.cosine for near in wanted.neighbours], abs=1e-4)
        assert "codes" not in vector


def test_words_of_prompts_that_read_the_input_differ_by_text(client: TestClient) -> None:
    first, second = (explanation_of(client, "topics-idpg", text) for text in (MESSAGE, "Where is it"))
    assert first["reads_input"] is True
    assert first["vectors"] != second["vectors"]


def test_every_cue_has_an_explanation(client: TestClient, cues: dict[str, Cue]) -> None:
    for name, cue in cues.items():
        explanation = explanation_of(client, name, MESSAGE if len(cue.task.text) == 1 else ["Who?", MESSAGE])
        has_vectors = name not in ("tone-adapter", "stars")  # prefixes are keys and values of layers, among no words
        assert len(explanation["vectors"]) == (4 if has_vectors else 0), name
        assert all(vector["words"] == [] for vector in explanation["vectors"]) == (
            name == "tone-late" or not has_vectors
        )
    assert len(explanation_of(client, "questions", ["Who?", LONG])["vectors"]) == 4


def test_explanations_have_the_errors_of_predictions(client: TestClient) -> None:
    for task, text, status, code in [
        ("nothing", "x", 404, "unknown_task"),
        ("pairs", "one", 422, "invalid"),
        ("topics", 5, 422, "invalid"),
        ("topics", "x" * 20_001, 422, "too_long"),
        (["topics"], "x", 422, "invalid"),
        ("topics", "x" * 2_000_001, 413, "too_large"),
    ]:
        response = explain(client, task, text)
        assert (response.status_code, response.json()["error"]["code"]) == (status, code)
        assert len(response.content) < 1000
    assert client.post("/v1/explain", content=b"{", headers={"Content-Type": "application/json"}).status_code == 400
    assert client.post("/v1/explain", content=b"{}").status_code == 415


def test_explanations_take_the_inputs_of_predictions(serve: Serve) -> None:
    client = serve(max_inputs=3)
    inputs = [{"task": "tone-vip", "text": MESSAGE}, {"task": "no", "text": "x"}, {"task": "topics", "text": "ok"}]
    assert client.post("/v1/predict", json={"inputs": inputs}).status_code == 200
    first, second, third = client.post("/v1/explain", json={"inputs": inputs}).json()["results"]
    assert (first["task"], second["error"]["code"], third["task"]) == ("tone-vip", "unknown_task", "topics")
    assert client.post("/v1/explain", json={"inputs": inputs * 2}).json()["error"]["code"] == "too_many"
    old = client.post("/v1/explain", json=inputs[0])  # the body of 0.1
    assert old.status_code == 422
    assert '"inputs": [{"task": NAME, "text": TEXT}]' in old.json()["error"]["message"]


def test_failed_explanation_is_503(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(explain_module, "explain_prompt", lambda *_: 1 / 0)
    assert explain(client).json()["error"]["code"] == "failed"


def test_many_explanations_at_once_are_429_and_late_ones_504(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    go = threading.Event()
    monkeypatch.setattr(explain_module, "MAX_WAITING", 2)
    monkeypatch.setattr(explain_module, "explain_prompt", lambda *_: go.wait(20))
    client = serve(deadline=0.5)
    with ThreadPoolExecutor(3) as pool:
        codes = sorted(response.status_code for response in pool.map(lambda _: explain(client), range(3)))
    assert codes == [429, 504, 504]
    go.set()
    monkeypatch.undo()
    assert explain(client).status_code == 200


def test_explanations_beside_predictions_change_neither(client: TestClient) -> None:
    def predicted(_: int) -> Any:
        inputs = [{"task": task, "text": MESSAGE} for task in ("topics-idpg", "tone-vip", "tone-late", "tone-adapter")]
        results = client.post("/v1/predict", json={"inputs": inputs, "return_scores": True}).json()["results"]
        return [score for result in results for score in result["scores"].values()]

    alone, explained = predicted(0), [explanation_of(client, task) for task in ("topics-idpg", "tone-vip", "tone-late")]
    with ThreadPoolExecutor(4) as pool:
        futures = [pool.submit(explain, client, task) for _ in range(8) for task in ("topics-idpg", "tone-vip")]
        together = list(pool.map(predicted, range(12)))
    for scores in together:
        assert scores == REORDERED_PROBABILITIES.approx(alone)
    explanations = [
        response.json()["results"][0] for future in futures if (response := future.result()).status_code == 200
    ]
    assert explanations
    assert all(explanation in explained for explanation in explanations)


# --- examples ---


def urgency_and(monkeypatch: pytest.MonkeyPatch, folder: Path, *names: str) -> list[LabelledMessage]:
    """Cues of a sample task, and messages: all cues are wrong about the first and right about the others."""
    task = library_task("urgency")
    cues = [save_cue(folder / name, task) for name in ("urgency", *names)]
    labels = [cues[0].predict([text])[0].label or "" for text in (MESSAGE, "Where is it", "ok")]
    wrong = next(label for label in task.labels if label != labels[0])
    messages = [
        LabelledMessage((MESSAGE,), {"urgency": wrong}),
        LabelledMessage(("Where is it", "not read"), {"urgency": labels[1]}),
        LabelledMessage(("ok",), {"urgency": labels[2]}),
    ]
    monkeypatch.setattr("softcue.serving.http.examples.labelled_messages", lambda: tuple(messages))
    return messages


def test_examples_have_the_labels_of_the_sample_tasks() -> None:
    messages = labelled_messages()
    names = {"tickets", "urgency", "reply-form", "same-request"}
    assert all(message.labels.keys() == names for message in messages)
    for message in messages:
        for name, label in message.labels.items():
            task = library_task(name)
            assert label in task.labels
            assert len(message.texts) >= len(task.text)
    for name in names:
        task = library_task(name)
        rows = {text for split in (task.train, task.validation, task.test) for text in example_texts(split, task)}
        assert not rows & {text for message in messages for text in message.texts}  # cues were not trained on them


def example_texts(file: str, task: Task) -> set[str]:
    return {text for example in examples_from(file, task) for text in example.texts}


def test_only_examples_that_every_cue_predicts_right_are_listed(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, second, third = urgency_and(monkeypatch, tmp_path, "urgency-again")
    save_cue(tmp_path / "other", TOPICS)  # no example is for it
    client = serve(tmp_path, admin_keys=("admin-key",))
    examples = client.get("/v1/examples").json()["examples"]
    assert [example["texts"] for example in examples] == [["Where is it"], ["ok"]]
    for example, message in zip(examples, (second, third), strict=True):
        label = message.labels["urgency"]
        assert example["labels"] == {"urgency": label, "urgency-again": label}
    admin = {"Authorization": "Bearer admin-key"}
    for name in ("urgency", "urgency-again"):
        client.delete(f"/v1/tasks/{name}", headers=admin)
    assert client.get("/v1/examples").json() == {"examples": []}


def test_examples_that_could_not_be_checked_are_checked_again(
    serve: Serve, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urgency_and(monkeypatch, tmp_path)
    client = serve(tmp_path)
    with monkeypatch.context() as patch:
        patch.setattr("softcue.serving.engine.engine.predict_mixed", lambda *_: 1 / 0)
        assert client.get("/v1/examples").status_code == 503
    assert len(client.get("/v1/examples").json()["examples"]) == 2


def test_tasks_of_users_have_no_example(client: TestClient) -> None:
    assert client.get("/v1/examples").json() == {"examples": []}
    mine = Task(name="tickets", labels=TOPICS.labels)  # only the name is that of a sample task
    assert not is_of_sample_task(mine)
    assert is_of_sample_task(library_task("same-request"))


def test_pictures_of_the_page_are_small() -> None:
    pictures = sorted((Path(__file__).parents[2] / "docs/images").glob("page-*.png"))
    assert [picture.stem for picture in pictures] == ["page-dark", "page-light", "page-phone"]
    for picture in pictures:
        assert picture.read_bytes().startswith(b"\x89PNG")
        assert picture.stat().st_size < 150_000


# --- in a browser ---


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    playwright = pytest.importorskip("playwright.sync_api", reason="needs playwright: pip install playwright")
    chromium = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("needs Chromium: apt-get install chromium")
    with playwright.sync_playwright() as running:
        browser_process = running.chromium.launch(executable_path=chromium, args=["--no-sandbox", "--disable-gpu"])
        yield browser_process
        browser_process.close()


@pytest.fixture(scope="module")
def listen(folder: Path) -> Iterator[Callable[..., str]]:
    """Servers on a port of this machine; their addresses."""
    running: list[tuple[uvicorn.Server, threading.Thread]] = []

    def start(cues_folder: Path = folder, model_type: str = "bert", **settings: Any) -> str:
        server_settings = ServerSettings(**settings)
        service = Service(
            server_settings,
            lambda on_batch: Engine(tiny(model_type), cues_folder, server_settings.limits, on_batch=on_batch),
        )
        server = uvicorn.Server(uvicorn.Config(create_app(service), port=0, log_config=None, access_log=False))
        thread = threading.Thread(target=server.run)
        thread.start()
        running.append((server, thread))
        while not (server.started and service.state == "ready"):
            assert thread.is_alive() and service.state != "failed"
            time.sleep(0.01)
        return f"http://127.0.0.1:{server.servers[0].sockets[0].getsockname()[1]}/"

    yield start
    for server, thread in running:
        server.should_exit = True
        thread.join(20)


@pytest.fixture(scope="module")
def address(listen: Callable[..., str]) -> str:
    return listen()


@pytest.fixture
def visit(browser: Any) -> Iterator[Callable[..., Any]]:
    """Pages in windows of their own; afterwards none of them may have had an error of its own."""
    contexts, errors = [], []

    def to(address: str, **settings: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **settings})
        contexts.append(context)
        page = context.new_page()
        page.set_default_timeout(15_000)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        page.goto(address)
        return page

    yield to
    for context in contexts:
        context.close()
    assert [error for error in errors if "Failed to load resource" not in error] == []


def says(page: Any, selector: str, words: str | re.Pattern[str]) -> None:
    """Wait for words on the page."""
    page.locator(selector).filter(has_text=words).wait_for()


def ask(page: Any, message: str = MESSAGE, second: str = "I was billed twice.") -> None:
    page.fill("#text-1", message)
    page.fill("#text-2", second)
    page.click("#ask")
    says(page, "#status", "with a prediction")


def card(page: Any, name: str) -> Any:
    return page.locator(f"article[aria-label='Cue {name}']")


@pytest.mark.slow
def test_text_shows_the_prediction_of_every_cue(visit: Callable[..., Any], address: str, cues: dict[str, Cue]) -> None:
    page = visit(address)
    ask(page)
    assert re.fullmatch(r"10 of 10 cues with a prediction, after \d+ ms\.", page.inner_text("#status"))
    for name, cue in cues.items():
        texts = MESSAGE if len(cue.task.text) == 1 else [MESSAGE, "I was billed twice."]
        wanted = cue.predict([texts])[0]
        shown = card(page, name)
        assert cue.cue_file.record_sha256[:12] in shown.inner_text()
        assert re.search(r"queue [\d.]+ ms, compute [\d.]+ ms", shown.inner_text())
        assert shown.locator(".bars li").count() == len(wanted.scores or {})
        if wanted.labels is not None:
            assert shown.locator(".prediction").inner_text() == ("; ".join(map(str, wanted.labels)) or "(no label)")
            assert sorted(shown.locator("li.first span:first-child").all_inner_texts()) == sorted(wanted.labels)
        elif wanted.scores:
            best = max(wanted.scores, key=lambda label: (wanted.scores or {})[label])
            assert shown.locator(".prediction").inner_text() == wanted.label == best
            assert shown.locator("li.first .number").inner_text() == f"{wanted.scores[best]:.3f}"
            track, fill = (shown.locator(f"li.first .bar{part}").bounding_box() for part in ("", " i"))
            assert fill["width"] / track["width"] == pytest.approx(wanted.scores[best], abs=0.03)
    assert float(card(page, "stars").locator(".prediction").inner_text()) == pytest.approx(
        cues["stars"].predict([MESSAGE])[0].value, abs=1e-3
    )


@pytest.mark.slow
def test_two_cues_with_sets_of_labels_are_compared(
    visit: Callable[..., Any], listen: Callable[..., str], tmp_path: Path
) -> None:
    cues = {f"seed{seed}": save_cue(tmp_path / f"seed{seed}", SUBJECTS, seed=seed) for seed in range(12)}
    answers = {name: set(cue.predict([MESSAGE])[0].labels or ()) for name, cue in cues.items()}
    other = next(name for name in cues if len(answers[name] ^ answers["seed0"]) == 1)
    page = visit(listen(tmp_path))
    page.fill("#text-1", MESSAGE)
    page.click("#tab-compare")
    page.select_option("#first", "seed0")
    page.select_option("#second", other)
    says(page, "#verdict", "The predictions differ.")
    marked = page.locator("#difference tr.differs td:first-child").all_inner_texts()
    assert set(marked) == answers[other] ^ answers["seed0"]


@pytest.mark.slow
def test_second_text_is_asked_for_only_where_it_is_read(visit: Callable[..., Any], address: str) -> None:
    page = visit(address)
    page.fill("#text-1", MESSAGE)
    says(page, "#status", "8 of 10")  # it asks by itself
    assert "needs text 2 (second)" in card(page, "pairs").inner_text()
    page.fill("#filter", "tone")
    says(page, "#status", "3 of 3")
    assert page.is_hidden("#text-2")
    assert page.locator("article").count() == 3


@pytest.mark.slow
def test_prompts_say_which_codes_and_words_they_used(visit: Callable[..., Any], address: str) -> None:
    page = visit(address)
    ask(page)
    for name, wanted in (
        ("tone-vip", "likeliest codes"),
        ("topics", "same for every text"),
        ("topics-idpg", "made for this text"),
        ("tone-adapter", "adds no prompt vectors"),
    ):
        card(page, name).locator("summary").click()
        card(page, name).locator("details p").wait_for()
        assert wanted in card(page, name).locator("details").inner_text()
    assert card(page, "tone-vip").locator("tbody tr").count() == 4


def tab_to(page: Any, selector: str) -> None:
    for _ in range(60):
        if page.evaluate("wanted => document.activeElement.matches(wanted)", selector):
            outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
            assert outline == "solid", f"{selector} does not show that it has the focus"
            return
        page.keyboard.press("Tab")
    raise AssertionError(f"{selector} cannot be reached by keyboard")


@pytest.mark.slow
def test_everything_can_be_done_by_keyboard(visit: Callable[..., Any], address: str) -> None:
    page = visit(address)
    page.wait_for_selector("#text-2")
    tab_to(page, "#text-1")
    page.keyboard.type(MESSAGE)
    page.keyboard.press("Control+Enter")
    says(page, "#status", "8 of 10")
    tab_to(page, "[aria-label='Cue tone-vip'] summary")
    page.keyboard.press("Enter")
    card(page, "tone-vip").locator("tbody tr").first.wait_for()
    page.evaluate("document.activeElement.blur(); scrollTo(0, 0)")
    page.keyboard.press("Shift+Tab")
    tab_to(page, "#tab-all")
    page.keyboard.press("ArrowRight")
    tab_to(page, "#first")
    page.keyboard.type("tone-vip")
    tab_to(page, "#second")
    page.keyboard.type("tone-late")
    says(page, "#difference h2 >> nth=0", "tone-vip")
    says(page, "#difference h2 >> nth=1", "tone-late")
    page.locator("#verdict").wait_for()
    for _ in range(20):
        if page.evaluate("document.activeElement.id") == "tab-compare":
            break
        page.keyboard.press("Shift+Tab")
    page.keyboard.press("ArrowRight")
    tab_to(page, "#pasted")
    page.keyboard.type("one line")
    page.keyboard.press("Control+Enter")
    says(page, "#progress", "1 of 1 line predicted")
    tab_to(page, "#save")


@pytest.mark.slow
def test_phone_needs_no_scrolling_sideways(visit: Callable[..., Any], address: str) -> None:
    page = visit(address, viewport={"width": 360, "height": 740}, has_touch=True, is_mobile=True)
    widest = "Math.max(document.documentElement.scrollWidth, document.body.scrollWidth)"
    ask(page, "Donaudampfschifffahrtsgesellschaft" * 6)
    card(page, "tone-vip").locator("summary").click()
    card(page, "tone-vip").locator("tbody tr").first.wait_for()
    assert page.evaluate(widest) <= 360
    page.click("#tab-compare")
    page.locator("#verdict").wait_for()
    assert page.evaluate(widest) <= 360
    page.click("#tab-lines")
    page.fill("#pasted", "x" * 300 + "\nb\tc")
    page.click("#run")
    says(page, "#progress", "2 of 2")
    assert page.evaluate(widest) <= 360


@pytest.mark.slow
@pytest.mark.parametrize(("scheme", "is_dark"), [("light", False), ("dark", True)])
def test_colours_follow_the_system(visit: Callable[..., Any], address: str, scheme: str, is_dark: bool) -> None:
    page = visit(address, color_scheme=scheme)
    for selector in ("body", "#text-1"):
        page.wait_for_selector(selector)
        back, front = page.evaluate(
            "wanted => [getComputedStyle(document.querySelector(wanted)).backgroundColor,"
            " getComputedStyle(document.querySelector(wanted)).color]",
            selector,
        )
        lights = [sum(map(int, re.findall(r"\d+", colour)[:3])) for colour in (back, front)]
        assert (lights[0] < lights[1]) is is_dark
        assert abs(lights[0] - lights[1]) > 500


@pytest.mark.slow
def test_two_cues_are_compared(visit: Callable[..., Any], listen: Callable[..., str], tmp_path: Path) -> None:
    cues = {f"seed{seed}": save_cue(tmp_path / f"seed{seed}", TOPICS, seed=seed) for seed in range(12)}
    answers = {name: cue.predict([MESSAGE])[0] for name, cue in cues.items()}
    alike = next(name for name in list(cues)[1:] if answers[name].label == answers["seed0"].label)
    other = next(name for name in cues if answers[name].label != answers["seed0"].label)
    page = visit(listen(tmp_path))
    page.wait_for_selector("#text-1")
    page.fill("#text-1", MESSAGE)
    page.click("#tab-compare")
    page.select_option("#first", "seed0")
    for name, words in ((other, "The predictions differ."), (alike, "Both cues give the same prediction.")):
        page.select_option("#second", name)
        says(page, "#verdict", words)
        assert page.locator("#difference article").count() == 2
        marked = page.locator("#difference tr.differs td:first-child").all_inner_texts()
        assert set(marked) == ({answers["seed0"].label, answers[name].label} if name == other else set())
        for row in page.locator("#difference tbody tr").all():
            label, *numbers = [cell.inner_text().replace("−", "-") for cell in row.locator("td").all()]
            wanted = [(answers[seed].scores or {})[label] for seed in ("seed0", name)]
            assert [float(number) for number in numbers] == pytest.approx([*wanted, wanted[1] - wanted[0]], abs=2e-3)
            is_marked = "differs" in (row.locator("td").last.get_attribute("class") or "")
            assert is_marked == (abs(wanted[1] - wanted[0]) >= 0.1)


@pytest.mark.slow
def test_first_example_is_right(
    visit: Callable[..., Any], listen: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _, second, third = urgency_and(monkeypatch, tmp_path)
    page = visit(listen(tmp_path))
    says(page, "#status", "1 of 1 cue with a prediction")
    assert page.input_value("#text-1") == "Where is it"
    assert card(page, "urgency").locator(".prediction").inner_text().split() == [second.labels["urgency"], "✓", "right"]
    page.click("#examples button >> nth=1")
    assert page.input_value("#text-1") == "ok"
    says(page, ".prediction", third.labels["urgency"])
    page.fill("#text-1", "a text of the user")
    page.locator(".right").wait_for(state="detached")


@pytest.mark.slow
def test_example_waits_for_a_click_where_it_is_not_for_every_cue(
    visit: Callable[..., Any], listen: Callable[..., str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    urgency_and(monkeypatch, tmp_path)
    save_cue(tmp_path / "mine", TOPICS)
    page = visit(listen(tmp_path))
    page.locator("#examples button").first.wait_for()
    assert page.input_value("#text-1") == ""
    assert page.get_attribute("#text-1", "placeholder") == "Type or paste a text."
    page.click("#examples button >> nth=0")
    says(page, "#status", "2 of 2 cues")
    assert page.locator(".right").count() == 1


@pytest.mark.slow
def test_page_shows_number_format_and_device(visit: Callable[..., Any], address: str) -> None:
    page = visit(address)
    says(page, "#server", "float32 on cpu")
    assert "tiny-bert" in page.inner_text("#server")


@pytest.mark.slow
def test_comparison_starts_with_two_cues_of_one_task(visit: Callable[..., Any], address: str) -> None:
    page = visit(address)
    page.wait_for_selector("#text-1")
    page.click("#tab-compare")
    assert page.locator("#first option").all_inner_texts() == [
        "tone-adapter",
        "tone-late",
        "tone-vip",
        "topics",
        "topics-idpg",
    ]
    assert (page.input_value("#first"), page.input_value("#second")) == ("tone-adapter", "tone-late")
    page.select_option("#first", "topics")
    assert page.locator("#second option").all_inner_texts() == ["topics-idpg"]
    assert page.is_hidden("#no-pair")


@pytest.mark.slow
def test_comparison_without_a_pair_says_how_to_get_one(
    visit: Callable[..., Any], listen: Callable[..., str], tmp_path: Path
) -> None:
    save_cue(tmp_path / "topics", TOPICS)
    save_cue(tmp_path / "tone", TONE)
    page = visit(listen(tmp_path))
    page.locator("article").first.wait_for()
    page.click("#tab-compare")
    advice = page.inner_text("#no-pair")
    assert "No two loaded cues have the same task" in advice
    assert "softcue train" in advice
    assert page.is_hidden("#first")
    assert page.is_hidden("#text-1")
    page.click("#tab-all")
    assert page.is_visible("#text-1")


@pytest.mark.slow
def test_text_is_shown_while_it_is_written_and_can_be_stopped(
    visit: Callable[..., Any],
    listen: Callable[..., str],
    writing_cues: dict[str, dict[str, Cue]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cue = writing_cues["t5"]["titles"]
    assert cue.path is not None
    page = visit(listen(cue.path.parent, "t5"))
    page.fill("#filter", "titles")
    page.fill("#text-1", MESSAGE)
    says(page, "#status", "2 of 2 cues with a prediction")
    assert card(page, "titles").locator(".prediction").inner_text() == cue.predict([MESSAGE])[0].label
    assert page.is_hidden("#stop-writing")

    go, plain_send = threading.Event(), TextStreamer.send

    def send_and_wait(streamer: TextStreamer, text: str) -> None:
        plain_send(streamer, text)
        if text:
            assert go.wait(20)

    monkeypatch.setattr(TextStreamer, "send", send_and_wait)
    page.fill("#text-1", "Where is it")
    says(page, "article .prediction.writing >> nth=0", re.compile(r"\S"))
    wanted = cue.predict(["Where is it"])[0].label or ""
    part = page.locator("article .prediction.writing").filter(has_text=re.compile(r"\S")).first.inner_text()
    assert 0 < len(part) < len(wanted)
    page.click("#stop-writing")
    page.locator(".writing").first.wait_for(state="detached")
    assert page.locator("article").filter(has_text="stopped").count() == 2
    assert part in page.locator("article .prediction").all_inner_texts()
    assert page.is_hidden("#alert")
    assert page.is_hidden("#stop-writing")
    go.set()


@pytest.mark.slow
def test_labels_that_are_numbers_or_booleans_are_shown(
    visit: Callable[..., Any], listen: Callable[..., str], tmp_path: Path
) -> None:
    save_cue(tmp_path / "flags", Task(name="flags", labels={"True": Label(words="yes"), "False": Label(words="no")}))
    save_cue(tmp_path / "stars", Task(name="stars", labels={"0": Label(words="no"), "1": Label(words="yes")}))
    page = visit(listen(tmp_path))

    def typed(route: Any) -> None:
        response = route.fetch()
        content = response.json()
        for result, label in zip(content["results"], (False, 0), strict=True):
            result["label"] = label
        route.fulfill(response=response, json=content)

    page.route("**/v1/predict", typed)
    page.fill("#text-1", MESSAGE)
    says(page, "#status", "2 of 2")
    assert card(page, "flags").locator(".prediction").inner_text() == "False"
    assert card(page, "stars").locator(".prediction").inner_text() == "0"


@pytest.mark.slow
def test_scores_stand_with_their_rows(visit: Callable[..., Any], listen: Callable[..., str], tmp_path: Path) -> None:
    save_cue(tmp_path / "topics", TOPICS)
    page = visit(listen(tmp_path))
    for scores, rows, words in (
        (
            {"test": {"accuracy": 87.302}, "validation": {"accuracy": 1.0}},
            {"test": 126},
            "accuracy 87.3 on 126 test rows",
        ),
        ({"validation": {"accuracy": 80.0}}, {"validation": 12}, "80.0 on 12 validation rows (fewer than 30"),
        ({"test": {"accuracy": 80.0}}, {}, "accuracy 80.0 on test rows (how many is not recorded)"),
    ):

        def scored(route: Any, *, scores: Any = scores, rows: Any = rows) -> None:
            response = route.fetch()
            content = response.json()
            content["tasks"][0] |= {"scores": scores, "rows": rows}
            route.fulfill(response=response, json=content)

        page.route("**/v1/tasks", scored)
        page.reload()
        says(page, "article", words)
        page.unroute("**/v1/tasks")


LINES = ['=HYPERLINK("http://x")', "+1", "-2 and, a comma", "@SUM(A1)", 'she said "no"', "plain", "naïve ☕", f"{EVIL}"]


@pytest.mark.slow
def test_many_lines_become_a_table_and_a_csv(visit: Callable[..., Any], address: str, cues: dict[str, Cue]) -> None:
    lines = [*LINES, *(f"line {number}" for number in range(60)), "first\tsecond"]
    page = visit(address)
    page.wait_for_selector("#text-1")
    page.click("#tab-lines")
    page.fill("#pasted", "\n".join(lines) + "\n\n")
    page.click("#run")
    says(page, "#progress", "69 of 69 lines predicted")
    assert page.locator("#table tbody tr").count() == len(lines)
    assert page.locator("#table img").count() == 0
    with page.expect_download() as download:
        page.click("#save")
    text = Path(download.value.path()).read_bytes().decode("utf-8-sig")
    rows = list(csv.DictReader(io.StringIO(text, newline="")))
    assert [row["text"] for row in rows] == [f"'{line}" if line[0] in "=+-@" else line.split("\t")[0] for line in lines]
    for line, row in zip(lines[:-1], rows, strict=False):
        answer = cues["topics"].predict([line])[0]
        assert row["topics"] == answer.label
        assert float(row["topics score"]) == pytest.approx(max((answer.scores or {}).values()), abs=1e-4)
        assert row["topics version"] == cues["topics"].cue_file.record_sha256[:12]
        assert row["subjects"] == (
            "; ".join(map(str, cues["subjects"].predict([line])[0].labels or ())) or "(no label)"
        )
        assert row["subjects score"] == ""
        assert float(row["stars"]) == pytest.approx(cues["stars"].predict([line])[0].value, abs=1e-4)
        assert row["pairs"] == "needs text 2 (second)"
    assert rows[-1]["pairs"] == cues["pairs"].predict([["first", "second"]])[0].label
    assert rows[-1]["text 2"] == "second"


@pytest.mark.slow
def test_key_is_asked_for_and_kept_in_the_tab_alone(visit: Callable[..., Any], listen: Callable[..., str]) -> None:
    page = visit(listen(api_keys=("key-one",)))
    page.locator("dialog[open]").wait_for()
    page.keyboard.type("wrong")
    page.keyboard.press("Enter")
    says(page, "#key-why", "not accepted")
    page.fill("#key-text", "no key ☕")
    page.keyboard.press("Enter")
    assert "without spaces" in page.inner_text("#key-why")
    page.fill("#key-text", "key-one")
    page.keyboard.press("Enter")
    page.locator("dialog[open]").wait_for(state="detached")
    ask(page)
    assert "10 of 10" in page.inner_text("#status")
    kept = page.evaluate("[localStorage.length, document.cookie, Object.values(sessionStorage)]")
    assert kept == [0, "", ["key-one"]]
    page.click("#forget")
    page.locator("dialog[open]").wait_for()
    page.keyboard.press("Escape")
    assert "Without a key" in page.inner_text("#status")


@pytest.mark.slow
def test_texts_and_labels_never_become_html(
    visit: Callable[..., Any], listen: Callable[..., str], tmp_path: Path
) -> None:
    labels = {EVIL: Label(words="account"), "</script><b>b</b>": Label(words="billing")}
    names = {"<i>PER</i>": Label(words="person"), "LOC": Label(words="place")}
    save_cue(tmp_path / "evil", Task(name="evil", description=EVIL, labels=labels))
    save_cue(tmp_path / "mean", Task(name="evil", labels=labels), seed=1)
    save_cue(tmp_path / "names", Task(name="names", kind="tags", labels=names))
    page = visit(listen(tmp_path))
    page.wait_for_selector("#text-1")
    page.fill("#text-1", f"{EVIL} Ann in Rome")
    page.locator("#cards .bars").first.wait_for()
    assert EVIL in card(page, "evil").locator(".bars").inner_text()
    page.click("#tab-compare")
    page.locator("#difference table").wait_for()
    assert EVIL in page.inner_text("#difference")
    page.click("#tab-lines")
    page.fill("#pasted", EVIL)
    page.click("#run")
    page.locator("#table tbody tr").wait_for()
    assert EVIL in page.inner_text("#table")
    assert page.locator("img, main b, main i:not(.bar i), main script").count() == 0
    assert page.title() == "softcue"


@pytest.mark.slow
def test_errors_are_shown_in_words(visit: Callable[..., Any], address: str) -> None:
    page = visit(address)
    page.wait_for_selector("#text-1")
    page.route("**/v1/predict", lambda route: route.abort())
    page.fill("#text-1", MESSAGE)
    page.locator("#alert").wait_for()
    assert "cannot be reached" in page.inner_text("#alert")
    body = '{"error": {"status": 503, "code": "failed", "message": "server: expected a pass; try again"}}'
    page.unroute("**/v1/predict")
    page.route("**/v1/predict", lambda route: route.fulfill(status=503, body=body, content_type="application/json"))
    page.click("#ask")
    says(page, "#alert", "Server: expected a pass. Try again. (503)")
    page.unroute("**/v1/predict")
    page.click("#ask")
    page.locator("#alert").wait_for(state="hidden")
    page.fill("#text-1", "x" * 20_001)
    says(page, ".failed >> nth=0", "Text: expected at most 20,000 characters. Shorten or split it. (422)")


@pytest.mark.slow
def test_full_server_is_waited_for(visit: Callable[..., Any], address: str) -> None:
    page, times = visit(address), []
    page.wait_for_selector("#text-1")

    def full_once(route: Any) -> None:
        times.append(1)
        if len(times) > 1:
            route.continue_()
        else:
            route.fulfill(status=429, headers={"Retry-After": "1"}, body="{}", content_type="application/json")

    page.route("**/v1/predict", full_once)
    ask(page)
    assert len(times) >= 2


@pytest.mark.slow
def test_load_and_loaded_cues_are_followed(
    visit: Callable[..., Any], listen: Callable[..., str], tmp_path: Path
) -> None:
    save_cue(tmp_path / "one", TONE)
    page = visit(listen(tmp_path, admin_keys=("admin-key",)))
    page.wait_for_selector("#text-1")
    page.fill("#text-1", MESSAGE)
    page.locator(".bars").wait_for()
    says(page, "#rate", re.compile(r"\d"))
    assert len(page.locator("#rate-line polyline").get_attribute("points").split()) >= 1
    assert page.inner_text("#queue") == "0"
    save_cue(tmp_path / "two", TOPICS)
    page.request.put(f"{page.url}v1/tasks/two", headers={"Authorization": "Bearer admin-key"})
    card(page, "two").locator(".bars").wait_for()
