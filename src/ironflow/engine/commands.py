"""What callers outside a run may ask of it: cancel, pause, resume, retry. Translation only; deciding is pure."""

from __future__ import annotations

import getpass
import os

from ironflow.errors import InvalidTransition
from ironflow.model import journal as j
from ironflow.model import operator
from ironflow.model.transition import Decide, Locked, Transition
from ironflow.store.base import Store


def local_user() -> str:
    """Who asks, where no key says it: the user of the operating system, as journals and the audit log name them."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return f"uid {os.getuid()}" if hasattr(os, "getuid") else "unknown"


async def command(store: Store, run_id: str, decide: Decide) -> Transition | None:
    """Lock one run, decide, apply; tell whoever executes it. Returns what was applied, None where nothing was.

    Raises:
        RunNotFound: no such run.
        InvalidTransition: as the decision says.
    """
    result = (await store.decide([run_id], decide))[run_id]
    if isinstance(result, Exception):
        raise result
    if result is not None:
        sessions = await store.sessions()
        store.notify(f"run:{run_id}", sessions)
        if result.enqueue is not None:
            store.notify("queue", sessions)
    return result


async def cancel(store: Store, run_id: str, actor: str, *, force: bool = False) -> bool:
    """End a run; see `model.operator.cancel`. Returns whether anything changed."""
    return await command(store, run_id, lambda locked: operator.cancel(locked, actor, force=force)) is not None


async def pause(store: Store, run_id: str, actor: str) -> bool:
    """Hold a run; see `model.operator.pause`. Returns whether anything changed."""
    return await command(store, run_id, lambda locked: operator.pause(locked, actor)) is not None


async def resume(store: Store, run_id: str, actor: str) -> bool:
    """Let a paused run go on; see `model.operator.resume`. Returns True: what is not paused is refused."""
    return await command(store, run_id, lambda locked: operator.resume(locked, actor)) is not None


async def retry(store: Store, run_id: str, actor: str, *, restart: bool = False) -> bool:
    """Reopen a failed or cancelled run; see `model.operator.reopen`. Returns True: what cannot be is refused."""
    # A run that has ended ends with the record of it. What an earlier epoch failed of may be finished by now.
    last = await store.last_event(run_id)
    told = last.told().get("failed_steps") if last is not None and last.kind == j.RUN_FAILED else None
    failed = [one for one in told if isinstance(one, str)] if isinstance(told, list) else []

    def decide(locked: Locked) -> Transition | None:
        if locked.row.ended and last is not None and locked.last_seq != last.seq:
            raise InvalidTransition(
                f"run {run_id} was changed while it was being looked at", hint="Look at it again and repeat"
            )
        return operator.reopen(locked, actor, failed, restart=restart)

    return await command(store, run_id, decide) is not None
