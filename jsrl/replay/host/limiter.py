"""Samples per insert: keeps insertions and draws at a fixed ratio.

Source: Cassirer et al. 2021, Reverb, arXiv 2102.04736 (SampleToInsertRatio); the same rule, in env steps
inserted and windows drawn.
"""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Limiter:
    """Counts insertions and draws, and decides which of them may continue.

    The first `min_size` env steps only fill. After that |ratio x (inserted - free) - drawn| stays within `slack`.
    Free-running, insertions only wait for the learner's start: until it has taken one of the first windows drawn.

    Attributes:
      min_size: env steps before the first draw. ratio: windows per env step, None: free-running.
      slack: windows by which either side may be ahead; free-running: windows drawn that the learner need not have taken.
      inserted: env steps so far. drawn: windows so far, `drawn_before` of them by earlier processes.
      free: env steps inserted while filling. until: env steps to insert before draws may continue.
    """

    min_size: int
    ratio: float | None
    slack: float
    inserted: int = 0
    drawn: int = 0
    free: int = -1
    until: int = -1
    drawn_before: int = field(default=0, compare=False)

    def __post_init__(self) -> None:
        if self.free < 0:
            self.free = self.until = self.min_size

    def may_insert(self, env_steps: int) -> bool:
        if self.inserted < self.until:
            return True
        if self.ratio is None:
            return not 0 < self.drawn - self.drawn_before <= self.slack
        return self.ratio * (self.inserted + env_steps - self.free) - self.drawn <= self.slack

    def may_draw(self, windows: int) -> bool:
        if self.inserted < self.until:
            return False
        if self.ratio is None:
            return True
        return self.ratio * (self.inserted - self.free) - (self.drawn + windows) >= -self.slack

    @property
    def state(self) -> dict[str, int]:
        return {"inserted": self.inserted, "drawn": self.drawn, "free": self.free, "until": self.until}

    def restore(self, state: dict[str, int]) -> None:
        self.inserted, self.drawn = int(state["inserted"]), int(state["drawn"])
        self.drawn_before = self.drawn
        self.free, self.until = int(state["free"]), int(state["until"])

    def count_lost(self, inserted: int) -> None:
        """Count the insertions since the last snapshot, `inserted` in all, which an incarnation had made when it was killed.

        Their rows are lost, so that they do not count in the ratio.
        """
        lost = max(0, inserted - self.inserted)
        self.inserted, self.free, self.until = self.inserted + lost, self.free + lost, self.until + lost

    def refill(self) -> None:
        """Start filling again, because the rows are lost: draws wait, and the refill does not count in the ratio.

        What a fill that is not complete yet still lacked counts no longer: it will not be inserted.
        """
        self.free += self.min_size - max(0, self.until - self.inserted)
        self.until = self.inserted + self.min_size


def make_limiter(
    min_size: int, ratio: float | None, tolerance: float, *, insert_size: int, draw_size: int, waiting: int
) -> Limiter:
    """Return a limiter with a slack of `tolerance` times the first fill, but large enough that the two sides do not both wait.

    Args:
      min_size, ratio: see Limiter. tolerance: share of min_size x ratio.
      insert_size: env steps that arrive together, over all streams. draw_size: windows drawn together. waiting: windows
        for which the learner's stream has memory.
    """
    if ratio is None:
        return Limiter(min_size, None, waiting)
    return Limiter(min_size, ratio, max(tolerance * min_size * ratio, ratio * insert_size, draw_size))
