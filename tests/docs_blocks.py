"""Code blocks of the documentation, and how its commands are run one after the other."""

from __future__ import annotations

import re
import shlex
import socket
import subprocess
import sys
import textwrap
import time
import urllib.request
from collections.abc import Iterable
from pathlib import Path

from command import run

ROOT = Path(__file__).parents[1]
# Commands of lab notes and changelog are those of their date; reports are copies of what a study wrote.
LEFT_OUT = ("CHANGELOG.md", "docs/lab-notes.md", "docs/results/")
PAGES = sorted(
    page
    for page in [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    if not page.relative_to(ROOT).as_posix().startswith(LEFT_OUT)
)
BLOCK = re.compile(r"^( *)```(\w*)\n(.*?)^ *```", re.MULTILINE | re.DOTALL)
COMMAND = re.compile(r"^(?:torchrun .* -m )?softcue (\S+)(.*?)(?:\s{2,}#.*)?$", re.MULTILINE)
INLINE = re.compile(r"(?<!`)`(softcue [^`]+)`(?!`)")


def blocks(page: str, *languages: str) -> list[str]:
    """The code blocks of a page in these languages, without the indentation of a list."""
    return [textwrap.dedent(code) for _, language, code in BLOCK.findall(page) if language in languages]


def commands_of(page: str) -> list[tuple[str, str]]:
    """The softcue commands of a page, in code blocks and in sentences: verb and further words."""
    page = page.partition("\n## Older name")[0]  # of the glossary
    lines = ["\n".join(blocks(page, "", "bash", "sh", "console")).replace("\\\n", " ")]
    lines += [" ".join(words.split()) for words in INLINE.findall(BLOCK.sub("", page))]
    return COMMAND.findall("\n".join(lines))


def page_name(page: Path) -> str:
    """A name for the page in the list of tests."""
    return page.relative_to(ROOT).as_posix()


def run_commands(lines: Iterable[str], address: str) -> subprocess.Popen[bytes] | None:
    """Run the commands one after the other; return the server, a process, if one of them started it.

    The server listens at `address`, and the commands behind it are sent there. `pip` lines are left out.
    """
    server: subprocess.Popen[bytes] | None = None
    try:
        for line in lines:
            words = shlex.split(line, comments=True)
            if not words or words[0] == "pip":
                continue
            if words[0] == "curl":
                reply = subprocess.run(
                    [word.replace("localhost:8000", address) for word in words], capture_output=True, check=True
                )
                assert b'"label"' in reply.stdout, reply
                continue
            assert words.pop(0) == "softcue", line
            if words[0] == "serve":
                server = serve(*words, "--port", address.partition(":")[2])
                wait_for(f"http://{address}/readyz", server)
                continue
            if words[0] == "client":
                words += ["--url", f"http://{address}"]
            result = run(*words)
            assert result.code == 0, f"{line}\n{result.err}"
            assert result.out.strip() or "--output" in line, line
    except BaseException:
        stop(server)
        raise
    return server


def stop(server: subprocess.Popen[bytes] | None) -> None:
    """End the server, if there is one."""
    if server is not None:
        server.terminate()
        server.wait(timeout=60)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def serve(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "softcue", *words], stdout=subprocess.DEVNULL)


def wait_for(url: str, server: subprocess.Popen[bytes]) -> None:
    """Wait until the server answers."""
    for _ in range(600):
        assert server.poll() is None, "the server has ended"
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.2)
    raise AssertionError(f"{url} does not answer")
