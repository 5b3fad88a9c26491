"""`python -m jsrl COMMAND ...`, the same as `jsrl COMMAND ...`."""

import sys

from jsrl.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
