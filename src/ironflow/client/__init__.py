"""Runs on a server, from any program: `async with ironflow.client.Client(url) as client`. See
:mod:`ironflow.client.client`.

What workers share with clients (errors, addresses) lies beside it, so the client itself is imported when it is first
asked for.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ironflow.client.client import Client

__all__ = ["Client"]

if not TYPE_CHECKING:  # a checker that saw it would take any misspelt name for one of ours

    def __getattr__(name: str) -> Any:
        """Import the client when it is first used."""
        if name != "Client":
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        from ironflow.client.client import Client

        globals()[name] = Client
        return Client
