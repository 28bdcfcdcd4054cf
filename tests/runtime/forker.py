"""A program whose step bodies and workflow code fork, and whose children come back: `python -m tests.runtime.forker`.

It prints, as JSON, what the children ended with and which steps the journal has as completed.
"""

from __future__ import annotations

import asyncio
import json
import os
import sqlite3
import sys
from typing import Any

import ironflow
from ironflow import Context, Workflow, step, workflow


@step
def ends_with(pid: int) -> int:
    """The exit status of a child."""
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@step
def in_a_thread() -> int:
    return os.fork()


@step
def raises_in_a_thread() -> int:
    pid = os.fork()
    if pid == 0:
        raise ValueError("the child's")
    return pid


@step
async def on_the_loop() -> int:
    return os.fork()


@step
async def leaves_on_the_loop() -> int:
    pid = os.fork()
    if pid == 0:
        sys.exit("the child leaves")
    return pid


@step
async def waits_on_the_loop() -> int:
    pid = os.fork()
    if pid == 0:
        await asyncio.sleep(0)
        os._exit(1)
    return pid


def in_a_transaction(connection: sqlite3.Connection) -> int:
    connection.execute("create table if not exists forked (pid)")
    pid = os.fork()
    connection.execute("insert into forked values (?)", (pid,))
    return pid


@step
def stays_inside() -> int:
    pid = os.fork()
    if pid == 0:
        os._exit(7)
    return pid


@workflow
async def in_steps(ctx: Context) -> list[int]:
    forking: list[Any] = [in_a_thread, raises_in_a_thread, on_the_loop, leaves_on_the_loop, waits_on_the_loop]
    forked = [await each() for each in forking]
    forked.append(await ctx.transaction(in_a_transaction))
    return [await ends_with(pid) for pid in (*forked, await stays_inside())]


@workflow
async def in_the_code(ctx: Context) -> int:
    await stays_inside()
    return await ends_with(os.fork())


@workflow
async def at_its_beginning(ctx: Context) -> int:
    pid = os.fork()
    return await ends_with(pid) if pid else 0


@workflow
def in_plain_code(ctx: Context) -> int:
    return ctx.wait(ends_with(os.fork()))


@workflow
def at_the_end_of_plain_code(ctx: Context) -> int:
    pid = os.fork()
    return ctx.wait(ends_with(pid)) if pid else 0


FLOWS: list[Workflow[None, Any]] = [in_steps, in_the_code, at_its_beginning, in_plain_code, at_the_end_of_plain_code]


async def in_the_program(url: str) -> None:
    """The program forks on the loop that its engine has its tasks on, and the child goes on there."""
    async with ironflow.open(url, workflows=FLOWS) as engine:
        pid = os.fork()
        if pid == 0:
            await asyncio.sleep(0)
            os._exit(1)
        print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), await engine.run(in_plain_code) == 70]))


def main(url: str, name: str) -> None:
    if name == "on_a_loop":
        asyncio.run(in_the_program(url))
        return
    flow = next(flow for flow in FLOWS if flow.name == name)
    me = os.getpid()
    with ironflow.open(url, workflows=FLOWS) as engine:
        result = engine.wait(engine.run(flow, id="r"))
        assert os.getpid() == me, "a child has come back to the program"
        events = engine.wait(engine.journal("r"))
        completed = [event.step_id for event in events if event.kind == "step_completed"]
        print(json.dumps([result, len(completed), len(set(completed))]), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
