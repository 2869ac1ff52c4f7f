from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

sys.path.insert(0, str(Path(__file__).parent))  # `from pretend import ...`


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker("device")


@pytest.fixture(autouse=True)
def _pretend_devices() -> Iterator[None]:
    """Register the devices, and run backward passes in the test's own thread.

    torch knows a device in backward passes only if it is there before the first of them: hence the marker `device`,
    with which these tests run in processes of their own.
    """
    from pretend import register

    register()
    with torch.autograd.set_multithreading_enabled(False):
        yield
