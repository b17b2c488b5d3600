"""Whether chains have mixed, and how many independent draws theirs are worth.

A chain of n draws, m chains: with W the mean of the chains' variances, c_t the mean of
their autocovariances at lag t, and V = W (n - 1) / n + (variance of the chains' means),

    rho_t = 1 - (W - c_t) / V,      tau = 1 + 2 sum_t rho_t,
    ESS = m n / tau,                R-hat = sqrt(V / W).

The sum runs while rho_2k + rho_2k+1 > 0, and these pairs are not allowed to rise again.
Chains are halved first, so that one which drifts disagrees with itself. For the bulk,
draws are replaced by the normal quantiles of their ranks, so that nothing depends on
the scale or on moments that may not exist. Trouble in the chains' spread rather than
in their places is seen after folding, x -> |x - median|.

Draws are `(chain, draw, ...)`, or trees of such, and what is found of each coordinate
has the form of one state. A coordinate with a NaN has NaN; one that never moves has all
its draws effective, and no R-hat.

Reference: Vehtari, Gelman, Simpson, Carpenter and Burkner, Bayesian Analysis 16, 667
(2021); Geyer, Statistical Science 7, 473 (1992), for the pairs.
"""

from collections.abc import Callable
from functools import partial
from math import log10

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri

from probjax.trees import floating
from probjax.types import Array, Float, PyTree

AT_ONCE = 2**18


def autocovariance(draws: PyTree) -> PyTree:
    """sum_i (x_i - mean)(x_i+t - mean) / n of each chain, leaves `(chain, lag, ...)`.

    By FFT, for all lags t below the number n of draws.

    >>> import numpy as np
    >>> np.asarray(autocovariance(np.array([[0.0, 0.0, 3.0]])), float).round(2)
    array([[ 2.  , -0.33, -0.67]])
    """

    def front(leaf):
        return jnp.moveaxis(leaf, (-2, -1), (0, 1))

    return jax.tree.map(front, _each(_autocovariance, draws, least=1))


def autocorrelation_time(draws: PyTree) -> PyTree:
    """tau: how many draws are worth one that is independent, as to the mean.

    Of long chains: what V misses by is in every rho_t, and adds up over the lags. With
    1,000 chains of 10 tau it reads half too much, of 40 tau a fifth.

    >>> steps = jax.random.normal(jax.random.key(0), (4, 200))
    >>> bool(autocorrelation_time(jnp.cumsum(steps, 1)) > autocorrelation_time(steps))
    True
    """
    return _each(_time_of_mean, draws)


def ess(draws: PyTree) -> PyTree:
    """Effective draws for the bulk of the distribution: of normal scores of ranks.

    >>> draws = jax.random.normal(jax.random.key(0), (4, 200))
    >>> bool(ess(draws) > 400), bool(ess(jnp.cumsum(draws, 1)) < 100)
    (True, True)
    """
    return _each(_ess_bulk, draws)


def ess_tail(draws: PyTree) -> PyTree:
    """Effective draws for the tails: the fewer of those for two of its quantiles.

    They are those of x <= q, q being the quantile of 5 % or of 95 % of all draws.

    >>> draws = jax.random.normal(jax.random.key(0), (4, 200))
    >>> bool(ess_tail(draws) > 300)
    True
    """
    return _each(_ess_tail, draws)


def ess_mean(draws: PyTree) -> PyTree:
    """Effective draws for the mean: the draws over `autocorrelation_time`.

    >>> draws = jax.random.normal(jax.random.key(0), (4, 200, 3))
    >>> ess_mean(draws).shape, bool(ess_mean(draws).min() > 400)
    ((3,), True)
    """
    return _each(_ess_mean, draws)


def rhat(draws: PyTree) -> PyTree:
    """R-hat of the draws' ranks or of the folded draws', whichever is larger.

    1 where chains agree; NaN for one chain.

    >>> draws = jax.random.normal(jax.random.key(0), (4, 200))
    >>> apart = draws + 9 * jnp.arange(4.0)[:, None]
    >>> bool(rhat(draws) < 1.1), bool(rhat(apart) > 2)
    (True, True)
    """
    return _each(_rhat, draws)


def bfmi(energy: Float[Array, "chain draw"]) -> Float[Array, " chain"]:
    """How much of the energies' spread a draw can cross: E(H_i+1 - H_i)^2 / var H.

    Where momentum is drawn anew in every step, below .3 it is too little for the tails.

    >>> bfmi(jnp.array([[0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 1.0, 1.0]])).tolist()
    [3.0, 1.0]

    Args:
        energy: as `sample(...).info.energy`, with `thin` 1.

    Reference: Betancourt, "Diagnosing suboptimal cotangent disintegrations in
    Hamiltonian Monte Carlo", arXiv:1604.00695 (2016).
    """
    energy = _at_door(energy, 2)
    change = jnp.sum(jnp.diff(energy, axis=1) ** 2, 1) / energy.shape[1]
    return change / energy.var(1)


def mcse(draws: PyTree) -> PyTree:
    """The standard error of the mean over all draws, sd / sqrt(`ess_mean`).

    >>> draws = jax.random.normal(jax.random.key(0), (4, 200))
    >>> bool(jnp.abs(mcse(draws) - 800**-0.5) < 0.02)
    True
    """
    return _each(_mcse, draws)


def _at_door(draws, least):
    draws = jax.tree.map(floating, draws)
    leaves = jax.tree.leaves(draws)
    if not leaves or any(leaf.ndim < 2 or leaf.size == 0 for leaf in leaves):
        shapes = jax.tree.map(jnp.shape, draws)
        raise ValueError(f"draws must be arrays (chain, draw, ...), got {shapes}")
    counts = {leaf.shape[:2] for leaf in leaves}
    if len(counts) > 1:
        raise ValueError(
            "all of draws must have the same chains and draws, as those of "
            f"sample(...).x, got {sorted(counts)}"
        )
    ((_, num_draws),) = counts
    if num_draws < least:
        raise ValueError(f"each chain must have {least} draws or more, got {num_draws}")
    return draws


def _each(function, draws, *, least=4):
    """`function` of every coordinate, an array `(chain, draw)`."""
    return jax.tree.map(partial(_columns, function), _at_door(draws, least))


@partial(jax.jit, static_argnums=0)
def _columns(function: Callable[[Array], Array], leaf: Array) -> Array:
    """A few coordinates at a time; what is found comes after the axes of a state."""
    shape = leaf.shape
    leaf = leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))
    columns = jnp.moveaxis(leaf.reshape(*shape[:2], -1), 2, 0)
    count = len(columns)
    at_once = min(count, max(1, AT_ONCE // columns[0].size))
    columns = jnp.pad(columns, ((0, -count % at_once), (0, 0), (0, 0)))
    blocks = columns.reshape(-1, at_once, *shape[:2])
    found = jax.lax.map(jax.vmap(function), blocks)
    return found.reshape(-1, *found.shape[2:])[:count].reshape(
        *shape[2:], *found.shape[2:]
    )


def _autocovariance(draws):
    num_draws = draws.shape[1]
    spectrum = _spectrum(_centred(draws)[0])
    return jnp.fft.irfft(spectrum)[:, :num_draws] / num_draws


def _spectrum(centred):
    # Twice as long at least, lest the ends of a chain meet.
    size = 1 << (2 * centred.shape[1] - 1).bit_length()
    waves = jnp.fft.rfft(centred, n=size)
    return waves.real**2 + waves.imag**2


def _centred(draws):
    """Chains about their means, and these about the first draw.

    By differences from a chain's first draw: constants come out as exact zeros, and
    draws far from zero keep their digits.
    """
    first = draws[:, :1]
    change = draws - first
    shift = change.mean(1, keepdims=True)
    return change - shift, (first - first[:1] + shift)[:, 0]


def _time(draws):
    """The time tau of chains as they are."""
    num_draws = draws.shape[1]
    centred, means = _centred(draws)
    covariance = jnp.fft.irfft(_spectrum(centred).mean(0))[:num_draws] / num_draws
    within = covariance[0] * num_draws / (num_draws - 1)
    total = covariance[0] + means.var(ddof=1)
    rho = (1 - (within - covariance) / total).at[0].set(1)
    last = max((num_draws - 3) // 2, 0)
    pairs = rho[: 2 * last + 2].reshape(-1, 2).sum(1)
    ends = pairs <= 0
    end = jnp.where(ends.any(), jnp.argmax(ends), last)
    falling = jnp.where(jnp.arange(last + 1) < end, jax.lax.cummin(pairs), 0)
    # Half of the pair at the end is signal still, if it is positive.
    rest = rho[2 * end]
    rest = jnp.where(pairs[end] < 0, jnp.maximum(rest, 0), rest)
    # Chains that swing about the mean are not believed to be better than this.
    tau = jnp.maximum(2 * falling.sum() - 1 + rest, 1 / log10(draws.size))
    tau = jnp.where(jnp.isnan(total), jnp.nan, tau)
    return jnp.where(draws.max() == draws.min(), 1, tau)


def _effective(draws):
    return draws.size / _time(draws)


def _halves(draws):
    """Twice as many chains, of half the length; an odd one loses its middle draw."""
    num_draws = draws.shape[1]
    if num_draws % 2:
        draws = jnp.delete(draws, num_draws // 2, axis=1, assume_unique_indices=True)
    return draws.reshape(-1, num_draws // 2)


def _time_of_mean(draws):
    return _time(_halves(draws))


def _ess_mean(draws):
    return _effective(_halves(draws))


def _ess_bulk(draws):
    halves = _halves(draws)
    bulk = _effective(_scores(_bulk_ranks(halves, _sorted(halves))))
    return _unless_nan(draws, bulk)


def _ess_tail(draws):
    ordered = _sorted(draws)
    halves = _halves(draws)

    def of_quantile(percent):
        return _effective((halves <= _quantile(ordered, percent)).astype(draws.dtype))

    return _unless_nan(draws, jnp.minimum(of_quantile(5), of_quantile(95)))


def _rhat(draws):
    if len(draws) == 1:
        return jnp.full((), jnp.nan, draws.dtype)
    halves = _halves(draws)
    ordered = _sorted(halves)
    bulk = _disagreement(_scores(_bulk_ranks(halves, ordered)))
    folded = _disagreement(_scores(_folded_ranks(halves, ordered)))
    # Bits are often constant when folded, and that says nothing.
    return _unless_nan(draws, jnp.fmax(bulk, folded))


def _disagreement(draws):
    """R-hat of chains as they are."""
    num_draws = draws.shape[1]
    centred, means = _centred(draws)
    within = jnp.sum(centred**2) / (len(draws) * (num_draws - 1))
    between = num_draws * means.var(ddof=1)
    return jnp.sqrt((between / within + num_draws - 1) / num_draws)


def _moments(draws):
    """Mean and standard deviation over all chains."""
    centred, means = _centred(draws)
    squares = jnp.sum(centred**2) + draws.shape[1] * jnp.sum(
        (means - means.mean()) ** 2
    )
    return draws[0, 0] + means.mean(), jnp.sqrt(squares / (draws.size - 1))


def _mcse(draws):
    return _moments(draws)[1] / jnp.sqrt(_ess_mean(draws))


def _summary(draws):
    """In the order of `Verdict`."""
    parts = (_mcse, _ess_bulk, _ess_tail, _rhat)
    return jnp.stack([*_moments(draws), *(part(draws) for part in parts)])


def _unless_nan(draws, found):
    return jnp.where(jnp.isnan(draws).any(), jnp.nan, found)


def _sorted(values):
    """All values in order, none of them NaN."""
    kind = jnp.int64 if values.dtype == jnp.float64 else jnp.int32
    # As integers in the same order, which XLA sorts five times as fast on a CPU.
    largest = jnp.iinfo(kind).max

    def fold(bits):
        return jnp.where(bits < 0, bits ^ largest, bits)

    bits = fold(jax.lax.bitcast_convert_type(values.ravel(), kind))
    bits = fold(jax.lax.sort(bits, is_stable=False))
    return jax.lax.bitcast_convert_type(bits, values.dtype)


def _quantile(ordered, percent):
    """Between the two nearest, by an exact share that leaves equal values equal."""
    low, share = divmod((ordered.size - 1) * percent, 100)
    high = min(low + 1, ordered.size - 1)
    return ordered[low] + share / 100 * (ordered[high] - ordered[low])


def _bulk_ranks(values, ordered):
    """From 1 on, equal values sharing the mean of theirs."""
    below, up_to = _counts(ordered, values)
    return (below + up_to + 1) / 2


def _folded_ranks(values, ordered):
    """Ranks of |x - median|, which need no other sort.

    As many are nearer to the median as lie between its two points at that distance.
    """
    median = (ordered[(ordered.size - 1) // 2] + ordered[ordered.size // 2]) / 2
    ordered = ordered - median
    radius = jnp.abs(values - median)
    below, up_to = _counts(ordered, radius)
    below_mirror, up_to_mirror = _counts(ordered, -radius)
    # Where the radius is 0 the two points are one.
    nearer = jnp.maximum(below - up_to_mirror, 0)
    as_near = up_to - below_mirror
    return (nearer + as_near + 1) / 2


def _counts(ordered, values):
    """How many are less than each value, and how many no more."""
    places = jnp.arange(ordered.size)
    ends = jnp.append(ordered[1:] != ordered[:-1], True)
    after = jax.lax.cummin(jnp.where(ends, places + 1, ordered.size), reverse=True)
    below = jnp.searchsorted(ordered, values)
    place = jnp.minimum(below, ordered.size - 1)
    return below, jnp.where(ordered[place] == values, after[place], below)


def _scores(ranks):
    # Blom's offset of 3/8.
    return ndtri((ranks - 0.375) / (ranks.size + 0.25))
