"""Chains that follow a model while it is learned, and step sizes that follow them.

Between rounds of a fit its parameters move, and with them the length of step that is
worth taking. After every step of all chains together the logarithm of the step size
goes up or down a little, until proposals are accepted as often as wanted. Each step
leaves the model of its round unchanged but for that: with many chains, what one of them
did is next to nothing in the mean that the step size follows; with a handful it is not,
and the step size had better be left alone.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from probjax import random
from probjax.checks import is_concrete
from probjax.devices import sharded_vmap
from probjax.interfaces import Sampler
from probjax.potential import potential
from probjax.trees import float_dtype
from probjax.types import (
    Array,
    Energy,
    Float,
    Params,
    PRNGKeyArray,
    Scalar,
    State,
    check_info,
)

GAIN = 0.2


class Moved(NamedTuple):
    """Chains after some steps."""

    x: State
    """Where they are, leaves `(chain, ...)`."""
    accept: Float[Array, " chain"]
    """The share of each one's proposals that were accepted."""
    step_size: Scalar | None
    """What it came to; None if it was left alone."""


def move_chains(
    key: PRNGKeyArray,
    energy: Energy,
    params: Params,
    x: State,
    *,
    sampler: Sampler,
    num_steps: int,
    axes: Any = None,
    step_size: Scalar | None = None,
    target: Scalar | float | None = None,
) -> Moved:
    """Steps of many chains from `x`, to be called where code is compiled.

    Args:
        axes: those of `params` along which every chain has its own, as for `vmap`.
        step_size: first step size, to be adapted; None to adapt nothing.
        target: acceptance to which it is adapted; None for the sampler's own.
    """
    keys = jax.random.split(key, len(jax.tree.leaves(x)[0]))
    target = sampler.target_acceptance if target is None else target

    def start(key, params, x):
        # Steps are numbered from 0, so no step has this number.
        now = random.fold_in(key, 2**31 - 1)
        return sampler.init(now, potential(energy, params), x)

    def step(number, carry):
        states, accept, log_step = carry
        here = sampler if log_step is None else sampler.adapted(jnp.exp(log_step))

        def one(key, params, state):
            now = random.fold_in(key, number)
            state, info = here.step(now, potential(energy, params), state)
            return state, check_info(info)

        states, info = sharded_vmap(one, (0, axes, 0))(keys, params, states)
        if log_step is not None and target is not None:
            log_step = nearer(log_step, info.acceptance.mean(), target)
        return states, accept + info.accept / num_steps, log_step

    states = sharded_vmap(start, (0, axes, 0))(keys, params, x)
    log_step = None if step_size is None else jnp.log(step_size)
    accept = jnp.zeros(len(keys), float_dtype(params))
    carry = (states, accept, log_step)
    states, accept, log_step = jax.lax.fori_loop(0, num_steps, step, carry)
    found = None if log_step is None else jnp.exp(log_step)
    return jax.lax.stop_gradient(Moved(states.x, accept, found))


def first_step(sampler: Sampler, adapt: bool, params: Params) -> Scalar | None:
    """Return the step size at which adaptation begins; None to adapt nothing."""
    if not adapt or sampler.target_acceptance is None:
        return None
    return jnp.asarray(sampler.step_size, float_dtype(params))


def nearer(log_step: Scalar, chance: Scalar, target: Scalar | float) -> Scalar:
    """A step size a little nearer to that with the acceptance that is wanted."""
    miss = (chance - target) / (target * (1 - target))
    return log_step + (GAIN * jnp.clip(miss, -1, 1)).astype(log_step.dtype)


def check_acceptance(target: Any) -> None:
    """Refuse what is no acceptance to aim at."""
    if target is not None and is_concrete(target) and not 0 < target < 1:
        raise ValueError(f"target must be between 0 and 1, got {target}")
