"""The web server of `jsrl watch`: loopback only, read-only; serves only files that a run's page links."""

from __future__ import annotations

import hashlib
import http.server
import mimetypes
import re
import secrets
import sys
import urllib.parse
from collections.abc import Mapping
from http import HTTPStatus
from pathlib import Path
from types import MappingProxyType
from typing import Any

from jsrl.errors import ConfigError
from jsrl.plain_files import open_plain
from jsrl.tools.report.live import Live
from jsrl.tools.report.page import shell

ADDRESS = "127.0.0.1"
HOSTS = (ADDRESS, "localhost")  # names in a browser on this machine; any other name is DNS rebinding
PERIOD_MS = 2000
PART_BYTES = 1 << 16
SCRIPT = """<script nonce="%s">
const main = document.querySelector("main"), content = document.getElementById("content");
let tag = "%s";
const key = one => one.querySelector("summary").textContent;
async function refresh() {
  const playing = [...document.querySelectorAll("video")].some(one => !one.paused);
  if (!document.hidden && !playing && !String(getSelection())) {
    try {
      const answer = await fetch("content", {cache: "no-store", headers: {"If-None-Match": tag}});
      document.body.classList.toggle("away", !answer.ok && answer.status != 304);
      if (answer.ok) {
        const open = new Set([...document.querySelectorAll("details[open]")].map(key));
        const at = [scrollX, scrollY];
        content.innerHTML = await answer.text();
        for (const one of document.querySelectorAll("details")) one.open = open.has(key(one));
        scrollTo(...at);
        tag = answer.headers.get("ETag");
      }
    } catch { document.body.classList.add("away"); }
  }
  setTimeout(refresh, %d);
}
setTimeout(refresh, %d);
</script>"""
AWAY = '<p class="gone">`jsrl watch` has ended: this page no longer changes.</p>'


class Server(http.server.ThreadingHTTPServer):
    """Serves the runs of a folder on the loopback interface.

    Attributes:
      live: the pages. url: of the list of runs.
    """

    daemon_threads = True

    def __init__(self, folder: Path, port: int = 0) -> None:
        """Listen on a port of 127.0.0.1; 0: any free port."""
        if not folder.is_dir():
            raise ConfigError(f"there is no folder {folder.absolute()}; give the folder that holds your runs.")
        self.live = Live(folder)
        try:
            super().__init__((ADDRESS, port), _Handler)
        except (OSError, OverflowError) as error:
            raise ConfigError(
                f"port {port} of {ADDRESS} cannot be used ({error}); choose another with --port."
            ) from error
        self.url = f"http://{ADDRESS}:{self.server_address[1]}/"

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Log an error of a request, unless the browser closed the connection."""
        if not isinstance(sys.exc_info()[1], ConnectionError | TimeoutError):
            super().handle_error(request, client_address)


def asked_part(header: str, size: int) -> tuple[int, int] | None:
    """Return (first byte, number of bytes) of the part of a file that a Range header asks for; None: it asks for no part.

    Some browsers play a video only from a server that sends parts, and all seek in it by them.
    """
    found = re.fullmatch(r"bytes=(\d{1,15})-(\d{0,15})", header.strip())
    if found is None:
        return None
    start, stop = int(found[1]), min(int(found[2]) + 1, size) if found[2] else size
    return (start, stop - start) if start < stop else None


def _host_of(header: str) -> str | None:
    """Return the name in a Host header, without the port."""
    try:
        return urllib.parse.urlsplit(f"//{header}").hostname
    except ValueError:  # such as "[::1"
        return None


class _Handler(http.server.BaseHTTPRequestHandler):
    """GET / and /run/NAME/ are pages, `content` below each is their changing part, other names below a run are its files."""

    server: Server
    server_version, sys_version = "jsrl", ""
    timeout = 30.0

    def do_GET(self) -> None:
        if _host_of(self.headers.get("Host", "")) not in HOSTS:
            self._refuse(HTTPStatus.FORBIDDEN, f"open this page as {self.server.url}")
            return
        path = urllib.parse.unquote(urllib.parse.urlsplit(self.path).path)
        if path in ("/", "/content"):
            self._page("runs", self.server.live.index(), whole=path == "/")
        elif path.startswith("/run/"):
            self._run(path.removeprefix("/run/"))
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such page")

    do_HEAD = do_GET

    def _run(self, path: str) -> None:
        """Answer a path NAME/..., where NAME is a run's."""
        live = self.server.live
        name = max((name for name in live.runs() if f"{path}/".startswith(f"{name}/")), key=len, default="")
        rest, page = path.removeprefix(name).removeprefix("/"), live.page(name)
        if page is None:
            self._refuse(HTTPStatus.NOT_FOUND, "there is no such run")
        elif path == name:  # without the slash, which the links on the page need
            self.send_response(HTTPStatus.MOVED_PERMANENTLY)
            self.send_header("Location", f"/run/{urllib.parse.quote(name)}/")
            self.end_headers()
        elif rest in ("", "content"):
            back = '<p><a href="/">all runs</a></p>\n'
            self._page(name, back + page.content, whole=not rest)
        elif (file := live.file(name, rest)) is not None:
            self._file(file)
        else:
            self._refuse(HTTPStatus.NOT_FOUND, "the run has no such file")

    def _page(self, title: str, content: str, *, whole: bool) -> None:
        """Answer with a page, or with its content alone, if that has changed."""
        tag = f'"{hashlib.sha256(content.encode()).hexdigest()[:16]}"'
        if not whole and self.headers.get("If-None-Match") == tag:
            self._begin(HTTPStatus.NOT_MODIFIED, tag=tag)
            return
        nonce = secrets.token_urlsafe(16)
        script = SCRIPT % (nonce, tag.replace('"', '\\"'), PERIOD_MS, PERIOD_MS)
        text = shell(title, f'{AWAY}<div id="content">\n{content}\n</div>', script) if whole else content
        answer = text.encode()
        self._begin(HTTPStatus.OK, "text/html; charset=utf-8", len(answer), tag=tag, nonce=nonce)
        self._send(answer)

    def _file(self, path: Path) -> None:
        try:
            with open_plain(path) as file:
                whole = file.seek(0, 2)
                part = asked_part(self.headers.get("Range", ""), whole)
                start, size = part or (0, whole)
                file.seek(start)
                kind = mimetypes.guess_type(path.name)[0] or "text/plain; charset=utf-8"
                part_of = f"bytes {start}-{start + size - 1}/{whole}" if part else ""
                status = HTTPStatus.PARTIAL_CONTENT if part_of else HTTPStatus.OK
                self._begin(status, kind, size, headers={"Accept-Ranges": "bytes", "Content-Range": part_of})
                while self.command != "HEAD" and size > 0 and (chunk := file.read(min(size, PART_BYTES))):
                    self.wfile.write(chunk)  # a file that grows meanwhile is cut at the announced size
                    size -= len(chunk)
        except (OSError, ValueError):  # the file was deleted, or the reader is gone
            self.close_connection = True

    def _refuse(self, status: HTTPStatus, why: str) -> None:
        answer = f"{why}\n".encode()
        self._begin(status, "text/plain; charset=utf-8", len(answer))
        self._send(answer)

    def _begin(
        self,
        status: HTTPStatus,
        kind: str = "",
        size: int = 0,
        *,
        tag: str = "",
        nonce: str = "",
        headers: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        self.send_response(status)
        policy = (
            "default-src 'none'; style-src 'unsafe-inline'; media-src 'self'; connect-src 'self'; form-action 'none'"
        )
        headers = {
            **headers,
            "Content-Type": kind,
            "Content-Length": str(size) if kind else "",
            "ETag": tag,
            "Cache-Control": "no-store",
            "X-Content-Type-Options": "nosniff",
            "Content-Security-Policy": policy + (f"; script-src 'nonce-{nonce}'" if nonce else ""),
        }
        for name, value in headers.items():
            if value:
                self.send_header(name, value)
        self.end_headers()

    def _send(self, answer: bytes) -> None:
        if self.command != "HEAD":
            self.wfile.write(answer)

    def log_message(self, format: str, *words: object) -> None:
        """Log no requests."""
