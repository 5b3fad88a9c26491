"""`jsrl COMMAND ...`, or `python -m jsrl COMMAND ...`."""

import sys


def main() -> int:
    """Execute the command line; return the exit status."""
    try:
        from jsrl.cli.main import main as execute  # here, so that Ctrl-C during the import gets its line, too

        return execute()
    except KeyboardInterrupt:
        sys.stderr.write("\ninterrupted\n")
        return 130


if __name__ == "__main__":
    sys.exit(main())
