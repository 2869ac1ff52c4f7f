from __future__ import annotations

import os
from pathlib import Path

import pytest

from softcue.errors import ConfigurationError
from softcue.serving.http import service
from softcue.serving.settings import ServerSettings, check_address, read_keys


def test_defaults_are_those_promised() -> None:
    settings = ServerSettings()
    assert (settings.host, settings.max_body_bytes, settings.max_inputs, settings.max_in_flight, settings.deadline) == (
        "127.0.0.1",
        2_000_000,
        32,
        512,
        30.0,
    )
    assert not settings.log_texts and not settings.api_keys


def test_server_decides_how_many_passes_run_at_a_time_unless_told() -> None:
    assert ServerSettings().limits.passes_at_once is None
    assert ServerSettings(passes_at_once=3).limits.passes_at_once == 3


def test_keys_come_from_a_file_or_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("SOFTCUE_API_KEY", raising=False)
    assert read_keys("SOFTCUE_API_KEY", None) == ()
    monkeypatch.setenv("SOFTCUE_API_KEY", "from-environment")
    (tmp_path / "keys").write_text("one\n\n two \n")
    assert [key.get_secret_value() for key in read_keys("SOFTCUE_API_KEY", None)] == ["from-environment"]
    assert [key.get_secret_value() for key in read_keys("SOFTCUE_API_KEY", tmp_path / "keys")] == ["one", "two"]


def test_keys_are_never_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTCUE_API_KEY", "secret")
    settings = ServerSettings(api_keys=read_keys("SOFTCUE_API_KEY", None))
    assert "secret" not in repr(settings) + settings.model_dump_json()


@pytest.mark.parametrize("content", ["", "\n \n", "two words", "clé", "tab\there"])
def test_files_without_usable_keys_are_rejected(tmp_path: Path, content: str) -> None:
    (tmp_path / "keys").write_text(content)
    with pytest.raises(ConfigurationError, match="printable ASCII") as caught:
        read_keys("SOFTCUE_API_KEY", tmp_path / "keys")
    assert "two words" not in str(caught.value)


def test_empty_variable_is_an_error_rather_than_no_key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOFTCUE_API_KEY", "")
    with pytest.raises(ConfigurationError, match="SOFTCUE_API_KEY"):
        read_keys("SOFTCUE_API_KEY", None)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.8.8", "::1", "[::1]", "localhost"])
def test_this_machine_needs_no_key(host: str) -> None:
    check_address(ServerSettings(host=host), is_forced=False)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "example.org", "localhost.example.org", ""])
def test_other_machines_need_a_key_or_force(host: str) -> None:
    with pytest.raises(ConfigurationError, match="without_key=True"):
        check_address(ServerSettings(host=host), is_forced=False)
    with pytest.raises(ConfigurationError, match="without_key=True"):
        check_address(ServerSettings(host=host, admin_keys=("admin",)), is_forced=False)  # type: ignore[arg-type]
    check_address(ServerSettings(host=host), is_forced=True)
    check_address(ServerSettings(host=host, api_keys=("key",)), is_forced=False)  # type: ignore[arg-type]


@pytest.mark.parametrize("given", [None, "1000"])
def test_server_bounds_what_is_kept_for_each_shape(given: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(service, "Engine", lambda *_, **__: None)
    monkeypatch.setenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY", given or "")
    if given is None:
        monkeypatch.delenv("ONEDNN_PRIMITIVE_CACHE_CAPACITY")
    service.make_engine(ServerSettings(), "minilm", Path("cues"), lambda _: None)
    assert os.environ["ONEDNN_PRIMITIVE_CACHE_CAPACITY"] == (given or "32")


def test_memory_of_kept_prompts_reaches_the_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    given: dict[str, object] = {}
    monkeypatch.setattr(service, "Engine", lambda *_, **settings: given.update(settings))
    service.make_engine(ServerSettings(prefix_cache_mb=7), "minilm", Path("cues"), lambda _: None)
    assert given["prefix_cache_mb"] == 7
    assert ServerSettings().prefix_cache_mb is None  # the device's default
