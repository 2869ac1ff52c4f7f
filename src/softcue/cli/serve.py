"""`softcue serve`: many cues from one frozen backbone over HTTP."""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from softcue.cli.options import (
    AllowPickle,
    AttentionKind,
    Device,
    Dtype,
    QuantizationKind,
    RequireSignature,
    Runtime,
    RuntimeData,
    RuntimeDtype,
    VllmArguments,
    VllmPython,
    VllmUrl,
    vllm_settings,
)


class ServingEngine(StrEnum):
    """The program that runs the server."""

    LOCAL = "local"
    RAY = "ray"
    VLLM = "vllm"


def serve(
    cues: Annotated[
        str,
        typer.Argument(
            help="The folder with a folder per cue; or hub:OWNER/NAME, one cue; with --engine ray also an fsspec URL."
        ),
    ],
    backbone: Annotated[
        str,
        typer.Option(envvar="SOFTCUE_BACKBONE", help="The backbone of the cues: a folder, a hub id or an alias."),
    ],
    device: Device = None,
    dtype: Dtype = None,
    attention: AttentionKind = None,
    quantization: QuantizationKind = None,
    allow_pickle: AllowPickle = False,
    require_signature: RequireSignature = None,
    host: Annotated[str, typer.Option(help="Address to listen at.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen at; 0 takes a free one.")] = 8000,
    api_key_file: Annotated[
        Path | None, typer.Option(help="Keys that clients must send, one per line; else SOFTCUE_API_KEY.")
    ] = None,
    admin_key_file: Annotated[
        Path | None, typer.Option(help="Keys that may load and unload cues; else SOFTCUE_ADMIN_KEY.")
    ] = None,
    without_key: Annotated[
        bool, typer.Option("--without-key", help="Listen to other machines although no key is set.")
    ] = False,
    deadline: Annotated[float, typer.Option(min=0.001, help="Seconds until a request must have its response.")] = 30.0,
    max_in_flight: Annotated[int, typer.Option(min=1, help="Examples that may wait or run.")] = 512,
    token_budget: Annotated[
        int | None,
        typer.Option(min=1, help="Tokens of a batch, with prompts and padding; else the device's default."),
    ] = None,
    passes_at_once: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Batches that run at a time, each on its share of the threads; else two of an encoder on a processor.",
        ),
    ] = None,
    prefix_cache_mb: Annotated[
        int | None,
        typer.Option(
            min=0,
            help="Megabytes of keys and values of prompts that decoders keep; else a sixteenth of the device's memory.",
        ),
    ] = None,
    max_characters: Annotated[int, typer.Option(min=1, help="Characters of the texts of one input.")] = 20_000,
    deterministic: Annotated[
        bool,
        typer.Option(
            "--deterministic",
            help="Compute in float32: in bfloat16 a probability depends on the other rows of its batch by about 0.01.",
        ),
    ] = False,
    runtime: Runtime = "torch",
    runtime_dtype: RuntimeDtype = "auto",
    runtime_data: RuntimeData = None,
    log_texts: Annotated[bool, typer.Option("--log-texts", help="Write texts into the log.")] = False,
    engine: Annotated[
        ServingEngine,
        typer.Option(
            help="local: one process; ray: replicas on a Ray cluster that runs already (extra ray); vllm: vLLM runs "
            "the backbone, a decoder."
        ),
    ] = ServingEngine.LOCAL,
    replicas: Annotated[int | None, typer.Option(min=1, help="With --engine ray; 2 unless set.")] = None,
    max_replicas: Annotated[
        int | None, typer.Option(min=1, help="With --engine ray: between --replicas and so many, as the load asks for.")
    ] = None,
    target_requests: Annotated[
        float | None,
        typer.Option(min=0.1, help="With --max-replicas: requests in each replica that are aimed at; 16 unless set."),
    ] = None,
    replica_cpus: Annotated[
        float | None, typer.Option(min=0.01, help="With --engine ray: CPUs of a replica; else an equal part.")
    ] = None,
    replica_gpus: Annotated[
        float | None, typer.Option(min=0, help="With --engine ray: GPUs of a replica, such as 0.5; else an equal part.")
    ] = None,
    ray_address: Annotated[
        str | None,
        typer.Option(
            help="With --engine ray: HOST:PORT of the cluster, or auto (default) for the one on this machine. "
            "Replicas may be on other machines, which need the same paths; their logs are in Ray's log folder."
        ),
    ] = None,
    vllm_url: VllmUrl = None,
    vllm_python: VllmPython = None,
    vllm_arguments: VllmArguments = None,
) -> None:
    """Serve every cue of a folder; rows of different cues share a batch. Ends in order on SIGTERM or Ctrl-C."""
    from softcue.cue.hub import find_cue_folder, is_hub_address
    from softcue.errors import ConfigurationError, MissingExtraError

    if is_hub_address(cues):
        cues = str(find_cue_folder(cues).parent)  # the folder of its commit, which has only this cue
    if "://" in cues and engine is not ServingEngine.RAY:
        raise ConfigurationError(
            setting="cues folder", got=cues, expected="a folder of this machine", fix="a URL needs --engine ray"
        )
    if "://" not in cues and not Path(cues).is_dir():
        raise ConfigurationError(
            setting="cues folder", got=cues, expected="a folder with a folder per cue", fix="check the path"
        )
    of_replicas: dict[str, object] = {
        "replicas": replicas,
        "max_replicas": max_replicas,
        "target_requests": target_requests,
        "replica_cpus": replica_cpus,
        "replica_gpus": replica_gpus,
    }
    for option, value in {**of_replicas, "ray_address": ray_address}.items():
        if value is not None and engine is not ServingEngine.RAY:
            raise ConfigurationError(
                setting=option,
                got=value,
                expected=f"no such option with --engine {engine}, which is one process",
                fix="pass --engine ray",
            )
    from softcue.backbones.runtimes import RuntimeChoice

    vllm = vllm_settings(engine is ServingEngine.VLLM, vllm_url, vllm_python, vllm_arguments)
    from softcue.cue.signatures import read_public_keys
    from softcue.serving.engine.engine import check_deterministic
    from softcue.serving.settings import (
        ADMIN_KEY,
        API_KEY,
        ReplicaSettings,
        ServerSettings,
        check_address,
        read_keys,
    )

    if deterministic:
        check_deterministic(dtype)
    choice = RuntimeChoice.of(runtime, runtime_dtype, runtime_data)
    choice.candidates()  # before anything starts: what is asked for must be installed
    settings = ServerSettings(
        host=host,
        port=port,
        deadline=deadline,
        max_in_flight=max_in_flight,
        token_budget=token_budget,
        passes_at_once=passes_at_once,
        prefix_cache_mb=prefix_cache_mb,
        max_characters=max_characters,
        deterministic=deterministic,
        device=device,
        dtype=None if dtype is None else dtype.value,
        attention=None if attention is None else attention.value,
        quantization=None if quantization is None else quantization.value,
        log_texts=log_texts,
        runtime=choice.runtime,
        runtime_dtype=choice.dtype,
        runtime_data=choice.data,
        allow_pickle=allow_pickle,
        require_signature=require_signature,
        api_keys=read_keys(API_KEY, api_key_file),
        admin_keys=read_keys(ADMIN_KEY, admin_key_file),
        vllm=vllm,
    )
    check_address(settings, without_key)
    if require_signature is not None:
        read_public_keys(require_signature)  # before anything starts; replicas read it again
    names = ("number", "most", "target_requests", "cpus", "gpus")
    given = {name: value for name, value in zip(names, of_replicas.values(), strict=True) if value is not None}
    replica_settings = ReplicaSettings.model_validate(given)
    run: Callable[[], None]
    try:
        if engine is ServingEngine.RAY:
            from softcue.serving.ray import serve as serve_replicas

            run = partial(serve_replicas, settings, backbone, cues, replica_settings, ray_address or "auto")
        else:
            from softcue.serving.http.server import serve as serve_here

            run = partial(serve_here, settings, backbone, Path(cues))
    except ModuleNotFoundError as error:
        raise MissingExtraError(error.name or "fastapi", "serve") from error
    run()
