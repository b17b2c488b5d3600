"""The restricted Boltzmann machine over x in {0, 1}^v, its hidden units summed out.

    E(x) = -b'x - sum_h softplus(f_h),    f = W'x + c

With d_n = 1 - 2 x_n, flipping visible unit n gives

    E(x) - E(x') = d_n b_n + sum_h log(sigmoid(-f_h) + sigmoid(f_h) exp(d_n W_nh)).

There are two ways to all these gaps. The *exact* one goes over visible units. The other
has no loop: with q = tanh(W / 4) and z = tanh(f / 2),

    gap_n = d_n (b_n + sum_h W_nh / 2) - sum_h log(1 - q_nh^2)
            - 2 sum_(p >= 1) sum_h (-d_n q_nh)^p T_p(z_h) / p,

T_p being Chebyshev polynomials, so that P terms are P matrix products for all rows and
units at once. As |T_p| <= 1, the terms left out amount to at most

    2 sum_h |q_nh|^(P+1) / ((P+1) (1 - |q_nh|)).

The compiled program picks the fewest products that make this negligible, or the exact
way where weights are too large for any.

Reference: thesis, "Deep Belief Network" and the appendix "MPF objective function for a
Restricted Boltzmann Machine (RBM)".
"""

from functools import partial
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from probjax import random
from probjax.connectivity.flips import binary
from probjax.exact import enumeration
from probjax.potential import Potential, potential
from probjax.samplers.lazily import together
from probjax.types import (
    Array,
    Base,
    Energy,
    Float,
    Info,
    PRNGKeyArray,
    Scalar,
    State,
    closed_form,
    recipe,
)

NUM_PRODUCTS = (8, 16, 32)


class Params(NamedTuple):
    """Weights between the layers, and a bias for every unit."""

    weight: Float[Array, "visible hidden"]
    """Positive where two units like to be on together."""
    visible_bias: Float[Array, " visible"]
    hidden_bias: Float[Array, " hidden"]


def init(
    key: PRNGKeyArray, num_visible: int, num_hidden: int, *, scale: float = 0.01
) -> Params:
    """Independent normal weights of standard deviation `scale`, and no biases."""
    if min(num_visible, num_hidden) < 1:
        raise ValueError(
            f"both layers must have units, got {num_visible} and {num_hidden}"
        )
    weight = scale * jax.random.normal(key, (num_visible, num_hidden))
    return Params(weight, jnp.zeros(num_visible), jnp.zeros(num_hidden))


def flip_gaps(params: Params, x: Float[Array, " visible"]) -> Float[Array, " visible"]:
    """E(x) - E(x with visible unit n flipped) for every n, the cheapest safe way."""
    _check(params, x)
    # Chosen from the parameters alone, so that a batch of states shares one branch.
    weight = jax.lax.stop_gradient(params.weight)
    tolerance = 50 * jnp.finfo(weight.dtype).eps
    fits = [tail_bound(weight, count).max() <= tolerance for count in NUM_PRODUCTS]
    ways = [partial(gaps_by_products, num_products=count) for count in NUM_PRODUCTS]
    branch = jnp.sum(~jnp.stack(fits))
    return jax.lax.switch(branch, [*ways, exact_gaps], params, x)


def gaps_by_products(
    params: Params, x: Float[Array, " visible"], *, num_products: int
) -> Float[Array, " visible"]:
    """The gaps to within `tail_bound`, by matrix products alone."""
    weight, visible_bias, hidden_bias = params
    turn = 1 - 2 * x
    q, z = -jnp.tanh(weight / 4), jnp.tanh((x @ weight + hidden_bias) / 2)
    gaps = turn * (visible_bias + weight.sum(1) / 2) - jnp.log1p(-(q**2)).sum(1)
    power, before, chebyshev = q, jnp.ones_like(z), z
    for p in range(1, num_products + 1):
        term = (2 / p) * (power @ chebyshev)
        gaps = gaps - (turn * term if p % 2 else term)
        power, before, chebyshev = power * q, chebyshev, 2 * z * chebyshev - before
    return gaps


def tail_bound(
    weight: Float[Array, "visible hidden"], num_products: int
) -> Float[Array, " visible"]:
    """The most that `gaps_by_products` can be off for each visible unit."""
    q, after = jnp.tanh(jnp.abs(weight) / 4), num_products + 1
    return 2 * jnp.sum(q**after / (after * (1 - q)), axis=1)


def exact_gaps(params: Params, x: Float[Array, " visible"]) -> Float[Array, " visible"]:
    """The gaps to rounding, whatever the weights, visible unit by visible unit."""
    field = x @ params.weight + params.hidden_bias
    stays, goes = jax.nn.sigmoid(-field), jax.nn.sigmoid(field)

    # Nothing of the size of rows x visible x hidden is kept for the gradient.
    @jax.checkpoint
    def gap(unit):
        weight, bias, on = unit
        # Exponentials of parameters alone, shared by all rows of a batch.
        change = jnp.where(on == 1, jnp.exp(-weight), jnp.exp(weight))
        return (1 - 2 * on) * bias + jnp.sum(jnp.log(stays + goes * change))

    return jax.lax.map(gap, (params.weight, params.visible_bias, x))


@closed_form(flip_gaps=flip_gaps)
def energy(params: Params, x: Float[Array, " visible"]) -> Scalar:
    """The energy -b'x - sum_h softplus(W'x + c)_h of one visible state."""
    _check(params, x)
    field = x @ params.weight + params.hidden_bias
    return -(params.visible_bias @ x) - jnp.sum(jax.nn.softplus(field))


def transpose(params: Params) -> Params:
    """The machine with its layers exchanged: the same joint, the other marginal."""
    return Params(params.weight.T, params.hidden_bias, params.visible_bias)


class Grown(NamedTuple):
    """A machine on the way of `Growth`."""

    params: Params
    """At the end of it."""
    visible_start: Float[Array, " visible"]
    """The visible biases at its beginning, where there are no weights."""
    hidden_start: Float[Array, " hidden"]
    """And the hidden ones."""
    share: Scalar
    """How far along it is, from 0 to 1."""

    @property
    def visible_bias(self) -> Float[Array, " visible"]:
        return self._between(self.visible_start, self.params.visible_bias)

    def field(self, whole: Float[Array, " hidden"]) -> Float[Array, " hidden"]:
        """At the hidden units, if it is `whole` at the end."""
        return self._between(self.hidden_start, whole)

    def _between(self, first, last):
        return (1 - self.share) * first + self.share * last


def grown_energy(machine: Grown, x: Float[Array, " visible"]) -> Scalar:
    """The energy of one visible state on the way of `Growth`."""
    _check(machine.params, x)
    return _energy(machine, _state(machine.params, x))


class BlockState(NamedTuple):
    """Where `BlockGibbs` is."""

    x: Float[Array, " visible"]
    """The visible units."""
    field: Float[Array, " hidden"]
    """W'x + c: the fields that they make at the hidden ones of the whole machine."""


@recipe
class BlockGibbs:
    """One step redraws all hidden units given the visible ones, and then those.

    That is reversible at weight 1 of the energy. At weight w, as on the rungs of
    `Tempered`, the marginal is no machine's, and the outcome x' is accepted with
    probability min(1, exp((1 - w) (E(x') - E(x)))), which is then the right ratio.
    """

    def prepare(self, potential: Potential, x: State) -> State:
        return binary(x)

    def init(self, key: PRNGKeyArray, potential: Potential, x: State) -> BlockState:
        return _state(_machine(potential).params, x)

    def step(
        self, key: PRNGKeyArray, potential: Potential, state: BlockState
    ) -> tuple[BlockState, Info]:
        machine = _machine(potential)
        weight = machine.params.weight
        kind = weight.dtype
        chances = jax.nn.sigmoid(machine.field(state.field))
        levels = random.uniform(key, chances.shape, kind, stream=1)
        hidden = (levels < chances).astype(kind)
        chances = jax.nn.sigmoid(
            machine.share * (weight @ hidden) + machine.visible_bias
        )
        levels = random.uniform(key, chances.shape, kind, stream=2)
        there = _state(machine.params, (levels < chances).astype(state.x.dtype))

        def judged():
            rise = _energy(machine, there) - _energy(machine, state)
            log_chance = jnp.log(random.uniform(key, (), kind, stream=3))
            return log_chance <= (1 - potential.weights[0]) * rise

        whole = potential.weights[0] == 1
        accept = jax.lax.cond(whole, lambda: jnp.ones((), bool), judged)
        state = jax.tree.map(lambda new, old: jnp.where(accept, new, old), there, state)
        return state, Info(accept.astype(kind))


@recipe
class Growth:
    """The way of annealing from independent units to a machine.

    Biases move and weights grow from 0, with a and d at the start:

        E_s(x) = -((1 - s) a + s b)'x - sum_h softplus((1 - s) d_h + s f_h).

    It is `Straight` from a machine without weights, whose fields then last: a step of
    `BlockGibbs` and its weight cost two matrix products in place of five. The base
    should be `Bernoulli(size, visible)`.

    Args:
        visible: a, the log odds of the visible units, as the data have them.
        hidden: d, those of the hidden ones, as the machine has them over the data: then
            both layers stay about as active all the way. None for 0.
    """

    visible: Float[Array, " visible"]
    hidden: Float[Array, " hidden"] | None = None
    lasting: ClassVar[bool] = True

    def model(
        self, energy: Energy, params: Params, base: Base, beta: Scalar
    ) -> Potential:
        _check_energy("Growth", energy)
        return potential(grown_energy, self._machine(params, beta))

    def first(self, energy: Energy, params: Params, base: Base, x: State) -> Scalar:
        free = jnp.sum(jax.nn.softplus(self._hidden(params)))
        return base.energy(x) + self.visible @ x + free

    def fall(
        self,
        energy: Energy,
        params: Params,
        base: Base,
        state: Any,
        here: Scalar,
        there: Scalar,
    ) -> Scalar:
        whole = getattr(state, "field", None)
        whole = _state(params, state.x).field if whole is None else whole
        tilt = (params.visible_bias - self.visible) @ state.x
        now = self._machine(params, here).field(whole)
        rise = (there - here) * (whole - self._hidden(params))
        return (there - here) * tilt + jnp.sum(_softplus_rise(now, rise))

    def _hidden(self, params):
        return (
            jnp.zeros_like(params.hidden_bias) if self.hidden is None else self.hidden
        )

    def _machine(self, params, share):
        return Grown(params, self.visible, self._hidden(params), share)


def _softplus_rise(value, rise):
    """softplus(value + rise) - softplus(value), where small to its last digits."""
    small = jnp.abs(rise) <= 1
    change = jnp.expm1(jnp.where(small, rise, 0))
    near = jnp.log1p(jax.nn.sigmoid(value) * change)
    # Schedules worth the name hardly ever need the other form.
    far = together(_softplus_difference, ~small.all(), value, rise)
    return jnp.where(small, near, far)


def _softplus_difference(value, rise):
    return jax.nn.softplus(value + rise) - jax.nn.softplus(value)


def _state(params, x):
    return BlockState(x, x @ params.weight + params.hidden_bias)


def _machine(potential):
    if potential.energies == (grown_energy,):
        return potential.args[0]
    _check_energy("BlockGibbs", *potential.energies)
    (params,) = potential.args
    share = jnp.ones((), params.weight.dtype)
    return Grown(params, params.visible_bias, params.hidden_bias, share)


def _check_energy(name, *energies):
    if energies != (energy,):
        raise ValueError(f"rbm.{name} is for rbm.energy alone")


def _energy(machine, state):
    softplus = jax.nn.softplus(machine.field(state.field))
    return -(machine.visible_bias @ state.x) - jnp.sum(softplus)


def log_z(params: Params) -> Scalar:
    """Log of the sum over all states, by enumerating the smaller layer (up to 22)."""
    visible, hidden = params.weight.shape
    params = params if visible <= hidden else transpose(params)
    return enumeration.log_z(energy, params, min(visible, hidden))


def _check(params, x):
    if x.shape != params.visible_bias.shape:
        raise ValueError(
            f"x must have the {len(params.visible_bias)} visible units of params, "
            f"got shape {x.shape}"
        )
