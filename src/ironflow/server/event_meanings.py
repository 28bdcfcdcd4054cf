"""What a journal's events tell, kind by kind: for those who have the OpenAPI document alone.

Owns the sentences about payloads. The kinds are those of the model, and its checks of what a worker writes (`payloads`)
name no field that is not explained here.
"""

from __future__ import annotations

from typing import Final

from ironflow.model import journal as j

#: What the fields of payloads mean, wherever they stand.
PAYLOAD_FIELDS: Final = {
    "t": "when it happened, as the workflow saw it: milliseconds since 1970",
    "input": "the run's input, a value",
    "worker": "the name of the worker",
    "cancelling": "true while the run is being undone",
    "state": "the run's state from then on",
    "due": "until when: milliseconds since 1970",
    "reason": "why, as a code or in a few words",
    "message": "for people",
    "by": "who asked for it",
    "charged": "whether it counts against the run's ceiling of lost workers",
    "session": "the session that had the run",
    "attempt": "which attempt, or which try of a step, has failed",
    "of": "how many there may be",
    "mode": "`resume` keeps finished steps, `restart` executes every step again",
    "error": "what it failed with, a `Failure`",
    "failed_steps": "the ids of the steps that execute again if the run goes on",
    "undo_errors": "the compensations that failed: the id of the step, and its `Failure`",
    "compensate": "whether it is undone first",
    "force": "whether its compensations are skipped",
    "step_id": "the step that it is about",
    "expected": "what the code asked for",
    "recorded": "what the journal has in that place",
    "where": "the line of the code",
    "output": "what the workflow returned, or has published, a value",
    "unreported": "calls and failed tasks that nobody awaited, as texts",
    "try": "the number of the try; 1 if left out",
    "kind": "what the step's author called it; `tool` if left out",
    "input_hash": "a hash of the step's arguments",
    "result": "what the step returned, a value",
    "untold": "true if it was stored before slow code was told of it",
    "abandoned": "true if its body may go on, and nobody waits for it",
    "patched": "the name of the patch",
    "name": "the name of the step's function",
    "text": "the status",
}
#: The fields that a payload may have, by kind.
PAYLOADS: Final[dict[str, tuple[str, ...]]] = {
    j.RUN_CREATED: ("t", "input"),
    j.RUN_STARTED: ("t", "worker", "cancelling"),
    j.RUN_SUSPENDED: ("state", "due"),
    j.RUN_RESUMED: ("t", "worker", "cancelling"),
    j.RUN_RECOVERED: ("reason", "charged", "session"),
    j.RUN_RELEASED: ("t", "session"),
    j.RUN_PAUSED: (
        "t", "reason", "message", "by", "error", "failed_steps", "mode", "step_id", "expected", "recorded", "where",
    ),
    j.RUN_UNPAUSED: ("by", "state"),
    j.RUN_RETRYING: ("t", "attempt", "of", "due", "mode", "error", "failed_steps"),
    j.CANCEL_REQUESTED: ("by", "compensate", "force"),
    j.RUN_COMPENSATING: ("error",),
    j.RUN_REOPENED: ("by", "mode", "failed_steps"),
    j.RUN_SUCCEEDED: ("t", "output", "undo_errors", "unreported"),
    j.RUN_FAILED: ("t", "error", "failed_steps", "undo_errors", "unreported"),
    j.RUN_CANCELLED: ("t", "by", "undo_errors", "unreported"),
    j.STEP_STARTED: ("try", "kind", "input_hash"),
    j.STEP_COMPLETED: ("t", "result", "untold"),
    j.STEP_FAILED: ("t", "error", "untold"),
    j.STEP_RETRYING: ("t", "attempt", "of", "due", "error"),
    j.STEP_INTERRUPTED: ("reason", "error"),
    j.STEP_CANCELLED: ("abandoned", "error"),
    j.STEP_SKIPPED: ("name", "reason"),
    j.TIMER_STARTED: ("due",),
    j.TIMER_FIRED: ("t",),
    j.VALUE_RECORDED: ("patched",),
    j.COMPENSATION_REGISTERED: ("name",),
    j.STATUS_SET: ("text",),
    j.OUTPUT_SET: ("output",),
    j.WARNING: ("message",),
}  # fmt: skip


def kinds() -> str:
    """What each kind of event means, as text of the OpenAPI document."""
    return "What happened.\n\n" + "\n".join(f"- `{kind}`: {meaning}" for kind, meaning in j.KINDS.items())


def payloads() -> str:
    """What a payload of each kind may hold, and what that means, in the same way."""
    fields = "\n".join(f"- `{kind}`: {', '.join(f'`{name}`' for name in names)}" for kind, names in PAYLOADS.items())
    told = "\n".join(f"- `{name}`: {meaning}" for name, meaning in PAYLOAD_FIELDS.items())
    return (
        "What there is to tell. Its fields depend on the kind; of one that cannot be read there is only `unreadable`, "
        f"which says why. What does not apply is left out, and there may be more than these.\n\n{fields}\n\n"
        f"What they mean:\n\n{told}"
    )
