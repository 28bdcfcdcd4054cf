"""What to do, for callers of the HTTP API: beside each command that advice names, the endpoint that does the same.

One table, in the words of the command line, so that no error has to know who will read it. The server puts the
endpoints in, for the authors of programs; the client takes them out again, so that advice reads the same beside a
database and beside a server.
"""

from __future__ import annotations

import re
from typing import Final

_RUN: Final = "/api/v1/runs/{run_id}"

#: What a command asks for over HTTP; None: it is one of the server's host, and has no endpoint. Of several entries that
#: fit, the longest counts.
ENDPOINTS: Final[dict[str, str | None]] = {
    "runs list": "GET /api/v1/runs",
    "runs get": f"GET {_RUN}",
    "runs journal": f"GET {_RUN}/journal",
    "runs watch": f"GET {_RUN}/events",
    "runs why": f"GET {_RUN}/why",
    "why": f"GET {_RUN}/why",
    "runs create": "POST /api/v1/runs",
    "runs cancel": f"POST {_RUN}/cancel",
    "runs pause": f"POST {_RUN}/pause",
    "runs resume": f"POST {_RUN}/resume",
    "runs retry": f"POST {_RUN}/retry",
    "runs retry --restart": f'POST {_RUN}/retry with {{"restart": true}}',
    "workflows list": "GET /api/v1/workflows",
    "workflows pause": "POST /api/v1/workflows/{name}/pause",
    "workflows resume": "POST /api/v1/workflows/{name}/resume",
    "capacity leases": "GET /api/v1/capacity/leases",
    "capacity sessions": "GET /api/v1/capacity/sessions",
    "capacity queue": "GET /api/v1/capacity/queue",
    "capacity lanes": "GET /api/v1/capacity/lanes",
    "capacity stats": "GET /api/v1/capacity/stats",
    "audit": "GET /api/v1/audit",
    "apikey create": "POST /api/v1/api-keys",
    "apikey create --platform": None,  # over HTTP one needs to have one already
    "apikey list": "GET /api/v1/api-keys",
    "apikey revoke": "DELETE /api/v1/api-keys/{key_id}",
    "run": None,
    "worker": None,
    "serve": None,
    "doctor": None,
}

_COMMAND: Final = re.compile(r"`ironflow ([^`]+)`")
_ENDPOINT: Final = re.compile(r" \(`[A-Z]+ /api/v1[^`]*`\)")


def endpoint_of(command: str) -> str | None:
    """What a command asks for over HTTP, from its words behind `ironflow`; None where it asks for nothing.

    Raises:
        KeyError: the table has no such command.
    """
    words = command.split()
    for count in range(len(words), 0, -1):
        found = " ".join(words[:count])
        if found in ENDPOINTS:
            return ENDPOINTS[found]
    raise KeyError(command)


def over_http(text: str) -> str:
    """A text for people, with the endpoint beside each command that has one."""
    return _COMMAND.sub(_beside, text)


def at_a_terminal(text: str) -> str:
    """The text without the endpoints that are put beside something."""
    return _ENDPOINT.sub("", text)


def _beside(found: re.Match[str]) -> str:
    try:
        endpoint = endpoint_of(found[1])
    except KeyError:  # an error of a newer part than this table: the command alone is better than no answer
        return found[0]
    return found[0] if endpoint is None else f"{found[0]} (`{endpoint}`)"
