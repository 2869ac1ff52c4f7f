from __future__ import annotations

import os
import tempfile

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# One thread for every process that a test starts: threads of processes that share two cores wait by spinning.
os.environ.setdefault("OMP_NUM_THREADS", os.environ.get("SOFTCUE_TEST_THREADS", "1"))
# Sentence and word vectors are kept on disk: in a folder of this session's own, never in the user's. Set here
# rather than in a fixture, so that doctests and the processes that tests start have it too.
os.environ["SOFTCUE_HOME"] = tempfile.mkdtemp(prefix="softcue-tests-")

import gc
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
import torch

HOME = os.environ["SOFTCUE_HOME"]
sys.path.insert(0, str(Path(__file__).parent))  # `from tiny import ...` in every test file


# Tests that multiply matrices. Of those that run on every family, one family of each kind joins.
NUMERIC = (
    "adaptation",
    "backbones/passes",
    "backbones/test_injection.py",
    "backbones/test_late_prompts.py",
    "conformance",
    "inference",
    "methods",
    "paper",
    "prompts",
    "readouts",
    "sentence_vectors",
    "training",
)
ON_EVERY_FAMILY = ("backbones", "conformance")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    from tiny import ONE_OF_EACH_KIND

    for item in items:
        family = item.callspec.params.get("family") if hasattr(item, "callspec") else None
        is_repeated = _is_in(item.path, ON_EVERY_FAMILY) and family not in (None, *ONE_OF_EACH_KIND)
        if _is_in(item.path, NUMERIC) and not is_repeated:
            item.add_marker("numeric")


@cache
def _is_in(path: Path, names: tuple[str, ...]) -> bool:
    """Whether a test file is one of these, or in one of these folders."""
    return any(path.is_relative_to(Path(__file__).parent / name) for name in names)


def pytest_collection_finish() -> None:
    gc.freeze()  # what is imported and collected stays to the end: garbage collections pass over it


def pytest_unconfigure() -> None:
    shutil.rmtree(HOME, ignore_errors=True)


@pytest.fixture(autouse=True)
def _fixed_draws() -> None:
    torch.manual_seed(0)


@pytest.fixture(scope="session", autouse=True)
def _few_threads() -> None:
    """One thread, since test processes share the cores; SOFTCUE_TEST_THREADS=2 tests other orders of summation."""
    torch.set_num_threads(int(os.environ.get("SOFTCUE_TEST_THREADS", "1")))


@pytest.fixture
def float64(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Compute in float64: new tensors take it, and `Tensor.float` leaves it where the library asks for float32."""
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.fixture(scope="session")
def model_folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Tiny models of each kind saved as ordinary model folders."""
    from tiny import ONE_OF_EACH_KIND, tiny_model, tiny_tokenizer

    folders = {}
    for model_type in ONE_OF_EACH_KIND:
        folder = tmp_path_factory.mktemp("models") / model_type
        tiny_model(model_type).save_pretrained(folder)
        tiny_tokenizer(model_type).save_pretrained(folder)
        folders[model_type] = folder
    return folders


@pytest.fixture
def prompts_in_every_row(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lay prompts out in every row also where a decoder would run a static one once for all (test_shared_prefix.py)."""
    from softcue.backbones import backbone

    monkeypatch.setattr(backbone, "find_shared_prefixes", lambda batch, prompt, side: [])
