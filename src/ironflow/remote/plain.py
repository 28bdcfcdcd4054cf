"""A plain connection to a server, for a thread that shares nothing: direct, or through the proxy of the environment.

Promises to go the way that all other connections of this process go: `client.transport.proxy_of` says which. A server
with TLS is reached through a tunnel, so the proxy sees neither key nor values of it.
"""

from __future__ import annotations

import base64
import http.client
import ssl
from collections.abc import Mapping
from urllib.parse import SplitResult, unquote, urlsplit


class Plain:
    """See the module's docstring. Used in one thread; connects at the first request.

    Args:
        server: its address, without a slash at the end.
        proxy: the address of the proxy; None for none.
        patience_s: how long the other side may be silent, seconds.
    """

    def __init__(self, server: str, proxy: str | None, patience_s: float) -> None:
        at, via = urlsplit(server), urlsplit(proxy or server)
        host, port = via.hostname or "", via.port or (80 if proxy is not None else None)
        self._base = at.path
        self._headers: dict[str, str] = {}
        self._connection: http.client.HTTPConnection
        if at.scheme == "https":
            context = ssl.create_default_context()
            self._connection = http.client.HTTPSConnection(host, port, timeout=patience_s, context=context)
            if proxy is not None:
                self._connection.set_tunnel(at.hostname or "", at.port or 443, _credentials(via))
        else:
            self._connection = http.client.HTTPConnection(host, port, timeout=patience_s)
            if proxy is not None:
                self._base, self._headers = server, _credentials(via)

    def post(self, path: str, body: bytes, headers: Mapping[str, str]) -> tuple[int, bytes]:
        """Send a request; the status and the content of its answer.

        Raises:
            OSError, http.client.HTTPException: there was none. The connection is of no use any more.
        """
        self._connection.request("POST", f"{self._base}{path}", body, {**headers, **self._headers})
        # Closed whatever happens: an answer that breaks off would keep its socket until it is collected.
        with self._connection.getresponse() as response:
            return response.status, response.read()

    def close(self) -> None:
        """Close it."""
        self._connection.close()


def _credentials(proxy: SplitResult) -> dict[str, str]:
    """What the proxy is shown, if its address names somebody."""
    if proxy.username is None:
        return {}
    said = f"{unquote(proxy.username)}:{unquote(proxy.password or '')}"
    return {"Proxy-Authorization": f"Basic {base64.b64encode(said.encode()).decode()}"}
