"""The help as a person reads it: typer's own, without the signs of its inside.

Owns what is put right on the made tree of commands: lines of paragraphs are joined, because those of the source fit no
terminal; the kind of a value is said where it has to be typed, in one word (`--worker-tag TAG`), and not where nothing
is typed (`<bool>` behind a switch) or where the name says it (`<list[str]>` behind `RUN...`); and nothing is cut,
however narrow the terminal.
"""

from __future__ import annotations

import shutil
from typing import Any, Final

#: Columns that frames and tables need to show all names of options and variables whole.
NARROWEST_FRAME: Final = 72


def readable(command: Any, parent: Any = None) -> Any:
    """Put a command and all below it right, in place; gives it back."""
    command.help = "\n\n".join(" ".join(part.split()) for part in (command.help or "").split("\n\n"))
    # Options of the context, as the names of `--help`, come from the one above.
    context = command.context_class(command, info_name=command.name, parent=parent, **command.context_settings)
    for parameter in command.get_params(context):  # with `--help`, which is made at the first call, and kept
        if parameter.param_type_name == "argument":
            _plain_argument(parameter)
        elif parameter.is_flag:
            parameter.metavar = ""
        elif parameter.metavar is None:
            parameter.metavar = _value(parameter)
    below = getattr(command, "commands", {})
    if not below:
        _fit(command)
    for one in below.values():
        readable(one, context)
    return command


def _value(option: Any) -> str:
    """What stands for the value of an option: N for a number, else the last word of its name, which says what it is.
    The whole name would make the column that all options share as wide as the longest.
    """
    return "N" if isinstance(getattr(option, "min", None), int) else str(option.name).rpartition("_")[2].upper()


def _fit(command: Any) -> None:
    """Where the terminal is narrow, print the help as lines: in a frame, what does not fit into a column is cut."""
    framed, print_help = command.rich_markup_mode, command.format_help

    def format_help(context: Any, formatter: Any) -> None:
        command.rich_markup_mode = framed if shutil.get_terminal_size().columns >= NARROWEST_FRAME else None
        print_help(context, formatter)

    command.format_help = format_help


def _plain_argument(argument: Any) -> None:
    """An argument's metavar says all of it, brackets and dots included. A typer that adds its own is kept from it; one
    that does not has not these methods either, and is left alone.
    """
    name = argument.metavar or argument.name.upper()
    if hasattr(argument, "_usage_display_name"):
        argument._usage_display_name = lambda: name
    if hasattr(argument, "display_type_rich"):
        argument.display_type_rich = lambda ctx: ""
