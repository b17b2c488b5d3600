"""Free energy, entropy and heat capacity of a discrete model against temperature.

At temperature T a model is p_T(x) ~ exp(-E(x) / T). One run of parallel tempering
(`probjax.samplers.tempering`) draws from it at the inverse temperatures of a ladder

    beta_1 = 1 / (lowest temperature) > ... > beta_K = 0,

at whose end all states are equally likely and log Z is known. The draws of all rungs
together, reweighted (`probjax.annealing.mbar`), give at any temperature between

    log Z,    mean energy <E>,    C = Var(E) / T^2,    S = log Z + <E> / T.

A pilot run spaces the rungs so that all neighbours swap equally often. Errors are
those of a jackknife over batches of chains, which are independent. The chains must have
reached equilibrium: compare two runs that start at different states.

Reference: Tkacik, Mora, Marre, Amodei, Palmer, Berry and Bialek, PNAS 112, 11508
(2015), for spikes; Syed et al., JRSS B 84, 321 (2022), for the spacing.
"""

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probjax import random
from probjax.annealing.mbar import mbar
from probjax.annealing.measured import Measured, chain_batches, jackknife, with_error
from probjax.checks import check_count, check_interface, check_key, is_whole
from probjax.data.rows import refuse_inputs
from probjax.energies import check_energy
from probjax.interfaces import Sampler
from probjax.recipe import recipe, static
from probjax.runs.driver import Job, Watch, driver, run_in_turn
from probjax.samplers.chain_loop import Chains, Counts, RunState, advance, start_run
from probjax.samplers.observers import Observer
from probjax.samplers.tempering import Tempered, swap_rates
from probjax.states import num_sites
from probjax.trees import as_array
from probjax.types import Array, ArrayLike, Energy, Float, Info, Params, PRNGKeyArray
from probjax.types import State as StateOfModel

PILOT_RUNGS, PILOT_RATIO, PILOT_STEPS, NUM_PILOTS = 24, 0.8, 200, 2
LEAST_RUNGS, MOST_RUNGS, RUNGS_PER_BARRIER = 4, 64, 2.5
LOW_RATE = 0.1
_QUANTITIES = "log_z", "energy", "heat_capacity", "entropy"


class TemperatureCurve(NamedTuple):
    """Thermodynamics of a model; `temperature_curve` returns it.

    Arrays are `(temperature,)`. Energies are in units of the model's energy, entropies
    in nats.

    >>> two, none = np.array([1.0, 2.0]), np.zeros(2)
    >>> curve = TemperatureCurve(two, two, *[none] * 7, betas=two, swap_rates=none + 1)
    >>> curve.free_energy.tolist(), curve.at(2)["log_z"].value
    ([-1.0, -4.0], 2.0)
    """

    temperatures: np.ndarray
    """Temperatures; the model itself is at 1."""
    log_z: np.ndarray
    """log Z(T) = log sum_x exp(-E(x) / T)."""
    log_z_stderr: np.ndarray
    """Standard error of `log_z`."""
    energy: np.ndarray
    """Mean energy."""
    energy_stderr: np.ndarray
    """Standard error of `energy`."""
    heat_capacity: np.ndarray
    """Heat capacity d<E>/dT = Var(E) / T^2."""
    heat_capacity_stderr: np.ndarray
    """Standard error of `heat_capacity`."""
    entropy: np.ndarray
    """Entropy log Z + <E> / T."""
    entropy_stderr: np.ndarray
    """Standard error of `entropy`."""
    betas: np.ndarray
    """Inverse temperatures of the rungs of the ladder."""
    swap_rates: np.ndarray
    """Swap probability of each pair of neighbouring rungs."""

    @property
    def free_energy(self) -> np.ndarray:
        """Free energy -T log Z."""
        return -self.temperatures * self.log_z

    def at(self, temperature: float) -> dict[str, Measured]:
        """Return all quantities at one of the `temperatures`, with errors.

        They are named `log_z`, `energy`, `heat_capacity` and `entropy`.
        """
        place = np.flatnonzero(np.isclose(self.temperatures, temperature))
        if not len(place):
            raise ValueError(
                f"temperature must be one of the temperatures of this curve, got "
                f"{temperature}; try {self.temperatures[0]:g}"
            )
        curve = self._asdict()
        return {
            name: with_error(curve[name][place[0]], curve[f"{name}_stderr"][place[0]])
            for name in _QUANTITIES
        }

    def describe(self) -> str:
        """Describe where the heat capacity is largest, and how the ladder did."""
        peak = int(np.argmax(self.heat_capacity))
        height, stderr = self.heat_capacity[peak], self.heat_capacity_stderr[peak]
        lines = [
            f"temperatures {self.temperatures.min():g} to {self.temperatures.max():g}",
            f"largest heat capacity: {height:.4g} +- {stderr:.2g} at a temperature of "
            f"{self.temperatures[peak]:.3g}",
        ]
        if peak in (0, len(self.temperatures) - 1):
            lines[-1] += ", the end of the range"
        lowest = float(self.swap_rates.min())
        lines.append(f"{len(self.betas)} rungs, which swap at rates from {lowest:.2g}")
        if lowest < LOW_RATE:
            lines[-1] += ": too few to trust the errors; try a longer num_warmup"
        return "\n".join(lines)


@driver
def temperature_curve(
    key: PRNGKeyArray,
    energy: Energy,
    params: Params,
    x: StateOfModel,
    *,
    sampler: Sampler,
    temperatures: Float[ArrayLike, " temperature"],
    num_states: int = 2,
    num_draws: int = 200,
    num_warmup: int = 200,
    thin: int = 5,
    watch: Watch | None = None,
) -> TemperatureCurve:
    """Compute free energy, entropy and heat capacity at many temperatures.

    Args:
        x: starting states, bits or letters, with a leading axis of chains. Errors are
            estimated from the chains, so that at least 20 are required for a good
            estimate.
        sampler: any sampler of bits or letters, such as `HeatBath()`.
        temperatures: temperatures above 0; the model itself is at 1.
        num_states: number of letters of a site.
        num_draws: number of draws of each chain at each rung.
        num_warmup: number of steps before the first draw.
        thin: number of steps from one draw to the next.
        watch: callback and checkpoint. The callback receives the number of draws made.

    >>> from probjax import HeatBath, ising
    >>> pair = ising.from_matrix([[0.0, -1.0], [-1.0, 0.0]])
    >>> args = jax.random.key(0), ising.energy, pair, jnp.zeros((20, 2))
    >>> curve = temperature_curve(*args, sampler=HeatBath(), temperatures=[0.5, 1, 2])
    >>> exactly = np.log(3 + np.exp(2.0))
    >>> bool(abs(curve.at(1)["log_z"].value - exactly) < 0.05)
    True
    """
    arguments = dict(locals())
    check_key(key)
    check_interface("sampler", sampler, Sampler, "HeatBath()")
    for name in ("num_draws", "thin"):
        check_count(name, arguments[name])
    check_count("num_warmup", num_warmup, least=0)
    check_count("num_states", num_states, least=2)
    temperatures = _checked_temperatures(temperatures)
    x = jax.tree.map(as_array, x)
    if not all(bool(is_whole(leaf).all()) for leaf in jax.tree.leaves(x)):
        raise ValueError(
            "x must be bits or letters, got numbers that are not whole: at an infinite "
            "temperature continuous states have no distribution"
        )
    refuse_inputs(x, "each row would have a curve of its own")
    check_energy(energy, params, x)
    coldest = 1 / temperatures.min()
    pilot_keys = random.split(key, NUM_PILOTS + 1)
    first = PILOT_RATIO ** np.arange(PILOT_RUNGS - 1)
    ladders = [np.append(first, 0.0)]

    def next_job(results):
        if len(results) > NUM_PILOTS:
            return None
        if results:
            ladders.append(_even_ladder(ladders[-1], results[-1][1]))
        betas = jnp.asarray(ladders[-1], float)
        chains = _Ladder(
            energy,
            pilot_keys[len(results)],
            params,
            Tempered(sampler, betas),
            scale=jnp.asarray(coldest, float),
        )
        is_last = len(results) == NUM_PILOTS
        counts = (
            Counts(num_warmup, num_draws, num_draws, thin)
            if is_last
            else Counts(0, PILOT_STEPS, PILOT_STEPS, 1)
        )
        return _job(chains, counts, x, is_last)

    results = run_in_turn("temperature_curve", arguments, next_job, watch)
    energies, rates = results[-1]
    log_states = num_sites(x) * np.log(num_states)
    return _curve(energies, rates, coldest * ladders[-1], temperatures, log_states)


@recipe
class _Ladder(Chains):
    """Tempered chains of a scaled model, whose rows are the energies of all rungs."""

    scale: Float[Array, ""] = None  # pyright: ignore

    def model(self, inputs):
        return Chains.model(self, inputs).scaled(self.scale)

    def rows(self, states):
        return jax.vmap(jax.vmap(Chains.model(self, None)))(states.replicas.x)


@recipe
class _Energies(Observer):
    """Store the energies of all rungs, and add up infos."""

    capacity: int = static()

    def start(self, x: Any, info: Info) -> Any:
        infos = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), info)
        return jnp.zeros((self.capacity, *x.shape), x.dtype), infos

    def add(self, accumulator: Any, index: Array, x: Any, info: Info, is_draw: Array):
        energies, infos = accumulator
        energies = jax.lax.dynamic_update_index_in_dim(energies, x, index, axis=0)
        infos = jax.tree.map(
            lambda total, new: total + jnp.where(is_draw, new, 0), infos, info
        )
        return energies, infos


def _job(chains, counts, x, may_stop):
    """Describe a run of the ladder, whose result are energies and swap rates."""
    observer = _Energies(counts.draws)

    def begin():
        model = chains.model(None)
        starts = chains.sampler.prepare(model, x)
        return start_run(chains, observer, starts)

    def finish(now: RunState, stopped: bool):
        energies, infos = now.accumulator
        made = int(now.made)
        rates = np.asarray(swap_rates(infos), float)
        # (draw, chain, rung) to (rung, chain, draw).
        return np.asarray(energies[:made], float).transpose(2, 1, 0), rates

    return Job(
        begin=begin,
        advance=partial(advance, chains, observer, counts),
        is_over=lambda now: int(now.made) >= counts.draws,
        report=lambda now: (int(now.made) or None) if may_stop else None,
        finish=finish,
        every=100,
        may_stop=may_stop,
    )


def _even_ladder(betas, rates):
    """Return a ladder on which all neighbours are rejected equally often.

    Rejections add up along the ladder whatever its spacing, if it is fine enough; their
    sum is its communication barrier.
    """
    rejected = np.append(0.0, np.cumsum(np.clip(1 - rates, 1e-3, 1)))
    count = int(np.ceil(RUNGS_PER_BARRIER * rejected[-1])) + 2
    count = min(max(count, LEAST_RUNGS), MOST_RUNGS)
    even = np.interp(np.linspace(0, rejected[-1], count), rejected, betas)
    even[0], even[-1] = 1.0, 0.0
    return even


def _curve(energies, rates, betas, temperatures, log_states):
    """Reweight the energies `(rung, chain, draw)` of all rungs to all temperatures."""
    num_rungs, num_chains, num_draws = energies.shape
    lowest = energies.min()
    values = (energies - lowest).reshape(num_rungs, -1)
    flat = values.ravel()
    reduced = betas[:, None] * flat[None]
    batch = np.repeat(chain_batches(num_chains), num_draws)
    batch = np.tile(batch, num_rungs)
    at = 1 / temperatures
    start = None

    def quantities(included):
        nonlocal start
        weights = included[batch].astype(float)
        counts = np.full(num_rungs, weights.sum() / num_rungs)
        log_z, log_mixture = mbar(reduced, counts, weights, start)
        start = log_z
        with np.errstate(divide="ignore"):
            log_weights = np.log(weights) - log_mixture
        terms = log_weights[None] - at[:, None] * flat[None]
        largest = terms.max(1, keepdims=True)
        shares = np.exp(terms - largest)
        total = shares.sum(1, keepdims=True)
        relative, shares = (largest + np.log(total))[:, 0], shares / total
        mean = shares @ flat
        variance = np.sum(shares * (flat[None] - mean[:, None]) ** 2, axis=1)
        # The last rung, where all states are equally likely, has a known log Z.
        found = relative - log_z[-1] + log_states - at * lowest
        mean = mean + lowest
        return np.stack([found, mean, variance * at**2, found + at * mean])

    values, errors = jackknife(quantities, int(batch.max()) + 1)
    pairs = zip(_QUANTITIES, values, errors, strict=True)
    found = {name: (value, error) for name, value, error in pairs}
    numbers = {name: value for name, (value, _) in found.items()}
    numbers |= {f"{name}_stderr": error for name, (_, error) in found.items()}
    return TemperatureCurve(temperatures, **numbers, betas=betas, swap_rates=rates)


def _checked_temperatures(temperatures):
    found = np.atleast_1d(np.asarray(temperatures, float))
    if (
        found.ndim != 1
        or not len(found)
        or not (np.isfinite(found) & (found > 0)).all()
    ):
        raise ValueError(
            f"temperatures must be finite and above 0, got {temperatures}; try "
            "np.linspace(0.5, 2, 31)"
        )
    return found
