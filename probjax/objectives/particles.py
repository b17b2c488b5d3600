"""Particles that stand for the model, and are carried from round to round of a fit.

A round moves them by a few steps of a sampler at the parameters it begins with, and
keeps their energies there. While the parameters descend, weights

    w = exp(E(x; at the refresh) - E(x; now))

tell how well they still stand for the model: `ess` counts them. Moves taken for a model
that has changed since count for less, which makes an *effective age*: before each round
it shrinks to the share of particles that is still effective, and then grows by the
moves. It should be well above the sampler's autocorrelation time, or the particles do
not follow the model.

Reference: thesis, "Persistent MPF", "Persistent Samples"; Tieleman, ICML 2008.
"""

from typing import NamedTuple

import jax
import jax.numpy as jnp

from probjax.data import num_rows, refuse_mask
from probjax.diagnostics.weights import importance_ess
from probjax.potential import check_energy, potential
from probjax.samplers.following import move_chains
from probjax.types import (
    Array,
    Data,
    Energy,
    Float,
    Params,
    PRNGKeyArray,
    Sampler,
    Scalar,
    State,
    float_dtype,
    floating,
)


class Particles(NamedTuple):
    """Where particles are, and how they do."""

    x: State
    """Their states, leaves `(particle, ...)`."""
    reference: Float[Array, " particle"]
    """Their energies at the parameters they were last moved with."""
    accept: Scalar
    """The share of proposals accepted when they were."""
    ess: Scalar
    """How many of them still stood for the model just before that."""
    age: Scalar
    """Their effective age, in moves."""
    step_size: Scalar | None
    """The sampler's by now; None if it has none, or does not follow."""


def prepare_rows(
    energy: Energy, sampler: Sampler, params: Params, data: Data, why: str
) -> Data:
    """`data` that the sampler can move, complete rows only, as `why` says."""
    refuse_mask(data, why)
    first = jax.tree.map(lambda rows: floating(rows[0]), data.x)
    check_energy(energy, params, first)
    return data._replace(x=sampler.prepare(potential(energy, params), data.x))


def start_particles(
    key: PRNGKeyArray,
    energy: Energy,
    params: Params,
    data: Data,
    *,
    count: int | None,
    step_size: Scalar | None,
) -> Particles:
    """Particles at rows drawn by their weights; at each row if `count` is None."""
    rows, weights = num_rows(data), data.weights
    x = data.x
    if count is not None or weights is not None:
        chances = None if weights is None else weights / weights.sum()
        chosen = jax.random.choice(key, rows, (count or rows,), p=chances)
        x = jax.tree.map(lambda leaf: leaf[chosen], x)
    reference = energies(energy, params, x)
    kind = reference.dtype
    return Particles(
        x=x,
        reference=reference,
        accept=jnp.ones((), kind),
        ess=jnp.asarray(len(reference), kind),
        age=jnp.zeros((), kind),
        step_size=step_size,
    )


def move_particles(
    key: PRNGKeyArray,
    energy: Energy,
    params: Params,
    particles: Particles,
    *,
    sampler: Sampler,
    num_moves: int,
    target: float | None,
) -> Particles:
    """Particles moved at `params`, which they go with from then on."""
    now = energies(energy, params, particles.x)
    ess = importance_ess(particles.reference - now).astype(now.dtype)
    x, accept, step_size = move_chains(
        key,
        energy,
        params,
        particles.x,
        sampler=sampler,
        num_steps=num_moves,
        step_size=particles.step_size,
        target=target,
    )
    return Particles(
        x=x,
        reference=energies(energy, params, x),
        accept=accept.mean(),
        ess=ess,
        age=particles.age * ess / len(now) + num_moves,
        step_size=step_size,
    )


def energies(energy: Energy, params: Params, x: State) -> Float[Array, " row"]:
    """The energies of many states."""
    found = jax.vmap(energy, (None, 0))(params, x)
    return found.astype(float_dtype(params))
