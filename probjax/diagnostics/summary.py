"""What draws are worth, in words."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probjax.diagnostics.chains import _at_door, _each, _summary
from probjax.types import Array, Info, PyTree, Scalar


class Verdict(NamedTuple):
    """What draws are worth, coordinate by coordinate, in the form of one state.

    >>> verdict = summary(jnp.zeros((2, 50, 3)))
    >>> verdict.mean.tolist(), verdict.num_chains, verdict.num_draws
    ([0.0, 0.0, 0.0], 2, 100)
    >>> verdict.describe()
    '3 of 3 coordinates, as x[0], never moved'
    """

    mean: PyTree
    """The mean over all chains and draws."""
    sd: PyTree
    """The standard deviation."""
    mcse: PyTree
    """The standard error of `mean`."""
    ess: PyTree
    """Effective draws for the bulk."""
    ess_tail: PyTree
    """Effective draws for the tails."""
    rhat: PyTree
    """R-hat; NaN for one chain, and where no draw differs from another."""
    num_chains: int
    """How many chains there are."""
    num_draws: int
    """How many draws there are, of all chains together."""
    accept: Scalar | None
    """The mean acceptance, if the sampler tells it."""
    diverged: Array | None
    """How many draws came of steps some of which diverged, if the sampler tells it."""

    def describe(self, *, largest_rhat: float = 1.01, least_ess: float = 400) -> str:
        """In words: what is wrong and where it is worst, or that nothing is.

        Args:
            largest_rhat: above which chains have not mixed.
            least_ess: below which effective draws are too few, in bulk or tails.
        """
        names = _Names(self.mean)
        mean, sd, rhat, ess, tail = map(
            _ravel, (self.mean, self.sd, self.rhat, self.ess, self.ess_tail)
        )
        ess = np.minimum(ess, tail)
        finite = np.isfinite(mean)
        moved = ~(sd == 0)
        judged = finite & moved
        said = []
        if not finite.all():
            said.append(f"{names.some(~finite)} met NaN or infinity")
        if not moved.all():
            said.append(f"{names.some(~moved)} never moved")
        if self.num_chains == 1:
            said.append("one chain cannot show whether it has mixed: start several")
        mixed = judged & ~np.isnan(rhat)
        apart = mixed & (rhat > largest_rhat)
        if apart.any():
            worst = np.where(apart, rhat, 0).argmax()
            others = f", above {largest_rhat:g} on {apart.sum()} of {apart.size}"
            said.append(
                f"chains have not mixed: R-hat {rhat[worst]:.4g} on "
                f"{names[worst]}{others if apart.sum() > 1 else ''}"
            )
        few = judged & (ess < least_ess)
        if few.any():
            worst = np.where(few, ess, np.inf).argmin()
            said.append(
                f"too few effective draws: {ess[worst]:,.0f} of {self.num_draws:,} "
                f"on {names[worst]}"
            )
        if self.diverged:
            said.append(
                f"{int(self.diverged):,} of {self.num_draws:,} draws came of steps "
                "that diverged: shorten the step"
            )
        if judged.any() and not (apart.any() or few.any()):
            which = "all" if judged.all() else "the other"
            known = f"R-hat at most {rhat[mixed].max():.4g}, " if mixed.any() else ""
            said.append(
                f"{which} {judged.sum():,} coordinates: {known}effective draws at "
                f"least {ess[judged].min():,.0f} of {self.num_draws:,}"
            )
        if self.accept is not None:
            low = ": shorten the step" if self.accept < 0.1 else ""
            said.append(f"acceptance {float(self.accept):.2g}{low}")
        return "; ".join(said)


def summary(draws: PyTree, info: Info | None = None) -> Verdict:
    """What draws are worth; `.describe()` says it in words.

    Args:
        draws: as `sample(...).x`.
        info: reports of the steps, such as `sample(...).info`.

    >>> draws = jax.random.normal(jax.random.key(0), (2, 50, 3))
    >>> verdict = summary(draws)
    >>> bool((jnp.abs(verdict.mean) < 5 * verdict.mcse).all()), verdict.rhat.shape
    (True, (3,))
    >>> "too few effective draws" in verdict.describe()
    True
    """
    draws = _at_door(draws, 4)
    num_chains, num_draws = jax.tree.leaves(draws)[0].shape[:2]
    diverged = None if info is None else info.diverged
    found = _each(_summary, draws)
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
    """What coordinates are called, as x[4] or x['field'][0, 1]."""

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
        count = f"{chosen.sum():,} of {chosen.size:,} coordinates"
        return self[0] if chosen.size == 1 else f"{count}, as {self[chosen.argmax()]},"


def _ravel(tree):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(tree)])
