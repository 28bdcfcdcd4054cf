"""Exceptions ⇄ text: a failure is raised again, hours later and on another machine, as what it was.

Stored is what a person and an `except` clause need: class, message, arguments, attributes, traceback text,
notes, the chain of causes, and all leaves of groups. Encoding never fails, whatever a class does in `__str__`
or `__init__`, since a failure that cannot be recorded would be executed again for ever; and it is bounded.

Raising again runs no code of the class but its `__str__` (to see that the message is the same): the instance
is made by the constructors of Python's own exceptions and given its attributes. A class that cannot be
imported or made so becomes `StepFailed`, which carries everything recorded.
"""

from __future__ import annotations

import importlib
import sys
import traceback
import types
from collections.abc import Iterator
from typing import Any, Final

from pydantic_core import to_json

from ironflow.codec.tags import Packer, Refused
from ironflow.errors import IronflowError, StepFailed

__all__ = ["STEP_ATTRIBUTE", "decode_error", "encode_error", "traceback_of"]

#: The most that is stored of a traceback, a message, and an exception with all that belongs to it, in bytes of UTF-8.
MAX_TRACEBACK: Final = 16 * 1024
MAX_MESSAGE: Final = 32 * 1024
MAX_TOTAL: Final = 256 * 1024
#: Levels of causes and groups that are followed.
MAX_DEPTH: Final = 20
_ATTRIBUTE: Final = "__ironflow_traceback__"
#: The attribute that names the step an error came from. Recorded as a field of its own, not as the author's state.
STEP_ATTRIBUTE: Final = "__ironflow_step__"
_VALUE_DEPTH: Final = 20  # together with the chain, well inside what the JSON reader accepts
_MEMBERS: Final = ("name", "path")
_OVERHEAD: Final = 256  # bytes counted for the names and brackets of one exception
_CUT: Final = "… cut …\n"
_OWN: Final = ("ironflow.", "asyncio.", "concurrent.futures.")
_packer: Final = Packer()


def encode_error(error: BaseException) -> str:
    """Return the text of an exception. Never fails; at most about 256 KiB.

    Args:
        error: any exception; its causes to a depth of 20 and the leaves of groups are included.
    """
    try:
        return to_json(_Encoder().node(error, 0)).decode()
    except Exception as failure:  # even reading its attributes may fail
        message = f"<this exception could not be recorded: {type(failure).__name__}>"
        return to_json({"type": _type_name(type(error)), "message": message}).decode()


def decode_error(tree: Any) -> BaseException:
    """Return the exception of a tree made by `parse`.

    It is of the recorded class, with equal arguments and message, when that class can be imported and made
    from what was recorded; else a `StepFailed`. Its traceback text is kept by `traceback_of`.
    """
    return _decode(tree if isinstance(tree, dict) else {"message": str(tree)})


def traceback_of(error: BaseException) -> str:
    """Return an exception's traceback as text: the recorded part, then the frames it passed since.

    Frames of the engine and of asyncio are left out. If nothing else is left they are what there is, except of an error
    of Ironflow's own: its message says what to do, and the lines that found it out help nobody.
    """
    recorded = _recorded(error)
    frames = list(traceback.walk_tb(error.__traceback__))
    own = [pair for pair in frames if not f"{pair[0].f_globals.get('__name__')}.".startswith(_OWN)]
    if not own and (recorded or isinstance(error, IronflowError)):
        return recorded
    try:
        summary = traceback.StackSummary.extract(iter(own or frames), lookup_lines=True)
        text = "".join(summary.format())
    except Exception:  # source files may be unreadable or half written
        text = ""
    return _clean(text + recorded)  # as Python prints it: the frames passed last come first


def _recorded(error: BaseException) -> str:
    if isinstance(error, StepFailed):
        return error.traceback
    recorded = error.__dict__.get(_ATTRIBUTE, "")
    return recorded if isinstance(recorded, str) else ""


# ---- encoding --------------------------------------------------------------------------------------------


class _Encoder:
    """One encoding: knows what it has seen (chains can be cyclic) and how much room is left, in bytes."""

    __slots__ = ("room", "seen")

    def __init__(self) -> None:
        self.room = MAX_TOTAL
        self.seen: set[int] = set()

    def node(self, error: BaseException, depth: int) -> dict[str, Any]:
        self.seen.add(id(error))
        self.room -= _OVERHEAD
        cls = type(error)
        failed = error if isinstance(error, StepFailed) and cls is StepFailed else None
        message = _message(error) if failed is None else failed.original_message
        node: dict[str, Any] = {
            "type": _type_name(cls) if failed is None else failed.type_name,
            "message": self.text(message, MAX_MESSAGE),
        }
        notes = [self.text(note, MAX_MESSAGE) for note in _notes(error)]
        if notes:
            node["notes"] = notes
        step_id = error.__dict__.get(STEP_ATTRIBUTE)
        if isinstance(step_id, str):
            node["step_id"] = step_id
        if failed is None:
            self.arguments(error, node)
        trace = self.text(traceback_of(error), MAX_TRACEBACK, keep_end=True)
        if trace:
            node["traceback"] = trace
        if isinstance(error, BaseExceptionGroup):
            self.leaves(error, node, depth)
        self.chain(error, node, depth)
        return node

    def text(self, text: str, most: int, *, keep_end: bool = False) -> str:
        data = _clean(text).encode()
        most = max(min(most, self.room), 0)
        if len(data) > most:
            kept = data[len(data) - most :] if keep_end else data[:most]
            text = kept.decode(errors="ignore")  # a character may have been cut in two
            text = f"{_CUT}{text}" if keep_end else f"{text}{_CUT}"
        else:
            text = data.decode()
        self.room -= len(data[:most])
        return text

    def arguments(self, error: BaseException, node: dict[str, Any]) -> None:
        """Record what the instance can be made from again: all of its arguments, or none."""
        packed = self.packed(_arguments(error))
        if packed is not None:
            node["args"] = packed
        state, lost = {}, []
        for name, value in _state(error):
            part = self.packed([value])
            if part is None:
                lost.append(self.text(name, 100))
            else:
                state[name] = part[0]
        if state:
            node["state"] = [[name, value] for name, value in state.items()]
        if lost:
            node["lost"] = lost

    def packed(self, values: list[Any]) -> list[Any] | None:
        try:
            tree: list[Any] = _packer.pack(values, _VALUE_DEPTH)
            size = len(to_json(tree))
        except Refused:
            return None
        if size > self.room:
            return None
        self.room -= size
        return tree

    def leaves(self, group: BaseExceptionGroup[Any], node: dict[str, Any], depth: int) -> None:
        errors = []
        for leaf in group.exceptions:
            if depth < MAX_DEPTH and self.room > _OVERHEAD:
                errors.append(self.node(leaf, depth + 1))
        node["errors"] = errors
        if len(errors) < len(group.exceptions):
            node["left_out"] = len(group.exceptions) - len(errors)

    def chain(self, error: BaseException, node: dict[str, Any], depth: int) -> None:
        cause, context = error.__cause__, error.__context__
        if cause is not None:
            self.link("cause", cause, node, depth)
        elif context is not None and not error.__suppress_context__:
            self.link("context", context, node, depth)

    def link(self, name: str, error: BaseException, node: dict[str, Any], depth: int) -> None:
        if depth < MAX_DEPTH and self.room > _OVERHEAD and id(error) not in self.seen:
            node[name] = self.node(error, depth + 1)


def _message(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return str(error.message)  # str() adds a count, which the leaves say better
    try:
        return str(error)
    except BaseException as failure:
        return f"<no message: its __str__ raised {type(failure).__name__}>"


def _arguments(error: BaseException) -> list[Any]:
    """Return what the constructor of Python's own class behind the error was, in effect, given."""
    args = list(error.args)
    if isinstance(error, BaseExceptionGroup):
        return args[:1]  # the leaves are recorded as exceptions
    if isinstance(error, OSError) and len(args) == 2 and error.filename is not None:
        args.append(error.filename)  # Python keeps file names apart, although they are part of the message
        if error.filename2 is not None:
            args += [None, error.filename2]
    return args


def _notes(error: BaseException) -> Iterator[str]:
    notes = error.notes if type(error) is StepFailed else getattr(error, "__notes__", ())
    if isinstance(notes, (list, tuple)):
        yield from (note for note in notes if isinstance(note, str))


def _state(error: BaseException) -> Iterator[tuple[str, Any]]:
    for name, value in list(error.__dict__.items()):
        if name not in ("__notes__", _ATTRIBUTE, STEP_ATTRIBUTE):
            yield name, value
    if isinstance(error, ImportError):  # code that handles it asks for the module's name
        for name in _MEMBERS:
            yield name, getattr(error, name)


def _type_name(cls: type) -> str:
    return _clean(f"{cls.__module__}.{cls.__qualname__}")


def _clean(text: str) -> str:
    """Half a surrogate pair (from undecodable file names) would make the whole record unreadable."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


# ---- decoding --------------------------------------------------------------------------------------------


def _decode(node: dict[str, Any]) -> BaseException:
    error = _rebuild(node)
    notes = [str(note) for note in node.get("notes", ())]
    trace = str(node.get("traceback", ""))
    if error is None:
        name, message = str(node.get("type", "unknown")), str(node.get("message", ""))
        error = StepFailed(name, message, traceback=trace, notes=notes)
    elif trace:
        error.__dict__[_ATTRIBUTE] = trace
    if isinstance(node.get("step_id"), str):
        error.__dict__[STEP_ATTRIBUTE] = node["step_id"]
    for note in notes:
        error.add_note(note)
    if isinstance(node.get("cause"), dict):
        error.__cause__ = _decode(node["cause"])
    elif isinstance(node.get("context"), dict):
        error.__context__ = _decode(node["context"])
    return error


def _rebuild(node: dict[str, Any]) -> BaseException | None:
    cls = _find(str(node.get("type", "")))
    args = node.get("args")
    if cls is None or type(args) is not list:
        return None
    if issubclass(cls, BaseExceptionGroup):
        leaves = [_decode(leaf) for leaf in node.get("errors", ())]
        if not leaves:
            return None
        args = [*args, leaves]
    try:
        error: BaseException = cls.__new__(cls, *args)
        _builtin_init(cls)(error, *args)
        for name, value in node.get("state", ()):
            if name in _MEMBERS and isinstance(error, ImportError):
                object.__setattr__(error, name, value)
            else:  # past any property or __setattr__ of the class, which may do more than store
                error.__dict__[name] = value
    except Exception:  # the class has changed, or hides its constructor
        return None
    # Python's own messages follow from the arguments (and may differ in the order of a set among them); a
    # message the class makes itself shows whether it still is what it was.
    own_message = isinstance(cls.__str__, types.FunctionType)
    return None if own_message and _message(error) != node.get("message") else error


def _find(name: str) -> type[BaseException] | None:
    parts = name.split(".")
    found: Any = None
    # `package.module.Outer.Inner`: the longest prefix that is a module
    for end in range(len(parts) - 1, 0, -1):
        found = _module(".".join(parts[:end]))
        if found is not None:
            for part in parts[end:]:
                found = getattr(found, part, None)
            break
    if not (isinstance(found, type) and issubclass(found, BaseException)):
        return None
    # A constructor written in Python could do anything with arguments it was not made for.
    return None if isinstance(found.__new__, types.FunctionType) else found


def _module(name: str) -> types.ModuleType | None:
    try:
        return sys.modules.get(name) or importlib.import_module(name)
    except Exception:  # an import runs a module, which may fail in any way
        return None


def _builtin_init(cls: type[BaseException]) -> Any:
    """Return the initialiser of Python's own class behind `cls`: it sets `errno`, `code` and the like."""
    found = (base.__dict__.get("__init__") for base in cls.__mro__)
    return next(init for init in found if init is not None and not isinstance(init, types.FunctionType))
