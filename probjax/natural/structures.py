"""Structures: the part of a metric G that is inverted, and the algorithm for it.

    Dense               all of G, by Cholesky factors or eigenvalues
    BlockDiagonal       blocks on the diagonal of G
    Diagonal            the diagonal of G
    LowRank             all of G = A'A with fewer rows than parameters
    ConjugateGradient   all of G, by its products with vectors

A regulariser replaces the inverse of G by f(G). With few rows and many parameters, A is
(row, n) and K = AA' is small, and `LowRank` uses

    f(G) g = f(0) g + A' M A g,    M = (f(K) - f(0)) K^-1,

which is the Woodbury identity for `Ridge`.

Reference: thesis, "Diagonal approximation". Low rank: Chen and Heyl, Nature Physics 20,
1476 (2024).
"""

import abc
from typing import ClassVar

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from probjax.checks import check_count
from probjax.natural.factors import (
    BlockFactor,
    DiagonalFactor,
    Factor,
    IterativeFactor,
    Report,
    WoodburyFactor,
    check_nonsingular,
    eigendecomposition,
    inverse_root,
    negligible_shift,
    report_of,
)
from probjax.natural.operators import MAX_PARAMETERS, MetricOperator, check_matrix_size
from probjax.natural.regularisers import Regulariser, inverse_above
from probjax.recipe import recipe, static
from probjax.types import Params, PyTree


class Structure(abc.ABC):
    """Part of a metric that is inverted; only `factor` is required.

    >>> class MeanDiagonal(Structure):  # the same number for all parameters
    ...     def factor(self, linear, params, regulariser):
    ...         diagonal, unravel = ravel_pytree(linear.diagonal())
    ...         scale = diagonal.mean()
    ...         inverse = regulariser.inverse(jnp.full_like(diagonal, scale), scale)
    ...         return DiagonalFactor(unravel(inverse), regulariser.shift(scale))
    >>> from probjax.natural import Ridge
    >>> from probjax.natural.operators import RowTable
    >>> table = RowTable(jnp.array([[1.0, 1.0], [0.0, 2.0]]))  # diagonal 1 and 5
    >>> factor = MeanDiagonal().factor(table, jnp.zeros(2), Ridge(0.0))
    >>> factor.solve(jnp.array([3.0, 6.0])).tolist()
    [1.0, 2.0]
    """

    reusable: ClassVar[bool] = True
    """Whether a factor can be reused for several steps, as a pytree."""
    keeps_rows: ClassVar[bool] = False
    """Whether a factor contains A. The metric must then have rows, and `num_rows` must
    be given if the factor is reused for several steps."""
    needs_full_rank: ClassVar[bool] = False
    """Whether a metric without damping must have at least as many rows as parameters;
    checked before the metric is computed."""

    @abc.abstractmethod
    def factor(
        self, linear: MetricOperator, params: Params, regulariser: Regulariser
    ) -> Factor:
        """Return the regularised inverse of a metric.

        Args:
            linear: the metric at `params`, as a linear operator.
        """


@recipe
class Dense(Structure):
    """Inverse of the whole metric, as a matrix.

    >>> from probjax.natural import Ridge
    >>> from probjax.natural.operators import RowTable
    >>> table = RowTable(jnp.array([[1.0, 1.0], [0.0, 2.0]]))  # G is [[1, 1], [1, 5]]
    >>> factor = Dense().factor(table, jnp.zeros(2), Ridge(0.0))
    >>> factor.solve(jnp.array([2.0, 6.0])).round().tolist()
    [1.0, 1.0]
    """

    needs_full_rank: ClassVar[bool] = True

    def factor(
        self, linear: MetricOperator, params: Params, regulariser: Regulariser
    ) -> BlockFactor:
        groups = (tuple(range(len(jax.tree.leaves(params)))),)
        return _block_factor(linear, params, regulariser, groups)


@recipe
class BlockDiagonal(Structure):
    """Inverses of blocks on the diagonal of the metric.

    Args:
        groups: a tree of labels like the parameters, or a prefix of it: leaves with the
            same label form one block. None for one block per leaf.

    >>> from probjax.natural import Ridge
    >>> from probjax.natural.operators import RowTable
    >>> rows = {"a": jnp.array([[1.0], [0.0]]), "b": jnp.array([[1.0], [2.0]])}
    >>> params = {"a": jnp.zeros(1), "b": jnp.zeros(1)}  # blocks 1 and 5
    >>> factor = BlockDiagonal().factor(RowTable(rows), params, Ridge(0.0))
    >>> found = factor.solve({"a": jnp.ones(1), "b": jnp.full(1, 5.0)})
    >>> float(found["a"][0]), round(float(found["b"][0]), 3)
    (1.0, 1.0)
    """

    groups: PyTree = static(default=None)

    def factor(
        self, linear: MetricOperator, params: Params, regulariser: Regulariser
    ) -> BlockFactor:
        count = len(jax.tree.leaves(params))
        labels = list(range(count)) if self.groups is None else self._labels(params)
        groups = tuple(
            tuple(k for k in range(count) if labels[k] == label)
            for label in dict.fromkeys(labels)
        )
        return _block_factor(linear, params, regulariser, groups)

    def _labels(self, params):
        try:
            return jax.tree.leaves(jax.tree.broadcast(self.groups, params))
        except ValueError:
            raise ValueError(
                "groups must be a tree like params or a prefix of it, "
                f"{jax.tree.structure(params)}, got {jax.tree.structure(self.groups)}; "
                "try groups=None for one block per leaf"
            ) from None


@recipe
class Diagonal(Structure):
    """Inverse of the diagonal of the metric: one number per parameter.

    >>> from probjax.natural import Ridge
    >>> from probjax.natural.operators import RowTable
    >>> table = RowTable(jnp.array([[1.0, 1.0], [0.0, 2.0]]))  # diagonal 1 and 5
    >>> factor = Diagonal().factor(table, jnp.zeros(2), Ridge(0.0))
    >>> factor.solve(jnp.array([1.0, 5.0])).round().tolist()
    [1.0, 1.0]
    """

    def factor(
        self, linear: MetricOperator, params: Params, regulariser: Regulariser
    ) -> DiagonalFactor:
        flat, unravel = ravel_pytree(linear.diagonal())
        scale = flat.mean()
        inverse = regulariser.inverse(flat, scale)
        report = report_of(flat, inverse)
        check_nonsingular(regulariser, report, flat.size)
        return DiagonalFactor(unravel(inverse), regulariser.shift(scale), report)


@recipe
class LowRank(Structure):
    """Inverse of the whole metric, for fewer rows than parameters.

    It uses the products of the rows, and no array of size parameters x parameters. The
    scores are held in memory up to 2^27 entries; larger ones are computed again for
    each product. The report describes the whole metric, whose smallest eigenvalue is
    the damping.

    >>> from probjax.natural import Ridge
    >>> from probjax.natural.operators import RowTable
    >>> table = RowTable(jnp.array([[2.0, 0.0]]))  # eigenvalues 4 and 0, mean 2
    >>> factor = LowRank().factor(table, jnp.zeros(2), Ridge(0.5))
    >>> factor.solve(jnp.array([5.0, 1.0])).round().tolist()
    [1.0, 1.0]
    """

    keeps_rows: ClassVar[bool] = True

    def factor(
        self, linear: MetricOperator, params: Params, regulariser: Regulariser
    ) -> WoodburyFactor:
        table = linear.row_operator()
        if table is None:
            raise ValueError(
                "scores must be scores of rows for LowRank(), got a metric that is a "
                "matrix; try Dense()"
            )
        _check_damped("LowRank()", regulariser)
        if table.num_rows > MAX_PARAMETERS:
            raise ValueError(
                f"LowRank() must have at most {MAX_PARAMETERS:,} rows, got "
                f"{table.num_rows:,}; try num_rows=1000, Dense() or ConjugateGradient()"
            )
        gram = table.gram()
        size = ravel_pytree(params)[0].size
        scale = jnp.trace(gram) / size
        zero, one = jnp.zeros((), gram.dtype), jnp.ones((), gram.dtype)
        shift = regulariser.shift(scale)

        def by_eigenvalues():
            values, vectors = eigendecomposition(gram)
            inverse = regulariser.inverse(values, scale)
            first = zero
            if shift is None:
                first = regulariser.inverse(jnp.append(values, zero), scale)[-1]
            middle = (inverse - first) * inverse_above(values, 0)
            signs = jnp.where(middle < 0, -one, one)
            matrix = vectors * jnp.sqrt(jnp.abs(middle))[None]
            return matrix, signs, first, one, report_of(values, inverse)

        if shift is None:
            return WoodburyFactor(table, shift, *by_eigenvalues())

        def by_cholesky():
            matrix, report = inverse_root(gram, regulariser, scale)
            largest = jnp.linalg.norm(gram)
            if table.num_rows < size:
                report = Report(jnp.full_like(shift, size), (largest + shift) / shift)
            return matrix, jnp.full(len(gram), one), 1 / shift, -1 / shift, report

        # If the damping is lost in rounding, directions of eigenvalue 0 are set to 0.
        is_lost = shift <= negligible_shift(gram)
        parts = jax.lax.cond(is_lost, by_eigenvalues, by_cholesky)
        return WoodburyFactor(table, shift, *parts)


@recipe
class ConjugateGradient(Structure):
    """Inverse of the whole metric by conjugate gradients, for any number of parameters.

    Args:
        num_iterations: largest number of iterations.
        tolerance: norm of the residual, relative to that of the gradient, at which
            iterations end.

    >>> from probjax.natural import Ridge
    >>> from probjax.natural.operators import RowTable
    >>> table = RowTable(jnp.array([[2.0, 0.0]]))  # eigenvalues 4 and 0, mean 2
    >>> factor = ConjugateGradient().factor(table, jnp.zeros(2), Ridge(0.5))
    >>> factor.solve(jnp.array([5.0, 1.0])).round().tolist()
    [1.0, 1.0]
    """

    num_iterations: int = static(default=100)
    tolerance: float = 1e-5
    reusable: ClassVar[bool] = False

    def __post_init__(self):
        check_count("num_iterations", self.num_iterations)

    def factor(
        self, linear: MetricOperator, params: Params, regulariser: Regulariser
    ) -> IterativeFactor:
        _check_damped("ConjugateGradient()", regulariser)
        scale = ravel_pytree(linear.diagonal())[0].mean()
        return IterativeFactor(
            linear, regulariser, scale, self.tolerance, self.num_iterations
        )


def _block_factor(linear, params, regulariser, groups):
    leaves = jax.tree.leaves(params)
    check_matrix_size(max(sum(leaves[k].size for k in group) for group in groups))
    roots, shifts, reports = [], [], []
    for block in linear.blocks(groups):
        scale = jnp.trace(block) / len(block)
        matrix, report = inverse_root(block, regulariser, scale)
        roots.append(matrix)
        shifts.append(regulariser.shift(scale))
        reports.append(report)
    ranks, conditions = map(jnp.stack, zip(*reports, strict=True))
    report = Report(ranks.sum(), conditions.max())
    check_nonsingular(regulariser, report, sum(leaf.size for leaf in leaves))
    return BlockFactor(tuple(roots), tuple(shifts), groups, report)


def _check_damped(name, regulariser):
    if regulariser.is_exact():
        raise ValueError(
            f"damping must be above 0 for {name}, because the metric may be singular, "
            f"got {regulariser!r}; try damping=0.01, or Dense()"
        )
