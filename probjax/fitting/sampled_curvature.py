"""Hessian of log Z from states of the model, for error bars of a sampled likelihood.

    d^2 log Z = Cov(dE) - mean of d^2 E,    over the model,

which is the Fisher matrix if E is linear in the parameters. The chains of the fit go on
at the estimate, with random numbers that are always the same, and are recorded
repeatedly. The rows of data are added to the states, because a pair of units that fires
together in a single row may be missing from the states.

The inverse of a covariance of k parameters from S states is too large. If V is the
covariance of independent rows, the mean of H^-1 V H^-1 is that of exact matrices times
(1 - k/S)^-3 for large S, and H is corrected accordingly.
"""

from collections.abc import Callable

import jax
import jax.numpy as jnp

from probjax.data.chunks import cut_chunk
from probjax.data.rows import num_rows
from probjax.fitting.curvature import hessian_by_columns
from probjax.fitting.dependence import depends_on_first
from probjax.interfaces import Objective
from probjax.trees import first_row
from probjax.types import Array, Context, Data, Float, Params

STATES_PER_PARAMETER, STATES_PER_ROW = 5, 10
"""Number of states, divided by the number of parameters and by that of rows; the second
is smaller if there are many parameters."""
_MOVES_BETWEEN = 5
# Largest number of states times the square of the number of parameters.
_MAX_PRODUCTS = 2**37
_MAX_ENTRIES = 2**22


def hessian_of_log_z(
    objective: Objective,
    data: Data,
    context: Context,
    to_params: Callable[[Array], Params],
    point: Float[Array, " n"],
) -> Float[Array, "n n"]:
    """Estimate the Hessian of log Z at a point.

    Args:
        context: context of the fit, whose chains go on.
        to_params: map from a point to parameters.
    """
    params = to_params(point)
    count = len(jax.tree.leaves(objective.states(context.shared))[0])
    num_records = -(-_num_states(num_rows(data), point.size) // count)

    def energy(point, x):
        return objective.energy(to_params(point), x)

    gradients = jax.vmap(jax.grad(energy), (None, 0))
    is_linear = not depends_on_first(jax.grad(energy), point, first_row(data.x))
    origin = gradients(point, jax.tree.map(lambda leaf: leaf[:1], data.x))[0]

    def add_states(x, weights, sums):
        """Add first and second moments of the gradients, less that of the first row."""
        size = max(1, min(len(weights), _MAX_ENTRIES // point.size))

        def add(i, sums):
            rows, share = cut_chunk(i, size, x, weights)
            found = gradients(point, rows) - origin[None]
            weighted = share[:, None] * found
            return sums[0] + weighted.sum(0), sums[1] + weighted.T @ found

        return jax.lax.fori_loop(0, -(-len(weights) // size), add, sums)

    def move(number, context):
        key = jax.random.fold_in(jax.random.key(0), number)
        return objective.refresh(key, params, data, context)

    def record(number, carry):
        context, sums, curved = carry
        start = number * _MOVES_BETWEEN
        context = jax.lax.fori_loop(start, start + _MOVES_BETWEEN, move, context)
        x = objective.states(context.shared)
        sums = add_states(x, jnp.ones(count, point.dtype), sums)

        if is_linear:
            return context, sums, curved

        def mean_gradient(point):
            return gradients(point, x).mean(0)

        return context, sums, curved + hessian_by_columns(mean_gradient, point)

    weights = data.weights
    weights = jnp.ones(num_rows(data)) if weights is None else weights
    weights = weights.astype(point.dtype)
    zeros = jnp.zeros_like(origin)
    matrix = jnp.outer(zeros, zeros)
    no_curve = jnp.zeros(()) if is_linear else matrix
    sums = add_states(data.x, weights, (zeros, matrix))
    start = (context, sums, no_curve)
    _, sums, curved = jax.lax.fori_loop(0, num_records, record, start)
    total = weights.sum() + num_records * count
    mean, square = sums[0] / total, sums[1] / total
    hessian = square - jnp.outer(mean, mean) - curved / num_records
    num_used = num_records * count + num_rows(data)
    return hessian / (1 - min(point.size / num_used, 0.5)) ** 1.5


def _num_states(rows, size):
    most = max(STATES_PER_PARAMETER * size, _MAX_PRODUCTS // size**2)
    return min(most, max(STATES_PER_PARAMETER * size, STATES_PER_ROW * rows))
