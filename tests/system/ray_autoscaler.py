"""A Ray cluster on this machine that grows when more is asked for: `python -m tests.system.ray_autoscaler COUNT CPUS`.

It has a head without CPUs, and Ray's autoscaler starts up to COUNT nodes. Its input and output are those of
tests.system.ray_cluster, with `remove` alone: it kills a node.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import psutil

MARK = "JSRL_TEST_AUTOSCALER"
HEAD = "ray.head.default"  # the name that Ray gives it
LISTS = (
    *("initialization_commands", "setup_commands", "head_setup_commands", "worker_setup_commands", "rsync_exclude"),
    *("head_start_ray_commands", "worker_start_ray_commands", "cluster_synced_files", "rsync_filter"),
)


def settings(port: int, count: int, cpus: int) -> dict[str, object]:
    """Return the settings of the autoscaler: the nodes are processes of this machine."""
    provider = {"type": "fake_multinode", "gcs_address": f"127.0.0.1:{port}", "use_node_id_as_ip": True}
    worker = {"CPU": cpus, "object_store_memory": 75 << 20}
    return {
        "cluster_name": "jsrl-test",
        "max_workers": count,
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 5,
        "provider": provider | {"disable_node_updaters": True, "disable_launch_config_check": True},
        "head_node_type": HEAD,
        "available_node_types": {
            HEAD: {"resources": {"CPU": 0}, "node_config": {}, "min_workers": 0, "max_workers": 0},
            "worker": {"resources": worker, "node_config": {}, "min_workers": 0, "max_workers": count},
        },
        **{name: {} for name in ("auth", "docker", "file_mounts")},
        **{name: [] for name in LISTS},
        "file_mounts_sync_continuously": False,
    }


def processes(program: str = "") -> list[psutil.Process]:
    """Return the processes of the cluster, or those of one program."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            mine = process.environ().get(MARK) == str(os.getpid())
            if mine and program in ("", Path(process.cmdline()[0]).name):
                found.append(process)
    return found


def main() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    folder = tempfile.mkdtemp(prefix="jsrl-ray-")  # short: sockets are in it
    Path(folder, "autoscaler.json").write_text(json.dumps(settings(port, int(sys.argv[1]), int(sys.argv[2]))))
    node = "f" * 51 + "00000"  # which the autoscaler takes for its head
    more = {MARK: str(os.getpid()), "RAY_FAKE_CLUSTER": "1", "RAY_OVERRIDE_NODE_ID_FOR_TESTING": node}
    words = [
        "start",
        "--head",
        "--block",
        "--num-cpus",
        "0",
        "--object-store-memory",
        str(75 << 20),
        "--port",
        str(port),
    ]
    words += ["--include-dashboard", "false", "--temp-dir", folder, "--autoscaling-config", f"{folder}/autoscaler.json"]
    command = [sys.executable, "-c", "from ray.scripts.scripts import main; main()", *words]
    environment = os.environ | more | {"AUTOSCALER_UPDATE_INTERVAL_S": "1"}
    with subprocess.Popen(command, env=environment, stdin=subprocess.DEVNULL, stdout=sys.stderr) as head:
        while not list(Path(folder).glob("session_2*/logs/monitor.log")) and head.poll() is None:
            time.sleep(0.2)
        sys.stdout.write(f"127.0.0.1:{port} -\n")
        sys.stdout.flush()
        for _ in sys.stdin:
            next(process for process in processes("raylet") if f"--node_id={node}" not in process.cmdline()).kill()
            sys.stdout.write("done\n")
            sys.stdout.flush()
        for process in processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
