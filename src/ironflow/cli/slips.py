"""What somebody has meant who typed a command that does not exist: said with the error, as the command that does."""

from __future__ import annotations

import difflib
import re
from collections.abc import Sequence
from typing import Any

_NO_COMMAND = re.compile(r"No such command '([^']+)'")
_NO_SERVER = re.compile(r"No such option:? '?--(?:server|key-file)\b")


def hint(error: Any, words: Sequence[str], command: Any) -> str:
    """What to do about an error of the parser: the nearest command, or the help.

    Args:
        error: the error. Of an option without its value, the parser does not say whose it is.
        words: what was typed.
        command: the whole command.
    """
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else _path(words, command)
    meant = _meant(str(error.format_message()), path, context)
    return f"{meant}See `{path} --help`."


def _path(words: Sequence[str], command: Any) -> str:
    found = ["ironflow"]
    for word in words:
        command = getattr(command, "commands", {}).get(word)
        if command is None:
            break
        found.append(word)
    return " ".join(found)


def _meant(message: str, path: str, context: Any) -> str:
    if context is None:
        return ""
    if _NO_SERVER.match(message):
        if path == "ironflow run":
            return (
                "This command executes here, on a database; on a server, start a run with "
                "`ironflow runs create TARGET --server URL`. "
            )
        return "This command works on a database, which --db names. "
    found = _NO_COMMAND.search(message)
    if found is None or "Did you mean" in message:  # newer parsers name what is near on the same level
        return ""
    here = getattr(context.command, "commands", {})
    near = difflib.get_close_matches(found[1], here, 1)
    if near:
        return f"Did you mean `{path} {near[0]}`? "
    for name, group in here.items():  # in the order of the help: the runs first, which most commands are about
        near = difflib.get_close_matches(found[1], getattr(group, "commands", {}), 1)
        if near:
            return f"Did you mean `{path} {name} {near[0]}`? "
    return ""
