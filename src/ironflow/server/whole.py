"""A run whole, sent in pieces: its row, its values, its steps with their results.

Promises that an answer of any length costs the memory of one value: what is large is read when its place in the answer
has come, and only once what stands before it was sent.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, Final

from starlette.responses import Response, StreamingResponse

from ironflow.engine.reading import payload_at
from ironflow.model.fold import Folded
from ironflow.server.bodies import Json, encoded
from ironflow.store.base import Store

#: Bytes that are sent together: less would cost more to send than to make.
_CHUNK: Final = 1 << 16


def answer(store: Store, run_id: str, told: dict[str, Any], view: Folded) -> Response:
    """The answer that shows a run.

    Args:
        store: where its large values are.
        run_id: the run.
        told: what is shown, without large values.
        view: the outline it was made of.
    """
    if not view.apart and view.input_at is None and view.output_at is None:
        return Json(told)
    pieces = _together(_pieces(store, run_id, told, view))
    return StreamingResponse(pieces, media_type=Json.media_type, headers={"Cache-Control": "no-store"})


async def _pieces(store: Store, run_id: str, told: dict[str, Any], view: Folded) -> AsyncIterator[bytes]:
    apart = {"input": view.input_at, "output": view.output_at}
    begin = b"{"
    for name, value in told.items():
        if name == "steps":
            continue
        if (seq := apart.get(name)) is not None:
            value = (await payload_at(store, run_id, seq)).get(name)
        yield b"%b%b:%b" % (begin, encoded(name), encoded(value))
        begin = b","
    yield b',"steps":['
    begin = b""
    for step in told["steps"]:
        if (seq := view.apart.get(step["step_id"])) is not None:
            step = {**step, "result": (await payload_at(store, run_id, seq)).get("result")}
        yield begin + encoded(step)
        begin = b","
    yield b"]}"


async def _together(pieces: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    made: list[bytes] = []
    size = 0
    async for piece in pieces:
        made.append(piece)
        size += len(piece)
        if size >= _CHUNK:
            yield b"".join(made)
            made, size = [], 0
    yield b"".join(made)
