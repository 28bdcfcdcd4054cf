"""The error tree is a public contract: codes, statuses, advice, and the picture in its docstring."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from ironflow import errors
from ironflow.errors import (
    InvalidSettings,
    InvalidTransition,
    IronflowError,
    LeaseExpired,
    PayloadRejected,
    PayloadTooLarge,
    ReplayDivergence,
    RunFailed,
    RunPaused,
    RunTimeout,
    StepFailed,
    StepTimeout,
    for_run,
)
from ironflow.model.retry import NonRetryableError, RetryAfterError


def tree(cls: type[IronflowError] = IronflowError) -> Iterator[type[IronflowError]]:
    yield cls
    for child in cls.__subclasses__():
        if child.__module__ == errors.__name__:
            yield from tree(child)


CLASSES = sorted(set(tree()), key=lambda cls: cls.__name__)
SAMPLES: dict[type[IronflowError], IronflowError] = {
    PayloadRejected: PayloadRejected("result.items[3].rate", "nan has no JSON form"),
    PayloadTooLarge: PayloadTooLarge("result of charge", 3_000_000, 2_097_152),
    ReplayDivergence: ReplayDivergence("0/3:charge", "step refund", "step charge"),
    StepFailed: StepFailed("shop.CardDeclined", "no funds"),
    InvalidSettings: InvalidSettings(["threads is 0: it must be at least 1"]),
}


def sample(cls: type[IronflowError]) -> IronflowError:
    return SAMPLES.get(cls) or cls()


def test_every_code_is_unique_upper_snake_case_and_its_own() -> None:
    codes = [cls.__dict__["code"] for cls in CLASSES]
    assert len(codes) == len(set(codes)) > 30
    assert all(re.fullmatch(r"[A-Z]+(_[A-Z]+)*", code) for code in codes)


@pytest.mark.parametrize("cls", CLASSES)
def test_every_error_is_documented_drawn_in_the_tree_and_says_what_to_do(cls: type[IronflowError]) -> None:
    assert cls.__doc__
    assert re.search(rf"\b{cls.__name__}\b", errors.__doc__ or "")
    assert 400 <= cls.status < 600
    error = sample(cls)
    assert str(error).startswith(error.message)
    groups = {parent for each in CLASSES for parent in each.__bases__}
    # What to do about a step's own failure, and about settings, is in the message itself.
    assert error.hint or cls in groups or cls in (StepFailed, InvalidSettings)


@pytest.mark.parametrize("code", [
    "STORE_UNAVAILABLE", "SCHEMA_TOO_NEW", "INVALID_TRANSITION", "WORKFLOW_UNKNOWN",
    "WORKFLOW_NAME_TAKEN", "INVALID_INPUT", "PAYLOAD_REJECTED", "PAYLOAD_TOO_LARGE", "DEFINITION_INVALID",
    "STEP_OUTSIDE_WORKFLOW", "STEP_NOT_AWAITED", "REPLAY_DIVERGENCE", "HANDLER_VERSION_MISMATCH",
    "WORKFLOW_STUCK", "FORBIDDEN_IN_WORKFLOW", "EXECUTION_RECOVERY_EXHAUSTED", "WORKER_LEASE_EXPIRED",
    "SETTINGS_INVALID", "RUN_PAUSED",
])  # fmt: skip
def test_the_published_codes_exist(code: str) -> None:
    assert code in {cls.code for cls in CLASSES}


def test_the_text_of_an_error_is_its_message_followed_by_the_hint() -> None:
    assert str(LeaseExpired("seq 3 is old", hint="Drop it.")) == "seq 3 is old. Drop it."
    assert str(LeaseExpired("Too old!", hint="Drop it.")) == "Too old! Drop it."
    assert str(LeaseExpired("seq 3 is old", hint="")) == "seq 3 is old"
    assert LeaseExpired("x").args == ("x",)


def test_errors_carry_their_facts_as_data() -> None:
    assert SAMPLES[PayloadTooLarge].details == {
        "what": "result of charge", "size": 3_000_000, "limit": 2_097_152
    }  # fmt: skip
    assert "3,000,000 bytes, the limit is 2,097,152" in str(SAMPLES[PayloadTooLarge])
    failed = RunFailed("it failed", run_id="r1", failure={"type": "ValueError"})
    assert failed.run_id == "r1"
    assert failed.failure == {"type": "ValueError"}
    assert failed.details == {"run_id": "r1"}
    assert RunFailed().failure is None
    assert str(StepFailed("shop.CardDeclined", "")) == "shop.CardDeclined"


def test_timeouts_are_also_pythons_timeout_error() -> None:
    with pytest.raises(TimeoutError, match="too slow"):
        raise StepTimeout("too slow")
    assert isinstance(RunTimeout(run_id="r1"), TimeoutError)


def test_a_retry_hint_is_kept_in_milliseconds_and_checked_where_it_is_raised() -> None:
    assert RetryAfterError("busy", after="30s").after_ms == 30_000
    assert str(RetryAfterError("busy", after=1)) == "busy"
    with pytest.raises(errors.InvalidDuration, match="after: -1"):
        RetryAfterError("busy", after=-1)
    assert not issubclass(NonRetryableError, IronflowError)


def test_advice_about_a_known_run_names_it() -> None:
    for kind in (RunFailed, RunPaused, RunTimeout, InvalidTransition):
        hint = kind(run_id="r-1").hint or ""
        assert "RUN" not in hint
        assert ("r-1" in hint) is ("RUN" in kind.advice)
    assert "RUN" in (RunFailed().hint or ""), "of which run it is, nobody knows"
    assert "--restart r-1" in (RunFailed(run_id="r-1", undone=True).hint or "")
    assert for_run("`get RUN`; a RUNNER", "r-1") == "`get r-1`; a RUNNER"
