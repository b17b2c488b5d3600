"""Charts: the coordinates in which `fit(..., chart=...)` descends.

A chart is a pair of maps, coordinates = forward(params) and params =
inverse(coordinates). Other coordinates lead to the same minimum along another path.
These charts also constrain the parameters: `Frozen` holds some entries at given values,
and `Positive` keeps entries above zero, or, after `Affine`, above or below any number.

The entries are selected by a tree of booleans like the parameters, or a prefix of it:
one boolean selects a leaf or a whole subtree, and an array of booleans selects entries
of a leaf.
"""

import math

import jax
import jax.numpy as jnp
import numpy as np

from probjax.checks import check_parts, holds, is_concrete, is_finite
from probjax.interfaces import Chart
from probjax.recipe import recipe
from probjax.types import Params, PyTree


@recipe
class Frozen(Chart):
    """Chart in which some entries are free, and the others are held at given values.

    Both maps are where(free, entry, value), so that frozen entries have their `values`
    from the start, whatever the initial parameters, and never change.

    Args:
        values: a tree like the parameters; its values at free entries are ignored.
        free: a tree of booleans that selects the free entries.

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
        return self._with_values(params)

    def inverse(self, coordinates: Params) -> Params:
        return self._with_values(coordinates)

    def _with_values(self, params):
        shapes, own_shapes = jax.tree.map(jnp.shape, (params, self.values))
        if jax.tree.flatten(shapes) != jax.tree.flatten(own_shapes):
            raise ValueError(
                f"values must be a tree like params with the shapes {shapes}, got "
                f"{own_shapes}"
            )
        masks = _masks("free", self.free, params)
        return jax.tree.map(jnp.where, masks, params, self.values)


@recipe
class Positive(Chart):
    """Chart in which some entries are positive: their coordinates are their logarithms.

    If the minimum of the loss is at zero, an entry shrinks without end while its
    gradient does not vanish, and the fit warns that it has not converged.

    Args:
        where: a tree of booleans that selects the positive entries; by default all.

    >>> Positive().inverse(jnp.zeros(2)).tolist()
    [1.0, 1.0]
    """

    where: PyTree = True

    def forward(self, params: Params) -> PyTree:
        masks = _masks("where", self.where, params)
        positive = _replaced_outside(1, masks, params)
        if not holds(_is_positive, positive):
            leaves = filter(is_concrete, jax.tree.leaves(positive))
            least = min(float(leaf.min()) for leaf in leaves)
            raise ValueError(
                "params must be above zero at the entries that Positive selects, got "
                f"{least}"
            )
        return jax.tree.map(jnp.where, masks, jax.tree.map(jnp.log, positive), params)

    def inverse(self, coordinates: PyTree) -> Params:
        masks = _masks("where", self.where, coordinates)
        positive = jax.tree.map(jnp.exp, _replaced_outside(0, masks, coordinates))
        return jax.tree.map(jnp.where, masks, positive, coordinates)


@recipe
class Affine(Chart):
    """Chart with params = shift + scale * coordinates.

    Before `Positive` in `Composed`, the shift is a lower bound of the entries, or, with
    a scale of -1, an upper bound.

    Args:
        shift: a tree of numbers like the parameters, or a prefix of it.
        scale: a tree of numbers other than zero, like `shift`.

    >>> below_half = Composed((Affine(0.5, -1.0), Positive()))
    >>> below_half.inverse(jnp.zeros(2)).tolist()
    [-0.5, -0.5]
    """

    shift: PyTree = 0.0
    scale: PyTree = 1.0

    def __post_init__(self):
        if not holds(_is_finite_not_zero, self.scale):
            raise ValueError(
                f"scale must be finite and not zero, got {self.scale}; try 1.0"
            )

    def forward(self, params: Params) -> PyTree:
        shift, scale = self._numbers(params)
        return jax.tree.map(lambda p, s, c: (p - s) / c, params, shift, scale)

    def inverse(self, coordinates: PyTree) -> Params:
        shift, scale = self._numbers(coordinates)
        return jax.tree.map(lambda y, s, c: s + c * y, coordinates, shift, scale)

    def scales(self, params: Params) -> Params | None:
        shifts = jax.tree.leaves(self.shift)
        if not is_concrete(shifts) or any(np.any(shift) for shift in shifts):
            return None
        return jax.tree.broadcast(self.scale, params)

    def _numbers(self, params):
        pairs = {"shift": self.shift, "scale": self.scale}.items()
        return [_broadcast(*pair, params, "number", jnp.number) for pair in pairs]


@recipe
class Composed(Chart):
    """Composition of charts; `forward` applies them from the first to the last.

    The first chart receives the parameters, and each other chart the coordinates of the
    chart before it. In `Composed((Frozen(values, free), Positive()))`, the values are
    those of parameters, not of logarithms.

    Args:
        charts: the charts, at least one.

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

    def scales(self, params: Params) -> Params | None:
        found = [chart.scales(params) for chart in self.charts]
        if any(scales is None for scales in found):
            return None
        return jax.tree.map(_product, *found)


def _product(*factors):
    """Multiply factors, so that a Python 0.0 remains one."""
    if any(isinstance(factor, float) and factor == 0 for factor in factors):
        return 0.0
    return math.prod(factors)


def _masks(name, prefix, params):
    return _broadcast(name, prefix, params, "boolean", jnp.bool_)


def _broadcast(name, prefix, params, what, kind):
    """Broadcast `prefix` to all leaves of `params`, and check dtypes and shapes."""
    try:
        full = jax.tree.broadcast(prefix, params)
    except ValueError:
        raise ValueError(
            f"{name} must be a tree like params or a prefix of it, "
            f"{jax.tree.structure(params)}, got {jax.tree.structure(prefix)}"
        ) from None
    pairs = zip(jax.tree.leaves(full), jax.tree.leaves(params), strict=True)
    for part, leaf in pairs:
        found, shape = jnp.result_type(part), jnp.shape(part)
        if not jnp.issubdtype(found, kind) or shape not in ((), jnp.shape(leaf)):
            raise ValueError(
                f"{name} must hold one {what} or an array of them for a leaf of shape "
                f"{jnp.shape(leaf)}, got {found} of shape {shape}"
            )
    return full


def _replaced_outside(value, masks, params):
    """Replace entries outside the masks by `value`.

    The logarithm of these entries is not used, but its derivative enters the gradient:
    0 times the slope of a logarithm at 0 is NaN.
    """
    return jax.tree.map(lambda mask, p: jnp.where(mask, p, value), masks, params)


def _is_positive(value):
    return value > 0


def _is_finite_not_zero(value):
    return is_finite(value) & (value != 0)
