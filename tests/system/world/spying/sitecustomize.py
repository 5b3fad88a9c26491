"""Imported by every interpreter with this folder on its path: records unpickling and evaluation.

A line in JSSPY_FOLDER/PID for each call with a file of jsrl on its stack, unless an import is in progress below it.
"""

import builtins
import functools
import os
import pickle
import sys
import traceback

FOLDER = os.environ["JSSPY_FOLDER"]
# evaluates annotations and templates of the code itself, never received or read data
OWN_CODE = ("/typing.py", "/dataclasses.py", "/inspect.py", "/collections/__init__.py", "/enum.py", "/functools.py")


def write(line: str) -> None:
    with open(os.path.join(FOLDER, str(os.getpid())), "a") as file:
        file.write(line + "\n")


def blamed() -> str:
    """Return the file of jsrl that made the call, or an empty string."""
    # without the lines' text: to read it, Python 3.13 imports a module that evaluates
    frames = traceback.StackSummary.extract(traceback.walk_stack(sys._getframe(2)), lookup_lines=False)
    if frames and frames[0].filename.endswith(OWN_CODE):
        return ""
    for frame in frames:
        if "importlib" in frame.filename:
            return ""
        if "/jsrl/" in frame.filename and "site-packages" not in frame.filename:
            return f"{frame.filename}:{frame.lineno}"
    return ""


def watched(name: str, call):
    @functools.wraps(call)
    def spied(*args, **kwargs):
        if where := blamed():
            write(f"CALL {name} from {where}")
        return call(*args, **kwargs)

    return spied


def hook(event: str, args: tuple) -> None:
    if event == "pickle.find_class" and (where := blamed()):
        write(f"CALL {event} {args!r} from {where}")


class Unpickler(pickle.Unpickler):
    def __init__(self, *args, **kwargs):
        if where := blamed():
            write(f"CALL Unpickler from {where}")
        super().__init__(*args, **kwargs)


sys.addaudithook(hook)
pickle.load, pickle.loads = watched("pickle.load", pickle.load), watched("pickle.loads", pickle.loads)
pickle.Unpickler = Unpickler
builtins.eval = watched("eval", builtins.eval)
write("PROCESS " + " ".join(sys.orig_argv))
