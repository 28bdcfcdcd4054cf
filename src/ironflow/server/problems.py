"""Errors over HTTP: RFC 9457 problem details with the same stable code as everywhere else.

An error of ours says its status, code, message and what to do. What a database said is for the operator: where it is,
and which statement it refused, stand in this node's log, and the caller, who may have shown no valid key, is told what
kind of trouble it is and whether to try again. Anything else is a defect: it is logged whole, and the caller learns
nothing of its inside.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from ironflow.engine.hints import over_http
from ironflow.errors import IronflowError, StoreCorrupt, StoreError, StoreFull, StoreReadOnly, StoreUnreachable

log = logging.getLogger("ironflow.server")

MEDIA_TYPE: Final = "application/problem+json"
INTERNAL: Final = "INTERNAL_ERROR"

#: What a caller is told of a database, by class of error; of the classes that fit, the first counts.
_STORES: Final[dict[type[StoreError], tuple[str, str]]] = {
    StoreUnreachable: ("the server cannot reach its database", "Try again in a moment; the server's log says more."),
    StoreReadOnly: ("the server's database takes no writes", "Tell its operator; the server's log says more."),
    StoreFull: ("the server's database has no space left", "Tell its operator, and try again later."),
    StoreCorrupt: ("the server cannot read what is stored", "Tell its operator; the server's log says more."),
    StoreError: ("the server's database did not do this", "Try again; if it stays so, the server's log says why."),
}

#: How often the log repeats what a database said, seconds: every request meets it while it lasts.
_REPEATED_S: Final = 10.0
_logged: dict[str, float] = {}

Problem = dict[str, Any]


def problem(
    status: int, code: str, detail: str, *, hint: str | None = None, details: Mapping[str, Any] | None = None
) -> Problem:
    """The body of an answer that is an error.

    Args:
        status: of the answer.
        code: stable, UPPER_SNAKE.
        detail: what happened.
        hint: what to do about it.
        details: machine-readable facts.
    """
    return {
        "type": f"urn:ironflow:error:{code.lower().replace('_', '-')}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "code": code,
        "detail": detail,
        "hint": hint,
        "details": dict(details or {}),
    }


def headers(problem: Problem) -> dict[str, str]:
    """What the answer says of a problem in its headers, for who reads no bodies."""
    found = {"WWW-Authenticate": "Bearer"} if problem["status"] == 401 else {}
    wait_ms = problem["details"].get("retry_after_ms")
    if isinstance(wait_ms, int):
        found["Retry-After"] = str(-(-wait_ms // 1000))
    return found


def of_error(error: BaseException) -> Problem:
    """The problem that an error is to a caller. What a database said, and what is none of our errors, is logged."""
    if isinstance(error, StoreError):
        detail, what_to_do = _told(error)
        return problem(error.status, error.code, detail, hint=what_to_do)
    if isinstance(error, IronflowError):
        hint = over_http(error.hint) if error.hint else None
        return problem(error.status, error.code, error.message, hint=hint, details=error.details)
    log.error("a request failed", exc_info=error)
    return problem(500, INTERNAL, "the server failed to answer this request", hint="Its log says why.")


def message_of(error: IronflowError) -> str:
    """What a caller is told of an error in the midst of an answer that is none."""
    return _told(error)[0] if isinstance(error, StoreError) else error.message


def _told(error: StoreError) -> tuple[str, str]:
    """What a caller is told of a database's error, and what to do. The rest goes into the log."""
    _log_seldom(error)
    return next(told for kind, told in _STORES.items() if isinstance(error, kind))


def _log_seldom(error: StoreError) -> None:
    now = time.monotonic()
    if now - _logged.get(error.message, float("-inf")) < _REPEATED_S:
        return
    if len(_logged) >= 100:
        _logged.clear()
    _logged[error.message] = now
    log.warning("the database failed a request: %s", error)
