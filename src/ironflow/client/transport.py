"""What every user of the HTTP library shares: its late import, the reading of answers, and the telling of breaks."""

from __future__ import annotations

import os
import ssl
from typing import Any
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from pydantic_core import from_json

from ironflow.errors import InvalidSettings, ServerError, ServerUnreachable
from ironflow.extras import not_installed

#: What a handshake fails with where the other side answers in plain text.
_NO_TLS = ("WRONG_VERSION_NUMBER", "HTTP_REQUEST", "UNKNOWN_PROTOCOL")
_OTHER_NAME = "Use a name for which the certificate was made in the server's address, or have it made for this one."
#: What to do about a certificate, by why it is refused (X509_V_ERR_… of OpenSSL); any other reason is about its issuer.
_CERTIFICATES = {
    9: "Correct this host's clock if it is slow; or else wait until the certificate counts.",
    10: "Let the server have a new certificate; or, if it has not expired, correct this host's clock.",
    62: _OTHER_NAME,
    64: _OTHER_NAME,
}
_ISSUER = "Put the certificate of its issuer into the file that SSL_CERT_FILE names, or correct the address."


def http_library() -> Any:
    """The module `aiohttp`.

    Raises:
        InvalidSettings: it is not installed.
    """
    try:
        import aiohttp
    except ModuleNotFoundError as error:
        if error.name != "aiohttp":
            raise
        raise not_installed("the HTTP client (aiohttp)", "client") from error
    return aiohttp


def proxy_of(server: str) -> str | None:
    """The proxy through which the environment wants this server to be asked; it may hold a user and a password.

    HTTP_PROXY, HTTPS_PROXY, ALL_PROXY and NO_PROXY are read here, once, and every connection goes the same way. The
    library itself would read them before each request, in another thread; and it would take a name and a password of
    ~/.netrc for the server in place of the key.

    Raises:
        InvalidSettings: the proxy is reached by something else than plain HTTP, which not every connection can do.
    """
    parts = urlsplit(server)
    named = getproxies()
    proxy = named.get(parts.scheme) or named.get("all")
    if proxy is None or proxy_bypass(parts.netloc):
        return None
    proxy = proxy if "//" in proxy else f"http://{proxy}"
    kind = proxy.partition("//")[0]
    if kind != "http:":
        told = f"the environment names a proxy for {server} that begins with {kind}//, and only http:// can be used"
        hint = f"change {parts.scheme.upper()}_PROXY or ALL_PROXY, or name the server in NO_PROXY"
        raise InvalidSettings([f"{told}: {hint}"])
    return proxy


def parsed(content: bytes) -> Any:
    """The JSON of an answer; None for an empty one, its text where it is no JSON."""
    if not content:
        return None
    try:
        return from_json(content)
    except ValueError:
        return content.decode("utf-8", "replace")


def stranger(server: str) -> ServerError:
    """The error of an answer that no server of Ironflow gives."""
    return ServerError(f"{server} answers, but not as an Ironflow server does")


def broken(server: str, error: Exception) -> ServerUnreachable:
    """The error of a connection that did not come about or broke.

    `details.unsent` says that nothing had been sent, `details.lasting` that another try meets the same.
    """
    cause = getattr(error, "os_error", error)
    if isinstance(cause, ssl.SSLError):
        return _insecure(server, cause)
    unsent = isinstance(error, (http_library().ClientConnectorError, ConnectionRefusedError))
    told = "no server answers at" if unsent else "the connection broke to"
    return ServerUnreachable(f"{told} {server}: {_reason(cause)}", details={"unsent": unsent, "lasting": False})


def _insecure(server: str, error: ssl.SSLError) -> ServerUnreachable:
    """The error of a handshake that failed. Its number counts errors of TLS, and is none of the system's."""
    reason = getattr(error, "reason", None)  # which an error that was not raised by OpenSSL itself lacks
    if isinstance(error, ssl.SSLCertVerificationError):
        told = f"the certificate of {server} is not trusted: {getattr(error, 'verify_message', reason)}"
        hint = _CERTIFICATES.get(getattr(error, "verify_code", 0), _ISSUER)
    elif reason in _NO_TLS:
        told = f"{server} does not speak TLS"
        hint = f"Use http://{server.partition('//')[2]}, or the port at which TLS is spoken."
    else:
        told = f"no secure connection to {server} came about: {reason or error}"
        hint = None
    return ServerUnreachable(told, hint=hint, details={"unsent": True, "lasting": hint is not None})


def _reason(cause: Exception) -> str:
    number = getattr(cause, "errno", None)
    if isinstance(number, int) and number > 0:
        return os.strerror(number)
    return getattr(cause, "strerror", None) or str(cause) or type(cause).__name__
