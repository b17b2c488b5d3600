"""Deep belief networks: stacks of restricted Boltzmann machines.

The hidden layer of each machine is the visible layer of the next one. The network has
the joint distribution of the top machine, and of each machine below only the
conditional distribution of its visible units:

    p(x, h_1, ..., h_(n-1)) = p_1(x | h_1) p_2(h_1 | h_2) ... p_n(h_(n-1)).

Its parameters are a tuple of `rbm.Params`, the bottom machine first. `fit_layers`
learns one machine after the other, each from hidden units of the machine below, drawn
given the data. Let Q(h | x) be the product of the machines' conditionals of hidden
units, from the bottom up, and E' the energy of a machine with exchanged layers. Then

    log p(x) >= mean over Q(h | x) of -F(x, h) - log Z_n,
    F(x, h) = E_1(x) + sum_l (E_(l+1)(h_l) - E'_l(h_l)),

because

    log p_l(h_(l-1) | h_l) - log Q(h_l | h_(l-1)) = E'_l(h_l) - E_l(h_(l-1)).

If each machine is the one below with exchanged layers, then F is E_1(x) and the bound
is log p_1(x). So learning that starts a new layer there can only improve the bound.

Reference: thesis, "Deep Belief Network"; Hinton, Osindero and Teh, Neural Computation
18, 1527 (2006); Salakhutdinov and Murray, ICML 2008.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.nn import log_sigmoid, logsumexp

from probjax import random
from probjax.annealing import Annealed, Bracket, Estimate, log_likelihood
from probjax.annealing.likelihood import normalised_weights, stderr_over_rows
from probjax.checks import check_count
from probjax.data.rows import as_data, num_rows, refuse_mask
from probjax.exact import enumeration
from probjax.models import rbm
from probjax.models.rbm.layers import draw_bits
from probjax.runs.driver import Watch
from probjax.samplers.draws import Draws
from probjax.samplers.sample import sample as sample_chains
from probjax.states import binary
from probjax.types import Array, ArrayLike, Data, Float, PRNGKeyArray, Scalar

Layers = Sequence[rbm.Params]
MOST_PAIRS = 2**22
"""Most pairs of states of two layers that `log_prob` enumerates."""


class Generated(NamedTuple):
    """Result of `sample`.

    >>> layers = [rbm.init(jax.random.key(0), 3, 2), rbm.init(jax.random.key(1), 2, 2)]
    >>> found = sample(jax.random.key(2), layers, jnp.zeros((5, 3)), num_draws=2)
    >>> found.x.shape, found.means.shape, found.top.x.shape
    ((5, 2, 3), (5, 2, 3), (5, 2, 2))
    """

    x: Float[Array, "chain draw visible"]
    """Draws of the visible units of the network."""
    means: Float[Array, "chain draw visible"]
    """Probabilities from which the bits of `x` were drawn, for smoother images."""
    top: Draws
    """Draws of the top machine from which `x` was generated."""


def fit_layers(
    key: PRNGKeyArray,
    learn: Callable[[PRNGKeyArray, tuple[rbm.Params, ...], Data], rbm.Params],
    data: ArrayLike | Data,
    *,
    num_layers: int,
    layers: Layers = (),
) -> tuple[rbm.Params, ...]:
    """Learn a stack of machines, each from the hidden units of the machine below.

    For each layer, the hidden units of each row are drawn once.

    Args:
        learn: function `learn(key, below, data)` that returns the next machine, given
            the machines below it and the rows from which it learns, which have the
            weights of the original data.
        data: rows of bits.
        num_layers: total number of machines in the stack.
        layers: machines at the bottom that are already learned.

    >>> from probjax import ContrastiveDivergence, exact, fit
    >>> import optax
    >>> objective = ContrastiveDivergence(rbm.energy, sampler=rbm.BlockGibbs())
    >>> sizes, adam = (5, 5), optax.adam(0.01)
    >>> def learn(key, below, data):
    ...     start = rbm.init(key, data.x.shape[1], sizes[len(below)], data=data)
    ...     return fit(key, objective, start, data, optimizer=adam, num_rounds=50,
    ...                steps_per_round=1).params
    >>> layers = fit_layers(jax.random.key(0), learn, exact.states(5), num_layers=2)
    >>> [layer.weight.shape for layer in layers]
    [(5, 5), (5, 5)]
    """
    check_count("num_layers", num_layers, least=max(1, len(layers)))
    data, stack = _checked_rows(layers, data), tuple(layers)
    for number in range(num_layers):
        learn_key, up_key = jax.random.split(jax.random.fold_in(key, number))
        if number == len(stack):
            stack = (*stack, learn(learn_key, stack, data))
            _check_stack(stack)
        if number + 1 < num_layers:
            data = data._replace(x=_sample_hidden(up_key, stack[number], data.x))
    return stack


def up_means(
    layers: Layers, x: Float[Array, " visible"]
) -> tuple[Float[Array, " hidden"], ...]:
    """Means of all hidden layers, the bottom first, each given the means below it.

    >>> key = jax.random.key(0)
    >>> layers = [rbm.init(key, *size, scale=0.0) for size in [(3, 2), (2, 1)]]
    >>> [mean.tolist() for mean in up_means(layers, jnp.ones(3))]
    [[0.5, 0.5], [0.5]]
    """
    _check_stack(layers)
    found = [x]
    for layer in layers:
        found.append(rbm.hidden_means(layer, found[-1]))
    return tuple(found[1:])


def up_samples(
    key: PRNGKeyArray, layers: Layers, x: Float[Array, " visible"]
) -> tuple[Float[Array, " hidden"], ...]:
    """Draw all hidden layers from Q, the bottom first, each given the layer below it.

    >>> layers = [rbm.init(jax.random.key(0), 3, 2), rbm.init(jax.random.key(1), 2, 1)]
    >>> [bits.shape for bits in up_samples(jax.random.key(2), layers, jnp.ones(3))]
    [(2,), (1,)]
    """
    _check_stack(layers)
    found = [x]
    for number, layer in enumerate(layers):
        layer_key = random.fold_in(key, number)
        found.append(rbm.sample_hidden(layer_key, layer, found[-1]))
    return tuple(found[1:])


def down_samples(
    key: PRNGKeyArray, layers: Layers, hidden: Float[Array, " hidden"]
) -> tuple[Float[Array, " visible"], Float[Array, " visible"]]:
    """Draw visible units from the top of `layers` down; return them and their means.

    To draw from a network, pass `layers[:-1]` and a visible state of the top machine.
    Without layers, both results are `hidden` itself.

    Args:
        hidden: hidden units of the last of `layers`.

    >>> layers = [rbm.init(jax.random.key(0), 3, 2, scale=0.0)]
    >>> x, means = down_samples(jax.random.key(1), layers, jnp.ones(2))
    >>> x.shape, means.tolist()
    ((3,), [0.5, 0.5, 0.5])
    """
    _check_stack(layers)
    x = means = hidden
    for number, layer in reversed(list(enumerate(layers))):
        means = rbm.visible_means(layer, x)
        x = draw_bits(random.fold_in(key, number), means)
    return x, means


def sample(
    key: PRNGKeyArray,
    layers: Layers,
    x: Float[ArrayLike, "chain visible"],
    *,
    num_draws: int,
    num_warmup: int = 0,
    thin: int = 1,
    watch: Watch | None = None,
) -> Generated:
    """Draw from the network: block Gibbs sampling of the top machine, then downwards.

    For each draw of the top machine's visible units, its hidden units are drawn, and
    then all layers from there down. So a single machine is a network, too.

    Args:
        x: visible states with a leading axis of chains, such as rows of data. Hidden
            layers are drawn upwards from them, up to the visible units of the top
            machine, at which its chains start.
        num_draws: number of states to store from each chain of the top machine.
        num_warmup: number of steps before the first draw.
        thin: number of steps from one draw to the next.
        watch: callback and checkpoint.

    >>> layers = [rbm.init(jax.random.key(0), 3, 2), rbm.init(jax.random.key(1), 2, 2)]
    >>> start = jnp.zeros((5, 3))
    >>> sample(jax.random.key(2), layers, start, num_draws=2).x.shape
    (5, 2, 3)
    """
    rows = _checked_rows(layers, x).x
    up_key, top_key, down_key = jax.random.split(key, 3)
    for number, layer in enumerate(layers[:-1]):
        rows = _sample_hidden(jax.random.fold_in(up_key, number), layer, rows)
    draws = sample_chains(
        top_key,
        rbm.energy,
        layers[-1],
        rows,
        sampler=rbm.BlockGibbs(),
        num_draws=num_draws,
        num_warmup=num_warmup,
        thin=thin,
        watch=watch,
    )
    bits, means = _sample_down(down_key, tuple(layers), draws.x)
    return Generated(bits, means, draws)


def bound_energy(layers: Layers, states: Sequence[Float[Array, " unit"]]) -> Scalar:
    """F(x, h), whose mean over Q is an upper bound on -log p(x) - log Z_n.

    Moreover, log p(x) = log(mean over Q of exp(-F(x, h))) - log Z_n exactly.

    Args:
        states: x and all hidden layers except the last: `(x, *up_samples(...)[:-1])`.

    >>> machine, x = rbm.init(jax.random.key(0), 3, 2), jnp.ones(3)
    >>> layers = [machine, rbm.transpose(machine)]
    >>> found = bound_energy(layers, (x, jnp.array([0.0, 1.0])))
    >>> bool(jnp.allclose(found, rbm.energy(machine, x)))
    True
    """
    if len(states) != len(layers):
        raise ValueError(
            f"states must be x and {len(layers) - 1} hidden layers, got {len(states)} "
            "arrays"
        )
    total = rbm.energy(layers[0], states[0])
    for below, above, hidden in zip(layers[:-1], layers[1:], states[1:], strict=True):
        total += rbm.energy(above, hidden) - rbm.energy(rbm.transpose(below), hidden)
    return total


def log_likelihood_bound(
    key: PRNGKeyArray,
    layers: Layers,
    data: ArrayLike | Data,
    annealed: Annealed | Bracket,
    *,
    num_draws: int = 10,
) -> Estimate:
    """Lower bound on the mean of log p(x) over rows.

    `stderr` combines the errors of hidden draws and of log Z; `upper` is NaN. If log Z
    is too low, the bound is too high: pass a result of `sandwich`, which bounds log Z.

    Args:
        annealed: result of `ais` or `sandwich` for the top machine, `layers[-1]`.
        num_draws: number of draws of the hidden layers for each row, at least 2.

    >>> from probjax import ais
    >>> machine, data = rbm.init(jax.random.key(0), 3, 2, scale=1.0), jnp.eye(3)
    >>> layers = [machine, rbm.transpose(machine)]  # so that the bound is exact
    >>> base, path = rbm.start_growth(layers[-1], jnp.zeros((1, 2)))
    >>> annealed = ais(jax.random.key(1), rbm.energy, layers[-1], base, path=path,
    ...                sampler=rbm.BlockGibbs(), num_particles=100, num_steps=50)
    >>> found = log_likelihood_bound(jax.random.key(2), layers, data, annealed)
    >>> energies = jax.vmap(rbm.energy, (None, 0))(machine, data)
    >>> bool(abs(found.value + energies.mean() + rbm.log_z(machine)) < 5 * found.stderr)
    True
    """
    check_count("num_draws", num_draws, least=2)
    data = _checked_rows(layers, data)
    first = log_likelihood(rbm.energy, layers[0], data, annealed)
    gains, errors = _gains(key, tuple(layers), data.x, num_draws)
    shares = normalised_weights(data.weights, num_rows(data))
    gain, error = jnp.sum(shares * gains), jnp.sqrt(jnp.sum((shares * errors) ** 2))
    per_row = first.per_row + gains
    return first._replace(
        value=first.value + gain,
        stderr=jnp.hypot(first.stderr, error),
        lower=first.lower + gain - 2 * error,
        upper=float("nan"),
        per_row=per_row,
        row_stderr=stderr_over_rows(per_row, data.weights),
    )


def log_prob(layers: Layers, x: Float[Array, " visible"]) -> Scalar:
    """Exact log p(x) of one state, by enumeration of all hidden layers except the last.

    Two consecutive ones of these layers must have at most 22 units together.

    >>> layers = [rbm.init(jax.random.key(0), 3, 2), rbm.init(jax.random.key(1), 2, 2)]
    >>> log_p = jax.vmap(log_prob, (None, 0))(layers, enumeration.states(3))
    >>> round(float(jnp.exp(log_p).sum()), 4)
    1.0
    """
    _check_stack(layers)
    top = layers[-1]
    if len(layers) == 1:
        return -rbm.energy(top, x) - rbm.log_z(top)
    # Table of log p for every state of a layer, from the top layer down.
    table = enumeration.log_probs(rbm.energy, top, len(top.visible_bias))
    for layer in reversed(layers[1:-1]):
        visible, hidden = layer.weight.shape
        if 2 ** (visible + hidden) > MOST_PAIRS:
            raise ValueError(
                "consecutive hidden layers must have at most 22 units together, got "
                f"{visible} and {hidden}; try log_likelihood_bound"
            )
        below, above = enumeration.states(visible), enumeration.states(hidden)
        given = jax.vmap(partial(_log_conditional, layer), (0, None))
        pairs = jax.vmap(given, (None, 0))(below, above)
        table = logsumexp(pairs + table[:, None], axis=0)
    above = enumeration.states(len(layers[0].hidden_bias))
    given = jax.vmap(partial(_log_conditional, layers[0]), (None, 0))(x, above)
    return logsumexp(given + table)


def _log_conditional(layer, x, hidden):
    """Log p(x | h) for one machine."""
    return jnp.sum(log_sigmoid((2 * x - 1) * rbm.visible_log_odds(layer, hidden)))


@jax.jit
def _sample_hidden(key, layer, x):
    keys = jax.random.split(key, len(x))
    return jax.vmap(rbm.sample_hidden, (0, None, 0))(keys, layer, x)


@jax.jit
def _sample_down(key, layers, x):
    """Draw visible units of the network, given those of the top machine.

    The hidden units of the top machine are drawn first.

    Args:
        x: visible units of the top machine `(chain, draw, unit)`.
    """

    def one(key, x):
        up_key, down_key = random.split(key)
        hidden = rbm.sample_hidden(up_key, layers[-1], x)
        return down_samples(down_key, layers, hidden)

    return jax.vmap(jax.vmap(one))(jax.random.split(key, x.shape[:2]), x)


@partial(jax.jit, static_argnums=3)
def _gains(key, layers, x, num_draws):
    """Mean over draws of E_1(x) - F(x, h) for each row, and its standard error."""

    def one_draw(key, x):
        hidden = up_samples(key, layers[:-1], x)
        return rbm.energy(layers[0], x) - bound_energy(layers, (x, *hidden))

    def add(carry, number):
        keys = jax.random.split(jax.random.fold_in(key, number), len(x))
        gain = jax.vmap(one_draw)(keys, x)
        # Welford's update of the mean and of the sum of squared deviations.
        mean, squares = carry
        change = gain - mean
        mean = mean + change / (number + 1)
        return (mean, squares + change * (gain - mean)), None

    zeros = jnp.zeros(len(x), layers[0].weight.dtype)
    numbers = jnp.arange(num_draws)
    (mean, squares), _ = jax.lax.scan(add, (zeros, zeros), numbers)
    return mean, jnp.sqrt(squares / (num_draws * (num_draws - 1)))


def _checked_rows(layers, data):
    """Return `data` as complete rows of bits; raise if they do not fit `layers`."""
    data = as_data(data)
    refuse_mask(data, "hidden layers are drawn given complete rows")
    shape = jnp.shape(data.x)
    if len(shape) != 2:
        raise ValueError(f"data must be rows of bits (row, visible), got shape {shape}")
    _check_stack(layers)
    if layers and len(layers[0].visible_bias) != shape[1]:
        raise ValueError(
            f"the first of layers must have the {shape[1]} units of a row, got "
            f"{len(layers[0].visible_bias)} visible units"
        )
    return data._replace(x=binary(data.x))


def _check_stack(layers):
    """Raise if the sizes of consecutive machines do not fit."""
    for number, (below, above) in enumerate(zip(layers[:-1], layers[1:], strict=True)):
        if len(below.hidden_bias) != len(above.visible_bias):
            raise ValueError(
                "each of layers must have as many visible units as the one below has "
                f"hidden units, got {len(below.hidden_bias)} hidden units of "
                f"layers[{number}] and {len(above.visible_bias)} visible units of "
                f"layers[{number + 1}]"
            )
