"""A recorded failure is raised again as what it was, or as StepFailed with everything recorded."""

# ruff: noqa: PT017 - errors are caught as workflow code does

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import pytest

from ironflow.codec.exceptions import STEP_ATTRIBUTE, decode_error, encode_error, traceback_of
from ironflow.codec.values import parse
from ironflow.errors import PayloadTooLarge, RunFailed, StepFailed, StepTimeout
from ironflow.model.retry import RetryAfterError


def again(error: BaseException) -> BaseException:
    text = encode_error(error)
    assert len(text.encode()) < 600_000
    return decode_error(parse(text))


class Declined(Exception):
    def __init__(self, order: int, *, code: str) -> None:
        super().__init__(f"order {order} declined")
        self.order = order
        self.code = code


class Shouting(KeyError):
    def __str__(self) -> str:
        return f"{self.args[0]}!"


class WithClient(Exception):
    def __init__(self, message: str, client: object) -> None:
        super().__init__(message)
        self.client = client


class Guarded(Exception):
    def __setattr__(self, name: str, value: object) -> None:
        raise RuntimeError("read-only")


class OwnNew(Exception):
    def __new__(cls, *args: object) -> OwnNew:
        return super().__new__(cls, *args)


class Mute(Exception):
    def __str__(self) -> str:
        raise SystemExit("no text")


class Changing(Exception):
    calls = 0

    def __str__(self) -> str:
        Changing.calls += 1
        return f"call {Changing.calls}"


class BadArgs(Exception):
    args = property(lambda self: 1 // 0)  # type: ignore[assignment]


class Outer:
    class Inner(Exception):
        pass


class OsLike(OSError):
    def __init__(self, reason: str) -> None:
        super().__init__(5, reason)


class Group(ExceptionGroup[Exception]):
    pass


SAME: list[BaseException] = [
    ValueError("bad", 3, b"x", (1, 2)), KeyError("k"), Exception(), Declined(7, code="funds"),
    Shouting("hey"),
    FileNotFoundError(2, "No such file or directory", "/x"), OSError(18, "Cross-device", "/a", None, "/b"),
    OSError("plain"), OsLike("boom"), Outer.Inner("nested"), ModuleNotFoundError("none", name="m", path="p"),
    UnicodeDecodeError("utf-8", b"\xff", 0, 1, "bad"), StopIteration(3), SystemExit(2), KeyboardInterrupt(),
    asyncio.CancelledError("why"), TimeoutError(), subprocess.CalledProcessError(3, ["ls"], output=b"out"),
    StepTimeout("too slow"), PayloadTooLarge("result", 10, 5), RetryAfterError("busy", after="2s"),
    RunFailed("it failed", run_id="r1", failure={"type": "x"}), Guarded("x"),
]  # fmt: skip


@pytest.mark.parametrize("error", SAME, ids=lambda error: type(error).__name__)
def test_an_exception_comes_back_as_the_same_class_with_equal_parts(error: BaseException) -> None:
    back = again(error)
    assert type(back) is type(error)
    assert str(back) == str(error)
    assert back.args == error.args
    assert back.__dict__ == error.__dict__
    for name in ("errno", "filename", "filename2", "code", "value", "name", "path", "start", "object"):
        assert getattr(back, name, None) == getattr(error, name, None)


def test_no_code_of_the_class_runs_but_its_str() -> None:
    error = Declined(7, code="funds")
    text = encode_error(error)
    original = Declined.__init__
    Declined.__init__ = lambda *args, **kwargs: pytest.fail("the constructor ran")  # type: ignore[method-assign]
    try:
        back = decode_error(parse(text))
    finally:
        Declined.__init__ = original  # type: ignore[method-assign]
    assert isinstance(back, Declined)
    assert (back.order, back.code) == (7, "funds")


def test_what_an_attribute_holds_may_be_lost_but_not_the_class() -> None:
    text = encode_error(WithClient("offline", client=None))
    assert type(decode_error(parse(text))) is WithClient
    error = WithClient("offline", client=None)
    error.client = object()
    node = json.loads(encode_error(error))
    assert node["lost"] == ["client"]
    back = decode_error(node)
    assert type(back) is WithClient
    assert not hasattr(back, "client")


def local() -> Exception:
    class Local(Exception):
        pass

    return Local("here only")


@pytest.mark.parametrize(
    ("error", "name", "message"),
    [
        (ValueError(object), "builtins.ValueError", "<class 'object'>"),
        (local(), f"{__name__}.local.<locals>.Local", "here only"),
        (OwnNew("x"), f"{__name__}.OwnNew", "x"),
        (ValueError("half \ud800"), "builtins.ValueError", "half \\ud800"),
        (BadArgs(), f"{__name__}.BadArgs", "<this exception could not be recorded: ZeroDivisionError>"),
        (WithClient("offline", object()), f"{__name__}.WithClient", "('offline', <object"),
    ],
    ids=["args", "local", "new", "surrogate", "bad args", "client"],
)
def test_what_cannot_be_rebuilt_becomes_step_failed_with_everything_recorded(
    error: Exception, name: str, message: str
) -> None:
    if isinstance(error, WithClient):
        error.args = (*error.args, error.client)
    error.add_note("while testing")
    back = again(error)
    assert isinstance(back, StepFailed)
    assert back.type_name == name
    assert back.original_message.startswith(message)
    if not isinstance(error, BadArgs):
        assert back.__notes__ == ["while testing"]
    twice = again(back)
    assert isinstance(twice, StepFailed)
    assert (twice.type_name, twice.original_message) == (name, back.original_message)
    assert twice.notes == back.notes


def test_an_exception_that_cannot_even_say_what_happened_is_recorded() -> None:
    text = encode_error(Mute("x"))
    assert "<no message: its __str__ raised SystemExit>" in text
    assert type(decode_error(parse(text))) is Mute


def test_a_message_that_changes_is_not_mistaken_for_the_recorded_one() -> None:
    assert isinstance(again(Changing()), StepFailed)


@pytest.mark.parametrize(
    "name", ["", "ValueError", "os.getcwd", "os.path", "no.such.Thing", "builtins.int", "tests.x"]
)
def test_a_name_that_is_no_exception_is_never_called(name: str) -> None:
    back = decode_error({"type": name, "message": "m", "args": ["m"]})
    assert isinstance(back, StepFailed)
    assert back.original_message == "m"


def test_a_module_that_fails_to_import_is_no_obstacle(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ironflow_broken_module.py").write_text("1 / 0")
    (tmp_path / "ironflow_good_module.py").write_text("class Lost(Exception): pass")
    monkeypatch.syspath_prepend(tmp_path)
    assert isinstance(
        decode_error({"type": "ironflow_broken_module.X", "message": "m", "args": []}), StepFailed
    )
    found = decode_error({"type": "ironflow_good_module.Lost", "message": "m", "args": ["m"]})
    assert type(found).__name__ == "Lost"
    sys.modules.pop("ironflow_good_module")


def test_a_class_whose_constructor_changed_becomes_step_failed() -> None:
    node = {"type": "builtins.UnicodeDecodeError", "message": "m", "args": ["only one"]}
    assert isinstance(decode_error(node), StepFailed)
    assert isinstance(decode_error("nonsense"), StepFailed)


@pytest.mark.parametrize("state", [{}, {"order": 7}])
def test_the_step_an_error_came_from_is_a_field_of_the_record_and_survives_a_class_that_is_gone(
    state: dict[str, Any],
) -> None:
    error = ValueError("declined")
    error.__dict__.update({**state, STEP_ATTRIBUTE: "main/3"})
    node = parse(encode_error(error))
    assert node["step_id"] == "main/3"
    assert STEP_ATTRIBUTE not in json.dumps(node.get("state", []))
    assert decode_error(node).__dict__ == error.__dict__
    gone = decode_error({**node, "type": "nowhere.Gone"})
    assert isinstance(gone, StepFailed)
    assert gone.__dict__[STEP_ATTRIBUTE] == "main/3"


def raised(cause: BaseException | None = None) -> ValueError:
    try:
        if cause is not None:
            raise ValueError("outer") from cause
        raise ValueError("outer")
    except ValueError as error:
        return error


def test_the_traceback_is_kept_as_text_and_grows_as_the_error_is_raised_on() -> None:
    back = again(raised())
    assert "in raised" in traceback_of(back)
    assert 'raise ValueError("outer")' in traceback_of(back)
    once = traceback_of(back)
    assert traceback_of(again(back)) == once
    try:
        raise back
    except ValueError as error:
        grown = traceback_of(again(error))
    assert grown.endswith(once)
    assert "test_the_traceback_is_kept" in grown


def test_the_traceback_of_a_step_failed_is_kept_too() -> None:
    try:
        raise ValueError(object)
    except ValueError as error:
        back = again(error)
    assert isinstance(back, StepFailed)
    assert "raise ValueError(object)" in back.traceback
    assert again(back).traceback == back.traceback  # type: ignore[attr-defined]
    assert traceback_of(StepFailed("a.B", "")) == ""


def frame_of(module: str, error: Exception) -> Exception:
    """Raise the error in a function that belongs to another module."""
    scope = {"__name__": module, "error": error}
    exec(compile("def thrower():\n    raise error\n", f"<{module}>", "exec"), scope)
    try:
        scope["thrower"]()  # type: ignore[operator]
    except Exception as caught:
        caught.__traceback__ = caught.__traceback__ and caught.__traceback__.tb_next
        return caught
    raise AssertionError


def test_frames_of_the_engine_are_left_out_unless_there_are_no_others() -> None:
    inside = frame_of("ironflow.engine.executor", ValueError("x"))
    assert "<ironflow.engine.executor>" in traceback_of(inside)
    try:
        raise inside
    except ValueError as error:
        assert "<ironflow.engine.executor>" not in traceback_of(error)
        assert "test_frames_of_the_engine" in traceback_of(error)


def test_an_unreadable_source_does_not_stop_the_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    error = raised()
    monkeypatch.setattr("traceback.StackSummary.extract", lambda *args, **kwargs: 1 // 0)
    assert traceback_of(error) == ""
    assert type(again(error)) is ValueError


def test_causes_contexts_and_notes_come_back() -> None:
    cause = KeyError("inner")
    cause.add_note("look here")
    back = again(raised(cause))
    assert type(back.__cause__) is KeyError
    assert back.__cause__.__notes__ == ["look here"]
    try:
        try:
            raise KeyError("first")
        except KeyError:
            raise ValueError("second")  # noqa: B904 - the context is what is tested
    except ValueError as error:
        assert type(again(error).__context__) is KeyError
        error.__suppress_context__ = True
        assert again(error).__context__ is None


def test_odd_notes_and_traceback_attributes_are_ignored() -> None:
    error = ValueError("x")
    error.__notes__ = "not a list"  # type: ignore[assignment]
    error.__dict__["__ironflow_traceback__"] = 3
    back = again(error)
    assert not hasattr(back, "__notes__")
    error.__notes__ = [1, "two"]  # type: ignore[list-item]
    assert again(error).__notes__ == ["two"]


def test_a_cyclic_or_endless_chain_is_cut() -> None:
    a, b = ValueError("a"), ValueError("b")
    a.__cause__, b.__cause__ = b, a
    back = again(a)
    assert str(back.__cause__) == "b"
    assert back.__cause__ is not None
    assert back.__cause__.__cause__ is None
    error = first = ValueError("0")
    for number in range(1, 100):
        error.__cause__ = ValueError(str(number))
        error = error.__cause__  # type: ignore[assignment]
    length, link = 0, again(first)
    while link.__cause__ is not None:
        length, link = length + 1, link.__cause__
    assert length == 20


def test_a_group_comes_back_with_all_its_leaves() -> None:
    group = ExceptionGroup(
        "two", [KeyError("k"), ExceptionGroup("more", [Declined(1, code="x"), ValueError(object)])]
    )
    back = again(group)
    assert isinstance(back, ExceptionGroup)
    assert str(back) == str(group)
    assert type(back.exceptions[0]) is KeyError
    inner = back.exceptions[1]
    assert isinstance(inner, ExceptionGroup)
    assert [type(leaf) for leaf in inner.exceptions] == [Declined, StepFailed]
    assert type(again(Group("own", [ValueError("x")]))) is Group
    assert type(again(BaseExceptionGroup("base", [KeyboardInterrupt()]))) is BaseExceptionGroup


def test_a_group_without_leaves_in_the_record_becomes_step_failed() -> None:
    node = {"type": "builtins.ExceptionGroup", "message": "m", "args": ["m"], "errors": []}
    assert isinstance(decode_error(node), StepFailed)


def test_size_is_bounded_whatever_is_in_it() -> None:
    node = json.loads(encode_error(ValueError("é" * 1_000_000)))
    assert node["message"].endswith("… cut …\n")
    assert len(node["message"].encode()) < 33_000
    many = ExceptionGroup("many", [ValueError("x" * 1000) for _ in range(10_000)])
    text = encode_error(many)
    assert len(text) < 600_000
    node = json.loads(text)
    assert len(node["errors"]) + node["left_out"] == 10_000
    assert isinstance(decode_error(parse(text)), ExceptionGroup)
    large = ValueError("x", b"y" * 1_000_000)
    assert isinstance(again(large), StepFailed)
    chain = ValueError("a" * 200_000)
    for _ in range(30):
        try:
            raise ValueError("b" * 200_000) from chain
        except ValueError as error:
            chain = error
    assert isinstance(again(chain), Exception)


def test_a_long_traceback_keeps_its_end() -> None:
    def descend(depth: int) -> None:
        if depth:
            ascend(depth - 1)
        raise ValueError("deep")

    def ascend(depth: int) -> None:
        descend(depth)

    try:
        descend(300)
    except ValueError as error:
        text = json.loads(encode_error(error))["traceback"]
    assert text.startswith("… cut …")
    assert text.rstrip().endswith('raise ValueError("deep")')
    assert len(text) < 17_000


def test_deeply_nested_groups_stay_readable() -> None:
    group: Exception = ValueError("leaf")
    for _ in range(60):
        group = ExceptionGroup("level", [group])
    back = again(group)
    assert isinstance(back, (ExceptionGroup, StepFailed))
