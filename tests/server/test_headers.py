"""Headers that say two things, or that a body is not what it looks like, and names that no address leads to."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from multidict import CIMultiDict
from tests.server.kit import Refused, Served, new_key

from ironflow.model import key as kinds


async def create(here: Served, *headers: tuple[str, str], body: bytes | None = None) -> tuple[int, dict[str, Any]]:
    content = json.dumps({"workflow": "order"}).encode() if body is None else body
    sent = CIMultiDict([("Content-Type", "application/json"), *headers])
    async with here.http.post(f"{here.url}/api/v1/runs", data=content, headers=sent) as response:
        return response.status, await response.json(content_type=None)


async def test_a_header_that_is_there_twice_says_one_thing_or_is_refused(on_sqlite: Served) -> None:
    here = on_sqlite
    await here.worker()
    own, other = [f"Bearer {await new_key(here.store, kinds.ORG, role='developer')}" for _ in range(2)]
    shows = ("Authorization", own)
    status, found = await create(here, shows, ("Authorization", other))
    assert (status, found["code"]) == (400, "INVALID_REQUEST")
    assert "Authorization is there 2 times" in found["detail"]
    status, found = await create(here, shows, ("Idempotency-Key", "a"), ("Idempotency-Key", "b"))
    assert (status, found["code"]) == (400, "INVALID_REQUEST")
    assert "Idempotency-Key is there 2 times" in found["detail"]
    assert (await create(here, shows, shows, ("Idempotency-Key", "a"), ("Idempotency-Key", "a")))[0] == 201
    assert (await create(here, shows, ("Idempotency-Key", "a")))[0] == 200
    keys = CIMultiDict([("Authorization", f"Bearer {here.key}"), ("Authorization", own)])
    async with here.http.post(f"{here.url}/api/v1/worker/poll", json={}, headers=keys) as response:
        assert response.status == 400


async def test_a_body_that_is_compressed_is_refused_as_that(on_sqlite: Served) -> None:
    here = on_sqlite
    await here.worker()
    shows = ("Authorization", f"Bearer {await new_key(here.store, kinds.ORG, role='developer')}")
    packed = gzip.compress(b'{"workflow":"order"}')
    status, found = await create(here, shows, ("Content-Encoding", "gzip"), body=packed)
    assert (status, found["code"]) == (415, "UNSUPPORTED_MEDIA_TYPE")
    assert found["details"] == {"content_encoding": "gzip"}
    assert "Content-Encoding" in found["hint"]
    assert (await create(here, shows, ("Content-Encoding", "Identity")))[0] == 201


@pytest.mark.parametrize("said", [["gzip", "identity"], ["identity", "gzip"], ["identity, gzip"], ["gzip, identity"]])
async def test_of_several_codings_of_a_body_each_counts(on_sqlite: Served, said: list[str]) -> None:
    shows = ("Authorization", f"Bearer {await new_key(on_sqlite.store, kinds.ORG, role='developer')}")
    status, found = await create(on_sqlite, shows, *(("Content-Encoding", one) for one in said))
    assert (status, found["code"]) == (415, "UNSUPPORTED_MEDIA_TYPE")
    assert found["details"] == {"content_encoding": ", ".join(said)}


@pytest.mark.parametrize("first", [True, False])
async def test_of_several_types_of_a_body_each_counts(on_sqlite: Served, first: bool) -> None:
    await on_sqlite.worker()
    key = await new_key(on_sqlite.store, kinds.ORG, role="developer")
    for other, status in (("text/plain", 415), ("application/problem+json", 201)):
        types = [("Content-Type", "application/json"), ("Content-Type", other)]
        sent = CIMultiDict([("Authorization", f"Bearer {key}"), *(types if first else reversed(types))])
        content = json.dumps({"workflow": "order"}).encode()
        async with on_sqlite.http.post(f"{on_sqlite.url}/api/v1/runs", data=content, headers=sent) as response:
            assert response.status == status


@pytest.mark.parametrize("name", ["..", ".", "a/../b"])
async def test_a_workflow_whose_address_leads_elsewhere_is_refused(on_sqlite: Served, name: str) -> None:
    with pytest.raises(Refused, match="a part that is only dots") as refused:
        await on_sqlite.worker(name)
    assert refused.value.code == "INVALID_INPUT"
    await on_sqlite.worker("a..b/...")
