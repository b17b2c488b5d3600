"""Forward and backward sums over a cyclic chain of rows, on the host in float64.

phi_r(s) is the weight of row r alone in state s. The weight of its interaction with the
next row in state t is V_r(s, t) = exp(-sum_c v_rc (2 s_c - 1)(2 t_c - 1) / 4). The last
row interacts with the first. With the first row fixed in state u, the rows after row r
have the total weight

    beta_r(s; u) = sum_t V_r(s, t) phi_{r+1}(t) beta_{r+1}(t; u)

with beta_{H-1}(s; u) = V_{H-1}(s, u), and the rows before row r have the total weight

    alpha_r(s; u) = sum_t V_{r-1}(t, s) phi_{r-1}(t) alpha_{r-1}(t; u)

with alpha_1(s; u) = V_0(u, s). So p(u) ~ phi_0(u) beta_0(u; u). Means are computed from
p(s_r | u) ~ alpha_r phi_r beta_r, and draws from
p(s_r | s_{r-1}, u) ~ V_{r-1}(s_{r-1}, s_r) phi_r(s_r) beta_r(s_r; u).

Tables are `(first, state)`: one row for each state u of the first row, one column for
each state s. They are rescaled in log space once per row of the lattice, and multiplied
in linear space. This is exact up to rounding if exp(sum_c |v_c| / 2), the largest ratio
of two weights of an interaction, is well within the range of float64.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from probjax.exact.lattice_graph import row_states

MAX_COUPLING = 1300
NEGLIGIBLE = 45
TABLE_SIZE = 2**16


class Rows(NamedTuple):
    """A cyclic chain of rows of binary units; an open chain has a coupling of 0."""

    log_weight: np.ndarray
    """log phi_r(s), `(row, state)`."""
    below: np.ndarray
    """Coupling v_rc of each unit to the unit below it, `(row, column)`."""
    states: np.ndarray
    """All states of one row, `(state, column)`."""


def block_size(num_states: int) -> int:
    """Return how many states of the first row fit into one table in cache."""
    return min(num_states, TABLE_SIZE // num_states)


def check(rows: Rows) -> None:
    """Raise if couplings are too strong for the range of float64."""
    largest = np.abs(rows.below).sum(axis=1).max()
    if largest > MAX_COUPLING:
        raise ValueError(
            "matrix must have couplings between two rows whose sum of |2 J_ij| is at "
            f"most {MAX_COUPLING}, got {largest:.5g}"
        )


def moments(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """Compute E[x_i] and E[x_i x_j] for all units, in the order of the rows."""
    height, width = rows.below.shape
    mean = np.zeros((height, width))
    second = np.zeros((height, width, height, width))
    for row in range(height):
        rotated = Rows(
            np.roll(rows.log_weight, -row, axis=0),
            np.roll(rows.below, -row, axis=0),
            rows.states,
        )
        p, means = _conditional_means(rotated, height - row - 1)
        weighted = p[:, None] * rows.states
        mean[row] = weighted.sum(axis=0)
        second[row, :, row] = weighted.T @ rows.states
        across = np.tensordot(weighted, means, axes=(0, 0))
        second[row, :, row + 1 :] = across
        second[row + 1 :, :, row] = across.transpose(1, 2, 0)
    size = height * width
    return mean.reshape(size), second.reshape(size, size)


def sample(rows: Rows, uniforms: np.ndarray) -> np.ndarray:
    """Draw states, `(draw, row, column)`.

    Args:
        uniforms: uniform random numbers in (0, 1), `(draw, row)`.
    """
    drawn = np.zeros(uniforms.shape, int)
    closed = np.any(rows.below[-1])
    cumulative = np.cumsum(_first_row(rows, closed))
    drawn[:, 0] = np.searchsorted(cumulative, cumulative[-1] * uniforms[:, 0])
    # In an open chain, the rows after a row do not depend on the first row.
    first, which = np.unique(closed * drawn[:, 0], return_inverse=True)
    for block in _blocks(rows, len(first)):
        tables, _ = _backward(rows, first[block])
        here = np.flatnonzero((block.start <= which) & (which < block.stop))
        for some in np.array_split(here, 1 + len(here) // 512):
            for row, table in enumerate(tables, start=1):
                weight = _interactions(rows.below[row - 1], drawn[some, row - 1])
                weight *= table[which[some] - block.start]
                drawn[some, row] = _pick(weight, uniforms[some, row])
    return rows.states[drawn]


def _first_row(rows, closed):
    """Compute the probabilities of the first row's states, up to a factor."""
    if closed:
        log_beta = np.concatenate(
            [
                _on_diagonal(_backward(rows, first)[1], first)
                for first in _first_row_blocks(rows)
            ]
        )
    else:
        log_beta = _backward(rows, np.zeros(1, int))[1][0]
    log_p = rows.log_weight[0] + log_beta
    return np.exp(log_p - log_p.max())


def _conditional_means(rows, num_rows):
    """Return p(u) for the first row, and E[x | u] for the next `num_rows` rows."""
    log_p = rows.log_weight[0].copy()
    means = np.zeros((len(rows.states), num_rows, rows.states.shape[1]))
    for first in _first_row_blocks(rows):
        tables, log_beta = _backward(rows, first)
        log_p[first] += _on_diagonal(log_beta, first)
        alpha = _interactions(rows.below[0], first)
        for row in range(1, num_rows + 1):
            joint = alpha * tables[row - 1]
            means[first, row - 1] = joint @ rows.states / joint.sum(axis=1)[:, None]
            table, _ = _scaled(np.log(alpha) + rows.log_weight[row], rows.below[row])
            alpha = _sum_row(rows.below[row], table)
    p = np.exp(log_p - log_p.max())
    return p / p.sum(), means


def _backward(rows, first):
    """Return the tables phi_r beta_r of rows 1, 2, ..., and log beta_0.

    The largest entry of each table is 1, for each state of the first row in `first`.
    """
    tables = []
    log_beta = np.log(_interactions(rows.below[-1], first))
    for row in reversed(range(1, len(rows.below))):
        couplings = rows.below[row - 1]
        table, largest = _scaled(log_beta + rows.log_weight[row], couplings)
        log_beta = np.log(_sum_row(couplings, table)) + largest
        tables.append(table)
    return tables[::-1], log_beta


def _scaled(log_table, couplings):
    """Return exp(log_table - largest), and the largest entry for each first state.

    Entries that are negligible after any interaction with the next row are raised to a
    floor that is negligible, too, because arithmetic with subnormal numbers is slow.
    """
    largest = log_table.max(axis=1, keepdims=True)
    floor = -NEGLIGIBLE - np.abs(couplings).sum() / 2
    return np.exp(np.maximum(log_table - largest, floor)), largest


def _sum_row(couplings, table):
    """Compute sum_t V(s, t) table(t), where V is a product over two halves of a row."""
    left, right = _halves(couplings)
    parts = table.reshape(-1, len(left), len(right))
    return (left @ parts @ right).reshape(table.shape)


def _interactions(couplings, states):
    """Compute V(s, t) for the states s with the given numbers, and all states t."""
    left, right = _halves(couplings)
    first, second = np.divmod(states, len(right))
    parts = left[first][:, :, None] * right[second][:, None]
    return parts.reshape(len(states), -1)


def _halves(couplings):
    """Return the factors of V for the first and the second half of the columns."""
    return [
        np.exp(-(spins * half) @ spins.T / 4)
        for half in np.array_split(couplings, 2)
        for spins in [2 * row_states(len(half)) - 1]
    ]


def _on_diagonal(table, first):
    """Return the entries at which the state is that of the first row."""
    return table[np.arange(len(first)), first]


def _pick(weight, uniform):
    """Choose a column of each row, with probability proportional to its weight."""
    cumulative = np.cumsum(weight, axis=1)
    return (cumulative < cumulative[:, -1:] * uniform[:, None]).sum(axis=1)


def _first_row_blocks(rows) -> Iterator[np.ndarray]:
    """Iterate over blocks of the numbers of all states of the first row."""
    numbers = np.arange(len(rows.states))
    return (numbers[block] for block in _blocks(rows, len(numbers)))


def _blocks(rows, count) -> Iterator[slice]:
    size = block_size(len(rows.states))
    return (slice(start, start + size) for start in range(0, count, size))
