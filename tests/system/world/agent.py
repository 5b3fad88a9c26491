"""A host agent: starts workers on its host and answers for them to the one launcher that knows its key.

`python agent.py IP_ADDRESS` reads the key from its standard input, listens on a free port of the address, and prints it. It
ends with the launcher's connection, and its workers end with it.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from multiprocessing.connection import Listener
from pathlib import Path
from typing import Any

from jsrl.control.processes.launcher import spawn
from jsrl.control.processes.processes import LocalHandle
from jsrl.graph.launcher import Start
from jsrl.references.importing import SpawnEnvironment


class Agent:
    """The workers of one host."""

    def __init__(self) -> None:
        self._handles: list[LocalHandle] = []

    def answer(self, asked: str, *words: Any) -> Any:
        """Return the answer to a question about all workers, or, `ask`, about one."""
        return getattr(self, f"_{asked}")(*words)

    def _start(self, kind: str, name: str, incarnation: int, told: dict[str, Any]) -> int:
        own = {"folder": Path(told["folder"]), "spawn": SpawnEnvironment(*told["spawn"])}
        self._handles.append(spawn(kind, name, incarnation, Start(**(told | own))))
        return len(self._handles) - 1

    def _ask(self, number: int, what: str, *words: Any) -> Any:
        answer = getattr(self._handles[number], what)
        answer = answer(*words) if callable(answer) else answer
        return dataclasses.asdict(answer) if dataclasses.is_dataclass(answer) else answer

    def close(self) -> None:
        """End all workers."""
        for handle in self._handles:
            handle.kill()


def main() -> None:
    """Listen, and answer until the launcher is gone."""
    key = bytes.fromhex(sys.stdin.readline())
    agent = Agent()
    with Listener((sys.argv[1], 0), authkey=key) as listener:
        sys.stdout.write(f"{listener.address[1]}\n")
        sys.stdout.flush()
        with listener.accept() as connection:
            try:
                while True:
                    asked = json.loads(connection.recv_bytes())
                    connection.send_bytes(json.dumps(agent.answer(*asked)).encode())
            except EOFError:
                agent.close()


if __name__ == "__main__":
    main()
