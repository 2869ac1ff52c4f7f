"""Clusters of nearest words against slow computations, the controls, and labels that persist."""

from __future__ import annotations

import json
import warnings
from itertools import combinations
from pathlib import Path

import pytest
import torch
from command import check_error, run
from tiny import tiny
from torch.nn import functional

import softcue
from softcue.inspection import label_places, nearest_words, word_clusters
from softcue.inspection.clusters import alike_words, measure_tightness, named_rows, random_vectors
from softcue.inspection.nearest import nearest_ids

ROWS = [
    {"text": f"{text} {number}", "label": label}
    for number in range(4)
    for text, label in [("The invoice is wrong", "billing"), ("I cannot sign in", "access"), ("Where is it", "parcel")]
]
PNG = b"\x89PNG\r\n\x1a\n"


def train(folder: Path, **overrides: object) -> softcue.Cue:
    given = {"method.prompt_length": 6, "training.steps": 1, "training.learning_rate": 1e-6, **overrides}
    return softcue.train(
        folder,
        backbone=tiny("bert"),
        method="prompt-tuning",
        train=ROWS,
        validation=ROWS,
        overrides=given,
        progress=False,
    )


@pytest.fixture
def cue(tmp_path: Path) -> softcue.Cue:
    return train(tmp_path / "cue")


def test_tightness_is_the_mean_cosine_of_all_pairs() -> None:
    table = torch.randn(50, 8, generator=torch.Generator().manual_seed(0))
    ids = torch.tensor([[3, 7, 9, 20], [1, 2, 4, 8]])
    tightness, centres = measure_tightness(table, ids)
    for row, words in enumerate(ids.tolist()):
        cosines = {
            pair: float(functional.cosine_similarity(table[pair[0]], table[pair[1]], dim=0))
            for pair in combinations(words, 2)
        }
        assert float(tightness[row]) == pytest.approx(sum(cosines.values()) / len(cosines), abs=1e-5)
        sums = [sum(value for pair, value in cosines.items() if word in pair) for word in words]
        assert int(centres[row]) == sums.index(max(sums))


def test_random_vectors_have_the_mean_and_covariance_of_the_words_and_the_norms_given() -> None:
    generator = torch.Generator().manual_seed(0)
    table = torch.randn(300, 3, generator=generator) @ torch.tensor([[3.0, 0, 0], [2, 1, 0], [0, 0, 0.1]]) + 5
    norms = torch.tensor([1.0, 2.0])
    drawn = random_vectors(table, 20_001, norms, seed=3)
    assert torch.equal(drawn, random_vectors(table, 20_001, norms, seed=3))
    assert not torch.equal(drawn, random_vectors(table, 20_001, norms, seed=4))
    assert drawn.norm(dim=1)[:3].tolist() == pytest.approx([1.0, 2.0, 1.0], rel=1e-5)
    # Only directions are left of what was drawn: compare them with those of a normal distribution.
    spread = torch.linalg.cholesky(torch.cov(table.T))
    expected = table.mean(0) + torch.randn(20_001, 3, generator=generator) @ spread.T
    for moment in (lambda unit: unit.mean(0), lambda unit: torch.cov(unit.T)):
        values = [moment(functional.normalize(vectors, dim=1)) for vectors in (drawn, expected)]
        assert torch.allclose(*values, atol=0.02)


def test_words_are_alike_by_their_beginning_and_whatever_their_case() -> None:
    technology = ["Technology", "technology", "Technologies", "technological", "technologies"]
    assert alike_words(technology) == technology
    assert alike_words(["entirely", "completely", "totally", "altogether", "100%"]) == []
    assert alike_words(["##", "[]", "a", "b"]) == []
    assert alike_words([]) == []


def test_a_vector_among_near_words_has_a_tight_cluster_with_a_name(cue: softcue.Cue) -> None:
    ids = [300, 310, 320, 330, 340]
    table = cue.backbone.word_table
    generator = torch.Generator().manual_seed(0)
    kept = table[ids].clone()
    direction = 0.25 * torch.randn(32, generator=generator)  # the size of the other words
    table.data[ids] = direction + 0.02 * torch.randn(5, 32, generator=generator)
    try:
        encoder = cue.model.method.prompt_encoder()
        assert encoder is not None
        vectors = encoder.static_vectors()
        assert vectors is not None
        vectors.data[2] = vectors.data[4] = direction
        clusters = word_clusters(cue)
    finally:
        table.data[ids] = kept
    assert clusters is not None
    assert [cluster.position for cluster in clusters.clusters] == list(range(6))
    tight = clusters.clusters[2]
    assert tight.is_tight and tight.tightness > 0.9
    assert tight.name in tight.words and len(tight.words) == 5
    rows = {row[0]: row for row in named_rows(clusters)[1]}
    assert rows[tight.name][1].split(", ") >= ["2", "4"]
    assert clusters.named()[0][0] == tight.name
    assert clusters.random.share_tight <= 0.05 + 1e-9
    assert clusters.random.num_vectors == clusters.words.num_vectors == 200


def test_words_of_the_vocabulary_are_their_own_nearest_word(cue: softcue.Cue) -> None:
    clusters = word_clusters(cue, top=3)
    assert clusters is not None
    assert clusters.words.nearest_cosine == pytest.approx(1.0, abs=1e-5)
    assert clusters.random.nearest_cosine < 0.9
    assert word_clusters(cue, top=1) is None


def test_the_nearest_words_are_those_of_comparing_all(cue: softcue.Cue) -> None:
    table = cue.backbone.word_table.float()
    vectors = torch.randn(3, 32, generator=torch.Generator().manual_seed(1))
    ids, cosines = nearest_ids(table, vectors, top=4)
    for row, vector in enumerate(vectors):
        everything = functional.cosine_similarity(vector, table, dim=1)
        best = everything.argsort(descending=True)[:4]
        assert ids[row].tolist() == best.tolist()
        assert torch.allclose(cosines[row], everything[best], atol=1e-5)


def test_labels_persist_where_vectors_began_and_are_lost_where_they_moved_away(cue: softcue.Cue) -> None:
    places = label_places(cue, top=3)
    assert [(place.label, place.began_at, place.persists) for place in places] == [
        ("access", 0, True),
        ("billing", 1, True),
        ("parcel", 2, True),
    ]
    encoder = cue.model.method.prompt_encoder()
    assert encoder is not None
    vectors = encoder.static_vectors()
    assert vectors is not None
    vectors.data[1] = -vectors.data[1]
    vectors.data[5] = vectors.data[2]
    after = {place.label: place for place in label_places(cue, top=3)}
    assert after["billing"].persists is False and after["billing"].vectors == []
    assert after["parcel"].vectors == [2, 5]
    assert nearest_words(cue, top=3).labels_kept == ["access", "parcel"]


def test_vectors_that_began_elsewhere_have_no_label_to_keep(tmp_path: Path) -> None:
    other = train(tmp_path / "other", **{"method.init": "vocabulary"})
    assert [(place.began_at, place.persists) for place in label_places(other)] == [(None, None)] * 3
    train(tmp_path / "first")
    second = train(tmp_path / "second", **{"training.init_from": str(tmp_path / "first")})
    assert {place.began_at for place in label_places(second)} == {None}


def test_inspect_shows_clusters_labels_and_recipe(cue: softcue.Cue, tmp_path: Path) -> None:
    assert cue.path is not None
    cue.backbone.save(tmp_path / "backbone")
    words = ["inspect", cue.path, "--backbone", tmp_path / "backbone"]
    shown = run(*words, "--output-dir", tmp_path / "page")
    assert shown.code == 0, shown.err
    parts = ("clusters of nearest words", "random vectors", "labels in the prompt", "began there: 3 of 3")
    assert all(part in shown.out for part in (*parts, "recipe: prompt-tuning, default recipe"))
    assert (tmp_path / "page" / "words.png").read_bytes().startswith(PNG)
    page = (tmp_path / "page" / "index.html").read_text("utf-8")
    parts = ("Clusters of words, beside random vectors", "Clusters by name", "Labels in the prompt", "default recipe:")
    assert all(part in page for part in parts)
    printed = run(*words, "--json").json
    assert printed["recipe"]["name"] == "default"
    assert printed["clusters"]["random"]["num_vectors"] == len(printed["clusters"]["random"]["tightnesses"]) == 200
    assert [(place["label"], place["persists"]) for place in printed["labels"]] == [
        ("access", True),
        ("billing", True),
        ("parcel", True),
    ]
    assert run(*words, "--top", "1", "--json").json["clusters"] is None


def test_inspect_reads_columns_of_other_names(cue: softcue.Cue, tmp_path: Path) -> None:
    assert cue.path is not None
    cue.backbone.save(tmp_path / "backbone")
    rows = tmp_path / "rows.jsonl"
    renamed = [{"message": row["text"], "team": row["label"]} for row in ROWS]
    rows.write_text("".join(json.dumps(row) + "\n" for row in [*renamed, {"message": "x", "team": "nobody"}]))
    words = ["inspect", cue.path, "--backbone", tmp_path / "backbone"]
    columns = ["--column", "message=text", "--column", "team=label"]
    check_error(run(*words, "--data", rows), "text")
    check_error(run(*words, "--data", rows, *columns), "nobody")
    check_error(run(*words, *columns), "--data")
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        shown = run(*words, "--data", rows, *columns, "--skip-bad-rows", "--json")
    assert "nobody" in shown.err
    assert sum(map(sum, shown.json["evaluation"]["confusion"]["counts"])) == len(ROWS)
