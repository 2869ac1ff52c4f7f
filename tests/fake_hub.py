"""A hub on this machine for tests: what huggingface_hub asks to make, fill, list and read repositories."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar
from urllib.parse import unquote, urlsplit

TOKEN = "hf_of_the_tests"


@dataclass
class Repository:
    """Branches point to commits; a commit is all files by name."""

    is_private: bool = False
    branches: dict[str, str] = field(default_factory=dict)
    commits: dict[str, dict[str, bytes]] = field(default_factory=dict)
    messages: list[str] = field(default_factory=list)

    def commit(self, branch: str, files: dict[str, bytes], message: str = "") -> str:
        """A new commit on a branch; it keeps the other files."""
        content = {**self.commits.get(self.branches.get(branch, ""), {}), **files}
        oid = hashlib.sha1(repr((branch, len(self.commits), sorted(content))).encode()).hexdigest()
        self.commits[oid] = content
        self.branches[branch] = oid
        self.messages.append(message)
        return oid


class FakeHub:
    """Repositories by id, and what was asked of the hub."""

    def __init__(self) -> None:
        self.repositories: dict[str, Repository] = {}
        self.uploads: dict[str, bytes] = {}  # sha256 -> a large file
        self.requests: list[str] = []  # method and path
        self.sizes: dict[str, int] = {}  # file -> a size to claim instead of the real one
        self.failure: tuple[int, str] | None = None  # status and error code of every answer
        self.url = ""

    def downloads(self) -> list[str]:
        """Files that were read, in order."""
        return [line.rpartition("/")[2] for line in self.requests if line.startswith("GET") and "/resolve/" in line]


@contextmanager
def run_fake_hub() -> Iterator[FakeHub]:
    """A hub that answers at a port of this machine."""
    hub = FakeHub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        hub.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        thread.start()
        try:
            yield hub
        finally:
            server.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: ClassVar[FakeHub]
    protocol_version = "HTTP/1.1"

    def _answer(self) -> None:
        path = unquote(urlsplit(self.path).path)
        self.hub.requests.append(f"{self.command} {path}")
        body = self._read_body()
        if self.hub.failure is not None:
            return self._fail(*self.hub.failure)
        for method, pattern, answer in ROUTES:
            if method == self.command.replace("HEAD", "GET") and (match := re.fullmatch(pattern, path)):
                return answer(self, body, *match.groups())
        return self._fail(404, "EntryNotFound")

    def _read_body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length", "0")))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    do_GET = do_HEAD = do_POST = do_PUT = _answer  # noqa: N815

    def _send(self, content: bytes, status: int = 200, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(content)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _json(self, value: Any, status: int = 200) -> None:
        self._send(json.dumps(value).encode(), status, Content_Type="application/json")

    def _fail(self, status: int, code: str) -> None:
        self._send(b"", status, X_Error_Code=code)

    def _may_write(self) -> bool:
        return self.headers.get("Authorization") == f"Bearer {TOKEN}"

    def _readable(self, repo_id: str, revision: str) -> tuple[str, dict[str, bytes]] | None:
        """Commit and files of a revision, or an answer and None."""
        repository = self.hub.repositories.get(repo_id)
        if repository is None or (repository.is_private and not self._may_write()):
            return self._fail(401, "RepoNotFound")
        commit = repository.branches.get(revision, revision)
        if commit not in repository.commits:
            return self._fail(404, "RevisionNotFound")
        return commit, repository.commits[commit]

    def create(self, body: bytes) -> None:
        if not self._may_write():
            return self._fail(401, "")
        values = json.loads(body)
        repo_id = f"{values['organization']}/{values['name']}"
        if repo_id in self.hub.repositories:
            return self._json({"error": "exists", "url": f"{self.hub.url}/{repo_id}"}, 409)
        repository = self.hub.repositories[repo_id] = Repository(values.get("visibility") == "private")
        repository.commit("main", {".gitattributes": b"*.safetensors filter=lfs"})
        return self._json({"url": f"{self.hub.url}/{repo_id}"})

    def branch(self, body: bytes, repo_id: str, branch: str) -> None:
        repository = self.hub.repositories[repo_id]
        if branch in repository.branches:
            return self._json({"error": "exists"}, 409)
        repository.branches[branch] = repository.branches["main"]
        return self._json({})

    def validate(self, body: bytes) -> None:
        assert json.loads(body)["content"].startswith("---\n")
        self._json({"errors": [], "warnings": []})

    def preupload(self, body: bytes, repo_id: str, revision: str) -> None:
        if not self._may_write():
            return self._fail(403, "")
        files = [file["path"] for file in json.loads(body)["files"]]
        modes = {path: "lfs" if path.endswith(".safetensors") else "regular" for path in files}
        return self._json(
            {"files": [{"path": path, "uploadMode": mode, "shouldIgnore": False} for path, mode in modes.items()]}
        )

    def batch(self, body: bytes, repo_id: str) -> None:
        self._json(
            {
                "transfer": "basic",
                "objects": [
                    {**item, "actions": {"upload": {"href": f"{self.hub.url}/large/{item['oid']}"}}}
                    for item in json.loads(body)["objects"]
                ],
            }
        )

    def upload(self, body: bytes, oid: str) -> None:
        assert hashlib.sha256(body).hexdigest() == oid
        self.hub.uploads[oid] = body
        self._send(b"")

    def commit(self, body: bytes, repo_id: str, branch: str) -> None:
        lines = [json.loads(line) for line in body.splitlines()]
        files = {}
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                files[value["path"]] = self.hub.uploads[value["oid"]]
        oid = self.hub.repositories[repo_id].commit(branch, files, lines[0]["value"]["summary"])
        self._json({"commitOid": oid, "commitUrl": f"{self.hub.url}/{repo_id}/commit/{oid}"})

    def info(self, body: bytes, repo_id: str, revision: str) -> None:
        if (found := self._readable(repo_id, revision)) is not None:
            commit, files = found
            sizes = {name: self.hub.sizes.get(name, len(content)) for name, content in files.items()}
            siblings = [{"rfilename": name, "size": size, "blobId": "0" * 40} for name, size in sizes.items()]
            self._json({"id": repo_id, "sha": commit, "siblings": siblings, "private": False, "tags": []})

    def tree(self, body: bytes, repo_id: str, revision: str) -> None:
        if (found := self._readable(repo_id, revision)) is not None:
            entries = found[1].items()
            self._json([{"type": "file", "path": name, "size": len(data), "oid": "0" * 40} for name, data in entries])

    def resolve(self, body: bytes, repo_id: str, revision: str, name: str) -> None:
        if (found := self._readable(repo_id, revision)) is not None:
            commit, files = found
            if name not in files:
                return self._fail(404, "EntryNotFound")
            etag = f'"{hashlib.sha256(files[name]).hexdigest()}"'
            return self._send(files[name], ETag=etag, X_Repo_Commit=commit)
        return None

    def log_message(self, *args: object) -> None:
        """Nothing: tests read `requests`."""


REPO, NAME = r"([^/]+/[^/]+)", r"([^/]+)"
ROUTES: list[tuple[str, str, Callable[..., None]]] = [
    ("POST", "/api/repos/create", _Handler.create),
    ("POST", "/api/validate-yaml", _Handler.validate),
    ("POST", f"/api/models/{REPO}/branch/{NAME}", _Handler.branch),
    ("POST", f"/api/models/{REPO}/preupload/{NAME}", _Handler.preupload),
    ("POST", f"/{REPO}.git/info/lfs/objects/batch", _Handler.batch),
    ("PUT", f"/large/{NAME}", _Handler.upload),
    ("POST", f"/api/models/{REPO}/commit/{NAME}", _Handler.commit),
    ("GET", f"/api/models/{REPO}/revision/{NAME}", _Handler.info),
    ("GET", f"/api/models/{REPO}/tree/{NAME}", _Handler.tree),
    ("GET", f"/api/models/{REPO}", lambda handler, body, repo_id: handler.info(body, repo_id, "main")),
    ("GET", f"/{REPO}/resolve/{NAME}/{NAME}", _Handler.resolve),
]
