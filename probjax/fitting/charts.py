"""Charts: the coordinates in which `fit(..., chart=...)` descends.

A chart is a pair of maps, coordinates = forward(params) and params =
inverse(coordinates). Descent in other coordinates takes another way to the same
minimum; these charts also confine it, to parameters with some entries held (`Frozen`)
or above zero (`Positive`); after `Affine`, above or below any number.

Which entries they are is said by a tree of booleans like the parameters or a prefix of
it: one boolean stands for a leaf or a whole subtree, an array of them for the entries
of a leaf.
"""

import jax
import jax.numpy as jnp

from probjax.checks import check_parts, holds, is_concrete, is_finite
from probjax.interfaces import Chart
from probjax.recipe import recipe
from probjax.types import Params, PyTree


@recipe
class Frozen(Chart):
    """Only some entries move; the others are held at given values.

    Both maps are where(free, entry, value), so that frozen entries start at `values`
    wherever they are asked to start, and no descent moves them.

    Args:
        values: a tree like the parameters; what it holds at free entries is not used.
        free: which entries may move.

    >>> from probjax import PseudoLikelihood, exact, fit, ising
    >>> held = ising.Params(bias=jnp.array([0.0, 0.5, 1.0]), coupling=jnp.zeros(3))
    >>> chart = Frozen(held, free=ising.Params(bias=False, coupling=True))
    >>> start, key = ising.init(jax.random.key(0), 3), jax.random.key(1)
    >>> data = exact.sample(key, ising.energy, start, 3, num_draws=100)
    >>> found = fit(key, PseudoLikelihood(ising.energy), start, data, chart=chart)
    >>> found.params.bias.tolist()
    [0.0, 0.5, 1.0]
    """

    values: Params
    free: PyTree

    def forward(self, params: Params) -> Params:
        return self._held(params)

    def inverse(self, coordinates: Params) -> Params:
        return self._held(coordinates)

    def _held(self, params):
        shapes, mine = jax.tree.map(jnp.shape, (params, self.values))
        if jax.tree.flatten(shapes) != jax.tree.flatten(mine):
            raise ValueError(
                f"values must be a tree like params of the same shapes, {shapes}, "
                f"got {mine}"
            )
        masks = _masks("free", self.free, params)
        return jax.tree.map(jnp.where, masks, params, self.values)


@recipe
class Positive(Chart):
    """Some entries, by default all, are above zero; their coordinate is the logarithm.

    Where the loss is least at zero itself, an entry shrinks for ever and the gradient
    in it does not: such a fit warns that it has not converged.

    Args:
        where: which entries they are.

    >>> Positive().inverse(jnp.zeros(2)).tolist()
    [1.0, 1.0]
    """

    where: PyTree = True

    def forward(self, params: Params) -> PyTree:
        masks = _masks("where", self.where, params)
        positive = _elsewhere(1, masks, params)
        if not holds(_is_positive, positive):
            leaves = filter(is_concrete, jax.tree.leaves(positive))
            least = min(float(leaf.min()) for leaf in leaves)
            raise ValueError(
                f"params must be above zero where the chart is positive, got {least}"
            )
        return jax.tree.map(jnp.where, masks, jax.tree.map(jnp.log, positive), params)

    def inverse(self, coordinates: PyTree) -> Params:
        masks = _masks("where", self.where, coordinates)
        grown = jax.tree.map(jnp.exp, _elsewhere(0, masks, coordinates))
        return jax.tree.map(jnp.where, masks, grown, coordinates)


@recipe
class Affine(Chart):
    """Entries are a shift and a scale times their coordinate.

    Before `Positive` in `Composed`, a shift is what entries are above, and with a scale
    of -1, below.

    Args:
        shift: a tree of numbers like the parameters or a prefix of it.
        scale: likewise, none of them zero.

    >>> below_half = Composed((Affine(0.5, -1.0), Positive()))
    >>> below_half.inverse(jnp.zeros(2)).tolist()
    [-0.5, -0.5]
    """

    shift: PyTree = 0.0
    scale: PyTree = 1.0

    def __post_init__(self):
        if not holds(_is_finite_not_zero, self.scale):
            raise ValueError(f"scale must be finite and not zero, got {self.scale}")

    def forward(self, params: Params) -> PyTree:
        shift, scale = self._numbers(params)
        return jax.tree.map(lambda p, s, c: (p - s) / c, params, shift, scale)

    def inverse(self, coordinates: PyTree) -> Params:
        shift, scale = self._numbers(coordinates)
        return jax.tree.map(lambda y, s, c: s + c * y, coordinates, shift, scale)

    def _numbers(self, params):
        pairs = {"shift": self.shift, "scale": self.scale}.items()
        return [_spread(*pair, params, "number", jnp.number) for pair in pairs]


@recipe
class Composed(Chart):
    """Charts one after the other: forward from the first to the last.

    The first is of the parameters themselves, each other of the coordinates before it:
    `Composed((Frozen(values, free), Positive()))` holds values and not logarithms.

    >>> held = Frozen(jnp.array([5.0, 7.0]), free=jnp.array([False, True]))
    >>> Composed((held, Positive())).inverse(jnp.zeros(2)).tolist()
    [5.0, 1.0]
    """

    charts: tuple[Chart, ...]

    def __post_init__(self):
        check_parts("charts", self.charts, Chart, "Positive()")

    def forward(self, params: Params) -> PyTree:
        for chart in self.charts:
            params = chart.forward(params)
        return params

    def inverse(self, coordinates: PyTree) -> Params:
        for chart in reversed(self.charts):
            coordinates = chart.inverse(coordinates)
        return coordinates


def _masks(name, prefix, params):
    return _spread(name, prefix, params, "boolean", jnp.bool_)


def _spread(name, prefix, params, what, kind):
    """`prefix` spread over all leaves of `params`."""
    try:
        spread = jax.tree.broadcast(prefix, params)
    except ValueError:
        raise ValueError(
            f"{name} must be a tree like params or a prefix of it, "
            f"{jax.tree.structure(params)}, got {jax.tree.structure(prefix)}"
        ) from None
    pairs = zip(jax.tree.leaves(spread), jax.tree.leaves(params), strict=True)
    for part, leaf in pairs:
        found, shape = jnp.result_type(part), jnp.shape(part)
        if not jnp.issubdtype(found, kind) or shape not in ((), jnp.shape(leaf)):
            raise ValueError(
                f"{name} must hold one {what} or an array of them for a leaf of shape "
                f"{jnp.shape(leaf)}, got {found} of shape {shape}"
            )
    return spread


def _elsewhere(value, masks, params):
    """`params` with `value` outside the masks.

    What a function makes of the entries there is thrown away, but its derivative would
    not be: 0 times the slope of a logarithm at 0 is NaN.
    """
    return jax.tree.map(lambda mask, p: jnp.where(mask, p, value), masks, params)


def _is_positive(value):
    return value > 0


def _is_finite_not_zero(value):
    return is_finite(value) & (value != 0)
