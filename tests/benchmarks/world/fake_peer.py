"""A library that trains nothing, measured like the real ones."""

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "benchmarks" / "peers"))

from measuring import Meter, done_work, read_request

if sys.argv[1] == "--settings":
    sys.stdout.write(json.dumps([{"threads": 1}, {"fail": True}]))
    sys.exit()
request = read_request()
if request["setting"].get("fail"):
    raise SystemExit("no such thing")
meter = Meter(seconds=request["seconds"], warm_up_s=request["warm_up_s"])
env_steps, full = 0, False
sys.stdout.write("{ a library's own output\n")
while not full:
    time.sleep(0.01)
    env_steps += request["num_envs"] * request["rollout"]
    full = meter.update(env_steps)
meter.report("fake", done_work(request), request["setting"], {}, threads_seen=os.environ.get("OMP_NUM_THREADS"))
sys.stdout.write("{ bye\n")
