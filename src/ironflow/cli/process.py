"""What makes Ironflow's own long-lived processes, `ironflow worker` and `ironflow serve`, faster than a program that
embeds the engine: they may choose the event loop, and how Python's garbage collector goes about its work.
"""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable

#: When so many more containers were made than freed, the young ones are looked through; Python's own figure is 700.
YOUNG = 10_000


def fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """The loop of uvloop where it is installed (the extra `fast`); None means asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def relax_collector() -> None:
    """Look no more at what is loaded by now, and less often at the rest. Call it once all code is imported.

    Runs leave no cycles behind (tests/worker/test_garbage.py), so what the collector looks through again and again is
    alive: modules, models, and the runs under way. What that costs: `bench/profile_step.py --plain`, with `--embedded`
    and without.
    """
    gc.collect()
    gc.freeze()
    gc.set_threshold(YOUNG, *gc.get_threshold()[1:])
