"""What a worker says of itself when it registers, checked: its session row, and the workflows it has.

The scope comes from the key alone. A key that is bound to workflows registers no others. What it declares is looked at
in pieces, between which the loop is others', and a schema that was declared before is not looked at again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable
from pathlib import PurePosixPath
from typing import Any, Final

from ironflow.codec import strange
from ironflow.engine.declared import checked
from ironflow.errors import Forbidden, InvalidInput, InvalidRequest
from ironflow.model.capacity import HTTP, SessionRow
from ironflow.model.ids import (
    LONGEST_DEFINITION,
    LONGEST_LABEL,
    LONGEST_VERSION,
    check_length,
    check_text,
    join_routes,
    join_tags,
    tags_of,
)
from ironflow.model.routing import MOST_ROUTES, Serves, texts
from ironflow.server.access import Caller
from ironflow.server.exchange import Exchange
from ironflow.server.turns import Turn
from ironflow.store.base import WorkflowSeen

#: Most slots of one worker.
MOST_SLOTS: Final = 100_000
#: Live sessions of one key, and characters of what they serve, together: every node reads them each second.
MOST_SESSIONS: Final = 5_000
MOST_SERVED: Final = 32 * 1_048_576
#: Schemas of which it is remembered what was found; beyond that all are forgotten, and looked at again.
_MOST_SCHEMAS: Final = 10_000
#: The folder of a user's locks; see `ironflow.worker.session.lock_folder`.
_OURS: Final = re.compile(r"ironflow-\d+", re.ASCII)


def session_row(ask: Exchange, now: int, ttl_ms: int, wake_address: str | None) -> SessionRow:
    """The row of the session that a request describes.

    Raises:
        InvalidInput, InvalidRequest: a field is missing or says what no worker can be.
        Forbidden: the key is bound to other workflows.
    """
    caller = ask.caller
    serves = Serves.from_object(caller.scope, ask.body.get("serves"))
    if caller.workflows is not None and not serves.workflows.keys() <= caller.workflows:
        other = min(serves.workflows.keys() - caller.workflows)
        raise Forbidden(f"this key is bound to other workflows than {other}")
    session_id = check_text(ask.text("session_id"), "session_id")
    worker_id = check_text(ask.text("worker_id"), "worker_id")
    slots = ask.count("slots", MOST_SLOTS)
    path, device, inode = _lock(ask.body.get("lock"), session_id)
    return SessionRow(
        session_id=session_id,
        worker_id=worker_id,
        host=_told(ask, "host") or "",
        boot_id=_told(ask, "boot_id") or "",
        pid=ask.count("pid", 1 << 31),
        process_id=_told(ask, "process_id") or session_id,
        routes=join_routes(serves.routes()),
        slots=slots,
        credits=slots,
        started_at=now,
        heartbeat_at=now,
        expires_at=now + ttl_ms,
        lock_path=path,
        lock_device=device,
        lock_inode=inode,
        wake_address=wake_address,
        org=caller.scope.org,
        environment=caller.scope.environment,
        kind=HTTP,
        serves=serves.to_json(),
        supervisor=_told(ask, "supervisor"),
        key_id=caller.key_id,
    )


def check_room(row: SessionRow, live: Iterable[SessionRow]) -> None:
    """Refuse a session with which its key would have more than it may.

    Args:
        row: the session.
        live: all that there are.

    Raises:
        InvalidInput: it says how many there are.
    """
    sizes = {one.session_id: len(one.serves or "") for one in live if one.key_id == row.key_id}
    more = len(row.serves or "") - sizes.pop(row.session_id, 0)
    served = sum(sizes.values()) + len(row.serves or "")
    if len(sizes) >= MOST_SESSIONS or (served > MOST_SERVED and more > 0):
        raise InvalidInput(
            f"this key has {len(sizes):,} other live sessions, and with this one they would serve {served:,} "
            f"characters of workflows; {MOST_SESSIONS:,} sessions and {MOST_SERVED:,} characters are the most",
            hint="Make keys for the other workers. A session of a worker that is gone counts until its time runs out.",
        )


def _told(ask: Exchange, name: str) -> str | None:
    """What a worker says of where it is: shown to people, on their terminals."""
    text = ask.optional(name)
    return None if text is None else check_text(text, name, LONGEST_LABEL, empty=True)


def _lock(found: object, session_id: str) -> tuple[str | None, int | None, int | None]:
    """Where the session's lock is. Only a path as workers make them: processes of that host open it, and remove it."""
    if found is None:
        return None, None, None
    if isinstance(found, dict):
        path, device, inode = found.get("path"), found.get("device"), found.get("inode")
        if isinstance(path, str) and len(path) <= 4_096 and _is_number(device) and _is_number(inode):
            *_, ours, folder, name = ("", "", *PurePosixPath(path).parts)
            named_so = (folder, name) == ("sessions", f"{session_id}.lock") and _OURS.fullmatch(ours)
            if not named_so or ".." in path or "\0" in path:
                raise InvalidRequest("lock.path is no path of a session's lock", hint="")
            return path, device, inode
    raise InvalidRequest("lock must be {path, device, inode} or null", hint="")


def _is_number(value: object) -> bool:
    return type(value) is int and -(1 << 63) <= value < 1 << 63  # not bool, and what a database can hold


class Declarations:
    """The workflows that workers declare, checked; it remembers by its hash what it found of a schema."""

    def __init__(self) -> None:
        self._found: dict[bytes, str | None] = {}

    async def seen(self, found: list[Any], caller: Caller, turn: Turn) -> list[WorkflowSeen]:
        """The workflows that a worker declares.

        Args:
            found: parsed JSON.
            caller: who declares them.
            turn: its organisation's, in which they are looked at.

        Raises:
            InvalidInput, InvalidRequest: one of them cannot be used; the message names it.
            Forbidden: the key is bound to others.
        """
        if len(found) > MOST_ROUTES:
            problem = f"workflows has {len(found):,} entries; {MOST_ROUTES:,} is the most of one worker"
            raise InvalidRequest(problem, hint="")
        seen = []
        for one in found:
            if not isinstance(one, dict):
                raise InvalidRequest("a workflow must be an object", hint="")
            definition = one.get("definition")
            schema = definition.get("input_schema") if isinstance(definition, dict) else None
            wrong = await self._problem(schema, turn) if isinstance(schema, dict) else None
            async with turn:
                seen.append(_seen(one, caller, wrong))
        return seen

    async def _problem(self, schema: dict[str, Any], turn: Turn) -> str | None:
        async with turn:
            digest = hashlib.sha256(json.dumps(schema, separators=(",", ":")).encode()).digest()
            pieces = strange.looking(schema)
        if digest in self._found:
            return self._found[digest]
        wrong, more = None, True
        while wrong is None and more:
            async with turn:
                try:
                    wrong = next(pieces)
                except StopIteration:
                    more = False
        if len(self._found) >= _MOST_SCHEMAS:
            self._found.clear()
        self._found[digest] = wrong
        return wrong


def _seen(one: dict[str, Any], caller: Caller, wrong: str | None) -> WorkflowSeen:
    """A workflow that a worker declares; `wrong`: what keeps its schema from being used."""
    name = check_text(one.get("name"), "the name of a workflow")
    if not {".", ".."}.isdisjoint(name.split("/")):
        hint = "Clients and proxies take `.` and `..` out of an address. Choose another name."
        raise InvalidInput(f"the name of a workflow has a part that is only dots: {name!r}", hint=hint)
    version, definition = one.get("version"), one.get("definition")
    version = check_text(version, "the version of a workflow", LONGEST_VERSION)
    if caller.workflows is not None and name not in caller.workflows:
        raise Forbidden(f"this key is bound to other workflows than {name}")
    tags = join_tags(tags_of(texts(one.get("worker_tags") or (), f"the tags of {name}")))
    told = None if definition is None else checked(name, definition, lambda _: wrong)
    text = None if told is None else json.dumps(told, separators=(",", ":"))
    check_length(text or "", f"the definition of {name}", LONGEST_DEFINITION)
    return WorkflowSeen(name, version, tags, text)
