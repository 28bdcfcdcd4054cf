"""When the silence of workers that were cut off counts as their death, and when it does not.

A session comes under suspicion when its liveness stream breaks, and leaves it with its next heartbeat. One that has
been a suspect for `suspect_after` counts as dead, unless it is one of a *mass*: many that were cut off at once are not
many deaths, but one break (a balancer that restarts, a switch), behind which they live and go on executing.

The rule, which both stores decide from the rows of the sessions, in the transaction that would end one of them (the
fragment `mass` in `sql/columns.sql`), so that two nodes which ask at one time find the same:

- Counted are the suspects whose suspicions began within `suspect_after` of each other: for each of them, those in the
  fullest stretch of so many ms that its own beginning lies in. They are compared with each other and not with the
  present, so that time alone never makes a mass smaller.
- Compared with the live sessions of all organisations and kinds: those whose time is not up, and all suspects.
- More than three, and more than a fifth of the live sessions, are a mass. Up to three always count one by one, so a
  small cluster loses nothing by the rule.
- Who belongs to a mass is left to proof and to its own clock, and time in a mass counts for nothing: each pass of a
  scanner begins the suspicion of its members anew (`Store.hold_back`). Whoever is cut off meanwhile belongs to it, too.
- It is over when few enough are left: others have beaten, said goodbye, were proved dead, or their clocks ran out. The
  rest count one by one from then on, and have a `suspect_after` (less the time between two passes or so) to be heard
  of. For those whom one break cut off come back one after the other, and their clocks run out one after the other,
  within one renewal, which is shorter (see `config`).
- Whom suspicion ends was in no stretch over the limit, and every suspicion of its stretches had begun by then. So an
  end by suspicion takes nothing away from a mass, and a mass cannot be ended a few at a time.
"""

from __future__ import annotations

from typing import NamedTuple

from ironflow.model.capacity import SessionRow


class Suspicion(NamedTuple):
    """What is asked of a suspect before it counts as dead. Both in milliseconds.

    `until`: its suspicion began then or before. `within`: suspicions that began within so long are counted together.
    """

    until: int
    within: int


class Mass(NamedTuple):
    """So many suspects at once, of so many live sessions: too many to be dead one by one."""

    suspects: int
    live: int


class Suspects(NamedTuple):
    """Those who count as dead, longest suspected first; and the largest mass there is, whose members do not."""

    due: list[SessionRow]
    mass: Mass | None
