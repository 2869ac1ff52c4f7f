"""A small client for a softcue server. It needs only the standard library."""

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
from softcue.types import LabelValue

Text = str | Sequence[str]
MAX_WAIT = 10.0  # seconds between two attempts


class ServerError(SoftcueError):
    """A server cannot be reached, or answers a whole request with an error."""

    def __init__(self, url: str, status: int, code: str, message: str) -> None:
        super().__init__(setting=url, got=f"{status} {code}".strip(), expected="a prediction", fix=message)
        self.status, self.code = status, code


@dataclass(frozen=True)
class PredictionResult:
    """The prediction for one input, or its error."""

    label: LabelValue | None = None
    value: float | None = None
    scores: Mapping[Any, float] | None = None  # label -> probability
    spans: Sequence[Mapping[str, Any]] | None = None
    is_illegal: bool = False
    is_truncated: bool = False
    votes: Mapping[Any, int] | None = None  # of an ensemble: label -> cues that predict it
    versions: Mapping[str, str] | None = None  # cue -> version
    timings: Mapping[str, float] | None = None
    labels: tuple[LabelValue, ...] | None = None  # of a multi-label task, in place of `label`
    status: int = 200
    error: str = ""  # a code, empty if there is a prediction
    message: str = ""

    @classmethod
    def of(cls, result: Mapping[str, Any]) -> PredictionResult:
        """A result of the server as an object.

        Example:
            >>> result = {"task": "tickets", "version": "ab12", "label": "billing", "truncated": False}
            >>> PredictionResult.of(result).versions
            {'tickets': 'ab12'}
            >>> PredictionResult.of({**result, "label": 1, "scores": {"0": 0.25, "1": 0.75}}).scores
            {0: 0.25, 1: 0.75}
            >>> PredictionResult.of({**result, "label": None, "labels": ["billing", "shipping"]}).labels
            ('billing', 'shipping')
        """
        if "error" in result:
            error = result["error"]
            return cls(status=error["status"], error=error["code"], message=error["message"])
        versions = result.get("versions") or {result["task"]: result["version"]}
        same_names = ("label", "value", "scores", "spans", "votes", "timings")
        fields: dict[str, Any] = {name: result.get(name) for name in same_names}
        labels = result.get("labels")
        example = fields["label"] if not labels else labels[0]  # shows the type of the labels
        for name in ("scores", "votes"):  # the keys of a JSON object are text; they stay text beside an empty set
            if fields[name] is not None and example is not None:
                fields[name] = {_label_of(key, example): value for key, value in fields[name].items()}
        fields["labels"] = None if labels is None else tuple(labels)
        return cls(
            **fields, is_illegal=result.get("illegal", False), is_truncated=result["truncated"], versions=versions
        )


class Client:
    """Calls one server; waits and tries again if the server says so.

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
    ) -> list[PredictionResult]:
        """Predict inputs, in order. If no input has a prediction, a `ServerError` is raised.

        Example:
            client.predict([("tickets", "My invoice is wrong.")], return_scores=True)[0].scores
        """
        body: dict[str, Any] = {"inputs": _inputs(inputs), "return_scores": return_scores, "truncate": truncate}
        if ensemble is not None:
            body["ensemble"] = ensemble
        return [PredictionResult.of(result) for result in self._call("POST", "/v1/predict", body)["results"]]

    def generate(
        self,
        inputs: Sequence[tuple[str, Text]],
        *,
        truncate: bool = False,
        stop: Sequence[str] = (),
        max_new_tokens: int | None = None,
    ) -> list[PredictionResult]:
        """Generate free text for inputs, with cues that generate it."""
        body = {"inputs": _inputs(inputs), "truncate": truncate, "stop": list(stop), "max_new_tokens": max_new_tokens}
        return [PredictionResult.of(result) for result in self._call("POST", "/v1/generate", body)["results"]]

    def stream(
        self,
        inputs: Sequence[tuple[str, Text]],
        *,
        truncate: bool = False,
        stop: Sequence[str] = (),
        max_new_tokens: int | None = None,
    ) -> Iterator[tuple[int, str | PredictionResult]]:
        """Text parts while they are generated, then the whole result, each with the index of its input.

        Example:
            for index, part in client.stream([("titles", "A long text."), ("titles", "Another.")]):
                if isinstance(part, str): ...
        """
        body = {
            "inputs": _inputs(inputs),
            "truncate": truncate,
            "stream": True,
            "stop": list(stop),
            "max_new_tokens": max_new_tokens,
        }
        with self._open("POST", "/v1/generate", body) as response, self._read_errors():
            for line in response:
                name, _, data = line.decode().partition(": ")
                if name == "data" and (event := json.loads(data)):
                    yield event["index"], event["text"] if "text" in event else PredictionResult.of(event)
                elif name == "data":  # the last event has no data
                    return
        raise ServerError(self.url, 0, "cut_off", "the response ended too early: try again")

    def explain(self, inputs: Sequence[tuple[str, Text]]) -> list[dict[str, Any]]:
        """Explain the prompt of each input: nearest words of its vectors, likeliest codes; or the input's `error`.

        Example:
            client.explain([("tickets", "My invoice is wrong.")])[0]["vectors"][0]["words"]
        """
        return list(self._call("POST", "/v1/explain", {"inputs": _inputs(inputs)})["results"])

    def examples(self) -> list[dict[str, Any]]:
        """Messages for which every loaded cue of a sample task predicts the right label."""
        return list(self._call("GET", "/v1/examples")["examples"])

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
        with self._open(method, path, body) as response, self._read_errors():
            content: dict[str, Any] = json.load(response)
            return content

    @contextmanager
    def _read_errors(self) -> Iterator[None]:
        """Turn errors into a `ServerError` while a response is read: it may end early or come from another server."""
        try:
            yield
        except (OSError, http.client.HTTPException, ValueError) as error:
            raise ServerError(self.url, 0, type(error).__name__, "check which server this is, or try again") from error

    def _open(self, method: str, path: str, body: object = None) -> http.client.HTTPResponse:
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
                        raise _server_error(self.url + path, error) from None
            except (OSError, http.client.HTTPException) as error:
                reason = getattr(error, "reason", error)
                raise ServerError(self.url, 0, "unreachable", f"is the server running? {reason}") from error
            time.sleep(min(float(wait), MAX_WAIT))
        raise ConfigurationError(setting="attempts", got=self._attempts, expected="at least 1", fix="raise it")


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Rejects redirects: the key would be sent to the other server."""

    def redirect_request(self, *_: Any) -> None:
        """Follow none."""


_opener = urllib.request.build_opener(_NoRedirect)


def _inputs(inputs: Sequence[tuple[str | Sequence[str], Text]]) -> list[dict[str, object]]:
    return [
        {"task": task if isinstance(task, str) else list(task), "text": text if isinstance(text, str) else list(text)}
        for task, text in inputs
    ]


def _label_of(key: str, label: LabelValue) -> LabelValue:
    """A key of a JSON object as a label of the same type as the predicted one."""
    if isinstance(label, bool):
        return {"true": True, "false": False}.get(key, key)
    try:
        return key if isinstance(label, str) else type(label)(key)
    except ValueError:
        return key


def _server_error(url: str, error: urllib.error.HTTPError) -> ServerError:
    try:
        detail = json.loads(error.read(4096))["error"]
        return ServerError(url, error.code, detail["code"], detail["message"])
    except (ValueError, KeyError, TypeError):  # not a softcue server, such as a proxy
        return ServerError(url, error.code, "", "check which server this is")
