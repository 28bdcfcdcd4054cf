"""What people read in lists: times as seen from now, no blanks behind the last column, a sentence where nothing is."""

from __future__ import annotations

import pytest
from tests.cli.conftest import Cli

from ironflow.cli import output, times
from ironflow.cli.listing import Listing

NOW = 1_800_000_000_000
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000


@pytest.mark.parametrize(
    ("passed", "shown"),
    [
        (0, "just now"),
        (744, "just now"),
        (SECOND, "1s ago"),
        (MINUTE - 1, "59s ago"),
        (HOUR - 1, "59m ago"),
        (3 * DAY, "3d ago"),
    ],
)
def test_what_lies_behind_is_told_in_units_that_have_passed(passed: int, shown: str) -> None:
    assert times.ago(NOW - passed, NOW) == shown


@pytest.mark.parametrize(
    ("ahead", "shown"),
    [
        (1, "in 1ms"),
        (300, "in 300ms"),
        (1_400, "in 1.4s"),
        (12_400, "in 12s"),
        (10 * MINUTE - 300, "in 10m"),
        (MINUTE - 300, "in 1m"),
        (HOUR - SECOND, "in 1h"),
        (DAY - MINUTE, "in 1d"),
        (50 * HOUR, "in 2d"),
    ],
)
def test_what_lies_ahead_is_told_in_the_nearest_number_of_units(ahead: int, shown: str) -> None:
    assert times.ago(NOW + ahead, NOW) == shown


def test_no_time_is_told_as_nothing() -> None:
    assert times.ago(None, NOW) == ""


def test_a_table_that_is_piped_has_no_blanks_behind_its_last_column(capsys: pytest.CaptureFixture[str]) -> None:
    made = Listing("RUN", "STATE")
    made.add_row("r1", "completed")
    made.add_row("r2", "")
    made.print(output.screen())
    assert capsys.readouterr().out == "RUN  STATE\nr1   completed\nr2\n"


def test_an_empty_audit_log_says_that_it_is_empty(cli: Cli) -> None:
    cli.run("add", 1)
    assert cli("audit") == ""
    assert cli.err.strip() == "the audit log is empty"
