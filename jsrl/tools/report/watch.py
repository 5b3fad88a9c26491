"""The web server of `jsrl watch`: loopback only, read-only; of a run it serves the page and the files that the page links.

Pages are those of `jsrl report`, and fetch themselves again: an answer says in its ETag what the page was made of.
"""

from __future__ import annotations

import hashlib
import http.server
import re
import sys
import threading
import time
import urllib.parse
from html import escape
from http import HTTPStatus
from pathlib import Path
from typing import Any

from jsrl.errors import ConfigError, counted
from jsrl.plain_files import open_plain
from jsrl.services.runs.runs import RunFolder
from jsrl.tools.report.page import RUNS, UNREADABLE, Html, Table, badge, header, shell
from jsrl.tools.report.report import body
from jsrl.tools.report.rows import TITLES, RunRow, row_of, signature
from jsrl.tools.report.run_report import linked_files, make_report

ADDRESS = "127.0.0.1"
HOSTS = (ADDRESS, "localhost")  # names in a browser on this machine; any other name is DNS rebinding
MARKS = ("experiment.json", "environment.json", "metrics.jsonl")  # a folder with one of them is a run
PART_BYTES = 1 << 16
MOST_PAGES = 32  # kept in memory
# what took longer than this is made again only after REST times as long, for a tenth of a core
LONG_S, REST = 0.5, 9
SCRIPT = """
let tag = "";
const key = one => one.querySelector("summary").textContent;
async function refresh() {
  const playing = [...document.querySelectorAll("video")].some(one => !one.paused);
  if (!document.hidden && !playing && !String(getSelection())) {
    try {
      const answer = await fetch(location, {cache: "no-store", headers: tag ? {"If-None-Match": tag} : {}});
      document.body.classList.toggle("away", !answer.ok && answer.status != 304);
      if (answer.ok) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        const open = new Set([...document.querySelectorAll("details[open]")].map(key));
        const at = [scrollX, scrollY];
        document.querySelector("main").replaceWith(page.querySelector("main"));
        for (const one of document.querySelectorAll("details")) one.open = open.has(key(one));
        scrollTo(...at);
        tag = answer.headers.get("ETag");
      }
    } catch { document.body.classList.add("away"); }
  }
  setTimeout(refresh, 2000);
}
setTimeout(refresh, 2000);
"""
LOADED = '<script src="/watch.js"></script>'
AWAY = '<p class="gone">`jsrl watch` has ended: this page no longer changes.</p>\n'
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; media-src 'self'; form-action 'none'",
}
OF_PAGES = {  # only they may run a script: a run's files may be a stranger's
    "Content-Type": "text/html; charset=utf-8",
    "Content-Security-Policy": HEADERS["Content-Security-Policy"] + "; script-src 'self'; connect-src 'self'",
}
KINDS = {".mp4": "video/mp4", ".json": "application/json"}  # of files; all others are plain text


class Server(http.server.ThreadingHTTPServer):
    """Serves the runs of a folder on the loopback interface.

    Attributes:
      url: of the list of runs.
    """

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        """Listen on a port of 127.0.0.1; 0: any free port."""
        if not folder.is_dir():
            raise ConfigError(f"there is no folder {folder.absolute()}; give the folder that holds your runs.")
        self.folder = folder.resolve()
        self._making = threading.Lock()
        self._pages: dict[str, tuple[str, str, float]] = {}  # run -> tag, content, when it may be made again
        self._rows: dict[Path, tuple[Any, RunRow]] = {}
        try:
            super().__init__((ADDRESS, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"port {port} of {ADDRESS} cannot be used ({error}); choose another with --port."
            ) from error
        self.url = f"http://{ADDRESS}:{self.server_address[1]}/"

    def runs(self) -> dict[str, Path]:
        """Return name -> folder of every run in the folder; links to other folders are left out."""
        marks = [path for depth in ("*", "*/*") for mark in MARKS for path in self.folder.glob(f"{depth}/{mark}")]
        folders = {path.parent for path in marks if path.parent.resolve().is_relative_to(self.folder)}
        return {folder.relative_to(self.folder).as_posix(): folder for folder in folders}

    def index(self) -> str:
        """Return the list of all runs as HTML, the last changed first."""
        rows = {name: self._row(path) for name, path in self.runs().items()}
        running = sum(row.state == RUNS for row in rows.values())
        top = header(self.folder.name, rest=f"<p>{counted(len(rows), 'run')}, {running} running</p>")
        if not rows:
            return f"{top}<section>There is no run in this folder yet. It appears here when it starts.</section>"
        newest = sorted(rows.items(), key=lambda entry: (entry[1].state != RUNS, -entry[1].updated_s))
        lines = [(link(f"run/{quoted(name)}/", name), badge(row.state, row.hint), *row.cells) for name, row in newest]
        return f"{top}<section>{Table(TITLES, lines, 'numbers', words=(1, 2)).html()}</section>"

    def _row(self, run: Path) -> RunRow:
        """Return a run's line, made again only when its files have changed."""
        sign = signature(run)
        if self._rows.get(run, (None,))[0] != sign:
            try:
                row = row_of(run)
            except Exception as error:  # as for its page
                row = RunRow(UNREADABLE, hint=str(error))
            self._rows[run] = sign, row
        return self._rows[run][1]

    def page(self, name: str, run: Path) -> tuple[str, str]:
        """Return the tag and content of a run's page, made again only when its files have changed; one at a time."""
        with self._making:
            shown, content, due_s = self._pages.get(name, ("", "", 0.0))
            tag = f'"{hashlib.sha256(repr(signature(run)).encode()).hexdigest()[:16]}"'
            begun_s = time.monotonic()
            if tag == shown or (shown and begun_s < due_s):
                return shown, content
            content = content_of(name, run)
            took_s = time.monotonic() - begun_s
            due_s = begun_s + (1 + REST) * took_s if took_s > LONG_S else 0.0
            self._pages.pop(name, None)
            self._pages[name] = tag, content, due_s
            if len(self._pages) > MOST_PAGES:
                del self._pages[next(iter(self._pages))]
            return tag, content

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error of a request, unless the browser closed the connection."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


def quoted(name: str) -> str:
    return urllib.parse.quote(name)


def link(address: str, text: str) -> Html:
    return Html(f'<a href="{address}">{escape(text)}</a>')


def content_of(name: str, run: Path) -> str:
    """Return the page of a run, or why it cannot be shown."""
    try:
        return body(make_report(RunFolder(run)))
    except Exception as error:  # half-written, damaged, or of a user's code that is missing here: shown on its page
        what = f"{type(error).__name__}: {error}"
        rest = f'<div class="error">{escape(what)}</div><p>The page follows when its files can be read.</p>'
        return header(name, badge=badge(UNREADABLE), rest=rest)


def asked_part(header: str, size: int) -> tuple[int, int] | None:
    """Return (first byte, number of bytes) of the part of a file that a Range header asks for; None: it asks for no part.

    Some browsers play a video only from a server that sends parts, and all seek in it by them.
    """
    found = re.fullmatch(r"bytes=(\d{1,15})-(\d{0,15})", header.strip())
    if found is None:
        return None
    start, stop = int(found[1]), min(int(found[2]) + 1, size) if found[2] else size
    return (start, stop - start) if start < stop else None


class _Handler(http.server.BaseHTTPRequestHandler):
    """GET / and /run/NAME/ are pages, other names below a run are its files."""

    server: Server
    server_version, sys_version = "jsrl", ""
    timeout = 30.0

    def do_GET(self) -> None:
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        if self.headers.get("Host", "").partition(":")[0] not in HOSTS:
            self.send_error(HTTPStatus.FORBIDDEN, f"open this page as {self.server.url}")
        elif path == "/":
            self._page("runs", self.server.index())
        elif path == "/watch.js":
            self._answer(SCRIPT, {"Content-Type": "text/javascript; charset=utf-8"})
        elif path.startswith("/run/"):
            self._run(path.removeprefix("/run/"))
        else:
            self.send_error(HTTPStatus.NOT_FOUND, "there is no such page")

    def _run(self, path: str) -> None:
        """Answer a path NAME/..., where NAME is a run's."""
        runs = self.server.runs()
        name = max((name for name in runs if f"{path}/".startswith(f"{name}/")), key=len, default="")
        rest = path.removeprefix(name).removeprefix("/")
        if not name:
            self.send_error(HTTPStatus.NOT_FOUND, "there is no such run")
        elif path == name:  # without the slash, which the links on the page need
            self._begin(HTTPStatus.MOVED_PERMANENTLY, {"Location": f"/run/{quoted(name)}/", "Content-Length": "0"})
        elif not rest:
            self._page_of_run(name, runs[name])
        elif rest in linked_files(runs[name]) and (file := (runs[name] / rest).resolve()).is_relative_to(runs[name]):
            self._file(file)
        else:
            self.send_error(HTTPStatus.NOT_FOUND, "the run has no such file")

    def _page_of_run(self, name: str, run: Path) -> None:
        tag, content = self.server.page(name, run)
        if self.headers.get("If-None-Match") == tag:
            self._begin(HTTPStatus.NOT_MODIFIED, {"ETag": tag})
        else:
            self._page(name, f"<p>{link('/', 'all runs')}</p>\n{content}", tag)

    def _page(self, title: str, content: str, tag: str = "") -> None:
        self._answer(shell(title, AWAY + content, LOADED), OF_PAGES | {"ETag": tag})

    def _answer(self, text: str, headers: dict[str, str]) -> None:
        content = text.encode()
        self._begin(HTTPStatus.OK, headers | {"Content-Length": str(len(content))})
        self.wfile.write(content)

    def _file(self, path: Path) -> None:
        try:
            with open_plain(path) as file:
                whole = file.seek(0, 2)
                part = asked_part(self.headers.get("Range", ""), whole)
                start, size = part or (0, whole)
                file.seek(start)
                kind = KINDS.get(path.suffix, "text/plain; charset=utf-8")
                headers = {"Content-Type": kind, "Content-Length": str(size), "Accept-Ranges": "bytes"}
                headers["Content-Range"] = f"bytes {start}-{start + size - 1}/{whole}" if part else ""
                self._begin(HTTPStatus.PARTIAL_CONTENT if part else HTTPStatus.OK, headers)
                while size > 0 and (chunk := file.read(min(size, PART_BYTES))):
                    self.wfile.write(chunk)  # a file that grows meanwhile is cut at the announced size
                    size -= len(chunk)
        except (OSError, ValueError):  # the file was deleted, or the reader is gone
            self.close_connection = True

    def _begin(self, status: HTTPStatus, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in (HEADERS | headers).items():
            if value:
                self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *words: object) -> None:
        """Log no requests."""
