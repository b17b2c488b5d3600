"""Letters and pairs of letters that never occur in the data of a Potts model.

If letter a never occurs at site i, the loss keeps improving as the field h_i(a) goes to
minus infinity. If letters a at site i and b at site j both occur, and never together,
the same holds for the coupling J_ij(a, b).
"""

import numpy as np

from probjax.types import Bool, Float


def never_observed(
    hot: Float[np.ndarray, "row site letter"],
    counted: Bool[np.ndarray, " row"],
    first: np.ndarray,
    second: np.ndarray,
) -> tuple[Bool[np.ndarray, "site letter"], Bool[np.ndarray, "pair letter letter"]]:
    """Return which letters never occur at a site, and which pairs of them at two sites.

    A pair is listed if one of its letters never occurs. Sites, and pairs of sites, that
    were never observed are not.

    Args:
        hot: one-hot rows, 0 where an entry is missing.
        counted: whether a row has a positive weight.
        first: first site of each pair.
        second: second site of each pair.

    >>> hot = np.eye(2)[[[0, 0], [1, 0]]]
    >>> letters, pairs = never_observed(hot, np.ones(2, bool), [0], [1])
    >>> letters.tolist(), pairs.tolist()
    ([[False, False], [False, True]], [[[False, True], [False, True]]])
    """
    hot = np.asarray(hot, np.float32)[np.asarray(counted)]
    rows, sites, letters = hot.shape
    flat = hot.reshape(rows, sites * letters)
    joint = (flat.T @ flat).reshape(sites, letters, sites, letters)
    first, second = np.asarray(first), np.asarray(second)
    pairs = joint[first, :, second, :]
    singles = flat.sum(0).reshape(sites, letters)
    was_observed = pairs.sum((1, 2), keepdims=True) > 0
    return (singles == 0) & (singles.sum(1) > 0)[:, None], (pairs == 0) & was_observed


def describe_never_observed(
    letters: Bool[np.ndarray, "site letter"],
    pairs: Bool[np.ndarray, "pair letter letter"],
    first: np.ndarray,
    second: np.ndarray,
) -> str:
    """Describe what `never_observed` returned; "" if everything occurs.

    >>> letters, pairs = np.zeros((2, 2), bool), np.zeros((1, 2, 2), bool)
    >>> describe_never_observed(letters, pairs, [0], [1])
    ''
    >>> pairs[0, 1, 0] = True
    >>> describe_never_observed(letters, pairs, [0], [1]).split(", so")[0]
    '1 of 4 pairs of letters never occur together (letter 1 at site 0 and 0 at site 1)'
    """
    if letters.any():
        site, letter = np.argwhere(letters)[0]
        return (
            f"{np.count_nonzero(letters):,} of {letters.size:,} letters never occur at "
            f"their site (letter {letter} at site {site}), so their fields have no "
            "finite estimate"
        )
    if not pairs.any():
        return ""
    pair, a, b = np.argwhere(pairs)[0]
    return (
        f"{np.count_nonzero(pairs):,} of {pairs.size:,} pairs of letters never occur "
        f"together (letter {a} at site {first[pair]} and {b} at site {second[pair]}), "
        "so their couplings have no finite estimate"
    )
