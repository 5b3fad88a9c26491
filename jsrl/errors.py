"""All errors of jsrl; every message says what happened, what was expected, and what to do next.

JsrlError
├── ConfigError            an experiment, option or reference that cannot work
│   └── MissingExtra       an optional dependency that is not installed
├── SpecMismatch           arrays that differ from the declared schema; names the leaf
├── AgentFault             an agent broke the contract of jsrl.agents.base
├── EnvironmentFault       an environment raised, hung, or returned invalid values
├── StreamError
│   ├── StreamTimeout      nothing arrived (or no memory was freed) before the deadline
│   ├── StreamClosed       the other end, or this one, is closed
│   ├── UnknownPolicy      a request for a policy that the inference server does not serve
│   ├── AccessDenied       keys that are missing, or another run's
│   └── CodecError         bytes that are not a jsrl message
├── SnapshotError          a snapshot that is missing, broken, or another experiment's
├── RecordingError         recorded trajectories that are missing or broken
├── ExportError            a policy that cannot be exported, or a policy file that is broken
├── VideoError             a video that could not be written
├── NonFiniteUpdate        a loss or gradient that is not finite, found before it was published
├── RunDeleted             the folder of a run was deleted or moved while the run went on
└── WorkerDied             a worker process ended, hung, or never became ready
"""

from __future__ import annotations

import sysconfig
import traceback
from pathlib import Path
from types import TracebackType

PACKAGE = str(Path(__file__).parent)
INSTALLED = ("site-packages", "dist-packages", sysconfig.get_path("stdlib"), "<frozen")  # parts of file names
PARAGRAPH = "\n\n"
FOUND_BY_CHECK = " jsrl.check_agent finds such errors in seconds, in your own process."


class JsrlError(Exception):
    """Base of every error that jsrl raises on purpose."""


class ConfigError(JsrlError):
    """An experiment, option or reference that cannot work."""


class NumbersDisagree(ConfigError):
    """Numbers of an experiment exclude each other, such as environments that its groups do not divide."""


class MissingExtra(ConfigError):
    """An optional dependency is not installed; the message names the extra that brings it."""


class TrialsFailed(JsrlError):
    """The first trials of a search all failed; the message says why the last one did."""


class SpecMismatch(JsrlError):
    """Arrays differ from the declared schema; the message names the leaf."""


class AgentFault(JsrlError):
    """An agent broke the contract of jsrl.agents.base; the message says which rule and what to do."""


class EnvironmentFault(JsrlError):
    """An environment raised, hung, or returned invalid values (NaN, shape, dtype).

    Attributes:
      slot: index of the environment inside its vector; None: not known. repairable: False once the repair budget is exhausted.
    """

    slot: int | None = None
    repairable: bool = True


class StreamError(JsrlError):
    """Base of what can go wrong on a stream."""


class StreamTimeout(StreamError):
    """Nothing arrived, or no memory was freed, before the deadline."""


class StreamClosed(StreamError):
    """This end or the other one is closed."""


class UnknownPolicy(StreamError):
    """A request for a policy that the inference server does not serve; the message says which it serves."""


class AccessDenied(StreamError):
    """The other end of an encrypted stream does not take this one's keys; the message says which are needed."""


class CodecError(StreamError):
    """Bytes that are not a jsrl message, or one of another version."""


class SnapshotError(JsrlError):
    """A snapshot is missing, broken, or belongs to another experiment."""


class ExportError(JsrlError):
    """A policy cannot be exported, or a policy file is missing, broken or of another version."""


class RecordingError(JsrlError):
    """Recorded trajectories are missing, broken, or of another format."""


class VideoError(JsrlError):
    """A video could not be written: pictures that do not fit, or an encoder that ended."""


class NonFiniteUpdate(JsrlError):
    """A loss or gradient is not finite; the update was not published."""


class RunDeleted(JsrlError):
    """The folder of a run was deleted or moved while the run went on."""


class WorkerDied(JsrlError):
    """A worker process ended, hung, or never became ready; the message carries its traceback."""


def nearest_divisors(number: int, wanted: int) -> str:
    """Return the divisors of `number` next to `wanted`, for messages."""
    divisors = [d for d in range(1, number + 1) if number % d == 0]
    below = max((d for d in divisors if d <= wanted), default=None)
    above = min((d for d in divisors if d >= wanted), default=None)
    return " or ".join(str(d) for d in dict.fromkeys((below, above)) if d is not None)


def nearest_multiples(number: int, of: int) -> str:
    """Return the multiples of `of` next to `number`, for messages."""
    return " or ".join(str(n) for n in dict.fromkeys((number // of * of, -(-number // of) * of)) if n)


def own_traceback(error: BaseException) -> TracebackType | None:
    """Return an error's traceback without the frames of Python and of installed packages, such as jax; jsrl's stay."""
    kept, frame = [], error.__traceback__
    while frame is not None:
        file = frame.tb_frame.f_code.co_filename
        if file.startswith(PACKAGE) or not any(part in file for part in INSTALLED):
            kept.append(frame)
        frame = frame.tb_next
    found = None
    for frame in reversed(kept):
        found = TracebackType(found, frame.tb_frame, frame.tb_lasti, frame.tb_lineno)
    return found


def users_traceback(error: BaseException) -> str:
    """Return the traceback of what a user's own code raised; empty for an error of jsrl that nothing of the user caused."""
    cause = error.__cause__
    if isinstance(error, JsrlError):
        cause = cause if isinstance(error, AgentFault | EnvironmentFault) else None
    else:
        cause = cause or error
    return "".join(traceback.format_exception(cause)) if cause is not None else ""


def described(error: BaseException) -> str:
    """Return an error of a user's code as one line: its type, the user's line that led to it, and its first paragraph."""
    frames = traceback.extract_tb(own_traceback(error))
    users = [frame for frame in frames if not frame.filename.startswith(PACKAGE)]
    where = f" at {users[-1].filename}:{users[-1].lineno}, {users[-1].line!r}" if users else ""
    return f"{type(error).__name__}{where}: {str(error).strip().partition(PARAGRAPH)[0].rstrip('. ')}"


def counted(number: int, noun: str) -> str:
    """Return a number and its noun, in the plural unless the number is 1."""
    if number == 1:
        return f"1 {noun}"
    plural = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {plural}"
