"""Metrics on an address of their own: a plain HTTP server in a thread, for workers and for separate scrape networks.

In a thread, because a step that blocks the worker's loop is one of the things the figures are to show. It answers
`GET /metrics` and nothing else, asks for no key, and is there only where somebody gave an address.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import socket
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from ironflow.errors import InvalidSettings
from ironflow.observe.backlog import PATIENCE_S, Backlog
from ironflow.observe.metrics import Metrics

_ADDRESS = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.]+)\]|(?P<host>[^\[\]:]*)):(?P<port>\d{1,5})", re.ASCII)
#: A scraper that connects and says nothing is dropped, seconds.
SILENCE_S = 10.0
#: How often the server looks whether it is to stop, seconds.
LOOK_S = 0.1


def address_of(text: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT`; `[::1]:9464` for IPv6, and `:9464` for the loopback address.

    Raises:
        InvalidSettings: it is no such text.
    """
    found = _ADDRESS.fullmatch(text.strip())
    if found is None or int(found["port"]) > 65_535:
        raise InvalidSettings([f"metrics_address: {text!r} is not HOST:PORT; write for example 127.0.0.1:9464"])
    return found["six"] or found["host"] or "127.0.0.1", int(found["port"])


class Listener:
    """Serves metrics until `close`. Made on the loop that the backlog belongs to.

    Raises:
        InvalidSettings: the address cannot be listened on.
    """

    def __init__(self, address: tuple[str, int], metrics: Metrics, backlog: Backlog | None = None) -> None:
        self._metrics = metrics
        self._backlog = backlog
        self._loop = asyncio.get_running_loop()
        kind = type("_Handler", (_Handler,), {"listener": self})
        try:
            family, _, _, _, place = socket.getaddrinfo(*address, type=socket.SOCK_STREAM)[0]
            self._server = type("_Server", (_Server,), {"address_family": family})(place, kind)
        except OSError as error:
            raise InvalidSettings(
                [f"metrics_address: {address[0]}:{address[1]} cannot be listened on: {error.strerror or error}"]
            ) from error
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(LOOK_S,), name="ironflow-metrics", daemon=True
        )
        self._thread.start()

    @property
    def port(self) -> int:
        """Where it listens; what was asked for, unless that was 0."""
        return int(self._server.server_address[1])

    def close(self) -> None:
        """Stop listening. A scrape under way is answered or not; nobody waits for it."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(1.0)

    def text(self, accept: str) -> tuple[bytes, str]:
        """What to answer; in a thread of the server's."""
        if self._backlog is not None:
            # A loop that is blocked, or has ended, costs the gauges their freshness and nothing else.
            looking = self._backlog.refresh()
            try:
                future = asyncio.run_coroutine_threadsafe(looking, self._loop)
            except RuntimeError:
                looking.close()
            else:
                with contextlib.suppress(Exception):
                    future.result(2 * PATIENCE_S)
        return self._metrics.text(accept)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False


class _Handler(BaseHTTPRequestHandler):
    listener: Listener
    timeout = SILENCE_S

    def do_GET(self) -> None:
        if self.path.partition("?")[0] != "/metrics":
            self.send_error(404, explain="only /metrics is served here")
            return
        body, kind = self.listener.text(self.headers.get("Accept", ""))
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def do_HEAD(self) -> None:
        self.do_GET()

    def log_message(self, format: str, *args: object) -> None:
        """A line for every scrape would be most of a quiet worker's log."""
