from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny Llama as an ordinary model folder."""
    from tiny import tiny_model, tiny_tokenizer

    folder = tmp_path_factory.mktemp("llama")
    tiny_model("llama").save_pretrained(folder)
    tiny_tokenizer("llama").save_pretrained(folder)
    return folder
