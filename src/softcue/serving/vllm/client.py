"""Calls a vLLM server with input embeddings: `POST /v1/completions` with `prompt_embeds`.

vLLM opens the tensors of a request with torch.load. So whoever reaches its address gives it files to open: it must
stand at a unix socket, on loopback or in a private network, and nothing but softcue should talk to it.
"""

from __future__ import annotations

import base64
import http.client
import io
import ipaddress
import json
import socket
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from typing import Any
from urllib.parse import urlsplit

import torch
from torch import Tensor

from softcue.backbones import TokenListener
from softcue.errors import ConfigurationError, SoftcueError

REQUEST_BYTES = 16 << 20  # of embeddings in one request, before base64
REQUESTS_AT_ONCE = 8
TOKENS_OF_REQUEST = 128  # the most tokens whose log-probabilities vLLM gives for one request
STREAMS_AT_ONCE = 64  # texts that are generated together
TIMEOUT = 600.0  # seconds without a byte
MESSAGE_LIMIT = 300  # characters of vLLM's message that an error shows


class VllmError(SoftcueError):
    """vLLM does not answer, or answers with an error."""

    def __init__(self, address: str, got: str, fix: str) -> None:
        super().__init__(setting="vLLM", got=f"{got[:MESSAGE_LIMIT]} from {address}", expected="an answer", fix=fix)


class _SocketConnection(http.client.HTTPConnection):
    """HTTP over a unix socket."""

    def __init__(self, path: str, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Connect to the socket's file."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class VllmClient:
    """A `DecoderServer`: log-probabilities of tokens and generated text, from a running vLLM.

    Example:
        backbone = load_backbone(BackboneConfig(name="smollm2")).on_server(VllmClient("http://127.0.0.1:8100"))
    """

    def __init__(self, address: str, api_key: str = "", timeout: float = TIMEOUT) -> None:
        """`address` is a URL at a loopback or private address, or `unix:PATH`; the model is asked for at once."""
        if not address.startswith("unix:"):
            check_is_private(address)
        self.address, self._timeout = address.rstrip("/"), timeout
        self._headers = {"Content-Type": "application/json"}
        if api_key:
            self._headers["Authorization"] = f"Bearer {api_key}"
        model = self._read_model()
        self._model = str(model["id"])
        self.max_length = int(model["max_model_len"])

    @property
    def is_alive(self) -> bool:
        """Whether vLLM may answer again; a server that others run may always be started again."""
        return True

    def close(self) -> None:
        """Leave vLLM running: others have started it."""

    def log_probabilities(self, inputs: Sequence[Tensor], tokens: Sequence[int]) -> Tensor:
        """Log-probability of each of these tokens behind each input [S D], over the whole vocabulary. [N, tokens]

        Example:
            client.log_probabilities([embeds], [tokenizer.eos_token_id])
        """
        groups = [tokens[first : first + TOKENS_OF_REQUEST] for first in range(0, len(tokens), TOKENS_OF_REQUEST)]
        with ThreadPoolExecutor(REQUESTS_AT_ONCE, "softcue-vllm") as pool:
            # One list of answers for each group of tokens: vLLM has run all inputs after the first of them.
            columns = [list(pool.map(partial(self._ask, tokens=group), _chunks(inputs))) for group in groups]
        return torch.cat([torch.cat(answers) for answers in columns], dim=1)

    def _ask(self, inputs: Sequence[Tensor], tokens: Sequence[int]) -> Tensor:
        body = {
            "prompt_embeds": [encode_tensor(tensor) for tensor in inputs],
            "max_tokens": 1,
            "logprobs": len(tokens),
            "logprob_token_ids": list(tokens),
            "return_tokens_as_token_ids": True,
        }
        with self._open("POST", "/v1/completions", self._greedy(body)) as response, self._read_errors():
            choices = sorted(json.load(response)["choices"], key=lambda choice: choice["index"])
            rows = [choice["logprobs"]["top_logprobs"][0] for choice in choices]
            answers = torch.tensor([[float(row[f"token_id:{token}"]) for token in tokens] for row in rows])
            return answers.view(len(inputs), len(tokens))

    def generate(
        self, inputs: Sequence[Tensor], max_new_tokens: int, end_token: int, listeners: Sequence[TokenListener | None]
    ) -> list[list[int]]:
        """Token ids of the greedily generated text behind each input [S D]; a listener may end its row.

        Example:
            client.generate([embeds], 8, tokenizer.eos_token_id, [None])
        """
        generate_row = partial(self._generate_row, max_new_tokens=max_new_tokens, end_token=end_token)
        with ThreadPoolExecutor(max(1, min(STREAMS_AT_ONCE, len(inputs))), "softcue-vllm") as pool:
            return list(pool.map(generate_row, inputs, listeners))

    def _generate_row(
        self, embeds: Tensor, listener: TokenListener | None, max_new_tokens: int, end_token: int
    ) -> list[int]:
        body = {
            "prompt_embeds": encode_tensor(embeds),
            "max_tokens": max_new_tokens,
            "ignore_eos": True,  # a checkpoint may name end tokens of its own
            "stop_token_ids": [end_token],
            "return_token_ids": True,
            "stream": True,
        }
        ids: list[int] = []
        with self._open("POST", "/v1/completions", self._greedy(body)) as response:
            for new_ids in self._streamed_ids(response):
                ids += new_ids
                if new_ids and listener is not None and listener(ids):
                    break  # vLLM ends a request whose client has left
        return ids

    def _streamed_ids(self, response: http.client.HTTPResponse) -> Iterator[list[int]]:
        """The token ids of each event, to the last one."""
        with self._read_errors():
            for line in response:
                name, _, data = line.decode().strip().partition(": ")
                if name != "data":
                    continue
                if data == "[DONE]":
                    return
                event = json.loads(data)
                if "error" in event:
                    raise VllmError(self.address, str(event["error"]), "see its log")
                yield [int(token) for choice in event["choices"] for token in choice.get("token_ids") or ()]
        raise VllmError(self.address, "a text that ends too early", "see its log")

    # --- HTTP ---

    def _greedy(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The body with settings that keep the checkpoint's own sampling out."""
        return {
            **body,
            "model": self._model,
            "temperature": 0.0,
            "repetition_penalty": 1.0,
            "presence_penalty": 0.0,
            "frequency_penalty": 0.0,
        }

    def _read_model(self) -> Mapping[str, Any]:
        with self._open("GET", "/v1/models") as response, self._read_errors():
            model: Mapping[str, Any] = json.load(response)["data"][0]
            return {"id": model["id"], "max_model_len": model["max_model_len"]}

    @contextmanager
    def _open(
        self, method: str, path: str, body: Mapping[str, Any] | None = None
    ) -> Iterator[http.client.HTTPResponse]:
        """The response to a request; a connection of its own, no proxy, and no redirect is followed."""
        connection = self._connect()
        try:
            try:
                connection.request(method, path, None if body is None else json.dumps(body), self._headers)
                response = connection.getresponse()
                message = "" if response.status == 200 else response.read(4096).decode(errors="replace")
            except (OSError, http.client.HTTPException) as error:
                reason = f"{type(error).__name__}: {error}"
                raise VllmError(self.address, reason, "is it running? see its log") from error
            if response.status != 200:
                advice = "set SOFTCUE_VLLM_KEY to its key" if response.status == 401 else "see its log"
                raise VllmError(self.address, f"{response.status} {message}", advice)
            yield response
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        if self.address.startswith("unix:"):
            return _SocketConnection(self.address.removeprefix("unix:"), self._timeout)
        parts = urlsplit(self.address)
        connect = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        return connect(parts.hostname or "", parts.port, timeout=self._timeout)

    @contextmanager
    def _read_errors(self) -> Iterator[None]:
        """Turn what is no answer of vLLM into a `VllmError`."""
        try:
            yield
        except (OSError, http.client.HTTPException, ValueError, KeyError, IndexError, TypeError) as error:
            reason = f"{type(error).__name__}: {error}"
            raise VllmError(self.address, reason, "check which server this is: vLLM 0.32 is known to answer") from error


def encode_tensor(tensor: Tensor) -> str:
    """A tensor as vLLM reads it: the bytes of torch.save in base64. Nothing is ever read back."""
    buffer = io.BytesIO()
    torch.save(tensor.detach().cpu().clone(), buffer)  # a view would bring its whole storage
    return base64.b64encode(buffer.getvalue()).decode()


def _chunks(inputs: Sequence[Tensor]) -> Iterator[Sequence[Tensor]]:
    """Inputs in groups of about `REQUEST_BYTES`."""
    largest = max((tensor.nbytes for tensor in inputs), default=1)
    step = max(1, REQUEST_BYTES // max(1, largest))
    yield from (inputs[first : first + step] for first in range(0, len(inputs), step))


def check_is_private(url: str) -> None:
    """Raise an error if vLLM at this URL could be reached from everywhere: it opens tensors that anyone sends.

    Example:
        >>> check_is_private("http://127.0.0.1:8100")
        >>> check_is_private("http://8.8.8.8:8100")
        Traceback (most recent call last):
        softcue.errors.ConfigurationError: vllm_url: got 'http://8.8.8.8:8100'; expected an address of this machine ...
    """
    parts = urlsplit(url)
    try:
        port = parts.port
    except ValueError:
        port = None
    if parts.scheme not in ("http", "https") or not parts.hostname or port is None or parts.path.strip("/"):
        raise ConfigurationError(
            setting="vllm_url", got=url, expected="an address such as http://127.0.0.1:8100", fix="check it"
        )
    try:
        addresses = {entry[4][0] for entry in socket.getaddrinfo(parts.hostname, port, type=socket.SOCK_STREAM)}
    except OSError as error:
        raise ConfigurationError(
            setting="vllm_url", got=url, expected="a name that this machine can look up", fix=f"check it: {error}"
        ) from error
    if not all(ipaddress.ip_address(str(address).split("%")[0]).is_private for address in addresses):
        raise ConfigurationError(
            setting="vllm_url",
            got=url,
            expected="an address of this machine or of a private network",
            fix="let vLLM listen at 127.0.0.1: it opens tensors that anyone sends who reaches it",
        )
