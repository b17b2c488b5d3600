"""Clusters of correlated rows, such as successive bins of a recording."""

from typing import NamedTuple

import numpy as np

from probjax.types import Array, ArrayLike, Int


class Clusters(NamedTuple):
    """Cluster of each row.

    >>> row_clusters(["a", "b", "b"], 3).labels.tolist()
    [0, 1, 1]
    """

    labels: Int[Array, " row"]
    """Number of the cluster of each row, from 0 to `num_clusters` - 1."""
    num_clusters: int
    """Number of clusters."""


def row_clusters(clusters: ArrayLike, num_rows: int) -> Clusters:
    """Number the clusters of rows; raise a `ValueError` if there are fewer than two.

    Args:
        clusters: a number or a name for each row, equal for rows of one cluster.

    >>> row_clusters(np.arange(6) // 2, 6).num_clusters
    3
    """
    given = np.asarray(clusters)
    if given.shape != (num_rows,):
        raise ValueError(
            f"clusters must have one entry for each of {num_rows} rows, got shape "
            f"{given.shape}; try np.arange({num_rows}) // 500"
        )
    names, labels = np.unique(given, return_inverse=True)
    if len(names) < 2:
        raise ValueError(
            "clusters must be at least 2, got 1, from which no error can be estimated"
        )
    return Clusters(labels.astype(np.int32), len(names))  # pyright: ignore
