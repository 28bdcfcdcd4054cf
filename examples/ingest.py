"""Ingest a folder of Python files: hash, compress and index each one, rest, publish, summarise.

Real work on real input, written so that you can kill it anywhere. The workflow decides, the steps act:
whatever touches the disk is a step, and what a step returned is never asked for twice. Each body that begins
appends one line to `effects.log`, so what was executed, where, and how often is a matter of counting and not
of trust.

    ironflow run examples/ingest.py:ingest --input '{"root": "src"}'

Kill it with any signal and give the same command again: it goes on where it was. `ironflow demo` runs this
file.
"""

from __future__ import annotations

import hashlib
import json
import os
import sqlite3
import sysconfig
import time
import zlib
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from ironflow import Call, Context, NonRetryableError, Retry, step, step_info, workflow

BUSY_VISITS = 2  # how often the mirror turns a run away before it takes the index


@dataclass
class Source:
    """What to ingest. The defaults read the standard library of the running Python for some ten seconds."""

    root: str = ""  # empty: the standard library
    out: str = "ingest-out"
    limit: int = 300  # files
    parallel: int = 4  # files at a time
    delay: float = 0.1  # seconds a file takes on top, as if from a slow network; 0 shows the engine's pace
    rest: float = 1.0  # seconds of sleep before publishing


@dataclass
class Job:
    """The source, made definite: later steps take nothing from the process they happen to run in."""

    root: str
    out: str
    files: list[str]


@dataclass
class Indexed:
    path: str
    sha256: str
    size: int  # bytes
    packed: int  # bytes, compressed


@dataclass
class Summary:
    """The run's result."""

    files: int
    unreadable: int
    size: int  # bytes
    packed: int  # bytes, compressed
    largest: str
    published: str


@workflow
async def ingest(ctx: Context, source: Source) -> Summary:
    """The whole job. It is replayed after a crash, so it does no I/O: it only says what comes next."""
    ctx.set_status("looking for files")
    job = await survey(source)
    await create_index(job.out)

    def index(path: str) -> Call[Indexed]:
        return index_file(job.root, job.out, path, source.delay)

    ctx.set_status(f"indexing {len(job.files)} files")
    # "collect": one unreadable file is a fact to report, not a reason to throw away the others.
    outcomes = await ctx.map(index, job.files, concurrency=source.parallel, on_error="collect")
    indexed = [outcome for outcome in outcomes if isinstance(outcome, Indexed)]
    for path, outcome in zip(job.files, outcomes, strict=True):
        if not isinstance(outcome, Indexed):
            ctx.warn(f"{path}: {outcome}")

    ctx.set_status("resting before the mirror is asked")
    await ctx.sleep(source.rest)  # durable: no process needs to be alive meanwhile

    ctx.set_status("publishing")
    published = await publish(job.out, len(indexed))
    ctx.set_status("done")
    return Summary(
        files=len(indexed),
        unreadable=len(outcomes) - len(indexed),
        size=sum(file.size for file in indexed),
        packed=sum(file.packed for file in indexed),
        largest=max(indexed, key=lambda file: file.size).path if indexed else "",
        published=published,
    )


@step
def survey(source: Source) -> Job:
    """List the files, in an order that does not depend on the disk."""
    root = Path(source.root or sysconfig.get_path("stdlib")).resolve()
    if not root.is_dir():
        # Trying again cannot help, so no retry policy, here or added later, shall.
        raise NonRetryableError(f"{root} is not a folder: give one as root")
    out = Path(source.out).resolve()
    out.mkdir(parents=True, exist_ok=True)
    note_effect(str(out))
    found = [path for path, _ in zip(python_files(root), range(source.limit))]  # noqa: B905 - the shorter one ends it
    return Job(str(root), str(out), found)


@step
def create_index(out: str) -> None:
    """Make the index's table. "If not exists", because a step that was cut off runs again."""
    note_effect(out)
    with closing(open_index(out)) as index, index:
        index.execute(
            "create table if not exists files (path text primary key, sha256 text, size int, packed blob)"
        )


@step
def index_file(root: str, out: str, path: str, delay: float) -> Indexed:
    """Read, hash and compress one file, and store it under its path: a repetition replaces its own row."""
    note_effect(out)
    content = Path(root, path).read_bytes()
    digest, packed = hashlib.sha256(content).hexdigest(), zlib.compress(content)
    time.sleep(delay)
    with closing(open_index(out)) as index, index:
        row = (path, digest, len(content), packed)
        index.execute("insert or replace into files values (?, ?, ?, ?)", row)
    return Indexed(path, digest, len(content), len(packed))


@step(retry=Retry(5, backoff="200ms", on=ConnectionError))
def publish(out: str, files: int) -> str:
    """Hand the index to a mirror that is busy the first times it is asked, as services are.

    The visits are counted on disk, so they survive a crash between two tries, as does the count of the tries.
    """
    note_effect(out)
    run_id, visits = step_info().run_id, Path(out, "mirror-visits.log")
    append(visits, run_id)
    if visits.read_text(encoding="utf-8").splitlines().count(run_id) <= BUSY_VISITS:
        raise ConnectionError("the mirror is busy")
    manifest = Path(out, "manifest.json")
    draft = manifest.with_suffix(".draft")
    draft.write_text(json.dumps({"run": run_id, "files": files}), encoding="utf-8")
    draft.replace(manifest)  # readers see the old manifest or the new one, never half of one
    return str(manifest)


def python_files(root: Path) -> Iterator[str]:
    """The .py files under a folder, without what was installed into it, as paths relative to it."""
    for folder, folders, names in os.walk(root):
        folders[:] = sorted(f for f in folders if f not in ("site-packages", "__pycache__") and f[0] != ".")
        for name in sorted(names):
            path = Path(folder, name)
            # A name that is not text could not be journaled, and a pipe or a socket would never end.
            if name.endswith(".py") and name.isprintable() and path.is_file():
                yield str(path.relative_to(root))


def open_index(out: str) -> sqlite3.Connection:
    """A connection to the index; several bodies write to it at once, and wait for each other."""
    return sqlite3.connect(Path(out, "index.db"), timeout=30)


def indexed_files(out: str) -> dict[str, str]:
    """What the index holds: the sha256 of each path."""
    with closing(open_index(out)) as index:
        return dict(index.execute("select path, sha256 from files"))


def note_effect(out: str) -> None:
    """Leave proof that a body began: step id, try, process, time in ms, run."""
    info = step_info()
    line = (info.step_id, info.attempt, os.getpid(), time.time_ns() // 1_000_000, info.run_id)
    append(Path(out, "effects.log"), "\t".join(map(str, line)))


def append(file: Path, line: str) -> None:
    """Add a line in one write at the end of the file, so that no process tears or overwrites another's."""
    descriptor = os.open(file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        os.write(descriptor, f"{line}\n".encode())
    finally:
        os.close(descriptor)
