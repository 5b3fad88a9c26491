"""Insert faults of the protocol into a copy of the sources, and count the histories that find each.

`python tests/simulated/planted.py` runs histories with one fault after another until one fails. The list was written before
the machines, by somebody who had not seen them. Exit status 1 if one is not found within the given number of histories.
"""

from __future__ import annotations

import argparse
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT))

from tests.faults.plant import copy_sources  # noqa: E402 (where it lies is said above)

MAX_HISTORIES = 1_000


class Planted(NamedTuple):
    """A fault: its text in `file`, below jsrl/, replaces another one; histories `of` this kind find it."""

    name: str
    file: str
    old: str
    new: str
    of: str = "runs"


SUPERVISION, ENDING = "control/supervision.py", "control/ending.py"
MEMBERS, AGENT = "cluster/members.py", "cluster/agent.py"
TICKETS, RANKS = "workers/director/tickets.py", "workers/attached/agreement.py"

FAULTS = (
    # -- supervision
    Planted(
        "the end of an earlier incarnation counts for the next one",
        SUPERVISION,
        "isinstance(message, Move) or message.incarnation != life.incarnation:",
        "isinstance(message, Move):",
    ),
    Planted(
        "a death is charged twice",
        SUPERVISION,
        "        if pause_s is None:\n            return None\n        text =",
        "        self._budgets.take(first, now)\n        if pause_s is None:\n            return None\n        text =",
    ),
    Planted(
        "the time to become ready is that of the predecessor",
        SUPERVISION,
        "message.host, now, now, now\n        )\n",
        "message.host, now, now, now\n        )\n        self._began = getattr(self, '_began', {})\n"
        "        self.lives[message.worker].started_s = self._began.setdefault(message.worker, now)\n",
    ),
    Planted(
        "the replacement starts together with the kill",
        SUPERVISION,
        " or not self.lives[worker].killed or (self._acts_elsewhere(worker) and not is_late)",
        "",
    ),
    Planted(
        "a worker that has never been ready is not watched",
        SUPERVISION,
        "        if life.exit is not None:\n            if life.left:\n",
        "        if not life.ready:\n            return []\n        if life.exit is not None:\n            if life.left:\n",
    ),
    Planted(
        "a start has no limit",
        SUPERVISION,
        "if not life.ready and now - life.started_s > self.deadlines.ready_s:",
        "if False:",
    ),
    Planted(
        "the controller's own kill hides the cause",
        SUPERVISION,
        "            life.exit = life.exit or message.exit\n",
        "            life.exit = life.exit or message.exit\n            if life.worker in self._dying:\n"
        "                self._dying[life.worker].what = f'ended unexpectedly: {life.ending}'\n",
    ),
    Planted(
        "a symptom is taken for the cause",
        SUPERVISION,
        "        found = self._cause(life, now) if self._may_be_symptom(life) else None\n",
        "        found = None\n",
    ),
    Planted(
        "after a pause of the controller everybody is silent",
        "services/runs/process.py",
        "            self._paused_s += gap_s\n",
        "",
    ),
    Planted(
        "a rank is called silent while its host is cut off",
        SUPERVISION,
        "        return max(self.beat_s, self.unheard_s)\n",
        "        return self.beat_s\n",
    ),
    Planted(
        "only the rank that died restarts",
        SUPERVISION,
        "        ranks = [self.lives[name] for name in self.rules[life.worker].ranks]\n        first",
        "        ranks = [life]\n        first",
    ),
    # -- the order of the end
    Planted(
        "the end of a last task is known from its event only",
        ENDING,
        "if isinstance(message, Event) else FINAL in message.facts",
        "if isinstance(message, Event) else False",
    ),
    Planted(
        "the last task starts after its params' source has stopped",
        ENDING,
        "self._await_reachable(left) if self._drains else self._begin_tasks(left)\n",
        "self._await_reachable(left)\n",
    ),
    Planted(
        "a worker that was told to stop is replaced",
        ENDING,
        "        self._supervision.forget(workers)\n",
        "        self._supervision.watch(workers, self._tasks)\n",
    ),
    Planted(
        "readers are stopped when their writers were told to stop",
        ENDING,
        "        for life in leaving:\n            yield from self._await_end(life, begun_s)\n",
        "",
    ),
    Planted(
        "the end waits for the goodbye of a worker that has died",
        ENDING,
        "        while life.exit is None and not (self._sends_files(life) and life.left):\n",
        "        while not life.left:\n",
    ),
    # -- members
    Planted(
        "a message of an old membership is accepted",
        MEMBERS,
        "        if host is None or message.membership != host.membership:\n",
        "        if host is None or message.membership > host.membership:\n",
    ),
    Planted(
        "a host that is back is believed to have its workers still",
        MEMBERS,
        '            self._lose(host, "its agent joined again without workers")\n',
        "            host.membership = self._membership = self._membership + 1\n"
        "            host.identity, host.heard_s = identity, self._now_s\n"
        "            self._send(host, Welcome(host.membership, self._lease_s))\n            return\n",
    ),
    Planted(
        "the end of an earlier owner releases a name that the next one holds",
        MEMBERS,
        "            host.names = [entry for entry in host.names if self._registers(host, entry)]\n",
        "            host.names = [entry for entry in host.names if entry.name not in remote.binds]\n",
    ),
    Planted(
        "a late name of an earlier incarnation counts",
        MEMBERS,
        "        if not any(r.incarnation == entry.incarnation and entry.name in r.binds for r in host.living_workers):\n",
        "        if not any(entry.name in r.binds for r in host.workers.values()):\n",
    ),
    Planted(
        "a host may speak for another host's worker",
        MEMBERS,
        "        key = (worker, incarnation)\n        if key not in host.placed:\n",
        "        key = (worker, incarnation)\n        for other in self.hosts:\n            if key in other.workers:\n"
        "                return other.workers[key]\n        if key not in host.placed:\n",
    ),
    Planted(
        "a connection closed by a timeout is taken for a killed agent",
        MEMBERS,
        "if host.identity == identity and self._now_s - host.heard_s < wire.PROMPT_S:",
        "if host.identity == identity:",
    ),
    Planted(
        "revoke ends the membership but not the admission",
        MEMBERS,
        "        self._drop_key(host.key)\n        host.leaves = why",
        "        host.leaves = why",
    ),
    Planted(
        "a revoked name may join again",
        MEMBERS,
        "        if hello.name in (self._revoked or ()):\n",
        "        if False:\n",
    ),
    Planted(
        "a leaving host is still chosen for new workers",
        MEMBERS,
        "        return [host for host in self.hosts if not host.leaves]\n",
        "        return list(self.hosts)\n",
    ),
    Planted(
        "a host's silence is measured with the host's clock",
        MEMBERS,
        "        host.heard_s, host.closed_s, host.has_answered = self._now_s, None, True\n",
        "        host.heard_s, host.closed_s, host.has_answered = self._now_s, None, True\n"
        "        if isinstance(message, Beat):\n"
        "            host.offset_s = getattr(host, 'offset_s', self._now_s - message.sent_s)\n"
        "            host.heard_s = message.sent_s + host.offset_s\n",
    ),
    Planted(
        "orders that were executed are sent again with new numbers",
        MEMBERS,
        "            for order in left:\n                self._send(host, order)\n",
        "            host.orders = []\n            for order in left:\n                self._give(host, order)\n",
    ),
    Planted(
        "an order that is lost is not sent again",
        MEMBERS,
        "        if self._now_s - host.ordered_s > AGAIN_S:\n",
        "        if False:\n",
    ),
    Planted(
        "a host is lost before its lease has ended",
        "cluster/messages.py",
        "LEASE_S, LOST_S = 15.0, 20.0",
        "LEASE_S, LOST_S = 15.0, 13.0",
    ),
    # -- the host agent
    Planted(
        "the agent's lease starts when the reply arrives",
        AGENT,
        "self._extend(max(self._lease_from_s, min(message.sent_s, self._now_s)))",
        "self._extend(self._now_s)",
    ),
    Planted(
        "the number of the last executed order survives a new membership",
        AGENT,
        "        self._executed, self.was_lost = 0, False\n",
        "        self.was_lost = False\n",
    ),
    Planted(
        "an order that comes twice is executed twice",
        AGENT,
        "        if order.number != self._executed + 1:\n            return\n        self._executed += 1\n",
        "        self._executed = max(self._executed, order.number)\n",
    ),
    Planted(
        "an order is executed though one before it was lost",
        AGENT,
        "        if order.number != self._executed + 1:\n            return\n        self._executed += 1\n",
        "        if order.number <= self._executed:\n            return\n        self._executed = order.number\n",
    ),
    Planted(
        "an agent's lease does not end",
        AGENT,
        "        if self.membership and left_s < 0.0:\n",
        "        if False:\n",
    ),
    Planted(
        "an agent that joins again keeps its workers",
        AGENT,
        "        self._kill_all()  # of an earlier membership; there should be none\n",
        "",
    ),
    Planted(
        "a message of an earlier membership is obeyed, also by a host that is in none",
        AGENT,
        "        elif message.membership != self.membership or not self.membership:\n",
        "        elif not message.membership:\n",
    ),
    Planted(
        "an end that was lost with a connection is not reported again",
        AGENT,
        "                for exited in self._sent_exits:\n                    self._do(Send(exited))\n",
        "",
    ),
    Planted(
        "a worker's end is reported before its files have arrived",
        AGENT,
        "            if not ended.files or (",
        "            if True or (",
    ),
    # -- a director's tickets
    Planted(
        "a command that is sent again gets a new ticket",
        TICKETS,
        "            self._ticket += self._given_s is None\n",
        "            self._ticket += 1\n",
        "games",
    ),
    Planted(
        "tickets begin anew in each life of a director",
        TICKETS,
        "self._ticket, self._given_s = session << 20, None",
        "self._ticket, self._given_s = 0, None",
        "games",
    ),
    Planted(
        "any confirmation closes the command that waits",
        TICKETS,
        "        if done.ticket != self._ticket or not self._orders:\n",
        "        if not self._orders:\n",
        "games",
    ),
    Planted(
        "games are proposed while a command waits",
        TICKETS,
        "        return actions if self._orders or self.lacking else actions + self._propose(now)\n",
        "        return actions + self._propose(now)\n",
        "games",
    ),
    Planted(
        "a learner executes a ticket again",
        TICKETS,
        "message > self.done.ticket:",
        "message >= self.done.ticket:",
        "games",
    ),
    Planted(
        "an outcome of a replaced actor's game counts",
        "workers/director/leases.py",
        "            found += [Outcome(game, discarded=GONE) for game in holder.open] if holder is not None else []\n",
        "",
        "games",
    ),
    # -- the agreement of ranks
    Planted(
        "a message of an earlier incarnation counts",
        RANKS,
        "        known = worker in self._numbers and message.incarnation == self._incarnation\n",
        "        known = worker in self._numbers\n",
        "ranks",
    ),
    Planted(
        "a batch for another update counts",
        RANKS,
        'newest.what == "has" and newest.number == self._number',
        'newest.what == "has"',
        "ranks",
    ),
    Planted(
        "a rank that waits is taken to have a batch",
        RANKS,
        'newest.what == "has" and newest.number == self._number',
        'newest.what in ("has", "waits") and newest.number == self._number',
        "ranks",
    ),
    Planted(
        "a go for another update counts",
        RANKS,
        'answer.what == "go" and answer.number == self._number',
        'answer.what == "go"',
        "ranks",
    ),
    Planted(
        "updates begin after a rank has left",
        RANKS,
        'newest.what == "has" and newest.number == self._number',
        'newest.what in ("has", "leaves") and newest.number == self._number',
        "ranks",
    ),
)


def failure(folder: Path, of: str, seed: int, histories: int) -> tuple[int | None, str]:
    """Return the number of the first history that fails (None: none does), and how it fails."""
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    command = [sys.executable, "-m", "tests.simulated", "--of", of, "--seed", str(seed), "--histories", str(histories)]
    command += ["--stop-after", "1", "--only-say"]
    ran = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    found = re.search(r"^(\d+) histories of \w+, (\d+) failed", ran.stdout, re.MULTILINE)
    if found is None:
        raise RuntimeError(f"the histories did not run: {ran.stderr[-300:]}")
    return (int(found[1]) if int(found[2]) else None), ran.stdout.partition("\n")[0]


def find(fault: Planted, folder: Path, most: int) -> int | None:
    """Return how many histories were needed to find a fault; None: it was not found."""
    path = folder / "jsrl" / fault.file
    text = path.read_text()
    path.write_text(text.replace(fault.old, fault.new))
    try:
        number, why = failure(folder, fault.of, 0, most)
    finally:
        path.write_text(text)
    if number is not None and failure(folder, fault.of, number - 1, 1)[0] is not None:
        number, why = None, f"history {number - 1} fails without the fault too"
    print(f"{'NOT FOUND' if number is None else number:>9}  {fault.name}\n           {why[:150]}", flush=True)
    return number


def main() -> int:
    """Plant the faults given on the command line."""
    line = argparse.ArgumentParser(description=__doc__)
    line.add_argument("--only", nargs="+", metavar="TEXT", help="faults whose name holds one of these")
    line.add_argument("--histories", type=int, default=MAX_HISTORIES, help="for each (default: %(default)s)")
    given = line.parse_args()
    chosen = [fault for fault in FAULTS if not given.only or any(text in fault.name for text in given.only)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        copy_sources(folder)
        missed = [fault.name for fault in chosen if find(fault, folder, given.histories) is None]
    print(f"{len(chosen) - len(missed)} of {len(chosen)} found" + "".join(f"\nnot found: {name}" for name in missed))
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
