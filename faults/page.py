"""`python -m faults.page`: write the figures of all checks into docs/reliability.md, between its marks."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from faults.plan import CHECKS, Check

ROOT = Path(__file__).parents[1]
PAGE, RECORDS = ROOT / "docs" / "reliability.md", ROOT / "docs" / "reliability"
START, END = "<!-- faults -->", "<!-- end -->"


def write_page(page: Path = PAGE, records: Path = RECORDS) -> str:
    """The page with the figures of the records; the rest of it stays."""
    text = page.read_text("utf-8")
    before, start, rest = text.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise SystemExit(f"{page}: no '{START}' with '{END}' after it")
    return f"{before}{START}\n{format_records(read_records(records))}\n{END}{after}"


def read_records(folder: Path) -> dict[str, dict[str, Any]]:
    """The records of a folder, by the check."""
    records = [json.loads(file.read_text("utf-8")) for file in sorted(folder.glob("*.json"))]
    return {record["check"]: record for record in records}


def format_records(records: dict[str, dict[str, Any]]) -> str:
    """Two tables: what came out of each check, and what each has measured. Then the machines and commands."""
    rows = [format_row(check, records.get(name)) for name, check in CHECKS.items()]
    parts = [_table(["check", "what is done", "what must come out", "done", "aim", "faults"], rows)]
    details = [
        [f"`{record['command'].partition(' --json ')[0]}`", record["date"], _hours(record["seconds"]), _figures(record)]
        for name in CHECKS
        if (record := records.get(name))
    ]
    parts.append(_table(["command", "last run", "took", "outcomes and figures"], details))
    machines = sorted({record["machine"] for record in records.values()})
    parts.append(f"Machine: {'; '.join(machines) or 'none'}.")
    return "\n\n".join(["", *parts, ""])


def format_row(check: Check, record: dict[str, Any] | None) -> list[str]:
    """One line of the first table; a check without a record says so.

    Example:
        >>> format_row(CHECKS["kills"], None)[-3:]
        ['not run', '200', '']
    """
    done = f"{record['count']:,} {check.unit}" if record else "not run"
    aim = f"{check.minutes:.0f} min" if check.aim is None else f"{check.aim:,}"
    if record and check.aim is None:
        done += f" in {_hours(record['seconds'])}"
    num_faults = str(record["num_faults"]) if record else ""
    return [check.name, check.what, check.expected, done, aim, num_faults]


def _figures(record: dict[str, Any]) -> str:
    outcomes = ", ".join(f"{name} {count:,}" for name, count in record["outcomes"].items())
    figures = [f"{name}: {_format_value(value)}" for name, value in record["figures"].items()]
    return "; ".join([outcomes, *figures]).replace("|", "\\|")


def _format_value(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{name} {_format_value(item)}" for name, item in value.items())
    if isinstance(value, list):  # a curve: its ends are enough here, the file has all of it
        shown = value if len(value) <= 6 else [*value[:2], "...", *value[-2:]]
        return " ".join(map(_format_value, shown))
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}" if isinstance(value, float) else str(value)


def _hours(seconds: float) -> str:
    """A duration in words of the page."""
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [columns, ["---"] * len(columns), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main() -> None:
    """Write the page, or with --check say whether it is up to date."""
    page = write_page()
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(page, "utf-8")
    elif page != PAGE.read_text("utf-8"):
        raise SystemExit("docs/reliability.md is not that of docs/reliability/*.json: run `python -m faults.page`")


if __name__ == "__main__":
    main()
