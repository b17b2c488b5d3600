"""Collectives of programs that are compiled for 8 devices of the host, as JSON.

    python collectives.py FILE

Nothing is executed. A collective is written as its name, the numbers of elements of its
results, and whether it is in a loop. Conditional branches that a loop calls count as
parts of the loop.
"""

import json
import math
import re
import sys
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import AxisType, NamedSharding, PartitionSpec
from small_models import flat_ising

from probjax import (
    HMC,
    MPF,
    Bernoulli,
    Gaussian,
    HeatBath,
    PersistentDivergence,
    PseudoLikelihood,
    ais,
    fit,
    ising,
    rbm,
    sample,
    sample_mean,
)
from probjax.annealing import Straight
from probjax.samplers import ColourGibbs
from probjax.samplers.gibbs import colours

NAMES = "all-reduce", "all-gather", "all-to-all", "collective-permute", "reduce-scatter"
COLLECTIVE = re.compile(rf"= (.*?) ({'|'.join(NAMES)})(?:-start)?\(")
CALLED = re.compile(
    r"(?:body|condition|to_apply|calls|true_computation|false_computation)=%?([\w.\-]+)"
)
BRANCHES = re.compile(r"branch_computations=\{([^}]*)\}")
SIZE, HIDDEN, ROWS = 12, 5, 17_600


def computations(text):
    """Lines of each computation of a compiled program, by name."""
    found, lines = {}, []
    for line in text.splitlines():
        if line and not line[0].isspace() and line.endswith("{"):
            name = re.match(r"(?:ENTRY )?%?([\w.\-]+)", line).group(1)
            lines = found.setdefault(name, [])
        lines.append(line)
    return found


def called(line):
    branches = [each.split(",") for each in BRANCHES.findall(line)]
    names = [name.strip().lstrip("%") for branch in branches for name in branch]
    return [*CALLED.findall(line), *names]


def in_loops(parts):
    """Names of the computations that loops call, directly or not."""
    left = [
        name
        for lines in parts.values()
        for line in lines
        if re.search(r" while\(", line)
        for name in called(line)
    ]
    found = set()
    while left:
        name = left.pop()
        if name not in found:
            found.add(name)
            left += [each for line in parts[name] for each in called(line)]
    return found


def num_elements(shapes):
    """Number of elements of each array in the type of a result."""
    found = re.findall(r"[a-z]\w*\[([\d,]*)\]", shapes)
    return [math.prod(map(int, filter(None, shape.split(",")))) for shape in found]


def collectives(text):
    parts = computations(text)
    loops = in_loops(parts)
    return [
        [match[2], num_elements(match[1]), name in loops]
        for name, lines in parts.items()
        for match in map(COLLECTIVE.search, lines)
        if match
    ]


def fit_ising(key, x):
    return fit(key, MPF(ising.energy), flat_ising(SIZE), x, steps_per_round=5).params


def fit_pairs(key, x):
    objective = PseudoLikelihood(ising.energy)
    return fit(key, objective, flat_ising(SIZE), x, steps_per_round=5).params


def machine():
    weight = jnp.full((SIZE, HIDDEN), 0.01)
    return rbm.Params(weight, jnp.zeros(SIZE), jnp.zeros(HIDDEN))


def fit_rbm(key, x):
    return fit(key, MPF(rbm.energy), machine(), x, steps_per_round=5).params


def fit_persistent(key, x):
    objective = PersistentDivergence(
        rbm.energy, rbm.BlockGibbs(), num_particles=80, num_moves=2
    )
    steps = dict(optimizer=optax.sgd(0.01), num_rounds=4, steps_per_round=2)
    return fit(key, objective, machine(), x, **steps).params


def fit_batches(key, x):
    steps = dict(optimizer=optax.sgd(0.01), num_rounds=4, steps_per_round=2)
    args = key, MPF(ising.energy), flat_ising(SIZE), x
    return fit(*args, batch_size=80, **steps).params


def chain():
    edges = tuple((site, site + 1) for site in range(SIZE - 1))
    return ising.Params(jnp.zeros(SIZE), jnp.zeros(len(edges)), edges)


def quartic(params, x):
    return params @ x**2 / 2 + jnp.sum(x**4) / 4 - x[0] * x[1]


def draws(sampler, energy, params, key, x):
    plan = dict(sampler=sampler, num_draws=5, num_warmup=2, thin=2)
    return sample(key, energy, params(), x, **plan).x


def means(sampler, energy, params, key, x):
    plan = dict(sampler=sampler, num_draws=5, num_warmup=2, thin=2)
    return sample_mean(key, energy, params(), x, statistic=jnp.square, **plan).mean


def annealed(pilot, key):
    args = key, quartic, jnp.ones(SIZE), Gaussian(SIZE)
    run = dict(sampler=HMC(0.3), num_particles=192, num_steps=60)
    return ais(*args, **run, **pilot)


def annealed_rbm(key):
    plan = dict(sampler=rbm.BlockGibbs(), num_particles=192, num_steps=60, pilot=None)
    start = jax.tree.map(jnp.zeros_like, machine())
    args = key, rbm.energy, machine(), Bernoulli(SIZE)
    return ais(*args, path=Straight(start), **plan)


SAMPLERS = {
    "HeatBath": (HeatBath(), ising.energy, partial(flat_ising, SIZE)),
    "HMC": (HMC(0.3, num_steps=3), quartic, partial(jnp.ones, SIZE)),
    "ColourGibbs": (ColourGibbs(colours(chain().edges, SIZE)), ising.energy, chain),
    "BlockGibbs": (rbm.BlockGibbs(), rbm.energy, machine),
}
PROGRAMS = {
    "fit_ising": (fit_ising, ROWS),
    "fit_pairs": (fit_pairs, ROWS),
    "fit_rbm": (fit_rbm, ROWS),
    "fit_persistent": (fit_persistent, ROWS),
    "fit_batches": (fit_batches, ROWS),
    "ais": (partial(annealed, {"pilot": None}), None),
    "ais_by_pilot": (partial(annealed, {}), None),
    "ais_resampled": (partial(annealed, {"pilot": None, "resample_below": 0.5}), None),
    "ais_of_rbm": (annealed_rbm, None),
} | {
    f"{kind.__name__}_{name}": (partial(kind, *parts), 192)
    for kind in (draws, means)
    for name, parts in SAMPLERS.items()
}


def compiled(function, num_rows, mesh):
    def struct(shape, dtype, spec):
        return jax.ShapeDtypeStruct(shape, dtype, sharding=NamedSharding(mesh, spec))

    args = [struct((2,), np.uint32, PartitionSpec())]
    if num_rows is not None:
        args.append(struct((num_rows, SIZE), np.float32, PartitionSpec("rows")))
    with jax.set_mesh(mesh):
        return jax.jit(function).lower(*args).compile().as_text()


def main():
    mesh = jax.make_mesh((jax.device_count(),), ("rows",), axis_types=(AxisType.Auto,))
    found = {
        name: collectives(compiled(*program, mesh))
        for name, program in PROGRAMS.items()
    }
    Path(sys.argv[1]).write_text(json.dumps(found))


if __name__ == "__main__":
    main()
