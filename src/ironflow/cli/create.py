"""`ironflow runs create`: put a run into the queue and return; a worker takes it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ironflow.cli import advice, inputs, output, stdout
from ironflow.cli.backend import Backend, KeyFileOption, ServerOption, Where
from ironflow.cli.database import DbOption, JsonOption, answer
from ironflow.cli.inputs import InputOption
from ironflow.engine import views
from ironflow.errors import InvalidInput, WorkflowUnknown
from ironflow.model.moment import ms_of

if TYPE_CHECKING:
    from ironflow.context.workflows import Workflow
    from ironflow.engine.starting import Start
    from ironflow.model.run import RunRow

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
PriorityOption = Annotated[int | None, typer.Option(metavar="N", help="-100 to 100, higher first.", show_default=False)]
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
DeadlineOption = Annotated[
    str | None,
    typer.Option(metavar="TIME", help="It fails if it has not ended by then: a TIME like --at.", show_default=False),
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
    deadline: DeadlineOption = None,
    db: DbOption = None,
    server: ServerOption = None,
    key_file: KeyFileOption = None,
    json: JsonOption = False,
) -> None:
    """Create a run and print its id. It is durable when this returns, and executes when a worker takes it.

    With a workflow's NAME instead of its code, what its workers have registered of it applies (version, tags,
    priority, lanes, time limit). An input that could never fit, or has a field that the workflow does not know, is
    refused; the worker checks the rest.
    """

    def start() -> Start:
        return {
            "id": id,
            "idempotency_key": idempotency_key,
            "concurrency_key": concurrency_key,
            "priority": priority,
            "labels": inputs.pairs(label, "label"),
            "worker_tags": worker_tag or (),
            "limits": {name: _count(name, text) for name, text in _limits(limit).items()},
            "at": inputs.moment(at),
            "deadline": inputs.moment(deadline, "--deadline"),
        }

    async def command() -> None:
        await _create(Where(db, server, key_file), target, inputs.read_input(input), start(), as_json=json)

    answer(command, as_json=json)


async def _create(where: Where, target: str, given: Any, options: Start, *, as_json: bool) -> None:
    """Create the run and tell it. Code that cannot be loaded is told before anything is opened."""
    workflow = _loaded(target) if _is_code(target) else None
    async with where.open(make=True) as backend:
        _check_deadline(options, backend.now())
        found = workflow or await _by_name(backend, where, target)
        if isinstance(found, dict):
            value = inputs.named_input(target, (found["definition"] or {}).get("input_schema"), given)
        else:
            value = inputs.typed_input(found.spec, given)
        row, created = await backend.create(target if isinstance(found, dict) else found, value, options)
        _tell(row, new=created, as_json=as_json)
        file = "FILE" if workflow is None else target
        await advice.tell(backend, where, row.run_id, file, as_json=as_json)


def _check_deadline(options: Start, now: int) -> None:
    """Refuse a deadline by which a run could only fail. `now`: ms, by the clock that the run will live by."""
    deadline, at = options.get("deadline"), options.get("at")
    if deadline is None:
        return
    if ms_of(deadline) <= now:
        hint = "The run could only fail. Give a time that lies ahead, such as +30m."
        raise InvalidInput(f"--deadline: {deadline.isoformat()} has passed", hint=hint)
    if at is not None and deadline <= at:
        hint = "The run could only fail. Give a deadline that lies behind --at, or leave one of them out."
        raise InvalidInput("--deadline is not later than --at, before which the run does not start", hint=hint)


def _tell(row: RunRow, *, new: bool, as_json: bool) -> None:
    if as_json:
        output.emit(views.created(row, new=new))
        return
    print(row.run_id, file=stdout.stream(), flush=True)
    if not new:
        output.screen(stderr=True).print(f"that run exists already and is {row.state}", style="dim")


def _is_code(target: str) -> bool:
    """Whether a text can only mean code. A bare word or a dotted name may also be a workflow's name."""
    return target.endswith(".py") or ".py:" in target or ":" in target or "/" in target


def _loaded(target: str) -> Workflow[Any, Any]:
    from ironflow.loading import load_one

    stdout.keep()
    return load_one(target)


async def _by_name(backend: Backend, where: Where, name: str) -> Workflow[Any, Any] | dict[str, Any]:
    """What workers have registered of a name, as plain data; if none has, the workflow of the module of that name."""
    known = {row["name"]: row for row in await backend.workflows()}
    if name in known:
        return views.plain(known[name])
    try:
        return _loaded(name)
    except InvalidInput as error:
        raise WorkflowUnknown(
            f"no worker has registered a workflow {name!r} here, and there is no module of that name",
            hint=f"Known: {', '.join(sorted(known)) or 'none'}. Start a worker that has it: "
            f"`{advice.worker_command(where)}`; or name its file: path/file.py:{name}.",
        ) from error


def _limits(texts: list[str] | None) -> dict[str, str]:
    return inputs.pairs(texts, "limit of a group", "GROUP=N, for example --limit bank=3")


def _count(group: str, text: str) -> int:
    try:
        return int(text)
    except ValueError as error:
        hint = "Give it as GROUP=N, for example --limit bank=3."
        raise InvalidInput(f"the limit of group {group!r} must be a whole number, got {text!r}", hint=hint) from error
