"""Files of published data sets, in their layouts and with rows of our own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any


def write_json(path: Path, value: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value))
    return path


def squad(number: int) -> dict[str, Any]:
    context = f"Order {number} left the depot in Lyon on day {number} of the month."
    question = {
        "id": str(number),
        "question": f"Where is order {number}?",
        "answers": [{"text": "Lyon", "answer_start": context.index("Lyon")}],
    }
    return {"title": "t", "paragraphs": [{"context": context, "qas": [question]}]}


NER_LINES = "Ann NNP I-NP I-PER\nsent VBD I-VP O\nit PRP I-NP O\nto TO I-PP O\nLyon NNP I-NP I-LOC\n. . O O\n\n"


def write_published_files(folder: Path) -> Path:
    """Write SQuAD, SQuADShifts, CoNLL-2003, QQP, MRPC, RTE and STS-B below the folder."""
    write_json(folder / "squad/train-v1.1.json", {"version": "1.1", "data": [squad(number) for number in range(12)]})
    write_json(folder / "squad/dev-v1.1.json", {"version": "1.1", "data": [squad(number) for number in range(12, 16)]})
    write_json(folder / "squadshifts/amazon.json", {"version": "1.1", "data": [squad(number) for number in range(3)]})
    (folder / "conll2003").mkdir()
    for split in ("train", "testa", "testb"):
        (folder / f"conll2003/eng.{split}").write_text("-DOCSTART- -X- -X- O\n\n" + NER_LINES * 8)
    pairs = [("the parcel is here", "the parcel came", "1"), ("the parcel is here", "it rains", "0")] * 8
    for name, columns in {
        "QQP/train.tsv": ("question1", "question2", "is_duplicate"),
        "QQP/dev.tsv": ("question1", "question2", "is_duplicate"),
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        rows = [columns, *((f"{first} {number}", second, label) for number, (first, second, label) in enumerate(pairs))]
        (folder / name).write_text("".join("\t".join(row) + "\n" for row in rows))
    (folder / "MRPC").mkdir()
    rows = [
        ("Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"),
        *((label, "1", "2", first, second) for first, second, label in pairs),
    ]
    for split in ("train", "dev"):
        (folder / f"MRPC/{split}.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    for name, columns, labels in [
        ("RTE", ("index", "sentence1", "sentence2", "label"), ("entailment", "not_entailment")),
        ("STS-B", ("index", "sentence1", "sentence2", "score"), ("4.5", "0.5")),
    ]:
        (folder / name).mkdir()
        rows = [columns, *((str(number), *pairs[number][:2], labels[number % 2]) for number in range(len(pairs)))]
        for split in ("train", "dev"):
            (folder / f"{name}/{split}.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    return folder
