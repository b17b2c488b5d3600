"""Looking ahead: where one leap would be rejected, take two, or three, or more.

From z = (x, v) a step goes to the first L^a z, a = 1, ..., K, that a uniform number
falls below, the chances being

    P_a(z) = min(1 - sum_(b<a) P_b(z),
                 p(L^a z) / p(z) (1 - sum_(b<a) P_b(F L^a z))),

and to F z with what is left. As F L^a z leaps back over the same states, all of it
follows from the energies along one path, H_0, ..., H_K. Only lanes that nothing nearer
would take leap on, so that most steps cost one leap.

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
from probjax.leapfrog import Bounds, Phase, hamiltonian
from probjax.potential import Potential
from probjax.recipe import recipe, static
from probjax.samplers.hmc import DIVERGENT, HMC, HMCState, Jitter, Momentum, select
from probjax.types import Array, Domain, Float, Info, PRNGKeyArray, Scalar, State


@recipe
class LookAheadHMC(Sampler):
    """Leaps as those of `HMC`, of which up to `look_ahead` are taken at once.

    Args:
        step_size: in units of the metric.
        num_steps: leapfrog steps of a leap.
        look_ahead: leaps that are tried before the momentum is negated.
        momentum: how much of it persists from step to step.
        metric: what a unit of momentum moves x by: lengths, or a matrix.
        bounds: where x is confined. Not with a matrix.
        jitter: of the leaps' length, if any.

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
        self._leaps()

    @property
    def domain(self) -> Domain:
        return "reals"

    @property
    def target_acceptance(self) -> float:
        return self._leaps().target_acceptance

    @property
    def metrics(self) -> tuple[Literal["lengths", "matrix"], ...]:
        return self._leaps().metrics

    def adapted(self, step_size: Scalar, metric: Array | None = None) -> Self:
        metric = self.metric if metric is None else metric
        return dataclasses.replace(self, step_size=step_size, metric=metric)

    def cached_terms(self, state: HMCState) -> Float[Array, " term"]:
        return state.phase.terms

    def prepare(self, potential: Potential, x: State) -> State:
        return self._leaps().prepare(potential, x)

    def init(self, key: PRNGKeyArray, potential: Potential, x: State) -> HMCState:
        return self._leaps().init(key, potential, x)

    def step(
        self, key: PRNGKeyArray, potential: Potential, state: HMCState
    ) -> tuple[HMCState, Info]:
        before, leap, chance = self._leaps().begin(key, state)
        kind = before.v.dtype
        energies = [hamiltonian(potential, before)]
        taken, done = jnp.asarray(0), jnp.asarray(False)
        end, last = before, before
        evaluations = jnp.zeros((), kind)
        table: dict[tuple[int, int], Scalar] = {}
        passed, first = jnp.zeros((), kind), jnp.zeros((), kind)
        for ahead in range(1, self.look_ahead + 1):
            evaluations = evaluations + jnp.where(done, 0, 1)
            if ahead == 1:
                last = leap(potential, last)
            else:
                further = lazily(_leapt, ~done, leap, potential, last)
                last = select(done, last, further)
            energy = hamiltonian(potential, last)
            energies.append(jnp.where(jnp.isfinite(energy), energy, jnp.inf))
            passed = passed + _chance(energies, table, 0, ahead)
            first = passed if ahead == 1 else first
            here = ~done & (chance < passed)
            end = select(here, last, end)
            taken = jnp.where(here, ahead, taken)
            done = done | here
        phase = end._replace(v=jnp.where(done, end.v, -end.v))
        worst = jnp.max(jnp.stack(energies)) - energies[0]
        info = Info(
            accept=done.astype(kind),
            chance=first,
            flip=(~done).astype(kind),
            diverged=(worst > DIVERGENT).astype(kind),
            energy=hamiltonian(potential, phase),
            num_leaps=taken.astype(kind),
            evaluations=evaluations,
        )
        return HMCState(phase, state.slice, state.age + 1), info

    def _leaps(self) -> HMC:
        return HMC(
            self.step_size,
            num_steps=self.num_steps,
            momentum=self.momentum,
            metric=self.metric,
            bounds=self.bounds,
            jitter=self.jitter,
        )


def _leapt(leap, potential, phase: Phase) -> Phase:
    return leap(potential, phase)


def _chance(energies, table, start, end):
    """P of going from the `start`-th state of a path to its `end`-th, either way."""
    if (start, end) not in table:
        fall = energies[start] - energies[end]
        # Nothing leads from where there is no energy.
        ratio = jnp.exp(jnp.minimum(jnp.where(jnp.isnan(fall), -jnp.inf, fall), 50.0))
        way = 1 if end > start else -1
        left = 1 - _sum(energies, table, start, range(start + way, end, way))
        back = 1 - _sum(energies, table, end, range(end - way, start, -way))
        table[start, end] = jnp.clip(jnp.minimum(left, ratio * back), 0)
    return table[start, end]


def _sum(energies, table, start, ends):
    return sum((_chance(energies, table, start, end) for end in ends), 0.0)
