"""Headless Chromium over its DevTools protocol, through two pipes: no package is needed."""

from __future__ import annotations

import base64
import json
import os
import select
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
ANSWER_S = 60.0


class Browser:
    """One page of a headless Chromium.

    Attributes:
      errors: what the page's console reports as errors, exceptions of its scripts, and files that do not load.
    """

    def __init__(self, profile: Path, *, dark: bool = False) -> None:
        assert CHROMIUM is not None
        words = [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--hide-scrollbars"]
        words += ["--remote-debugging-pipe", f"--user-data-dir={profile}", "about:blank"]
        read_by_it, self._to = os.pipe()
        self._of, written_by_it = os.pipe()
        shell = f'exec "$@" 3<&{read_by_it} 4>&{written_by_it}'  # the pipes must be descriptors 3 and 4
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "browser", *words], pass_fds=(read_by_it, written_by_it), stderr=subprocess.DEVNULL
        )
        os.close(read_by_it)
        os.close(written_by_it)
        self.errors: list[str] = []
        self._buffer, self._asked = b"", 0
        self._session: str | None = None
        target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self._ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self._ask(f"{domain}.enable")
        theme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self._ask("Emulation.setEmulatedMedia", features=[theme])

    def __enter__(self) -> Browser:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        os.close(self._to)
        os.close(self._of)

    def resize(self, width: int, height: int) -> None:
        """Set the size of the window."""
        self._ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)

    def open(self, url: str) -> None:
        """Open an address."""
        assert "errorText" not in self._ask("Page.navigate", url=url)
        self.wait("document.readyState == 'complete'")

    def value(self, expression: str) -> Any:
        """Return the value of an expression in the page."""
        found = self._ask("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def wait(self, expression: str, limit_s: float = 120.0) -> Any:
        """Return the value of an expression in the page once it is true."""
        until_s = time.monotonic() + limit_s
        while not (found := self.value(expression)):
            assert time.monotonic() < until_s, f"{expression} is not true after {limit_s:g} s; errors: {self.errors}"
            time.sleep(0.2)
        return found

    def picture(self, path: Path) -> None:
        """Write a picture of the whole page."""
        shot = self._ask("Page.captureScreenshot", captureBeyondViewport=True)["data"]
        path.write_bytes(base64.b64decode(shot))

    def _ask(self, method: str, **params: Any) -> dict[str, Any]:
        self._asked += 1
        message = {"id": self._asked, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next(method)
            if answer.get("id") == self._asked:
                assert "error" not in answer, answer["error"]
                return answer["result"]
            self._take_event(answer)

    def _next(self, method: str) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._of], [], [], ANSWER_S)
            part = os.read(self._of, 1 << 16) if ready else b""
            assert part, f"the browser did not answer {method}"
            self._buffer += part
        text, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(text)

    def _take_event(self, event: dict[str, Any]) -> None:
        params = event.get("params", {})
        if event["method"] == "Runtime.exceptionThrown":
            self.errors.append(str(params["exceptionDetails"]))
        elif event["method"] == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.errors.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")
        elif event["method"] == "Runtime.consoleAPICalled" and params["type"] in ("error", "assert"):
            self.errors.append(str(params["args"]))
