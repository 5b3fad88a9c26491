"""experiments/run.py with the additional experiments in extra_configs."""

import faulthandler
import sys
from pathlib import Path

faulthandler.enable()  # a test that waits in vain ends it with SIGABRT to see its stacks
here = Path(__file__).resolve().parent
sys.path.insert(0, str(here))

from jsrl.workers.process import no_collections  # noqa: E402

with no_collections():  # as in workers: there are hundreds of these
    import jsrl.experiment.configs
    from jsrl.cli.run import main

jsrl.experiment.configs.__path__.append(str(here / "extra_configs"))

if __name__ == "__main__":
    sys.exit(main())
