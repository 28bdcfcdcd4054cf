"""The last step before a screen: what is printed, with its text made harmless and its colours left as they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from rich.console import Console, ConsoleOptions, ConsoleRenderable, RenderHook
from rich.segment import Segment

if TYPE_CHECKING:
    from rich.console import RenderResult


class OnlySigns(RenderHook):
    """A hook for a console. What rich itself tells the terminal is no text, and is not touched.

    Args:
        visible: makes a text harmless.
    """

    def __init__(self, visible: Callable[[str], str]) -> None:
        self._visible = visible

    def process_renderables(self, renderables: list[ConsoleRenderable]) -> list[ConsoleRenderable]:
        """What is about to be printed."""
        return [_Signs(one, self._visible) for one in renderables]


class _Signs:
    def __init__(self, inside: ConsoleRenderable, visible: Callable[[str], str]) -> None:
        self._inside = inside
        self._visible = visible

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self._inside, options):
            if segment.control:
                yield segment
            else:
                yield Segment(self._visible(segment.text), segment.style)
