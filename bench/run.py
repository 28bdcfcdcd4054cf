#!/usr/bin/env python3
"""`python3 dev.py bench [W1 …] [--store sqlite|postgres] [--json]`: measure works beside their floors.

The result goes to standard output, progress to standard error. With `--check` the exit code is 1 when a target is
missed; without it a figure is a figure, and only a failure to measure is an error. Floor and engine run in one process,
which has the event loop and the garbage collection of `ironflow worker`.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))  # started as a script, the folder above is not searched

from bench import (  # noqa: E402
    report,
    w1_latency,
    w2_steps,
    w3_runs,
    w4_starts,
    w5_timers,
    w6_http,
    w6_node,
    w6_takeover,
    w7_memory,
    w8_http,
    w9_claims,
    w10_streams,
)
from bench.measure import Row, Scale, note  # noqa: E402
from bench.stores import STORES, Place  # noqa: E402
from ironflow import runtime  # noqa: E402, F401  # loaded before the collector is told to look no more at it
from ironflow.cli import process  # noqa: E402

WORKS: dict[str, Sequence[Callable[[Place, Scale], Awaitable[list[Row]]]]] = {
    "W1": [w1_latency.measure],
    "W2": [w2_steps.measure],
    "W3": [w3_runs.measure],
    "W4": [w4_starts.measure],
    "W5": [w5_timers.measure],
    "W6": [w6_takeover.measure, w6_http.measure, w6_node.measure],
    "W7": [w7_memory.measure],
    "W8": [w8_http.measure],
    "W9": [w9_claims.measure],
    "W10": [w10_streams.measure],
}


def arguments(words: Sequence[str]) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(prog="dev.py bench", description="Measure works beside their floors.")
    parser.add_argument("works", nargs="*", metavar="WORK", help=f"which of {', '.join(WORKS)}; default all")
    parser.add_argument("--store", choices=STORES, help="one store; default both")
    parser.add_argument("--json", action="store_true", help="one JSON object per row instead of a table")
    parser.add_argument("--rounds", type=int, default=3, help="rounds of floor and engine (default 3)")
    parser.add_argument("--kills", type=int, default=30, help="processes killed by each part of W6 (default 30)")
    parser.add_argument("--share", type=float, default=1.0, help="part of the full load, to try something out")
    parser.add_argument("--folder", type=Path, help="where the databases go; a folder on a real disk")
    parser.add_argument(
        "--embedded",
        action="store_true",
        help="asyncio's own loop and Python's own garbage collection, as a program that embeds the engine has them;"
        " without it as in `ironflow worker`",
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 when a target is missed")
    parser.add_argument("--write-readme", action="store_true", help="replace the table in README.md")
    chosen = parser.parse_args(words)
    chosen.works = [work.upper() for work in chosen.works] or list(WORKS)
    unknown = [work for work in chosen.works if work not in WORKS]
    if unknown:
        parser.error(f"there is no {', '.join(unknown)}; there are {', '.join(WORKS)}")
    if chosen.rounds < 1 or chosen.kills < 1 or not 0 < chosen.share <= 1:
        parser.error("--rounds and --kills are at least 1, --share is above 0 and at most 1")
    return chosen


async def measured(options: argparse.Namespace) -> tuple[list[Row], list[str]]:
    """Every row asked for, and the versions of the databases they were measured on."""
    scale = Scale(options.rounds, options.share, options.kills)
    rows: list[Row] = []
    versions = []
    for store in [options.store] if options.store else STORES:
        with Place(store, options.folder) as place:
            versions.append(place.version())
            for work in options.works:
                note(f"{work} on {store}")
                made = [row for measure in WORKS[work] for row in await measure(place, scale)]
                rows += made
                if options.json:
                    for row in made:
                        print(report.json_line(row), flush=True)
    return rows, versions


def main(words: Sequence[str]) -> int:
    """Entry: returns the exit code."""
    options = arguments(words)
    factory = None if options.embedded else process.fast_loop()
    if not options.embedded:
        process.relax_collector()
    with asyncio.Runner(loop_factory=factory) as runner:
        rows, versions = runner.run(measured(options))
    heading = report.machine(versions, uvloop=factory is not None, share=options.share)
    if not options.json:
        print(f"{heading}\n\n{report.plain(rows)}")
    if options.write_readme:
        report.write_readme(ROOT / "README.md", heading, rows)
    missed = [row for row in rows if report.met(row) is False]
    for row in missed:
        note(f"missed: {row.work} {row.variant} on {row.store}; bench/profile_step.py shows where the time goes")
    return 1 if missed and options.check else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
