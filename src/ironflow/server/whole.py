"""A run whole, sent in pieces: its row, its values, its steps with their results.

Promises that an answer of any length costs the memory of one value: what is large is read when its place in the answer
has come, and only once what stands before it was sent. While it is sent it takes one of its owner's places (`large`).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from starlette.responses import Response

from ironflow.engine.reading import payload_at
from ironflow.model.fold import Folded
from ironflow.server.bodies import Json, encoded
from ironflow.server.large import PIECE, Sent, pieces
from ironflow.store.base import Store


def answer(store: Store, run_id: str, told: dict[str, Any], view: Folded, places: asyncio.Semaphore) -> Response:
    """The answer that shows a run.

    Args:
        store: where its large values are.
        run_id: the run.
        told: what is shown, without large values.
        view: the outline it was made of.
        places: those of its owner.
    """
    if not view.apart and view.input_at is None and view.output_at is None:
        return Json(told)
    return Sent(_together(_Whole(store, run_id, view, places).parts(told)))


class _Whole:
    """Reads what was left out of an outline."""

    def __init__(self, store: Store, run_id: str, view: Folded, places: asyncio.Semaphore) -> None:
        self._store, self._run_id, self._view, self._places = store, run_id, view, places

    async def parts(self, told: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        """The answer in parts, each small, or a piece of what is large."""
        apart = {"input": self._view.input_at, "output": self._view.output_at}
        begin = b"{"
        for name, value in told.items():
            if name == "steps":
                continue
            yield b"%b%b:" % (begin, encoded(name))
            async with aclosing(self._value(value, apart.get(name), name)) as parts:
                async for part in parts:
                    yield part
            begin = b","
        yield b',"steps":['
        begin = b""
        for step in told["steps"]:
            yield begin
            begin = b","
            async with aclosing(self._step(step)) as parts:
                async for part in parts:
                    yield part
        yield b"]}"

    async def _step(self, step: dict[str, Any]) -> AsyncGenerator[bytes, None]:
        """A step. Its result comes last, whatever its place was: it may be read only once it can be sent."""
        seq = self._view.apart.get(step["step_id"])
        if seq is None:
            yield encoded(step)
            return
        others = {name: value for name, value in step.items() if name != "result"}
        yield encoded(others)[:-1] + b',"result":'
        async with aclosing(self._value(None, seq, "result")) as parts:
            async for part in parts:
                yield part
        yield b"}"

    async def _value(self, value: Any, seq: int | None, name: str) -> AsyncGenerator[bytes, None]:
        """A value: this one, or the one of this name in the payload of an event, which is held until it was sent."""
        if seq is None:
            yield encoded(value)
            return
        async with self._places:
            content = encoded((await payload_at(self._store, self._run_id, seq)).get(name))
            for piece in pieces(content):
                yield piece


async def _together(parts: AsyncGenerator[bytes, None]) -> AsyncGenerator[bytes, None]:
    made: list[bytes] = []
    size = 0
    async with aclosing(parts):
        async for part in parts:
            made.append(part)
            size += len(part)
            if size >= PIECE:
                yield b"".join(made)
                made, size = [], 0
    yield b"".join(made)
