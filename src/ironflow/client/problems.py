"""From the answer of a server that refused to the error it stands for.

Owns the way back of what the server's problem details tell. Promises that an error raised on the server is raised here
as the same class with the same message, advice and facts, so that `except IdempotencyKeyConflict` means the same beside
a database and beside a server; and that an answer of anything else (a proxy, another program on that port) is told as
what it is.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from ironflow.engine.hints import at_a_terminal
from ironflow.errors import (
    InvalidSettings,
    IronflowError,
    PayloadRejected,
    PayloadTooLarge,
    ReplayDivergence,
    RunError,
    ServerError,
)

#: What a class keeps in attributes of its own, each under the name that it has in the details.
_FACTS: dict[type[IronflowError], tuple[str, ...]] = {
    InvalidSettings: ("problems",),
    PayloadRejected: ("path", "reason"),
    PayloadTooLarge: ("what", "size", "limit"),
    ReplayDivergence: ("step_id", "expected", "recorded", "where"),
    RunError: ("run_id",),
}
#: How much of an answer that is no problem document is repeated.
_SHOWN = 200


@functools.cache
def classes() -> dict[str, type[IronflowError]]:
    """The classes of the error tree by code."""
    return {cls.code: cls for cls in _tree(IronflowError) if cls.__module__ == IronflowError.__module__}


def _tree(cls: type[IronflowError]) -> Iterator[type[IronflowError]]:
    yield cls
    for child in cls.__subclasses__():
        yield from _tree(child)


def error_of(status: int, body: Any, server: str) -> IronflowError:
    """The error that a refusal stands for; its `status` is that of the answer.

    Args:
        status: of the answer.
        body: what it holds: a problem document, or the text of anything else.
        server: the address that was asked.
    """
    error = _told(body) or _untold(status, body, server)
    if error.status != status:  # a proxy has codes of its own
        error.status = status  # type: ignore[misc]
    return error


def _told(body: Any) -> IronflowError | None:
    if not isinstance(body, Mapping) or not isinstance(body.get("code"), str):
        return None
    hint, details = body.get("hint"), body.get("details")
    return made(
        body["code"],
        str(body.get("detail") or body.get("title") or ""),
        at_a_terminal(hint) if isinstance(hint, str) else "",
        details if isinstance(details, Mapping) else {},
    )


def _untold(status: int, body: Any, server: str) -> IronflowError:
    said = " ".join(str(body).split())[:_SHOWN] if isinstance(body, str) else ""
    return ServerError(
        f"{server} answered {status} in a way that is not Ironflow's{f': {said}' if said else ''}",
        details={"status": status},
    )


def made(code: str, message: str, hint: str | None, details: Mapping[str, Any]) -> IronflowError:
    """An error of a code, as it was raised elsewhere.

    Its class's own constructor is left out: it makes the message from its arguments, and the message is here already.
    A code of a newer server that this release does not know is a :class:`ServerError` that says the same.
    """
    cls = classes().get(code)
    if cls is None:
        return ServerError(message or code, hint=hint, details={**details, "code": code})
    error = cls.__new__(cls)
    IronflowError.__init__(error, message or None, hint=hint, details=details)
    for kind, names in _FACTS.items():
        if isinstance(error, kind):
            for name in names:
                value = details.get(name)
                setattr(error, name, tuple(value) if isinstance(value, list) else value)  # JSON has no tuples
    return error
