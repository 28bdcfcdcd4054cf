"""`ironflow runs create`: put a run into the queue and return; a worker takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ironflow.cli import inputs, output
from ironflow.cli.database import DbOption, JsonOption, answer, settings_for
from ironflow.cli.inputs import InputOption
from ironflow.errors import InvalidInput, WorkflowUnknown
from ironflow.model.ids import split_tags
from ironflow.model.transition import EXISTS
from ironflow.store import connect
from ironflow.store.base import Store

if TYPE_CHECKING:
    from ironflow.engine.commands import Start
    from ironflow.engine.definitions import WorkflowSpec


TargetArgument = Annotated[
    str,
    typer.Argument(
        metavar="TARGET|NAME", help="path/file.py[:name], pkg.mod[:name], or a workflow's name.", show_default=False
    ),
]
IdOption = Annotated[str | None, typer.Option("--id", help="The run's id.", show_default=False)]
IdempotencyOption = Annotated[
    str | None, typer.Option(help="The same key and input give the same run.", show_default=False)
]
ConcurrencyOption = Annotated[
    str | None, typer.Option(help="Refused while a live run holds this key.", show_default=False)
]
PriorityOption = Annotated[int | None, typer.Option(help="-100 to 100, higher first.", show_default=False)]
TagOption = Annotated[
    list[str] | None, typer.Option(help="A tag the worker must carry; repeatable.", show_default=False)
]
LabelOption = Annotated[
    list[str] | None, typer.Option(metavar="KEY=VALUE", help="A label; repeatable.", show_default=False)
]
LimitOption = Annotated[
    list[str] | None,
    typer.Option(metavar="GROUP=N", help="At most N runs of GROUP execute at once; repeatable.", show_default=False),
]
AtOption = Annotated[
    str | None, typer.Option(metavar="TIME", help="Not before: ISO 8601 with a zone, or +10m.", show_default=False)
]


def create(
    target: TargetArgument,
    input: InputOption = None,
    id: IdOption = None,
    idempotency_key: IdempotencyOption = None,
    concurrency_key: ConcurrencyOption = None,
    priority: PriorityOption = None,
    worker_tag: TagOption = None,
    label: LabelOption = None,
    limit: LimitOption = None,
    at: AtOption = None,
    db: DbOption = None,
    json: JsonOption = False,
) -> None:
    """Create a run and print its id. It is durable when this returns, and executes when a worker takes it.

    With a workflow's NAME instead of its code the input is checked by the worker only, and what the code
    says of lanes, priority and time limits does not apply.
    """

    async def command() -> int | None:
        from ironflow.engine.commands import Start

        given = inputs.read_input(input)
        options = Start(
            id=id,
            idempotency_key=idempotency_key,
            concurrency_key=concurrency_key,
            priority=priority,
            labels=inputs.pairs(label, "label"),
            worker_tags=worker_tag or (),
            limits={name: _count(name, text) for name, text in inputs.pairs(limit, "limit").items()},
            at=inputs.moment(at),
        )
        settings = settings_for(db)
        spec = _loaded(target) if _is_code(target) else None
        store = await connect(settings.database_url, settings=settings)
        try:
            spec = spec or await _by_name(store, target)
            value = inputs.typed_input(spec, given)
            await _create(store, spec, value, options, settings.max_payload_bytes, as_json=json)
        finally:
            await store.close()
        return None

    answer(command, as_json=json)


async def _create(store: Store, spec: WorkflowSpec, value: Any, options: Start, limit: int, *, as_json: bool) -> None:
    from ironflow.engine import commands

    row, created, lanes = commands.new_run(spec, value, options, store.now(), limit)
    answered = store.submit(commands.queued(row, created, lanes))
    word = answered if isinstance(answered, str) else await answered
    if word == EXISTS:
        row = await commands.taken_by(store, row, row.input_hash)
    else:
        store.notify("queue", await store.sessions())
    if as_json:
        output.emit({**output.plain(row), "created": word != EXISTS})
        return
    print(row.run_id)
    if word == EXISTS:
        output.screen(stderr=True).print(f"that run exists already and is {row.state}", style="dim")


def _is_code(target: str) -> bool:
    """Whether a text can only mean code. A bare word or a dotted name may also be a workflow's name."""
    return target.endswith(".py") or ".py:" in target or ":" in target or "/" in target


def _loaded(target: str) -> WorkflowSpec:
    from ironflow.loading import load_one

    return load_one(target).spec


async def _by_name(store: Store, name: str) -> WorkflowSpec:
    """The workflow of this name as workers have registered it; if none has, the module of this name."""
    known = {row["name"]: row for row in await store.workflows()}
    if name in known:
        return _unseen(name, known[name])
    try:
        return _loaded(name)
    except InvalidInput as error:
        raise WorkflowUnknown(
            f"no worker has registered a workflow {name!r} here, and there is no module of that name",
            hint=f"Known: {', '.join(sorted(known)) or 'none'}. Or name its file: path/file.py:{name}.",
        ) from error


def _unseen(name: str, seen: dict[str, Any]) -> WorkflowSpec:
    """A stand-in for a workflow whose code is elsewhere: what a start needs to know of it."""
    from ironflow.engine.definitions import WorkflowSpec

    def handler(ctx: object, input: Any) -> Any:
        raise AssertionError("only a worker that has the code executes it")

    tags = split_tags(seen["worker_tags"])
    return WorkflowSpec(handler, name, main=handler, version=seen["version"], worker_tags=tags)


def _count(group: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        raise InvalidInput(f"the limit of group {group!r} must be a whole number, got {text!r}") from error
