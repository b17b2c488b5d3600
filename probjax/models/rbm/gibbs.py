"""Block Gibbs sampling of a restricted Boltzmann machine, and an annealing path.

Given one layer, the units of the other are independent. So a step redraws whole layers:

    h ~ Bernoulli(sigmoid(W'x + c)),    x ~ Bernoulli(sigmoid(W h + b)).

`Growth` is an annealing path along which the weights grow from 0. The sampler's state
caches W'x + c, on which both the next step and the increments of `Growth` depend.
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
from probjax.models.rbm.layers import accept_block, check_visible, draw_bits
from probjax.models.rbm.machine import Params, energy, hidden_means
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
    """A machine on the path of `Growth`.

    >>> params = Params(jnp.ones((2, 1)), jnp.array([2.0, 4.0]), jnp.zeros(1))
    >>> machine = Grown(params, jnp.zeros(2), jnp.zeros(1), jnp.array(0.5))
    >>> machine.visible_bias.tolist(), machine.field(jnp.array([3.0])).tolist()
    ([1.0, 2.0], [1.5])
    """

    params: Params
    """Parameters at the end of the path."""
    visible_start: Float[Array, " visible"]
    """Visible biases at the start of the path, where the weights are 0."""
    hidden_start: Float[Array, " hidden"]
    """Hidden biases at the start of the path."""
    share: Scalar
    """Position s on the path, from 0 to 1."""

    @property
    def visible_bias(self) -> Float[Array, " visible"]:
        """Visible biases at this position."""
        return self._between(self.visible_start, self.params.visible_bias)

    def field(self, end_field: Float[Array, " hidden"]) -> Float[Array, " hidden"]:
        """Field W'x + c at this position, given the field at the end of the path."""
        return self._between(self.hidden_start, end_field)

    def _between(self, start, end):
        return (1 - self.share) * start + self.share * end


def grown_energy(machine: Grown, x: Float[Array, " visible"]) -> Scalar:
    """Energy of one visible state for a machine on the path of `Growth`.

    >>> params = Params(jnp.ones((2, 1)), jnp.array([2.0, 4.0]), jnp.zeros(1))
    >>> machine = Grown(params, jnp.zeros(2), jnp.zeros(1), jnp.array(1.0))
    >>> x = jnp.array([0.0, 1.0])
    >>> bool(jnp.allclose(grown_energy(machine, x), energy(params, x)))
    True
    """
    check_visible(machine.params, x)
    return _energy(machine, _state(machine.params, x))


class BlockState(NamedTuple):
    """State of `BlockGibbs`.

    >>> params = Params(jnp.array([[1.0], [2.0]]), jnp.zeros(2), jnp.zeros(1))
    >>> key, x = jax.random.key(0), jnp.array([0.0, 1.0])
    >>> BlockGibbs().init(key, potential(energy, params), x).field.tolist()
    [2.0]
    """

    x: Float[Array, " visible"]
    """Current values of the visible units."""
    field: Float[Array, " hidden"]
    """Cached W'x + c. On the path of `Growth`, this is the field at the path's end."""


@recipe
class BlockGibbs(Sampler):
    """Sampler that redraws all hidden units, and then all visible units.

    At weight 1 of the energy each step is accepted. At another weight w, such as at the
    higher temperatures of `Tempered`, the distribution is not that of a machine. Then
    the new x' is accepted with probability min(1, exp((1 - w) (E(x') - E(x)))), which
    makes the step reversible.

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
        dtype = weight.dtype
        chances = jax.nn.sigmoid(machine.field(state.field))
        hidden = draw_bits(key, chances, dtype, stream=1)
        chances = jax.nn.sigmoid(
            machine.share * (weight @ hidden) + machine.visible_bias
        )
        x = draw_bits(key, chances, dtype, stream=2).astype(state.x.dtype)
        proposed = _state(machine.params, x)
        return accept_block(
            lambda: random.uniform(key, (), dtype, stream=3),
            potential.weights[0],
            lambda: _energy(machine, proposed) - _energy(machine, state),
            proposed,
            state,
            dtype,
        )


@recipe
class Growth(Path):
    """Annealing path from independent units to a machine, along which weights grow.

    The visible biases move from a to b, the hidden ones from d to c, and the weights
    from 0 to W. With f = W'x + c and s from 0 to 1,

        E_s(x) = -((1 - s) a + s b)'x - sum_h softplus((1 - s) d_h + s f_h).

    This is the path `Straight` from a machine without weights. The energy depends on W
    only through f, which `BlockGibbs` caches. So a step and its log weight cost two
    matrix products, where `Straight` costs five. The base should be
    `Bernoulli(size, visible)`; `start_growth` returns both for given data.

    Args:
        visible: a, the log odds of the visible units at the start, such as those of the
            data.
        hidden: d, the log odds of the hidden units at the start; None for 0. With the
            log odds of the machine's hidden units over the data, both layers are about
            equally active along the whole path.

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
        end_field = state.field if cached else _state(params, state.x).field
        visible_part = (params.visible_bias - self.visible) @ state.x
        field = self._machine(params, here).field(end_field)
        rise = (there - here) * (end_field - self._hidden(params))
        return (there - here) * visible_part + jnp.sum(_softplus_rise(field, rise))

    def _hidden(self, params):
        return (
            jnp.zeros_like(params.hidden_bias) if self.hidden is None else self.hidden
        )

    def _machine(self, params, share):
        return Grown(params, self.visible, self._hidden(params), share)


def start_growth(params: Params, data: ArrayLike | Data) -> tuple[Bernoulli, Growth]:
    """Return a base and a path on which both layers are as active as on `data`.

    The base and the start of the path have the log odds of the bits in the data. For
    the hidden units, the path starts at the log odds of their mean over the data. One
    row of halves is added to both means, so that all log odds are finite.

    Args:
        data: rows of bits from which the machine has learned, or similar ones.

    >>> from probjax import ais, exact
    >>> from probjax.models import rbm
    >>> params = rbm.init(jax.random.key(0), 6, 3, scale=1.0)
    >>> base, path = start_growth(params, exact.states(6))
    >>> found = ais(jax.random.key(1), rbm.energy, params, base, path=path,
    ...             sampler=BlockGibbs(), num_particles=500, num_steps=100)
    >>> bool(abs(found.log_z - rbm.log_z(params)) < 5 * found.stderr)
    True
    """
    data = as_data(data)
    base = fit_bernoulli(data)
    rows = data._replace(x=binary(data.x))
    means = jax.vmap(hidden_means, (None, 0))(params, rows.x)
    mean = mean_of_observed(Data(means, rows.weights))
    # Finite also for units that are always on or always off.
    odds = jax.scipy.special.logit(add_pseudo_row(mean, 0.5, data))
    return base, Growth(jnp.asarray(base.log_odds), odds)


def _softplus_rise(value, rise):
    """softplus(value + rise) - softplus(value), accurate for small rises, too."""
    small = jnp.abs(rise) <= 1
    change = jnp.expm1(jnp.where(small, rise, 0))
    near = jnp.log1p(jax.nn.sigmoid(value) * change)
    # With a reasonable schedule, rises above 1 are rare.
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
            f"rbm.{name} requires rbm.energy and no other term; to anneal a machine by "
            "block Gibbs sampling, try base, path = rbm.start_growth(params, data)"
        )


def _energy(machine, state):
    softplus = jax.nn.softplus(machine.field(state.field))
    return -(machine.visible_bias @ state.x) - jnp.sum(softplus)
