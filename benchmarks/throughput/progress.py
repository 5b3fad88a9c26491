"""Progress of a benchmark: a bar on a terminal, a line per step elsewhere."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator

from rich import progress
from rich.console import Console


class Progress:
    """Steps of a benchmark, shown on standard error."""

    def __init__(self, steps: int) -> None:
        self._console = Console(stderr=True)
        self._steps, self._done, self._begin_s = steps, 0, time.monotonic()
        columns = (progress.BarColumn(), progress.MofNCompleteColumn(), progress.TimeElapsedColumn())
        self._bar = progress.Progress(
            *columns, progress.TextColumn("{task.description}"), console=self._console, transient=True
        )
        self._task = self._bar.add_task("", total=steps)

    def __enter__(self) -> Progress:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._bar.stop()

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[Callable[[str], None]]:
        """Show the current step; call the function that the block receives with the result."""
        results: list[str] = []
        self._bar.update(self._task, description=text)
        yield results.append
        self._done += 1
        self._bar.advance(self._task)
        said = f"{text}: {results[-1]}" if results else text
        passed_s = time.monotonic() - self._begin_s
        self._console.print(f"[{self._done}/{self._steps}, {passed_s:.0f} s] {said}", highlight=False, markup=False)
