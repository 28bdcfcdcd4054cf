"""The works over HTTP measure what they say: readers are checked, processes end with their block."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from bench import w6_http, w6_node
from bench.cluster import Workers
from bench.reading import Wrong, checked, digest
from bench.w10_streams import Busy

from ironflow.model import journal as j
from ironflow.model.journal import Event
from ironflow.server.sse import frame

ROOT = Path(__file__).resolve().parent.parent
HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
KINDS = (j.RUN_CREATED, j.RUN_STARTED, j.STEP_STARTED, j.STEP_COMPLETED, j.RUN_SUCCEEDED)


def journal() -> list[Event]:
    return [Event(seq, kind, None, "{}", 1, 1_000 * seq) for seq, kind in enumerate(KINDS, 1)]


def chunks(*pages: list[Event]) -> list[bytes]:
    """What a server sends: each page in a chunk of its own, and the end."""
    texts = ["retry: 1000\n\n", *("".join(map(frame, page)) for page in pages), ": keep-alive\n\n"]
    return [HEAD, *(b"%x\r\n%s\r\n" % (len(text), text.encode()) for text in texts), b"0\r\n\r\n"]


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(20):
        while not condition():
            await asyncio.sleep(0.01)


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    # Nobody may have waited for it: then it is dead, and its number is still there.
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


# ---- readers


@pytest.mark.parametrize("size", [1, 7, 10_000])
def test_a_stream_is_read_the_same_however_the_network_cuts_it(size: int) -> None:
    events = journal()
    raw = b"".join(chunks(events[:2], events[2:]))
    pieces = [(6.0, raw[at : at + size]) for at in range(0, len(raw), size)]
    found, late = checked(pieces)
    assert found == digest((event.seq, event.kind, event.step_id) for event in events)
    assert late == [5_000, 4_000, 3_000, 2_000, 1_000]


def test_an_event_is_as_late_as_the_last_byte_of_its_chunk() -> None:
    events = journal()
    pieces = [(float(at), chunk) for at, chunk in enumerate(chunks(*([event] for event in events)))]
    assert checked(pieces)[1] == [1_000] * len(events)


@pytest.mark.parametrize(
    ("pages", "message"),
    [
        (lambda events: [events[:2], events[1:]], "event 2 came where 3 had to"),
        (lambda events: [events[:2], events[3:]], "event 4 came where 3 had to"),
        (lambda events: [[events[1], events[0]], events[2:]], "event 2 came where 1 had to"),
        (lambda events: [events[:4]], "the stream ended behind"),
        (lambda events: [], "the stream ended behind"),
    ],
)
def test_a_reader_that_missed_an_event_or_got_one_twice_gives_no_figure(
    pages: Callable[[list[Event]], list[list[Event]]], message: str
) -> None:
    with pytest.raises(Wrong, match=message):
        checked([(0.0, chunk) for chunk in chunks(*pages(journal()))])


def test_a_stream_that_broke_or_was_refused_gives_no_figure() -> None:
    whole = b"".join(chunks(journal()))
    for raw in (whole[:-5], whole[:-9], whole[: len(HEAD)], HEAD.replace(b"200 OK", b"404 Not Found"), b""):
        with pytest.raises(Wrong, match=r"the stream broke|the answer is no stream"):
            checked([(0.0, raw)])


async def test_w10_follows_every_run_to_its_end(store_url: str) -> None:
    async with Busy.opened(store_url, 5) as busy:
        rate, late_ms = await busy.followed(3)
        assert rate > 0
        assert -1_000 < late_ms < 10_000
        assert await busy.alone(3) > 0


# ---- what is killed, cut off and frozen


async def test_w6_measures_a_kill_and_leaves_no_process_behind_even_a_frozen_one(sqlite_url: str) -> None:
    async with w6_http.scene(sqlite_url) as here:
        async with here.workers(here.server, 2) as workers:
            pids = {workers.pid, *workers.ready}
            assert 0 < await w6_http._kill(here, workers) < 30_000
            await workers.complete()
            pids |= workers.ready
            assert len(pids) == 4
            workers.freeze()
        assert [pid for pid in pids if alive(pid)] == []


async def test_w6_measures_the_loss_of_a_host_by_the_clocks_it_names(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    clocks = {"RENEWAL_INTERVAL": "200ms", "SUSPECT_AFTER": "1300ms", "LEASE_TTL": "20s", "SESSION_TTL": "20s"}
    monkeypatch.setattr(w6_http, "RENEWAL_S", 0.2)
    settings = {f"IRONFLOW_{name}": value for name, value in clocks.items()}
    async with w6_http.scene(sqlite_url, settings) as here:
        seconds = await w6_http._loss(here, w6_http.Host.cut)
    assert 1.3 < seconds < 15  # by suspicion: neither at once, as if it were proved, nor by the clock of the lease


async def test_w6_sees_runs_go_on_through_the_other_node(postgres_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(w6_node, "RUNS", 4)
    monkeypatch.setattr(w6_node, "STEPS", 40)
    async with w6_node.nodes(postgres_url) as pair:
        for _ in range(2):  # the node that was killed first is the survivor of the second kill
            took = await pair.kill()
            assert len(took) == 4
            assert 0 < took[0] <= took[-1] < 20_000


# ---- the end of the bench


async def test_a_command_that_fails_at_its_start_is_an_error_and_leaves_nothing(sqlite_url: str) -> None:
    refused = Workers(sqlite_url, "bench.no_such_module", ["http://127.0.0.1:1"], "ifworker_x", count=1)
    with pytest.raises(RuntimeError, match=r"`ironflow worker` ended with .*no_such_module"):
        await refused.__aenter__()
    assert not alive(refused.pid)


@pytest.mark.skipif(sys.platform != "linux", reason="a death signal from the kernel is Linux's")
async def test_a_server_dies_with_a_bench_that_is_killed(sqlite_url: str) -> None:
    program = (
        "import asyncio, sys; from bench.cluster import Process\n"
        "async def main():\n"
        "    async with Process(sys.argv[1], 'serve', '--port', '0') as served:\n"
        "        print(served.pid, flush=True); await asyncio.sleep(60)\n"
        "asyncio.run(main())"
    )
    bench = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, sqlite_url, cwd=ROOT, stdout=asyncio.subprocess.PIPE
    )
    assert bench.stdout is not None
    pid = int(await asyncio.wait_for(bench.stdout.readline(), 30))
    assert alive(pid)
    bench.send_signal(signal.SIGKILL)
    await bench.wait()
    await until(lambda: not alive(pid))
