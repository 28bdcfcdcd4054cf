"""`ironflow version`: which release this is, on which Python and SQLite."""

from __future__ import annotations

import platform

from ironflow.cli import output
from ironflow.cli.database import JsonOption


def version(json: JsonOption = False) -> None:
    """Print the version."""
    from ironflow import __version__

    if json:
        output.emit({"version": __version__, "python": platform.python_version()})
    else:
        print(f"ironflow {__version__} (Python {platform.python_version()})")
