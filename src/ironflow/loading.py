"""From the text a person types to the workflows it means: `path/file.py[:name]` or `pkg.mod[:name]`.

One rule for every process. A file is imported under its stem, with its folder first on the search path,
and never as `__main__`: the journal names classes by module, so a name that only one way of starting
gives could not be found again by the process that takes the run over. A file that is already imported is
not executed a second time.
"""

from __future__ import annotations

import importlib
import os
import sys
import sysconfig
import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from ironflow.context.workflows import Workflow
from ironflow.engine.registry import Registry
from ironflow.errors import DefinitionError, InvalidInput, IronflowError, WorkflowUnknown

#: Ironflow's own files, those of Python and those of installed packages: no line in them is the author's.
_OWN = (str(Path(__file__).parent) + os.sep, "<frozen ")
_STANDARD = tuple(sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib"))
_INSTALLED = ("site-packages", "dist-packages")
_GUARD = (
    'Nothing was started. Put what starts the program under `if __name__ == "__main__":`, so that importing the file '
    "runs none of it."
)
_FORMS = "Name a workflow as path/file.py, path/file.py:name, package.module or package.module:name."


@dataclass(frozen=True, slots=True)
class Target:
    """What the text says, before anything is imported: a file or a module, and perhaps a name in it."""

    text: str
    file: Path | None
    module: str
    name: str | None


def parse_target(text: str) -> Target:
    """Take a target apart. Looks at the text alone, so a file need not exist.

    Raises:
        InvalidInput: it has neither form.
    """
    place, name = text, None
    if not text.endswith(".py"):
        before, colon, after = text.rpartition(":")
        # `C:\flows\a.py` has a colon that separates nothing; it ends in .py and never comes here.
        if colon:
            place, name = before, after
    if name == "" or not place:
        raise InvalidInput(f"{text!r} names no workflow", hint=_FORMS)
    if not place.endswith(".py"):
        if "/" in place or "\\" in place or not all(part.isidentifier() for part in place.split(".")):
            raise InvalidInput(f"{text!r} is neither a Python file nor a module", hint=_FORMS)
        return Target(text, None, place, name)
    file = Path(place)
    if "." in file.stem:
        raise InvalidInput(f"{place} cannot be imported: its name has a dot before .py", hint="Rename the file.")
    return Target(text, file, file.stem, name)


def load(text: str) -> dict[str, Workflow[Any, Any]]:
    """Import a target and give its workflows by name: the named one, or all that the module has.

    A module's own workflows hide those it imported from elsewhere, so that a helper module that is shared
    by two files does not make either ambiguous.

    Raises:
        InvalidInput: no such file or module.
        DefinitionError: importing it raised.
        WorkflowUnknown: it has no workflow, or none of this name.
        WorkflowNameTaken: two functions in it share a workflow name.
    """
    target = parse_target(text)
    module = _import_file(target) if target.file is not None else _import_module(target)
    found = list(dict.fromkeys(v for v in vars(module).values() if isinstance(v, Workflow)))
    if target.name is not None:
        named = _named(target, module, found)
        # With whatever shares its name: a run is known by that name alone, and would be continued by either.
        return _by_name([named, *(workflow for workflow in found if workflow.name == named.name)])
    own = [workflow for workflow in found if workflow.fn.__module__ == module.__name__]
    if not found:
        raise WorkflowUnknown(f"{text} has no workflow", hint="Decorate a function in it with @ironflow.workflow.")
    return _by_name(own or found)


def load_all(texts: Iterable[str]) -> dict[str, Workflow[Any, Any]]:
    """The workflows of several targets, for a worker that serves them all. Errors as in `load`."""
    return _by_name(workflow for text in texts for workflow in load(text).values())


def load_one(text: str) -> Workflow[Any, Any]:
    """The one workflow that a target means. Errors as in `load`.

    Raises:
        InvalidInput: it has several and names none of them.
    """
    workflows = load(text)
    if len(workflows) > 1:
        names = ", ".join(sorted(workflows))
        raise InvalidInput(
            f"{text} has {len(workflows)} workflows: {names}",
            hint=f"Say which one: {parse_target(text).text}:{next(iter(sorted(workflows)))}.",
        )
    return next(iter(workflows.values()))


def _by_name(workflows: Iterable[Workflow[Any, Any]]) -> dict[str, Workflow[Any, Any]]:
    registry = Registry()
    named: dict[str, Workflow[Any, Any]] = {}
    for workflow in workflows:
        registry.add(workflow.spec)  # refuses one name from two places, naming both
        named[workflow.name] = workflow
    return named


def _named(target: Target, module: ModuleType, found: list[Workflow[Any, Any]]) -> Workflow[Any, Any]:
    value = vars(module).get(target.name or "")
    if isinstance(value, Workflow):
        return value
    for workflow in found:
        if workflow.name == target.name:
            return workflow
    place = target.text.removesuffix(f":{target.name}")
    if value is not None:
        raise WorkflowUnknown(f"{target.name} in {place} is no workflow", hint="Decorate it with @ironflow.workflow.")
    known = ", ".join(sorted(workflow.name for workflow in found)) or "none"
    raise WorkflowUnknown(f"{place} has no workflow {target.name!r}; known: {known}")


def _import_file(target: Target) -> ModuleType:
    assert target.file is not None
    file = target.file.resolve()
    if not file.is_file():
        raise InvalidInput(f"there is no file {target.file}", hint="Check the path, and the current folder.")
    for name, module in list(sys.modules.items()):
        if name != "__main__" and _is_file(module, file):
            return module
    _search_first(str(file.parent))
    module = _imported(target)
    if not _is_file(module, file):
        raise InvalidInput(
            f"{target.file} cannot be imported as {target.module!r}: that name belongs to another module",
            hint="Rename the file.",
            details={"taken_by": getattr(module, "__file__", None) or "built in"},
        )
    return module


def _import_module(target: Target) -> ModuleType:
    # A console script does not have the current folder on its search path; `python -m` does. One rule
    # for both.
    _search_first(str(Path.cwd()))
    return _imported(target)


def _imported(target: Target) -> ModuleType:
    try:
        return importlib.import_module(target.module)
    except IronflowError:  # a decorator refused the code; it says best what is wrong
        raise
    except ModuleNotFoundError as error:
        if error.name is not None and f"{target.module}.".startswith(f"{error.name}."):
            raise InvalidInput(f"there is no module {error.name!r}", hint=_FORMS) from error
        raise _broken(target, error) from error
    except (Exception, SystemExit) as error:
        raise _broken(target, error) from error


def _broken(target: Target, error: BaseException) -> DefinitionError:
    """The author's module raised: say what and at which line, since a person will look there first."""
    if isinstance(error, SyntaxError):
        where = f"{error.filename}:{error.lineno}"
        what = f"{type(error).__name__}: {error.msg}"
    else:
        where = _authors_line(traceback.extract_tb(error.__traceback__))
        what = "".join(traceback.format_exception_only(error)).strip()
    place = str(target.file) if target.file is not None else target.module
    return DefinitionError(
        f"importing {place} failed at {where}: {what}",
        hint=_GUARD if _is_a_program(error) else "Nothing was started.",
        details={"traceback": "".join(traceback.format_exception(error))},
    )


def _authors_line(frames: list[traceback.FrameSummary]) -> str:
    """The innermost line that the author wrote; of a module that is itself installed, the innermost of any package."""
    authors, installed = [], []
    for one in frames:
        if one.filename.startswith(_OWN):
            continue
        if not set(_INSTALLED).isdisjoint(Path(one.filename).parts):
            installed.append(one)
        elif not one.filename.startswith(_STANDARD):
            authors.append(one)
    found = (authors or installed or frames)[-1]
    return f"{found.filename}:{found.lineno}"


def _is_a_program(error: BaseException) -> bool:
    """Whether the import executed what a program does: it left, or began an event loop beside the one it met here."""
    return isinstance(error, SystemExit) or (isinstance(error, RuntimeError) and "running event loop" in str(error))


def _search_first(folder: str) -> None:
    if sys.path[:1] != [folder]:
        sys.path.insert(0, folder)
    importlib.invalidate_caches()


def _is_file(module: ModuleType, file: Path) -> bool:
    path = getattr(module, "__file__", None)
    try:
        return isinstance(path, str) and Path(path).resolve() == file
    except OSError:
        return False
