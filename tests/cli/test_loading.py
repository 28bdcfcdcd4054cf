"""Targets: what a text means, and that every process gets the same module from it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from ironflow.errors import DefinitionError, InvalidInput, WorkflowNameTaken, WorkflowUnknown
from ironflow.loading import load, load_all, load_one, parse_target

TWO = """
from ironflow import Context, workflow
@workflow
async def first(ctx: Context) -> int: return 1
@workflow(name="second-by-name")
async def second(ctx: Context) -> int: return 2
plain = 3
"""
ONE = """
from ironflow import Context, workflow
@workflow
async def only(ctx: Context) -> str: return __name__
"""


def write(folder: Path, name: str, text: str) -> str:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text(text, encoding="utf-8")
    return str(folder / name)


@pytest.mark.parametrize(
    ("text", "file", "module", "name"),
    [
        ("a/b/flow.py", "a/b/flow.py", "flow", None),
        ("flow.py:main", "flow.py", "flow", "main"),
        ("pkg.mod", None, "pkg.mod", None),
        ("pkg.mod:main", None, "pkg.mod", "main"),
        ("C:\\flows\\flow.py", "C:\\flows\\flow.py", None, None),
    ],
)
def test_a_target_is_a_file_or_a_module_with_or_without_a_name(
    text: str, file: str | None, module: str | None, name: str | None
) -> None:
    target = parse_target(text)
    assert (str(target.file) if target.file else None, target.name) == (file, name)
    assert module is None or target.module == module


@pytest.mark.parametrize("text", ["", "flow.py:", ":name", "a/b", "not a module", "a.b.py", "1x"])
def test_a_text_that_can_be_neither_is_refused_with_the_forms_there_are(text: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        parse_target(text)
    assert refused.value.hint


def test_a_file_is_imported_under_its_stem_with_its_folder_first(tmp_path: Path) -> None:
    write(tmp_path, "helper_of_one.py", "x = 1")
    path = write(tmp_path, "one_flow.py", "import helper_of_one\n" + ONE)
    workflow = load_one(path)
    assert workflow.fn.__module__ == "one_flow"
    assert sys.path[0] == str(tmp_path)
    assert "__main__" not in workflow.fn.__module__


def test_a_file_is_executed_once_however_it_is_named(tmp_path: Path) -> None:
    path = write(tmp_path / "pkg_once", "mod.py", ONE)
    write(tmp_path / "pkg_once", "__init__.py", "")
    sys.path.insert(0, str(tmp_path))
    assert load_one("pkg_once.mod:only") is load_one(path) is load_one(f"{path}:only")


def test_the_name_may_be_dropped_when_there_is_one_workflow(tmp_path: Path) -> None:
    assert load_one(write(tmp_path, "dropped_name.py", ONE)).name == "only"


def test_several_workflows_ask_for_a_name_and_list_them(tmp_path: Path) -> None:
    path = write(tmp_path, "two_flows.py", TWO)
    with pytest.raises(InvalidInput, match="first, second-by-name"):
        load_one(path)
    assert sorted(load(path)) == ["first", "second-by-name"]
    assert load_one(f"{path}:second").name == "second-by-name"
    assert load_one(f"{path}:second-by-name").name == "second-by-name"


def test_imported_workflows_do_not_make_a_file_ambiguous(tmp_path: Path) -> None:
    write(tmp_path, "shared_flows.py", TWO)
    path = write(tmp_path, "uses_shared.py", "from shared_flows import first\n" + ONE)
    assert load_one(path).name == "only"
    assert load_one(f"{path}:first").name == "first"


def test_one_name_from_two_places_is_refused_and_both_are_named(tmp_path: Path) -> None:
    first = write(tmp_path / "a", "flows_a.py", ONE)
    second = write(tmp_path / "b", "flows_b.py", ONE)
    with pytest.raises(WorkflowNameTaken) as refused:
        load_all([first, second])
    assert "flows_a.py" in str(refused.value)
    assert "flows_b.py" in str(refused.value)


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    path = write(tmp_path, "named_flows.py", TWO)
    with pytest.raises(InvalidInput, match="no file"):
        load(str(tmp_path / "absent.py"))
    with pytest.raises(InvalidInput, match="no module 'absent_module'"):
        load("absent_module.sub")
    with pytest.raises(WorkflowUnknown, match="known: first, second-by-name"):
        load(f"{path}:third")
    with pytest.raises(WorkflowUnknown, match="is no workflow"):
        load(f"{path}:plain")
    with pytest.raises(WorkflowUnknown, match="has no workflow"):
        load(write(tmp_path, "no_flows.py", "x = 1"))


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("broken_a.py", "x = 1\nraise OSError('no disk')", r"broken_a\.py:2: OSError: no disk"),
        ("broken_b.py", "x = (", r"broken_b\.py:1: SyntaxError"),
        ("broken_c.py", "import absent_dependency", r"broken_c\.py:1: ModuleNotFoundError"),
        ("broken_d.py", "import sys\nsys.exit(3)", r"broken_d\.py:2: SystemExit"),
    ],
)
def test_a_module_that_raises_is_reported_with_its_line(tmp_path: Path, name: str, text: str, says: str) -> None:
    with pytest.raises(DefinitionError, match=says):
        load(write(tmp_path, name, text))


def test_a_file_named_like_a_loaded_module_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="belongs to another module"):
        load(write(tmp_path, "json.py", ONE))


def broken_by(path: str) -> DefinitionError:
    with pytest.raises(DefinitionError) as refused:
        load(path)
    return refused.value


def test_what_an_import_raised_inside_python_is_told_at_the_line_of_the_author(tmp_path: Path) -> None:
    path = write(tmp_path, "reads_settings.py", 'import json\n\nSETTINGS = json.loads("not json")\n')
    assert f"failed at {path}:3: json.decoder.JSONDecodeError: " in broken_by(path).message


def test_a_helper_of_the_author_is_the_author_too(tmp_path: Path) -> None:
    helper = write(tmp_path, "settings_helper.py", "import json\ndef read():\n    return json.loads('x')\n")
    path = write(tmp_path, "uses_helper.py", "from settings_helper import read\nread()\n")
    assert f"failed at {helper}:3: " in broken_by(path).message


def test_a_module_that_is_installed_is_blamed_where_there_is_no_other_author(tmp_path: Path) -> None:
    path = write(tmp_path / "site-packages", "installed_flow.py", 'import json\njson.loads("x")\n')
    assert f"failed at {path}:2: " in broken_by(path).message


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("begins_a_loop", "import asyncio\nasync def m(): pass\nm = m()\ntry: asyncio.run(m)\nfinally: m.close()\n"),
        ("leaves", "import sys\nsys.exit(0)\n"),
    ],
)
async def test_a_program_is_told_how_it_can_be_imported(name: str, text: str, tmp_path: Path) -> None:
    hint = broken_by(write(tmp_path, f"{name}.py", text)).hint
    assert hint is not None
    assert '`if __name__ == "__main__":`' in hint
