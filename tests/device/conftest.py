from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # `from pretend import ...`


@pytest.fixture(autouse=True)
def _pretend_devices() -> Iterator[None]:
    """Register the devices, and run backward passes in the test's own thread.

    torch has threads for the backward passes of a device only if it is there before the first backward pass.
    """
    from pretend import register

    register()
    with torch.autograd.set_multithreading_enabled(False):
        yield
