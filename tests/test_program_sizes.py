"""Programs do not grow with counts: loops and batch axes, and nothing unrolled.

Counts of lines are those of the program that is given to the compiler of a TPU. `make
accelerators` compiles the main programs.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probjax import (
    HMC,
    MPF,
    Gaussian,
    HeatBath,
    LookAheadHMC,
    PseudoLikelihood,
    ais,
    ising,
    loss,
    potts,
    rbm,
    sample,
)
from probjax.samplers import ColourGibbs, Tempered

KEY = jax.ShapeDtypeStruct((2,), np.uint32)


def floats(*shape):
    return jax.ShapeDtypeStruct(shape, np.float32)


def machine(visible, hidden):
    weight = floats(visible, hidden)
    return rbm.Params(weight, floats(visible), floats(hidden))


def glass(size):
    return ising.Params(floats(size), floats(size * (size - 1) // 2), None)


def family(sites, letters):
    coupling = floats(sites * (sites - 1) // 2, letters, letters)
    return potts.Params(floats(sites, letters), coupling)


def quartic(params, x):
    return jnp.sum(params * x**4)


def chains(energy, sampler):
    def draws(key, params, x):
        return sample(key, energy, params, x, sampler=sampler, num_draws=2).x

    return draws


def slope(objective):
    def gradient(key, params, x):
        return jax.grad(lambda params: loss(key, objective, params, x))(params)

    return gradient


def annealed(num_particles):
    def log_z(key, params):
        options = dict(num_particles=num_particles, num_steps=10, pilot=None)
        return ais(key, quartic, params, Gaussian(4), sampler=HMC(0.1), **options).log_z

    return log_z


def colours_of(count, size):
    masks = np.arange(size)[None] % count == np.arange(count)[:, None]
    return ColourGibbs(masks.astype(np.float32))


def letters_of(size):
    return chains(potts.energy, HeatBath(size)), family(6, size), floats(5, 6)


# Functions of a count: a function of a key and inputs, and the inputs.
PROGRAMS = {
    "sites": lambda n: (chains(ising.energy, HeatBath()), glass(n), floats(5, n)),
    "colours": lambda n: (
        chains(ising.energy, colours_of(n, 40)),
        glass(40),
        floats(5, 40),
    ),
    "letters": letters_of,
    "chains": lambda n: (chains(ising.energy, HeatBath()), glass(6), floats(n, 6)),
    "rungs": lambda n: (
        chains(ising.energy, Tempered(HeatBath(), 0.9 ** np.arange(n))),
        glass(6),
        floats(5, 6),
    ),
    "leapfrogs": lambda n: (
        chains(quartic, HMC(0.1, num_steps=n)),
        floats(),
        floats(5, 4),
    ),
    "look-ahead": lambda n: (
        chains(quartic, LookAheadHMC(0.1, look_ahead=n)),
        floats(),
        floats(5, 4),
    ),
    "hidden units": lambda n: (slope(MPF(rbm.energy)), machine(8, n), floats(9, 8)),
    "visible units": lambda n: (slope(MPF(rbm.energy)), machine(n, 8), floats(9, n)),
    "rows": lambda n: (slope(MPF(ising.energy)), glass(6), floats(n, 6)),
    "letters of rows": lambda n: (
        slope(PseudoLikelihood(potts.energy, num_states=n)),
        family(6, n),
        floats(9, 6),
    ),
    "particles": lambda n: (annealed(n), floats()),
}


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs_do_not_grow_with_a_count(name):
    def num_lines(count):
        function, *inputs = PROGRAMS[name](count)
        traced = jax.jit(function).trace(KEY, *inputs)
        text = traced.lower(lowering_platforms=("tpu",)).as_text()
        return sum(" = " in line for line in text.splitlines())

    # Large enough that every loop has several passes.
    assert num_lines(31) == num_lines(17)
