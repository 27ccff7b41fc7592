"""Layout of parts on a screen with a limited number of lines: lists drop rows, so that important parts fit.

Lines are counted as they are drawn, with everything folded. With rich.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderableType
from rich.text import Text


class Shortenable:
    """A list of which a part can be shown.

    ``draw`` draws the items of some positions, which are in their order, and says what is missing. ``ranked``: the
    positions, those that must be seen first. ``least``: the number of items that stay in any case. ``use``: of lists
    that can do without any, those of less use do so first.
    """

    def __init__(
        self,
        count: int,
        draw: Callable[[Sequence[int]], RenderableType],
        ranked: Sequence[int] | None = None,
        least: int = 1,
        use: int = 0,
    ) -> None:
        self._draw = draw
        self._ranked = range(count) if ranked is None else ranked
        self.count = count
        self.least = min(least, count)
        self.use = use

    def drawn(self, count: int) -> RenderableType:
        """Draw this number of items."""
        return self._draw(sorted(self._ranked[:count]))


class Screen:
    """Parts that are drawn in a number of lines, as far as lists can be shortened: the longest is, again and again."""

    def __init__(self, parts: Sequence[RenderableType | Shortenable], lines: int) -> None:
        self._parts = parts
        self._lines = lines
        self._fitted: dict[int, list[RenderableType]] = {}
        """By the width that it was drawn in: a screen is drawn several times before it is looked at again."""

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        if options.max_width not in self._fitted:
            self._fitted[options.max_width] = self._fit(console, options)
        yield from self._fitted[options.max_width]

    def _fit(self, console: Console, options: ConsoleOptions) -> list[RenderableType]:
        lists = {i: part for i, part in enumerate(self._parts) if isinstance(part, Shortenable)}
        # An item has a line at least.
        counts = {i: min(part.count, max(part.least, self._lines)) for i, part in lists.items()}
        drawn = [part.drawn(counts[i]) if isinstance(part, Shortenable) else part for i, part in enumerate(self._parts)]
        heights = [_height(part, console, options) for part in drawn]
        while (over := sum(heights) - self._lines) > 0:
            several = [i for i, part in lists.items() if counts[i] > max(1, part.least)]
            single = [i for i, part in lists.items() if counts[i] > part.least]
            if several:
                chosen = max(several, key=lambda i: heights[i])
                counts[chosen] = max(1, lists[chosen].least, counts[chosen] - max(1, over // (2 * len(lists))))
            elif single:
                chosen = min(single, key=lambda i: lists[i].use)
                counts[chosen] = 0
            else:
                break
            drawn[chosen] = lists[chosen].drawn(counts[chosen])
            heights[chosen] = _height(drawn[chosen], console, options)
        return drawn


class Clipped:
    """A text of which only the first lines are shown."""

    def __init__(self, text: Text, lines: int) -> None:
        self._text = text
        self._lines = lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        width = options.max_width
        lines = self._text.wrap(console, width)
        shown = list(lines[: self._lines])
        if len(lines) > self._lines:
            shown[-1].truncate(max(1, width - 1))
            shown[-1].append("…")
        yield Text("\n").join(shown)


def _height(part: RenderableType, console: Console, options: ConsoleOptions) -> int:
    return len(console.render_lines(part, options.update(height=None), pad=False))
