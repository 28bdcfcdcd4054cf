"""The shape of the code, held by tests: what may import what, where SQL and drivers live, how large it grows.

These rules keep replay deterministic and the core testable without a database, so they are checked on the
syntax tree of every module and not left to reviewers.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
SOURCE = ROOT / "src"

# A module may import from its own tier or a lower one; the longest name that fits decides.
TIERS = {
    "ironflow.errors": 0,
    "ironflow.address": 0,
    "ironflow.duration": 0,
    "ironflow.extras": 0,
    "ironflow.config": 0,
    "ironflow.spelling": 0,
    "ironflow.tasks": 0,
    "ironflow.testing": 7,
    # The private PostgreSQL knows nothing of the engine, so the demo and the benchmarks may use it anywhere.
    "ironflow.testing.postgres": 0,
    "ironflow.testing._exec_as": 0,
    "ironflow.testing._postgres_binaries": 0,
    "ironflow.testing._processes": 0,
    "ironflow.testing._scratch": 0,
    "ironflow.testing._statements": 0,
    "ironflow.testing._unprivileged": 0,
    "ironflow.model": 1,
    # The engine calls the interface; what implements it stands beside the loops and workers that it watches.
    "ironflow.observe.seam": 1,
    "ironflow.observe": 5,
    "ironflow.codec": 1,
    "ironflow.store": 2,
    "ironflow.engine": 3,
    "ironflow.context": 4,
    "ironflow.loops": 5,
    "ironflow.worker": 5,
    "ironflow.runtime": 6,
    "ironflow.loading": 6,
    "ironflow.remote": 6,
    "ironflow.server": 6,
    "ironflow.client": 6,
    "ironflow": 7,  # the public names, gathered from everywhere below
    "ironflow.demo": 7,  # a program on the public names; the command line starts it
    "ironflow.cli": 8,
    "ironflow.mcp": 8,
    "ironflow.__main__": 9,
}

# Replay must give the same answer every time and on every machine, so time and chance come in as arguments.
PURE = ("ironflow.model", "ironflow.engine.instance")
IMPURE_MODULES = {"time", "random", "uuid", "threading", "secrets", "asyncpg", "sqlite3"}

DRIVERS = {"asyncpg", "sqlite3"}
# `demo.ingest` is an example for users, with a database of its own that has nothing to do with the store.
DRIVER_HOMES = re.compile(r"ironflow\.(store\.(_?sqlite|_?postgres)\w*(\.\w+)*|testing\._?\w+|demo\.ingest)")

SQL = re.compile(
    r"\s*(select\s.+\sfrom\s|insert\s+(or\s+\w+\s+)?into\s|update\s+\w+\s+set\s|delete\s+from\s|with\s+\w+\s.*\bas\s.*\()",
    re.IGNORECASE | re.DOTALL,
)
SQL_HOMES = ("ironflow.store", "ironflow.testing", "ironflow.demo.ingest")

LONGEST_FILE = 400
LONGEST_FUNCTION = 50
# What is one thing and long. Its reason stands here, so that the next one needs a reason, too.
LONG_FUNCTIONS = {
    "src/ironflow/engine/ledger.py __init__": "one line for each field of a run under way, with what it means",
    "tests/store/test_postgres_outages.py test_a_decision_whose_answer_was_lost_is_not_decided_twice": "one outage",
}
EXCUSE = "Over 400 lines because"

# Spelled in pieces, so that this file does not find itself.
MACHINE_PATH = re.compile(
    r"(?<![\w.~-])/(?:" + "|".join(("home", "root", "Users", "work", "opt", "mnt", "srv")) + r")/[\w.-]+"
)
TEXT_SUFFIXES = {
    ".py",
    ".toml",
    ".md",
    ".sql",
    ".txt",
    ".lock",
    ".json",
    ".yml",
    ".yaml",
    ".html",
    ".js",
    ".css",
    "",
}


def name_of(path: Path) -> str:
    parts = path.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {name_of(path): path for path in sorted(SOURCE.rglob("*.py"))}


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


def imports_of(module: str) -> Iterator[tuple[str, int]]:
    """Every module that `module` imports, with the line; imports in functions and for types count, too."""
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, *([base] if base else [])])
            for alias in node.names:
                # `from package import module` means the module, `from module import name` the one before it.
                inner = f"{base}.{alias.name}"
                yield (inner if inner in MODULES else base), node.lineno


def tier_of(module: str) -> int | None:
    if module == "ironflow":
        return TIERS[module]
    name = module
    while name != "ironflow":
        if name in TIERS:
            return TIERS[name]
        name = name.rpartition(".")[0]
    return None


def in_packages(module: str, packages: tuple[str, ...]) -> bool:
    return any(module == package or module.startswith(package + ".") for package in packages)


def own_imports(module: str) -> list[tuple[str, int]]:
    return [(target, line) for target, line in imports_of(module) if in_packages(target, ("ironflow",))]


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_one_way(module: str) -> None:
    tier = tier_of(module)
    assert tier is not None, f"give {module} a tier in this file"
    wrong = []
    for target, line in own_imports(module):
        found = tier_of(target)
        if found is None or found > tier:
            wrong.append(f"line {line}: {module} (tier {tier}) imports {target} (tier {found})")
    assert wrong == []


def test_packages_of_one_tier_do_not_import_each_other_both_ways() -> None:
    edges: set[tuple[str, str]] = set()
    for module in MODULES:
        for target, _ in own_imports(module):
            ends = tuple(".".join(name.split(".")[:2]) for name in (module, target))
            if ends[0] != ends[1] and tier_of(module) == tier_of(target):
                edges.add((ends[0], ends[1]))
    assert [edge for edge in sorted(edges) if edge[::-1] in edges and "ironflow" not in edge] == []


@pytest.mark.parametrize("module", [module for module in MODULES if in_packages(module, PURE)])
def test_pure_modules_take_time_and_chance_as_arguments(module: str) -> None:
    found = [(target, line) for target, line in imports_of(module) if target.split(".")[0] in IMPURE_MODULES]
    assert found == []


def test_drivers_are_imported_only_where_their_database_is_spoken_to() -> None:
    found = [
        f"{module}:{line} imports {target}"
        for module in MODULES
        for target, line in imports_of(module)
        if target.split(".")[0] in DRIVERS and not DRIVER_HOMES.fullmatch(module)
    ]
    assert found == []


def test_sql_is_written_only_in_the_store() -> None:
    found = []
    for module in MODULES:
        if in_packages(module, SQL_HOMES):
            continue
        for node in ast.walk(tree_of(module)):
            if isinstance(node, ast.Constant) and isinstance(node.value, str) and SQL.match(node.value):
                found.append(f"{module}:{node.lineno} {node.value[:40]!r}")
    assert found == []


@pytest.mark.parametrize(
    ("text", "is_sql"),
    [
        ("select run_id from runs where state = :state", True),
        ("\n  INSERT INTO runs VALUES (1)", True),
        ("insert or ignore into runs values (1)", True),
        ("update runs set state = 'done'", True),
        ("delete from waits", True),
        ("with due as (select 1) update waits set x = 1", True),
        ("Select a workflow to run.", False),
        ("Update the lease before it expires.", False),
        ("With a lease, the run goes on.", False),
        ("Delete the run and its journal.", False),
    ],
)
def test_the_rule_about_sql_tells_statements_from_sentences(text: str, is_sql: bool) -> None:
    assert bool(SQL.match(text)) is is_sql


def python_files() -> list[Path]:
    folders = [ROOT / name for name in ("src", "tests", "bench", "examples")]
    return [ROOT / "dev.py", *(path for folder in folders for path in sorted(folder.rglob("*.py")))]


def test_no_file_grows_past_400_lines_without_saying_why() -> None:
    found = []
    for path in python_files():
        lines = path.read_text(encoding="utf-8").splitlines()
        if len(lines) > LONGEST_FILE and EXCUSE not in "\n".join(lines[:20]):
            found.append(f"{path.relative_to(ROOT)}: {len(lines)}")
    assert found == []


def test_no_function_grows_past_50_lines() -> None:
    found = []
    for path in python_files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > LONGEST_FUNCTION:
                    found.append(f"{path.relative_to(ROOT)} {node.name}")
    assert sorted(set(found) - LONG_FUNCTIONS.keys()) == []


def test_every_module_opens_with_what_it_is_about() -> None:
    assert [module for module in MODULES if not ast.get_docstring(tree_of(module))] == []


def tracked_files() -> list[Path]:
    """What git tracks, or, in a source archive, what lies in the project's own folders."""
    listing = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=False)
    names = [name for name in listing.stdout.split("\0") if name]
    if names:
        return [path for path in (ROOT / name for name in names) if path.is_file()]
    folders = [ROOT / name for name in ("src", "tests", "bench", "docs", "examples", ".ci")]
    inside = [path for folder in folders for path in folder.rglob("*") if "__pycache__" not in path.parts]
    return [path for path in (*ROOT.glob("*.*"), *inside) if path.is_file()]


def test_the_lock_holds_hashes_and_no_addresses() -> None:
    text = (ROOT / "requirements.lock").read_text(encoding="utf-8")
    assert "://" not in text
    assert not re.search(r"^\s*--(?!hash=sha256:)", text, re.M)
    pins = re.findall(r"^[a-z0-9][\w.-]*==", text, re.M)
    blocks = re.findall(r"^[a-z0-9][^\n]*\\\n(?:\s+--hash=sha256:[0-9a-f]{64}[^\n]*\n)+", text, re.M)
    assert len(pins) == len(blocks) > 20


def test_no_lock_that_records_a_package_index_is_tracked() -> None:
    names = {path.name for path in tracked_files()}
    assert not [name for name in names if name == "uv.lock" or re.fullmatch(r"pylock.*\.toml", name)]


def test_no_tracked_file_names_a_folder_of_somebodys_machine() -> None:
    found = []
    for path in tracked_files():
        if path.suffix not in TEXT_SUFFIXES:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1):
            match = MACHINE_PATH.search(line)
            if match:
                found.append(f"{path.relative_to(ROOT)}:{number} {match[0]}")
    assert found == []


def test_tasks_of_the_engine_do_not_depend_on_the_programs_task_factory() -> None:
    """See `ironflow.tasks`: with an eager factory a task would run before its maker can keep it."""
    found = [
        str(path.relative_to(ROOT))
        for package in ("store", "loops", "engine", "worker", "remote", "observe", "runtime", "server")
        for path in (ROOT / "src" / "ironflow" / package).rglob("*.py")
        if re.search(r"loop(\(\))?\.create_task\(|asyncio\.create_task\(", path.read_text(encoding="utf-8"))
    ]
    assert found == []
