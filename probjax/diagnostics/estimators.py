"""Estimators of chain diagnostics for one coordinate, and their map over coordinates.

Each estimator receives the draws of one coordinate, an array `(chain, draw)`. The
definitions are in `probjax.diagnostics.chains`.
"""

from collections.abc import Callable
from functools import partial
from math import log10

import jax
import jax.numpy as jnp
from jax.scipy.special import ndtri

from probjax.trees import floating
from probjax.types import Array, Float, PyTree, Scalar

BLOCK_SIZE = 2**18
"""Number of draws that are processed at once, to bound memory."""

ChainDraws = Float[Array, "chain draw"]


def check_draws(draws: PyTree, least: int) -> PyTree:
    """Convert to floating arrays; raise if a chain has fewer than `least` draws."""
    draws = jax.tree.map(floating, draws)
    leaves = jax.tree.leaves(draws)
    if not leaves or any(leaf.ndim < 2 or leaf.size == 0 for leaf in leaves):
        shapes = jax.tree.map(jnp.shape, draws)
        raise ValueError(f"draws must be arrays (chain, draw, ...), got shape {shapes}")
    counts = {leaf.shape[:2] for leaf in leaves}
    if len(counts) > 1:
        raise ValueError(
            "all arrays in draws must have the same numbers of chains and draws, got "
            f"{sorted(counts)}; try sample(...).x"
        )
    ((_, num_draws),) = counts
    if num_draws < least:
        raise ValueError(
            f"each chain must have at least {least} draws, got {num_draws}"
        )
    return draws


def map_coordinates(
    function: Callable[[Array], Array], draws: PyTree, *, least: int = 4
) -> PyTree:
    """Apply `function` to the draws `(chain, draw)` of every coordinate."""
    return jax.tree.map(partial(_map_columns, function), check_draws(draws, least))


@partial(jax.jit, static_argnums=0)
def _map_columns(function: Callable[[Array], Array], leaf: Array) -> Array:
    """Apply `function` to a block of coordinates at a time, to bound memory.

    Axes of the result of `function` come after the axes of a state.
    """
    shape = leaf.shape
    leaf = leaf.astype(jnp.promote_types(leaf.dtype, jnp.float32))
    columns = jnp.moveaxis(leaf.reshape(*shape[:2], -1), 2, 0)
    count = len(columns)
    width = min(count, max(1, BLOCK_SIZE // columns[0].size))
    columns = jnp.pad(columns, ((0, -count % width), (0, 0), (0, 0)))
    blocks = columns.reshape(-1, width, *shape[:2])
    found = jax.lax.map(jax.vmap(function), blocks)
    return found.reshape(-1, *found.shape[2:])[:count].reshape(
        *shape[2:], *found.shape[2:]
    )


def autocovariance(draws: ChainDraws) -> Array:
    """Autocovariance `(chain, lag)`."""
    num_draws = draws.shape[1]
    spectrum = _spectrum(_centred(draws)[0])
    return jnp.fft.irfft(spectrum)[:, :num_draws] / num_draws


def _spectrum(centred):
    # Padded with zeros to twice the length, so that the FFT does not wrap around.
    size = 1 << (2 * centred.shape[1] - 1).bit_length()
    waves = jnp.fft.rfft(centred, n=size)
    return waves.real**2 + waves.imag**2


def _centred(draws):
    """Return deviations from each chain's mean, and the means of all chains.

    The means are differences from the first draw of the first chain. All sums are taken
    over differences from a chain's first draw, so that constants give exact zeros and
    draws far from zero keep their digits.
    """
    first = draws[:, :1]
    change = draws - first
    shift = change.mean(1, keepdims=True)
    return change - shift, (first - first[:1] + shift)[:, 0]


def _time(draws):
    """Compute tau of chains that are already split."""
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
    # The first half of the pair at the end still counts if it is positive.
    rest = rho[2 * end]
    rest = jnp.where(pairs[end] < 0, jnp.maximum(rest, 0), rest)
    # A lower limit for antithetic chains, whose estimate would be too noisy.
    tau = jnp.maximum(2 * falling.sum() - 1 + rest, 1 / log10(draws.size))
    tau = jnp.where(jnp.isnan(total), jnp.nan, tau)
    return jnp.where(draws.max() == draws.min(), 1, tau)


def _effective(draws):
    return draws.size / _time(draws)


def _halves(draws):
    """Split each chain into two of half the length; an odd middle draw is left out."""
    num_draws = draws.shape[1]
    if num_draws % 2:
        draws = jnp.delete(draws, num_draws // 2, axis=1, assume_unique_indices=True)
    return draws.reshape(-1, num_draws // 2)


def time_of_mean(draws: ChainDraws) -> Scalar:
    """Autocorrelation time for the mean."""
    return _time(_halves(draws))


def ess_mean(draws: ChainDraws) -> Scalar:
    """Effective number of draws for the mean."""
    return _effective(_halves(draws))


def ess_bulk(draws: ChainDraws) -> Scalar:
    """Effective number of draws for the bulk."""
    halves = _halves(draws)
    bulk = _effective(_scores(_bulk_ranks(halves, _sorted(halves))))
    return _unless_nan(draws, bulk)


def ess_tail(draws: ChainDraws) -> Scalar:
    """Effective number of draws for the tails."""
    ordered = _sorted(draws)
    halves = _halves(draws)

    def of_quantile(percent):
        return _effective((halves <= _quantile(ordered, percent)).astype(draws.dtype))

    return _unless_nan(draws, jnp.minimum(of_quantile(5), of_quantile(95)))


def rhat(draws: ChainDraws) -> Scalar:
    """R-hat of the ranks or of the folded ranks, whichever is larger."""
    if len(draws) == 1:
        return jnp.full((), jnp.nan, draws.dtype)
    halves = _halves(draws)
    ordered = _sorted(halves)
    bulk = _plain_rhat(_scores(_bulk_ranks(halves, ordered)))
    folded = _plain_rhat(_scores(_folded_ranks(halves, ordered)))
    # Folded bits are often constant, so that their R-hat is NaN and must be ignored.
    return _unless_nan(draws, jnp.fmax(bulk, folded))


def _plain_rhat(draws):
    """Compute R-hat of chains that are already split and transformed."""
    num_draws = draws.shape[1]
    centred, means = _centred(draws)
    within = jnp.sum(centred**2) / (len(draws) * (num_draws - 1))
    between = num_draws * means.var(ddof=1)
    return jnp.sqrt((between / within + num_draws - 1) / num_draws)


def _moments(draws):
    """Compute the mean and the standard deviation over all chains."""
    centred, means = _centred(draws)
    squares = jnp.sum(centred**2) + draws.shape[1] * jnp.sum(
        (means - means.mean()) ** 2
    )
    return draws[0, 0] + means.mean(), jnp.sqrt(squares / (draws.size - 1))


def mcse(draws: ChainDraws) -> Scalar:
    """Standard error of the mean."""
    return _moments(draws)[1] / jnp.sqrt(ess_mean(draws))


def summary(draws: ChainDraws) -> Float[Array, " 6"]:
    """Mean, standard deviation, `mcse`, `ess_bulk`, `ess_tail` and `rhat`."""
    parts = (mcse, ess_bulk, ess_tail, rhat)
    return jnp.stack([*_moments(draws), *(part(draws) for part in parts)])


def _unless_nan(draws, found):
    return jnp.where(jnp.isnan(draws).any(), jnp.nan, found)


def _sorted(values):
    """Sort all values, which must not contain NaN."""
    kind = jnp.int64 if values.dtype == jnp.float64 else jnp.int32
    # Floats are mapped to integers in the same order, because XLA sorts integers five
    # times as fast on a CPU.
    largest = jnp.iinfo(kind).max

    def fold(bits):
        return jnp.where(bits < 0, bits ^ largest, bits)

    bits = fold(jax.lax.bitcast_convert_type(values.ravel(), kind))
    bits = fold(jax.lax.sort(bits, is_stable=False))
    return jax.lax.bitcast_convert_type(bits, values.dtype)


def _quantile(ordered, percent):
    """Interpolate between the two nearest values; equal values stay equal."""
    low, share = divmod((ordered.size - 1) * percent, 100)
    high = min(low + 1, ordered.size - 1)
    return ordered[low] + share / 100 * (ordered[high] - ordered[low])


def _bulk_ranks(values, ordered):
    """Ranks from 1 on; equal values share their mean rank."""
    below, up_to = _counts(ordered, values)
    return (below + up_to + 1) / 2


def _folded_ranks(values, ordered):
    """Ranks of |x - median|, computed without another sort.

    The values nearer to the median than x are those between median - r and median + r,
    where r = |x - median|.
    """
    median = (ordered[(ordered.size - 1) // 2] + ordered[ordered.size // 2]) / 2
    ordered = ordered - median
    radius = jnp.abs(values - median)
    below, up_to = _counts(ordered, radius)
    below_mirror, up_to_mirror = _counts(ordered, -radius)
    # For a radius of 0 the two points coincide, and the difference is negative.
    nearer = jnp.maximum(below - up_to_mirror, 0)
    as_near = up_to - below_mirror
    return (nearer + as_near + 1) / 2


def _counts(ordered, values):
    """Numbers of sorted entries below each value, and not above each value."""
    places = jnp.arange(ordered.size)
    ends = jnp.append(ordered[1:] != ordered[:-1], True)
    after = jax.lax.cummin(jnp.where(ends, places + 1, ordered.size), reverse=True)
    below = jnp.searchsorted(ordered, values)
    place = jnp.minimum(below, ordered.size - 1)
    return below, jnp.where(ordered[place] == values, after[place], below)


def _scores(ranks):
    """Normal scores of ranks, with Blom's offset of 3/8."""
    return ndtri((ranks - 0.375) / (ranks.size + 0.25))
