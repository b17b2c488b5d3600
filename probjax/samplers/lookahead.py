"""Look-ahead HMC: if one leap would be rejected, try two, three or more leaps.

From z = (x, v) a step moves to L^a z, the end of a leaps, with probability

    P_a(z) = min(1 - sum_(b<a) P_b(z),
                 p(L^a z) / p(z) (1 - sum_(b<a) P_b(F L^a z))),    a = 1, ..., K,

and with the remaining probability it negates the momentum, F z. Leaps from F L^a z
visit the same states in reverse order. So all these probabilities follow from the
energies H_0, ..., H_K along one path. One uniform number selects a; the a-th leap is
computed only for chains that have not accepted an earlier one, so that most steps cost
one leap.

Reference: Sohl-Dickstein, Mudigonda and DeWeese, "Hamiltonian Monte Carlo without
detailed balance", ICML 2014.
"""

import dataclasses
from dataclasses import KW_ONLY, field
from typing import Literal, NamedTuple, Self

import jax
import jax.numpy as jnp

from probjax.checks import check_count
from probjax.interfaces import Sampler
from probjax.lanes import lazily
from probjax.leapfrog import DIVERGENT, Bounds, Phase, hamiltonian
from probjax.potential import Potential
from probjax.recipe import recipe, static
from probjax.samplers.hmc import HMC, HMCState, Jitter, select
from probjax.samplers.momentum import Momentum
from probjax.types import Array, Domain, Float, Info, PRNGKeyArray, Scalar, State


@recipe
class LookAheadHMC(Sampler):
    """HMC that tries up to `look_ahead` leaps before it negates the momentum.

    Args:
        step_size: length of a leapfrog step, in units of the metric.
        num_steps: number of leapfrog steps in a leap; each costs one gradient.
        look_ahead: largest number of leaps in a step.
        momentum: refreshment of the momentum before each step.
        metric: displacement of x for a unit of momentum: lengths of shape () or (n,),
            or a matrix of shape (n, n). None for the identity.
        bounds: interval of each coordinate of x. It cannot be combined with a matrix.
        jitter: random changes of the length of leaps; None for a fixed length.

    >>> import jax
    >>> from probjax import sample
    >>> def energy(precision, x):
    ...     return precision * jnp.sum(x**2) / 2
    >>> sampler = LookAheadHMC(1.0, num_steps=3, look_ahead=2)
    >>> args = jax.random.key(0), energy, 0.25, jnp.zeros((100, 1))
    >>> draws = sample(*args, sampler=sampler, num_draws=100)
    >>> round(float(draws.x.std())), bool(draws.info.num_leaps.max() <= 2)
    (2, True)
    """

    step_size: float
    _: KW_ONLY
    num_steps: int = static(default=1)
    look_ahead: int = static(default=4)
    momentum: Momentum = field(default_factory=Momentum)
    metric: Float[Array, "..."] | None = None
    bounds: Bounds | None = None
    jitter: Jitter | None = None

    def __post_init__(self):
        check_count("look_ahead", self.look_ahead)
        self._hmc()

    @property
    def domain(self) -> Domain:
        return "reals"

    @property
    def target_acceptance(self) -> float:
        return self._hmc().target_acceptance

    @property
    def metrics(self) -> tuple[Literal["lengths", "matrix"], ...]:
        return self._hmc().metrics

    def adapted(self, step_size: Scalar, metric: Array | None = None) -> Self:
        metric = self.metric if metric is None else metric
        return dataclasses.replace(self, step_size=step_size, metric=metric)

    def cached_terms(self, state: HMCState) -> Float[Array, " term"]:
        return state.phase.terms

    def prepare(self, potential: Potential, x: State) -> State:
        return self._hmc().prepare(potential, x)

    def init(self, key: PRNGKeyArray, potential: Potential, x: State) -> HMCState:
        return self._hmc().init(key, potential, x)

    def step(
        self, key: PRNGKeyArray, potential: Potential, state: HMCState
    ) -> tuple[HMCState, Info]:
        before, leap, chance = self._hmc().begin(key, state)
        search = _begun(self.look_ahead, potential, before)
        search = _visited(potential, chance, 1, search, leap(potential, before))
        first = search.sums[0]

        def further(search, ahead):
            moved = lazily(_apply, ~search.done, leap, potential, search.last)
            last = select(search.done, search.last, moved)
            return _visited(potential, chance, ahead, search, last), None

        search, _ = jax.lax.scan(further, search, jnp.arange(2, self.look_ahead + 1))
        done, end, dtype = search.done, search.end, before.v.dtype
        phase = end._replace(v=jnp.where(done, end.v, -end.v))
        worst = jnp.max(search.energies) - search.energies[0]
        info = Info(
            accept=done.astype(dtype),
            chance=first,
            flip=(~done).astype(dtype),
            diverged=(worst > DIVERGENT).astype(dtype),
            energy=hamiltonian(potential, phase),
            num_leaps=search.taken.astype(dtype),
            evaluations=search.evaluations,
        )
        return HMCState(phase, state.slice, state.age + 1), info

    def _hmc(self) -> HMC:
        return HMC(
            self.step_size,
            num_steps=self.num_steps,
            momentum=self.momentum,
            metric=self.metric,
            bounds=self.bounds,
            jitter=self.jitter,
        )


class _Search(NamedTuple):
    """Leaps of one step so far."""

    last: Phase
    """End of the last leap."""
    end: Phase
    """State that was accepted; the first state if none was."""
    done: Array
    """Whether a state was accepted."""
    taken: Array
    """Number of leaps to the state that was accepted."""
    evaluations: Scalar
    """Number of leaps that were computed."""
    energies: Float[Array, " state"]
    """Energies along the path, and that of the first state for states not visited."""
    sums: Float[Array, " state"]
    """For each state of the path, sum_a P_a over the states that follow it so far."""


def _begun(look_ahead, potential, phase):
    """Return a search before its first leap."""
    energies = jnp.full(look_ahead + 1, hamiltonian(potential, phase))
    zeros = jnp.zeros_like(energies)
    none = jnp.asarray(0)
    return _Search(phase, phase, none > 0, none, zeros[0], energies, zeros)


def _visited(potential, chance, ahead, search, last):
    """Return the search after leap number `ahead` has ended in `last`."""
    energy = hamiltonian(potential, last)
    energy = jnp.where(jnp.isfinite(energy), energy, jnp.inf)
    energies = search.energies.at[ahead].set(energy)
    sums = _extended_sums(energies, search.sums, ahead)
    accept = ~search.done & (chance < sums[0])
    return _Search(
        last,
        select(accept, last, search.end),
        search.done | accept,
        jnp.where(accept, ahead, search.taken),
        search.evaluations + jnp.where(search.done, 0, 1),
        energies,
        sums,
    )


def _extended_sums(energies, sums, ahead):
    """Add the moves from each earlier state of the path to state `ahead` to `sums`.

    The moves back from state `ahead` are summed along the way, from near to far.
    """

    def ratio(start, end):
        decrease = energies[start] - energies[end]
        # NaN if both energies are infinite: the probability is 0.
        decrease = jnp.where(jnp.isnan(decrease), -jnp.inf, decrease)
        return jnp.exp(jnp.minimum(decrease, 50.0))

    def add(step, carry):
        sums, back = carry
        state = ahead - 1 - step
        there, here = 1 - sums[state], 1 - back
        to_ahead = jnp.clip(jnp.minimum(there, ratio(state, ahead) * here), 0)
        from_ahead = jnp.clip(jnp.minimum(here, ratio(ahead, state) * there), 0)
        return sums.at[state].add(to_ahead), back + from_ahead

    first = sums, jnp.zeros_like(energies[0])
    return jax.lax.fori_loop(0, ahead, add, first)[0]


def _apply(leap, potential, phase: Phase) -> Phase:
    return leap(potential, phase)
