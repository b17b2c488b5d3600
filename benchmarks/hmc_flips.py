"""What fewer flips of the momentum are worth: the ring of the thesis.

    E(x) = 100 log^2 |x|,   x in the plane,

step 0.1, one leapfrog step, half of the momentum's variance kept per unit of time.
Exact draws start the chains: log |x| is normal, of mean 1/100 and variance 1/200, and
the angle is uniform.

Reduced flips ask for a leap back wherever the first was rejected. What they gain per
gradient hangs on who pays for it: the lanes alone that need it, the blocks of lanes
that `lazily` works off, or, as under a plain `vmap`, every lane.

Reference: thesis, chapter "Hamiltonian Monte Carlo", "Example".
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import Options, Table, Timing, ratio, time_together
from probjax import plots, sample
from probjax.lanes import BLOCKS, lazily
from probjax.leapfrog import drift_kick_drift, hamiltonian, kick_drift_kick
from probjax.plots import BLUE, GREY, ORANGE
from probjax.potential import potential
from probjax.samplers import HMC, reduced_flip, slice_flip, standard_flip
from probjax.samplers.tuning import tune

FIGURE = Path("out/hmc_flips.png")
STEP = 0.1
RULES = {"standard": standard_flip, "reduced": reduced_flip, "slice": slice_flip}
COLOURS = {"standard": GREY, "reduced": BLUE, "slice": ORANGE}
# The leap's evaluations: the second order has to know the energy at its end.
INTEGRATORS = {
    "kick-drift-kick": (kick_drift_kick, 1),
    "drift-kick-drift": (drift_kick_drift, 2),
}
KNOWN = {
    ("kick-drift-kick", "standard"): (".216", "96"),
    ("kick-drift-kick", "reduced"): (".031", "60"),
    ("drift-kick-drift", "standard"): (".21", "115"),
    ("drift-kick-drift", "reduced"): (".052", "79"),
}
NUM_LAGS, NUM_GROUPS, WINDOW = 200, 10, 5
NUM_LANES, NEEDED = 1000, 0.2


class Correlation(NamedTuple):
    """How draws hang together along their chains."""

    time: float
    """The integrated autocorrelation time, in draws; NaN if chains are too short."""
    stderr: float
    """Its error, from groups of chains."""
    covariance: np.ndarray
    """The autocovariance at every lag."""


class Cost(NamedTuple):
    """Evaluations of the gradient per step of a chain, by who pays for a leap back."""

    alone: float
    blocks: float
    every: float


class Measured(NamedTuple):
    """What a rule did on the ring."""

    accept: float
    flip: float
    correlation: Correlation
    cost: Cost
    off: float


class Problem(NamedTuple):
    """What is sampled, from where, and a sampler that rejects a fifth."""

    energy: Callable[..., jax.Array]
    params: Any
    x: jax.Array
    sampler: HMC


def run(options: Options) -> Iterator[Table]:
    plots.load_pyplot()
    yield from flips(options)
    tasks = problems()
    yield extra_cost(options, tasks)
    yield step_seconds(options, tasks)


def ring(params: None, x: jax.Array) -> jax.Array:
    return 25 * jnp.log(x @ x) ** 2


def experts(params: jax.Array, x: jax.Array) -> jax.Array:
    """Student-t experts on a Gaussian: two products with a matrix for a gradient."""
    return x @ x / 2 + jnp.sum(jnp.log1p((params @ x) ** 2))


def ring_starts(count: int) -> jax.Array:
    radius_key, angle_key = jax.random.split(jax.random.key(0))
    log_radius = 0.01 + jax.random.normal(radius_key, (count,)) / np.sqrt(200)
    angle = jax.random.uniform(angle_key, (count,), maxval=2 * np.pi)
    where = jnp.stack([jnp.cos(angle), jnp.sin(angle)], 1)
    return jnp.exp(log_radius)[:, None] * where


def flips(options: Options) -> Iterator[Table]:
    num_chains, num_draws = (200, 2000) if options.quick else (400, 100_000)
    x = ring_starts(num_chains)
    found = {
        (order, rule): measure(x, order, rule, num_draws)
        for order in INTEGRATORS
        for rule in RULES
    }
    yield Table(
        f"The ring: {num_chains:,} chains of {num_draws:,} steps of {STEP}",
        (
            "integrator",
            "flips",
            "accepted",
            "flipped",
            "known",
            "time of x1",
            "+-",
            "known time",
            "|x|^2 off",
        ),
        [
            (
                *names,
                one.accept,
                one.flip,
                KNOWN.get(names, ("", ""))[0],
                one.correlation.time,
                one.correlation.stderr,
                KNOWN.get(names, ("", ""))[1],
                one.off,
            )
            for names, one in found.items()
        ],
        f"Time: the integrated autocorrelation time in steps, summed to {WINDOW} "
        f"times itself, its error from {NUM_GROUPS} groups of chains. Known: of other "
        "runs, the first with acceptance .784; the thesis shows the autocovariance "
        "only. |x|^2 off: its mean less exp(.03), in standard errors.",
    )
    yield gains(found, num_chains)
    draw(found)


def gains(found: dict[tuple[str, str], Measured], num_chains: int) -> Table:
    rows = []
    for (order, rule), one in found.items():
        base = found[order, "standard"]
        faster = base.correlation.time / one.correlation.time
        gained = [faster * base.cost.alone / cost for cost in one.cost]
        both = (base, one) if rule != "standard" else ()
        shares = [each.correlation.stderr / each.correlation.time for each in both]
        error = gained[1] * float(np.linalg.norm(shares))
        rows.append((order, rule, *one.cost, *gained, error))
    return Table(
        "The ring: gain per gradient over standard flips",
        (
            "integrator",
            "flips",
            "gradients, alone",
            "in blocks",
            "every lane",
            "gain, alone",
            "gain in blocks",
            "gain, every lane",
            "+-",
        ),
        rows,
        "Gradients per step and chain: alone, of the lanes that rejected; in blocks, "
        f"as `lazily` made them for {num_chains:,} chains, {BLOCKS} blocks to a batch; "
        "every lane, as a plain vmap would. A gain is that in time times gradients; "
        "its error is of the one in blocks. Known, kick-drift-kick: reduced flips 1.28 "
        "alone, .78 for every lane; blackjax GHMC, a slice, 1.66. Target in blocks: "
        "above 1.15.",
    )


def measure(x: jax.Array, order: str, rule: str, num_draws: int) -> Measured:
    integrator, evaluations = INTEGRATORS[order]
    sampler = HMC(STEP, flip=RULES[rule], integrator=integrator)
    key = jax.random.key(1)
    draws = sample(key, ring, None, x, sampler=sampler, num_draws=num_draws)
    means = np.asarray(jnp.sum(draws.x**2, -1).mean(1), float)
    error = means.std(ddof=1) / np.sqrt(len(means))
    rejected = np.asarray(1 - draws.info.accept)
    return Measured(
        accept=float(draws.info.accept.mean()),
        flip=float(draws.info.flip.mean()),
        correlation=correlation(np.asarray(draws.x[..., 0])),
        cost=cost(rejected, evaluations, leaps_back=rule == "reduced"),
        off=float((means.mean() - np.exp(0.03)) / error),
    )


def correlation(x: np.ndarray) -> Correlation:
    """Of draws `(chain, draw)` whose mean is known to be 0.

    Not `diagnostics`: about the chains' own means a covariance of n draws is biased by
    order tau / n at every lag, which of many chains is all that is left to sum.
    """
    size = x.shape[1]
    waves = np.fft.rfft(x, 2 * size)
    products = np.fft.irfft(waves.real**2 + waves.imag**2)[:, :size]
    groups = products.reshape(NUM_GROUPS, -1, size).mean(1) / np.arange(size, 0, -1)
    pooled = groups.mean(0)
    times = 2 * np.cumsum(pooled) / pooled[0] - 1
    enough = np.arange(size) > WINDOW * times
    if not enough.any():
        return Correlation(np.nan, np.nan, pooled)
    end = int(enough.argmax())
    apart = 2 * groups[:, : end + 1].sum(1) / groups[:, 0] - 1
    stderr = np.std(apart, ddof=1) / np.sqrt(NUM_GROUPS)
    return Correlation(float(times[end]), float(stderr), pooled)


def cost(rejected: np.ndarray, evaluations: int, *, leaps_back: bool) -> Cost:
    """Of rejections `(chain, draw)`."""
    if not leaps_back:
        return Cost(*3 * [float(evaluations)])
    return Cost(
        evaluations * (1 + float(rejected.mean())),
        evaluations * (1 + blocks_made(rejected)),
        evaluations * 2.0,
    )


def blocks_made(needed: np.ndarray) -> float:
    """The share of lanes that `lazily` evaluates, of those in need `(lane, time)`."""
    size = -(-len(needed) // BLOCKS)
    return float(np.mean(np.ceil(needed.sum(0) / size)) * size / len(needed))


def extra_cost(options: Options, tasks: dict[str, Problem]) -> Table:
    """A leap back for a fifth of the lanes, beside one for all of them."""
    repeats, num_steps = (5, 50) if options.quick else (15, 200)
    rows = []
    for name, (energy, params, x, sampler) in tasks.items():
        calls = {
            way: partial(_leaps_back, way, energy, params, x, sampler, num_steps)
            for way in WAYS
        }
        times = time_together(repeats, **calls)
        nothing, lazy, every = (times[way].seconds / num_steps for way in WAYS)
        rows.append(
            (
                name,
                1e6 * float(np.median(lazy - nothing)),
                1e6 * float(np.median(every - nothing)),
                ratio(Timing(lazy - nothing), Timing(every - nothing)),
            )
        )
    size = -(-NUM_LANES // BLOCKS)
    made = -(-NUM_LANES * NEEDED // size) * size / NUM_LANES
    return Table(
        f"A leap back that {NEEDED:.0%} of {NUM_LANES:,} lanes need",
        ("energy", "lazily, us", "every lane, us", "ratio"),
        rows,
        "Microseconds per step, less those of a step without it, medians of turns. "
        f"Blocks of {size} lanes evaluate {made:.1%} of all. Target: a ratio of at "
        "most .4.",
    )


def problems() -> dict[str, Problem]:
    matrix_key, x_key, tune_key = jax.random.split(jax.random.key(2), 3)
    matrix = jax.random.normal(matrix_key, (400, 100)) / 10
    x = jax.random.normal(x_key, (NUM_LANES, 100)) / 4
    tuned = tune(
        tune_key,
        experts,
        matrix,
        x,
        sampler=HMC(0.1),
        num_steps=400,
        target=1 - NEEDED,
        spread=None,
    )
    return {
        "ring, 2-d": Problem(ring, None, ring_starts(NUM_LANES), HMC(STEP)),
        "400 experts, 100-d": Problem(experts, matrix, tuned.x, tuned.sampler),
    }


WAYS = ("nothing", "lazily", "every lane")


@partial(jax.jit, static_argnums=(0, 1, 5))
def _leaps_back(way, energy, params, x, sampler, num_steps):
    model, count = potential(energy, params), len(x)
    keys = jax.random.split(jax.random.key(3), count)
    states = jax.vmap(sampler.init, (0, None, 0))(keys, model, x)
    before, leap, _ = jax.vmap(sampler.begin)(keys, states)

    def step(number, before):
        # Scattered, and others every time, as 389 has no divisor in common with 1,000.
        needed = (389 * jnp.arange(count) + 7 * number) % count < NEEDED * count
        if way == "lazily":
            lazy = partial(lazily, _fall_back)
            fall = jax.vmap(lazy, (0, 0, None, 0))(needed, leap, model, before)
        elif way == "every lane":
            fall = jax.vmap(_fall_back, (0, None, 0))(leap, model, before)
        else:
            fall = before.terms[:, 0]
        # What is found must be used, and move what comes next.
        turn = jnp.where(needed & (fall < -0.1), -1, 1)
        return before._replace(v=turn[:, None] * before.v)

    return jax.lax.fori_loop(0, num_steps, step, before)


def _fall_back(leap, model, phase):
    turned = phase._replace(v=-phase.v)
    return hamiltonian(model, turned) - hamiltonian(model, leap(model, turned))


def step_seconds(options: Options, tasks: dict[str, Problem]) -> Table:
    """Whole steps of the rules."""
    repeats, num_steps = (5, 50) if options.quick else (15, 200)
    rows = []
    for name, (energy, params, x, sampler) in tasks.items():
        calls = {
            rule: partial(
                _steps, energy, params, x, replace(sampler, flip=flip), num_steps
            )
            for rule, flip in RULES.items()
        }
        times = time_together(repeats, **calls)
        accept = {rule: float(call()) for rule, call in calls.items()}
        rows.extend(
            (
                name,
                rule,
                accept[rule],
                1e6 * times[rule].median / num_steps,
                ratio(times[rule], times["standard"]),
            )
            for rule in RULES
        )
    return Table(
        f"Seconds of a step, {NUM_LANES:,} chains together",
        ("energy", "flips", "accepted", "us per step", "of standard flips"),
        rows,
        "Medians of turns; random numbers and all.",
    )


def _steps(energy, params, x, sampler, num_steps):
    draws = sample(
        jax.random.key(4),
        energy,
        params,
        x,
        sampler=sampler,
        num_draws=1,
        thin=num_steps,
    )
    return draws.info.accept.mean()


def draw(found: dict[tuple[str, str], Measured]) -> None:
    """The autocovariance of x1 against steps, one panel to an integrator."""
    figure, axes = plots.load_pyplot().subplots(
        1, 2, figsize=(8, 3.2), sharey=True, layout="constrained"
    )
    for ax, order in zip(axes, INTEGRATORS, strict=True):
        for rule in RULES:
            found_time, _, covariance = found[order, rule].correlation
            label = f"{rule}: {found_time:.0f} steps"
            ax.plot(covariance[:NUM_LAGS], color=COLOURS[rule], label=label)
        ax.axhline(0, color="black", linewidth=0.6)
        ax.set_title(order)
        ax.set_xlabel("steps between")
        ax.spines[["top", "right"]].set_visible(False)
        ax.legend(frameon=False, title="flips, time")
    axes[0].set_ylabel("autocovariance of x1")
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=150)
