"""Film hide-and-seek: the policies of a run, or, for a scenario, random hiders and seekers that run to them.

    python benchmarks/hide_and_seek_film.py OUT.webp --run RUN [--tag final] [--runs-dir runs]
    python benchmarks/hide_and_seek_film.py OUT.webp --scenario quadrant
    options: [--episodes 2] [--size 320] [--lidar] [--seed 7] [--sheet FRAMES.png]

Writes an animated WebP in real time for browsers; `--sheet` also writes twelve of its frames side by side.
It needs Pillow (extra `video`) and OpenGL (MUJOCO_GL egl or osmesa without a display).
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

os.environ.setdefault("MUJOCO_GL", "egl")

import numpy as np
from PIL import Image

from benchmarks.hide_and_seek_duel import chasing_seekers, learned_sides, make_duel, random_side
from jsrl.envs.config import EnvConfig
from jsrl.tools.policy import load_policy

SHEET = 12


def main() -> None:
    """Play, draw and write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--run")
    parser.add_argument("--tag", default="final")
    parser.add_argument("--runs-dir", default="runs")
    parser.add_argument("--scenario", default="empty")
    parser.add_argument("--episodes", type=int, default=2)
    parser.add_argument("--size", type=int, default=320)
    parser.add_argument("--lidar", action="store_true")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--sheet", type=Path)
    args = parser.parse_args()
    walled = {"prob_outside_walls": 1.0} if args.scenario == "randomwalls" else {}
    config = EnvConfig(f"hide_and_seek:{args.scenario}", kwargs=walled)
    sides = {"hider": random_side("hider", np.random.default_rng(args.seed)), "seeker": chasing_seekers}
    if args.run:
        config = load_policy(args.run, args.tag, runs_dir=args.runs_dir).experiment.env
        sides = learned_sides(args.run, args.tag, args.runs_dir)
    game = make_duel(config, 1, args.seed)
    step, ended, frames = game.reset(), 0, list[Image.Image]()
    while ended < args.episodes:
        frames.append(Image.fromarray(game.render(0, lidar=args.lidar)).resize((args.size, args.size)))
        step = game.step({team: side(game, step.observation[team], step.is_first) for team, side in sides.items()})
        ended += len(step.episodes)
    milliseconds = round(1000 / game.metadata["render_fps"])
    game.close()
    frames[0].save(
        args.out, save_all=True, append_images=frames[1:], duration=milliseconds, loop=0, quality=50, method=4
    )
    print(f"{args.out}: {len(frames)} frames, {args.out.stat().st_size / 1024:.0f} KiB")
    if args.sheet:
        sheet = Image.new("RGB", (4 * args.size, 3 * args.size))
        for i, k in enumerate(np.linspace(0, len(frames) - 1, SHEET).astype(int)):
            sheet.paste(frames[k], (i % 4 * args.size, i // 4 * args.size))
        sheet.save(args.sheet)


if __name__ == "__main__":
    main()
