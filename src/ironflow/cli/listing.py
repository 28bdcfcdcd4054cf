"""Tables for people: what gives way where the terminal is narrow, and what never does.

Promises that only columns that say so are shortened, in the order in which they say so, and that each keeps enough to
tell its rows apart. An id is shortened at its front: ids are ordered by time and differ most at their end, which every
command takes for the whole. A line that still does not fit is left to the terminal to wrap, for a cut number is a
wrong one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

#: Blanks between two columns.
GAP = 2
#: What a column that gives way keeps at the least, and one that folds; of an id, its end and a sign in front.
LEAST = 6
FOLDED = 16
ID_END = 12


class Listing:
    """A table without lines.

    Args:
        columns: their heads; "" for one without.
        fold: a column that gives way by going on in the next line, before any other.
        shrink: columns that give way then, the first one first. They are cut at their end.
        ids: columns that hold ids: they give way last, and are cut at their front.
    """

    def __init__(
        self, *columns: str, shrink: Sequence[str] = (), ids: Sequence[str] = (), fold: str | None = None
    ) -> None:
        self._columns = columns
        self._shrink = shrink
        self._ids = ids
        self._fold = fold
        self._rows: list[tuple[list[Text], str]] = []

    def __len__(self) -> int:
        return len(self._rows)

    def add_row(self, *cells: str | Text, style: str = "") -> None:
        """Add a row, a cell for each column."""
        from rich.text import Text

        self._rows.append(([cell if isinstance(cell, Text) else Text(cell) for cell in cells], style))

    def print(self, screen: Console) -> None:
        """Print it as wide as the screen allows."""
        from rich.table import Table

        widths = self._widths(screen.width)
        made = Table(box=None, padding=(0, GAP, 0, 0), pad_edge=False, header_style="bold", width=_whole(widths))
        for name, width in zip(self._columns, widths, strict=True):
            folds = name == self._fold
            made.add_column(name, width=width, no_wrap=not folds, overflow="fold" if folds else "ellipsis")
        for cells, style in self._rows:
            fitted = zip(self._columns, cells, widths, strict=True)
            made.add_row(*(self._fitted(name, cell, width) for name, cell, width in fitted), style=style)
        screen.print(made, crop=False)

    def _widths(self, room: int) -> list[int]:
        from rich.cells import cell_len

        found = [
            max([cell_len(name), *(cells[n].cell_len for cells, _ in self._rows)])
            for n, name in enumerate(self._columns)
        ]
        for name in [*([self._fold] if self._fold is not None else []), *self._shrink, *self._ids]:
            excess = _whole(found) - room
            if excess <= 0:
                break
            n = self._columns.index(name)
            least = max(cell_len(name), FOLDED if name == self._fold else ID_END + 1 if name in self._ids else LEAST)
            found[n] -= min(excess, max(0, found[n] - least))
        return found

    def _fitted(self, name: str, cell: Text, width: int) -> Text:
        from rich.text import Text

        if name not in self._ids or cell.cell_len <= width:
            return cell
        return Text("…").append_text(cell[len(cell) - width + 1 :])


def _whole(widths: Sequence[int]) -> int:
    return sum(widths) + GAP * (len(widths) - 1)
