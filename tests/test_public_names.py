"""`import ironflow`: the names it promises, each there when asked for, and nothing heavy before."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import ironflow

SOURCE = Path(ironflow.__file__)


def test_every_public_name_is_there_and_is_found_where_type_checkers_look() -> None:
    seen: dict[str, str] = {}
    for node in ast.walk(ast.parse(SOURCE.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("ironflow"):
            seen |= {alias.name: node.module for alias in node.names}
    assert sorted(seen) == sorted(ironflow.__all__)
    for name, module in seen.items():
        assert getattr(ironflow, name) is getattr(sys.modules[module], name)
        assert name in dir(ironflow)


def test_a_name_that_is_not_public_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="nothing_like_this"):
        _ = ironflow.nothing_like_this


def test_importing_it_loads_neither_the_engine_nor_what_the_engine_needs() -> None:
    program = "import sys, ironflow; print(*sorted({m.split('.')[0] for m in sys.modules} | set(sys.modules)))"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert "ironflow" in loaded
    assert not {"pydantic", "asyncio", "asyncpg", "ironflow.engine", "ironflow.context"} & set(loaded)


def test_dir_lists_what_is_public_and_nothing_that_was_only_imported() -> None:
    assert [name for name in dir(ironflow) if not name.startswith("__")] == sorted(ironflow.__all__)
