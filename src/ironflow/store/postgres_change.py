"""What the changes of a PostgreSQL store that are no transitions stand on: a connection, and named statements on it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from ironflow.errors import StoreReadOnly
from ironflow.store.dialect import Statement
from ironflow.store.postgres_decide import Decider
from ironflow.store.postgres_link import Address, Clock, Connection
from ironflow.store.postgres_reads import PostgresReads

Result = TypeVar("Result")


class PostgresChange(PostgresReads):
    """The readers' pool carries the small changes, too; a store that only reads refuses them."""

    def __init__(self, address: Address, statements: Mapping[str, Statement], clock: Clock, read_only: bool) -> None:
        super().__init__(address, statements, clock)
        self._read_only = read_only
        self._decider = Decider(self._statements, clock)

    async def _change(self, work: Callable[[Connection], Awaitable[Result]]) -> Result:
        if self._read_only:
            raise self._refusal()
        return await self._readers.use(work)

    def _refusal(self) -> StoreReadOnly:
        return StoreReadOnly(f"{self.name} was opened for reading", hint="Open it without read_only to write.")

    async def _execute(self, connection: Connection, name: str, /, **values: Any) -> list[Any]:
        statement = self._statements[name]
        return await connection.fetch(statement.text, *statement.arguments(values))
