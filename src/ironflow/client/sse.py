"""Server-sent events, read from the bytes of a stream as they come.

Owns the form of the stream (the HTML standard, section 9.2), and no connection. Promises that an event is given once
it is whole, however the network cut its bytes, and that one whose end has not arrived is never given.
"""

from __future__ import annotations

from typing import NamedTuple


class Message(NamedTuple):
    """One event of a stream. `id` is the last one the stream has named, "" while it has named none."""

    id: str
    event: str
    data: str


class Reader:
    """Takes chunks, gives the events that are whole with them."""

    __slots__ = ("_buffer", "_data", "_event", "_id")

    def __init__(self) -> None:
        self._buffer = b""
        self._id = ""
        self._event = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[Message]:
        """Take in what has arrived."""
        *lines, self._buffer = (self._buffer + chunk).split(b"\n")
        found: list[Message] = []
        for line in lines:
            text = line.removesuffix(b"\r").decode("utf-8", "replace")
            if text:
                self._take(text)
            elif self._data:
                found.append(Message(self._id, self._event or "message", "\n".join(self._data)))
                self._event, self._data = "", []
            else:
                self._event = ""
        return found

    def _take(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "data":
            self._data.append(value)
        elif name == "event":
            self._event = value
        elif name == "id" and "\0" not in value:
            self._id = value
