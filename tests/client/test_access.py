"""Keys over HTTP: who may not, is told so in one sentence, and never what the key was."""

from __future__ import annotations

import pytest
from tests.client import flows
from tests.client.conftest import Rig

from ironflow.client import Client
from ironflow.client.address import api_key, server_url
from ironflow.errors import (
    Forbidden,
    InvalidSettings,
    PlatformRequired,
    RunNotFound,
    Unauthenticated,
)


async def test_a_key_that_is_missing_or_wrong_is_told_apart(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    wrong = f"ifkey_{'x' * 43}"
    async with Client(rig.url, wrong) as client:
        with pytest.raises(Unauthenticated, match="unknown, revoked or expired") as caught:
            await client.list()
    assert wrong not in str(caught.value)
    assert "IRONFLOW_API_KEY" in str(caught.value)
    monkeypatch.delenv("IRONFLOW_API_KEY", raising=False)
    async with Client(rig.url) as client:
        with pytest.raises(Unauthenticated, match="none was sent"):
            await client.list()


async def test_server_and_key_come_from_the_environment(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IRONFLOW_SERVER", f"{rig.url}/")
    monkeypatch.setenv("IRONFLOW_API_KEY", f" {rig.keys['admin']}\n")
    async with Client() as client:
        assert await client.run(flows.double, 1) == 2


async def test_a_role_that_may_not_and_a_key_of_another_kind_are_refused(rig: Rig) -> None:
    async with rig.client("viewer") as viewer:
        assert await viewer.list() == []
        with pytest.raises(Forbidden, match="the role developer is required"):
            await viewer.start(flows.double, 1)
        with pytest.raises(PlatformRequired, match="platform credentials required here"):
            await viewer.leases()
    async with rig.client("worker") as worker:
        with pytest.raises(Forbidden):
            await worker.list()


async def test_a_run_of_another_organisation_is_not_there(rig: Rig) -> None:
    async with rig.client() as own, rig.client("other") as other:
        run = await own.start(flows.double, 1)
        with pytest.raises(RunNotFound) as hidden:
            await other.get(run.id)
        with pytest.raises(RunNotFound) as unknown:
            await other.get("nobody")
        assert str(hidden.value).replace(run.id, "X") == str(unknown.value).replace("nobody", "X")
        assert await other.list() == []


@pytest.mark.parametrize("text", ["localhost:9123", "ftp://host", "http://", "http://host/?x=1", "", "http://a b"])
def test_what_is_no_address_of_a_server_is_refused(text: str) -> None:
    with pytest.raises(InvalidSettings, match="http://host:9123"):
        server_url(text)


def test_an_address_with_a_password_is_refused_and_not_repeated() -> None:
    with pytest.raises(InvalidSettings) as caught:
        server_url("http://me:hunter2@host")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize("text", ["http://h:1", "https://example.org/iron", "http://[::1]:9123/"])
def test_addresses_are_taken_without_their_last_slash(text: str) -> None:
    assert server_url(text) == text.rstrip("/")


def test_a_key_file_holds_one_word(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.delenv("IRONFLOW_API_KEY", raising=False)
    file = tmp_path / "key"
    file.write_text("ifkey_secret\n", encoding="utf-8")
    assert (api_key(file), api_key()) == ("ifkey_secret", None)
    for content, says in (
        ("", "nothing is in it"),
        ("two words", "a key is one word of plain ASCII"),
        ("secret-ü-secret", "a key is one word of plain ASCII"),
        ("hello", "5 characters are too few for one"),
        ("x" * 513, "513 characters are too many for one"),
    ):
        file.write_text(content, encoding="utf-8")
        with pytest.raises(Unauthenticated, match=f"holds no key: {says}") as caught:
            api_key(file)
        assert not content or content not in str(caught.value)
    with pytest.raises(InvalidSettings, match="cannot be read"):
        api_key(tmp_path / "nothing")


@pytest.mark.parametrize("address", ["http://host:99999", "http://host:0", "https://[::1]:65536/x"])
def test_a_port_that_does_not_exist_is_no_address(address: str) -> None:
    with pytest.raises(InvalidSettings, match="there is no port"):
        server_url(address)


def test_an_address_with_the_path_of_the_api_is_told_without_it() -> None:
    with pytest.raises(InvalidSettings, match=r"without /api/v1: use http://host:9123\b"):
        server_url("http://host:9123/api/v1")
