"""Structures: the part of a metric G that is inverted, and the algorithm for it.

    Dense               all of G, by Cholesky factors or eigenvalues
    Blocks              blocks on the diagonal of G
    Diagonal            the diagonal of G
    LowRank             all of G = A'A with fewer rows than parameters
    ConjugateGradient   all of G, by its products with directions

A regulariser replaces the inverse by f(G). With few rows and many parameters, where A
is (row, n) and K = AA' is small, `LowRank` uses

    f(G) g = f(0) g + A' M A g,    M = (f(K) - f(0)) K^-1,

which for `Ridge` is Woodbury's identity.

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
    Blocked,
    Factor,
    Iterated,
    Lengths,
    Report,
    Woodbury,
    eigen,
    hidden,
    refuse_singular,
    report_of,
    root,
)
from probjax.natural.operators import MOST_PARAMETERS, Linear, check_fits
from probjax.natural.regularisers import Regulariser, inverted
from probjax.recipe import recipe, static
from probjax.types import Params, PyTree


class Structure(abc.ABC):
    """Part of a metric that is inverted. Only `factor` is required.

    >>> class MeanDiagonal(Structure):  # the same length for all parameters
    ...     def factor(self, linear, params, regulariser):
    ...         lengths, unravel = ravel_pytree(linear.diagonal())
    ...         mean = jnp.full_like(lengths, lengths.mean())
    ...         inverse = regulariser.inverse(mean, lengths.mean())
    ...         return Lengths(unravel(inverse), regulariser.shift(lengths.mean()))
    >>> from probjax.natural import Ridge
    >>> from probjax.natural.operators import Table
    >>> table = Table(rows=jnp.array([[1.0, 1.0], [0.0, 2.0]]))  # diagonal 1 and 5
    >>> factor = MeanDiagonal().factor(table, jnp.zeros(2), Ridge(0.0))
    >>> factor.solve(jnp.array([3.0, 6.0])).tolist()
    [1.0, 2.0]
    """

    reusable: ClassVar[bool] = True
    """Whether a factor can be kept for several steps, as a pytree."""
    keeps_rows: ClassVar[bool] = False
    """Whether a factor contains A, so that a metric must have rows, and their number
    must be given if the factor is kept for several steps."""
    needs_full_rank: ClassVar[bool] = False
    """Whether a metric without damping must have at least as many rows as parameters,
    which is checked before it is computed."""

    @abc.abstractmethod
    def factor(
        self, linear: Linear, params: Params, regulariser: Regulariser
    ) -> Factor:
        """Regularised inverse of the metric `linear` at `params`."""


@recipe
class Dense(Structure):
    """The whole metric, as a matrix.

    >>> from probjax.natural import Ridge
    >>> from probjax.natural.operators import Table
    >>> table = Table(rows=jnp.array([[1.0, 1.0], [0.0, 2.0]]))  # G is [[1, 1], [1, 5]]
    >>> factor = Dense().factor(table, jnp.zeros(2), Ridge(0.0))
    >>> factor.solve(jnp.array([2.0, 6.0])).round().tolist()
    [1.0, 1.0]
    """

    needs_full_rank: ClassVar[bool] = True

    def factor(
        self, linear: Linear, params: Params, regulariser: Regulariser
    ) -> Blocked:
        groups = (tuple(range(len(jax.tree.leaves(params)))),)
        return _blocked(linear, params, regulariser, groups)


@recipe
class BlockDiagonal(Structure):
    """Blocks on the diagonal of the metric.

    Args:
        groups: a tree of labels like the parameters, or a prefix of it: leaves with the
            same label form one block. None for one block per leaf.

    >>> from probjax.natural import Ridge
    >>> from probjax.natural.operators import Table
    >>> rows = {"a": jnp.array([[1.0], [0.0]]), "b": jnp.array([[1.0], [2.0]])}
    >>> params = {"a": jnp.zeros(1), "b": jnp.zeros(1)}  # blocks 1 and 5
    >>> factor = BlockDiagonal().factor(Table(rows), params, Ridge(0.0))
    >>> found = factor.solve({"a": jnp.ones(1), "b": jnp.full(1, 5.0)})
    >>> float(found["a"][0]), round(float(found["b"][0]), 3)
    (1.0, 1.0)
    """

    groups: PyTree = static(default=None)

    def factor(
        self, linear: Linear, params: Params, regulariser: Regulariser
    ) -> Blocked:
        count = len(jax.tree.leaves(params))
        labels = list(range(count)) if self.groups is None else self._labels(params)
        groups = tuple(
            tuple(k for k in range(count) if labels[k] == label)
            for label in dict.fromkeys(labels)
        )
        return _blocked(linear, params, regulariser, groups)

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
    """The diagonal of the metric: one number per parameter.

    >>> from probjax.natural import Ridge
    >>> from probjax.natural.operators import Table
    >>> table = Table(rows=jnp.array([[1.0, 1.0], [0.0, 2.0]]))  # diagonal 1 and 5
    >>> factor = Diagonal().factor(table, jnp.zeros(2), Ridge(0.0))
    >>> factor.solve(jnp.array([1.0, 5.0])).round().tolist()
    [1.0, 1.0]
    """

    def factor(
        self, linear: Linear, params: Params, regulariser: Regulariser
    ) -> Lengths:
        flat, unravel = ravel_pytree(linear.diagonal())
        scale = flat.mean()
        inverse = regulariser.inverse(flat, scale)
        report = report_of(flat, inverse)
        refuse_singular(regulariser, report, flat.size)
        return Lengths(unravel(inverse), regulariser.shift(scale), report)


@recipe
class LowRank(Structure):
    """The whole metric, by the products of its rows: for fewer rows than parameters.

    No array of size parameters x parameters is formed. The scores are held in memory up
    to 2^27 entries; larger ones are computed again for each product.

    The report describes the whole metric, whose smallest eigenvalue is its damping.

    >>> from probjax.natural import Ridge
    >>> from probjax.natural.operators import Table
    >>> table = Table(rows=jnp.array([[2.0, 0.0]]))  # eigenvalues 4 and 0, mean 2
    >>> factor = LowRank().factor(table, jnp.zeros(2), Ridge(0.5))
    >>> factor.solve(jnp.array([5.0, 1.0])).round().tolist()
    [1.0, 1.0]
    """

    keeps_rows: ClassVar[bool] = True

    def factor(
        self, linear: Linear, params: Params, regulariser: Regulariser
    ) -> Woodbury:
        table = linear.held()
        if table is None:
            raise ValueError(
                "scores must give rows for LowRank(), got a metric that is a matrix; "
                "try Dense()"
            )
        _check_damped("LowRank()", regulariser)
        if table.num_rows > MOST_PARAMETERS:
            raise ValueError(
                f"LowRank() must have at most {MOST_PARAMETERS:,} rows, got "
                f"{table.num_rows:,}; try num_rows, Dense() or ConjugateGradient()"
            )
        gram = table.gram()
        size = ravel_pytree(params)[0].size
        scale = jnp.trace(gram) / size
        zero, one = jnp.zeros((), gram.dtype), jnp.ones((), gram.dtype)
        shift = regulariser.shift(scale)

        def by_eigenvalues():
            values, vectors = eigen(gram)
            inverse = regulariser.inverse(values, scale)
            first = zero
            if shift is None:
                first = regulariser.inverse(jnp.append(values, zero), scale)[-1]
            middle = (inverse - first) * inverted(values, 0)
            signs = jnp.where(middle < 0, -one, one)
            matrix = vectors * jnp.sqrt(jnp.abs(middle))[None]
            return matrix, signs, first, one, report_of(values, inverse)

        if shift is None:
            return Woodbury(table, shift, *by_eigenvalues())

        def by_cholesky():
            matrix, report = root(gram, regulariser, scale)
            largest = jnp.linalg.norm(gram)
            whole = Report(jnp.full_like(shift, size), (largest + shift) / shift)
            report = whole if table.num_rows < size else report
            return matrix, jnp.full(len(gram), one), 1 / shift, -1 / shift, report

        # If the damping is lost in rounding, null directions are set to 0.
        lost = shift <= hidden(gram)
        parts = jax.lax.cond(lost, by_eigenvalues, by_cholesky)
        return Woodbury(table, shift, *parts)


@recipe
class ConjugateGradient(Structure):
    """The whole metric, by its products with directions: for any number of parameters.

    Args:
        num_iterations: maximum number of products.
        tolerance: residual, relative to the gradient, at which iterations end.

    >>> from probjax.natural import Ridge
    >>> from probjax.natural.operators import Table
    >>> table = Table(rows=jnp.array([[2.0, 0.0]]))  # eigenvalues 4 and 0, mean 2
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
        self, linear: Linear, params: Params, regulariser: Regulariser
    ) -> Iterated:
        _check_damped("ConjugateGradient()", regulariser)
        scale = ravel_pytree(linear.diagonal())[0].mean()
        return Iterated(linear, regulariser, scale, self.tolerance, self.num_iterations)


def _blocked(linear, params, regulariser, groups):
    leaves = jax.tree.leaves(params)
    check_fits(max(sum(leaves[k].size for k in group) for group in groups))
    roots, shifts, reports = [], [], []
    for block in linear.squares(groups):
        scale = jnp.trace(block) / len(block)
        matrix, report = root(block, regulariser, scale)
        roots.append(matrix)
        shifts.append(regulariser.shift(scale))
        reports.append(report)
    ranks, conditions = map(jnp.stack, zip(*reports, strict=True))
    report = Report(ranks.sum(), conditions.max())
    refuse_singular(regulariser, report, sum(leaf.size for leaf in leaves))
    return Blocked(tuple(roots), tuple(shifts), groups, report)


def _check_damped(name, regulariser):
    if regulariser.is_exact():
        raise ValueError(
            f"damping must be above 0 for {name}, because the metric may be singular, "
            f"got {regulariser!r}; try damping=0.01, or Dense()"
        )
