"""Inverses of a metric G, as operators on trees like the parameters.

    Blocked     F F' for each block on the diagonal of G
    Lengths     a number for each parameter
    Woodbury    c + A' F D F' A, for a metric G = A'A with few rows
    Iterated    conjugate gradients, from products with G

A `Factor` multiplies a gradient by the regularised inverse, f(G).
"""

import abc
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular
from jax.scipy.sparse.linalg import cg

from probjax.checks import is_concrete
from probjax.natural.operators import Groups, Linear, RowOperator
from probjax.natural.regularisers import Regulariser, rounding, scaled
from probjax.recipe import recipe, static
from probjax.types import Array, Float, PyTree, Scalar


class Report(NamedTuple):
    """Rank and condition number of a metric that was inverted; NaN if unknown.

    >>> from probjax.natural import Dense, Ridge
    >>> from probjax.natural.operators import Table
    >>> table = Table(rows=jnp.array([[1.0, 0.0], [0.0, 2.0]]))  # eigenvalues 1 and 4
    >>> report = Dense().factor(table, jnp.zeros(2), Ridge(0.0)).report
    >>> float(report.rank), round(float(report.condition), 3)
    (2.0, 4.0)
    """

    rank: Scalar | float
    """Number of directions of the metric that were inverted."""
    condition: Scalar | float
    """Approximate condition number of the inverted matrix."""


class Factor(abc.ABC):
    """Regularised inverse of a metric, a pytree if it is kept for several steps.

    >>> class Identity(Factor):
    ...     def solve(self, tree):
    ...         return tree
    ...     def damped(self, tree):
    ...         return jax.tree.map(jnp.zeros_like, tree)
    >>> Identity().solve(jnp.ones(2)).tolist(), Identity().report.rank
    ([1.0, 1.0], nan)
    """

    report: Report = Report(float("nan"), float("nan"))

    @abc.abstractmethod
    def solve(self, tree: PyTree) -> PyTree:
        """Product of the inverse and a tree like the parameters."""

    @abc.abstractmethod
    def damped(self, tree: PyTree) -> PyTree:
        """Product of the damping that was added to the metric and a tree."""


@recipe
class Blocked(Factor):
    """Matrices F, one for each block, where FF' is the inverse of the block."""

    roots: tuple[Array, ...]
    shifts: tuple[Scalar | None, ...]
    groups: Groups = static()
    report: Report

    def solve(self, tree: PyTree) -> PyTree:
        def product(k, flat):
            return self.roots[k] @ (self.roots[k].T @ flat)

        return self._mapped(tree, product)

    def damped(self, tree: PyTree) -> PyTree:
        return self._mapped(tree, lambda k, flat: _damped(self.shifts[k], flat))

    def _mapped(self, tree, function):
        leaves, form = jax.tree.flatten(tree)
        for k, group in enumerate(self.groups):
            flat, unravel = ravel_pytree([leaves[place] for place in group])
            for place, leaf in zip(group, unravel(function(k, flat)), strict=True):
                leaves[place] = leaf
        return form.unflatten(leaves)


@recipe
class Lengths(Factor):
    """Inverse of a diagonal matrix."""

    inverse: PyTree
    shift: Scalar | None
    report: Report = Factor.report

    def solve(self, tree: PyTree) -> PyTree:
        return jax.tree.map(jnp.multiply, self.inverse, tree)

    def damped(self, tree: PyTree) -> PyTree:
        return _damped(self.shift, tree)


@recipe
class Woodbury(Factor):
    """The operator first + A' (factor F D F') A, where D is a diagonal of signs."""

    table: RowOperator
    shift: Scalar | None
    root: Float[Array, "row row"]
    signs: Float[Array, " row"]
    first: Scalar
    factor: Scalar
    report: Report

    def solve(self, tree: PyTree) -> PyTree:
        found = self._solve(tree)
        if self.shift is None:
            return found
        # If the metric is much larger than its damping, two large terms have cancelled.
        # A second solve, for the residual, restores the digits that were lost.
        metric = jax.tree.map(jnp.add, self.table.times(found), self.damped(found))
        again = self._solve(jax.tree.map(jnp.subtract, tree, metric))
        return jax.tree.map(jnp.add, found, again)

    def damped(self, tree: PyTree) -> PyTree:
        return _damped(self.shift, tree)

    def _solve(self, tree):
        rows = self.signs * (self.root.T @ self.table.along(tree))
        back = self.table.back(self.factor * (self.root @ rows))
        return jax.tree.map(lambda a, b: self.first * a + b, tree, back)


@recipe
class Iterated(Factor):
    """Metric that is inverted by conjugate gradients; its rank is unknown."""

    linear: Linear
    regulariser: Regulariser
    scale: Scalar
    tolerance: float
    num_iterations: int = static()

    def solve(self, tree: PyTree) -> PyTree:
        system = self.regulariser.system(self.linear.times, self.scale)
        if system is None:
            raise ValueError(
                "damping must not need eigenvalues, as conjugate gradients compute no "
                f"eigenvalues, got {self.regulariser!r}; try Ridge() or Robust()"
            )
        left, right = system
        found, _ = cg(
            left, right(tree), tol=self.tolerance, maxiter=self.num_iterations
        )
        # The method ignores a NaN in the metric, and returns NaN if the metric is 0.
        sound = jnp.where(jnp.isnan(self.scale), jnp.nan, self.scale) > 0
        unsound = jnp.where(jnp.isnan(self.scale), jnp.nan, 0.0)
        return jax.tree.map(lambda leaf: jnp.where(sound, leaf, unsound), found)

    def damped(self, tree: PyTree) -> PyTree:
        return _damped(self.regulariser.shift(self.scale), tree)


def root(
    matrix: Float[Array, "n n"], regulariser: Regulariser, scale: Scalar
) -> tuple[Float[Array, "n n"], Report]:
    """Matrix F, where FF' is the regularised inverse of `matrix`, and a report."""

    def by_eigenvalues():
        values, vectors = eigen(matrix)
        inverse = regulariser.inverse(values, scale)
        return vectors * jnp.sqrt(inverse)[None], report_of(values, inverse)

    shift = regulariser.shift(scale)
    if shift is None:
        return by_eigenvalues()
    unit = jnp.eye(len(matrix), dtype=matrix.dtype)
    lower = jnp.linalg.cholesky(matrix + shift * unit)

    def by_cholesky():
        lengths = jnp.diagonal(lower)
        rank = jnp.full((), len(matrix), matrix.dtype)
        condition = (lengths.max() / lengths.min()) ** 2
        root = solve_triangular(lower, unit, lower=True).T
        return root, Report(rank, condition)

    # Rounding may give the matrix a negative eigenvalue, so that it has no Cholesky
    # factor, or, without damping, give a factor to a matrix that is singular.
    pivot = jnp.diagonal(lower).min() ** 2
    regular = (shift > hidden(matrix)) | (pivot > rounding(jnp.diagonal(matrix)))
    sound = jnp.all(jnp.isfinite(lower)) & regular
    # NaN and infinity in the matrix are passed on to the solution.
    broken = ~jnp.all(jnp.isfinite(matrix))
    return jax.lax.cond(sound | broken, by_cholesky, by_eigenvalues)


def eigen(matrix: Float[Array, "n n"]) -> tuple[Array, Array]:
    """Eigenvalues, clipped at 0, and eigenvectors of a metric or a covariance."""
    values, vectors = jnp.linalg.eigh(matrix)
    return jnp.maximum(values, 0), vectors


def report_of(values: Array, inverse: Array) -> Report:
    """Report on eigenvalues and their regularised inverses."""
    used = (inverse > 0) & (values > rounding(values))
    least = jnp.where(used, inverse, jnp.inf).min()
    most = jnp.where(used, inverse, 0).max()
    condition = jnp.where(used.any(), most / least, jnp.nan)
    return Report(used.sum().astype(values.dtype), condition)


def refuse_singular(regulariser: Regulariser, report: Report, size: int) -> None:
    """Reject a singular metric without damping, unless its values are traced."""
    if regulariser.is_exact() and is_concrete(report) and report.rank < size:
        raise ValueError(
            f"the metric is singular, of rank {int(report.rank)} in {size} parameters, "
            "and has no damping; try damping=0.01 or PseudoInverse()"
        )


def hidden(matrix: Float[Array, "n n"]) -> Scalar:
    """Largest shift of the diagonal that is lost in the rounding of products."""
    return 10 * jnp.finfo(matrix.dtype).eps * jnp.linalg.norm(matrix)


def _damped(shift, tree):
    if shift is None:
        return jax.tree.map(jnp.zeros_like, tree)
    return scaled(shift, tree)
