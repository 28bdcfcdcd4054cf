"""`ironflow apikey create|list|revoke`: keys of the HTTP API, made on the host that owns the database.

That host needs no key to make the first one. Everything after it can be done over HTTP, by an admin of an organisation
or with a platform key.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from ironflow.cli import inputs, output, times
from ironflow.cli.database import DbOption, JsonOption, on_store
from ironflow.cli.listing import Listing
from ironflow.engine import views
from ironflow.engine.commands import local_user
from ironflow.errors import InvalidInput, KeyNotFound
from ironflow.model import key as kinds
from ironflow.model.key import KeyRow
from ironflow.model.scope import DEFAULT, Scope
from ironflow.server import keys
from ironflow.store.base import Store

if TYPE_CHECKING:
    from rich.console import Console

app = typer.Typer(no_args_is_help=True, help="Keys of the HTTP API: make, list and revoke them.")

NameArgument = Annotated[str, typer.Argument(metavar="NAME", help="What people call it.", show_default=False)]
RoleOption = Annotated[
    str | None,
    typer.Option(help=f"Of an organisation's key: {', '.join(kinds.ROLES)}.", show_default=False),
]
WorkerOption = Annotated[bool, typer.Option("--worker", help="A key for workers, and for nothing else.")]
PlatformOption = Annotated[bool, typer.Option("--platform", help="A key for who runs the platform.")]
WorkflowOption = Annotated[
    list[str] | None, typer.Option(help="With --worker: bound to this workflow; repeatable.", show_default=False)
]
ExpiresOption = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="When it ends by itself: ISO 8601 with a zone, or +90d.", show_default=False),
]


@app.command()
def create(
    name: NameArgument,
    role: RoleOption = None,
    worker: WorkerOption = False,
    platform: PlatformOption = False,
    org: Annotated[str, typer.Option(help="Whose it is.")] = DEFAULT.org,
    environment: Annotated[str, typer.Option(help="Of which environment.")] = DEFAULT.environment,
    workflow: WorkflowOption = None,
    expires: ExpiresOption = None,
    db: DbOption = None,
    json: JsonOption = False,
) -> None:
    """Make a key and print it. It is shown this once; the database keeps only its hash."""

    async def command(store: Store) -> None:
        at = inputs.moment(expires, "--expires")
        row, secret = await keys.make(
            store,
            _kind(worker=worker, platform=platform),
            name,
            by=local_user(),
            scope=Scope(org, environment),
            role=role,
            workflows=workflow or None,
            expires_at=round(at.timestamp() * 1000) if at is not None else None,
        )
        if json:
            output.emit({**views.plain(row), "key": secret})
            return
        print(secret)
        said = output.screen(stderr=True)
        safe = f"{row.key_id} on {store.name}: keep it safe, it cannot be shown again"
        said.print(safe, style="dim", soft_wrap=True)

    # The first key is made before the first server starts, which would make the database.
    on_store(db, command, as_json=json, write=True, make=True)


def _kind(*, worker: bool, platform: bool) -> str:
    if worker and platform:
        raise InvalidInput("a key is a worker's or the platform's", hint="Give --worker or --platform.")
    return kinds.WORKER if worker else kinds.PLATFORM if platform else kinds.ORG


@app.command("list")
def list_(
    org: Annotated[str | None, typer.Option(help="Only keys of this organisation.", show_default=False)] = None,
    db: DbOption = None,
    json: JsonOption = False,
) -> None:
    """List the keys, oldest first; revoked and expired ones, too."""

    async def command(store: Store) -> None:
        def draw(screen: Console, rows: list[KeyRow]) -> None:
            now = store.now()
            made = Listing("KEY", "NAME", "KIND", "SCOPE", "USED", "STATE", shrink=("NAME", "SCOPE"))
            for row in rows:
                kind = row.role or row.kind
                scope = "" if row.scope in (DEFAULT, keys.EVERYWHERE) else f"{row.org}/{row.environment}"
                made.add_row(row.key_id, row.name, kind, scope, times.ago(row.last_used_at, now), _state(row, now))
            made.print(screen)

        output.show(await store.keys(org), as_json=json, empty="no key was made yet", draw=draw)

    on_store(db, command, as_json=json)


def _state(row: KeyRow, now: int) -> str:
    if row.revoked_at is not None:
        return f"revoked {times.ago(row.revoked_at, now)}"
    if row.expires_at is not None:
        return f"{'expired' if row.expires_at <= now else 'expires'} {times.ago(row.expires_at, now)}"
    return "valid"


@app.command()
def revoke(
    key: Annotated[str, typer.Argument(metavar="KEY", help="Its id, `key_…`.", show_default=False)],
    db: DbOption = None,
    json: JsonOption = False,
) -> None:
    """Take a key back; servers that know it refuse it within a second."""

    async def command(store: Store) -> None:
        if key not in {row.key_id for row in await store.keys(None)}:
            raise KeyNotFound(f"no API key has the id {key!r}")
        changed = await store.revoke_key(key, local_user())
        if json:
            output.emit({"key_id": key, "changed": changed})
        else:
            output.screen().print(f"{key} {'is' if changed else 'was already'} revoked")

    on_store(db, command, as_json=json, write=True)
