"""`python -m jsrl.workers KIND`: entry point of every worker process. Imports only what its kind needs."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path


def main(arguments: list[str] | None = None) -> int:
    """Run the worker that a job file describes, or a host that forks actors; return the exit status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="python -m jsrl.workers", description=__doc__)
    parser.add_argument("kind", help="kind of worker, shown in process lists; actor-host forks actors")
    parser.add_argument("--control", required=True, help="address of the controller")
    parser.add_argument("--keys", help="folder of the keys for that address, if it is a TCP port")
    parser.add_argument("--parent", type=int, required=True, help="process that this one must not outlive")
    parser.add_argument("--nice", type=int, default=0, help="added to the niceness of the worker, or of forked actors")
    hosting = arguments[:1] == ["actor-host"]
    if not hosting:
        parser.add_argument("--job", required=True, type=Path, help="JSON file that the controller wrote")
        parser.add_argument("--name", required=True, help="such as actor-0")
        parser.add_argument("--incarnation", type=int, default=0)
    options = parser.parse_args(arguments)
    if hosting:
        from jsrl.workers.actor_host import host_actors

        return host_actors(options.control, options.parent, options.keys, options.nice)
    os.nice(options.nice)
    from jsrl.workers.process import work

    return work(options.job, options.control, options.name, options.incarnation, options.parent, options.keys)


if __name__ == "__main__":
    sys.exit(main())
