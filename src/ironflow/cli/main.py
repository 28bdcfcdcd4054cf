"""The entry of the command `ironflow`: fixes the hash seed, runs the command, turns every end into an exit code.

Workflow code that iterates over a set of strings takes another order in each process, unless all processes
hash alike. So a process that executes workflows starts itself once more with the seed fixed, before anything
of the engine has happened in it; one whose seed is fixed already (any number) is left alone.
"""

from __future__ import annotations

import os
import sys

_EXECUTES = frozenset({"run", "worker", "demo", "serve"})
#: How a shell tells of a process that SIGINT (2) has ended; `exits` explains it, and is not imported yet.
_STOPPED = 128 + 2


def main(argv: list[str] | None = None) -> int:
    """Run one command.

    Args:
        argv: the words after `ironflow`; None takes the process's own, and only then may it start itself
        anew.

    Returns:
        the exit code; `ironflow.cli.exits` lists them.
    """
    try:
        if argv is not None:
            return _command(argv, goes_on=True)
        open_missing()
        argv = sys.argv[1:]
        if _EXECUTES & set(argv[:1]):
            fix_hash_seed()
        return _command(argv, goes_on=False)
    except KeyboardInterrupt:  # what is imported first takes a moment
        return _STOPPED


def open_missing() -> None:
    """Put something in the place of a closed stdin, stdout or stderr: what is opened next would take its number, and
    be written to in its stead.

    A command whose stdout is closed fails as one whose stdout is full: it does its work, and says that it is unheard.
    """
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            # The lowest free number is this one. What is written to a file that is open for reading is refused.
            os.open(os.devnull, os.O_WRONLY if name == "stderr" else os.O_RDONLY)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def _command(argv: list[str], *, goes_on: bool) -> int:
    """Run it. `goes_on`: the process has more to do afterwards."""
    from ironflow.cli import exits, stdout

    try:
        code = _run(argv)
        stdout.flush()  # here, where it can still be told that it does not work
        return code
    except OSError as error:
        unprinted = exits.say_unprinted(error)
        if unprinted is None:
            raise
        return unprinted
    finally:
        if goes_on:
            stdout.give_back()


def fix_hash_seed() -> None:
    """Start this process again with PYTHONHASHSEED=0, unless a seed is set. Its id and its arguments stay."""
    if os.environ.get("PYTHONHASHSEED", "").isdigit() or os.name != "posix":
        return
    os.environ["PYTHONHASHSEED"] = "0"
    os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])


def _run(argv: list[str]) -> int:
    import typer

    from ironflow.cli import exits, slips
    from ironflow.cli.app import command

    as_json = "--json" in argv
    if os.environ.get("NO_COLOR") and (len(argv) < 2 or {"-h", "--help"} & set(argv)):
        _plain_help()
    try:
        code = command().main(argv, prog_name="ironflow", standalone_mode=False)
    except typer.Abort:
        return _STOPPED
    except Exception as error:
        if not hasattr(error, "format_message"):  # a usage error of the parser knows how to say itself
            raise
        message, hint = str(error.format_message()), slips.hint(error, argv, command())
        if not message and not as_json:  # a command without its words: the parser has printed the help
            return exits.USAGE
        if as_json:
            exits.say_json("USAGE", message, hint)
        else:
            exits.say_text("USAGE", message, hint)
        return exits.USAGE
    return code if isinstance(code, int) else exits.OK


def _plain_help() -> None:
    """Of NO_COLOR, what prints the help takes colours alone, and leaves bold and dim."""
    from typer import rich_utils

    rich_utils.COLOR_SYSTEM = None
