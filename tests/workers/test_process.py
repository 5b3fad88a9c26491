"""What a worker's process does with itself before it works."""

from __future__ import annotations

import os
import threading

import pytest

from jsrl.workers.process import keep_to_one_core


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="no affinities on this system")
@pytest.mark.parametrize("index", [0, 1, 5])
def test_an_actor_keeps_to_one_core_with_the_threads_it_starts(index: int) -> None:
    cores, seen = sorted(os.sched_getaffinity(0)), []

    def look() -> None:
        seen.append(os.sched_getaffinity(0))

    def work() -> None:
        keep_to_one_core(index)
        look()
        later = threading.Thread(target=look)
        later.start()
        later.join()

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert seen == [{cores[-1 - index % len(cores)]}] * 2
    assert sorted(os.sched_getaffinity(0)) == cores
