"""`jsrl COMMAND ...`, or `python -m jsrl COMMAND ...`."""

import os
import sys
import threading
import time

LEAVE_S = 5.0


def main() -> int:
    """Execute the command line; return the exit status."""
    try:
        from jsrl.cli.main import main as execute  # here, so that Ctrl-C during the import gets its line, too

        status = execute()
        threading.Thread(target=_leave, args=(status,), daemon=True).start()
        return status
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        return 130


def _leave(status: int) -> None:
    """End the process if threads of other code, such as an environment's, keep it from ending."""
    time.sleep(LEAVE_S)
    others = [t for t in threading.enumerate() if not t.daemon and t is not threading.main_thread()]
    if others:
        names = ", ".join(thread.name for thread in others[:3])
        sys.stderr.write(f"warning: {names} did not end (a thread of the environment?); the process ends without it\n")
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


if __name__ == "__main__":
    sys.exit(main())
