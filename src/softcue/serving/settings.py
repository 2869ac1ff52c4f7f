"""Settings of a server: address, keys and limits. All are checked before anything is loaded."""

from __future__ import annotations

import ipaddress
import os
from pathlib import Path
from typing import Any, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from softcue.backbones import Attention, NumberFormat, Quantization
from softcue.backbones.runtimes import DtypeSetting, RuntimeSetting
from softcue.errors import ConfigurationError
from softcue.serving.engine.batcher import Limits
from softcue.serving.vllm.connect import VllmSettings

API_KEY = "SOFTCUE_API_KEY"  # environment variables
ADMIN_KEY = "SOFTCUE_ADMIN_KEY"
MAX_INPUTS = 1024  # of a request, on any server


class ServerSettings(BaseModel):
    """Address, keys and limits of a server.

    Example:
        >>> ServerSettings().max_inputs
        32
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    host: str = Field("127.0.0.1", description="address to listen at")
    port: int = Field(8000, ge=0, le=65535, description="port to listen at; 0 takes a free one")
    api_keys: tuple[SecretStr, ...] = Field((), description="each opens every route but the admin's")
    admin_keys: tuple[SecretStr, ...] = Field((), description="each opens every route")
    max_body_bytes: int = Field(2_000_000, ge=1, description="bytes of a request body")
    max_inputs: int = Field(32, ge=1, le=MAX_INPUTS, description="inputs of a request")
    max_in_flight: int = Field(512, ge=1, description="examples that wait or run, over all requests")
    max_connections_per_client: int = Field(
        512, ge=1, description="open connections of one address; a proxy has one address for all its clients"
    )
    deadline: float = Field(30.0, gt=0, description="seconds from a request's first byte to its response")
    token_budget: int | None = Field(
        None, ge=1, description="tokens of a batch, with prompts and padding; null: the device's default"
    )
    max_rows: int = Field(Limits.max_rows, ge=1, description="rows of a batch")
    max_age: float = Field(
        Limits.max_age, ge=0, description="seconds after which rows that fill a batch go before rows of a better length"
    )
    passes_at_once: int | None = Field(
        None,
        ge=1,
        description="batches that run at a time, each on its share of the threads; null: two of an encoder on a "
        "processor, else one",
    )
    prefix_cache_mb: int | None = Field(
        None,
        ge=0,
        description="megabytes of keys and values of prompts that decoders keep from batch to batch; null: a sixteenth "
        "of the memory of the device, at least 256",
    )
    max_characters: int = Field(20_000, ge=1, description="characters of the texts of one input")
    max_new_tokens: int = Field(256, ge=1, description="largest limit of generated tokens that a request may set")
    deterministic: bool = Field(
        False,
        description="compute in float32 even if the cues were trained in bfloat16, where a probability may depend on "
        "the other rows of its batch by about 0.01",
    )
    device: str | None = Field(None, description="device of the backbone; null: a GPU if there is one")
    dtype: NumberFormat | None = Field(
        None, description="number format of the backbone; null: the one in which most cues were trained"
    )
    attention: Attention | None = Field(None, description="how attention is computed; null: the fastest")
    quantization: Quantization | None = Field(
        None, description="8 or 4 bits for the backbone's matrices; null: as most cues were trained"
    )
    runtime: RuntimeSetting = Field(
        "torch", description="what runs the frozen layers of an encoder; auto takes the fastest at agreeing answers"
    )
    runtime_dtype: DtypeSetting = Field("auto", description="number format of that runtime")
    runtime_data: str | None = Field(
        None, description="rows on which a runtime is compared with torch; null: those of the cues' own tasks"
    )
    log_texts: bool = Field(False, description="write texts and error messages into the log")
    allow_pickle: bool = Field(False, description="open a backbone whose weights are a pickle, which can run code")
    require_signature: Path | None = Field(
        None, description="public keys: load only cues that one of them has signed; null: any cue"
    )
    vllm: VllmSettings | None = Field(None, description="let vLLM run the backbone; null: this process runs it")

    @property
    def limits(self) -> Limits:
        """The limits of the batcher."""
        return Limits(self.max_in_flight, self.token_budget, self.max_rows, self.max_age, self.passes_at_once)

    def as_plain_data(self) -> dict[str, Any]:
        """The settings as plain data, keys included, for a process on another machine.

        Example:
            >>> ServerSettings.model_validate(ServerSettings(port=8080).as_plain_data()).port
            8080
        """
        keys = {name: [key.get_secret_value() for key in getattr(self, name)] for name in ("api_keys", "admin_keys")}
        return {**self.model_dump(), **keys}


class ReplicaSettings(BaseModel):
    """How many replicas a Ray cluster runs, and what each of them gets.

    Example:
        >>> ReplicaSettings(number=1, most=8, gpus=0.5).most
        8
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    number: int = Field(2, ge=1, description="replicas; the fewest if their number follows the load")
    most: int | None = Field(None, ge=1, description="the most, if their number follows the load; null: it is fixed")
    target_requests: float = Field(
        16.0, gt=0, description="requests in each replica that are aimed at, if their number follows the load"
    )
    cpus: float | None = Field(None, gt=0, description="CPUs of a replica; null: an equal part of what is free")
    gpus: float | None = Field(
        None, ge=0, description="GPUs of a replica, such as 0.5; null: an equal part of what is free"
    )

    @model_validator(mode="after")
    def _check_most(self) -> Self:
        if self.most is not None and self.most < self.number:
            raise ConfigurationError(
                setting="max_replicas",
                got=self.most,
                expected=f"at least {self.number}, the fewest replicas",
                fix="raise it, or lower `replicas=N`",
            )
        return self


def read_keys(variable: str, file: Path | None) -> tuple[SecretStr, ...]:
    """Keys from a file, one per line, or else the key in an environment variable; none if neither is set.

    Example:
        >>> read_keys("SOFTCUE_NO_SUCH_KEY", None)
        ()
    """
    if file is None:
        lines, origin = [os.environ.get(variable, "")], variable
        if variable not in os.environ:
            return ()
    else:
        origin = str(file)
        try:
            lines = [line for line in file.read_text("utf-8").splitlines() if line.strip()]
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigurationError(
                setting="key file",
                got=file,
                expected="a readable file with one key per line",
                fix=f"check it: {type(error).__name__}",
            ) from error
    keys = [line.strip() for line in lines]
    if not keys or any(not key.isascii() or not key.isprintable() or " " in key or not key for key in keys):
        raise ConfigurationError(
            setting="key",
            got=f"(not shown) in {origin}",
            expected="printable ASCII without spaces, not empty",
            fix="write one key per line",
        )
    return tuple(map(SecretStr, keys))


def check_address(settings: ServerSettings, is_forced: bool) -> None:
    """Raise an error if other machines could connect without a key, unless forced.

    Example:
        >>> check_address(ServerSettings(host="::1"), is_forced=False)
        >>> check_address(ServerSettings(host="0.0.0.0"), is_forced=False)
        Traceback (most recent call last):
        softcue.errors.ConfigurationError: host: got '0.0.0.0'; expected an address of this machine only, ...
    """
    if settings.api_keys or is_forced or _is_loopback(settings.host):
        return
    raise ConfigurationError(
        setting="host",
        got=settings.host,
        expected="an address of this machine only, such as 127.0.0.1, where no key is set",
        fix=f"set {API_KEY} or `api_key_file=FILE`, or pass `without_key=True` to allow everyone",
    )


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return host == "localhost"
