"""The errors of Ironflow: one tree, each class with a stable code, an HTTP status and advice.

(Over 400 lines because the tree is one table: splitting it would hide which codes exist.)

    Exception
    └── IronflowError
        ├── StoreError               the database
        │   ├── StoreUnreachable (StoreGone) · StoreTooNew · StoreCorrupt · StoreReadOnly · StoreFull · EngineClosed
        ├── ServerError              the HTTP server, as its clients and workers see it
        │   ├── ServerUnreachable · ServerStopping
        ├── AccessError              who asks may not
        │   ├── Unauthenticated · Forbidden · PlatformRequired · RateLimited · TooManyStreams
        ├── RequestError             what a caller asked for cannot be done
        │   ├── RunNotFound · WorkflowUnknown · InvalidInput · InvalidPriority
        │   ├── InvalidTransition · IdempotencyKeyConflict · ConcurrencyConflict · SessionUnknown
        │   ├── UnsupportedMediaType · MalformedJson · InvalidRequest · InvalidCursor · KeyNotFound
        ├── PayloadError             a value that cannot be stored
        │   ├── PayloadRejected · PayloadTooLarge
        ├── DefinitionError          code that breaks a rule of the authors' API
        │   ├── WorkflowNameTaken · StepOutsideWorkflow · StepNotAwaited · ForbiddenInWorkflow
        ├── ReplayError              a recorded run and today's code do not fit together
        │   ├── ReplayDivergence · HandlerVersionMismatch · WorkflowStuck
        ├── OwnershipError           the right to execute a run is gone
        │   ├── LeaseExpired · ExecutionRecoveryExhausted
        ├── StepError                how a step ended, as its workflow sees it
        │   ├── StepFailed · StepInterrupted · StepTimeout
        ├── RunError                 how a run ended, as a caller outside sees it
        │   ├── RunFailed · RunCancelled · RunPaused · RunTimeout
        └── ConfigError              settings and durations
            ├── InvalidSettings · InvalidDuration

Codes are part of the public contract: the journal, the HTTP API and the command line show them, so a code once
released is never renamed or used for something else. `str(error)` is the message followed by what to do about it,
because the person who reads it at night has only that line. Control flow (suspension, fences inside the engine,
verdicts of replay) is never an exception of this tree: a signal that a broad `except` can swallow is a bug. What
authors raise to steer retries (`NonRetryableError`, `RetryAfterError`) is none of the engine's errors either: it
stands beside the policy that reads it, in `ironflow.model.retry`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Final


def for_run(advice: str, run_id: str) -> str:
    """Advice whose commands name a run instead of `RUN`, so that they can be copied."""
    return re.sub(r"\bRUN\b", lambda _: run_id, advice)


class IronflowError(Exception):
    """Base of every error the engine raises.

    Class attributes:
        code: stable UPPER_SNAKE name, the same in Python, the journal, HTTP and the command line.
        status: HTTP status the server answers with.
        summary: the message when none is given.
        advice: what to do, when the raising place knows nothing better.

    Args:
        message: what happened, naming the things involved.
        hint: what to do about it; replaces the class's advice ("" for none).
        details: machine-readable facts (plain JSON data).
    """

    code: ClassVar[str] = "IRONFLOW_ERROR"
    status: ClassVar[int] = 500
    summary: ClassVar[str] = "Ironflow could not do this"
    advice: ClassVar[str] = ""

    message: str
    hint: str | None
    details: dict[str, Any]

    def __init__(
        self, message: str | None = None, *, hint: str | None = None, details: Mapping[str, Any] | None = None
    ) -> None:
        self.message = self.summary if message is None else message
        self.hint = (self.advice if hint is None else hint) or None
        self.details = dict(details) if details else {}
        super().__init__(self.message)

    def __str__(self) -> str:
        if not self.hint:
            return self.message
        return f"{self.message}{'' if self.message.endswith(('.', '!', '?')) else '.'} {self.hint}"


# ---- the database ----------------------------------------------------------------------------------------


class StoreError(IronflowError):
    """The database refused or failed in a way that has no class of its own."""

    code = "STORE_UNAVAILABLE"
    status = 503
    summary = "the store could not complete the operation"
    advice = "Look at the database's log; nothing was acknowledged, so the same call may be made again."


class StoreUnreachable(StoreError):
    """No connection could be made, or it was lost and did not come back in time."""

    code = "STORE_UNREACHABLE"
    summary = "the store cannot be reached"
    advice = "Check that the database is running and that IRONFLOW_DATABASE_URL names it."


class StoreGone(StoreUnreachable):
    """The file of a SQLite database was deleted, moved or replaced under a process that has it open; it stops."""

    code = "STORE_GONE"
    summary = "the database file is gone"
    advice = (
        "Put back the file that is to count, and start again; stop every process on a database before its files are "
        "touched."
    )


class StoreTooNew(StoreError):
    """The schema was migrated by a newer release; writing to it could destroy what that release relies on."""

    code = "SCHEMA_TOO_NEW"
    summary = "the database was migrated by a newer release of Ironflow"
    advice = "Upgrade this installation of ironflow-engine; migrations are never undone."


class StoreCorrupt(StoreError):
    """Stored data contradicts itself or cannot be read."""

    code = "STORE_CORRUPT"
    status = 500
    summary = "the stored data is damaged"
    advice = "Stop all workers, run `ironflow doctor`, and restore from a backup what it cannot explain."


class StoreReadOnly(StoreError):
    """The database answers, but takes no writes (a standby, a read-only file system, missing rights)."""

    code = "STORE_READ_ONLY"
    summary = "the store is read-only"
    advice = "Point IRONFLOW_DATABASE_URL at the primary, or give this user the right to write."


class StoreFull(StoreError):
    """No space is left for another write."""

    code = "STORE_FULL"
    status = 507
    summary = "the store has no space left"
    advice = "Free disk space; runs go on by themselves afterwards."


class EngineClosed(StoreError):
    """This program has closed the engine that it asks, or has not opened it yet."""

    code = "ENGINE_CLOSED"
    summary = "the engine is not open"
    advice = "Open it (again). Its runs are not harmed: whoever works on the database goes on with them."


# ---- the server ------------------------------------------------------------------------------------------


class ServerError(IronflowError):
    """What answered over HTTP failed, or is no Ironflow server; its own errors come back as their own classes."""

    code = "SERVER_FAILED"
    status = 502
    summary = "the server could not answer"
    advice = "Look at the server's log, and check that the address is that of `ironflow serve`."


class ServerUnreachable(ServerError):
    """No connection to the server could be made, or it broke and did not come back in time."""

    code = "SERVER_UNREACHABLE"
    status = 503
    summary = "the server cannot be reached"
    advice = "Check that `ironflow serve` is running and that --server or IRONFLOW_SERVER names its address."


class ServerStopping(ServerError):
    """The server is about to end and takes nothing new; what it had begun is answered."""

    code = "SERVER_STOPPING"
    status = 503
    summary = "this server is stopping"
    advice = "Ask another server, or this one again in a moment."


OUTAGES = (StoreUnreachable, StoreFull, StoreReadOnly, ServerUnreachable, ServerStopping)
"""What a worker outlives: its world is away or takes nothing, and it tries again or leaves the run to its lease."""


# ---- access ----------------------------------------------------------------------------------------------


class AccessError(IronflowError):
    """Who asks may not do this."""

    code = "ACCESS_REFUSED"
    status = 403
    summary = "this is not allowed"


class Unauthenticated(AccessError):
    """No key, or one that is unknown, revoked or expired; which of these is not told."""

    code = "UNAUTHENTICATED"
    status = 401
    summary = "a valid API key is required"
    advice = "Send it as `Authorization: Bearer …`; keys are made with `ironflow apikey create NAME`."


class Forbidden(AccessError):
    """The key is valid and is not meant for this: of another kind, or of a role that may not."""

    code = "FORBIDDEN"
    summary = "this key may not do this"
    advice = "Use a key of a higher role or of another kind; an admin of the organisation can make one."


class PlatformRequired(AccessError):
    """What concerns all organisations is shown to platform keys only."""

    code = "PLATFORM_CREDENTIALS_REQUIRED"
    summary = "platform credentials required here"
    advice = (
        "Make one with `ironflow apikey create --platform NAME` on the host that owns the database, with the same --db "
        "as the server (also of `serve --dev`)."
    )


class RateLimited(AccessError):
    """This key has asked too often."""

    code = "RATE_LIMITED"
    status = 429
    summary = "too many requests with this key"
    advice = "Wait as long as the header Retry-After says; the limit is IRONFLOW_API_RATE."


class TooManyStreams(AccessError):
    """This key holds as many streams open at this node as it may."""

    code = "TOO_MANY_STREAMS"
    status = 429
    summary = "too many open streams with this key"
    advice = "Close streams that nobody reads, or come back later; the limit is IRONFLOW_MAX_STREAMS."


# ---- requests --------------------------------------------------------------------------------------------


class RequestError(IronflowError):
    """What a caller asked for cannot be done; asking again unchanged gives the same answer."""

    code = "REQUEST_REFUSED"
    status = 400
    summary = "the request cannot be carried out"
    advice = "Change the request; repeating it gives the same answer."


class RunNotFound(RequestError):
    """No run has this id (or it was deleted)."""

    code = "RUN_NOT_FOUND"
    status = 404
    summary = "no such run"
    advice = "List the runs with `ironflow runs list`."


class WorkflowUnknown(RequestError):
    """No workflow of this name is registered here."""

    code = "WORKFLOW_UNKNOWN"
    status = 404
    summary = "no such workflow"
    advice = "Register it with @workflow in a module the worker loads, or correct the name."


class InvalidInput(RequestError):
    """The input does not fit the workflow's or step's signature."""

    code = "INVALID_INPUT"
    summary = "the input, or an option beside it, does not fit"
    advice = "Correct what is named, and ask again."


class InvalidPriority(RequestError):
    """A priority outside the allowed range."""

    code = "INVALID_PRIORITY"
    summary = "the priority is out of range"
    advice = "Use a whole number in the documented range; higher goes first."


class InvalidTransition(RequestError):
    """The run or step is in a state from which this command leads nowhere.

    Args:
        message: what happened.
        run_id: the run, so that the advice can name it.
        hint: what to do about it.
    """

    code = "INVALID_TRANSITION"
    status = 409
    summary = "the run's state does not allow this"
    advice = "Look at the state with `ironflow runs get RUN`; nothing was changed."

    def __init__(
        self,
        message: str | None = None,
        *,
        run_id: str | None = None,
        hint: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        if hint is None and run_id is not None:
            hint = for_run(self.advice, run_id)
        super().__init__(message, hint=hint, details=details)


class IdempotencyKeyConflict(RequestError):
    """The idempotency key was used before with another request."""

    code = "IDEMPOTENCY_KEY_CONFLICT"
    status = 409
    summary = "this idempotency key belongs to a different request"
    advice = "Repeat the first request unchanged, or choose a new key."


class ConcurrencyConflict(RequestError):
    """The concurrency key is held by a run that has not ended."""

    code = "CONCURRENCY_CONFLICT"
    status = 409
    summary = "another run holds this concurrency key"
    advice = "Wait for the holder to end, or cancel it."


class SessionUnknown(RequestError):
    """No worker is registered under this session: it never was, it left, or it was taken for dead."""

    code = "SESSION_UNKNOWN"
    status = 404
    summary = "no worker is registered under this session"
    advice = "Register the session (again); what it held before is somebody else's by now."


class UnsupportedMediaType(RequestError):
    """The body of a request says of itself that it is something else than JSON."""

    code = "UNSUPPORTED_MEDIA_TYPE"
    status = 415
    summary = "the body is not JSON by its media type"
    advice = "Send JSON with the header `Content-Type: application/json`."


class MalformedJson(RequestError):
    """The body of a request is no JSON."""

    code = "MALFORMED_JSON"
    summary = "the body is no JSON"
    advice = "Send one JSON document in UTF-8."


class InvalidRequest(RequestError):
    """A field or parameter is missing, unknown, of a wrong type or out of range; `details.errors` names each."""

    code = "INVALID_REQUEST"
    summary = "the request is not of the documented form"
    advice = "The forms are in /api/v1/openapi.json."


class InvalidCursor(RequestError):
    """A place to go on from that is not one of this list or stream."""

    code = "INVALID_CURSOR"
    summary = "this is no place in this list"
    advice = "Pass on what the page before answered as `next`, with the same filters, or begin anew without it."


class KeyNotFound(RequestError):
    """No API key has this id, as far as the caller may know."""

    code = "KEY_NOT_FOUND"
    status = 404
    summary = "no such API key"
    advice = "List the keys with `ironflow apikey list`."


# ---- values ----------------------------------------------------------------------------------------------


class PayloadError(IronflowError):
    """A value cannot be stored. Trying again cannot help, so it never uses an attempt."""

    code = "PAYLOAD_INVALID"
    status = 422
    summary = "the value cannot be stored"
    advice = "Return or pass plain data."


class PayloadRejected(PayloadError):
    """A value would not come back equal and of the same type.

    Args:
        path: where in the value, e.g. `result.items[3].rate`.
        reason: what is wrong there.
        hint: what to do about it.
    """

    code = "PAYLOAD_REJECTED"
    advice = "Annotate the function with the exact type, or use plain data there."

    def __init__(self, path: str, reason: str, *, hint: str | None = None) -> None:
        self.path = path
        self.reason = reason
        super().__init__(f"{path}: {reason}", hint=hint, details={"path": path, "reason": reason})


class PayloadTooLarge(PayloadError):
    """A value is larger than the limit.

    Args:
        what: the value's name, e.g. `result` or `args of step charge`.
        size: its encoded size in bytes.
        limit: the limit in bytes.
    """

    code = "PAYLOAD_TOO_LARGE"
    status = 413
    summary = "the body, or a value in it, is larger than the limit"
    advice = "Store the data elsewhere and pass a reference, or raise IRONFLOW_MAX_PAYLOAD_BYTES."

    def __init__(self, what: str, size: int, limit: int, *, hint: str | None = None) -> None:
        self.what = what
        self.size = size
        self.limit = limit
        super().__init__(
            f"{what} takes {size:,} bytes, the limit is {limit:,}",
            hint=hint,
            details={"what": what, "size": size, "limit": limit},
        )


# ---- definitions -----------------------------------------------------------------------------------------


class DefinitionError(IronflowError):
    """A step or workflow is declared or used against a rule of the authors' API."""

    code = "DEFINITION_INVALID"
    summary = "the definition breaks a rule"
    advice = "Correct the code."


class WorkflowNameTaken(DefinitionError):
    """Two workflows claim one name; runs of either would be executed by whichever was loaded last."""

    code = "WORKFLOW_NAME_TAKEN"
    status = 409
    summary = "this workflow name is already registered from another place"
    advice = "Rename one of them with @workflow(name=...)."


class StepOutsideWorkflow(DefinitionError):
    """A step was called where there is no journal to write it to."""

    code = "STEP_OUTSIDE_WORKFLOW"
    summary = "a step was called outside a workflow"
    advice = "Call the plain function as STEP.fn(...), or await the step inside a workflow."


class StepNotAwaited(DefinitionError):
    """A step was called in a workflow, but its call was never awaited, so it never ran."""

    code = "STEP_NOT_AWAITED"
    summary = "a step call was never awaited"
    advice = "Put `await` before the call, or hand it to asyncio.gather or ctx.parallel."


class ForbiddenInWorkflow(DefinitionError):
    """Workflow code did what cannot be replayed: I/O, clocks, randomness, threads."""

    code = "FORBIDDEN_IN_WORKFLOW"
    summary = "workflow code may not do this itself"
    advice = "I/O belongs in a step: await ctx.step(...)."


# ---- replay ----------------------------------------------------------------------------------------------


class ReplayError(IronflowError):
    """A recorded run cannot go on with the code that is loaded."""

    code = "REPLAY_FAILED"
    status = 409
    summary = "the recorded run does not fit the code"
    advice = "Deploy code that fits the recorded run, then resume it."


class ReplayDivergence(ReplayError):
    """The code asks for something else than the journal recorded at the same place.

    Args:
        step_id: the place in the run.
        expected: what the code asks for now (name and kind).
        recorded: what the journal holds there.
        where: the file and line of the code that asks, if they are known.
        hint: what to do about it.
    """

    code = "REPLAY_DIVERGENCE"
    advice = (
        "Roll the code back, or put the change behind ctx.patched(…); then `ironflow runs resume RUN` lets it go on."
    )

    def __init__(
        self, step_id: str, expected: str, recorded: str, *, where: str | None = None, hint: str | None = None
    ) -> None:
        self.step_id = step_id
        self.expected = expected
        self.recorded = recorded
        self.where = where
        details = {"step_id": step_id, "expected": expected, "recorded": recorded}
        if where is not None:
            details["where"] = where
        super().__init__(self.told(step_id, expected, recorded, where), hint=hint, details=details)

    @staticmethod
    def told(step_id: object, expected: object, recorded: object, where: object = None) -> str:
        """The message, also of a divergence that is only known by its facts."""
        line = f"; the code asks at {where}" if where else ""
        return f"at {step_id} the code asks for {expected}, and the journal recorded {recorded}{line}"


class HandlerVersionMismatch(ReplayError):
    """The run was started by a version of the workflow that the loaded one does not declare compatible."""

    code = "HANDLER_VERSION_MISMATCH"
    summary = "the run belongs to an incompatible version of the workflow"
    advice = "Start a worker with that version, or list it in compatible=[...] if its steps still fit."


class WorkflowStuck(ReplayError):
    """The workflow waits for something nothing can bring about."""

    code = "WORKFLOW_STUCK"
    status = 500
    summary = "the workflow waits, but nothing it asked for is outstanding"
    advice = "Look at the stacks in the message: an asyncio primitive is waited on that no task will set."


# ---- ownership -------------------------------------------------------------------------------------------


class OwnershipError(IronflowError):
    """The right to execute a run is gone or could not be kept."""

    code = "OWNERSHIP_LOST"
    status = 409
    summary = "this worker no longer owns the run"
    advice = "Drop the run; its new owner carries on from the journal."


class LeaseExpired(OwnershipError):
    """The worker's lease ran out, and the workflow allows no further recovery."""

    code = "WORKER_LEASE_EXPIRED"
    status = 500
    summary = "worker lease expired"
    advice = "See why the workers died (memory, eviction); retry the run, or raise max_recoveries."


class ExecutionRecoveryExhausted(OwnershipError):
    """Too many workers in a row were lost while executing this run."""

    code = "EXECUTION_RECOVERY_EXHAUSTED"
    status = 500
    summary = "too many workers in a row were lost while executing this run"
    advice = "The run probably kills its worker (memory, native crash): fix that step, then retry the run."


# ---- steps, seen by their workflow -----------------------------------------------------------------------


class StepError(IronflowError):
    """A step did not return a value."""

    code = "STEP_ERROR"
    summary = "the step did not return a value"


class StepFailed(StepError):
    """A recorded failure whose own class cannot be had here; it carries everything that was recorded.

    That happens when the class is not importable in this process, was defined inside a function, or was built
    from things that are not plain data.

    Args:
        type_name: the original class, `module.qualname`.
        message: the original's str().
        traceback: the original's traceback as text.
        notes: the original's notes.
    """

    code = "STEP_FAILED"

    def __init__(
        self, type_name: str, message: str, *, traceback: str = "", notes: Sequence[str] = ()
    ) -> None:
        self.type_name = type_name
        self.original_message = message
        self.traceback = traceback
        self.notes = tuple(notes)
        super().__init__(f"{type_name}: {message}" if message else type_name, details={"type": type_name})


class StepInterrupted(StepError):
    """A step marked at_most_once was cut off, and may have taken effect; so it is not repeated."""

    code = "STEP_INTERRUPTED"
    summary = "the step was interrupted and may have taken effect"
    advice = "Find out whether it took effect; give the step @reconcile to have that done automatically."


class StepTimeout(StepError, TimeoutError):
    """A step did not end within its timeout."""

    code = "STEP_TIMEOUT"
    status = 504
    summary = "the step did not end within its timeout"
    advice = "Raise timeout=..., or make the body shorter; heartbeat_timeout tells slow from hung."


# ---- runs, seen from outside -----------------------------------------------------------------------------


class RunError(IronflowError):
    """The run a caller waited for did not complete.

    Args:
        message: what happened.
        run_id: the run.
        hint: what to do about it.
        details: machine-readable facts.
    """

    code = "RUN_NOT_COMPLETED"
    summary = "the run did not complete"

    def __init__(
        self,
        message: str | None = None,
        *,
        run_id: str | None = None,
        hint: str | None = None,
        details: Mapping[str, Any] | None = None,
    ) -> None:
        self.run_id = run_id
        facts = dict(details or {})
        if run_id is not None:
            facts["run_id"] = run_id
            hint = for_run(self.advice, run_id) if hint is None else hint
        super().__init__(message, hint=hint, details=facts)


#: How a recorded failure names the error of a step that may not run again, because it may have taken effect.
CUT_OFF: Final = f"{__name__}.{StepInterrupted.__name__}"


def unknown_effect(failure: object) -> bool:
    """Whether a recorded failure, or one that it is made of, is a step that was cut off and may have taken effect."""
    if isinstance(failure, Mapping):
        return failure.get("type") == CUT_OFF or any(map(unknown_effect, failure.values()))
    return isinstance(failure, list) and any(map(unknown_effect, failure))


class RunFailed(RunError):
    """The run failed. Raised `from` the original exception, which `__cause__` holds.

    Args:
        message: what happened.
        run_id: the run.
        failure: the recorded failure as plain data (type, message, traceback, code).
        undo_errors: the compensations that failed in turn, by step id: what they were to undo still stands.
        undone: its compensations ran, so that nothing can go on behind its finished steps.
        hint: what to do about it.
    """

    code = "RUN_FAILED"
    summary = "the run failed"
    advice = "See `ironflow runs journal RUN`; after a fix, `ironflow runs retry RUN` keeps the finished steps."
    #: in place of it where the compensations ran
    advice_undone: ClassVar[str] = (
        "See `ironflow runs journal RUN`; it was undone, so after a fix `ironflow runs retry --restart RUN` executes "
        "every step again."
    )

    #: before either of them where a step was cut off that is at most once: a retry is what executes it again
    advice_unknown: ClassVar[str] = "Find out whether the step that was cut off took effect: it would execute again."

    def __init__(
        self,
        message: str | None = None,
        *,
        run_id: str | None = None,
        failure: Mapping[str, Any] | None = None,
        undo_errors: Mapping[str, Any] | None = None,
        undone: bool = False,
        hint: str | None = None,
    ) -> None:
        if run_id is not None and hint is None:
            hint = for_run(self.advice_undone if undone else self.advice, run_id)
            if unknown_effect(failure):
                hint = f"{self.advice_unknown} {hint}"
        self.failure = dict(failure) if failure else None
        self.undo_errors = dict(undo_errors) if undo_errors else {}
        super().__init__(message, run_id=run_id, hint=hint)


class RunCancelled(RunError):
    """The run was cancelled."""

    code = "RUN_CANCELLED"
    status = 409
    summary = "the run was cancelled"
    advice = "Start it again if its result is still wanted."


class RunPaused(RunError):
    """The run is paused, so the caller would wait without end."""

    code = "RUN_PAUSED"
    status = 409
    summary = "the run is paused"
    advice = "`ironflow why RUN` says why; `ironflow runs resume RUN` lets it go on."


class RunTimeout(RunError, TimeoutError):
    """The run did not end before its deadline."""

    code = "RUN_TIMEOUT"
    status = 504
    summary = "the run did not end before its deadline"
    advice = "A retry has as much time again as the run had. For more, start a new run with a later deadline."


# ---- configuration ---------------------------------------------------------------------------------------


class ConfigError(IronflowError):
    """Something Ironflow was told at start makes no sense."""

    code = "CONFIG_INVALID"
    status = 400
    summary = "the configuration is not usable"


class InvalidSettings(ConfigError, ValueError):
    """One or more settings are wrong or contradict each other; all of them are listed at once.

    Args:
        problems: one sentence each, saying what is wrong and what to do.
    """

    code = "SETTINGS_INVALID"

    def __init__(self, problems: Sequence[str]) -> None:
        self.problems = tuple(problems)
        lines = "".join(f"\n  - {problem}" for problem in self.problems)
        super().__init__(f"the settings cannot be used:{lines}", details={"problems": list(self.problems)})


class InvalidDuration(ConfigError, ValueError):
    """Not a length of time."""

    code = "DURATION_INVALID"
    summary = "this is not a length of time"
    advice = 'Give seconds (90, 0.25), a timedelta, or text such as "30s", "5m", "1h30m", "7d", "250ms".'
