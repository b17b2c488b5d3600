"""Checks that a model, a base and a sampler have the same kind of states."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from probjax.checks import check_interface, eager_evaluation, is_concrete
from probjax.energies import check_energy, check_normalisable
from probjax.interfaces import Base, Sampler
from probjax.potential import Potential, potential
from probjax.states import num_sites
from probjax.trees import float_dtype
from probjax.types import Energy, Params, PRNGKeyArray, State

NUM_RAYS = 10
# Distances, relative to draws of the base, between which an energy must grow.
RAY_ENDS = 1e2, 1e6


def check_target(
    key: PRNGKeyArray, energy: Energy, params: Params, base: Base, sampler: Sampler
) -> None:
    """Raise if a model, a base and a sampler do not have the same kind of states."""
    check_interface("base", base, Base, "Gaussian(10)")
    check_interface("sampler", sampler, Sampler, "HeatBath() or HMC(0.1)")
    check_normalisable(energy, params)
    if not _is_same_kind(base, sampler):
        raise ValueError(_mismatch(base, sampler))
    draws = jax.eval_shape(_draw_few, base, key)
    check_energy(energy, params, jax.eval_shape(partial(check_states, sampler), draws))
    if base.domain == "reals" and is_concrete((key, params, base)):
        with eager_evaluation():
            _check_growth(key, energy, params, base)
    if sampler.domain == "any" and base.domain in ("bits", "letters"):
        _check_moves(key, base, sampler)


def _check_growth(key, energy, params, base):
    """Raise if the energy grows too slowly, far from the origin, to be normalised."""
    num_bounded = int(_num_slow_rays(energy, params, base, key))
    if num_bounded:
        raise ValueError(
            "the model has no partition function: far from the origin the energy must "
            "grow faster than log |x| for each dimension of x, and in "
            f"{num_bounded} of {NUM_RAYS} random directions it does not, so that "
            "weights would grow without bound; try adding a term that confines x, such "
            "as 0.01 * jnp.sum(x**2)"
        )


@partial(jax.jit, static_argnums=0)
def _num_slow_rays(energy, params, base, key):
    """Count random rays along which exp(-energy) has an infinite integral."""
    near, far = RAY_ENDS
    draws = _draw_few(base, key)
    least = num_sites(draws) * float(np.log(far / near))

    def energy_at(distance, x):
        return energy(params, jax.tree.map(lambda leaf: distance * leaf, x))

    # NaN, from energies that overflow, counts as growth.
    growth = jax.vmap(lambda x: energy_at(far, x) - energy_at(near, x))(draws)
    return jnp.sum(growth <= least)


def check_states(sampler: Sampler, x: State) -> State:
    """Return `x` in the form that a sampler requires; raise if it cannot move `x`."""
    # With a constant energy, because only the states are checked.
    return sampler.prepare(
        Potential((_constant,), ((),), np.ones(1, float_dtype(x))), x
    )


def _constant(params, x):
    return jnp.zeros((), float_dtype(x))


def _is_same_kind(base, sampler):
    """Whether a sampler moves the kind of states that a base draws."""
    if "any" in (base.domain, sampler.domain):
        return True
    return (base.domain, base.num_letters()) == (sampler.domain, sampler.num_letters())


def _mismatch(base, sampler):
    """Return the message for a sampler that cannot move the states of a base."""
    advice = {
        "reals": "; try HMC(0.1)",
        "bits": "; try HeatBath()",
        "letters": f"; try HeatBath({base.num_letters()})",
    }.get(base.domain, "")
    return (
        f"sampler must move {_kind(base)}, which {type(base).__name__} draws, got "
        f"{type(sampler).__name__}, which moves {_kind(sampler)}{advice}"
    )


def _kind(base_or_sampler):
    """Return a name for the kind of states of a base or a sampler."""
    domain = base_or_sampler.domain
    if domain == "letters":
        return f"{base_or_sampler.num_letters()} letters"
    return "states of several kinds" if domain == "mixed" else domain


def _check_moves(key: PRNGKeyArray, base: Base, sampler: Sampler) -> None:
    """Raise if a step of a sampler leads to states that a base cannot draw."""
    model = potential(type(base).energy, base)
    draws = sampler.prepare(model, _draw_few(base, key))
    try:
        base.prepare(_move(sampler, model, key, draws))
    except ValueError as error:
        raise ValueError(_mismatch(base, sampler)) from error


@jax.jit
def _move(sampler, model, key, draws):
    def one(key, x):
        init_key, step_key = jax.random.split(key)
        state = sampler.init(init_key, model, x)
        return sampler.step(step_key, model, state)[0].x

    keys = jax.random.split(key, len(jax.tree.leaves(draws)[0]))
    return jax.vmap(one)(keys, draws)


@jax.jit
def _draw_few(base, key):
    return jax.vmap(base.sample)(jax.random.split(key, NUM_RAYS))
