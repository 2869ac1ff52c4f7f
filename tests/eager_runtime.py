"""A runtime for tests: it runs the module that would be exported, so nothing is traced or compiled."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from softcue.backbones.runtimes import runtime, sessions
from softcue.backbones.runtimes.graph import BackboneGraph


class EagerSession(sessions.Session):
    """Runs a graph in torch, counts its runs, and adds `error` to the states."""

    num_runs = 0
    error = 0.0

    def __init__(self, graph: BackboneGraph) -> None:
        super().__init__(graph.input_names)
        self.graph = graph

    def _run(self, arrays: dict[str, Any]) -> Any:
        EagerSession.num_runs += 1
        values = [torch.from_numpy(array) for array in arrays.values()]
        with torch.no_grad(), pytest.MonkeyPatch.context() as patch:
            patch.setattr("torch.compiler.is_exporting", lambda: True)  # a pass that stops at a layer then goes on
            states = self.graph(*values)
        noise = torch.randn(states.shape, generator=torch.Generator().manual_seed(0))
        return (states + EagerSession.error * noise).numpy()


def use_eager_sessions(monkeypatch: pytest.MonkeyPatch, error: float = 0.0) -> None:
    """Let every library of runtimes be there, and run graphs in torch."""
    monkeypatch.setattr(EagerSession, "num_runs", 0)
    monkeypatch.setattr(EagerSession, "error", error)
    monkeypatch.setattr(sessions, "find_spec", lambda name: object())
    monkeypatch.setattr(sessions, "has_bfloat16", lambda: True)
    monkeypatch.setattr(runtime, "library_version", lambda library: "1")
    monkeypatch.setattr(runtime, "build_session", lambda graph, *_: EagerSession(graph))
