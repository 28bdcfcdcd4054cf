"""The operations of the OpenAPI document, for tests that are to meet each of them."""

from __future__ import annotations

from typing import NamedTuple

from ironflow.server.api import PREFIX, routes
from ironflow.server.api.document import document


class Operation(NamedTuple):
    """One of them; its path is without the prefix of the API."""

    id: str
    method: str
    path: str
    #: what its answers are described as, by status
    responses: dict[str, str]
    #: the roles of which a key needs one
    roles: list[str]

    def __str__(self) -> str:
        return f"{self.method} {PREFIX}{self.path}"


def operations() -> list[Operation]:
    """All of them."""
    return [
        Operation(
            operation["operationId"],
            method.upper(),
            path.removeprefix(PREFIX),
            {status: one["description"] for status, one in operation["responses"].items()},
            [role for entry in operation["security"] for role in entry["key"]],
        )
        for path, methods in document(routes())["paths"].items()
        for method, operation in methods.items()
    ]
