"""Solving G u = g: which part of a metric is kept, and how its inverse is tamed.

Structures say what of G is used, from all of it to its diagonal. Regularisers say what
becomes of an eigenvalue g of it, relative to the mean s of its diagonal, so that a
number means the same whatever the units of the parameters:

    Ridge            1 / (g + d s),          by Cholesky factors;
    Robust           g / (g^2 + e s^2),      the thesis' (G'G + e I)^-1 G';
    PseudoInverse    1 / g, or 0 below a share of the largest.

With few rows and many parameters, A being (row, n) and K = AA' small,

    f(G) g = f(0) g + A' M A g,    M = (f(K) - f(0)) K^-1,

which for `Ridge` is Woodbury's identity.

Reference: thesis, "Regularization" and "Diagonal approximation"; Boyd and Vandenberghe,
Convex Optimization (2004), 6.4.1. Low rank: Chen and Heyl, Nature Physics 20, 1476
(2024).
"""

from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree
from jax.scipy.linalg import solve_triangular
from jax.scipy.sparse.linalg import cg

from probjax.natural.linear import (
    MOST_PARAMETERS,
    Groups,
    Known,
    Linear,
    Streamed,
    Table,
    check_fits,
)
from probjax.types import (
    Array,
    Float,
    Params,
    PyTree,
    Scalar,
    check_count,
    is_concrete,
    recipe,
    static,
)


class Regulariser(Protocol):
    """What becomes of the eigenvalues of a metric."""

    def inverse(self, values: Array, scale: Scalar) -> Array:
        """Of eigenvalues, the mean of all being `scale`."""
        ...


@recipe
class Ridge:
    """Eigenvalues g are inverted as 1 / (g + d s), s being their mean.

    >>> Ridge(1.0).inverse(jnp.array([0.0, 3.0]), scale=jnp.array(1.0)).tolist()
    [1.0, 0.25]
    """

    damping: float = 1e-2

    def __post_init__(self):
        _check_positive("damping", self.damping, zero=True)

    def inverse(self, values: Array, scale: Scalar) -> Array:
        # With next to no damping, directions that have no length are left alone.
        return _inverted(values + self.shift(scale), _rounding(values))

    def shift(self, scale: Scalar) -> Scalar:
        """What is added to the metric."""
        return jnp.asarray(self.damping, scale.dtype) * scale


@recipe
class Robust:
    """As g / (g^2 + e s^2): those far below the root of e are frozen, not damped.

    >>> Robust(1.0).inverse(jnp.array([0.0, 1.0]), scale=jnp.array(1.0)).tolist()
    [0.0, 0.5]
    """

    epsilon: float = 1e-2

    def __post_init__(self):
        _check_positive("epsilon", self.epsilon)

    def inverse(self, values: Array, scale: Scalar) -> Array:
        return values / (values**2 + self.square(scale))

    def square(self, scale: Scalar) -> Scalar:
        """What is added to the square of the metric."""
        return jnp.asarray(self.epsilon, scale.dtype) * scale**2


@recipe
class PseudoInverse:
    """As 1 / g, or as 0 if they are below a share of the largest.

    >>> PseudoInverse().inverse(jnp.array([0.0, 2.0]), scale=jnp.array(1.0)).tolist()
    [0.0, 0.5]
    """

    cut: float = 1e-6

    def __post_init__(self):
        _check_positive("cut", self.cut)

    def inverse(self, values: Array, scale: Scalar) -> Array:
        return _inverted(
            values, jnp.maximum(self.cut * values.max(), _rounding(values))
        )


class Report(NamedTuple):
    """How a solve went; NaN for what it cannot know.

    >>> table = Table(rows=jnp.array([[1.0, 0.0], [0.0, 2.0]]))  # G is of 1 and 4
    >>> report = Dense().factor(table, jnp.zeros(2), Ridge(0.0)).report
    >>> float(report.rank), round(float(report.condition), 3)
    (2.0, 4.0)
    """

    rank: Scalar
    """How many directions of the metric were inverted."""
    condition: Scalar
    """Of what was inverted: its largest over its smallest eigenvalue, or so."""


class Factor(Protocol):
    """The inverse of a metric."""

    @property
    def report(self) -> Report: ...

    def solve(self, tree: PyTree) -> PyTree:
        """It times a tree like the parameters."""
        ...

    def damped(self, tree: PyTree) -> PyTree:
        """What damping adds to the metric, times a tree."""
        ...


class Structure(Protocol):
    """Which part of a metric is used."""

    def factor(self, linear: Linear, params: Params, regulariser: Any) -> Factor: ...


@recipe
class Dense:
    """All of the metric.

    >>> table = Table(rows=jnp.array([[1.0, 1.0], [0.0, 2.0]]))  # G is [[1, 1], [1, 5]]
    >>> factor = Dense().factor(table, jnp.zeros(2), Ridge(0.0))
    >>> factor.solve(jnp.array([2.0, 6.0])).round().tolist()
    [1.0, 1.0]
    """

    def factor(self, linear: Linear, params: Params, regulariser: Any) -> "Blocked":
        groups = (tuple(range(len(jax.tree.leaves(params)))),)
        return _blocked(linear, params, regulariser, groups)


@recipe
class Blocks:
    """Blocks on the diagonal, of parameters that belong together.

    Args:
        groups: a tree of labels like the parameters, or a prefix of it: leaves with the
            same label are one block. None for a block a leaf.

    >>> rows = {"a": jnp.array([[1.0], [0.0]]), "b": jnp.array([[1.0], [2.0]])}
    >>> params = {"a": jnp.zeros(1), "b": jnp.zeros(1)}  # G is of blocks 1 and 5
    >>> factor = Blocks().factor(Table(rows), params, Ridge(0.0))
    >>> found = factor.solve({"a": jnp.ones(1), "b": jnp.full(1, 5.0)})
    >>> float(found["a"][0]), round(float(found["b"][0]), 3)
    (1.0, 1.0)
    """

    groups: PyTree = static(default=None)

    def factor(self, linear: Linear, params: Params, regulariser: Any) -> "Blocked":
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
                f"{jax.tree.structure(params)}, got {jax.tree.structure(self.groups)}"
            ) from None


@recipe
class Diagonal:
    """The diagonal alone: a length for every parameter.

    >>> table = Table(rows=jnp.array([[1.0, 1.0], [0.0, 2.0]]))  # of diagonal 1 and 5
    >>> factor = Diagonal().factor(table, jnp.zeros(2), Ridge(0.0))
    >>> factor.solve(jnp.array([1.0, 5.0])).round().tolist()
    [1.0, 1.0]
    """

    def factor(self, linear: Linear, params: Params, regulariser: Any) -> "Lengths":
        flat, unravel = ravel_pytree(linear.diagonal())
        scale = flat.mean()
        inverse = regulariser.inverse(flat, scale)
        report = report_of(flat, inverse)
        refuse_singular(regulariser, report, flat.size)
        return Lengths(unravel(inverse), _shift(regulariser, scale), report)


@recipe
class LowRank:
    """All of the metric, by the products of its rows: for fewer rows than parameters.

    Nothing of the size of parameters x parameters is made. The scores themselves are
    held up to 2^27 entries; above that they are made again where they are needed.

    Its report is of the whole metric, the damping of which is its least eigenvalue.

    >>> table = Table(rows=jnp.array([[2.0, 0.0]]))  # G is of 4 and 0, their mean 2
    >>> factor = LowRank().factor(table, jnp.zeros(2), Ridge(0.5))
    >>> factor.solve(jnp.array([5.0, 1.0])).round().tolist()
    [1.0, 1.0]
    """

    def factor(self, linear: Linear, params: Params, regulariser: Any) -> "Woodbury":
        if isinstance(linear, Known):
            raise ValueError(
                "LowRank() is for scores of rows, and this metric is a matrix: use "
                "Dense()"
            )
        if isinstance(regulariser, Ridge):
            _refuse_no_damping("LowRank()", regulariser)
        table = linear.held()  # pyright: ignore[reportAttributeAccessIssue]
        if table.num_rows > MOST_PARAMETERS:
            raise ValueError(
                f"LowRank() multiplies {table.num_rows:,} rows by each other: use "
                "num_rows, Dense() or ConjugateGradient()"
            )
        gram = table.gram()
        size = ravel_pytree(params)[0].size
        scale = jnp.trace(gram) / size

        def by_eigenvalues():
            values, vectors = eigen(gram)
            inverse = regulariser.inverse(values, scale)
            root = vectors * jnp.sqrt(inverse * _inverted(values, 0))[None]
            zero, one = jnp.zeros((), gram.dtype), jnp.ones((), gram.dtype)
            return root, zero, one, report_of(values, inverse)

        if not isinstance(regulariser, Ridge):
            root, first, factor, report = by_eigenvalues()
            return Woodbury(table, root, first, factor, first, report, False)
        shift = regulariser.shift(scale)

        def by_cholesky():
            root, report = _root(gram, Ridge(1.0), shift)
            largest = jnp.linalg.norm(gram)
            whole = Report(jnp.full_like(shift, size), (largest + shift) / shift)
            report = whole if table.num_rows < size else report
            return root, 1 / shift, -1 / shift, report

        # Where rounding hides the damping, what it would move is left alone.
        lost = shift <= _hidden(gram)
        root, first, factor, report = jax.lax.cond(lost, by_eigenvalues, by_cholesky)
        return Woodbury(table, root, first, factor, shift, report, True)


@recipe
class ConjugateGradient:
    """All of the metric, by its products with directions: for any number of parameters.

    Args:
        num_iterations: products at most.
        tolerance: the residual to stop at, relative to the gradient.

    >>> table = Table(rows=jnp.array([[2.0, 0.0]]))  # G is of 4 and 0, their mean 2
    >>> factor = ConjugateGradient().factor(table, jnp.zeros(2), Ridge(0.5))
    >>> factor.solve(jnp.array([5.0, 1.0])).round().tolist()
    [1.0, 1.0]
    """

    num_iterations: int = static(default=100)
    tolerance: float = 1e-5

    def __post_init__(self):
        check_count("num_iterations", self.num_iterations)

    def factor(self, linear: Linear, params: Params, regulariser: Any) -> "Iterated":
        if isinstance(regulariser, PseudoInverse):
            raise ValueError(
                "conjugate gradients know no eigenvalues: use Ridge or Robust"
            )
        if isinstance(regulariser, Ridge):
            _refuse_no_damping("ConjugateGradient()", regulariser)
        scale = ravel_pytree(linear.diagonal())[0].mean()
        return Iterated(linear, self, regulariser, scale)


def as_regulariser(damping: Any) -> Any:
    """`damping`, a number of which is that of a `Ridge`."""
    return damping if hasattr(damping, "inverse") else Ridge(damping)


@recipe
class Blocked:
    """F with FF' the inverse, block by block."""

    roots: tuple[Array, ...]
    shifts: tuple[Scalar, ...]
    report: Report
    groups: Groups = static()

    def solve(self, tree: PyTree) -> PyTree:
        def product(k, flat):
            return self.roots[k] @ (self.roots[k].T @ flat)

        return self._mapped(tree, product)

    def damped(self, tree: PyTree) -> PyTree:
        return self._mapped(tree, lambda k, flat: self.shifts[k] * flat)

    def _mapped(self, tree, function):
        leaves, form = jax.tree.flatten(tree)
        for k, group in enumerate(self.groups):
            flat, unravel = ravel_pytree([leaves[place] for place in group])
            for place, leaf in zip(group, unravel(function(k, flat)), strict=True):
                leaves[place] = leaf
        return form.unflatten(leaves)


@recipe
class Lengths:
    """The inverse of a diagonal."""

    inverse: PyTree
    shift: Scalar
    report: Report

    def solve(self, tree: PyTree) -> PyTree:
        return jax.tree.map(jnp.multiply, self.inverse, tree)

    def damped(self, tree: PyTree) -> PyTree:
        return _scaled(self.shift, tree)


@recipe
class Woodbury:
    """first + A' (factor FF') A."""

    table: Table | Streamed
    root: Float[Array, "row row"]
    first: Scalar
    factor: Scalar
    shift: Scalar
    report: Report
    refined: bool = static()

    def solve(self, tree: PyTree) -> PyTree:
        found = self._solve(tree)
        if not self.refined:
            return found
        # Where the metric is far above its damping, two large parts have cancelled:
        # once more for what is left over.
        metric = jax.tree.map(jnp.add, self.table.times(found), self.damped(found))
        again = self._solve(jax.tree.map(jnp.subtract, tree, metric))
        return jax.tree.map(jnp.add, found, again)

    def damped(self, tree: PyTree) -> PyTree:
        return _scaled(self.shift, tree)

    def _solve(self, tree):
        rows = self.table.along(tree)
        rows = self.factor * (self.root @ (self.root.T @ rows))
        back = self.table.back(rows)
        return jax.tree.map(lambda a, b: self.first * a + b, tree, back)


@recipe
class Iterated:
    """A metric to be inverted by its products."""

    linear: Any
    method: ConjugateGradient
    regulariser: Any
    scale: Scalar

    @property
    def report(self) -> Report:
        unknown = jnp.full((), jnp.nan, self.scale.dtype)
        return Report(unknown, unknown)

    def solve(self, tree: PyTree) -> PyTree:
        times = self.linear.times

        def ridge(tree):
            return jax.tree.map(jnp.add, times(tree), self.damped(tree))

        def robust(tree):
            square = _scaled(self.regulariser.square(self.scale), tree)
            return jax.tree.map(jnp.add, times(times(tree)), square)

        is_ridge = isinstance(self.regulariser, Ridge)
        operator, right = (ridge, tree) if is_ridge else (robust, times(tree))
        found, _ = cg(
            operator,
            right,
            tol=self.method.tolerance,
            maxiter=self.method.num_iterations,
        )
        # The method itself leaves a NaN alone, and makes one of a metric that is 0.
        sound = jnp.where(jnp.isnan(self.scale), jnp.nan, self.scale) > 0
        unsound = jnp.where(jnp.isnan(self.scale), jnp.nan, 0.0)
        return jax.tree.map(lambda leaf: jnp.where(sound, leaf, unsound), found)

    def damped(self, tree: PyTree) -> PyTree:
        return _scaled(_shift(self.regulariser, self.scale), tree)


def _blocked(linear, params, regulariser, groups):
    leaves = jax.tree.leaves(params)
    check_fits(max(sum(leaves[k].size for k in group) for group in groups))
    roots, shifts, reports = [], [], []
    for block in linear.squares(groups):
        scale = jnp.trace(block) / len(block)
        root, report = _root(block, regulariser, scale)
        roots.append(root)
        shifts.append(_shift(regulariser, scale))
        reports.append(report)
    ranks, conditions = map(jnp.stack, zip(*reports, strict=True))
    report = Report(ranks.sum(), conditions.max())
    refuse_singular(regulariser, report, sum(leaf.size for leaf in leaves))
    return Blocked(tuple(roots), tuple(shifts), report, groups)


def _root(matrix, regulariser, scale):
    """F with FF' the inverse of a matrix, and a report."""

    def by_eigenvalues():
        values, vectors = eigen(matrix)
        inverse = regulariser.inverse(values, scale)
        return vectors * jnp.sqrt(inverse)[None], report_of(values, inverse)

    if not isinstance(regulariser, Ridge):
        return by_eigenvalues()
    unit = jnp.eye(len(matrix), dtype=matrix.dtype)
    shift = regulariser.shift(scale)
    lower = jnp.linalg.cholesky(matrix + shift * unit)

    def by_cholesky():
        lengths = jnp.diagonal(lower)
        rank = jnp.full((), len(matrix), matrix.dtype)
        condition = (lengths.max() / lengths.min()) ** 2
        root = solve_triangular(lower, unit, lower=True).T
        return root, Report(rank, condition)

    # Rounding may give a matrix a negative eigenvalue, and factors that do not exist;
    # or factors to one that has an eigenvalue of 0, if there is no damping.
    pivot = jnp.diagonal(lower).min() ** 2
    regular = (shift > _hidden(matrix)) | (pivot > _rounding(jnp.diagonal(matrix)))
    sound = jnp.all(jnp.isfinite(lower)) & regular
    # What is not finite goes through, to be seen.
    broken = ~jnp.all(jnp.isfinite(matrix))
    return jax.lax.cond(sound | broken, by_cholesky, by_eigenvalues)


def eigen(matrix: Float[Array, "n n"]) -> tuple[Array, Array]:
    """Eigenvalues, none below 0, and eigenvectors of a metric or a covariance."""
    values, vectors = jnp.linalg.eigh(matrix)
    return jnp.maximum(values, 0), vectors


def report_of(values: Array, inverse: Array) -> Report:
    """Of eigenvalues, and what has become of them."""
    used = (inverse > 0) & (values > _rounding(values))
    least = jnp.where(used, inverse, jnp.inf).min()
    most = jnp.where(used, inverse, 0).max()
    condition = jnp.where(used.any(), most / least, jnp.nan)
    return Report(used.sum().astype(values.dtype), condition)


def refuse_singular(regulariser: Any, report: Report, size: int) -> None:
    """Refuse a metric that has no inverse and no damping, where values are known."""
    damping = getattr(regulariser, "damping", None)
    if is_concrete((report, damping)) and damping == 0 and report.rank < size:
        raise ValueError(
            f"the metric is singular, of rank {int(report.rank)} in {size} parameters: "
            "give damping, or PseudoInverse()"
        )


def _inverted(values, least):
    """Above `least`, or NaN; the others are 0."""
    dropped = values <= least
    return jnp.where(dropped, 0, 1 / jnp.where(dropped, 1, values))


def _hidden(matrix):
    """What, added to its diagonal, rounding hides of in products with it."""
    return 10 * jnp.finfo(matrix.dtype).eps * jnp.linalg.norm(matrix)


def _rounding(values):
    """Of a symmetric matrix with these eigenvalues, what may as well be 0."""
    return values.size * jnp.finfo(values.dtype).eps * values.max()


def _shift(regulariser, scale):
    none = jnp.zeros((), scale.dtype)
    return regulariser.shift(scale) if isinstance(regulariser, Ridge) else none


def _scaled(scale, tree):
    return jax.tree.map(lambda leaf: scale.astype(leaf.dtype) * leaf, tree)


def _refuse_no_damping(name, regulariser):
    if is_concrete(regulariser.damping) and regulariser.damping == 0:
        raise ValueError(
            f"{name} cannot do without damping, as it may meet a singular metric: give "
            "some, or use Dense()"
        )


def _check_positive(name, value, *, zero=False):
    if is_concrete(value) and not (value > 0 or (zero and value == 0)):
        raise ValueError(
            f"{name} must be {'0 or above' if zero else 'above 0'}, got {value}"
        )
