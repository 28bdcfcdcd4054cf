"""Every command that a hint, an error or a page of the docs names can be given as it stands there.

Nothing is run: the parser alone judges, with the words that a reader would replace (`RUN`, `FILE`, `…`) as they are.
"""

from __future__ import annotations

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import ironflow
from ironflow.cli.app import command as whole_command

SOURCE = Path(ironflow.__file__).parent
ROOT = SOURCE.parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md")] + sorted(
    page for folder in ("docs", "examples") for page in (ROOT / folder).rglob("*.md")
)
_QUOTED = re.compile(r"`(?:\$ )?ironflow ([^`]+)`")
_SHELL = re.compile(r"^\s*(?:\$ )?(?:[A-Z_]+=\S+ )*ironflow (.+)$")


def in_source() -> Iterator[tuple[str, str]]:
    """The commands in the texts of the code: where they stand, and their words behind `ironflow`."""
    for file in sorted(SOURCE.rglob("*.py")):
        tree = ast.parse(file.read_text(encoding="utf-8"))
        docs = {
            node.body[0].value
            for node in ast.walk(tree)
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body and isinstance(node.body[0], ast.Expr)
        }  # fmt: skip
        parts = {part for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
        for node in ast.walk(tree):
            if node in docs or node in parts:
                continue
            for found in _QUOTED.finditer(text_of(node)):
                if "[^" in found[1] or (file.name == "config.py" and " " not in found[1]):
                    continue  # a pattern; and what a setting means is told with the bare names of commands
                yield f"{file.relative_to(SOURCE)}:{node.lineno}", found[1]  # type: ignore[attr-defined]


def text_of(node: ast.AST) -> str:
    """A text as it will be, with X where a value is put in."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "X" for part in node.values)
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""


def in_pages() -> Iterator[tuple[str, str]]:
    """The commands in code blocks of the docs. In a sentence, a command may also be just named."""
    for page in PAGES:
        for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), 1):
            indented = line.startswith(("    ", "$ "))
            found = _SHELL.match(line) if indented else None
            if found is not None:
                yield f"{page.relative_to(ROOT)}:{number}", found[1]


def parsed(text: str) -> str:
    """What the parser says against a command, "" if nothing. What follows `|`, `&`, `>` or `#` is the shell's."""
    lexer = shlex.shlex(text.rstrip("\\"), posix=True, punctuation_chars="|&;<>")
    lexer.whitespace_split = True
    words: list[str] = []
    try:
        for word in lexer:
            if word[0] in "|&;<>":
                break
            words.append(word)
    except ValueError as error:
        return f"the shell cannot read it: {error}"
    if words and words[-1] in ("2", "1"):
        words.pop()
    open_end = text.endswith("\\") or words[-1:] == ["…"]
    given = judged(whole_command(), [word.replace("…", "X") for word in words], open_end=open_end)
    return given and judged(whole_command(), [word for word in words if word != "…"], open_end=open_end)


def judged(command: Any, words: list[str], *, open_end: bool) -> str:
    """Follow the words down the tree of commands, and parse what is left."""
    while hasattr(command, "commands") and words and not words[0].startswith("-"):
        if words[0] not in command.commands:
            return f"no such command: {words[0]}"
        command, words = command.commands[words[0]], words[1:]
    if hasattr(command, "commands"):  # a group, or an option of the whole
        return "" if words else "no command is named"
    try:
        command.make_context(command.name, list(words))
    except Exception as error:  # typer's own copy of click has the class
        told = getattr(error, "format_message", None)
        said = str(error if told is None else told())
        return "" if open_end and said.startswith("Missing") else said
    return ""


@pytest.mark.parametrize(("where", "text"), [*in_source(), *in_pages()])
def test_a_command_that_is_named_can_be_given(where: str, text: str) -> None:
    assert parsed(text) == "", where


def test_the_judge_refuses_what_the_command_line_refuses() -> None:
    assert "NAME" in parsed("apikey create --worker")
    assert parsed("apikey create --worker NAME") == ""
    assert "--nothing" in parsed("runs list --nothing")
    assert "no such command" in parsed("lst")
    assert parsed("run app.py:order --input '{}' 2> first.txt &") == ""
    assert parsed("runs create … --id 7") == ""
