"""Several processes of one program on this machine, as they would be on many.

    python -m benchmarks.launch NUM_PROCESSES NUM_DEVICES PROGRAM.py [ARGUMENTS]

Each has so many virtual devices of the CPU. If there are several, the last arguments
say where they meet, how many they are, and which this one is:

    where, count, number = sys.argv[-3:]
    jax.distributed.initialize(where, int(count), int(number))
"""

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path


def launch(
    num_processes: int, num_devices: int, command: Sequence[str], *, flags: str = ""
) -> list[subprocess.Popen]:
    """Start `command`, Python's arguments, in processes of `num_devices` each."""
    flags = f"--xla_force_host_platform_device_count={num_devices} {flags}"
    here = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    env = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": os.pathsep.join(filter(None, here)),
        "XLA_FLAGS": f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip(),
    }
    address, started = f"localhost:{_free_port()}", []
    for number in range(num_processes):
        told = [address, str(num_processes), str(number)] if num_processes > 1 else []
        started.append(subprocess.Popen([sys.executable, *command, *told], env=env))
    return started


def finish(started: Sequence[subprocess.Popen], *, timeout: float = 600) -> None:
    """Wait for all; none is left behind, and one that failed is an error."""
    try:
        for process in started:
            if process.wait(timeout):
                raise subprocess.CalledProcessError(process.returncode, process.args)
    finally:
        for process in started:
            process.kill()
            process.wait()


def _free_port():
    with socket.socket() as free:
        free.bind(("localhost", 0))
        return free.getsockname()[1]


if __name__ == "__main__":
    num_processes, num_devices, *command = sys.argv[1:]
    finish(launch(int(num_processes), int(num_devices), command), timeout=1e6)
