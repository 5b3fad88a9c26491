"""Run an experiment: `python experiments/run.py ppo_cartpole`, the same as `jsrl run ppo_cartpole`.

To read the code from here: `run` in jsrl/control/run.py plans the run and starts its processes. The loop of a process, `_loop`
in jsrl/workers/process.py, calls the `step` of a worker, such as `Actor` in jsrl/workers/actor/worker.py. In serial mode
jsrl/control/serial.py calls the same `step`.
"""

import sys

from jsrl.cli.run import main

if __name__ == "__main__":
    sys.exit(main())
