"""Summary of draws in numbers and words: moments, effective draws and R-hat."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probjax.diagnostics import estimators
from probjax.diagnostics.estimators import check_draws, map_coordinates
from probjax.types import Array, Info, PyTree, Scalar


class Verdict(NamedTuple):
    """Result of `summary`: values for every coordinate, in the form of one state.

    >>> verdict = summary(jnp.zeros((2, 50, 3)))
    >>> verdict.mean.tolist(), verdict.num_chains, verdict.num_draws
    ([0.0, 0.0, 0.0], 2, 100)
    >>> verdict.describe()
    '3 of 3 coordinates, such as x[0], never moved'
    """

    mean: PyTree
    """Mean over all chains and draws."""
    sd: PyTree
    """Standard deviation over all chains and draws."""
    mcse: PyTree
    """Standard error of `mean`."""
    ess: PyTree
    """Effective number of draws for the bulk."""
    ess_tail: PyTree
    """Effective number of draws for the tails."""
    rhat: PyTree
    """R-hat; NaN for a single chain, and for coordinates that never move."""
    num_chains: int
    """Number of chains."""
    num_draws: int
    """Number of draws of all chains together."""
    accept: Scalar | None
    """Mean acceptance; None if no `info` was given."""
    diverged: Array | None
    """Number of draws with a divergent step since the previous draw; None if the
    sampler does not report it."""

    def describe(self, *, largest_rhat: float = 1.01, least_ess: float = 400) -> str:
        """Describe the problems found and the worst coordinate, or that there are none.

        Args:
            largest_rhat: chains with a larger R-hat are reported as not mixed.
            least_ess: smallest effective number of draws, in bulk and tails, that is
                not reported.
        """
        names = _Names(self.mean)
        mean, sd, rhat, ess, tail = map(
            _ravel, (self.mean, self.sd, self.rhat, self.ess, self.ess_tail)
        )
        ess = np.minimum(ess, tail)
        finite = np.isfinite(mean)
        moved = ~(sd == 0)
        valid = finite & moved
        messages = []
        if not finite.all():
            messages.append(f"{names.some(~finite)} reached NaN or infinity")
        if not moved.all():
            messages.append(f"{names.some(~moved)} never moved")
        if self.num_chains == 1:
            messages.append("one chain cannot show whether it has mixed: run several")
        compared = valid & ~np.isnan(rhat)
        unmixed = compared & (rhat > largest_rhat)
        if unmixed.any():
            worst = np.where(unmixed, rhat, 0).argmax()
            others = f", above {largest_rhat:g} on {unmixed.sum()} of {unmixed.size}"
            messages.append(
                f"chains have not mixed: R-hat {rhat[worst]:.4g} on "
                f"{names[worst]}{others if unmixed.sum() > 1 else ''}"
            )
        few = valid & (ess < least_ess)
        if few.any():
            worst = np.where(few, ess, np.inf).argmin()
            messages.append(
                f"too few effective draws: {ess[worst]:,.0f} of {self.num_draws:,} "
                f"on {names[worst]}"
            )
        if self.diverged:
            messages.append(
                f"{int(self.diverged):,} of {self.num_draws:,} draws follow divergent "
                "steps: reduce the step size"
            )
        if valid.any() and not (unmixed.any() or few.any()):
            which = "all" if valid.all() else "the other"
            known = (
                f"R-hat at most {rhat[compared].max():.4g}, " if compared.any() else ""
            )
            messages.append(
                f"{which} {valid.sum():,} coordinates: {known}effective draws at "
                f"least {ess[valid].min():,.0f} of {self.num_draws:,}"
            )
        if self.accept is not None:
            low = ": reduce the step size" if self.accept < 0.1 else ""
            messages.append(f"acceptance {float(self.accept):.2g}{low}")
        return "; ".join(messages)


def summary(draws: PyTree, info: Info | None = None) -> Verdict:
    """Summarise draws coordinate by coordinate; see also `Verdict.describe`.

    Args:
        draws: arrays `(chain, draw, ...)` or trees of them, such as `sample(...).x`.
        info: infos of the steps, such as `sample(...).info`.

    >>> draws = jax.random.normal(jax.random.key(0), (2, 50, 3))
    >>> verdict = summary(draws)
    >>> bool((jnp.abs(verdict.mean) < 5 * verdict.mcse).all()), verdict.rhat.shape
    (True, (3,))
    >>> "too few effective draws" in verdict.describe()
    True
    """
    draws = check_draws(draws, 4)
    num_chains, num_draws = jax.tree.leaves(draws)[0].shape[:2]
    diverged = None if info is None else info.diverged
    found = map_coordinates(estimators.summary, draws)
    mean, sd, mcse, ess, tail, rhat = (
        jax.tree.map(lambda leaf, i=i: leaf[..., i], found) for i in range(6)
    )
    return Verdict(
        mean=mean,
        sd=sd,
        mcse=mcse,
        ess=ess,
        ess_tail=tail,
        rhat=rhat,
        num_chains=num_chains,
        num_draws=num_chains * num_draws,
        accept=None if info is None else jnp.mean(info.accept),
        diverged=None if diverged is None else jnp.sum(jnp.asarray(diverged) > 0),
    )


class _Names:
    """Names of coordinates, such as x[4] or x['field'][0, 1]."""

    def __init__(self, tree):
        leaves, _ = jax.tree_util.tree_flatten_with_path(tree)
        self.leaves = [(jax.tree_util.keystr(path), x.shape) for path, x in leaves]
        self.ends = np.cumsum([x.size for _, x in leaves])

    def __getitem__(self, number):
        which = np.searchsorted(self.ends, number, side="right")
        path, shape = self.leaves[which]
        first = self.ends[which] - np.prod(shape, dtype=int)
        index = ", ".join(map(str, np.unravel_index(number - first, shape)))
        return f"x{path}[{index}]" if shape else f"x{path}"

    def some(self, chosen):
        """Return the number of chosen coordinates and the name of the first."""
        if chosen.size == 1:
            return self[0]
        count = f"{chosen.sum():,} of {chosen.size:,} coordinates"
        return f"{count}, such as {self[chosen.argmax()]},"


def _ravel(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
