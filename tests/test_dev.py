"""dev.py's promises that can be checked without making an environment."""

from __future__ import annotations

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def dev() -> ModuleType:
    spec = importlib.util.spec_from_file_location("dev", ROOT / "dev.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_test_without_arguments_runs_lint_types_and_the_suite(dev: ModuleType) -> None:
    tools = [command[1] for command in dev.plan("test", [])]
    assert tools == ["ruff", "mypy", "pytest"]


def test_test_with_arguments_runs_pytest_alone_with_just_these(dev: ModuleType) -> None:
    assert dev.plan("test", ["-k", "lease"]) == [["-m", "pytest", "-k", "lease"]]


def test_arguments_of_other_commands_reach_the_last_step_and_leave_the_table_alone(dev: ModuleType) -> None:
    assert dev.plan("bench", ["--quick"]) == [["bench/run.py", "--quick"]]
    assert dev.plan("bench", []) == [["bench/run.py"]]


def test_every_script_in_the_table_exists(dev: ModuleType) -> None:
    scripts = [
        command[0] for _, commands in dev.COMMANDS.values() for command in commands if command[0] != "-m"
    ]
    assert [script for script in scripts if not (ROOT / script).is_file()] == []


def test_the_help_names_every_command(dev: ModuleType) -> None:
    assert [name for name in dev.COMMANDS if f"  {name} " not in dev.usage()] == []


def test_an_unknown_command_ends_with_2_before_anything_is_installed(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dev, "ensure_environment", lambda: pytest.fail("nothing is to be installed"))
    assert dev.main(["tset"]) == 2
    assert "'tset'" in capsys.readouterr().err


def test_a_matching_stamp_means_that_nothing_is_run(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    stamp = tmp_path / "stamp"
    stamp.write_text(dev.fingerprint())
    monkeypatch.setattr(dev, "STAMP", stamp)
    monkeypatch.setattr(dev, "PYTHON", Path(sys.executable))
    monkeypatch.setattr(dev, "installer", lambda: pytest.fail("the environment is up to date"))
    dev.ensure_environment()


def test_a_changed_lock_is_installed_and_stamped(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    ran: list[list[str]] = []
    stamp = tmp_path / "stamp"
    stamp.write_text("made from an older lock")
    monkeypatch.setattr(dev, "STAMP", stamp)
    monkeypatch.setattr(dev, "installer", lambda: ["install"])
    monkeypatch.setattr(dev, "run", ran.append)
    dev.ensure_environment()
    assert "--require-hashes" in ran[0]
    assert {"--no-deps", "--no-build-isolation"} <= set(ran[1])
    assert stamp.read_text() == dev.fingerprint()


def test_without_pip_and_uv_one_sentence_names_the_package_to_install(
    dev: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dev, "VENV", tmp_path / "absent")
    monkeypatch.setattr(dev, "PYTHON", tmp_path / "absent" / "python")
    monkeypatch.setattr(dev.shutil, "which", lambda name: None)
    monkeypatch.setattr(dev.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SystemExit, match=r"apt-get install python3\.\d+-venv"):
        dev.installer()


def test_an_old_python_is_told_so_before_it_meets_anything_it_cannot_read() -> None:
    source = (ROOT / "dev.py").read_text(encoding="utf-8")
    tree = ast.parse(source, feature_version=(3, 7))
    # The guard comes before any import an old Python may lack; a future import would be an error on 3.6.
    kinds = [type(node).__name__ for node in tree.body[:3]]
    assert kinds == ["Expr", "Import", "If"]
    assert "from __future__" not in source


def test_ci_calls_the_test_command_of_the_readme_and_nothing_else() -> None:
    script = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
    commands = [line for line in script.splitlines() if "python" in line]
    assert commands == ["exec python3 dev.py test"]
    assert "python3 dev.py test" in (ROOT / "README.md").read_text(encoding="utf-8")


def test_the_help_needs_no_environment() -> None:
    answer = subprocess.run(
        [sys.executable, "-I", str(ROOT / "dev.py")], capture_output=True, text=True, check=True
    )
    assert answer.stdout.startswith("usage: python3 dev.py COMMAND")
