"""Compile one program for a chip that is not there, and print what the compiler says.

    python -m benchmarks.accelerator_compile CHIP PROGRAM

runs in an environment with the compiler of the chip, see `benchmarks.accelerators`, and
prints a line of JSON. Nothing is executed.
"""

import json
import re
import sys
import time
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.experimental import topologies
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from benchmarks.accelerator_programs import KEY, PROGRAMS, Program

# Facts of a card, as the compiler wants to know them: of an NVIDIA H100 SXM.
H100 = """
gpu_device_info {
  threads_per_block_limit: 1024 threads_per_warp: 32
  shared_memory_per_block: 49152 shared_memory_per_core: 233472
  threads_per_core_limit: 2048 core_count: 132 fpus_per_core: 128
  block_dim_limit_x: 2147483647 block_dim_limit_y: 65535 block_dim_limit_z: 65535
  memory_bandwidth: 3352320000000 l2_cache_size: 52428800 clock_rate_ghz: 1.98
  device_memory_size: 84929347584 shared_memory_per_block_optin: 232448
  cuda_compute_capability { major: 9 minor: 0 }
  registers_per_core_limit: 65536 registers_per_block_limit: 65536
}
platform_name: "CUDA"
dnn_version_info { major: 9 minor: 7 }
runtime_version { major: 12 minor: 8 }
device_description_str: "NVIDIA H100 80GB HBM3"
"""
COLLECTIVES = "all-reduce", "all-gather", "all-to-all", "collective-permute"

KERNELS = r" (?:fusion|custom-call|dot|convolution|reduce-window|copy)\("


class Chip(NamedTuple):
    """A topology of chips."""

    topology: str
    platform: str
    num_chips: int


CHIPS = {
    "v5e": Chip("v5e:2x2", "tpu", 1),
    "v5e-4": Chip("v5e:2x2", "tpu", 4),
    "v5e-16": Chip("v5e:4x4", "tpu", 16),
    "v6e": Chip("v6e:2x2", "tpu", 1),
    "h100": Chip("1x1x1", "cuda", 1),
}


def mesh_of(chip: Chip) -> Mesh:
    if chip.platform == "cuda":
        found = topologies.get_topology_desc(
            platform="cuda", target_config=H100, topology=chip.topology
        )
    else:
        found = topologies.get_topology_desc(chip.topology, chip.platform)
    devices = np.array(found.devices[: chip.num_chips])
    return Mesh(devices, ("rows",), axis_types=(AxisType.Auto,))


def compiled_for(chip: Chip, program: Program) -> tuple[Any, float, float]:
    """Return the compiled program, and seconds of lowering and compiling."""
    mesh = mesh_of(chip)

    def struct(shape, dtype, spec):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    whole = PartitionSpec()
    inputs = [
        struct(
            each.shape,
            program.dtype,
            PartitionSpec("rows") if each.is_spread else whole,
        )
        for each in program.inputs
    ]
    key = struct(KEY.shape, KEY.dtype, whole)
    begun = time.perf_counter()
    with jax.set_mesh(mesh):
        lowered = jax.jit(program.function).lower(key, *inputs)
        middle = time.perf_counter()
        compiled = lowered.compile()
    return compiled, middle - begun, time.perf_counter() - middle


def kernels(text: str) -> int:
    """Number of kernels in one pass of the innermost loops of a compiled program."""
    parts = re.findall(r"(?ms)^(?:ENTRY )?%?([\w.\-]+) \(.*?^}", text)
    bodies = re.findall(r"(?m)^(?:ENTRY )?%?[\w.\-]+ \(.*\{\n((?:.*\n)*?)\}", text)
    of_name = dict(zip(parts, bodies, strict=True))
    loops = [of_name[name] for name in re.findall(r"body=%?([\w.\-]+)", text)]
    innermost = [body for body in loops if " while(" not in body]
    return sum(len(re.findall(KERNELS, body)) for body in innermost)


def figures(chip: Chip, program: Program) -> dict[str, Any]:
    compiled, lowering, compiling = compiled_for(chip, program)
    memory, costs = compiled.memory_analysis(), compiled.cost_analysis() or {}
    text = compiled.as_text() or ""
    found = {
        name: len(re.findall(rf" {name}(?:-start)?\(", text)) for name in COLLECTIVES
    }
    return {
        "lowering": lowering,
        "compiling": compiling,
        "code": memory.generated_code_size_in_bytes,
        "temporary": memory.temp_size_in_bytes,
        "arguments": memory.argument_size_in_bytes,
        "outputs": memory.output_size_in_bytes,
        "flops": costs.get("flops"),
        "bytes": costs.get("bytes accessed"),
        "kernels": kernels(text),
        "instructions": len(re.findall(r"(?m)^\s+(?:ROOT )?%?[\w.\-]+ = ", text)),
        "bfloat16": len(re.findall(r"bf16\[", text)),
        "collectives": {name: count for name, count in found.items() if count},
    }


if __name__ == "__main__":
    print(json.dumps(figures(CHIPS[sys.argv[1]], PROGRAMS[sys.argv[2]])))
