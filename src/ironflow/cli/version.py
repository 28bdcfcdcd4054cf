"""`ironflow version` and `ironflow --version`: which release this is, on which Python and SQLite."""

from __future__ import annotations

import platform
from typing import Annotated

import typer

from ironflow.cli import output
from ironflow.cli.database import JsonOption


def _print_and_leave(asked: bool) -> None:
    if asked:
        version(json=False)
        raise typer.Exit


def root(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_and_leave, is_eager=True, help="Print the version.", show_default=False
        ),
    ] = False,
) -> None:
    """Options of `ironflow` itself; each prints something and leaves."""


def version(json: JsonOption = False) -> None:
    """Print the version."""
    from ironflow import __version__

    if json:
        output.emit({"version": __version__, "python": platform.python_version()})
    else:
        print(f"ironflow {__version__} (Python {platform.python_version()})")
