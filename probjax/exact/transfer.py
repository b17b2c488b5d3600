"""Cyclic chains of lattice rows, summed on the host in float64.

Row r by itself weighs phi_r(s) in state s, and its meeting the next row in state t weighs
V_r(s, t) = exp(-sum_c v_rc (2 s_c - 1)(2 t_c - 1) / 4); the last row meets the first. With
the first row held in state u, what follows row r weighs

    beta_r(s; u) = sum_t V_r(s, t) phi_{r+1}(t) beta_{r+1}(t; u)

with beta_{H-1}(s; u) = V_{H-1}(s, u), and what precedes it weighs

    alpha_r(s; u) = sum_t V_{r-1}(t, s) phi_{r-1}(t) alpha_{r-1}(t; u)

with alpha_1(s; u) = V_0(u, s). Then p(u) ~ phi_0(u) beta_0(u; u) and
p(s_r | u) ~ alpha_r phi_r beta_r; draws follow p(s_r | s_{r-1}, u) ~ V_{r-1} phi_r beta_r.

Tables are rescaled once per row, through logarithms, and multiplied in the linear domain
between. That is exact to rounding as long as exp(sum_c |v_c| / 2), the most by which a
meeting can prefer one state to another, is well within the range of float64.
"""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

STRONGEST = 1300
NEGLIGIBLE = 45
TABLE = 2**16
GROUP = 5


class Rows(NamedTuple):
    """A cyclic chain of rows of binary units; an open one has no couplings at its end."""

    log_weight: np.ndarray
    """log phi_r(s), `(row, state)`."""
    below: np.ndarray
    """v_rc, the coupling of each unit to the one below it, `(row, column)`."""
    states: np.ndarray
    """The states of one row, `(state, column)`."""


def row_states(width: int) -> np.ndarray:
    """All states of a row, its first unit the most significant."""
    return (np.arange(2**width)[:, None] >> np.arange(width)[::-1] & 1).astype(float)


def block_size(num_states: int) -> int:
    """For how many held states to carry tables at once, so that they stay in cache."""
    return min(num_states, TABLE // num_states)


def check(rows: Rows) -> None:
    """Refuse couplings that would leave the range of float64."""
    strongest = np.abs(rows.below).sum(axis=1).max()
    if strongest > STRONGEST:
        raise ValueError(
            f"matrix must couple two rows by at most {STRONGEST} in the sum of |2 J_ij|, "
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
    for block in _blocks(rows, held):
        tables, _ = _backward(rows, held[block])
        tables = [np.ascontiguousarray(table.T) for table in tables]
        here = np.flatnonzero((block.start <= which) & (which < block.stop))
        for some in np.array_split(here, 1 + here.size * len(rows.states) // 2**18):
            column = which[some] - block.start
            for row, table in enumerate(tables, start=1):
                weight = _meetings(rows.below[row - 1], drawn[some, row - 1])
                weight *= table[column]
                drawn[some, row] = _pick(weight, uniforms[some, row])
    return rows.states[drawn]


def _first_row(rows, closed):
    """The probabilities of the first row's states, up to a factor."""
    if closed:
        every = np.arange(len(rows.states))
        blocks = [every[block] for block in _blocks(rows, every)]
        tables = (_backward(rows, held)[1] for held in blocks)
        log_beta = np.concatenate(
            [table[held, np.arange(len(held))] for held, table in zip(blocks, tables)]
        )
    else:
        log_beta = _backward(rows, np.zeros(1, int))[1][:, 0]
    log_p = rows.log_weight[0] + log_beta
    return np.exp(log_p - log_p.max())


def _held_means(rows, num_rows):
    """p(u) for every state of the first row, and E[x | u] in the `num_rows` after it."""
    every = np.arange(len(rows.states))
    log_p = rows.log_weight[0].copy()
    means = np.zeros((len(every), num_rows, rows.states.shape[1]))
    for block in _blocks(rows, every):
        held = every[block]
        tables, log_beta = _backward(rows, held)
        log_p[held] += log_beta[held, np.arange(len(held))]
        alpha = np.exp(_log_meetings(rows, 0, held))
        for row in range(1, num_rows + 1):
            joint = alpha * tables[row - 1]
            means[block, row - 1] = joint.T @ rows.states / joint.sum(axis=0)[:, None]
            log_table = np.log(alpha) + rows.log_weight[row][:, None]
            table, _ = _scaled(log_table, rows.below[row])
            alpha = _sum_row(rows.below[row], table)
    p = np.exp(log_p - log_p.max())
    return p / p.sum(), means


def _backward(rows, held):
    """phi_r beta_r for rows 1, 2, ..., scaled to a largest entry of 1; log beta_0.

    Tables are `(state, held)`.
    """
    tables = []
    log_beta = _log_meetings(rows, -1, held)
    for row in reversed(range(1, len(rows.below))):
        log_table = log_beta + rows.log_weight[row][:, None]
        table, largest = _scaled(log_table, rows.below[row - 1])
        log_beta = np.log(_sum_row(rows.below[row - 1], table)) + largest
        tables.append(table)
    return tables[::-1], log_beta


def _scaled(log_table, couplings):
    """exp(log_table) with a largest entry of 1 in each column, and the log of the factor.

    What is too small to matter, whatever state it next meets, is set to 0: the smallest
    numbers that float64 can hold are slow to compute with.
    """
    largest = log_table.max(axis=0)
    table = log_table - largest
    table[table < -NEGLIGIBLE - np.abs(couplings).sum() / 2] = -np.inf
    return np.exp(table), largest


def _sum_row(couplings, table):
    """sum_t V(s, t) table(t), a group of columns at a time; V is symmetric."""
    shape = table.shape
    left = 1
    for kernel in _kernels(couplings):
        table = kernel @ table.reshape(left, len(kernel), -1)
        left *= len(kernel)
    return table.reshape(shape)


def _meetings(couplings, states):
    """V(s, t) for some s, by number, and every t."""
    table = np.ones((len(states), 1))
    for kernel in reversed(_kernels(couplings)):
        states, part = np.divmod(states, len(kernel))
        table = (kernel[part][:, :, None] * table[:, None]).reshape(len(states), -1)
    return table


def _log_meetings(rows, row, held):
    """log V(s, u) for every s and some u, by number."""
    spins = 2 * rows.states - 1
    return -(spins * rows.below[row]) @ spins[held].T / 4


def _kernels(couplings):
    """V as a product over groups of columns."""
    groups = np.array_split(couplings, -(-len(couplings) // GROUP))
    spins = [2 * row_states(len(group)) - 1 for group in groups]
    return [
        np.exp(-(spin * group) @ spin.T / 4)
        for spin, group in zip(spins, groups, strict=True)
    ]


def _pick(weight, uniform):
    """One column of each row, with probability in proportion to its weight."""
    cumulative = np.cumsum(weight, axis=1)
    return (cumulative < cumulative[:, -1:] * uniform[:, None]).sum(axis=1)


def _blocks(rows, held) -> Iterator[slice]:
    size = block_size(len(rows.states))
    return (slice(start, start + size) for start in range(0, len(held), size))
