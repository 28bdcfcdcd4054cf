"""The address of a server and the key that opens it: which forms there are, and where they come from.

Promises that a key is never part of an address, of an argument that `ps` shows, or of a message.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Final

from ironflow.errors import InvalidSettings, Unauthenticated

#: The environment variables a program is told its server and its key by.
SERVER_VARIABLE: Final = "IRONFLOW_SERVER"
KEY_VARIABLE: Final = "IRONFLOW_API_KEY"

_FORM: Final = "use http://host:9123 or https://host"
_URL: Final = re.compile(r"https?://(?:\[[0-9A-Fa-f:.%]+\]|[^:/?#@\[\]\s]+)(?::(?P<port>\d{1,5}))?(?:/[^?#@\s]*)?")
#: What the paths of the API begin with: clients put it behind the address themselves.
_API: Final = re.compile(r"(?:/api)?/v1(?:/worker)?$")
#: What a key may consist of, and how long it may be: enough to tell it from a file that holds something else.
_SHORTEST, _LONGEST = 8, 512
_KEY: Final = re.compile(rf"[!-~]{{{_SHORTEST},{_LONGEST}}}")


def server_url(text: str | None = None) -> str:
    """The address of a server without a slash at its end; None takes it from IRONFLOW_SERVER.

    Raises:
        InvalidSettings: there is none, or it has another form; what may be a password is not repeated.
    """
    if text is None:
        text = os.environ.get(SERVER_VARIABLE, "").strip()
        if not text:
            raise InvalidSettings([f"no server is named: give its address, or set {SERVER_VARIABLE}; {_FORM}"])
    if "@" in text:
        raise InvalidSettings([f"the address of a server holds no name or password: put the key into {KEY_VARIABLE}"])
    found = _URL.fullmatch(text)
    if found is None:
        raise InvalidSettings([f"{text!r} is not the address of a server: {_FORM}"])
    if found["port"] is not None and not 1 <= int(found["port"]) <= 65_535:
        raise InvalidSettings([f"{text!r} is not the address of a server: there is no port {found['port']}; {_FORM}"])
    text = text.rstrip("/")
    prefix = _API.search(text)
    if prefix is not None:
        short = text.removesuffix(prefix[0])
        raise InvalidSettings([f"the address of a server is given without {prefix[0]}: use {short}"])
    return text


def api_key(file: str | os.PathLike[str] | None = None) -> str | None:
    """The key for a server: what the file holds, else what IRONFLOW_API_KEY says, else None.

    Raises:
        InvalidSettings: the file cannot be read.
        Unauthenticated: what was found cannot be a key; it is not repeated.
    """
    if file is not None:
        try:
            text = Path(file).read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "it is no text"
            raise InvalidSettings([f"the key file {os.fspath(file)} cannot be read: {reason}"]) from None
        return checked_key(text, f"the key file {os.fspath(file)}")
    text = os.environ.get(KEY_VARIABLE, "").strip()
    return checked_key(text, KEY_VARIABLE) if text else None


def checked_key(text: str, origin: str) -> str:
    """Refuse what no header could carry; `origin` says where it came from, since it is not shown itself."""
    if _KEY.fullmatch(text) is None:
        raise Unauthenticated(
            f"{origin} holds no key: {_what_is_wrong(text)}",
            hint="`ironflow apikey create NAME` prints one: `ifkey_…`, with --worker `ifworker_…`.",
        )
    return text


def _what_is_wrong(text: str) -> str:
    if not text:
        return "nothing is in it"
    if not all("!" <= sign <= "~" for sign in text):
        return "a key is one word of plain ASCII"
    return f"{len(text)} characters are too {'few' if len(text) < _SHORTEST else 'many'} for one"
