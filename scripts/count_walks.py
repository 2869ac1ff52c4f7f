"""Count the files that two walks visit: a csv row that becomes a cue, and an HTTP request that gets its answer.

    python scripts/count_walks.py [--root CHECKOUT] [--list]

The rule: a file counts if one of its functions is entered while the walk lasts, in any thread; module and class bodies
(imports) do not count. The row's walk is `softcue train --train rows.csv` with prompt tuning on a tiny encoder. The
request's walk lasts from the first byte sent to POST /v1/predict until its response has come, on a server that has
answered one request before. `--root` counts another checkout, such as an older commit.
"""

from __future__ import annotations

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

ROOT = Path(__file__).parents[1]
MESSAGES = {"billing": "The invoice is wrong.", "orders": "Where is my order?", "account": "I cannot sign in."}


class Walk:
    """Collects the functions that are entered, in order of their first call."""

    def __init__(self, package: Path) -> None:
        self.prefix = str(package) + os.sep
        self.functions: dict[tuple[str, str], None] = {}
        self.is_open = False

    def install(self) -> None:
        """Look at every call of this thread and of those that start from now on."""
        threading.setprofile(self._enter)
        sys.setprofile(self._enter)

    def _enter(self, frame: FrameType, event: str, _: Any) -> None:
        if not self.is_open or event != "call":
            return
        code: CodeType = frame.f_code
        is_body = code.co_name == "<module>" or not code.co_flags & 0x2  # CO_NEWLOCALS: functions only
        if code.co_filename.startswith(self.prefix) and not is_body and not _is_importing(frame):
            self.functions[code.co_filename[len(self.prefix) :], code.co_qualname] = None

    def result(self) -> dict[str, Any]:
        """Files in the order of their first visit, and how many functions were entered."""
        files = list(dict.fromkeys(file for file, _ in self.functions))
        return {"files": files, "num_files": len(files), "num_functions": len(self.functions)}


def _is_importing(frame: FrameType | None) -> bool:
    """Whether a call is part of an import, such as a decorator of a class."""
    while frame is not None:
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__") != "__main__":
            return True
        frame = frame.f_back
    return False


def row_to_cue(walk: Walk, models: Path, work: Path) -> None:
    """Train by the command line."""
    from softcue.cli.app import main as run_command

    path = work / "rows.csv"
    with path.open("w", newline="") as handle:
        writer = csv.writer(handle)
        writer.writerow(["text", "label"])
        writer.writerows([f"{text} {number}", label] for number in range(20) for label, text in MESSAGES.items())
    words = [
        "softcue",
        "train",
        "training.epochs=1",
        "--method",
        "prompt-tuning",
        "--train",
        str(path),
        "--text",
        "text",
        "--label",
        "label",
        "--backbone",
        str(models / "bert"),
        "--output-dir",
        str(work / "cues" / "messages"),
    ]
    sys.argv = words
    walk.is_open = True
    try:
        run_command()
    except SystemExit as end:
        if end.code:
            raise
    finally:
        walk.is_open = False


def request_to_answer(walk: Walk, models: Path, work: Path) -> None:
    """Serve the cue in a thread of this process and ask it twice; the second request counts."""
    import uvicorn

    app = _app(str(models / "bert"), work / "cues")
    server = uvicorn.Server(uvicorn.Config(app, port=0, log_config=None, access_log=False, loop="asyncio", http="h11"))
    threading.Thread(target=server.run, daemon=True).start()
    _wait_for(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]
    _wait_for(lambda: _status(f"http://127.0.0.1:{port}/readyz") == 200)
    body = json.dumps({"inputs": [{"task": "messages", "text": "The invoice is wrong."}]}).encode()
    for is_counted in (False, True):
        walk.is_open = is_counted
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/v1/predict", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            answer = json.load(response)
        time.sleep(0.5)  # what is done behind the response: log, metrics
        walk.is_open = False
    assert "label" in answer["results"][0], answer


def _app(backbone: str, cues: Path) -> Any:
    """The app of this checkout, whichever names it has."""
    from functools import partial

    try:
        from softcue.serving.http.routes import create_app
        from softcue.serving.http.service import Service, make_engine
    except ModuleNotFoundError:  # before serving/ was split into engine/ and http/
        from softcue.serving.app import create_app
        from softcue.serving.service import Service
        from softcue.serving.service import engine_of as make_engine
    from softcue.serving.settings import ServerSettings

    settings = ServerSettings(port=0)
    return create_app(Service(settings, partial(make_engine, settings, backbone, cues)))


def _status(url: str) -> int:
    try:
        with urllib.request.urlopen(url, timeout=5) as response:
            return int(response.status)
    except OSError:
        return 0


def _wait_for(is_true: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not is_true():
        assert time.monotonic() < end, "the server did not start"
        time.sleep(0.1)


def main() -> None:
    """Count both walks in a process that imports the checkout asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout to count")
    parser.add_argument("--list", action="store_true", help="print the files too")
    given = parser.parse_args()
    root = given.root.resolve()
    if os.environ.get("SOFTCUE_WALK") != str(root):
        environment = {**os.environ, "PYTHONPATH": str(root / "src"), "SOFTCUE_WALK": str(root), "HF_HUB_OFFLINE": "1"}
        words = [sys.executable, __file__, "--root", str(root), *(["--list"] if given.list else [])]
        with tempfile.TemporaryDirectory() as home:
            sys.exit(subprocess.run(words, env={**environment, "SOFTCUE_HOME": home}).returncode)
    sys.path.insert(0, str(root / "tests"))
    from tiny import tiny_model, tiny_tokenizer

    with tempfile.TemporaryDirectory() as folder:
        work = Path(folder)
        tiny_model("bert").save_pretrained(work / "bert")
        tiny_tokenizer("bert").save_pretrained(work / "bert")
        for name, run in (("a row to a cue", row_to_cue), ("a request to an answer", request_to_answer)):
            walk = Walk(root / "src" / "softcue")
            walk.install()
            run(walk, work, work)
            found = walk.result()
            print(f"{name}: {found['num_files']} files, {found['num_functions']} functions")
            if given.list:
                print("\n".join(f"  {file}" for file in found["files"]))
    os._exit(0)  # the server's threads


if __name__ == "__main__":
    main()
