"""Log records on stderr, as the settings `log_level` and `log_format` say.

One handler for the whole process, so that what the engine says, what `ctx.log` says and what authors'
libraries say appear in one order. On a terminal with a live view they go through its console, which
prints above the view.
"""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable
from threading import get_ident

from ironflow.cli.listing import ID_END
from ironflow.cli.times import clock
from ironflow.config import Settings
from ironflow.context.log import ReplayFilter
from ironflow.engine.step_info import current
from ironflow.engine.views import iso
from ironflow.engine.workflow_loop import active_loops


class _Handler(logging.Handler):
    def __init__(self, write: Callable[[str], None], as_json: bool, process: str) -> None:
        super().__init__()
        self.write = write
        self.as_json = as_json
        self.process = process

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self.write(self._json(record) if self.as_json else self._text(record))
        except Exception:  # the rule of logging: a record that cannot be written must not break the program
            self.handleError(record)

    def _text(self, record: logging.LogRecord) -> str:
        who = f"{self.process}: " if self.process else ""
        place = _place(record)
        if place:
            run_id = place["run_id"] if len(place["run_id"]) <= ID_END else f"…{place['run_id'][-ID_END:]}"
            who += f"{' '.join([run_id, *([place['step']] if 'step' in place else [])])}: "
        text = f"{clock(int(record.created * 1000))} {record.levelname.lower():<7} {who}{record.getMessage()}"
        trace = self._trace(record)
        return f"{text}\n{trace}" if trace else text

    def _json(self, record: logging.LogRecord) -> str:
        fields = {
            "at": iso(int(record.created * 1000)),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if self.process:
            fields["worker_id"] = self.process
        fields |= _place(record)
        trace = self._trace(record)
        return json.dumps({**fields, "traceback": trace} if trace else fields, ensure_ascii=False)

    def _trace(self, record: logging.LogRecord) -> str:
        if not record.exc_info or record.exc_info[0] is None:
            return ""
        return logging.Formatter().formatException(record.exc_info)


def _place(record: logging.LogRecord) -> dict[str, str]:
    """The run whose code made a record, and the step: a hundred runs may write to one place. Empty for other records,
    those of the engine among them, which name their run in their text.
    """
    info = current.get(None)
    if info is not None:  # a step's body; and it is its own thread and context that brings the record here
        return {"run_id": info.run_id, "step": info.name, "step_id": info.step_id}
    run_id = getattr(record, "run_id", None)  # `ctx.log`
    if run_id is None and (loop := active_loops.get(get_ident())) is not None:  # another logger, in workflow code
        run_id = loop.run_id
    return {} if run_id is None else {"run_id": str(run_id)}


def to_stderr(text: str) -> None:
    """Write a line to stderr."""
    print(text, file=sys.stderr, flush=True)


def configure(
    settings: Settings, write: Callable[[str], None] = to_stderr, *, ends: bool = True, process: str = ""
) -> None:
    """Send log records to `write`, unless the author's code has set logging up by itself.

    Args:
        settings: level and format.
        write: takes one record as text.
        ends: whether to say how runs end; not for a command that reports its run itself.
        process: the name of this process, where several write to one place.
    """
    root = logging.getLogger()
    logging.getLogger("ironflow.runs").disabled = not ends
    if root.handlers:
        return
    handler = _Handler(write, settings.log_format == "json", process)
    handler.addFilter(ReplayFilter())
    root.addHandler(handler)
    level = settings.log_level.upper()
    logging.getLogger("ironflow").setLevel(level)
    root.setLevel(max(logging.getLevelName(level), logging.WARNING))
    # The loop warns of slow callbacks and tasks in words nobody but its authors understands.
    logging.getLogger("asyncio").setLevel(logging.ERROR)
