"""The demo's entry: where it plays, what it prints, and with which exit code it ends."""

from __future__ import annotations

import asyncio
import contextlib
import json as json_text
import os
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rich.console import Console

from ironflow.demo import proof, report
from ironflow.demo.ingest import indexed_files
from ironflow.demo.stage import DemoFailed, Evidence, Stage
from ironflow.demo.view import make_view
from ironflow.engine.doctor import examine
from ironflow.errors import RunError
from ironflow.runtime import Engine
from ironflow.store.base import Store
from ironflow.testing.postgres import PostgresError, PostgresServer, postgres_available

_INTERRUPTED = 130


def main(db: str | None = None, postgres: bool = False, json: bool = False) -> int:
    """Play the demo, and prove what it shows.

    Args:
        db: the database to play on; None takes a SQLite file that is gone afterwards.
        postgres: without `db`, play on a private PostgreSQL that is started for it and gone afterwards.
        json: print one object instead of the live view and the report.

    Returns:
        0 if everything that is claimed was checked and holds, 1 if something does not hold or the demo could
        not be played, 2 where it cannot be played at all (no SIGKILL, no PostgreSQL), 130 if it was stopped.

    Raises:
        InvalidSettings, StoreError: the database cannot be used.
    """
    console = Console(stderr=json)
    if os.name != "posix":
        console.print("the demo kills a process with SIGKILL, which only Linux and macOS have")
        return 2
    missing = postgres_available() if postgres and db is None else None
    if missing:
        console.print(f"the demo cannot start a PostgreSQL: {missing}", soft_wrap=True)
        return 2
    try:
        with _place(db, postgres) as (url, folder):
            return asyncio.run(_play(url, folder, console, json=json))
    except (DemoFailed, RunError, PostgresError) as error:
        console.print(f"the demo failed: {error}", style="red", markup=False, soft_wrap=True)
        return 1
    except KeyboardInterrupt:
        console.print("stopped; its processes and files are gone")
        return _INTERRUPTED


@contextlib.contextmanager
def _place(db: str | None, postgres: bool) -> Iterator[tuple[str, Path]]:
    """A database to play on and a folder for files; what was made for the demo is gone afterwards."""
    with contextlib.ExitStack() as stack:
        # A run under way may still write while its folder is removed, when the demo is stopped with Ctrl-C.
        folder = Path(
            stack.enter_context(tempfile.TemporaryDirectory(prefix="ironflow-demo-", ignore_cleanup_errors=True))
        )
        if db is not None:
            url = db
        elif postgres:
            url = stack.enter_context(PostgresServer()).create_database("demo")
        else:
            url = f"sqlite:///{folder}/demo.db"
        yield url, folder


async def _play(url: str, folder: Path, console: Console, *, json: bool) -> int:
    began = time.monotonic()
    async with Engine(url, worker=False) as engine:
        with make_view(console, silent=json) as view:
            view.say(f"database {engine.store.name}")
            evidence = await Stage(engine, url, folder, view).perform()
        checks = await _checks(evidence, engine.store)
    elapsed = time.monotonic() - began
    if json:
        print(json_text.dumps(report.as_json(evidence, checks, elapsed)))  # noqa: T201 - the result, for scripts
        sys.stdout.flush()
    else:
        report.show(console, evidence, checks, elapsed)
    return 0 if all(check.holds for check in checks) else 1


async def _checks(evidence: Evidence, store: Store) -> Sequence[proof.Check]:
    events, effects = evidence.events, evidence.effects
    findings = [str(finding) for finding in await examine(store)]
    return [
        proof.ended_well(events, evidence.state),
        proof.finished_stay_finished(events, effects, evidence.killed_pid),
        proof.executed_as_recorded(events, effects),
        proof.index_is_right(indexed_files(str(evidence.out)), evidence.root, evidence.files),
        proof.Check(
            "ironflow doctor finds nothing wrong in the database",
            not findings,
            "; ".join(findings[:3]) or "every invariant checked",
        ),
    ]
