"""Inverses of a metric G, as operators on trees like the parameters.

    BlockFactor        F F' for each block on the diagonal of G
    DiagonalFactor     one number for each parameter
    WoodburyFactor     c + A' F D F' A, for a metric G = A'A with few rows
    IterativeFactor    conjugate gradients, from products with G

A `Factor` multiplies a gradient by the regularised inverse f(G) of
`probjax.natural.regularisers`.
"""

import abc
from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular
from jax.scipy.sparse.linalg import cg

from probjax.checks import is_concrete
from probjax.natural.operators import Groups, MetricOperator, RowOperator
from probjax.natural.regularisers import Regulariser, eigenvalue_rounding
from probjax.recipe import recipe, static
from probjax.trees import scaled
from probjax.types import Array, Float, PyTree, Scalar

# Rounding error of the diagonal of a product of matrices, in units in the last place.
_SHIFT_ROUNDING_UNITS = 10


class Report(NamedTuple):
    """Rank and condition number of an inverted metric; 0 if unknown.

    >>> from probjax.natural import Dense, Ridge
    >>> from probjax.natural.operators import RowTable
    >>> table = RowTable(jnp.array([[1.0, 0.0], [0.0, 2.0]]))  # eigenvalues 1 and 4
    >>> report = Dense().factor(table, jnp.zeros(2), Ridge(0.0)).report
    >>> float(report.rank), round(float(report.condition), 3)
    (2.0, 4.0)
    """

    rank: Scalar | float
    """Number of eigenvalues of the metric that were inverted."""
    condition: Scalar | float
    """Approximate condition number of the inverted matrix."""


class Factor(abc.ABC):
    """Regularised inverse of a metric; a pytree if it is reused for several steps.

    >>> class Identity(Factor):
    ...     def solve(self, tree):
    ...         return tree
    ...     def damped(self, tree):
    ...         return jax.tree.map(jnp.zeros_like, tree)
    >>> Identity().solve(jnp.ones(2)).tolist(), Identity().report.rank
    ([1.0, 1.0], 0.0)
    """

    report: Report = Report(0.0, 0.0)

    @abc.abstractmethod
    def solve(self, tree: PyTree) -> PyTree:
        """Multiply the inverse by a tree like the parameters."""

    @abc.abstractmethod
    def damped(self, tree: PyTree) -> PyTree:
        """Multiply the damping that was added to the metric by a tree."""


@recipe
class BlockFactor(Factor):
    """Inverse of each diagonal block, as a matrix product FF'."""

    roots: tuple[Array, ...]
    """Matrix F of each block."""
    shifts: tuple[Scalar | None, ...]
    """Damping that was added to each block; None if it is not a shift."""
    groups: Groups = static()
    report: Report

    def solve(self, tree: PyTree) -> PyTree:
        def product(k, flat):
            return self.roots[k] @ (self.roots[k].T @ flat)

        return self._mapped(tree, product)

    def damped(self, tree: PyTree) -> PyTree:
        return self._mapped(tree, lambda k, flat: _damped(self.shifts[k], flat))

    def _mapped(self, tree, function):
        """Apply a function of a block's number and vector to the blocks of a tree."""
        leaves, structure = jax.tree.flatten(tree)
        for k, group in enumerate(self.groups):
            flat, unravel = ravel_pytree([leaves[place] for place in group])
            for place, leaf in zip(group, unravel(function(k, flat)), strict=True):
                leaves[place] = leaf
        return structure.unflatten(leaves)


@recipe
class DiagonalFactor(Factor):
    """Inverse of a diagonal metric, with one number for each parameter."""

    inverse: PyTree
    shift: Scalar | None
    """Damping that was added to the metric; None if it is not a shift."""
    report: Report = Factor.report

    def solve(self, tree: PyTree) -> PyTree:
        return jax.tree.map(jnp.multiply, self.inverse, tree)

    def damped(self, tree: PyTree) -> PyTree:
        return _damped(self.shift, tree)


@recipe
class WoodburyFactor(Factor):
    """The operator first + factor A' F D F' A, where D is a diagonal of signs."""

    table: RowOperator
    """Matrix A."""
    shift: Scalar | None
    """Damping that was added to the metric; None if it is not a shift."""
    root: Float[Array, "row row"]
    """Matrix F."""
    signs: Float[Array, " row"]
    """Diagonal of D."""
    first: Scalar
    factor: Scalar
    report: Report

    def solve(self, tree: PyTree) -> PyTree:
        solution = self._solve(tree)
        if self.shift is None:
            return solution
        # Iterative refinement: if the metric is much larger than its damping, two large
        # terms cancel, and a second solve for the residual restores the lost digits.
        product = jax.tree.map(
            jnp.add, self.table.times(solution), self.damped(solution)
        )
        correction = self._solve(jax.tree.map(jnp.subtract, tree, product))
        return jax.tree.map(jnp.add, solution, correction)

    def damped(self, tree: PyTree) -> PyTree:
        return _damped(self.shift, tree)

    def _solve(self, tree):
        rows = self.signs * (self.root.T @ self.table.apply_rows(tree))
        low_rank = self.table.apply_rows_transposed(self.factor * (self.root @ rows))
        return jax.tree.map(lambda a, b: self.first * a + b, tree, low_rank)


@recipe
class IterativeFactor(Factor):
    """Inverse by conjugate gradients; its rank is unknown."""

    linear: MetricOperator
    regulariser: Regulariser
    scale: Scalar
    tolerance: float
    num_iterations: int = static()

    def solve(self, tree: PyTree) -> PyTree:
        system = self.regulariser.system(self.linear.times, self.scale)
        if system is None:
            raise ValueError(
                "damping must not need eigenvalues, because conjugate gradients "
                f"compute no eigenvalues, got {self.regulariser!r}; try Ridge() or "
                "Robust()"
            )
        left, right = system
        solution, _ = cg(
            left, right(tree), tol=self.tolerance, maxiter=self.num_iterations
        )
        # `cg` ignores a NaN in the metric, and returns NaN if the metric is 0.
        is_valid = jnp.where(jnp.isnan(self.scale), jnp.nan, self.scale) > 0
        default = jnp.where(jnp.isnan(self.scale), jnp.nan, 0.0)
        return jax.tree.map(lambda leaf: jnp.where(is_valid, leaf, default), solution)

    def damped(self, tree: PyTree) -> PyTree:
        return _damped(self.regulariser.shift(self.scale), tree)


def inverse_root(
    matrix: Float[Array, "n n"], regulariser: Regulariser, scale: Scalar
) -> tuple[Float[Array, "n n"], Report]:
    """Return F, where FF' is the regularised inverse of `matrix`, and a report.

    Args:
        scale: mean eigenvalue of the matrix.
    """

    def by_eigenvalues():
        values, vectors = eigendecomposition(matrix)
        inverse = regulariser.inverse(values, scale)
        return vectors * jnp.sqrt(inverse)[None], report_of(values, inverse)

    shift = regulariser.shift(scale)
    if shift is None:
        return by_eigenvalues()
    unit = jnp.eye(len(matrix), dtype=matrix.dtype)
    lower = jnp.linalg.cholesky(matrix + shift * unit)

    def by_cholesky():
        pivots = jnp.diagonal(lower)
        rank = jnp.full((), len(matrix), matrix.dtype)
        condition = (pivots.max() / pivots.min()) ** 2
        root = solve_triangular(lower, unit, lower=True).T
        return root, Report(rank, condition)

    # Because of rounding, the matrix may have a negative eigenvalue and no Cholesky
    # factor, or, without damping, a singular matrix may have a Cholesky factor.
    pivot = jnp.diagonal(lower).min() ** 2
    smallest = eigenvalue_rounding(jnp.diagonal(matrix))
    is_regular = (shift > negligible_shift(matrix)) | (pivot > smallest)
    is_valid = jnp.all(jnp.isfinite(lower)) & is_regular
    # NaN and infinity in the matrix are passed on to the solution.
    is_not_finite = ~jnp.all(jnp.isfinite(matrix))
    return jax.lax.cond(is_valid | is_not_finite, by_cholesky, by_eigenvalues)


def eigendecomposition(matrix: Float[Array, "n n"]) -> tuple[Array, Array]:
    """Return eigenvalues, clipped at 0, and eigenvectors of a symmetric matrix."""
    values, vectors = jnp.linalg.eigh(matrix)
    return jnp.maximum(values, 0), vectors


def report_of(values: Array, inverse: Array) -> Report:
    """Return a report on eigenvalues and their regularised inverses."""
    used = (inverse > 0) & (values > eigenvalue_rounding(values))
    least = jnp.where(used, inverse, jnp.inf).min()
    most = jnp.where(used, inverse, 0).max()
    condition = jnp.where(used.any(), most / least, 0)
    return Report(used.sum().astype(values.dtype), condition)


def check_nonsingular(regulariser: Regulariser, report: Report, size: int) -> None:
    """Raise if a metric without damping is singular, unless its values are traced."""
    if regulariser.is_exact() and is_concrete(report) and report.rank < size:
        raise ValueError(
            "the metric must not be singular without damping, got rank "
            f"{int(report.rank)} for {size} parameters; try damping=0.01 or "
            "PseudoInverse()"
        )


def negligible_shift(matrix: Float[Array, "n n"]) -> Scalar:
    """Return the largest shift of the diagonal that is lost in rounding."""
    return _SHIFT_ROUNDING_UNITS * jnp.finfo(matrix.dtype).eps * jnp.linalg.norm(matrix)


def _damped(shift, tree):
    if shift is None:
        return jax.tree.map(jnp.zeros_like, tree)
    return scaled(shift, tree)
