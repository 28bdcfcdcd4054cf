"""What each field of an answer means, and which values it can have: for those who have the OpenAPI document alone.

Owns the sentences; the values come from the tables of the model that the engine itself runs on. `shown` refuses a field
that has no sentence here, so that none is forgotten when a column is added.
"""

from __future__ import annotations

from typing import Any, Final

from ironflow.engine import why
from ironflow.model import capacity
from ironflow.model import journal as j
from ironflow.model import key as keys
from ironflow.model import run as runs
from ironflow.model import step as steps
from ironflow.model.transition import ACTIONS
from ironflow.server import event_meanings

#: Of every schema: fields that mean the same wherever they stand.
EVERYWHERE: Final = {
    "run_id": "The run's id.",
    "org": "The organisation that it belongs to.",
    "environment": "The environment of that organisation.",
    "session_id": "The session under which a worker process is registered.",
    "execution_seq": "How often the right to execute the run has changed hands. A write under an older number is "
    "refused.",
    "state": "The state; what each means is told at the top of this document.",
}

_AS_STORED: Final = "in the stored form (*Values*, at the top of this document)"

MEANINGS: Final[dict[str, dict[str, str]]] = {
    "Run": {
        "workflow": "The name of the workflow that it is a run of.",
        "version": "The version of the workflow that it was created under.",
        "route": "What a worker must have to take it.",
        "root_run_id": "The outermost run that it belongs to; its own id, if it is no child.",
        "created_at": "When it was created.",
        "facts": "Internal: changes whenever something from outside happens to the run while it waits.",
        "epoch": "1, and one more for each time that it was opened again by hand after its end.",
        "attempt": "1, and one more for each retry of the whole run, by itself or by hand.",
        "retry_count": "Retries of the whole run by itself since it was created or opened again by hand.",
        "lease_recoveries": "How many of its workers were lost while they had it.",
        "consecutive_recoveries": "Of those, how many in a row without a step finished in between.",
        "charged_recoveries": "Of those, how many while something of the run executed, which may be why.",
        "priority": "−100 to 100; higher is handed out first.",
        "parent_run_id": "The run that started it as its child; null if none did.",
        "started_at": "When a worker first took it; null before that.",
        "ended_at": "When it ended; null while it has not.",
        "deadline_at": "When it fails if it has not ended by then; null without a deadline.",
        "scheduled_at": "Before when it is not handed out; null if it was not scheduled.",
        "max_recoveries": "Lost workers after which it fails; null if only the server's own ceiling counts.",
        "compensations": "How many compensations it has registered, which undo its steps if it fails or is cancelled.",
        "compensating_for": "While, and after, it undoes its steps: the state that it then ends in; else null.",
        "resume_state": "The state that it was paused in, and goes back to; null unless it is paused.",
        "reason": "The code of why it is paused, or has failed; null if the engine has none for it.",
        "status_text": "What the workflow last said that it is doing (`ctx.set_status`); null if it said nothing.",
        "warnings": "How many warnings the workflow has noted down; with any it ends as `warning`.",
        "input_hash": "A hash of the input, of a run that was started under an id or idempotency key.",
        "idempotency_key": "The idempotency key that it was created with; null without one.",
        "concurrency_key": "The concurrency key that it holds until it ends; null without one.",
        "labels": "The labels that it was created with, by key; null without any.",
        "limits": "The lanes that it counts in, each with how many runs execute in it at most; null without any.",
        "python": "The version of Python that created it.",
    },
    "Route": {
        "workflow": "It has this workflow,",
        "version": "in a version that is or continues this one,",
        "tags": "and offers all of these tags.",
    },
    "RunCreated": {
        "created": "True for a new run; false for the one that had this id or idempotency key already.",
    },
    "StartOutcome": {
        "status": "The HTTP status that this start alone would have been answered with.",
        "run": "The run; null if the start was refused.",
        "problem": "Why it was refused; null if it was not.",
    },
    "RunsCreated": {
        "items": "What became of each start, in the order of the request.",
    },
    "RunWhole": {
        "input": f"The input, {_AS_STORED}.",
        "output": f"What the workflow returned, or has published so far, {_AS_STORED}; null without any.",
        "error": "Why the run failed; null if it did not.",
        "undo_errors": "The compensations that failed when the run was undone: the id of the step, and its error.",
        "hold": "What holds a paused run; null unless it is paused. `/why` tells it, too, and what holds other runs.",
        "steps": "Its steps, in the order in which they were first asked for.",
        "worker_routing": "While it is queued: which workers could take it. Null otherwise.",
    },
    "WorkerRouting": {
        "required_tags": "The tags that a worker must offer.",
        "workers_seen": "Live workers of this organisation and environment, whatever they serve.",
        "workers_eligible": "Of those, how many serve the workflow in a fitting version and offer every tag.",
        "slots_free": "Free slots of the eligible ones, when each was last heard of.",
    },
    "Step": {
        "step_id": "Its place in the run: the same each time that the workflow's code gets there.",
        "name": "The name of the step's function.",
        "kind": "What its author called it (`@step(kind=…)`), which `Retry(on=…)` can name: `tool`, unless said "
        "otherwise, `llm` or `connector`. Or `transaction`: it writes to the engine's own database.",
        "state": "The state: what its last try came to, or that it waits for another one.",
        "tries": "Every try of its body, oldest first.",
        "due_at": "When its next try is due; null unless it waits for one.",
        "result": f"What it returned, {_AS_STORED}; null before, and if it returned nothing.",
        "error": "Why its last try failed or was cut off; null if it did not.",
    },
    "Try": {
        "number": "1, 2, 3 …; a try that was cut off by the loss of its worker is made again under its number.",
        "state": "What it came to; `running` while it executes.",
        "started_at": "When its start was recorded, before the body began.",
        "ended_at": "When its end was recorded; null before that.",
        "error": "Why it failed or was cut off; null if it did not.",
        "execution_seq": "The run's `execution_seq` under which it executed.",
    },
    "Failure": {
        "type": "The class of the error, `module.Name`.",
        "message": "Its message.",
        "code": "Its stable code, if it is one of Ironflow's own.",
        "step_id": "The step that it came from, if it came from one.",
        "traceback": "Where it was raised, as text.",
        "notes": "Notes that were added to it.",
        "cause": "The error that caused it, in the same form.",
        "context": "The error during whose handling it was raised, in the same form.",
        "errors": "The errors of a group, each in the same form.",
    },
    "Hold": {
        "code": "Which hold it is: stable, for programs.",
        "message": "The same for people, with the names of what is involved.",
        "until": "The earliest time at which it can lift by itself; null where it is not time that lifts it.",
        "details": "Facts for programs. Of `PAUSED`: the `reason`, who did it (`by`), or the `step_id` or `error` that "
        "it is about. Empty for the others.",
    },
    "Event": {
        "seq": "Its place in the journal of the run: 1, 2, 3 … without a gap.",
        "kind": event_meanings.kinds(),
        "step_id": "The step, timer or note that it is about; null for what concerns the run.",
        "execution_seq": "The run's `execution_seq` under which it was written.",
        "at": "When it was committed.",
        "payload": event_meanings.payloads(),
    },
    "Steered": {
        "changed": "False if the run was already as the command would have it.",
        "state": "The run's state now; null if it was deleted meanwhile.",
    },
    "Workflow": {
        "name": "The name that runs are created by.",
        "version": "The version that new runs are created under.",
        "worker_tags": "The tags that its runs require of a worker.",
        "definition": "What its code says of itself; null if its workers could not tell.",
        "first_seen_at": "When a worker first registered this version of it.",
        "seen_at": "When a worker last registered this version of it.",
        "paused_at": "Since when its runs are held in the queue; null if they are not.",
    },
    "Definition": {
        "priority": "The priority of a run whose start names none.",
        "timeout_ms": "How long a run may take from its creation to its end; null: as long as it likes.",
        "max_recoveries": "Lost workers after which a run fails; null: only the server's own ceiling counts.",
        "lanes": "Its own lane with its limit; null where the lane depends on the input.",
        "keyed_limit": "How many runs execute in each of its lanes at once, where the lane depends on the input.",
        "input_schema": "What it takes as input, as JSON Schema; null if its code does not say.",
        "input_default": f"The input of a run that is started without one, {_AS_STORED}; null: there is none.",
        "doc": "Its documentation.",
        "compatible": "Earlier versions whose runs its code continues.",
    },
    "LaneLimit": {
        "name": "The name of the lane.",
        "limit": "How many runs execute in it at once, at most.",
    },
    "Switched": {
        "workflow": "The name of the workflow.",
        "changed": "False if it was already as the command would have it.",
        "paused_at": "Since when it is held; null if it is not.",
    },
    "Lease": {
        "session_id": "The session that executes the run.",
        "acquired_at": "When the session took the run.",
        "expires_at": "When the right ends, unless it is renewed before.",
        "executing": "Whether something of the run executed when the lease was last renewed: 1 or 0; null before that.",
    },
    "Session": {
        "worker_id": "The worker's name: the same after it was started again, if it was given one.",
        "host": "The host that it runs on.",
        "boot_id": "Which start of that host it is; evidence of deaths.",
        "pid": "The number of its process on that host.",
        "process_id": "Which process it is, also among those that had the same number.",
        "routes": "What it asks for: each entry is one kind of run that it takes.",
        "slots": "How many runs it executes at once.",
        "credits": "How many more it would take, when it was last heard of.",
        "started_at": "When it registered.",
        "heartbeat_at": "When it was last heard of.",
        "expires_at": "When it counts as dead, unless it is heard of before.",
        "lock_path": "The file whose lock proves that it lives to other processes of its host; null without one.",
        "lock_device": "The device of that file.",
        "lock_inode": "The inode of that file.",
        "wake_address": "Where it, or the node that it is connected to, is told of news; null without an address.",
        "suspect_since": "Since when its silence counts as a sign of death; null while it is no suspect.",
        "draining": "1 if it takes nothing new because it is to leave, else 0.",
        "kind": "`embedded` works on the database, `http` through a server.",
        "serves": "The workflows, versions and tags that it serves; null if its runs come in another way.",
        "supervisor": "Who starts it again when it dies, and may prove its death; null without a supervisor.",
        "key_id": "The key that it registered with; null if it works on the database.",
    },
    "Serving": {
        "tags": "The tags that it offers. Without any it serves what its workflows require of themselves.",
        "workflows": "The workflows that it has, by name.",
    },
    "ServedWorkflow": {
        "versions": "The versions whose runs its code continues, its own first.",
        "tags": "The tags that the workflow requires.",
    },
    "QueueRow": {
        "route": "What a worker must have to take its run.",
        "priority": "Higher is handed out first.",
        "enqueued_at": "Since when it waits: of equal priority, the one that waits longest is first.",
        "eligible_at": "Before when it is not handed out.",
        "status": "`ready`; `delayed` until `eligible_at`; `blocked` by a full lane; `reserved`, promised to a worker.",
        "blocked_lane": "The full lane that it waits for; null unless it is `blocked`.",
        "reserved_by": "The session that it is promised to; null unless it is `reserved`.",
        "reserved_until": "When that promise ends; null unless it is `reserved`.",
    },
    "Lane": {
        "lane": "The name of the lane.",
        "lane_limit": "How many runs execute in it at once, at most.",
        "executing": "How many execute in it now.",
        "reserved": "How many are promised to a worker, and count, too.",
        "blocked": "How many it holds back.",
    },
    "Credit": {
        "worker_id": "The worker's name.",
        "slots": "How many runs it executes at once.",
        "credits": "How many more it would take, when it was last heard of.",
    },
    "Slots": {
        "total": "Slots of all live workers.",
        "free": "Of those, how many were free when each worker was last heard of.",
    },
    "Stats": {
        "runs": "How many runs there are in each state.",
        "workers": "Live worker processes.",
        "slots": "Their slots.",
        "leases": "Runs that a worker has the right to execute.",
        "queued": "Runs in the queue.",
        "next_due_at": "When the next wait is due; null if none is.",
    },
    "Audit": {
        "audit_id": "Its id; ids grow with time.",
        "at": "When it happened.",
        "action": "What was done.",
        "actor": "Who did it: a key by its name and id, a user of the host, or `scanner` for recovery.",
        "run_id": "The run that it was done to; null if it was none.",
        "fields": "More about it; the fields depend on the action.",
    },
    "Key": {
        "key_id": "Its id, by which it is revoked. It opens nothing.",
        "kind": "`org` for people and programs, `platform` for who runs the cluster, `worker` for workers.",
        "role": "What an `org` key may do; null for other kinds.",
        "name": "What people call it.",
        "workflows": "What a `worker` key is bound to; null if to nothing, and for other kinds.",
        "created_at": "When it was made.",
        "created_by": "Who made it.",
        "expires_at": "When it ends by itself; null if it does not.",
        "revoked_at": "Since when it opens nothing any more; null if it was not revoked.",
        "last_used_at": "When it was last used, to the minute; null if it never was.",
    },
    "KeyCreated": {
        "key": "The key itself. It is shown only here.",
    },
    "Problem": {
        "type": "A name of the code in the form of a URI.",
        "title": "The HTTP status in words.",
        "status": "The HTTP status.",
        "code": "What went wrong: stable, for programs. The description of each answer names those that it can have.",
        "detail": "What went wrong, for people, with the names of what is involved.",
        "hint": "What to do about it; null if there is nothing more to say.",
        "details": "Facts for programs. Of `INVALID_REQUEST` and `INVALID_INPUT`: `errors`, each with the place (`at`) "
        "and the `problem`. Of 429: `retry_after_ms`. Of 413: `size` and `limit`.",
    },
}  # fmt: skip

_STATES: Final = tuple(runs.TRANSITIONS)
_STEP_STATES: Final = tuple(steps.TRANSITIONS)

#: The only values that a field can have.
VALUES: Final[dict[tuple[str, str], tuple[Any, ...]]] = {
    ("Run", "state"): _STATES,
    ("Run", "resume_state"): _STATES,
    ("Run", "compensating_for"): runs.COMPENSATED,
    ("Step", "kind"): steps.KINDS,
    ("Step", "state"): _STEP_STATES,
    ("Try", "state"): _STEP_STATES,
    ("Hold", "code"): tuple(why.CODES),
    ("Event", "kind"): tuple(j.KINDS),
    ("Steered", "state"): _STATES,
    ("Lease", "executing"): (0, 1),
    ("Session", "draining"): (0, 1),
    ("Session", "kind"): capacity.KINDS,
    ("QueueRow", "status"): capacity.STATUSES,
    ("Audit", "action"): tuple(ACTIONS),
    ("Key", "kind"): keys.KINDS,
    ("Key", "role"): keys.ROLES,
}


def meaning_of(schema: str, name: str) -> str:
    """What a field of a schema means.

    Raises:
        LookupError: nobody has said it.
    """
    try:
        return MEANINGS[schema].get(name) or EVERYWHERE[name]
    except KeyError:
        raise LookupError(f"say in {__name__} what {schema}.{name} means") from None
