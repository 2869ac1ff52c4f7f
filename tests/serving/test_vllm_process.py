"""A real vLLM: SmolLM2 cues of several kinds have the predictions of this process. `make test-vllm` installs it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from serving_cues import TEXTS, TITLES, TONE, TOPICS, save_cue

from softcue.backbones import BackboneConfig, load_backbone
from softcue.cue.cue import Cue
from softcue.serving.client import Client
from softcue.serving.vllm.client import _SocketConnection

PYTHON = os.environ.get("SOFTCUE_VLLM_PYTHON")
BLOCK = 32  # positions whose keys and values vLLM keeps as one piece
LARGEST_DIFFERENCE = 1e-3  # of a probability

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(2400),
    pytest.mark.skipif(PYTHON is None, reason="SOFTCUE_VLLM_PYTHON names no Python that has vLLM"),
]


@pytest.fixture(scope="module")
def cues(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Cue]:
    pulled = subprocess.run([sys.executable, "-m", "softcue", "backbones", "pull", "smollm2"], capture_output=True)
    if pulled.returncode:
        pytest.skip(pulled.stderr.decode())
    backbone = load_backbone(BackboneConfig(name="smollm2", dtype="float32"))
    folder = tmp_path_factory.mktemp("cues")
    words = {"name": "label-words"}
    return {
        "ranked": save_cue(folder / "ranked", TOPICS, backbone=backbone, prompt_length=2 * BLOCK),
        "ranked-vip": save_cue(folder / "ranked-vip", TOPICS, "vip", backbone=backbone),
        "words-idpg": save_cue(folder / "words-idpg", TONE, "s-idpg-phm", backbone=backbone, readout=words),
        "titles": save_cue(folder / "titles", TITLES, "manual-prompt", backbone=backbone),
    }


def test_two_kinds_of_cues_are_served_as_in_this_process(cues: dict[str, Cue]) -> None:
    folder = next(cue.path.parent for cue in cues.values() if cue.path is not None)
    options = f"--enforce-eager --max-model-len 512 --block-size {BLOCK}"
    words = [sys.executable, "-m", "softcue", "serve", str(folder), "--backbone", "smollm2", "--port", "0"]
    words += ["--engine", "vllm", "--vllm-arguments", options, "--deadline", "600"]
    variables = {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True, env={**os.environ, **variables}) as process:
        lines: list[str] = []
        reader = threading.Thread(target=lambda: lines.extend(process.stderr or ()))
        reader.start()
        try:
            while not any('"ready"' in line for line in lines):
                assert process.poll() is None, "".join(lines)
                time.sleep(0.5)
            family = psutil.Process(process.pid).children(recursive=True)
            url = next(match[0] for line in lines if (match := re.search(r"http://127\.0\.0\.1:\d+", line)))
            socket_file = Path(next(json.loads(line)["log"] for line in lines if "vLLM starts" in line)).with_name(
                "vllm.sock"
            )
            assert socket_file.parent.stat().st_mode & 0o077 == 0
            client = Client(url, timeout=900)
            inputs = [(name, text) for text in TEXTS for name in cues]
            results = client.predict(inputs, return_scores=True)  # cues of all kinds in one request
            num_hits = prefix_hits(socket_file)
            client.predict([("ranked", "A text that has not come before."), ("ranked", "Nor has this one")])
            # Both begin with the cue's prompt, which vLLM has kept, and share nothing else with what came before.
            num_kept = prefix_hits(socket_file) - num_hits
            assert num_kept >= 2 * 2 * BLOCK
            listening = [
                connection.laddr.ip
                for member in family
                for connection in member.net_connections("inet")
                if connection.status == psutil.CONN_LISTEN
            ]
            assert set(listening) <= {"127.0.0.1"}  # between its own processes
        finally:
            process.send_signal(signal.SIGTERM)
            code = process.wait(120)
            reader.join()
    assert code == 0, "".join(lines)
    assert not psutil.wait_procs(family, 30)[1]
    assert not socket_file.parent.exists()
    differences = []
    for (name, text), result in zip(inputs, results, strict=True):
        [wanted] = cues[name].predict([text])
        assert result.label == wanted.label
        differences += [abs(result.scores[label] - score) for label, score in (wanted.scores or {}).items()]
    sys.stdout.write(
        f"{len(inputs)} predictions of {len(cues)} cues; largest difference of a probability: {max(differences):.2g}; "
        f"positions of prompts from vLLM's prefix cache: {num_kept:.0f}\n"
    )
    assert max(differences) < LARGEST_DIFFERENCE


def prefix_hits(socket_file: Path) -> float:
    """The number of positions whose keys and values vLLM took from its cache so far."""
    connection = _SocketConnection(str(socket_file), 60)
    connection.request("GET", "/metrics")
    text = connection.getresponse().read().decode()
    connection.close()
    return sum(float(value) for value in re.findall(r"^vllm:prefix_cache_hits_total\{.*\} (\S+)$", text, re.MULTILINE))
