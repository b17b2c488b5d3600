"""Tables of couplings: the names of both units, the estimate and its standard error.

Couplings are those of `to_fields`, E = -h'x - sum over pairs i < j of J_ij x_i x_j, so
that a positive coupling excites.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from probjax.fitting.uncertainty import Uncertainty
from probjax.models.ising.parameters import Params
from probjax.models.pairs import pair_indices


class CouplingTable(NamedTuple):
    """Couplings with the names of their units, strongest first.

    >>> params = Params(np.zeros(3), np.array([0.5, -1.0, 0.0]))
    >>> print(coupling_table(params, names=["a", "b", "c"]).describe(2))
    3 couplings, sorted by |J|; positive couplings excite
      first  second   J
      a      c        2
      a      b       -1
      ... and 1 more
    """

    first: np.ndarray
    """Name of the first unit of each pair."""
    second: np.ndarray
    """Name of the second unit of each pair."""
    coupling: np.ndarray
    """Estimate of J_ij; positive for units that excite each other."""
    stderr: np.ndarray | None
    """Standard error of `coupling`; infinite if the data do not determine it, None
    without an `uncertainty`."""

    @property
    def z(self) -> np.ndarray | None:
        """Couplings in standard errors; None without standard errors.

        NaN where the standard error is 0, such as for couplings that were not fitted.
        """
        if self.stderr is None:
            return None
        known = self.stderr > 0
        return np.where(known, self.coupling / np.where(known, self.stderr, 1), np.nan)

    def describe(self, num_rows: int = 10) -> str:
        """Describe the first couplings, one in each line.

        Args:
            num_rows: largest number of couplings to show.
        """
        columns = self._columns()
        shown = [
            ["J" if name == "coupling" else name, *map(_text, column[:num_rows])]
            for name, column in columns.items()
        ]
        widths = [max(map(len, column)) for column in shown]
        is_name = [name in ("first", "second") for name in columns]
        lines = [
            "  "
            + "  ".join(
                cell.ljust(width) if left else cell.rjust(width)
                for cell, width, left in zip(row, widths, is_name, strict=True)
            )
            for row in zip(*shown, strict=True)
        ]
        count = len(self.coupling)
        by = "|J|" if self.stderr is None else "|z|"
        head = f"{count:,} couplings, sorted by {by}; positive couplings excite"
        hidden = count - num_rows
        tail = [f"  ... and {hidden:,} more"] if hidden > 0 else []
        return "\n".join([head, *lines, *tail])

    def to_pandas(self) -> Any:
        """Return a `pandas.DataFrame` with the columns first, second, coupling and, if
        known, stderr and z.

        Raises:
            ImportError: if pandas is not installed.
        """
        try:
            import pandas
        except ImportError as error:
            raise ImportError(
                "to_pandas requires pandas: pip install pandas"
            ) from error
        return pandas.DataFrame(self._columns())

    def __repr__(self) -> str:
        return f"CouplingTable: {self.describe()}"

    def _columns(self) -> dict[str, Any]:
        columns = {
            "first": self.first,
            "second": self.second,
            "coupling": self.coupling,
        }
        if self.stderr is not None:
            columns |= {"stderr": self.stderr, "z": self.z}
        return columns


def coupling_table(
    params: Params,
    *,
    uncertainty: Uncertainty | None = None,
    names: Sequence[str] | None = None,
    spins: bool = False,
) -> CouplingTable:
    """Return a table of all couplings, sorted by |z|, or by |J| without errors.

    Couplings that the data do not determine, whose standard error is infinite, come
    last.

    Args:
        params: fitted parameters.
        uncertainty: result of `probjax.uncertainty` for these parameters.
        names: names of the units; None for their indices.
        spins: whether couplings are those over spins -1 and 1, as in `to_fields`.

    >>> import jax.numpy as jnp
    >>> from probjax.fitting.uncertainty import Uncertainty
    >>> params = Params(jnp.zeros(3), jnp.array([-0.5, 1.0, 0.25]))
    >>> covariance = jnp.diag(jnp.array([1.0, 1, 1, 0.25, 4, 0.25])) / 100
    >>> bars = Uncertainty(params, covariance, loose=jnp.zeros((6, 1)))
    >>> table = coupling_table(params, uncertainty=bars, names=["a", "b", "c"])
    >>> print(table.describe())
    3 couplings, sorted by |z|; positive couplings excite
      first  second     J  stderr   z
      a      b          1     0.1  10
      a      c         -2     0.4  -5
      b      c       -0.5     0.1  -5
    """
    size = len(params.bias)
    if names is not None and len(names) != size:
        raise ValueError(f"names must have {size} entries, got {len(names)}")
    units = np.arange(size) if names is None else np.asarray(names)
    first, second = pair_indices(size, params.edges)
    factor = -0.5 if spins else -2.0
    # Adding 0 turns -0 into 0.
    coupling = factor * np.asarray(params.coupling) + 0.0
    stderr = None
    if uncertainty is not None:
        stderr = abs(factor) * np.asarray(uncertainty.stderr.coupling)
        if stderr.shape != coupling.shape:
            raise ValueError(
                f"uncertainty must be that of params with {len(coupling)} couplings, "
                f"got {len(stderr)} standard errors"
            )
    found = CouplingTable(units[first], units[second], coupling, stderr)
    strength = np.abs(coupling)
    primary = strength if found.z is None else np.nan_to_num(np.abs(found.z))
    order = np.lexsort([-strength, -primary])
    return CouplingTable(
        found.first[order],
        found.second[order],
        coupling[order],
        None if stderr is None else stderr[order],
    )


def _text(entry):
    """Return a name unchanged, and three digits of a number."""
    return f"{entry:.3g}" if isinstance(entry, np.floating) else str(entry)
