"""A server as programs use it: `async with ironflow.client.Client(url) as client`, or `with` for scripts.

Translation only: every method is one request of the HTTP API, and gives what the method of the same name of
:class:`ironflow.Engine` gives. What is said of a run is said by the same :class:`ironflow.Run`.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, TypeVar, Unpack, overload
from urllib.parse import quote

from ironflow.client import forms, starts
from ironflow.client.address import api_key, checked_key, server_url
from ironflow.client.connection import PAUSES, Connection
from ironflow.client.events import end, events
from ironflow.client.gathering import Gathering
from ironflow.config import Settings
from ironflow.context.workflows import Workflow
from ironflow.engine.starting import Start
from ironflow.engine.why import Hold
from ironflow.errors import InvalidInput, RunNotFound
from ironflow.model import run as runs
from ironflow.model.capacity import LeaseRow, QueueRow, SessionRow
from ironflow.model.fold import StepView
from ironflow.model.ids import check_run_id
from ironflow.model.journal import Event
from ironflow.model.key import KeyRow
from ironflow.model.run import RunRow
from ironflow.runtime.handle import Run, RunView
from ironflow.runtime.thread import Synchronous
from ironflow.store.reader import RunFilter

In = TypeVar("In")
Out = TypeVar("Out")
Read = TypeVar("Read")
Row = TypeVar("Row")


class Client(Synchronous):
    """A server and a key for it. Use as `async with`, or `with` in scripts, where `client.wait(...)` runs coroutines.

    Args:
        server: its address, `http://host:9123`; None takes IRONFLOW_SERVER.
        key: an API key of an organisation or, for capacity, of the platform; None takes IRONFLOW_API_KEY.
        settings: what is set here of the server's limit of a request; None reads them as `ironflow.open` does.
        pauses: seconds before each further try of a request whose answer did not come; None for 1, 2 and 4.

    Raises:
        InvalidSettings: the address has no such form.
        Unauthenticated: what was given as the key cannot be one.
    """

    def __init__(
        self,
        server: str | None = None,
        key: str | None = None,
        *,
        settings: Settings | None = None,
        pauses: Sequence[float] | None = None,
    ) -> None:
        self.server = server_url(server)
        key = api_key() if key is None else checked_key(key, "the key")
        most_bytes = (settings or Settings.load()).max_api_body_bytes
        waits = PAUSES if pauses is None else pauses
        self._opened = Connection(self.server, key, most_bytes=most_bytes, pauses=waits)
        self._starts = Gathering(self._opened)

    @property
    def _connection(self) -> Connection:
        self._check_here()
        return self._opened

    def __repr__(self) -> str:
        return f"Client({self.server!r})"

    async def __aenter__(self) -> Client:
        self._process = os.getpid()
        await self._connection.open()
        return self

    async def close(self) -> None:
        """Close the connections. Runs go on: they are the server's."""
        await self._starts.close()
        await self._connection.close()

    # ---- starting ----------------------------------------------------------------------------------------------------

    @overload
    async def start(self, wf: Workflow[None, Out], input: None = None, /, **options: Unpack[Start]) -> Run[Out]: ...
    @overload
    async def start(self, wf: Workflow[In, Out], input: In, /, **options: Unpack[Start]) -> Run[Out]: ...
    @overload
    async def start(self, wf: str, input: Any = None, /, **options: Unpack[Start]) -> Run[Any]: ...
    async def start(self, wf: Workflow[Any, Any] | str, input: Any = None, /, **options: Unpack[Start]) -> Run[Any]:
        """Start a run; it is durable when this returns.

        A start whose answer is lost is sent again, under an idempotency key of its own where none is given, so that it
        starts one run and not two.

        Args:
            wf: the workflow, or its name where its code is not at hand; then the server refuses a missing input, and
                the worker whatever else is wrong with it.
            input: its one input; for a name, plain JSON data.
            options: as for `ironflow.run`.

        Raises:
            InvalidInput, InvalidPriority, IdempotencyKeyConflict, ConcurrencyConflict: nothing was started.
            WorkflowUnknown: no worker has registered a workflow of this name.
            PayloadTooLarge: the input is larger than the server takes; nothing was sent.
        """
        row, created = await self.create(wf, input, **options)
        return Run(self, row.run_id, wf if isinstance(wf, Workflow) else None, created)

    async def create(
        self, wf: Workflow[Any, Any] | str, input: Any = None, /, **options: Unpack[Start]
    ) -> tuple[RunRow, bool]:
        """As `start`, but gives the row of the run, and whether it is a new one."""
        own = None if options.get("idempotency_key") is not None else os.urandom(16).hex()
        most = self._connection.most_bytes
        body = starts.body(wf, input, options, idempotency_key=own, limit=most)
        answer = await self._starts.start(body)
        row, created = self._connection.read(_created, answer)
        # Found under a key that nobody else can have: the answer to the first try was lost, and this is its run.
        return row, created or (own is not None and row.idempotency_key == own)

    @overload
    async def run(self, wf: Workflow[None, Out], input: None = None, /, **options: Unpack[Start]) -> Out: ...
    @overload
    async def run(self, wf: Workflow[In, Out], input: In, /, **options: Unpack[Start]) -> Out: ...
    @overload
    async def run(self, wf: str, input: Any = None, /, **options: Unpack[Start]) -> Any: ...
    async def run(self, wf: Workflow[Any, Any] | str, input: Any = None, /, **options: Unpack[Start]) -> Any:
        """Start a run and wait for its output; see `start` and :meth:`ironflow.Run.result`."""
        row, created = await self.create(wf, input, **options)
        return await Run(self, row.run_id, wf if isinstance(wf, Workflow) else None, created).result()

    # ---- one run -----------------------------------------------------------------------------------------------------

    def handle(self, run_id: str, wf: Workflow[Any, Out] | None = None) -> Run[Out]:
        """The handle of a run that exists."""
        return Run(self, run_id, wf)

    async def get(self, run_id: str) -> RunView:
        """A run as it stands.

        Raises:
            RunNotFound: no such run, or none of the key's organisation.
        """
        return await self._got(_run(run_id), forms.run_view)

    async def steps(self, run_id: str) -> dict[str, StepView]:
        """The steps of a run by their ids, each with its tries."""
        found = [one async for one in self._connection.each(f"{_run(run_id)}/steps", forms.step)]
        return {one.step_id: one for one in found}

    async def journal(self, run_id: str, after: int = 0) -> list[Event]:
        """The events of a run so far, in order; `after`: only those with a higher seq."""
        rows = self._connection.each(f"{_run(run_id)}/journal", forms.event, {"after": after or None})
        return [one async for one in rows]

    def events(self, run_id: str, after: int = 0) -> AsyncGenerator[Event, None]:
        """The events of a run as they are committed, each once and in order, until it has ended.

        A connection that breaks is made again and goes on behind the last event given. Who leaves before the end closes
        the iterator: `async with contextlib.aclosing(client.events(run_id)) as events`.

        Raises:
            RunNotFound: no such run.
            ServerUnreachable: the server did not come back.
        """
        return events(self._connection, _run(run_id), after)

    async def why(self, run_id: str) -> list[Hold]:
        """Every reason why a run is not executing, with the earliest time at which it can lift."""
        return await self._got(f"{_run(run_id)}/why", forms.holds)

    async def wait_end(self, run_id: str) -> tuple[str, str | None]:
        """Wait until a run has ended or is paused.

        Returns:
            its state, in which warnings are not told apart, and the payload of the event that ended it as JSON text:
            what `Run.result` is made of.
        """

        async def paused() -> bool:
            return (await self.get(run_id)).state == runs.PAUSED

        return await end(self._connection, _run(run_id), paused)

    async def cancel(self, run_id: str, *, force: bool = False) -> bool:
        """End a run; `force` skips its compensations. Returns whether anything changed: not if it is cancelled already.

        Raises:
            RunNotFound, InvalidTransition: there is no such run; it has ended otherwise.
        """
        return bool((await self.steer(run_id, "cancel", force=force))["changed"])

    async def pause(self, run_id: str) -> bool:
        """Hold a run where it is. Returns whether anything changed: not if it is paused already.

        Raises:
            RunNotFound, InvalidTransition: there is no such run; it has ended, or is being cancelled.
        """
        return bool((await self.steer(run_id, "pause"))["changed"])

    async def resume(self, run_id: str) -> bool:
        """Let a paused run go on. Returns True: one that is not paused is refused.

        Raises:
            RunNotFound, InvalidTransition: there is no such run; it is not paused.
        """
        return bool((await self.steer(run_id, "resume"))["changed"])

    async def retry(self, run_id: str, *, restart: bool = False) -> bool:
        """Reopen a failed or cancelled run: finished steps are kept, or with `restart` executed again. Returns True.

        Raises:
            RunNotFound, InvalidTransition: there is no such run; it is live, ended well, or can only be restarted.
        """
        return bool((await self.steer(run_id, "retry", restart=restart))["changed"])

    async def steer(self, run_id: str, verb: str, **options: bool) -> dict[str, Any]:
        """Do one of the above by its name, and give whether anything changed and the state after it, as plain data."""
        # The others are not sent again: somebody may have paused or ended the run in the meantime, and meant it.
        again = verb in ("cancel", "pause")
        body = {name: value for name, value in options.items() if value}
        answer = await self._connection.ask("POST", f"{_run(run_id)}/{verb}", body=body, again=again)
        return self._connection.read(_changed, answer.body)

    async def delete(self, run_id: str) -> None:
        """Remove a run that has ended, with its journal.

        Raises:
            RunNotFound, InvalidTransition: there is no such run; it is live.
        """
        self._connection.read(_nothing, (await self._connection.ask("DELETE", _run(run_id), again=False)).body)

    # ---- lists -------------------------------------------------------------------------------------------------------

    async def workflows(self) -> list[dict[str, Any]]:
        """The workflows that workers have registered: name, version, tags, what each declares of itself, and since when
        it is held (ms).
        """
        return [one async for one in self._connection.each("/workflows", _named("name"))]

    async def input_schema(self, workflow: str) -> dict[str, Any]:
        """What a workflow takes as input, as JSON Schema; `{}` where its workers could not tell."""
        return await self._got(f"{_workflow(workflow)}/input-schema", forms.data)

    async def pause_workflow(self, workflow: str) -> bool:
        """Hold a workflow: its runs are created and stay queued. Returns whether anything changed."""
        return bool((await self.switch(workflow, "pause"))["changed"])

    async def resume_workflow(self, workflow: str) -> bool:
        """Let a paused workflow go on."""
        return bool((await self.switch(workflow, "resume"))["changed"])

    async def switch(self, workflow: str, verb: str) -> dict[str, Any]:
        """`pause` or `resume` a workflow, and give what changed and since when it is held, as plain data."""
        answer = await self._connection.ask("POST", f"{_workflow(workflow)}/{verb}", again=True)
        return self._connection.read(_changed, answer.body)

    async def leases(self) -> list[LeaseRow]:
        """Which session executes which run. This and what follows, but for the audit log, asks for a platform key."""
        return await self._all("leases", _rows(LeaseRow))

    async def sessions(self) -> list[SessionRow]:
        """The live worker processes."""
        return await self._all("sessions", _rows(SessionRow))

    async def queue(self, limit: int = 1000) -> list[QueueRow]:
        """The dispatch queue in the order of handing out."""
        return await self._all("queue", _rows(QueueRow), limit=limit)

    async def lanes(self) -> list[dict[str, Any]]:
        """Every lane in use: its name, limit, how many runs execute in it and how many are held back."""
        return await self._all("lanes", _data)

    async def credits(self) -> list[dict[str, Any]]:
        """How many more runs each live worker would take."""
        return await self._all("credits", _data)

    async def stats(self) -> dict[str, Any]:
        """Runs by state, slots, leases, queued segments and the next due time, as plain data."""
        return await self._got("/capacity/stats", _stats)

    async def audits(self, limit: int = 100, run_id: str | None = None) -> list[dict[str, Any]]:
        """The audit log, newest first: who did what, when (ms), to which run."""
        return [
            one async for one in self._connection.each("/audit", _named("audit_id"), {"run_id": run_id}, most=limit)
        ]

    # ---- keys --------------------------------------------------------------------------------------------------------

    async def keys(self) -> list[KeyRow]:
        """The API keys of the organisation, or with a platform key all of them; their secrets are nowhere."""
        return [one async for one in self._connection.each("/api-keys", _key)]

    async def create_key(self, name: str, **options: Any) -> tuple[KeyRow, str]:
        """Make a key. The second of what is returned is the key itself, which nobody can see again.

        Args:
            name: what people call it.
            options: `kind` (`org`, `platform` or `worker`), `role`, `org`, `environment`, `workflows`, and `expires_at`
                as ISO 8601 text.
        """
        # Not sent again: the answer that was lost held a secret, and a second key is worse than an error.
        answer = await self._connection.ask("POST", "/api-keys", body={"name": name, **options}, again=False)
        return self._connection.read(_new_key, answer.body)

    async def revoke_key(self, key_id: str) -> None:
        """Take a key back."""
        answer = await self._connection.ask("DELETE", f"/api-keys/{quote(key_id, safe='')}", again=True)
        self._connection.read(_nothing, answer.body)

    # ---- asking ------------------------------------------------------------------------------------------------------

    async def _got(self, path: str, form: Callable[[Any], Read], query: Mapping[str, Any] | None = None) -> Read:
        answer = await self._connection.ask("GET", path, query=query, again=True)
        return self._connection.read(form, answer.body)

    async def _all(self, what: str, form: Callable[[Any], Read], **query: Any) -> Read:
        return await self._got(f"/capacity/{what}", lambda body: form(body["items"]), query)

    # ---- the name of a type, so it comes last ------------------------------------------------------------------------

    async def list(self, filter: RunFilter | None = None) -> list[RunRow]:
        """Runs, newest first, up to the filter's limit, in as many requests as that takes."""
        chosen = filter or RunFilter()
        rows = self._connection.each("/runs", _row, starts.selection(chosen), most=chosen.limit)
        return [one async for one in rows]


def _row(body: Any) -> RunRow:
    return forms.row(RunRow, body)


def _rows(cls: type[Row]) -> Callable[[Any], list[Row]]:
    return lambda body: [forms.row(cls, one) for one in forms.items(body)]


def _data(body: Any) -> list[dict[str, Any]]:
    return [forms.data(one) for one in forms.items(body)]


def _named(field: str) -> Callable[[Any], dict[str, Any]]:
    """The reader of a row that the model has no class for, by a field that each has."""

    def read(body: Any) -> dict[str, Any]:
        if field not in forms.data(body):
            raise KeyError(field)
        return forms.times(body)

    return read


def _created(body: Any) -> tuple[RunRow, bool]:
    return _row(body), bool(body["created"])


def _changed(body: Any) -> dict[str, Any]:
    return {**forms.data(body), "changed": bool(body["changed"])}


def _stats(body: Any) -> dict[str, Any]:
    return {**forms.data(body), "runs": forms.data(body["runs"])}


def _key(body: Any) -> KeyRow:
    return forms.row(KeyRow, body)


def _new_key(body: Any) -> tuple[KeyRow, str]:
    return _key(body), body["key"]


def _nothing(body: Any) -> None:
    if body is not None:
        raise TypeError("an answer where none is expected")


def _run(run_id: str) -> str:
    """The path of a run. No run has an id whose path would be that of something else."""
    try:
        check_run_id(run_id)
    except InvalidInput as error:
        raise RunNotFound(f"no run has the id {run_id!r}: {error.message}") from error
    return f"/runs/{quote(run_id, safe='')}"


def _workflow(name: str) -> str:
    return f"/workflows/{quote(name, safe='')}"
