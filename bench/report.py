"""What the bench says: a table for a terminal, lines for a program, the block of the README."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path

from bench.measure import Row
from bench.targets import target

HEADINGS = ("work", "store", "variant", "value", "unit", "floor", "ratio", "target", "met")
BEGIN, END = "<!-- bench:begin -->", "<!-- bench:end -->"


def json_line(row: Row) -> str:
    """One row as JSON: work, store, variant, value, unit, floor, ratio. Never NaN: what is missing is null."""
    return json.dumps(asdict(row), allow_nan=False)


def met(row: Row) -> bool | None:
    """Whether a row reaches its target; None where there is none."""
    wanted = target(row.work, row.store, row.variant)
    return None if wanted is None else wanted.met(row.value, row.ratio)


def cells(row: Row) -> tuple[str, ...]:
    """A row as the table shows it."""
    reached = met(row)
    return (
        row.work,
        row.store,
        row.variant,
        number(row.value),
        row.unit,
        "" if row.floor is None else number(row.floor),
        "" if row.ratio is None else f"{row.ratio:.2f}x",
        "" if reached is None else str(target(row.work, row.store, row.variant)),
        {None: "", True: "yes", False: "no"}[reached],
    )


def number(value: float) -> str:
    """Three figures are what such a measurement holds."""
    return f"{value:,.0f}" if abs(value) >= 100 else f"{value:.3g}"


def plain(rows: Iterable[Row]) -> str:
    """The table for a terminal."""
    lines = [HEADINGS, *map(cells, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(HEADINGS))]
    padded = ("  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)) for line in lines)
    return "\n".join(line.rstrip() for line in padded)


def markdown(rows: Iterable[Row]) -> str:
    """The table for the README."""
    lines = [HEADINGS, tuple("---" for _ in HEADINGS), *map(cells, rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def machine(versions: Sequence[str], *, uvloop: bool, share: float) -> str:
    """When and on what it was measured, in one line."""
    loop = "uvloop" if uvloop else "asyncio's own loop"
    parts = [
        datetime.now(UTC).date().isoformat(),
        f"{os.cpu_count()} cores ({platform.machine()}, {platform.system()})",
        f"Python {platform.python_version()}, {loop}",
        *versions,
        *([f"{share:g} of the load"] if share < 1 else []),
    ]
    return " · ".join(parts)


def write_readme(readme: Path, heading: str, rows: Sequence[Row]) -> None:
    """Replace what stands between the two marks.

    Raises:
        SystemExit: the marks are not there; nothing is written.
    """
    text = readme.read_text(encoding="utf-8")
    marked = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.S)
    if not marked.search(text):
        raise SystemExit(f"{readme.name} has no {BEGIN} … {END} to write the table between")
    block = f"{BEGIN}\n{heading}\n\n{markdown(rows)}\n{END}"
    readme.write_text(marked.sub(lambda _: block, text), encoding="utf-8")
