"""Which of a director's commands a learner executes: each ticket once, also if the learner restarts from a snapshot."""

from __future__ import annotations

from jsrl.services.runs.control_bodies import Command, CommandDone


class ExecutedTickets:
    """The tickets that a learner has executed. Those of one director rise, and so do those of its later incarnations.

    Args:
      done: the newest confirmation at the restart; None: none.

    Attributes:
      done: the newest confirmation. Snapshots keep it: their state has the effect of the command, or holds the command.
    """

    def __init__(self, done: CommandDone | None = None) -> None:
        self.done = CommandDone(-1) if done is None else done

    def handle(self, message: Command | CommandDone, now: float = 0.0) -> list[Command | CommandDone]:
        """Take a command, or what became of one; return the command to execute, or the confirmation to send.

        The director repeats a command until it has the confirmation; a repetition may also arrive after later commands.
        """
        if isinstance(message, CommandDone):
            self.done = message
        elif message.facts["ticket"] > self.done.ticket:
            return [message]
        elif message.facts["ticket"] < self.done.ticket:
            return []
        return [self.done]
