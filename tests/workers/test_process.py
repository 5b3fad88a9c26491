"""How the process of a worker begins."""

import gc

from jsrl.workers.process import no_collections


def test_nothing_is_collected_while_a_worker_is_built_and_what_exists_then_is_kept() -> None:
    try:
        with no_collections():
            assert not gc.isenabled()
            made = [[number] for number in range(1000)]
        assert gc.isenabled()
        assert gc.get_freeze_count() > len(made)
    finally:
        gc.unfreeze()
