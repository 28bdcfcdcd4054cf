"""What requests and facts look like in a log or a failing test."""

from __future__ import annotations

from typing import Any

import pytest
from tests.workflow.driving import work

from ironflow.engine.instance import Raised, Returned
from ironflow.engine.requests import (
    CancelStep,
    CancelTimer,
    Completed,
    Failed,
    Fired,
    Note,
    StartTimer,
    StepCall,
)


@pytest.mark.parametrize(
    ("shown", "text"),
    [
        (StepCall("main/1:work", work.spec, (), {}), "StepCall('main/1:work')"),
        (StartTimer("main/t1", 5), "StartTimer('main/t1', due=5)"),
        (CancelStep("main/1:work"), "CancelStep('main/1:work')"),
        (CancelTimer("main/t1"), "CancelTimer('main/t1')"),
        (Note("warning", "main/n1", {"a": 1}), "Note('warning', 'main/n1', {'a': 1})"),
        (Completed("main/1:work", 5), "Completed('main/1:work', 5)"),
        (Failed("main/1:work", ValueError("x")), "Failed('main/1:work', ValueError('x'))"),
        (Fired("main/t1"), "Fired('main/t1')"),
        (Returned(1), "Returned(1)"),
        (Raised(ValueError("x")), "Raised(ValueError('x'))"),
    ],
)
def test_each_shows_its_id(shown: Any, text: str) -> None:
    assert repr(shown) == text
