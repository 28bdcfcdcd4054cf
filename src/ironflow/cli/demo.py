"""`ironflow demo`: a run that survives the death of its worker, on real files, in a minute."""

from __future__ import annotations

from typing import Annotated

import typer

from ironflow.cli.database import JsonOption

#: Not the option of the other commands: a demo leaves no trace in the database that one works with.
DbOption = Annotated[
    str | None,
    typer.Option(
        "--db",
        metavar="URL",
        help="The database: sqlite:///FILE or postgresql://…; without it a SQLite file that is gone afterwards.",
        show_default=False,
    ),
]


def demo(
    db: DbOption = None,
    postgres: Annotated[bool, typer.Option("--postgres", help="On a PostgreSQL that is started for it.")] = False,
    json: JsonOption = False,
) -> None:
    """See a worker killed in the middle of a step, and the run finished by another one."""
    from ironflow.cli import exits
    from ironflow.cli.stopping import like_ctrl_c
    from ironflow.demo import main
    from ironflow.errors import IronflowError

    try:
        with like_ctrl_c():
            code = main(db, postgres, json)
    except IronflowError as error:  # the address of no database, or of one that cannot be used
        code = exits.say(error, as_json=json)
    if code:
        raise typer.Exit(code)
