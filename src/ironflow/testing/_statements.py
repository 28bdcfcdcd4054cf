"""One SQL statement on the private server, with psql where the build has it and asyncpg elsewhere.

Exists so that a fixture can create a database without the engine, its driver or an event loop.
"""

from __future__ import annotations

import asyncio
import subprocess
import threading
from pathlib import Path


class StatementFailed(Exception):
    """PostgreSQL refused the statement or could not be reached; the message is its own."""


def run_statement(psql: Path | None, url: str, sql: str, env: dict[str, str]) -> str:
    """Run `sql` outside a transaction and return its rows, a line each, columns split by `|`."""
    if psql is None:
        return _with_asyncpg(url, sql)
    command: list[Path | str] = [psql, "-XqAt", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", sql]
    answer = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if answer.returncode != 0:
        raise StatementFailed(answer.stderr.strip())
    return answer.stdout.strip()


def _with_asyncpg(url: str, sql: str) -> str:
    """In a thread with a loop of its own, because the caller's thread may be running one."""
    answer: list[str | Exception] = []

    def work() -> None:
        try:
            answer.append(asyncio.run(_ask(url, sql)))
        except Exception as error:
            answer.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    result = answer[0]
    if isinstance(result, Exception):
        raise StatementFailed(str(result)) from result
    return result


async def _ask(url: str, sql: str) -> str:
    import asyncpg  # optional, and slow to import: only where there is no psql

    connection = await asyncpg.connect(url)
    try:
        rows = await connection.fetch(sql)
    finally:
        await connection.close()
    return "\n".join("|".join("" if value is None else str(value) for value in row) for row in rows)
