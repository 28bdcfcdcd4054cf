"""Every connection of a worker goes the way that the environment names: through one proxy, or through none."""

from __future__ import annotations

import asyncio
import base64
import gc
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from tests.recovery import program
from tests.recovery.kit import until
from tests.remote.kit import client, served, working
from tests.remote.proxy import NOWHERE, proxying

from ironflow.client.transport import proxy_of
from ironflow.errors import InvalidSettings, ServerUnreachable
from ironflow.remote.connection import PREFIX, Connection
from ironflow.remote.deaths import Deaths
from ironflow.remote.heart import HttpHeart
from ironflow.remote.plain import Plain

VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
#: Nothing listens there.
DEAD = "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.upper(), raising=False)
    return monkeypatch


async def test_a_worker_does_all_its_work_through_the_proxy_and_shows_it_who_asks(
    sqlite_url: str, folder: Path, environment: pytest.MonkeyPatch
) -> None:
    async with served(sqlite_url) as here, proxying(urlsplit(here.url).port or 0) as proxy:
        environment.setenv("HTTP_PROXY", f"http://ann:p%40ss@127.0.0.1:{proxy.port}")
        server = f"http://{NOWHERE}:9123"
        async with working(server, here.key, [program.short]) as worker, client(sqlite_url, [program.short]) as engine:
            run = await engine.start(program.short, "x")
            assert await run.result(timeout=20)
            await until(lambda: proxy.seen(f"{PREFIX}/heartbeat"))
            await until(lambda: proxy.seen(f"{PREFIX}/liveness"))
            assert worker.session.registered
        deaths = Deaths([server], here.key)
        await deaths.open()
        assert await deaths.tell("s-none") == []
        await deaths.close()
        for path in ("/sessions", "/poll", "/transitions", "/heartbeat", "/liveness", "/deaths"):
            assert proxy.seen(f"{PREFIX}{path}"), path
        shown = f"Basic {base64.b64encode(b'ann:p@ss').decode()}"
        assert {one.credentials for one in proxy.asked} == {shown}


async def test_a_server_that_is_named_in_no_proxy_is_asked_directly(
    sqlite_url: str, folder: Path, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("HTTP_PROXY", DEAD)
    environment.setenv("NO_PROXY", "127.0.0.1")
    async with served(sqlite_url) as here, working(here.url, here.key, [program.short]) as worker:
        async with client(sqlite_url, [program.short]) as engine:
            assert await (await engine.start(program.short, "x")).result(timeout=20)
        heart = HttpHeart(worker.port.connection, lambda at: None)  # type: ignore[attr-defined]
        beat = await asyncio.to_thread(heart.beat, worker.session.row.session_id, 0, 0, 1, [])
        await asyncio.to_thread(heart.close)
        assert beat.known


async def test_names_and_passwords_of_a_netrc_do_not_take_the_place_of_the_key(
    sqlite_url: str, folder: Path, tmp_path: Path, environment: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "netrc"
    file.write_text("default login ann password wrong\n")
    file.chmod(0o600)
    environment.setenv("NETRC", str(file))
    async with served(sqlite_url) as here, working(here.url, here.key, [program.short]) as worker:
        assert worker.session.registered


# The standard library of Python 3.11.2 leaves the answer of a refused tunnel to the collector, which is called here.
@pytest.mark.filterwarnings("ignore:Exception ignored in. <socket:pytest.PytestUnraisableExceptionWarning")
async def test_the_heart_asks_a_server_with_tls_through_a_tunnel(environment: pytest.MonkeyPatch) -> None:
    async with proxying(0) as proxy:
        environment.setenv("https_proxy", f"http://ann:secret@127.0.0.1:{proxy.port}")
        connection = Connection([f"https://{NOWHERE}"], "ifworker_x")
        await connection.open()
        try:
            heart = HttpHeart(connection, lambda at: None)
            with pytest.raises(ServerUnreachable) as refused:
                await asyncio.to_thread(heart.beat, "s", 0, 0, 0, [])
            with pytest.raises(ServerUnreachable):
                await connection.ask("GET", "/backlog", tries=1)
        finally:
            await connection.close()
        # The proxy opens no tunnel here; that both asked it for the same one is what matters.
        assert {(one.method, one.target) for one in proxy.asked} == {("CONNECT", f"{NOWHERE}:443")}
        assert len({one.credentials for one in proxy.asked}) == 1
        assert proxy.asked[0].credentials is not None
        assert "secret" not in str(refused.value)
        del refused
        gc.collect()


@pytest.mark.parametrize(
    ("server", "variables", "proxy"),
    [
        ("http://node:9123", {}, None),
        ("http://node:9123", {"http_proxy": "http://p:3128"}, "http://p:3128"),
        ("http://node:9123", {"https_proxy": "http://p:3128"}, None),
        ("https://node", {"https_proxy": "http://p:3128"}, "http://p:3128"),
        ("https://node", {"all_proxy": "p:3128"}, "http://p:3128"),
        ("http://node", {"all_proxy": "http://p:3128"}, "http://p:3128"),
        ("http://node.shop.internal:9123", {"http_proxy": "http://p", "no_proxy": "other,.shop.internal"}, None),
        ("http://node:9123", {"http_proxy": "http://p", "no_proxy": "node:9123"}, None),
        ("http://node:9124", {"http_proxy": "http://p", "no_proxy": "node:9123"}, "http://p"),
        ("http://node:9123", {"http_proxy": "http://p", "no_proxy": "*"}, None),
    ],
)
def test_the_way_to_a_server_is_read_from_the_environment(
    server: str, variables: dict[str, str], proxy: str | None, environment: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        environment.setenv(name, value)
    assert proxy_of(server) == proxy


@pytest.mark.parametrize("proxy", ["https://p:3128", "socks5://ann:secret@p:1080"])
async def test_a_proxy_that_not_every_connection_can_use_is_refused_at_the_start(
    proxy: str, environment: pytest.MonkeyPatch
) -> None:
    environment.setenv("http_proxy", proxy)
    with pytest.raises(InvalidSettings, match="HTTP_PROXY") as refused:
        await Connection(["http://node:9123"], None).open()
    assert "secret" not in str(refused.value)


def test_a_plain_connection_keeps_the_path_below_which_a_server_lies() -> None:
    assert Plain("http://node:9123/flow", None, 1)._base == "/flow"
    assert Plain("http://node:9123/flow", "http://p", 1)._base == "http://node:9123/flow"
    assert Plain("https://node/flow", "http://p", 1)._base == "/flow"
