"""A small client for a softcue server, with nothing but the standard library."""

from __future__ import annotations

import http.client
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import quote, urlsplit

from softcue.errors import ConfigurationError, SoftcueError

Text = str | Sequence[str]
LONGEST_WAIT = 10.0  # seconds between two attempts


class ServerError(SoftcueError):
    """A server that cannot be reached, or its refusal of a whole request."""

    def __init__(self, url: str, status: int, code: str, message: str) -> None:
        super().__init__(setting=url, got=f"{status} {code}".strip(), expected="an answer", fix=message)
        self.status, self.code = status, code


@dataclass(frozen=True)
class Reply:
    """The answer to one input, or why there is none."""

    label: str | None = None
    value: float | None = None
    scores: Mapping[str, float] | None = None
    spans: Sequence[Mapping[str, Any]] | None = None
    is_illegal: bool = False
    is_truncated: bool = False
    votes: Mapping[str, int] | None = None  # of an ensemble
    versions: Mapping[str, str] | None = None  # cue -> version
    timings: Mapping[str, float] | None = None
    status: int = 200
    error: str = ""  # a code, empty where there is an answer
    message: str = ""

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> Reply:
        """From a result of the server.

        Example:
            >>> Reply.of({"task": "tickets", "version": "ab12", "label": "billing", "truncated": False}).versions
            {'tickets': 'ab12'}
        """
        if "error" in found:
            why = found["error"]
            return cls(status=why["status"], error=why["code"], message=why["message"])
        versions = found.get("versions") or {found["task"]: found["version"]}
        known: dict[str, Any] = {
            name: found.get(name) for name in ("label", "value", "scores", "spans", "votes", "timings")
        }
        return cls(**known, is_illegal=found.get("illegal", False), is_truncated=found["truncated"], versions=versions)


class Client:
    """Calls one server; waits and tries again where it says so.

    Example:
        client = Client("http://127.0.0.1:8000")
        client.predict([("tickets", "My invoice is wrong.")])[0].label
    """

    def __init__(self, url: str, api_key: str = "", timeout: float = 35.0, attempts: int = 5) -> None:
        if urlsplit(url).scheme not in ("http", "https") or not urlsplit(url).hostname:
            raise ConfigurationError(
                setting="url", got=url, expected="an address such as http://127.0.0.1:8000", fix="check it"
            )
        self.url = url.rstrip("/")
        self._headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
        self._timeout, self._attempts = timeout, attempts

    def predict(
        self,
        inputs: Sequence[tuple[str | Sequence[str], Text]],
        *,
        return_scores: bool = False,
        truncate: bool = False,
        ensemble: Literal["vote", "mean"] | None = None,
    ) -> list[Reply]:
        """A reply per input, in order; a request none of whose inputs has an answer is a `ServerError`."""
        body: dict[str, Any] = {"inputs": _inputs(inputs), "return_scores": return_scores, "truncate": truncate}
        if ensemble is not None:
            body["ensemble"] = ensemble
        return [Reply.of(found) for found in self._call("POST", "/v1/predict", body)["results"]]

    def generate(
        self,
        inputs: Sequence[tuple[str, Text]],
        *,
        truncate: bool = False,
        stop: Sequence[str] = (),
        max_new_tokens: int | None = None,
    ) -> list[Reply]:
        """The same with free text, by cues that write it."""
        body = {"inputs": _inputs(inputs), "truncate": truncate, "stop": list(stop), "max_new_tokens": max_new_tokens}
        return [Reply.of(found) for found in self._call("POST", "/v1/generate", body)["results"]]

    def stream(
        self,
        inputs: Sequence[tuple[str, Text]],
        *,
        truncate: bool = False,
        stop: Sequence[str] = (),
        max_new_tokens: int | None = None,
    ) -> Iterator[tuple[int, str | Reply]]:
        """Pieces of text as they are written, then the whole reply, each with the place of its input.

        Example:
            for place, found in client.stream([("titles", "A long text."), ("titles", "Another.")]):
                if isinstance(found, str): ...
        """
        body = {
            "inputs": _inputs(inputs),
            "truncate": truncate,
            "stream": True,
            "stop": list(stop),
            "max_new_tokens": max_new_tokens,
        }
        with self._opened("POST", "/v1/generate", body) as response, self._understood():
            for line in response:
                name, _, data = line.decode().partition(": ")
                if name == "data" and (found := json.loads(data)):
                    yield found["index"], found["text"] if "text" in found else Reply.of(found)
                elif name == "data":  # of the last event
                    return
        raise ServerError(self.url, 0, "cut_off", "the answer ended before its end: try again")

    def explain(self, task: str, text: Text) -> dict[str, Any]:
        """What a cue's prompt is made of for a text: nearest words of its vectors, likeliest codes."""
        return self._call("POST", "/v1/explain", {"task": task, "text": text if isinstance(text, str) else list(text)})

    def tasks(self) -> list[dict[str, Any]]:
        """All loaded cues."""
        return list(self._call("GET", "/v1/tasks")["tasks"])

    def info(self) -> dict[str, Any]:
        """The backbone, the limits and the load."""
        return self._call("GET", "/v1/info")

    def load(self, name: str) -> dict[str, Any]:
        """Load or replace a cue; needs an admin key."""
        return self._call("PUT", f"/v1/tasks/{quote(name, safe='')}")

    def unload(self, name: str) -> dict[str, Any]:
        """Unload a cue; needs an admin key."""
        return self._call("DELETE", f"/v1/tasks/{quote(name, safe='')}")

    def _call(self, method: str, path: str, body: object = None) -> dict[str, Any]:
        with self._opened(method, path, body) as response, self._understood():
            found: dict[str, Any] = json.load(response)
            return found

    @contextmanager
    def _understood(self) -> Iterator[None]:
        """Around the reading of an answer that may end early or be no answer of ours."""
        try:
            yield
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ServerError(self.url, 0, type(error).__name__, "look at what answers there, or try again") from error

    def _opened(self, method: str, path: str, body: object = None) -> http.client.HTTPResponse:
        data = None if body is None else json.dumps(body).encode()
        headers = {**self._headers, **({"Content-Type": "application/json"} if data else {})}
        for attempt in range(1, self._attempts + 1):
            request = urllib.request.Request(self.url + path, data, headers, method=method)
            try:
                response: http.client.HTTPResponse = _opener.open(request, timeout=self._timeout)
                return response
            except urllib.error.HTTPError as error:
                with error:
                    wait = error.headers.get("Retry-After", "")
                    if not wait.isdecimal() or attempt == self._attempts:
                        raise _refused(self.url + path, error) from None
            except (OSError, http.client.HTTPException) as error:
                reason = getattr(error, "reason", error)
                raise ServerError(self.url, 0, "unreachable", f"is the server running? {reason}") from error
            time.sleep(min(float(wait), LONGEST_WAIT))
        raise ConfigurationError(setting="attempts", got=self._attempts, expected="at least 1", fix="raise it")


class _Staying(urllib.request.HTTPRedirectHandler):
    """Redirects are refused: the key would go with them."""

    def redirect_request(self, *_: Any) -> None:
        """To nowhere."""


_opener = urllib.request.build_opener(_Staying)


def _inputs(inputs: Sequence[tuple[str | Sequence[str], Text]]) -> list[dict[str, object]]:
    return [
        {"task": task if isinstance(task, str) else list(task), "text": text if isinstance(text, str) else list(text)}
        for task, text in inputs
    ]


def _refused(url: str, error: urllib.error.HTTPError) -> ServerError:
    try:
        told = json.loads(error.read(4096))["error"]
        return ServerError(url, error.code, told["code"], told["message"])
    except (ValueError, KeyError, TypeError):  # not one of ours: a proxy in between
        return ServerError(url, error.code, "", "look at what answers there")
