"""Block Gibbs sampling of a restricted Boltzmann machine, and its way of annealing.

Given one layer the units of the other are independent, so a step redraws whole layers:

    h ~ sigmoid(W'x + c),    x ~ sigmoid(W h + b).

`Growth` is the path along which the weights grow from nothing; both keep the fields
W'x + c, which are what a step costs.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from probjax import random
from probjax.annealing.paths import Ends, Path
from probjax.bases.discrete import Bernoulli
from probjax.bases.fits import add_pseudo_row, fit_bernoulli
from probjax.data.rows import as_data, mean_of_observed
from probjax.interfaces import Sampler
from probjax.lanes import if_any
from probjax.models.rbm.machine import Params, check_visible, energy, hidden_means
from probjax.potential import Potential, potential
from probjax.recipe import recipe
from probjax.states import binary
from probjax.types import (
    Array,
    ArrayLike,
    Data,
    Domain,
    Float,
    Info,
    PRNGKeyArray,
    Scalar,
    State,
)


class Grown(NamedTuple):
    """A machine on the way of `Growth`.

    >>> params = Params(jnp.ones((2, 1)), jnp.array([2.0, 4.0]), jnp.zeros(1))
    >>> machine = Grown(params, jnp.zeros(2), jnp.zeros(1), jnp.array(0.5))
    >>> machine.visible_bias.tolist(), machine.field(jnp.array([3.0])).tolist()
    ([1.0, 2.0], [1.5])
    """

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
    """The energy of one visible state on the way of `Growth`.

    >>> params = Params(jnp.ones((2, 1)), jnp.array([2.0, 4.0]), jnp.zeros(1))
    >>> machine = Grown(params, jnp.zeros(2), jnp.zeros(1), jnp.array(1.0))
    >>> x = jnp.array([0.0, 1.0])
    >>> bool(jnp.allclose(grown_energy(machine, x), energy(params, x)))
    True
    """
    check_visible(machine.params, x)
    return _energy(machine, _state(machine.params, x))


class BlockState(NamedTuple):
    """Where `BlockGibbs` is.

    >>> params = Params(jnp.array([[1.0], [2.0]]), jnp.zeros(2), jnp.zeros(1))
    >>> key, x = jax.random.key(0), jnp.array([0.0, 1.0])
    >>> BlockGibbs().init(key, potential(energy, params), x).field.tolist()
    [2.0]
    """

    x: Float[Array, " visible"]
    """The visible units."""
    field: Float[Array, " hidden"]
    """W'x + c: the fields that they make at the hidden ones of the whole machine."""


@recipe
class BlockGibbs(Sampler):
    """One step redraws all hidden units given the visible ones, and then those.

    That is reversible at weight 1 of the energy. At weight w, as on the rungs of
    `Tempered`, the marginal is no machine's, and the outcome x' is accepted with
    probability min(1, exp((1 - w) (E(x') - E(x)))), which is then the right ratio.

    >>> from probjax import sample
    >>> params = Params(jnp.zeros((2, 1)), jnp.array([20.0, -20.0]), jnp.zeros(1))
    >>> draws = sample(jax.random.key(0), energy, params, jnp.zeros((3, 2)),
    ...                sampler=BlockGibbs(), num_draws=4)
    >>> draws.x.shape, draws.x.mean((0, 1)).tolist()
    ((3, 4, 2), [1.0, 0.0])
    """

    @property
    def domain(self) -> Domain:
        return "bits"

    def num_letters(self) -> int:
        return 2

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
class Growth(Path):
    """The way of annealing from independent units to a machine.

    Biases move and weights grow from 0, with a and d at the start:

        E_s(x) = -((1 - s) a + s b)'x - sum_h softplus((1 - s) d_h + s f_h).

    It is `Straight` from a machine without weights, whose fields then last: a step of
    `BlockGibbs` and its weight cost two matrix products in place of five. The base
    should be `Bernoulli(size, visible)`; `start_growth` has both from data.

    Args:
        visible: a, the log odds of the visible units, as the data have them.
        hidden: d, those of the hidden ones, as the machine has them over the data: then
            both layers stay about as active all the way. None for 0.

    >>> params = Params(jnp.ones((2, 1)), jnp.array([2.0, 4.0]), jnp.zeros(1))
    >>> path, x = Growth(visible=jnp.zeros(2)), jnp.array([0.0, 1.0])
    >>> end = path.potential(Ends(energy, params, Bernoulli(2)), jnp.array(1.0))
    >>> bool(jnp.allclose(end(x), energy(params, x)))
    True
    """

    visible: Float[Array, " visible"]
    hidden: Float[Array, " hidden"] | None = None

    @property
    def keeps_terms(self) -> bool:
        return True

    def potential(self, ends: Ends, beta: Scalar) -> Potential:
        _check_energy("Growth", ends.energy)
        return potential(grown_energy, self._machine(ends.params, beta))

    def offset(self, ends: Ends, x: State) -> Scalar:
        free = jnp.sum(jax.nn.softplus(self._hidden(ends.params)))
        return ends.base.energy(x) + self.visible @ x + free

    def increment(
        self, ends: Ends, sampler: Sampler, state: Any, here: Scalar, there: Scalar
    ) -> Scalar:
        params = ends.params
        cached = isinstance(state, BlockState)
        whole = state.field if cached else _state(params, state.x).field
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


def start_growth(params: Params, data: ArrayLike | Data) -> tuple[Bernoulli, Growth]:
    """The base and the path of annealing on which both layers are as active as data.

    >>> from probjax import ais, exact
    >>> from probjax.models import rbm
    >>> params = rbm.init(jax.random.key(0), 6, 3, scale=1.0)
    >>> base, path = start_growth(params, exact.states(6))
    >>> found = ais(jax.random.key(1), rbm.energy, params, base, path=path,
    ...             sampler=BlockGibbs(), num_particles=500, num_steps=100)
    >>> bool(abs(found.log_z - rbm.log_z(params)) < 5 * found.stderr)
    True

    Args:
        data: rows of bits that the machine has learned, or others like them.
    """
    data = as_data(data)
    base = fit_bernoulli(data)
    rows = data._replace(x=binary(data.x))
    active = jax.vmap(hidden_means, (None, 0))(params, rows.x)
    mean = mean_of_observed(Data(active, rows.weights))
    # Units that are always on, or off, keep finite odds.
    odds = jax.scipy.special.logit(add_pseudo_row(mean, 0.5, data))
    return base, Growth(jnp.asarray(base.log_odds), odds)


def _softplus_rise(value, rise):
    """softplus(value + rise) - softplus(value), where small to its last digits."""
    small = jnp.abs(rise) <= 1
    change = jnp.expm1(jnp.where(small, rise, 0))
    near = jnp.log1p(jax.nn.sigmoid(value) * change)
    # Schedules worth the name hardly ever need the other form.
    far = if_any(_softplus_difference, ~small.all(), value, rise)
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
        raise ValueError(
            f"rbm.{name} is for rbm.energy alone; to anneal a machine by block Gibbs "
            "sampling, base, path = rbm.start_growth(params, data)"
        )


def _energy(machine, state):
    softplus = jax.nn.softplus(machine.field(state.field))
    return -(machine.visible_bias @ state.x) - jnp.sum(softplus)
