"""How much one worker's key may ask a node to know."""

from __future__ import annotations

import pytest
from tests.server.kit import Refused, Served, new_key

from ironflow.server import registration


async def test_a_key_has_a_bounded_number_of_live_sessions(here: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "MOST_SESSIONS", 2)
    first, second = await here.worker(), await here.worker()
    with pytest.raises(Refused, match="this key has 2 other live sessions") as refused:
        await here.worker()
    assert refused.value.code == "INVALID_INPUT"
    await first.register("order", "more")  # it has its place
    await here.speaker(await new_key(here.store)).register()
    await second.ask("DELETE", f"/sessions/{second.session_id}")
    await here.worker()


async def test_what_the_sessions_of_a_key_serve_is_bounded(here: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(registration, "MOST_SERVED", 10_000)
    names = [f"{i}{'n' * 150}" for i in range(40)]
    first = await here.worker(*names)
    with pytest.raises(Refused, match="10,000 characters are the most"):
        await here.worker(*names)
    await first.register(*names[1:])
    await here.worker()
