"""Codes per label, against counting by hand; the pictures and the page."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from command import check_error, run
from tiny import tiny

import softcue
from softcue.errors import CueError, DataError
from softcue.inputs.collate import collate
from softcue.inspection import code_map, codebook_curves, codes_by_label, cue_page, nearest_words
from softcue.inspection.codes import IDLE_SHARE
from softcue.tasks import examples_from
from softcue.types import Instance

ROWS = [
    {"text": text, "label": label}
    for text, label in [
        ("The invoice is wrong.", "billing"),
        ("I paid twice for one order", "billing"),
        ("refund", "billing"),
        ("I cannot sign in", "access"),
        ("My password does not work since this morning", "access"),
        ("The account is locked", "access"),
        ("Where is it", "parcel"),
        ("My order never came", "parcel"),
        ("It arrived broken <b>&amp; late", "parcel"),
    ]
]
VIP = {
    "method.prompt_length": 4,
    "method.width": 8,
    "method.codes_norm": 0.0,
    "method.dedicated": False,
    "method.temperature": 0.5,
    "training.steps": 3,
    "training.evaluate_every": 3,
    "training.batch_size": 4,
}
PNG = b"\x89PNG\r\n\x1a\n"


@pytest.fixture(scope="module")
def cue(tmp_path_factory: pytest.TempPathFactory) -> softcue.Cue:
    folder = tmp_path_factory.mktemp("cues") / "mine"
    return softcue.train(
        folder, backbone=tiny("bert"), method="vip", train=ROWS, validation=ROWS, overrides=VIP, progress=False
    )


def test_labels_of_several_pieces_are_recognised_near_a_vector(tmp_path: Path) -> None:
    backbone = tiny("bert")
    labels = ["billing", "access", "parcel"]
    assert all(len(backbone.tokenizer(label, add_special_tokens=False)["input_ids"]) > 1 for label in labels)
    kept = {}
    for init in ("labels", "vocabulary"):
        overrides = {
            "method.name": "prompt-tuning",
            "method.prompt_length": 4,
            "method.init": init,
            "training.steps": 1,
            "training.learning_rate": 1e-6,
        }
        near = softcue.train(
            tmp_path / init, backbone=backbone, train=ROWS, validation=ROWS, overrides=overrides, progress=False
        )
        kept[init] = nearest_words(near, top=3).labels_kept
    assert sorted(kept["labels"]) == sorted(labels)
    assert kept["vocabulary"] == []


def test_odds_and_shares_are_those_of_counting_row_by_row(cue: softcue.Cue) -> None:
    examples = examples_from(ROWS, cue.task)
    codes = codes_by_label(cue, examples, batch_size=2)
    model, backbone = cue.model, cue.backbone
    encoder = model.method.prompt_encoder()
    assert encoder is not None
    labels = list(cue.task.label_names)
    sums = {label: torch.zeros(4, 40) for label in labels}
    for row, example in zip(model.rows(backbone, examples), examples, strict=True):
        batch = collate([row], backbone.tokenizer.pad_token_id)
        with torch.no_grad():
            sums[str(example.target)] += encoder.assignment(Instance(backbone.embed(batch.ids), batch.mask))[0]
    assert codes.rows == dict.fromkeys(labels, 3)
    assert (codes.num_codes, codes.num_tokens) == (40, 4)
    for code in codes.codes:
        taken = {label: float(sums[label][:, code.number].mean()) / 3 for label in labels}
        assert code.share == pytest.approx(sum(taken.values()) / 3, rel=1e-3)
        floor = IDLE_SHARE / 40
        odds = {
            label: (taken[label] + floor) / (sum(taken[other] + floor for other in labels if other != label) / 2)
            for label in labels
        }
        assert code.odds == pytest.approx(max(odds.values()), rel=1e-3)
        if code.label:
            assert odds[code.label] == pytest.approx(code.odds, rel=1e-3)
            assert code.odds >= 1.1
        assert code.is_idle == (code.share < floor)
    assert sum(code.share for code in codes.codes) == pytest.approx(1.0, rel=1e-4)
    everything = sum(sums.values()).sum(0) / sum(sums.values()).sum()  # type: ignore[union-attr, call-overload]
    assert codes.perplexity == pytest.approx(float(torch.exp(-(everything * everything.log()).nansum())), rel=1e-3)


def test_the_top_codes_of_a_label_are_its_own_by_odds(cue: softcue.Cue) -> None:
    codes = codes_by_label(cue, examples_from(ROWS, cue.task))
    for label in codes.rows:
        top = codes.top(label, 3)
        assert all(code.label == label for code in top)
        assert [code.odds for code in top] == sorted((code.odds for code in top), reverse=True)


def test_rows_without_one_of_the_labels_are_refused(cue: softcue.Cue) -> None:
    with pytest.raises(DataError, match="every label"):
        codes_by_label(cue, examples_from(ROWS[:3], cue.task))


def test_a_method_without_codes_is_refused(tmp_path: Path) -> None:
    few = {"training.steps": 1, "method.prompt_length": 3}
    plain = softcue.train(tmp_path / "plain", backbone=tiny("bert"), train=ROWS, overrides=few, progress=False)
    with pytest.raises(CueError, match="codebook"):
        codes_by_label(plain, examples_from(ROWS, plain.task))


def test_the_map_and_the_curves_are_pictures(cue: softcue.Cue, tmp_path: Path) -> None:
    assert cue.path is not None
    encoder = cue.model.method.prompt_encoder()
    assert encoder is not None
    codebook = encoder.codebook()
    assert codebook is not None
    assert code_map(codes_by_label(cue, examples_from(ROWS, cue.task)), codebook).startswith(PNG)
    curves = codebook_curves(cue.path / "metrics.jsonl")
    assert len(curves) == 4
    assert all(curve.startswith("<svg") for curve in curves)
    assert codebook_curves(tmp_path / "none.jsonl") == []
    (tmp_path / "static.jsonl").write_text(json.dumps({"kind": "step", "step": 1, "loss": 0.5}) + "\n")
    assert codebook_curves(tmp_path / "static.jsonl") == []


def test_the_page_holds_everything_itself_and_escapes_words(cue: softcue.Cue) -> None:
    codes = codes_by_label(cue, examples_from(ROWS, cue.task))
    page = cue_page(cue, nearest_words(cue), codes, {"a <map>": PNG}, top=3)
    assert "a &lt;map&gt;" in page
    assert "a <map>" not in page
    assert not re.search(r"(src|href)=[\"'](?!data:)", page)
    assert all(f"<h3>{label}</h3>" in page for label in codes.rows)
    assert "data:image/png;base64," in page


def test_inspect_writes_the_page_and_says_codes_in_json(cue: softcue.Cue, tmp_path: Path) -> None:
    assert cue.path is not None
    backbone = tmp_path / "backbone"
    cue.backbone.save(backbone)
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    words = ["inspect", cue.path, "--backbone", backbone, "--top", "2"]
    shown = run(*words, "--data", rows, "--output-dir", tmp_path / "page")
    assert "label" in shown.out
    assert (tmp_path / "page" / "codes.png").read_bytes().startswith(PNG)
    assert "Codes per label" in (tmp_path / "page" / "index.html").read_text("utf-8")
    as_json = run(*words, "--data", rows, "--json").json
    assert as_json["codes"]["num_codes"] == 40
    check_error(run(*words, "--data", tmp_path / "missing.csv"), "missing.csv")


def test_inspect_without_rows_says_what_is_missing(cue: softcue.Cue, tmp_path: Path) -> None:
    assert cue.path is not None
    cue.backbone.save(tmp_path / "backbone")  # its run was given rows in memory: they cannot be read again
    shown = run("inspect", cue.path, "--backbone", tmp_path / "backbone", "--json")
    assert shown.json["codes"] is None
    assert "--data FILE" in shown.err


def test_vectors_are_numbered_as_in_the_list_of_nearest_words(tmp_path: Path) -> None:
    settings = {**VIP, "method.soft_tokens": 3}
    mixed = softcue.train(
        tmp_path / "mixed",
        backbone=tiny("bert"),
        method="vip",
        train=ROWS,
        validation=ROWS,
        overrides=settings,
        progress=False,
    )
    codes = codes_by_label(mixed, examples_from(ROWS, mixed.task))
    assert codes.num_tokens == 1
    assert {token for code in codes.codes for token in code.tokens} == {3}  # after three plain ones


def test_a_cue_without_prompt_vectors_still_has_a_page(tmp_path: Path) -> None:
    backbone = tmp_path / "backbone"
    tiny("bert").save(backbone)
    few = {"training.steps": 2, "method.prompt_length": 3}
    softcue.train(
        tmp_path / "cue",
        backbone=str(backbone),
        method="vip-idp",
        train=ROWS,
        validation=ROWS,
        overrides=few,
        progress=False,
    )
    assert "vip-idp has no prompt vectors" in run("inspect", tmp_path / "cue").out
    shown = run("inspect", tmp_path / "cue", "--output-dir", tmp_path / "page")
    assert shown.code == 0
    assert "Scores" in (tmp_path / "page" / "index.html").read_text("utf-8")
    check_error(run("inspect", tmp_path / "cue", "--output-dir", tmp_path / "page", "--data", "rows.csv"), "rows.csv")


def test_half_a_line_of_a_killed_run_is_passed_over(tmp_path: Path) -> None:
    line = json.dumps({"kind": "step", "step": 1, "codes_drawn": 3.0})
    (tmp_path / "metrics.jsonl").write_text(line + "\n" + line[:9])
    assert len(codebook_curves(tmp_path / "metrics.jsonl")) == 1


def test_codes_in_one_point_have_a_map_too(cue: softcue.Cue) -> None:
    codes = codes_by_label(cue, examples_from(ROWS, cue.task))
    assert code_map(codes, torch.ones(codes.num_codes, 8)).startswith(PNG)


def test_codes_of_each_vectors_own_are_shown_around_their_mean(tmp_path: Path) -> None:
    settings = {**VIP, "method.soft_tokens": 1, "method.dedicated": True}
    trained = softcue.train(
        tmp_path / "own",
        backbone=tiny("bert"),
        method="vip",
        train=ROWS,
        validation=ROWS,
        overrides=settings,
        progress=False,
    )
    codes = codes_by_label(trained, examples_from(ROWS, trained.task))
    assert codes.owners == [vector for vector in (1, 2, 3) for _ in range(10)]
    encoder = trained.model.method.prompt_encoder()
    assert encoder is not None
    codebook = encoder.codebook()
    assert codebook is not None
    assert code_map(codes, codebook) != code_map(replace(codes, owners=None), codebook)


def test_codes_that_vectors_share_have_no_owner(cue: softcue.Cue) -> None:
    assert codes_by_label(cue, examples_from(ROWS, cue.task)).owners is None
