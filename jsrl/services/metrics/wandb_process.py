"""The process that sends to Weights & Biases: it reads JSON lines from standard input. It imports nothing of jsrl.

Inside the launching process the package `wandb` would keep it from ending: while its `init` waits for a server that does not
answer, its handler at exit waits too, up to `init_timeout` (measured with wandb 0.31 and 60 s: the process ended after 63 s,
the run after 4 s; the default is 90 s). A shorter timeout would give up on slow servers. A process of its own can be killed.
"""

from __future__ import annotations

import json
import secrets
import sys
from pathlib import Path
from typing import Any

VIDEO = "video"  # the name of all videos


def has_credentials() -> bool:
    """Return whether `wandb login` was done here, or WANDB_API_KEY is set; makes no request."""
    import wandb

    return bool(wandb.login(prompt=False, verify=False))


def begin(config: dict[str, Any]) -> Any:
    """Begin a W&B run, or continue that of a resumed run; its axis is env steps."""
    import wandb

    limit_s = 0.8 * config["end_s"]
    settings = wandb.Settings(console="off", silent=True, finish_timeout=limit_s, finish_timeout_raises=True)
    folder = Path(config["folder"])
    names = {name: config[name] for name in ("project", "entity", "group", "name", "mode")}
    run = wandb.init(
        **names,
        id=kept_id(folder / "wandb" / "id"),
        resume="allow",
        dir=folder,
        config=config["options"],
        settings=settings,
    )
    run.define_metric("env_steps")
    run.define_metric("*", step_metric="env_steps")
    return run


def kept_id(path: Path) -> str:
    """Return the W&B ID of the run, which is kept in the run folder."""
    if path.exists():
        return path.read_text().strip()
    path.parent.mkdir(exist_ok=True)
    path.write_text(secrets.token_hex(4))
    return path.read_text()


def execute(run: Any, asked: dict[str, Any], env_steps: int) -> int:
    """Send a row, a video or the end; return the env steps of the last row."""
    if "row" in asked:
        row = asked["row"]
        run.log(row, step=max(run.step + 1, int(1000 * row["wall_s"])))  # W&B drops steps from before a resume
        return row["env_steps"]
    if VIDEO in asked and Path(asked[VIDEO]).exists():
        import wandb

        run.log({VIDEO: wandb.Video(asked[VIDEO]), "env_steps": env_steps})
    if "summary" in asked:
        run.summary.update(asked["summary"])
        run.finish(exit_code=1 if asked["summary"].get("ended") == "failed" else 0)
    return env_steps


def main() -> None:
    """Execute the lines of standard input; answer the first and the last one. Its end without a last line is a crash."""
    answers = sys.stdout
    sys.stdout = sys.stderr  # wandb's output goes to the log
    if sys.argv[1:] == ["--check"]:
        sys.exit(0 if has_credentials() else 1)
    run, env_steps, asked = None, 0, {}
    for line in sys.stdin:
        asked = json.loads(line)
        try:
            if run is None:
                run = begin(asked)
                answer(answers, url="" if asked["mode"] == "offline" else run.url)
                continue
            env_steps = execute(run, asked, env_steps)
        except Exception as error:
            if run is None or "summary" in asked:
                answer(answers, error=f"{type(error).__name__}: {error}")
                sys.exit(1)
            sys.stderr.write(f"{type(error).__name__}: {error}\n")
        if "summary" in asked:
            answer(answers)
            return
    if run is not None:
        run.finish(exit_code=1)


def answer(answers: Any, **facts: Any) -> None:
    answers.write(json.dumps(facts) + "\n")
    answers.flush()


if __name__ == "__main__":
    main()
