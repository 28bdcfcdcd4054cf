"""Writes `docs/reference/`: the API, settings, states, errors, journal kinds and commands, as the code defines them.

A reference written by hand is wrong after the second release. These pages are made from the same tables the
engine runs on, and a test fails while a page differs from what this file would write.

    python docs/generate.py            # write the pages
    python docs/generate.py --check    # write nothing; exit 1 and name the pages that are out of date
"""

from __future__ import annotations

import inspect
import re
import sys
import types
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, get_origin, get_overloads

import ironflow
from ironflow import config, testing
from ironflow.cli import exits
from ironflow.cli.app import command as whole_command
from ironflow.client import Client
from ironflow.context.workflows import WorkflowOptions
from ironflow.duration import format_ms
from ironflow.engine import why
from ironflow.engine.starting import Start
from ironflow.errors import IronflowError
from ironflow.model import journal, run, step
from ironflow.observe.metrics import INSTRUMENTS
from ironflow.server.api import PREFIX, routes
from ironflow.server.api.document import document as openapi

FOLDER = Path(__file__).resolve().parent / "reference"
NOTE = "<!-- Made by docs/generate.py from the code: change the code, then run that file. -->"

RUN_STATES = {
    run.PENDING: "in the queue, waiting for a worker",
    run.RUNNING: "a worker holds its lease and executes it",
    run.RETRYING: "its last attempt failed; in the queue for the next one, not before its due time",
    run.SLEEPING: "only timers are open; takes no worker",
    run.WAITING: "waits for something from outside (an event, a signal, a child)",
    run.AWAITING_APPROVAL: "waits for a person",
    run.PAUSED: "held by an operator or by a divergence, until it is resumed",
    run.CANCELLING: "undoes what it did: its compensations run",
    run.COMPLETED: "ended with an output",
    run.WARNING: "ended with an output, and with warnings of its workflow",
    run.FAILED: "ended with an error; `ironflow runs retry` opens it again",
    run.CANCELLED: "ended because somebody asked for it",
}
STEP_STATES = {
    step.SCHEDULED: "asked for, and not begun",
    step.RUNNING: "its start is in the journal, its end is not",
    step.WAITING: "waits for something from outside",
    step.COMPLETED: "its result is in the journal; its body does not run again in this attempt",
    step.FAILED: "its error is in the journal and was raised into the workflow",
    step.RETRYING: "a try failed, and the next one has a due time",
    step.INTERRUPTED: "its worker was lost while its body ran",
    step.CANCELLED: "the workflow no longer wants it",
    step.SKIPPED: "left out by the workflow, on purpose and by name",
    step.TIMED_OUT: "took longer than it may",
}

HTTP = """\
# The HTTP API

What `ironflow serve` answers below `/api/v1` (`/v1` means the same). Its forms are in the OpenAPI document,
`/api/v1/openapi.json`, which needs no key; everything else needs one: `Authorization: Bearer …`. Examples, and the
fields of a start, are in [Use a server from other programs](../how-to/use-a-server.md#with-curl).

- **Keys.** `ifkey_…` is an organisation's, with one of the roles admin, developer and viewer; each may do what the
  next one may. `ifplatform_…` is for who runs the platform, `ifworker_…` for workers and nothing else. A key is
  shown once, when it is made. A revocation holds within a second on every server, for streams that are open, too.
- **Refusals** are problem documents (RFC 9457) with `code`, `detail`, `hint` and `details`; the codes are those of
  [Errors](errors.md). What belongs to another organisation is answered as what does not exist. Over the rate of a
  key (`IRONFLOW_API_RATE`), or with more streams open than it may hold (`IRONFLOW_MAX_STREAMS`), the answer is 429,
  with `Retry-After`. What is no HTTP request (`MALFORMED_HTTP`, 400), too large a head of one (`HEADERS_TOO_LARGE`,
  431), one that does not become whole (`REQUEST_TOO_SLOW`, 408) and a connection too many (`TOO_MANY_CONNECTIONS`,
  503) are refused in the same form, and the connection is closed. HTTP/1.1 without a `Host`, or with two, is none. A
  method that a path does not have is 405, with `Allow`; of the API no path takes `HEAD`. Where a hint names a command,
  the endpoint that does the same stands beside it.
- **Lists** come in pages: `?limit=`, and `?cursor=` with what the page before gave as `next`.
- **Creating twice.** The same `idempotency_key` (or header `Idempotency-Key`, in UTF-8) and input give the same run,
  with 200 instead of 201; another input is refused with 409. The order of an object's keys makes no other input.
- **Following.** `…/events` is a stream of server-sent events. `data` of each is an object with `seq`, `kind` and
  `payload`; there is no `event:` line. The `id` of each is its place in the journal: a stream that broke goes on
  exactly there, on any server, with `Last-Event-ID` or `?after=`. It ends after the event that ends the run; asked
  again, it answers 204, which tells a browser not to come back.
- **Bodies** are JSON of at most `IRONFLOW_MAX_API_BODY_BYTES`, and say so: `application/json`, or a type that ends in
  `+json`. Another type, and a body that is compressed, is refused with 415, whichever of several headers says so
  (`Content-Encoding`, or `Transfer-Encoding` with more than `chunked`). A body is an object, and a field that is not
  documented is refused.
- **Headers.** A request with two different `Authorization` or `Idempotency-Key` is refused with 400. What stands
  behind a body in chunks (trailers) is dropped.
- **Half-closed connections.** Whoever closes his half behind a whole request is answered; but a held poll, a stream,
  and an answer that is made while it is sent end with it, because a process that dies says no more than that.
"""


def pages() -> dict[str, str]:
    """Every page of the reference: its text by file name."""
    made = {
        "settings.md": _settings(),
        "states.md": _states(),
        "errors.md": _errors(),
        "journal.md": _journal(),
        "holds.md": _holds(),
        "metrics.md": _metrics(),
        "cli.md": _cli(),
        "http.md": _http(),
        "api.md": _api(),
    }
    return {name: "\n".join([NOTE, "", *lines, ""]) for name, lines in made.items()}


def _settings() -> list[str]:
    lines = [
        "# Settings",
        "",
        "Later sources win: defaults, profile, `ironflow.toml` in the working directory (the names below as",
        "keys), environment variables, arguments. Durations are written `500ms`, `30s`, `5m`, `2h`, `7d`; an",
        "optional one can be `off`. Values that contradict each other are refused at start, all at once.",
        "",
    ]
    rows = (
        (f"`{s.name}`", f"`{s.env}`", _value(s, s.default), _value(s, s.conservative), s.meaning)
        for s in config.SETTINGS
    )
    return [*lines, *_table(("setting", "environment", "default", "`conservative`", "meaning"), rows)]


def _value(setting: config.Setting, value: object) -> str:
    if setting.kind in ("duration", "sweep", "optional"):
        return "off" if value is None else f"`{format_ms(int(str(value)))}`"
    return "not set" if value is None else f"`{value}`"


def _metrics() -> list[str]:
    lines = [
        "# Metrics",
        "",
        "In the text form of Prometheus, where [Watch it](../how-to/watch-it.md) says. A histogram has samples",
        "`_bucket`, `_sum` and `_count`. Each thing is counted once, by the process that did it, so sums over",
        "processes are right.",
        "",
    ]
    rows = (
        (f"`{one.name}`", one.kind, ", ".join(f"`{label}`" for label in one.labels), one.meaning) for one in INSTRUMENTS
    )
    return [*lines, *_table(("name", "kind", "labels", "meaning"), rows)]


def _states() -> list[str]:
    lines = ["# States of runs and steps", ""]
    for title, meanings, moves in (
        ("Runs", RUN_STATES, run.TRANSITIONS),
        ("Steps", STEP_STATES, step.TRANSITIONS),
    ):
        if meanings.keys() != moves.keys():
            raise LookupError(f"say in docs/generate.py what these mean: {meanings.keys() ^ moves.keys()}")
        order = list(moves)
        rows = (
            (f"`{state}`", meaning, ", ".join(f"`{to}`" for to in order if to in moves[state]) or "nothing")
            for state, meaning in meanings.items()
        )
        lines += [f"## {title}", "", *_table(("state", "meaning", "can become"), rows), ""]
    lines += [
        "A move that is not in these tables is refused with `INVALID_TRANSITION`, and nothing is changed.",
        "A paused run goes back to the state it was paused in; if that was `running`, it comes back as",
        "`pending` and is replayed.",
    ]
    return lines


def _errors() -> list[str]:
    lines = [
        "# Errors",
        "",
        "Every error of Ironflow is an `IronflowError` from `ironflow.errors`, with a `code` that is never",
        "renamed, a `message`, a `hint` (what to do) and `details` (plain data). The table follows the tree:",
        "a row that is set in is a kind of the nearest row above it that is set in less.",
        "",
    ]
    rows = []
    for depth, error in _tree(IronflowError, 0):
        about = (inspect.getdoc(error) or "").split("\n\n")[0].replace("\n", " ")
        rows.append(
            (
                f"{'&emsp;' * depth}`{error.__name__}`",
                f"`{error.code}`",
                str(error.status),
                about,
                error.advice,
            )
        )
    return [*lines, *_table(("class", "code", "HTTP", "meaning", "what to do"), rows)]


def _tree(error: type[IronflowError], depth: int) -> Iterator[tuple[int, type[IronflowError]]]:
    yield depth, error
    for child in error.__subclasses__():
        if child.__module__ == IronflowError.__module__:
            yield from _tree(child, depth + 1)


def _journal() -> list[str]:
    lines = [
        "# The journal",
        "",
        "A run is its journal: events numbered 1, 2, 3 … without a gap, only ever appended. The row of a run",
        "and its list of steps are read back from it (`ironflow doctor` compares them). Each event carries",
        "the `execution_seq` of the segment that wrote it; an older segment's events are refused.",
        "",
        "A *fact* is fed to the workflow when it is replayed; a *change of owner* raises `execution_seq`.",
        "",
    ]
    rows = ((f"`{kind}`", meaning, _role(kind)) for kind, meaning in journal.KINDS.items())
    return [*lines, *_table(("kind", "meaning", "role"), rows)]


def _role(kind: str) -> str:
    roles = (
        ("terminal", journal.TERMINAL_KINDS),
        ("fact", journal.FACT_KINDS),
        ("change of owner", journal.OWNER_KINDS),
    )
    return ", ".join(role for role, kinds in roles if kind in kinds)


def _holds() -> list[str]:
    lines = [
        "# Holds",
        "",
        "`ironflow why RUN` answers with these: every reason why a run is where it is, the most telling first, each",
        "with the earliest time at which it can lift. There always is one; `--json` gives `code`, `message`, `until`.",
        "",
    ]
    return [*lines, *_table(("code", "meaning"), ((f"`{code}`", meaning) for code, meaning in why.CODES.items()))]


def _http() -> list[str]:
    lines = [*HTTP.splitlines(), ""]
    tag = ""
    rows: list[tuple[str, str, str, str]] = []
    for path, methods in openapi(routes())["paths"].items():
        for method, operation in methods.items():
            if operation["tags"][0] != tag:
                lines += _endpoints(tag, rows)
                tag, rows = operation["tags"][0], []
            what = " ".join(operation["description"].split("\n\n")[0].split())
            who = " or ".join(operation["security"][0]["key"])
            rows.append((f"`{method.upper()} {path.removeprefix(PREFIX)}`", who, what, _refusals(operation)))
    return [*lines, *_endpoints(tag, rows)]


def _endpoints(tag: str, rows: list[tuple[str, str, str, str]]) -> list[str]:
    if not rows:
        return []
    return [f"## {tag.capitalize()}", "", *_table(("request", "role", "what it does", "own refusals"), rows), ""]


def _refusals(operation: dict[str, Any]) -> str:
    """The codes that not every request may be answered with."""
    everywhere = {"UNAUTHENTICATED", "FORBIDDEN", "RATE_LIMITED", "INVALID_REQUEST", "STORE_UNREACHABLE"}
    texts = [one["description"] for status, one in operation["responses"].items() if int(status) >= 400]
    codes = [code for text in texts for code in re.findall(r"`([A-Z_]+)`:", text)]
    return ", ".join(f"`{code}`" for code in codes if code not in everywhere)


def _cli() -> list[str]:
    command = whole_command()
    codes = ((str(code), meaning) for code, meaning in exits.MEANINGS.items())
    lines = ["# The command line", "", *_help_text(command), ""]
    lines += ["Every command ends with one of these exit codes:", "", *_table(("code", "meaning"), codes), ""]
    return [*lines, *_command("ironflow", command)]


def _command(path: str, command: Any) -> Iterator[str]:
    # Typer brings its own copy of click, or uses an installed one: what a command is shows in its attributes.
    if hasattr(command, "commands"):
        for name, child in command.commands.items():
            if child.hidden:
                continue
            title = f"{path} {name}"
            yield from (f"{'##' if path == 'ironflow' else '###'} {title}", "", *_help_text(child), "")
            yield from _command(title, child)
        return
    usage = [part for parameter in command.params if (part := _in_usage(parameter))]
    yield from ("```", " ".join([path, *usage, "[OPTIONS]"]), "```", "")
    options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
    rows = ((_option(option), (option.help or "").replace("\n", " ")) for option in options)
    yield from (*_table(("option", "meaning"), rows), "")


def _in_usage(parameter: Any) -> str:
    if parameter.param_type_name != "argument":
        return ""
    name = (parameter.metavar or parameter.name).upper().rstrip(".") + ("..." if parameter.nargs == -1 else "")
    return name if parameter.required else f"[{name}]"


def _option(option: Any) -> str:
    names = ", ".join(f"`{name}`" for name in [*option.opts, *option.secondary_opts])
    return names if option.is_flag else f"{names} {(option.metavar or option.name).upper()}"


def _help_text(command: Any) -> list[str]:
    return inspect.cleandoc(command.help or "").replace("\b\n", "").split("\f")[0].splitlines()


#: The public names in the order in which one meets them.
API = {
    "Writing workflows": (
        *("step", "Step", "workflow", "Workflow", "Context", "Call", "Outcome", "Retry", "Lane"),
        *("step_info", "StepInfo", "Done", "NotDone", "Unknown", "NonRetryableError", "RetryAfterError"),
    ),
    "Running them": ("run", "open", "Engine", "Run", "RunView"),
    "Errors": (
        *("IronflowError", "RunFailed", "RunCancelled", "RunPaused"),
        *("StepFailed", "StepInterrupted", "StepTimeout"),
    ),
}
#: Classes that authors make instances of; those of the others are given to them.
MADE = {"Retry", "Lane", "Done", "NotDone", "Unknown", "NonRetryableError", "RetryAfterError", "Engine", "Client"}
OPTIONS = {"Options of `@workflow`": WorkflowOptions, "Options of a start": Start}


def _api() -> list[str]:
    named = {name for names in API.values() for name in names}
    if named != set(ironflow.__all__):
        raise LookupError(f"say in docs/generate.py where these belong: {named ^ set(ironflow.__all__)}")
    lines = [
        "# The Python API",
        "",
        "Everything in the package `ironflow`, the client of a server in `ironflow.client`, and `step_info` of",
        "`ironflow.testing`. Other modules are its inside and may change with any release, except for",
        "[the errors](errors.md) in `ironflow.errors`. Times are seconds, a `timedelta`, or text such as `30s`, `5m`,",
        "`7d`; where a name ends in `_ms`, milliseconds.",
    ]
    for title, names in API.items():
        lines += ["", f"## {title}"]
        for name in names:
            lines += ["", f"### {name}", "", *_member(f"ironflow.{name}", getattr(ironflow, name))]
            if isinstance(getattr(ironflow, name), type) and title != "Errors":
                lines += _members(name, getattr(ironflow, name))
    lines += ["", "## Testing", "", "### testing.step_info", ""]
    lines += _member("ironflow.testing.step_info", testing.step_info)
    lines += ["", "## Runs on a server", "", "### Client", "", *_member("ironflow.client.Client", Client)]
    lines += _members("Client", Client)
    for title, shape in OPTIONS.items():
        lines += ["", f"## {title}", "", *_doc(shape)]
    return lines


def _members(owner: str, cls: type) -> Iterator[str]:
    """What a class offers, its own and what it has from others of ours; what it inherits from Python is found there."""
    ours = [base for base in cls.__mro__ if base.__module__.startswith("ironflow.")]
    for name, member in {name: one for base in ours[::-1] for name, one in vars(base).items()}.items():
        if name.startswith("_") or (inspect.isdatadescriptor(member) and not isinstance(member, property)):
            continue
        if isinstance(member, property):
            if inspect.getdoc(member):
                yield from ("", f"#### {owner}.{name}", "", *_doc(member))
        elif callable(member) and member.__doc__:
            yield from ("", f"#### {owner}.{name}", "", *_member(f"{owner}.{name}", member))


def _member(shown: str, member: Any) -> Iterator[str]:
    if isinstance(member, type) and member.__name__ not in MADE:
        yield from _doc(member)
        return
    if isinstance(member, types.UnionType) or not callable(member) or get_origin(member) is not None:
        yield from ("```python", f"{shown} = {str(member).replace('ironflow.engine.reconcile.', '')}", "```")
        return
    yield from ("```python", *_signatures(shown, member), "```", "", *_doc(member))


def _signatures(shown: str, member: Any) -> Iterator[str]:
    keyword = "async " if inspect.iscoroutinefunction(member) else ""
    overloads = get_overloads(member) if inspect.isfunction(member) else []
    for one in overloads or [member]:
        try:
            yield f"{keyword}{shown}{_signature(one)}"
        except ValueError:  # an exception that takes what Python's own takes
            yield shown


def _signature(member: Any) -> str:
    signature = inspect.signature(member)
    parameters = [p.replace(annotation=_Bare(p.annotation)) for n, p in signature.parameters.items() if n != "self"]
    returned = signature.return_annotation
    return str(signature.replace(parameters=parameters, return_annotation=_Bare(returned)))


class _Bare:
    """An annotation as it stands in the source: text without its quotes."""

    def __new__(cls, annotation: Any) -> Any:
        return annotation if annotation is inspect.Signature.empty else super().__new__(cls)

    def __init__(self, annotation: Any) -> None:
        self.text = annotation if isinstance(annotation, str) else inspect.formatannotation(annotation)

    def __repr__(self) -> str:
        return self.text


def _doc(member: Any) -> Iterator[str]:
    """A docstring as Markdown: its sections in bold, what a section lists as items."""
    item = False
    for line in re.sub(":(?:class|meth|func):", "", inspect.getdoc(member) or "").splitlines():
        section = re.fullmatch(r"(Args|Attributes|Options|Parameters|Raises|Returns|Class attributes):", line)
        named = re.match(r"(    )?(\w+(?:, \w+)*): (.*)", line)
        if section:
            item = False
            yield from (f"**{section[1]}**", "")
        elif named and (named[1] or item or _lists(member)):
            item = True
            yield f"- `{named[2]}`: {named[3]}"
        else:
            yield f"  {line.strip()}" if item and line.startswith("    ") else line.removeprefix("    ")
            item = item and bool(line)


def _lists(member: Any) -> bool:
    """Whether the docstring of a dictionary's shape lists its keys without a heading."""
    return member in OPTIONS.values()


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> Iterator[str]:
    yield "| " + " | ".join(head) + " |"
    yield "|" + "---|" * len(head)
    for row in rows:
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"


def main(arguments: Sequence[str]) -> int:
    """Write the pages, or with `--check` name those that differ."""
    check = "--check" in arguments
    stale = []
    for name, text in pages().items():
        file = FOLDER / name
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue
        stale.append(f"docs/reference/{name}")
        if not check:
            FOLDER.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
    for name in stale:
        sys.stdout.write(f"{name} {'is out of date: run docs/generate.py' if check else 'written'}\n")
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
