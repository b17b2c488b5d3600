"""Cyclic chains of lattice rows, summed on the host in float64.

Row r by itself weighs phi_r(s) in state s, and its meeting the next row in state t
weighs V_r(s, t) = exp(-sum_c v_rc (2 s_c - 1)(2 t_c - 1) / 4); the last row meets the
first. With the first row held in state u, what follows row r weighs

    beta_r(s; u) = sum_t V_r(s, t) phi_{r+1}(t) beta_{r+1}(t; u)

with beta_{H-1}(s; u) = V_{H-1}(s, u), and what precedes it weighs

    alpha_r(s; u) = sum_t V_{r-1}(t, s) phi_{r-1}(t) alpha_{r-1}(t; u)

with alpha_1(s; u) = V_0(u, s). So p(u) ~ phi_0(u) beta_0(u; u), the mean of a row comes
from p(s_r | u) ~ alpha_r phi_r beta_r, and its draws from
p(s_r | s_{r-1}, u) ~ V_{r-1}(s_{r-1}, s_r) phi_r(s_r) beta_r(s_r; u).

Tables are `(held, state)`. They are rescaled once per row, through logarithms, and
multiplied in the linear domain between. That is exact to rounding as long as
exp(sum_c |v_c| / 2), the most by which a meeting can prefer one state to another, is
well within the range of float64.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from probjax.exact.lattice_graph import row_states

STRONGEST = 1300
NEGLIGIBLE = 45
TABLE = 2**16


class Rows(NamedTuple):
    """A cyclic chain of rows of binary units; where it is open, it couples by 0."""

    log_weight: np.ndarray
    """log phi_r(s), `(row, state)`."""
    below: np.ndarray
    """v_rc, the coupling of each unit to the one below it, `(row, column)`."""
    states: np.ndarray
    """The states of one row, `(state, column)`."""


def block_size(num_states: int) -> int:
    """For how many held states to carry tables at once, so that they stay in cache."""
    return min(num_states, TABLE // num_states)


def check(rows: Rows) -> None:
    """Refuse couplings that would leave the range of float64."""
    strongest = np.abs(rows.below).sum(axis=1).max()
    if strongest > STRONGEST:
        raise ValueError(
            f"matrix must couple two rows by at most {STRONGEST} in sum |2 J_ij|, "
            f"got {strongest:.5g}"
        )


def moments(rows: Rows) -> tuple[np.ndarray, np.ndarray]:
    """E[x_i] and E[x_i x_j] of the units, row by row."""
    height, width = rows.below.shape
    mean = np.zeros((height, width))
    second = np.zeros((height, width, height, width))
    for row in range(height):
        turned = Rows(
            np.roll(rows.log_weight, -row, axis=0),
            np.roll(rows.below, -row, axis=0),
            rows.states,
        )
        p, means = _held_means(turned, height - row - 1)
        held = p[:, None] * rows.states
        mean[row] = held.sum(axis=0)
        second[row, :, row] = held.T @ rows.states
        across = np.tensordot(held, means, axes=(0, 0))
        second[row, :, row + 1 :] = across
        second[row + 1 :, :, row] = across.transpose(1, 2, 0)
    size = height * width
    return mean.reshape(size), second.reshape(size, size)


def sample(rows: Rows, uniforms: np.ndarray) -> np.ndarray:
    """A draw `(row, column)` for each draw's `uniforms` in (0, 1), `(draw, row)`."""
    drawn = np.zeros(uniforms.shape, int)
    closed = np.any(rows.below[-1])
    cumulative = np.cumsum(_first_row(rows, closed))
    drawn[:, 0] = np.searchsorted(cumulative, cumulative[-1] * uniforms[:, 0])
    # What follows a row of an open chain does not depend on the first.
    held, which = np.unique(closed * drawn[:, 0], return_inverse=True)
    for block in _blocks(rows, len(held)):
        tables, _ = _backward(rows, held[block])
        here = np.flatnonzero((block.start <= which) & (which < block.stop))
        for some in np.array_split(here, 1 + len(here) // 512):
            for row, table in enumerate(tables, start=1):
                weight = _meetings(rows.below[row - 1], drawn[some, row - 1])
                weight *= table[which[some] - block.start]
                drawn[some, row] = _pick(weight, uniforms[some, row])
    return rows.states[drawn]


def _first_row(rows, closed):
    """The probabilities of the first row's states, up to a factor."""
    if closed:
        log_beta = np.concatenate(
            [
                _on_diagonal(_backward(rows, held)[1], held)
                for held in _held_blocks(rows)
            ]
        )
    else:
        log_beta = _backward(rows, np.zeros(1, int))[1][0]
    log_p = rows.log_weight[0] + log_beta
    return np.exp(log_p - log_p.max())


def _held_means(rows, num_rows):
    """p(u) of the first row's states, and E[x | u] in the `num_rows` that follow."""
    log_p = rows.log_weight[0].copy()
    means = np.zeros((len(rows.states), num_rows, rows.states.shape[1]))
    for held in _held_blocks(rows):
        tables, log_beta = _backward(rows, held)
        log_p[held] += _on_diagonal(log_beta, held)
        alpha = _meetings(rows.below[0], held)
        for row in range(1, num_rows + 1):
            joint = alpha * tables[row - 1]
            means[held, row - 1] = joint @ rows.states / joint.sum(axis=1)[:, None]
            table, _ = _scaled(np.log(alpha) + rows.log_weight[row], rows.below[row])
            alpha = _sum_row(rows.below[row], table)
    p = np.exp(log_p - log_p.max())
    return p / p.sum(), means


def _backward(rows, held):
    """phi_r beta_r for rows 1, 2, ..., scaled to a largest entry of 1; log beta_0."""
    tables = []
    log_beta = np.log(_meetings(rows.below[-1], held))
    for row in reversed(range(1, len(rows.below))):
        couplings = rows.below[row - 1]
        table, largest = _scaled(log_beta + rows.log_weight[row], couplings)
        log_beta = np.log(_sum_row(couplings, table)) + largest
        tables.append(table)
    return tables[::-1], log_beta


def _scaled(log_table, couplings):
    """exp(log_table) with a largest entry of 1 for each held state, and its logarithm.

    Entries too small to matter, whatever state they next meet, are raised to a floor
    that is still too small to matter: the least numbers float64 can hold are slow.
    """
    largest = log_table.max(axis=1, keepdims=True)
    floor = -NEGLIGIBLE - np.abs(couplings).sum() / 2
    return np.exp(np.maximum(log_table - largest, floor)), largest


def _sum_row(couplings, table):
    """sum_t V(s, t) table(t); V is symmetric, and a product over halves of a row."""
    left, right = _halves(couplings)
    parts = table.reshape(-1, len(left), len(right))
    return (left @ parts @ right).reshape(table.shape)


def _meetings(couplings, states):
    """V(s, t) for some states s, by number, and every t."""
    left, right = _halves(couplings)
    first, second = np.divmod(states, len(right))
    parts = left[first][:, :, None] * right[second][:, None]
    return parts.reshape(len(states), -1)


def _halves(couplings):
    """V over the first and over the second half of the columns."""
    return [
        np.exp(-(spins * half) @ spins.T / 4)
        for half in np.array_split(couplings, 2)
        for spins in [2 * row_states(len(half)) - 1]
    ]


def _on_diagonal(table, held):
    """The entries in which a row is in the held state itself."""
    return table[np.arange(len(held)), held]


def _pick(weight, uniform):
    """One column of each row, with probability in proportion to its weight."""
    cumulative = np.cumsum(weight, axis=1)
    return (cumulative < cumulative[:, -1:] * uniform[:, None]).sum(axis=1)


def _held_blocks(rows) -> Iterator[np.ndarray]:
    every = np.arange(len(rows.states))
    return (every[block] for block in _blocks(rows, len(every)))


def _blocks(rows, count) -> Iterator[slice]:
    size = block_size(len(rows.states))
    return (slice(start, start + size) for start in range(0, count, size))
