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
from typing import Literal, Self

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
        dtype = before.v.dtype
        energies = [hamiltonian(potential, before)]
        taken, done = jnp.asarray(0), jnp.asarray(False)
        end, last = before, before
        evaluations = jnp.zeros((), dtype)
        table: dict[tuple[int, int], Scalar] = {}
        total, first = jnp.zeros((), dtype), jnp.zeros((), dtype)
        for ahead in range(1, self.look_ahead + 1):
            evaluations = evaluations + jnp.where(done, 0, 1)
            if ahead == 1:
                last = leap(potential, last)
            else:
                further = lazily(_apply, ~done, leap, potential, last)
                last = select(done, last, further)
            energy = hamiltonian(potential, last)
            energies.append(jnp.where(jnp.isfinite(energy), energy, jnp.inf))
            total = total + _chance(energies, table, 0, ahead)
            first = total if ahead == 1 else first
            accept = ~done & (chance < total)
            end = select(accept, last, end)
            taken = jnp.where(accept, ahead, taken)
            done = done | accept
        phase = end._replace(v=jnp.where(done, end.v, -end.v))
        worst = jnp.max(jnp.stack(energies)) - energies[0]
        info = Info(
            accept=done.astype(dtype),
            chance=first,
            flip=(~done).astype(dtype),
            diverged=(worst > DIVERGENT).astype(dtype),
            energy=hamiltonian(potential, phase),
            num_leaps=taken.astype(dtype),
            evaluations=evaluations,
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


def _apply(leap, potential, phase: Phase) -> Phase:
    return leap(potential, phase)


def _chance(energies, table, start, end):
    """Compute P of moving from state `start` of a path to state `end`.

    If `end` is before `start`, the momentum is negated and the path is followed
    backwards. `table` caches the results.
    """
    if (start, end) not in table:
        decrease = energies[start] - energies[end]
        # NaN if both energies are infinite: the probability is 0.
        decrease = jnp.where(jnp.isnan(decrease), -jnp.inf, decrease)
        ratio = jnp.exp(jnp.minimum(decrease, 50.0))
        direction = 1 if end > start else -1
        between = range(start + direction, end, direction)
        left = 1 - _sum(energies, table, start, between)
        back = 1 - _sum(energies, table, end, reversed(between))
        table[start, end] = jnp.clip(jnp.minimum(left, ratio * back), 0)
    return table[start, end]


def _sum(energies, table, start, ends):
    return sum((_chance(energies, table, start, end) for end in ends), 0.0)
