"""Errors over HTTP: RFC 9457 problem details with the same stable code as everywhere else.

An error of ours says its status, code, message and what to do. Anything else is a defect: it is logged whole, and the
caller learns nothing of its inside.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus
from typing import Any, Final

from ironflow.errors import IronflowError

log = logging.getLogger("ironflow.server")

MEDIA_TYPE: Final = "application/problem+json"
INTERNAL: Final = "INTERNAL_ERROR"

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


def of_error(error: BaseException) -> Problem:
    """The problem that an error is to a caller. What is none of our errors is logged."""
    if isinstance(error, IronflowError):
        return problem(error.status, error.code, error.message, hint=error.hint, details=error.details)
    log.error("a request failed", exc_info=error)
    return problem(500, INTERNAL, "the server failed to answer this request", hint="Its log says why.")
