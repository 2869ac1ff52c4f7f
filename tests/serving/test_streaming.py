"""Text told while it is written."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from serving_cues import TEXTS
from tiny import tiny

from softcue.cue.cue import Cue
from softcue.inference import predict_mixed
from softcue.serving.engine import engine as engine_module
from softcue.serving.engine.engine import Engine
from softcue.serving.engine.requests import Options, ServedPrediction
from softcue.serving.engine.streaming import TextStreamer


class Spelled:
    """A tokenizer of single letters; # is half a character."""

    def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
        assert skip_special_tokens
        return "".join(map(chr, ids)).replace("#", "�")


def stream_letters(text: str, *stop: str) -> tuple[list[str], int]:
    """The parts sent while a text is generated letter by letter, and the number of letters before it may stop."""
    pieces: list[str] = []
    streamer = TextStreamer(Spelled(), stop, pieces.append, lambda: False)
    for size in range(1, len(text) + 1):
        if streamer(list(map(ord, text[:size]))):
            return pieces, size
    return pieces, len(text)


def test_parts_are_sent_once_and_in_order() -> None:
    assert stream_letters(" abc") == (["a", "b", "c"], 4)


def test_spaces_wait_for_what_follows() -> None:
    assert stream_letters("a  b ") == (["a", "  b"], 5)


def test_half_a_character_waits() -> None:
    assert stream_letters("ab#") == (["a", "b"], 3)


def test_what_may_become_a_stop_word_waits() -> None:
    assert stream_letters("a END b", "END") == (["a"], 5)
    assert stream_letters("a EN b", "END") == (["a", " EN b"], 6)
    assert stream_letters("xaab", "ab", "q") == (["x", "a"], 4)


def test_passes_that_are_run_again_tell_nothing_twice() -> None:
    pieces: list[str] = []
    streamer = TextStreamer(Spelled(), (), pieces.append, lambda: False)
    for text in ("a", "ab", "a", "ab", "abc"):
        streamer(list(map(ord, text)))
    assert pieces == ["a", "b", "c"]


def test_rows_nobody_waits_for_have_enough() -> None:
    assert TextStreamer(Spelled(), (), None, lambda: True)([97])
    assert not TextStreamer(Spelled(), (), None, lambda: False)([97])


@pytest.fixture(params=["t5", "gpt2"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def engine(kind: str, writing_cues: dict[str, dict[str, Cue]]) -> Iterator[Engine]:
    path = writing_cues[kind]["titles"].path
    assert path is not None
    with Engine(tiny(kind), path.parent) as running:
        yield running


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The number of token ids at each call of a streamer."""
    counts: list[int] = []
    plain = TextStreamer.__call__

    def counted(self: TextStreamer, ids: Any) -> bool:
        counts.append(len(ids))
        return plain(self, ids)

    monkeypatch.setattr(TextStreamer, "__call__", counted)
    return counts


def test_pieces_make_up_the_answers(engine: Engine, kind: str, writing_cues: dict[str, dict[str, Cue]]) -> None:
    pieces: dict[int, list[str]] = {}
    inputs = [(name, text) for text in TEXTS for name in ("titles", "titles-idpg")]
    requests = engine.submit(inputs, Options(), on_text=lambda place, text: pieces.setdefault(place, []).append(text))
    for place, (pending, (name, text)) in enumerate(zip(requests, inputs, strict=True)):
        result = pending.result.result(30)
        assert isinstance(result, ServedPrediction)
        assert result.prediction.label == writing_cues[kind][name].predict([text])[0].label
        assert "".join(pieces.get(place, [])) == result.prediction.label
    assert max(map(len, pieces.values())) > 1


def test_stop_words_end_the_writing_of_their_row(
    engine: Engine, kind: str, writing_cues: dict[str, dict[str, Cue]], steps: list[int]
) -> None:
    whole = writing_cues[kind]["titles"].predict([TEXTS[0]])[0].label or ""

    def longest(*stop: str) -> int:
        steps.clear()
        [pending] = engine.submit([("titles", TEXTS[0])], Options(stop=stop))
        assert isinstance(pending.result.result(30), ServedPrediction)
        return max(steps)

    assert longest(whole[:1]) < longest("nowhere")


def test_cues_that_write_alike_are_written_together(
    kind: str, writing_cues: dict[str, dict[str, Cue]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cues, backbone = writing_cues[kind], tiny(kind)
    models = [cues[name].model for name in ("titles", "names", "titles")]
    texts = [TEXTS[0], TEXTS[4], TEXTS[1]]
    rows = [
        (model, model.rows(backbone, cue.examples([text]))[0])
        for model, text, cue in zip(models, texts, (cues["titles"],) * 3, strict=True)
    ]
    alone = [predict_mixed(backbone, [row])[0] for row in rows]
    sizes: list[int] = []
    plain = backbone.model.generate

    def counted(*some: Any, **named: Any) -> Any:
        sizes.append(len(named["attention_mask"]))
        return plain(*some, **named)

    monkeypatch.setattr(backbone.model, "generate", counted)
    assert predict_mixed(backbone, rows) == alone
    assert sizes == [3]


def test_callbacks_that_fail_are_not_called_again() -> None:
    def fail(text: str) -> None:
        calls.append(text)
        raise ValueError

    calls: list[str] = []
    streamer = TextStreamer(Spelled(), (), fail, lambda: False)
    for text in ("a", "ab"):
        assert not streamer(list(map(ord, text)))
    assert calls == ["a"]


def test_last_words_wait_where_a_tokenizer_moves_spaces() -> None:
    class Moving(Spelled):
        clean_up_tokenization_spaces = True

        def decode(self, ids: list[int], skip_special_tokens: bool) -> str:
            return super().decode(ids, skip_special_tokens).replace(" 's", "'s")

    pieces: list[str] = []
    streamer = TextStreamer(Moving(), (), pieces.append, lambda: False)
    text = "so it 's late"
    for size in range(1, len(text) + 1):
        streamer(list(map(ord, text[:size])))
    streamer.send("so it's late")
    assert "".join(pieces) == "so it's late"


def test_rows_end_when_their_client_leaves(engine: Engine, steps: list[int]) -> None:
    def longest(leaves: bool) -> int:
        steps.clear()
        on_text = (
            (lambda place, text: [request.drop() for request in requests]) if leaves else (lambda place, text: None)
        )
        requests: list[Any] = []
        requests += engine.submit([("titles", TEXTS[0])], Options(), on_text=on_text)
        requests[0].result.result(30)
        return max(steps)

    assert longest(leaves=True) < longest(leaves=False)


def test_passes_run_again_after_an_error_tell_nothing_twice(
    engine: Engine, kind: str, writing_cues: dict[str, dict[str, Cue]], monkeypatch: pytest.MonkeyPatch
) -> None:
    plain, calls = engine_module.predict_mixed, []

    def failing(backbone: Any, rows: Any, *more: Any) -> Any:
        predictions = plain(backbone, rows, *more)
        calls.append(len(rows))
        if len(calls) == 1:
            raise RuntimeError("out of memory")
        return predictions

    monkeypatch.setattr(engine_module, "predict_mixed", failing)
    pieces: list[str] = []
    [pending] = engine.submit([("titles", TEXTS[0])], Options(), on_text=lambda _, text: pieces.append(text))
    pending.result.result(30)
    assert len(calls) == 2
    assert "".join(pieces) == writing_cues[kind]["titles"].predict([TEXTS[0]])[0].label
