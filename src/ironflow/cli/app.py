"""The tree of commands: one module per noun, wired here and nowhere else.

Owns the names that a person types. Promises that a command means the same wherever it stands: `ironflow why RUN`, the
question asked most often and at the worst times, is `ironflow runs why RUN` under a shorter name.
"""

from __future__ import annotations

import functools
from typing import Any

import typer

from ironflow.cli import (
    apikey,
    audit,
    capacity,
    create,
    delete,
    demo,
    doctor,
    exits,
    helping,
    run,
    runs,
    serve,
    steer,
    version,
    worker,
    workflows,
)

_EPILOG = "\n".join(["Exit codes:", *(f"{code:>4}  {meaning}" for code, meaning in exits.MEANINGS.items())])


@functools.cache
def command() -> Any:
    """The whole command, ready to be called with words. Made once: typer changes what it is made of."""
    app = typer.Typer(
        name="ironflow",
        no_args_is_help=True,
        help="Durable workflows in plain Python: kill any process at any moment, and nothing is lost.",
        epilog=_EPILOG,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_enable=False,
    )
    app.callback()(version.root)
    app.command()(run.run)
    app.command()(worker.worker)
    app.command()(serve.serve)
    app.command()(runs.why)
    app.command()(demo.demo)
    for verb in (create.create, steer.cancel, steer.pause, steer.resume, steer.retry, delete.delete):
        runs.app.command()(verb)
    app.add_typer(runs.app, name="runs")
    app.add_typer(workflows.app, name="workflows")
    app.add_typer(capacity.app, name="capacity")
    app.command()(audit.audit)
    app.add_typer(apikey.app, name="apikey")
    app.command()(doctor.doctor)
    app.command()(version.version)
    return helping.readable(typer.main.get_command(app))
