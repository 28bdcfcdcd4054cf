"""Text from outside on a terminal: nothing of it is obeyed, and nothing of it is hidden."""

from __future__ import annotations

import json
from typing import Any

import pytest
from rich.text import Text

from ironflow.cli import exits, lines, output
from ironflow.cli.listing import Listing
from ironflow.errors import ServerError
from ironflow.model import journal as j
from ironflow.model.journal import Event

HOSTILE = "a\x1b]0;title\x07\x1b[2J\x9b31mb\u202ec\r\x7f"
SEEN = ("a␛]0;title", "␛[2J")


def obeyed(text: str) -> set[str]:
    return {char for char in text if (ord(char) < 32 and char != "\n") or 0x7F <= ord(char) < 0xA0 or char == "\u202e"}


class Terminal:
    """What was written, on both streams."""

    def __init__(self, captured: pytest.CaptureFixture[str]) -> None:
        self._captured = captured
        self._seen = ""

    def getvalue(self) -> str:
        self._seen += "".join(self._captured.readouterr())
        return self._seen


@pytest.fixture
def terminal(capsys: pytest.CaptureFixture[str]) -> Terminal:
    return Terminal(capsys)


def test_a_screen_shows_controls_and_obeys_none(terminal: Terminal) -> None:
    screen = output.screen()
    screen.print(HOSTILE)
    screen.print(Text(HOSTILE), style="bold", soft_wrap=True)
    table = Listing("ONE", "TWO")
    table.add_row(HOSTILE, Text(HOSTILE))
    table.print(screen)
    error = json.dumps({"t": 1, "error": {"type": HOSTILE, "message": HOSTILE}})
    lines.Printer(screen).show(Event(1, j.STEP_FAILED, f"main/1:{HOSTILE}", error))
    shown = terminal.getvalue()
    assert obeyed(shown) == set()
    assert all(part in shown for part in SEEN)
    assert shown.count("␛[2J") >= 6


def test_an_error_shows_controls_and_obeys_none(terminal: Terminal) -> None:
    exits.say(ServerError(HOSTILE, hint=HOSTILE), as_json=False)
    assert obeyed(terminal.getvalue()) == set()
    assert "␛[2J" in terminal.getvalue()


def test_json_holds_controls_as_escapes(terminal: Terminal) -> None:
    output.emit({"name": HOSTILE})
    exits.say(ServerError(HOSTILE), as_json=True)
    text = terminal.getvalue()
    assert obeyed(text) - {"\u202e"} == set()
    assert json.loads(text.splitlines()[0]) == {"name": HOSTILE}
    assert obeyed(output.result_text(HOSTILE)) - {"\u202e"} == set()


def test_colours_are_still_sent(monkeypatch: pytest.MonkeyPatch, terminal: Terminal) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    output.screen().print("x", style="red")
    assert "\x1b[31mx" in terminal.getvalue()


@pytest.mark.parametrize(
    "payload", ["{garbage}", '{"error":5}', '{"due":"x","error":{"message":7}}', '{"undo_errors":{"a":1}}']
)
@pytest.mark.parametrize("kind", sorted(j.KINDS))
def test_an_event_that_cannot_be_read_is_a_line_all_the_same(kind: str, payload: str, terminal: Terminal) -> None:
    event: Any = Event(1, kind, "main/1:a", payload)
    lines.Printer(output.screen()).show(event)
    assert kind in terminal.getvalue()
    if payload == "{garbage}":
        assert "cannot be read" in terminal.getvalue()
