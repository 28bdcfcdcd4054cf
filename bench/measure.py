"""How a figure comes about: floor and engine in turns, at least three rounds, the median of each.

The two are interleaved because the same machine gives the same program 4 700 and 6 170 runs a second within ten
minutes; what happened to one of them in a minute happened to the other too, so their ratio holds where neither
figure does. Medians, because one stall of the disk must not decide.
"""

from __future__ import annotations

import gc
import statistics
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from bench.stores import Place

#: What one round of one side says: a figure per variant, in the unit of that variant.
Figures = Mapping[str, float]
Side = Callable[[str], Awaitable[Figures]]


@dataclass(frozen=True, slots=True)
class Row:
    """One measured figure beside its floor. `floor` and `ratio` are None where nothing comparable exists."""

    work: str
    store: str
    variant: str
    value: float
    unit: str
    floor: float | None
    ratio: float | None


#: Below this part of the load nothing is measured, only tried.
TRIAL = 0.1


@dataclass(frozen=True, slots=True)
class Scale:
    """How much is measured: `rounds` of each side, `share` of the full load, `kills` for W6."""

    rounds: int = 3
    share: float = 1.0
    kills: int = 30

    def of(self, full: int, least: int = 1) -> int:
        """This scale's part of a full load."""
        return max(least, round(full * self.share))

    def whole(self, full: int, least: int = 1) -> int:
        """The full load, where a smaller one would meet the target too easily; only a trial has less."""
        return full if self.share >= TRIAL else self.of(full, least)


async def interleaved(place: Place, scale: Scale, floor: Side, engine: Side) -> tuple[Figures, Figures]:
    """Run both sides in turns, each round on a fresh database. Returns the medians: (floor, engine)."""
    floors: list[Figures] = []
    engines: list[Figures] = []
    for round_no in range(1, scale.rounds + 1):
        for side, kept, name in ((floor, floors, "floor"), (engine, engines, "engine")):
            url = await place.fresh()
            gc.collect()  # what the last round left is not this round's cost
            figures = await side(url)
            kept.append(figures)
            place.drop(url)
            told = ", ".join(f"{variant} {value:,.4g}" for variant, value in figures.items())
            note(f"  round {round_no} {name}: {told}")
    return medians(floors), medians(engines)


def medians(rounds: Sequence[Figures]) -> Figures:
    """The median of each variant over the rounds."""
    return {variant: statistics.median(figures[variant] for figures in rounds) for variant in rounds[0]}


def rows(work: str, store: str, units: Mapping[str, str], floor: Figures, engine: Figures) -> list[Row]:
    """One row per variant of `units`, in its order."""
    made = []
    for variant, unit in units.items():
        below = floor.get(variant)
        value = engine[variant]
        made.append(Row(work, store, variant, value, unit, below, value / below if below else None))
    return made


def percentile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the values lies: one that occurred, never one in between."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def note(text: str) -> None:
    """Say how it goes; standard output belongs to the result."""
    print(text, file=sys.stderr, flush=True)
