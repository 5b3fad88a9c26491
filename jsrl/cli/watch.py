"""Show the runs of a folder in a browser while they run: `jsrl watch`, on this machine only; nothing is changed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from jsrl.cli.main import Parser, show_error
from jsrl.errors import ConfigError
from jsrl.tools.report.watch import Server


def main(arguments: Sequence[str] | None = None) -> int:
    parser = Parser(prog="jsrl watch", description=__doc__)
    parser.add_argument("folder", nargs="?", type=Path, default=Path("runs"), help="folder of the runs (default: runs)")
    parser.add_argument("--port", type=int, default=8010, help="port on 127.0.0.1 (0: any that is free)")
    options = parser.parse_args(arguments)
    try:
        server = Server(options.folder, options.port)
    except ConfigError as error:
        return show_error(error)
    with server:
        print(f"{server.url} shows the runs in {options.folder}; Ctrl-C ends it.", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()
    return 0
