"""Damaged copies of files: bytes flipped, cut, moved and doubled, and values of JSON replaced by troublesome ones."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

SNIPPETS = [
    *(
        b"\0",
        b"\n",
        b"\r",
        b'"',
        b"'",
        b",",
        b"\t",
        b"{",
        b"}",
        b"[",
        b"]",
        b": ",
        b"- ",
        b"&a ",
        b"*a",
        b"!!int ",
        b"!!bool ",
    ),
    *(
        b"!!timestamp ",
        b"!!python/object:os.system ",
        b"<<: ",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\xed\xa0\x80",
        b"NaN",
        b"-1",
    ),
    *(b"1e999", b"99999999999999999999", b"0x", b"null", b"true", b"\\ud800", b"../../", b"hub:", b"\x1f\x8b", b"PAR1"),
    *(b"{" * 50, b"[" * 2000, b"9" * 5000, "\u202e".encode(), "\U0001f600".encode()),
]
VALUES: list[Any] = [
    *(
        None,
        True,
        False,
        0,
        1,
        -1,
        2**31,
        2**63,
        10**400,
        -(2**63),
        0.5,
        1e308,
        float("nan"),
        float("inf"),
        "",
        " ",
        "x",
    ),
    *(
        "\0",
        "\ud800",
        "a" * 10_000,
        "{text}",
        "{",
        "}",
        "{0}",
        "%s",
        "../..",
        "hub:a/b",
        "[SEP]",
        "\U0001f600",
        "1",
        "nan",
    ),
    *(
        [],
        {},
        [[]],
        [{}],
        {"": ""},
        {"name": None},
        [None],
        ["x"] * 100,
        {str(n): n for n in range(50)},
        [1, "a", None],
    ),
]


def mutate_bytes(data: bytes, draw: random.Random) -> bytes:
    """Change one to four places of some bytes.

    Example:
        >>> mutate_bytes(b"text,label", random.Random(1)) == mutate_bytes(b"text,label", random.Random(1))
        True
    """
    mutant = bytearray(data)
    for _ in range(draw.choice((1, 1, 1, 2, 4))):
        start = draw.randrange(len(mutant) + 1)
        end = min(len(mutant), start + draw.choice((1, 1, 2, 4, 8, 64, 1000)))
        match draw.randrange(8):
            case 0 if start < len(mutant):
                mutant[start] ^= 1 << draw.randrange(8)
            case 1 if start < len(mutant):
                mutant[start] = draw.randrange(256)
            case 2:
                del mutant[start:end]
            case 3:
                mutant[start:start] = draw.choice(SNIPPETS)
            case 4:
                mutant[start:end] = draw.choice(SNIPPETS)
            case 5:
                place = draw.randrange(len(mutant) + 1)
                mutant[place:place] = mutant[start:end]
            case 6 if draw.random() < 0.2:
                del mutant[start:]
            case _:
                mutant[start:end] = draw.randbytes(end - start)
    return bytes(mutant)


def mutate_value(value: Any, draw: random.Random) -> Any:
    """Change one to three places of a value of JSON: another value, a missing, a doubled or a renamed key.

    Example:
        >>> mutate_value({"a": 1}, random.Random(0)) != {"a": 1}
        True
    """
    mutant = copy.deepcopy(value)
    for _ in range(draw.choice((1, 1, 2, 3))):
        places = list(_places(mutant))
        if not places:
            return copy.deepcopy(draw.choice(VALUES))
        owner, key = draw.choice(places)
        match draw.randrange(6):
            case 0:
                del owner[key]
            case 1 if isinstance(owner, dict):
                owner[draw.choice(["", "x", "name", str(key) + "s", "\ud800", "__class__"])] = owner.pop(key)
            case 2:
                other, other_key = draw.choice(places)
                if not isinstance(item := other[other_key], (dict, list)):
                    owner[key] = item
            case 3 if isinstance(owner, list):
                owner.extend(copy.deepcopy(owner[:20]))
            case _:
                owner[key] = copy.deepcopy(draw.choice(VALUES))
    return mutant


def _places(value: Any) -> list[tuple[Any, Any]]:
    """Every place in a value: its owner, and the key or index there."""
    places: list[tuple[Any, Any]] = []
    owners = [value]
    while owners:
        owner = owners.pop()
        keys = list(owner) if isinstance(owner, dict) else range(len(owner)) if isinstance(owner, list) else ()
        places += [(owner, key) for key in keys]
        owners += [owner[key] for key in keys if isinstance(owner[key], (dict, list))]
    return places


def write_json_bytes(value: Any) -> bytes:
    """JSON of any value of Python, also of what JSON cannot hold: NaN, and halves of surrogate pairs as escapes.

    Example:
        >>> write_json_bytes([float("nan"), "\\ud800"])
        b'[NaN, "\\\\ud800"]'
    """
    return json.dumps(value).encode()
