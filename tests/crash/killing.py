"""The process that dies: executes a workflow and kills itself with SIGKILL at one chosen point of it.

Started as a program it is a nursery: it has imported everything, reads one case per line from standard input, forks
a child for each, and answers how the child ended. So a hundred real deaths cost a hundred forks instead of a
hundred starts of Python.

The engine has no hooks for this. Commits are counted by a wrapper around the store, as any other store could be
wrapped; bodies are the test's own and can die by themselves.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import signal
import sys
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import ironflow
import ironflow.runtime.engine
from ironflow import Context, Retry
from ironflow.model.transition import Transition
from ironflow.store import connect
from ironflow.worker import session

BEFORE, AFTER, NEVER = "before", "after", "never"
#: What a child exits with when it reached the end alive.
SURVIVED = 0


@dataclass(slots=True)
class Case:
    """One child: which run it executes, and where it dies.

    Attributes:
        url, run_id: the database and the run.
        effects: the file to which bodies append.
        when: `before` or `after` the point, or `never`.
        commit: the point is the n-th commit of the child (from 1), or None.
        body: the point is the try of a body, as `name/attempt`, or None: right after its effect, or right before
            its return.
    """

    url: str
    run_id: str
    effects: str
    when: str = NEVER
    commit: int | None = None
    body: str | None = None


#: The case this process executes; in the process of the test only `effects` counts.
current = Case("", "", os.devnull)


def die() -> None:
    """As the machine would: no handler, no clean-up, nothing flushed."""
    os.kill(os.getpid(), signal.SIGKILL)


# ---- the workflow


def _effect(name: str) -> ironflow.StepInfo:
    """Leave a line that outlives the process, then die if this is the place."""
    info = ironflow.step_info()
    line = {"run": info.run_id, "step": info.step_id, "name": name, "try": info.attempt}
    descriptor = os.open(current.effects, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
    os.write(descriptor, (json.dumps(line) + "\n").encode())
    os.close(descriptor)
    _die_in(name, info, BEFORE)
    return info


def _die_in(name: str, info: ironflow.StepInfo, when: str) -> None:
    if current.when == when and current.body == f"{name}/{info.attempt}":
        die()


@ironflow.step
async def work(name: str) -> str:
    """An effect and a result."""
    info = _effect(name)
    await asyncio.sleep(0)
    _die_in(name, info, AFTER)
    return name.upper()


@ironflow.step(retry=Retry(2, backoff="5ms", jitter=0))
async def flaky(name: str) -> str:
    """Fails at its first try, after its effect."""
    info = _effect(name)
    _die_in(name, info, AFTER)
    if info.attempt == 1:
        raise ConnectionError("the first try fails")
    return name.upper()


@ironflow.step
def blocking(name: str) -> str:
    """A body in a thread."""
    info = _effect(name)
    _die_in(name, info, AFTER)
    return name.upper()


@ironflow.workflow
async def journey(ctx: Context, start: str) -> list[str]:
    """A step, a pair side by side, a timer, a retried step, a step in a thread."""
    done = [await work(start)]
    done += await ctx.parallel([work("b"), work("c")])
    await ctx.sleep("20ms")
    done.append(await flaky("d"))
    done.append(await blocking("e"))
    return done


OUTPUT = ["A", "B", "C", "D", "E"]
#: Every try of every body: what can be interrupted.
BODIES = ("a/1", "b/1", "c/1", "d/1", "d/2", "e/1")


# ---- the store that dies


class KillingStore:
    """A store that counts the commits of runs, and kills the process before or after one of them."""

    def __init__(self, store: Any, case: Case) -> None:
        self.__dict__.update(_store=store, _case=case, _numbers=itertools.count(1))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self._store, name, value)

    def submit(self, transition: Transition) -> Any:
        """See `Store.submit`."""
        number = self._before()
        answer = self._store.submit(transition)
        if isinstance(answer, str):
            self._after(number)
            return answer
        return self._answered(answer, number)

    async def _answered(self, answer: Any, number: int) -> str:
        word: str = await answer
        self._after(number)
        return word

    async def decide(self, *args: Any, **kwargs: Any) -> Any:
        """See `Store.decide`."""
        number = self._before()
        result = await self._store.decide(*args, **kwargs)
        self._after(number)
        return result

    def _before(self) -> int:
        number: int = next(self._numbers)
        if self._case.when == BEFORE and self._case.commit == number:
            die()
        return number

    def _after(self, number: int) -> None:
        if self._case.when == AFTER and self._case.commit == number:
            die()


# ---- the child and its nursery


async def execute(case: Case) -> None:
    """Start the run (or find it) and see it to its end, unless this process dies first."""

    async def killing_connect(url: str, **options: Any) -> KillingStore:
        return KillingStore(await connect(url, **options), case)

    ironflow.runtime.engine.connect = killing_connect  # type: ignore[attr-defined]
    async with ironflow.open(case.url, workflows=[journey]) as engine:
        run = await engine.start(journey, "a", id=case.run_id)
        assert await run.result(timeout=30) == OUTPUT


def child(case: Case) -> None:
    """The life of a forked process; never returns."""
    global current
    current = case
    # The identity of a process is made at import, and this one was imported by its parent.
    session.PROCESS_ID = f"{os.getpid()}-{os.urandom(6).hex()}"
    code = 1
    try:
        asyncio.run(execute(case))
        code = SURVIVED
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(code)


def nursery() -> None:
    """Fork a child per line of standard input; answer with its exit code, or minus the signal that ended it."""
    for line in sys.stdin:
        case = Case(**json.loads(line))
        pid = os.fork()
        if pid == 0:
            child(case)
        _, status = os.waitpid(pid, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


class Nursery:
    """The parent's end of the program above."""

    def __init__(self) -> None:
        import subprocess

        root = Path(__file__).resolve().parent.parent.parent
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.killing"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=root,
        )

    def run(self, case: Case) -> int:
        """Execute one case to its end. Blocks: nothing of the test may touch the run meanwhile."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(asdict(case)) + "\n")
        self._process.stdin.flush()
        return int(self._process.stdout.readline())

    def close(self) -> None:
        """End the program."""
        self._process.communicate()


if __name__ == "__main__":
    nursery()
