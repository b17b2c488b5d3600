"""Checks that a model, a base and a sampler go together."""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from probjax.checks import check_interface
from probjax.interfaces import Base, Sampler
from probjax.potential import Potential, check_energy, check_normalisable, potential
from probjax.trees import float_dtype
from probjax.types import Energy, Params, PRNGKeyArray, State


def check_target(
    key: PRNGKeyArray, energy: Energy, params: Params, base: Base, sampler: Sampler
) -> None:
    """Raise if a model, a base and a sampler do not go together."""
    check_interface("base", base, Base, "Gaussian(10)")
    check_interface("sampler", sampler, Sampler, "HeatBath() or HMC(0.1)")
    check_normalisable(energy, params)
    if not _is_same_kind(base, sampler):
        raise ValueError(_misfit(base, sampler))
    few = jax.eval_shape(_few, base, key)
    check_energy(energy, params, jax.eval_shape(partial(check_states, sampler), few))
    if sampler.domain == "any" and base.domain in ("bits", "letters"):
        _check_moves(key, base, sampler)


def check_states(sampler: Sampler, x: State) -> State:
    """Return states as a sampler takes them; raise if it cannot move them."""
    # Whatever the model is: what is checked are the states.
    return sampler.prepare(Potential((_flat,), ((),), np.ones(1, float_dtype(x))), x)


def _flat(nothing, x):
    return jnp.zeros((), float_dtype(x))


def _is_same_kind(base, sampler):
    """Return whether a sampler moves the kind of states that a base draws."""
    if "any" in (base.domain, sampler.domain):
        return True
    return (base.domain, base.num_letters()) == (sampler.domain, sampler.num_letters())


def _misfit(base, sampler):
    advice = {
        "reals": "; try HMC(0.1)",
        "bits": "; try HeatBath()",
        "letters": f"; try HeatBath({base.num_letters()})",
    }.get(base.domain, "")
    return (
        f"sampler must move {_kind(base)}, which {type(base).__name__} draws, got "
        f"{type(sampler).__name__}, which moves {_kind(sampler)}{advice}"
    )


def _kind(either):
    if either.domain == "letters":
        return f"{either.num_letters()} letters"
    return "states of several kinds" if either.domain == "mixed" else either.domain


def _check_moves(key: PRNGKeyArray, base: Base, sampler: Sampler) -> None:
    """Raise if a step of a sampler of any states leaves those that a base draws."""
    model = potential(type(base).energy, base)
    few = sampler.prepare(model, _few(base, key))
    try:
        base.prepare(_moved(sampler, model, key, few))
    except ValueError as error:
        raise ValueError(_misfit(base, sampler)) from error


@jax.jit
def _moved(sampler, model, key, few):
    def one(key, x):
        init_key, step_key = jax.random.split(key)
        state = sampler.init(init_key, model, x)
        return sampler.step(step_key, model, state)[0].x

    keys = jax.random.split(key, len(jax.tree.leaves(few)[0]))
    return jax.vmap(one)(keys, few)


@jax.jit
def _few(base, key):
    return jax.vmap(base.sample)(jax.random.split(key, 10))
