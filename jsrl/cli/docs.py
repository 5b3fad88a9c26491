"""`jsrl docs`: build the documentation and serve it on this machine, without a network."""

from __future__ import annotations

import functools
import http.server
import importlib.util
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from jsrl.cli.arguments import Parser
from jsrl.errors import ConfigError, MissingExtra
from jsrl.extras import install_command

FOLDER = Path(__file__).parent / "site"
MAX_PORT = 65_535
NEEDED = ("mkdocs", "material", "mkdocstrings_handlers.python")


def main(arguments: Sequence[str] | None = None) -> int:
    """Build the site, and serve it on 127.0.0.1 unless only a folder was asked for; return the exit status."""
    parser = Parser(prog="jsrl docs", description=__doc__)
    parser.add_argument("--build", metavar="FOLDER", type=Path, help="only build the site into this folder")
    parser.add_argument("--port", type=int, default=8000, help="port on 127.0.0.1 (0: any that is free)")
    options = parser.parse_args(arguments)
    if not 0 <= options.port <= MAX_PORT:
        parser.error(f"argument --port: {options.port}, expected 0 to {MAX_PORT}")
    try:
        if options.build:
            build(options.build)
            print(f"{options.build / 'index.html'} is the first page.")
            return 0
        with tempfile.TemporaryDirectory(prefix="jsrl-docs-") as folder:
            build(Path(folder))
            serve(Path(folder), options.port)
    except (ConfigError, MissingExtra) as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    return 0


def build(folder: Path) -> None:
    """Build the site into a folder, which is created, or emptied if it holds an earlier site.

    Raises:
      MissingExtra: mkdocs or one of its parts is not installed.
      ConfigError: the folder holds other files, or mkdocs failed; the message has its output.
    """
    if any(_missing(module) for module in NEEDED):
        raise MissingExtra(f"the documentation is built by mkdocs, which is missing: {install_command('docs')}")
    if folder.exists() and not folder.is_dir():
        raise ConfigError(f"{folder} is a file; choose a folder for the docs.")
    if folder.exists() and any(folder.iterdir()) and not (folder / "search" / "search_index.json").exists():
        raise ConfigError(f"{folder} contains files other than an earlier build of the docs; choose an empty folder.")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"{folder} cannot be written ({error.strerror}); choose another folder.") from error
    args = [
        sys.executable,
        "-m",
        "mkdocs",
        "build",
        "--strict",
        "--clean",
    ]  # --quiet would hide warnings from --strict
    args += ["-f", str(FOLDER / "mkdocs.yml"), "-d", str(folder.absolute())]
    paths = [str(FOLDER.parents[2]), os.environ.get("PYTHONPATH", "")]  # the API page reads this jsrl
    variables = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "NO_MKDOCS_2_WARNING": "1"}
    ended = subprocess.run(
        args, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if ended.returncode:
        raise ConfigError(f"mkdocs could not build the pages of {FOLDER / 'pages'}:\n{ended.stdout.strip()}")


def serve(folder: Path, port: int) -> None:
    """Serve a folder over HTTP on 127.0.0.1 until Ctrl-C.

    Raises:
      ConfigError: the port cannot be used.
    """
    handler = functools.partial(_Handler, directory=str(folder))
    try:
        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), handler)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"port {port} of 127.0.0.1 cannot be used ({error}); choose another with --port.") from error
    with server:
        print(f"http://127.0.0.1:{server.server_address[1]}/ has the docs; Ctrl-C ends it.", flush=True)
        try:
            server.serve_forever()
        except KeyboardInterrupt:
            print()


def _missing(module: str) -> bool:
    try:
        return importlib.util.find_spec(module) is None
    except ModuleNotFoundError:  # the package above it
        return True


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Files of one folder, without a log line for each request."""

    def log_message(self, format: str, *args: object) -> None:
        pass
