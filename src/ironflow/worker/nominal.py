"""What a worker may hold in name only: a lease that the others see, and that nobody here drives or renews.

It comes about while the store is away: a worker that could not renew gives its runs up, and an activation whose answer
never came may be committed behind its back once the store is there again. Such a run would stand still for a whole
lease, beside a worker that is alive. So the worker gives it back as soon as it reaches the store, and says so again for
one lease time, because what was under way may land later than the first word.

Safe, because a giving back names the fence of just that segment (its execution_seq and its token): where the run was
taken since, by whomever, nothing happens; and once it is given back, what is still under way is refused by the fence.
A lease that has run out is left to the scanner, as ever: its loss counts.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from ironflow.errors import OUTAGES

if TYPE_CHECKING:
    from ironflow.worker.port import Holding
    from ironflow.worker.worker import Worker

log = logging.getLogger("ironflow.worker")


class Nominal:
    """See the module's docstring."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        #: what may be held → until when that is told (ms, the store's clock); None: the store was not reached since
        self._held: dict[Holding, int | None] = {}
        self._telling = False

    def add(self, *held: Holding) -> None:
        """These may be leased to this worker's session, and are not driven here."""
        self._held.update(dict.fromkeys(held))

    def clear(self) -> None:
        """The session is gone, and its leases with it."""
        self._held.clear()

    def reached(self) -> None:
        """The store answers: give back what is held in name only. Called on the loop after each beat."""
        if self._held and not self._telling and not self._worker.stopping:
            self._telling = True
            self._worker.spawn(self._tell())

    async def _tell(self) -> None:
        worker = self._worker
        try:
            now = worker.port.now()
            until = now + worker.settings.lease_ttl_ms
            self._held = {
                one: until if told is None else told for one, told in self._held.items() if told is None or told > now
            }
            left = list(self._held)
            while left:  # a run may have been tried for twice; at the most one of these tries was applied
                one_each = {holding[0]: holding for holding in left}
                left = [holding for holding in left if one_each[holding[0]] != holding]
                await worker.port.release(list(one_each.values()), worker.session.row.session_id)
            worker.session.tell_queue()
            worker.dispatcher.wake()
        except OUTAGES as error:
            log.debug("what was given up could not be given back yet: %s", error.message)
        finally:
            self._telling = False
