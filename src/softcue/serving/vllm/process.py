"""A vLLM process of softcue's own: started on a model folder, reached through a unix socket, ended with the engine.

vLLM needs a Python environment of its own, because it pins another transformers. So it is started by the path of that
Python, as a module: the command `vllm` does not start in every build.
"""

from __future__ import annotations

import atexit
import logging
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from pathlib import Path

import torch

from softcue.backbones import Backbone
from softcue.backbones.loading.load import quiet_transformers
from softcue.errors import RunError
from softcue.serving.vllm.client import VllmClient, VllmError

MODULE = "vllm.entrypoints.openai.api_server"
START_SECONDS = 900.0  # for loading: large weights come from slow disks
STOP_SECONDS = 20.0
LOG_LINES = 5  # of vLLM's log that an error shows
DTYPES = {torch.float32: "float32", torch.bfloat16: "bfloat16", torch.float16: "float16"}
logger = logging.getLogger("softcue.serving")


class VllmProcess(VllmClient):
    """A vLLM that runs as long as this object is open. It listens at a unix socket in a folder of this user only.

    Example:
        server = VllmProcess(backbone, "vllm-venv/bin/python", ["--gpu-memory-utilization", "0.8"])
        server.close()
    """

    def __init__(self, backbone: Backbone, python: str, arguments: list[str]) -> None:
        if (program := shutil.which(python)) is None:
            raise RunError(
                setting="vllm_python",
                got=python,
                expected="the Python of an environment that has vLLM",
                fix="install vLLM in an environment of its own and name its bin/python",
            )
        self._folder = Path(tempfile.mkdtemp(prefix="softcue-vllm-"))  # readable for this user only
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self._start(backbone, program, arguments)
        except BaseException:
            self.close()
            raise

    def _start(self, backbone: Backbone, program: str, arguments: list[str]) -> None:
        model = _find_model_folder(backbone)
        if model is None:
            model = self._folder / "model"
            with quiet_transformers():
                backbone.save(model)
        socket_path, key = self._folder / "vllm.sock", secrets.token_urlsafe(32)
        words = [
            *(program, "-m", MODULE, "--model", str(model), "--served-model-name", "softcue"),
            *("--uds", str(socket_path)),
            *("--enable-prompt-embeds", "--enable-prefix-caching", "--dtype", DTYPES[backbone.dtype]),
            # what a checkpoint says about sampling stays out; vLLM writes no text of a request into its log
            *("--generation-config", "vllm", "--no-enable-log-requests"),
            *arguments,
        ]
        self._log = self._folder / "vllm.log"
        with self._log.open("wb") as log:
            # The key is in the environment: everyone on the machine sees the words of a command.
            environment = {**os.environ, "VLLM_API_KEY": key, "VLLM_NO_USAGE_STATS": "1"}
            self._process = subprocess.Popen(
                words, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        atexit.register(self.close)  # the command may end before the engine is there
        logger.info("vLLM starts", extra={"facts": {"process": self._process.pid, "log": str(self._log)}})
        end = time.monotonic() + START_SECONDS
        while True:
            try:
                if socket_path.exists():
                    return super().__init__(f"unix:{socket_path}", key)
            except VllmError:
                pass  # it listens before it answers
            if self._process.poll() is not None or time.monotonic() > end:
                code = self._process.returncode
                got = f"no answer for {START_SECONDS:g} seconds" if code is None else f"exit code {code}"
                lines = self._log.read_text("utf-8", "replace").splitlines()
                errors = [line for line in lines if "Error" in line] or lines
                raise RunError(
                    setting="vLLM",
                    got=got,
                    expected="a server that starts",
                    fix=f"its log ends with: {' | '.join(errors[-LOG_LINES:])}",
                )
            time.sleep(0.5)

    @property
    def is_alive(self) -> bool:
        """Whether the process runs."""
        return self._process is not None and self._process.poll() is None

    def close(self) -> None:
        """End vLLM and remove its folder."""
        atexit.unregister(self.close)
        if self._process is not None and self.is_alive:
            self._process.terminate()
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                os.killpg(self._process.pid, 9)  # its session: vLLM has processes of its own
                self._process.wait()
        shutil.rmtree(self._folder, ignore_errors=True)


def _find_model_folder(backbone: Backbone) -> Path | None:
    """The folder of the backbone if vLLM can read it: a configuration and safetensors."""
    folder = backbone.folder
    if folder is None or not (folder / "config.json").is_file() or not any(folder.glob("*.safetensors")):
        return None
    return folder.resolve()
