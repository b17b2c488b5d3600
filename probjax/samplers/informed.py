"""Locally balanced proposals: the changes of a state weighted by their energies.

With gap_na = E(x) - E(x with site n set to letter a), a change has the weight

    g(exp(gap_na)),    g(t) = t g(1 / t),

so that a proposal favours changes to lower energies. For bits without a closed form the
gaps are of first order, (2 x_n - 1) dE/dx_n, which costs one gradient for all sites.
Gaps need not be exact, because the Metropolis-Hastings test

    min(1, exp(E(x) - E(x')) q(x | x') / q(x' | x))

uses the exact energies, and the gaps at x' in the probability q(x | x') of the reverse
proposal. These gaps are cached with the state, so that a proposal costs one evaluation.

An energy of letters in general has no gradient in them, so the gaps of letters are
exact: those of the closed form `site_gaps`, or else from one energy for each letter of
each site. An energy that reads letters in one-hot form can instead declare gaps of
first order, see `one_hot_gaps`.

Reference: Zanella, J. Am. Stat. Assoc. 115, 852 (2020); Grathwohl et al., "Oops I took
a gradient", ICML 2021.
"""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp

from probjax.checks import eager_evaluation, is_concrete
from probjax.potential import Potential, in_one_precision
from probjax.states import binary, letters
from probjax.types import (
    Array,
    Float,
    Info,
    Scalar,
    State,
)

# Objectives prepare all rows of the data, whose gaps would take too much memory.
NUM_CHECKED = 100

Balance = Callable[[Array], Array]
"""Function of gaps: the logarithms of the weights g(exp(gap))."""


def square_root(gaps: Array) -> Array:
    """Logarithm of g(t) = sqrt(t) at t = exp(gap).

    >>> square_root(jnp.array([-2.0, 0.0, 4.0])).tolist()
    [-1.0, 0.0, 2.0]
    """
    return gaps / 2


def barker(gaps: Array) -> Array:
    """Logarithm of g(t) = t / (1 + t) at t = exp(gap); no weight is above 1.

    It limits the effect of gaps that are large and inexact.

    >>> jnp.exp(barker(jnp.array([0.0, 99.0]))).tolist()
    [0.5, 1.0]
    """
    return jax.nn.log_sigmoid(gaps)


class InformedState(NamedTuple):
    """State of a chain with locally balanced proposals."""

    x: State
    """Current state."""
    terms: Float[Array, " term"]
    """Unweighted energies at `x`."""
    gaps: Float[Array, "term ..."]
    """Unweighted gaps at `x`."""


def state_at(potential: Potential, x: State, num_states: int) -> InformedState:
    """Return the state at `x`; the cost is one evaluation of the energy and its gaps.

    >>> from probjax.potential import potential
    >>> model = potential(lambda bias, x: bias @ x, jnp.array([1.0, 3.0]))
    >>> state = state_at(model, jnp.array([0.0, 1.0]), 2)
    >>> state.terms.tolist(), state.gaps.tolist()
    ([3.0], [[-1.0, 3.0]])
    """
    return InformedState(x, *potential.terms_and_gaps(x, num_states))


def accepted(
    uniform: Scalar,
    potential: Potential,
    before: InformedState,
    after: InformedState,
    log_ratio: Scalar,
) -> tuple[InformedState, Info]:
    """Return the state after a Metropolis-Hastings test, and a report of it.

    Args:
        uniform: random number from 0 to 1.
        log_ratio: log ratio of the proposal probabilities, reverse over forward.
    """
    energy = potential.combine(after.terms)
    log_odds = potential.combine(before.terms) - energy + log_ratio
    # Gaps at a rejected state may be infinite, or not numbers.
    allowed = jnp.isfinite(energy) & ~jnp.isnan(log_odds)
    chance = jnp.exp(jnp.minimum(jnp.where(allowed, log_odds, -jnp.inf), 0))
    accept = uniform < chance
    state = jax.tree.map(lambda a, b: jnp.where(accept, a, b), after, before)
    return state, Info(accept=accept.astype(chance.dtype), chance=chance)


def check_balance(balance: Balance) -> None:
    """Raise if the weights of changes are not given by a function."""
    if not callable(balance):
        raise ValueError(f"balance must be a function, got {balance!r}; try barker")


def prepared(potential: Potential, x: State, num_states: int) -> State:
    """Check the initial states of bits or letters, and return them as floats."""
    x = binary(x) if num_states == 2 else letters(x, num_states=num_states)
    x = in_one_precision(potential, x)
    if is_concrete((potential, x)):
        with eager_evaluation():
            energies, gaps = map(bool, _are_finite(potential, x, num_states))
        if not energies:
            raise ValueError(
                "chains must start at a finite energy, got NaN or infinity"
            )
        if not gaps:
            raise ValueError(
                "chains must start where the gaps of the energy are finite, got NaN or "
                "infinity; the energy must have a gradient at whole numbers, unlike "
                "sqrt and norm at 0"
            )
    return x


@partial(jax.jit, static_argnums=2)
def _are_finite(potential, x, num_states):
    """Whether all energies are finite, and the first gaps numbers below infinity."""
    energies = jax.vmap(potential)(x)
    first = jax.tree.map(lambda leaf: leaf[:NUM_CHECKED], x)
    state = jax.vmap(lambda x: state_at(potential, x, num_states))(first)
    gaps = jax.vmap(potential.combine)(state.gaps)
    # A gap of minus infinity is a change that the model excludes.
    return jnp.isfinite(energies).all(), (gaps < jnp.inf).all()
