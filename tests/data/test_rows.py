import jax.numpy as jnp
import numpy as np
import pytest

from probjax import Data
from probjax.data import unique_rows
from probjax.data.rows import as_data


def test_unique_rows_count_their_copies():
    rows = np.array([[1, 0], [0, 1], [1, 0], [1, 0], [1, 1]])
    found = unique_rows(rows)
    np.testing.assert_array_equal(found.x, [[0, 1], [1, 0], [1, 1]])
    np.testing.assert_array_equal(found.weights, [1, 3, 1])


def test_unique_rows_add_up_the_weights_they_had():
    rows = np.array([[1, 0], [0, 1], [1, 0]])
    found = unique_rows(Data(rows, jnp.array([0.5, 2.0, 0.25])))
    np.testing.assert_array_equal(found.weights, [2.0, 0.75])


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (np.zeros((0, 3)), r"not be empty, got shape \(0, 3\)"),
        (np.zeros((3, 0)), "not be empty"),
        (np.float32(1), "leading axis of rows"),
        ([[0, 1], [1, 1]], "got scalars; try np.array"),
        (np.array([[0.0, np.nan]]), "finite"),
        (np.array([[0.0, np.inf]]), "finite"),
        ((np.zeros((3, 1)), np.zeros((4, 1))), r"same number of rows, got \[3, 4\]"),
        (Data(np.zeros((3, 1)), np.ones(4)), r"each of 3 rows, got shape \(4,\)"),
        (Data(np.zeros((2, 1)), np.array([1.0, -2.0])), "not be negative, got -2"),
        (Data(np.zeros((2, 1)), np.array([1.0, np.nan])), "not be negative, got nan"),
        (Data(np.zeros((2, 1)), np.zeros(2)), "not all be zero"),
    ],
)
def test_bad_data_is_refused_in_a_sentence(data, words):
    with pytest.raises(ValueError, match=words):
        as_data(data)
