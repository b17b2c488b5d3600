"""Trials of estimates of log Z: `ais`, `ais_until`, `reverse_ais` and `sandwich`."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.special import gammaln
from jax.tree_util import Partial

from benchmarks.coverage_claims import (
    AT_LEAST,
    EXACT,
    TOO_SMALL,
    Case,
    Kind,
    by_ends,
    by_stderr,
)
from probjax import HMC, Bernoulli, Gaussian, HeatBath, ais, ais_until, exact, ising
from probjax.annealing import sandwich
from probjax.annealing.bennett import bennett
from probjax.models import experts
from probjax.samplers import sample

SIZE = 5
SPINS = ising.init(jax.random.key(3), SIZE, scale=0.7)
LOG_Z = exact.log_z(ising.energy, SPINS, SIZE)
SPINS_TO_BASE = (ising.energy, SPINS, Bernoulli(SIZE))
BY_HEAT: dict[str, Any] = dict(sampler=HeatBath(), pilot=None)
draws_of_spins = partial(exact.sample, energy=ising.energy, params=SPINS, size=SIZE)
# Tails of which a run from a Gaussian misses most.
NUM_EXPERTS = 6
FILTERS = np.eye(6) + 0.3 * np.random.default_rng(1).normal(size=(6, 6))
STRENGTH = np.linspace(0.8, 2.0, 6)
STUDENT = experts.Params(jnp.asarray(FILTERS, "f"), jnp.asarray(STRENGTH, "f"))
STUDENT_LOG_Z = jnp.sum(
    jnp.log(jnp.pi) / 2 + gammaln(STRENGTH - 0.5) - gammaln(STRENGTH)
) - float(np.linalg.slogdet(FILTERS)[1])


def forward(key, **options):
    found = ais(key, *SPINS_TO_BASE, **BY_HEAT, **options)
    return annealed_claims(found, LOG_Z)


def annealed_claims(found, log_z):
    return [
        by_stderr(found.log_z, found.stderr, log_z),
        by_stderr(found.bound, found.bound_stderr),
    ]


def doubled(key):
    args: dict[str, Any] = dict(num_particles=100, num_steps=5, stderr=0.05)
    found = ais_until(key, *SPINS_TO_BASE, **BY_HEAT, **args)
    return [by_stderr(found.log_z, found.stderr, LOG_Z)]


def both(key, num_particles, num_steps):
    draw_key, key = jax.random.split(key)
    x = draws_of_spins(draw_key, num_draws=num_particles)
    return bracket_claims(
        sandwich(key, *SPINS_TO_BASE, x, num_steps=num_steps, **BY_HEAT), LOG_Z
    )


def bracket_claims(found, log_z):
    combined = bennett(found.forward.log_weights, -found.reverse.log_weights)
    return [
        by_ends(found.log_z, found.lower, found.upper, log_z),
        by_stderr(*combined, log_z),
        by_stderr(found.reverse.log_z, found.reverse.stderr, log_z),
        by_stderr(found.reverse.bound, found.reverse.bound_stderr),
    ]


def both_from_one_chain(key, coupling):
    """Successive draws of one chain of spins that align, from a draw of the target."""
    draw_key, chain_key, key = jax.random.split(key, 3)
    matrix = coupling * (1 - np.eye(SIZE))
    params = ising.from_fields(matrix, np.linspace(-0.1, 0.2, SIZE), spins=True)
    x = exact.sample(draw_key, ising.energy, params, SIZE, num_draws=1)
    options: dict[str, Any] = dict(sampler=HeatBath(), num_draws=200)
    x = sample(chain_key, ising.energy, params, x, **options).x[0]
    args = ising.energy, params, Bernoulli(SIZE), x
    found = sandwich(key, *args, num_steps=20, **BY_HEAT)
    return bracket_claims(found, exact.log_z(ising.energy, params, SIZE))


def student_draws(key, num_draws):
    chi_key, key = jax.random.split(key)
    shape = (num_draws, NUM_EXPERTS)
    chi = 2 * jax.random.gamma(chi_key, STUDENT.strength[None] - 0.5, shape)
    responses = jax.random.normal(key, shape) / jnp.sqrt(chi)
    return jnp.linalg.solve(STUDENT.filters, responses.T).T


def heavy(key):
    draw_key, key = jax.random.split(key)
    x = student_draws(draw_key, 100)
    args = experts.student_t, STUDENT, Gaussian(NUM_EXPERTS), x
    found = sandwich(key, *args, sampler=HMC(0.5), num_steps=100, pilot=None)
    return [
        by_stderr(found.forward.log_z, found.forward.stderr, STUDENT_LOG_Z),
        by_ends(found.log_z, found.lower, found.upper, STUDENT_LOG_Z),
    ]


ANNEALED = {"stderr": EXACT, "bound_stderr": EXACT}
IN_GROUPS, IN_FEW_GROUPS = Kind(dof=19), Kind(dof=11)
BRACKET = {
    "lower, upper": AT_LEAST,
    "Bennett's stderr": IN_GROUPS,
    "reverse.stderr": EXACT,
    "reverse.bound_stderr": EXACT,
}
CASES = {
    "ais, 200 particles": Case(
        partial(forward, num_particles=200, num_steps=20), ANNEALED
    ),
    "ais, 200 particles, resample_below=0.9": Case(
        partial(forward, num_particles=200, num_steps=20, resample_below=0.9),
        dict.fromkeys(ANNEALED, IN_GROUPS),
    ),
    "ais, 60 particles, 12 steps, resample_below=1.0": Case(
        partial(forward, num_particles=60, num_steps=12, resample_below=1.0),
        dict.fromkeys(ANNEALED, IN_FEW_GROUPS),
    ),
    "ais, 63 particles, resample_below=0.8": Case(
        partial(forward, num_particles=63, num_steps=6, resample_below=0.8),
        dict.fromkeys(ANNEALED, IN_FEW_GROUPS),
    ),
    "ais, 20 particles, 1 step": Case(
        partial(forward, num_particles=20, num_steps=1),
        ANNEALED | {"stderr": TOO_SMALL},
    ),
    "ais_until(stderr=0.05)": Case(doubled, {"stderr": EXACT}, compiled=False),
    "sandwich, 200 draws": Case(
        partial(both, num_particles=200, num_steps=20), BRACKET
    ),
    "sandwich, 20 draws": Case(partial(both, num_particles=20, num_steps=20), BRACKET),
    "sandwich, 200 draws of a chain, tau 9": Case(
        Partial(both_from_one_chain, coupling=0.35), BRACKET
    ),
    "sandwich, 200 draws of a chain, tau 670": Case(
        Partial(both_from_one_chain, coupling=0.7), dict.fromkeys(BRACKET, TOO_SMALL)
    ),
    "sandwich, heavy tails": Case(
        heavy, {"forward.stderr": TOO_SMALL, "lower, upper": AT_LEAST}
    ),
}
