"""A worker without Ironflow: what a worker in another language has to do, with Python's standard library alone.

    ironflow serve --dev                      # prints the two lines to paste
    python examples/bare_worker.py            # where IRONFLOW_SERVER and IRONFLOW_API_KEY (the worker's) are set
    ironflow runs create greet --input '"world"'

It takes the runs of one workflow, `greet`: two steps, one after the other, then a pause of a second, then the end. It
renews its leases, goes on with runs that another worker left behind, tries a step again after an error, and leaves in
order. What each message means is in docs/reference/worker-protocol.md; one run at a time is all that is missing here.
"""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import sys
import threading
import time
import urllib.error
import urllib.request
from collections import Counter
from typing import Any
from urllib.parse import quote

SERVER = os.environ.get("IRONFLOW_SERVER", "http://127.0.0.1:9123").rstrip("/")
KEY = os.environ.get("IRONFLOW_API_KEY", "")
WORKFLOW, VERSION = "greet", "bare-1"
PAUSES = (1, 2, 4)
TRIES, BACKOFF_MS, PAUSE_MS = 3, 200, 1_000

SESSION = f"bare-{secrets.token_hex(8)}"
WORKER = f"{socket.gethostname()}-{os.getpid()}"
#: the runs held here: run id → (number, token)
held: dict[str, tuple[int, str]] = {}
#: runs that somebody else has by now
lost: set[str] = set()
leaving = threading.Event()


# ---- the workflow: steps, each a name and a function of the input and of the results so far


def polite(given: Any, results: list[Any]) -> str:
    return f"dear {given}"


def shout(given: Any, results: list[Any]) -> str:
    return str(results[0]).upper()


STEPS = (("polite", polite), ("shout", shout))


# ---- asking the server


class Refused(Exception):
    def __init__(self, problem: dict[str, Any]) -> None:
        super().__init__(problem.get("detail"))
        self.code = problem.get("code")


def ask(method: str, path: str, body: dict[str, Any] | None = None, *, wait_s: float = 15, repeats: bool = True) -> Any:
    """One request. No answer and 5xx: again after 1, 2 and 4 seconds; any other refusal is final."""
    problem: Exception = OSError("not asked yet")
    for pause in (*PAUSES, None) if repeats else (None,):
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {KEY}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{SERVER}/api/v1/worker{path}", data, headers, method=method)
        try:
            with urllib.request.urlopen(request, timeout=wait_s) as answer:
                return json.loads(answer.read())
        except urllib.error.HTTPError as error:
            if error.code < 500:
                raise Refused(json.loads(error.read())) from error
            problem = error
        except OSError as error:
            problem = error
        if pause is not None:
            time.sleep(pause)
            for item in (body or {}).get("items", ()):
                item["again"] = True  # the server looks whether the first request was carried out
    raise problem


def register() -> dict[str, Any]:
    served = {"tags": [], "workflows": {WORKFLOW: {"versions": [VERSION], "tags": []}}}
    known = {
        "name": WORKFLOW,
        "version": VERSION,
        "worker_tags": [],
        "definition": {"input_schema": {"type": "string"}},
    }
    body = {"session_id": SESSION, "worker_id": WORKER, "host": socket.gethostname(), "pid": os.getpid(), "slots": 1}
    terms: dict[str, Any] = ask("POST", "/sessions", {**body, "serves": served, "workflows": [known]})
    return terms


def beat() -> None:
    """Renew the session and every lease."""
    rows = [[run_id, seq, token, True] for run_id, (seq, token) in list(held.items())]
    answer = ask("POST", "/heartbeat", {"session_id": SESSION, "credits": 1 - len(held), "held": rows}, repeats=False)
    lost.update(run_id for run_id, _, verdict in answer["verdicts"] if verdict == "stale")
    if answer["draining"]:
        leaving.set()


def renew(every_s: float) -> None:
    while not leaving.wait(every_s) or held:
        try:
            beat()
        except (Refused, OSError) as error:
            print(f"not renewed: {error}", file=sys.stderr)


def listen() -> None:
    """The stream by whose break a death is noticed. Whoever lives comes back and sends a heartbeat at once."""
    while not leaving.is_set():
        url = f"{SERVER}/api/v1/worker/liveness?session_id={SESSION}"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {KEY}"})
        try:
            with urllib.request.urlopen(request, timeout=15) as stream:
                beat()
                for line in stream:
                    told = json.loads(line)
                    if told.get("check") in held:  # somebody changed this run: is it still ours?
                        beat()
                    if told.get("drain"):
                        leaving.set()
        except (Refused, OSError):
            pass
        time.sleep(0.5)


# ---- one run


class Journal:
    """A run's journal as this worker knows it, and what is to be written next."""

    def __init__(self, head: dict[str, Any], events: list[list[Any]]) -> None:
        self.run_id, self.seq, self.last = head["run_id"], head["execution_seq"] + 1, events[-1][0]
        self.new: list[list[Any]] = []
        self.input: Any = None
        self.results: dict[str, Any] = {}
        #: tries that ended, by step: over the run's life, and those that failed since it was last opened
        self.ended_tries: Counter[str] = Counter()
        self.failures: Counter[str] = Counter()
        self.timers: dict[str, int] = {}
        self.started = False
        open_steps: set[str] = set()
        for _, kind, step_id, payload, _, _ in events:
            told = json.loads(payload) if payload else {}
            if kind == "run_created":
                self.input = told["input"]
            elif kind in ("run_started", "run_resumed"):
                self.started = True
            elif kind == "run_reopened":  # by a person; `restart`: what is recorded does not count any more
                self.failures.clear()
                if told["mode"] == "restart":
                    self.results.clear()
                    self.timers.clear()
            elif kind == "step_started":
                open_steps.add(step_id)
            elif kind.startswith("step_"):
                open_steps.discard(step_id)
                self.ended_tries[step_id] += 1
                self.failures[step_id] += int(kind in ("step_retrying", "step_failed"))
                if kind == "step_completed":
                    self.results[step_id] = told["result"]
            elif kind == "timer_started":
                self.timers[step_id] = told["due"]
        #: begun by an owner that was lost: whether the body did its work, nobody knows
        self.cut_off = open_steps

    def add(self, kind: str, step_id: str | None = None, **payload: Any) -> None:
        self.last += 1
        self.new.append([self.last, kind, step_id, json.dumps(payload), self.seq])

    def written(self) -> list[list[Any]]:
        new, self.new = self.new, []
        return new


def commit(item: dict[str, Any]) -> bool:
    """Write one change. Nothing may follow from it before it was answered `applied`."""
    answer = ask("POST", "/transitions", {"session_id": SESSION, "items": [item]})["answers"][0]
    if answer != "applied":
        print(f"{item['run_id']}: {answer}; dropped", file=sys.stderr)
    return bool(answer == "applied")


class Segment:
    """One stretch of executing a run: from taking it until it ends, sleeps, or is lost."""

    def __init__(self, head: dict[str, Any], events: list[list[Any]]) -> None:
        self.head, self.journal, self.token = head, Journal(head, events), secrets.token_hex(16)
        self.taken = False

    def write(self, **leaves: Any) -> bool:
        """Commit what was journaled. The first write takes the run; the last one says how it is left."""
        head, journal = self.head, self.journal
        item: dict[str, Any] = {"run_id": journal.run_id, "events": journal.written(), **leaves}
        if head["consecutive_recoveries"] and any(event[1] == "step_completed" for event in item["events"]):
            item["progress"] = True  # it gets on: earlier losses do not count against it any more
        if self.taken:
            item |= {"guard": "owner", "seq": journal.seq, "token": self.token}
            item |= {"release": True} if leaves else {}
        else:
            item |= {"guard": "queued", "seq": head["execution_seq"], "facts": head["facts"], "dequeue": True}
            item |= {"reservation": head["reservation"], "new_seq": journal.seq}
            item |= {} if leaves else {"state": "running", "lease": True, "new_token": self.token}
        if not commit(item):
            return False
        if not leaves:
            held[journal.run_id] = (journal.seq, self.token)
        self.taken = True
        return True

    def execute(self) -> None:
        """Replay, then go on: what is in the journal is not done again."""
        journal = self.journal
        journal.add("run_resumed" if journal.started else "run_started", t=time_there(), worker=WORKER)
        for step_id in journal.cut_off:
            journal.add("step_interrupted", step_id, reason="the owner was lost")
        results: list[Any] = []
        for number, (name, body) in enumerate(STEPS, 1):
            step_id = f"main/{number}:{name}"
            while step_id not in journal.results:
                if not self.attempt(step_id, body, results):
                    return
            results.append(journal.results[step_id])
        if "main/t1" not in journal.timers:
            due = time_there() + PAUSE_MS
            journal.add("timer_started", "main/t1", due=due)
            journal.add("run_suspended", state="sleeping", due=due)
            waits = [["main/t1", "timer", "sleeping", due]]
            self.write(state="sleeping", facts=self.head["facts"], waits=waits)
            return
        journal.add("timer_fired", "main/t1", t=time_there())
        journal.add("run_succeeded", t=time_there(), output=results[-1])
        self.write(state="completed", ended=True)

    def attempt(self, step_id: str, body: Any, results: list[Any]) -> bool:
        """One try of a step. Its start is committed before its body begins. Returns whether the run goes on here."""
        journal = self.journal
        number = 1 + journal.ended_tries[step_id] + int(step_id in journal.cut_off)
        journal.add("step_started", step_id, **({"try": number} if number > 1 else {}))
        if not self.write() or journal.run_id in lost:
            return False
        try:
            result = body(journal.input, results)
        except Exception as error:
            return self.after_an_error(step_id, error)
        journal.add("step_completed", step_id, t=time_there(), result=result)
        journal.results[step_id] = result
        return True

    def after_an_error(self, step_id: str, error: Exception) -> bool:
        """Record a failed try. Returns whether there is another one; otherwise the run has failed."""
        journal, now = self.journal, time_there()
        journal.ended_tries[step_id] += 1
        journal.failures[step_id] += 1
        told = {"type": type(error).__name__, "message": str(error)}
        if journal.failures[step_id] < TRIES:
            facts = {"attempt": journal.failures[step_id], "of": TRIES, "due": now + BACKOFF_MS}
            journal.add("step_retrying", step_id, t=now, **facts, error=told)
            committed = self.write()
            time.sleep(BACKOFF_MS / 1000)
            return committed
        journal.add("step_failed", step_id, t=now, error=told)
        journal.add("run_failed", t=now, error=told, failed_steps=[step_id])
        self.write(state="failed", ended=True)
        return False


# ---- time, and the loop

_now = (0, 0.0)


def saw(now: int) -> None:
    """Every answer tells the database's time; a worker uses no other."""
    global _now
    _now = (now, time.monotonic())


def time_there() -> int:
    return _now[0] + round((time.monotonic() - _now[1]) * 1000)


def whole(head: dict[str, Any], events: list[list[Any]], more: bool) -> list[list[Any]]:
    """A journal that did not fit into the poll's answer is read page by page."""
    while more:
        after = events[-1][0] if events else 0
        page = ask("GET", f"/runs/{quote(head['run_id'], safe='')}/journal?session_id={SESSION}&after={after}")
        events, more = events + page["events"], page["more"]
    return events


def main() -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: leaving.set())
    terms = register()
    saw(terms["now"])
    for target, arguments in ((renew, (terms["renewal_interval_ms"] / 1000,)), (listen, ())):
        threading.Thread(target=target, args=arguments, daemon=True).start()
    print(f"worker {WORKER} serves {WORKFLOW} on {SERVER}", file=sys.stderr, flush=True)
    while not leaving.is_set():
        try:
            # Short, so that a signal is heard soon; a real worker asks for 25,000 and ends the request itself.
            answer = ask("POST", "/poll", {"session_id": SESSION, "credits": 1, "wait_ms": 1_000}, repeats=False)
        except Refused as error:
            if error.code != "SESSION_UNKNOWN":
                raise
            register()
            continue
        except OSError as error:
            print(f"no work: {error}", file=sys.stderr)
            time.sleep(1)
            continue
        saw(answer["now"])
        for one in answer["assignments"]:
            segment = Segment(one["head"], whole(one["head"], one["journal"], one["more"]))
            try:
                segment.execute()
            finally:
                held.pop(segment.journal.run_id, None)
                lost.discard(segment.journal.run_id)
    ask("DELETE", f"/sessions/{SESSION}")


if __name__ == "__main__":
    main()
