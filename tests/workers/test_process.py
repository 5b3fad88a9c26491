"""The start of a worker's process."""

import gc

from jsrl.workers.process import no_collections


def test_garbage_collection_is_off_while_a_worker_is_built_and_objects_are_frozen() -> None:
    try:
        with no_collections():
            assert not gc.isenabled()
            made = [[number] for number in range(1000)]
        assert gc.isenabled()
        assert gc.get_freeze_count() > len(made)
    finally:
        gc.unfreeze()
