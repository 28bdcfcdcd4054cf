"""A database file that is deleted or replaced under those who have it open: they stop, and acknowledge nothing more."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.store.build import answer, answers, append, session, start
from tests.store.conftest import Open

from ironflow.errors import StoreGone
from ironflow.model.transition import APPLIED
from ironflow.store import connect, sqlite_file
from ironflow.store.base import Store


def deleted(file: Path) -> None:
    for one in file.parent.glob(f"{file.name}*"):
        one.unlink()


def moved(file: Path) -> None:
    file.rename(file.with_suffix(".old"))


def replaced(file: Path) -> None:
    other = file.with_suffix(".other")
    other.write_bytes(b"")
    other.rename(file)


def without_log(file: Path) -> None:
    for suffix in ("-wal", "-shm"):
        file.with_name(file.name + suffix).unlink()


def without_index(file: Path) -> None:
    file.with_name(f"{file.name}-shm").unlink()


HARMS = [deleted, moved, replaced, without_log, without_index]
Harm = Callable[[Path], None]


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where the database of a test is; it is looked at each time."""
    monkeypatch.setattr(sqlite_file, "GLANCE_S", 0)
    return tmp_path / "iron.db"


@pytest.mark.parametrize("harm", HARMS)
async def test_a_file_that_is_gone_takes_no_write_and_answers_no_read(sqlite: Store, file: Path, harm: Harm) -> None:
    assert await answer(sqlite, start("r1")) == APPLIED
    await sqlite.open_session(session(sqlite))
    heart = sqlite.heart()
    harm(file)
    left = sorted(file.parent.iterdir())
    for attempt in (
        lambda: answer(sqlite, append("r1", 4)),
        lambda: sqlite.decide(["r1"], lambda row, now: None),
        lambda: sqlite.reserve(["order"], 1, "s1", 1_000),
        lambda: sqlite.begin(lambda connection: None, deadline_ms=1_000),
        lambda: sqlite.run("r1"),
        lambda: sqlite.leases(),
        lambda: sqlite.journal("r1"),
        lambda: sqlite.peek(["order"], 1),
    ):
        with pytest.raises(StoreGone, match=r"iron\.db was deleted, moved or replaced"):
            await attempt()
    for renew in (lambda: heart.beat("s1", 1_000, 1_000, 1, []), sqlite.heart):
        with pytest.raises(StoreGone):
            renew()
    heart.close()
    assert isinstance(await sqlite.gone, StoreGone)
    assert sorted(file.parent.iterdir()) == left, "nothing was made at its place"


async def test_each_of_a_batch_is_told_and_the_database_is_given_up_once(
    sqlite: Store, file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    await answers(sqlite, *[start(f"r{n}") for n in range(3)])
    deleted(file)
    sqlite.concurrent_writers = 3
    for one in [sqlite.submit(append(f"r{n}", 4)) for n in range(3)]:
        with pytest.raises(StoreGone):
            await one  # type: ignore[misc]  # it is gathered, so it is awaited
    assert [record.levelname for record in caplog.records if record.name == "ironflow.store"] == ["ERROR"]


async def test_who_opens_the_place_anew_has_a_file_of_its_own(
    sqlite: Store, sqlite_url: str, open_store: Open, file: Path
) -> None:
    assert await answer(sqlite, start("r1")) == APPLIED
    deleted(file)
    second = await open_store(sqlite_url)
    assert await answer(second, start("r1")) == APPLIED, "it knows nothing of the first one's run"
    with pytest.raises(StoreGone):
        await answer(sqlite, append("r1", 4))
    assert await answer(second, append("r1", 4)) == APPLIED
    assert not second.gone.done()


async def test_a_file_that_comes_back_is_not_trusted_again(sqlite: Store, file: Path) -> None:
    assert await answer(sqlite, start("r1")) == APPLIED
    moved(file)
    with pytest.raises(StoreGone):
        await sqlite.run("r1")
    file.with_suffix(".old").rename(file)  # others may have made another one in between, and have worked on it
    with pytest.raises(StoreGone):
        await sqlite.run("r1")
    with pytest.raises(StoreGone):
        await answer(sqlite, append("r1", 4))


async def test_a_link_to_the_database_may_be_opened(tmp_path: Path, file: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "real.db").touch()
    file.symlink_to(tmp_path / "elsewhere" / "real.db")
    store = await connect(f"sqlite:///{file}")
    assert await answer(store, start("r1")) == APPLIED
    without_log(tmp_path / "elsewhere" / "real.db")
    with pytest.raises(StoreGone):
        await answer(store, append("r1", 4))
    await store.close()


async def test_a_file_that_cannot_be_looked_at_is_not_taken_for_gone(
    sqlite: Store, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object, **options: object) -> os.stat_result:
        raise PermissionError

    with monkeypatch.context() as patched:
        patched.setattr(Path, "stat", refuse)
        assert await answer(sqlite, start("r1")) == APPLIED


async def test_a_commit_costs_one_look_and_a_read_next_to_none(sqlite: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite_file, "monotonic", lambda: 0.0)
    sqlite._file._glanced = 0.0  # type: ignore[attr-defined]
    await answer(sqlite, start("r1"))
    looks = 0
    lies = sqlite_file._lies

    def counted(place: Path, opened: sqlite_file.Identity) -> bool:
        nonlocal looks
        looks += 1
        return lies(place, opened)

    monkeypatch.setattr(sqlite_file, "_lies", counted)
    for n in range(50):  # more, and the log is looked after
        await answer(sqlite, append("r1", 4 + n))
    assert looks == 50
    for _ in range(100):
        await sqlite.run("r1")
    assert looks == 50
    monkeypatch.setattr(sqlite_file, "monotonic", lambda: 2 * sqlite_file.GLANCE_S)
    await sqlite.run("r1")
    assert looks == 53, "the file, its log and the index"
