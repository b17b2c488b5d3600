"""Values of pairs as vectors and as matrices, by index and row by row."""

import pickle
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probjax.models.pairs import (
    Edges,
    at_both_sites,
    checked_edges,
    num_pairs,
    pair_indices,
    pair_products,
    pair_values,
    sums_of_sites,
    upper_triangle,
)

SIZE = 5
SOME = ((0, 2), (1, 4), (3, 4))
EDGES = [None, SOME]
TAILS = [(), (2, 3)]


def drawn(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


def as_matrix(values, edges):
    matrix = np.zeros((SIZE, SIZE, *values.shape[1:]), values.dtype)
    for value, i, j in zip(values, *pair_indices(SIZE, edges), strict=True):
        matrix[i, j] = value
    return matrix


@pytest.mark.parametrize("edges", EDGES)
@pytest.mark.parametrize("tail", TAILS)
def test_values_are_above_the_diagonal_of_a_matrix(branch, edges, tail):
    values = drawn(num_pairs(SIZE, edges), *tail)
    triangle = partial(upper_triangle, size=SIZE, edges=edges)
    np.testing.assert_array_equal(triangle(values), as_matrix(values, edges))
    matrix = drawn(SIZE, SIZE, *tail)
    first, second = pair_indices(SIZE, edges)
    found = pair_values(matrix, edges)
    np.testing.assert_array_equal(found, matrix[first, second])


@pytest.mark.parametrize("edges", EDGES)
def test_both_forms_are_differentiated_and_batched(branch, edges):
    """The gradient of one map is the other map."""
    values, matrix = drawn(num_pairs(SIZE, edges), 2), drawn(SIZE, SIZE, 2)
    triangle = partial(upper_triangle, size=SIZE, edges=edges)
    slope = jax.grad(lambda values: jnp.sum(triangle(values) * matrix))(values)
    np.testing.assert_array_equal(slope, matrix[pair_indices(SIZE, edges)])

    def weighted_sum(matrix):
        return jnp.sum(pair_values(matrix, edges) * values)

    slope = jax.grad(weighted_sum)(matrix)
    np.testing.assert_array_equal(slope, as_matrix(values, edges))
    _, tangent = jax.jvp(triangle, (values,), (2 * values,))
    np.testing.assert_array_equal(tangent, 2 * as_matrix(values, edges))
    batch = jax.vmap(triangle, in_axes=1)(values)
    np.testing.assert_array_equal(batch[1], as_matrix(values[:, 1], edges))


@pytest.mark.parametrize("edges", EDGES)
def test_sums_of_sites_are_those_of_their_pairs(branch, edges):
    field, coupling = drawn(SIZE), drawn(num_pairs(SIZE, edges))
    at_first, at_second = at_both_sites(field, edges)
    found = sums_of_sites(coupling * at_second, coupling * at_first, SIZE, edges)
    half = as_matrix(coupling, edges)
    np.testing.assert_allclose(found, (half + half.T) @ field, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("platform", ["cpu", "tpu", "cuda"])
def test_programs_do_not_grow_with_the_number_of_sites(platform):
    def num_lines(size):
        values = jax.ShapeDtypeStruct((size * (size - 1) // 2,), np.float32)

        def total(values):
            return jnp.sum(upper_triangle(values, size, None) ** 2)

        traced = jax.jit(jax.grad(total)).trace(values)
        text = traced.lower(lowering_platforms=(platform,)).as_text()
        return sum("=" in line for line in text.splitlines())

    assert num_lines(30) == num_lines(7)


@pytest.mark.parametrize("edges", EDGES)
def test_products_are_those_of_both_sites(branch, edges):
    values = drawn(SIZE)
    first, second = pair_indices(SIZE, edges)
    found = pair_products(values, edges)
    np.testing.assert_array_equal(found, values[first] * values[second])


def test_edges_compare_by_value_and_do_not_change():
    edges, same = Edges(SOME), Edges(np.array(SOME, np.int64))
    assert edges == same
    assert hash(edges) == hash(same)
    assert edges != Edges(SOME[:2])
    assert edges != Edges(SOME[::-1])
    assert tuple(edges) == SOME
    assert edges[1] == (1, 4)
    assert len(edges) == 3
    assert edges[1:] == Edges(SOME[1:])
    assert (0, 2) in edges
    back = pickle.loads(pickle.dumps(edges))
    # Hashes of bytes differ between processes, so they are not stored.
    assert "_hash" not in vars(back)
    assert back == edges
    with pytest.raises(ValueError, match="read-only"):
        edges.array[0, 0] = 1
    pairs = np.array(SOME)
    kept = Edges(pairs)
    pairs[0] = 3, 4
    assert kept == edges


def test_many_edges_are_printed_by_their_number():
    assert repr(Edges(SOME)) == "Edges(((0, 2), (1, 4), (3, 4)))"
    assert repr(Edges(np.zeros((2000, 2)))) == "Edges(2000 pairs)"


@pytest.mark.parametrize("kind", [iter, tuple, set, np.array, Edges])
def test_any_iterable_of_pairs_is_checked(kind):
    found = checked_edges(kind([(2, 0), (1, 4)]), SIZE)
    assert sorted(found) == [(0, 2), (1, 4)]
