"""What we hold ourselves to, on two cores of this class of machine.

A target is met when its absolute figure is reached or, in the same run, the same share of the floor: on a slower
disk the figure means nothing, on a faster one the share is the harder of the two.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from bench.stores import STORES
from bench.w6_http import LEASE_TTL_S, SUSPECT_AFTER_S


@dataclass(frozen=True, slots=True)
class Target:
    """`figure` in the unit of the work; `share` is value / floor, None where only the figure counts."""

    figure: float
    share: float | None = None
    less_is_better: bool = False

    def met(self, value: float, ratio: float | None) -> bool:
        """Whether a measured value, or its ratio to the floor, reaches this."""
        if self.less_is_better:
            return value <= self.figure or (ratio is not None and self.share is not None and ratio <= self.share)
        return value >= self.figure or (ratio is not None and self.share is not None and ratio >= self.share)

    def __str__(self) -> str:
        sign = "≤" if self.less_is_better else "≥"
        parts = [f"{self.figure:g}"] if math.isfinite(self.figure) else []
        parts += [] if self.share is None else [f"{self.share:.2g}x"]
        return " or ".join(f"{sign} {part}" for part in parts)


def _most(figure: float, share: float | None = None) -> Target:
    return Target(figure, share, less_is_better=True)


#: (work, variant): (target on SQLite, target on PostgreSQL)
_TARGETS = {
    ("W1", "p50"): (_most(0.7, 2.0), _most(1.1, 2.0)),
    ("W2", "steps"): (Target(4_200, 0.75), Target(2_300, 0.75)),
    ("W3", "queue"): (Target(2_700, 0.14), Target(2_700, 0.14)),
    ("W3", "direct"): (Target(3_500, 0.15), Target(2_900, 0.15)),
    ("W3", "queue16"): (Target(2_000, 0.26), Target(1_500, 0.23)),
    ("W3", "direct16"): (Target(2_000, 0.26), Target(1_500, 0.23)),
    ("W4", "serial"): (Target(3_700, 0.73), Target(2_400, 0.79)),
    ("W4", "x64"): (Target(25_000, 0.31), Target(18_000, 0.25)),
    # The figures were set beside a floor of about 1 ms, so they are its multiples, too.
    ("W5", "p95"): (_most(5.0, 5.0), _most(6.0, 6.0)),
    ("W5", "herd"): (_most(3.5), _most(3.5)),
    ("W5", "herd_other"): (_most(1_000.0), _most(1_000.0)),
    ("W6", "proof"): (_most(50.0), _most(50.0)),
    ("W6", "http_proof"): (_most(200.0), _most(200.0)),
    # The clocks of the settings they are measured with, and what may come on top.
    ("W6", "http_suspicion"): (_most(SUSPECT_AFTER_S + 1), _most(SUSPECT_AFTER_S + 1)),
    ("W6", "http_silence"): (_most(LEASE_TTL_S + 2), _most(LEASE_TTL_S + 2)),
    # 10 MB, beyond the 3 MB of the thousand instances a worker keeps parked on purpose.
    ("W7", "rss"): (_most(13.0), _most(13.0)),
    ("W8", "queue"): (Target(1_500), Target(1_500)),
    ("W8", "poll"): (_most(20.0), _most(20.0)),
    # A share alone, of an empty queue's and of the same without readers: the figure itself says little.
    ("W9", "at20k"): (Target(math.inf, 1 / 3), Target(math.inf, 1 / 3)),
    ("W9", "at200k"): (Target(math.inf, 1 / 3), Target(math.inf, 1 / 3)),
    ("W10", "steps"): (Target(math.inf, 0.8), Target(math.inf, 0.8)),
}


def target(work: str, store: str, variant: str) -> Target | None:
    """The target of a row, or None for one that is only shown."""
    both = _TARGETS.get((work, variant))
    return None if both is None else both[STORES.index(store)]
