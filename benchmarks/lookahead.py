"""Looking ahead instead of turning back, on the paper's targets and beside blackjax.

Gaussians whose variances are spaced evenly in logarithm from 1 up, and the rough well

    E(x) = sum_i x_i^2 / (2 100^2) + cos(2 pi x_i / 4),   x in the plane,

with leaps of ten steps of length 1. The paper replaces a share of .1 of the momentum's
variance in every leap; that is `kept` = .9^(1/10), per unit of time. All chains start
from exact draws, so that none has to be forgotten.

Reference: Sohl-Dickstein, Mudigonda and DeWeese, "Hamiltonian Monte Carlo without
detailed balance", ICML 2014, table 1; the scales of the well as in their published
code.
"""

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.harness import Options, Table, ratio, time_together
from benchmarks.hmc_flips import WINDOW, blocks_made, correlation, experts
from probjax import sample
from probjax.samplers import (
    HMC,
    LookAheadHMC,
    Momentum,
    reduced_flip,
    slice_flip,
    standard_flip,
)

STEP, NUM_STEPS = 1.0, 10
REPLACED = 0.1
MOMENTUM = Momentum((1 - REPLACED) ** (1 / (STEP * NUM_STEPS)))
SLICE_DRIFT = 0.05
WIDE, ROUGH = 100.0, 4.0
LEAPS = ("F", "L", "L2", "L3", "L4")
STANDARD = "standard flips"


class Target(NamedTuple):
    """What is sampled."""

    energy: Callable[..., jax.Array]
    params: Any
    exact: Callable[[int], jax.Array]
    """Independent draws, so many."""
    mean_energy: float
    published: dict[int, tuple[float, ...]]
    """Fractions of F, L, L2, ... by how far the sampler looks ahead."""
    gains: dict[str, float]
    """Known gains per gradient over standard flips."""
    gradients: int
    """How many there are from a draw to the next."""
    budget: int
    """How many each chain may spend."""


class Peer(NamedTuple):
    """An algorithm of blackjax."""

    make: Callable[..., Any]
    """It, of a log density."""
    thin: int
    """How many of its steps there are from a draw to the next."""


class Run(NamedTuple):
    """What a program did with its budget."""

    x: np.ndarray
    """Draws `(chain, draw, n)`."""
    alone: float
    """Gradients that a chain needed from a draw to the next."""
    made: float
    """Those that were evaluated for it in its batch."""


def run(options: Options) -> Iterator[Table]:
    check_peer()
    yield fractions(options)
    known = targets()
    for name, target in known.items():
        if not (options.quick and target.budget > 100_000):
            yield times(options, name, target)
    yield speeds(options)


def gaussian(params: jax.Array, x: jax.Array) -> jax.Array:
    return jnp.sum(x**2 / params) / 2


def rough_well(params: None, x: jax.Array) -> jax.Array:
    return jnp.sum((x / WIDE) ** 2 / 2 + jnp.cos(2 * np.pi / ROUGH * x))


def targets() -> dict[str, Target]:
    return {
        "Gaussian, 2-d, condition 1e6": gaussian_target(
            2,
            1e6,
            {1: (0.079, 0.921), 4: (0, 0.921, 0.035, 0.044, 0)},
            gradients=100,
            budget=400_000,
        ),
        "Gaussian, 100-d, condition 1e6": gaussian_target(
            100,
            1e6,
            {1: (0.147, 0.853), 4: (0.046, 0.852, 0.060, 0.035, 0.006)},
            gradients=100,
            budget=400_000,
        ),
        "Gaussian, 100-d, condition 1e4": gaussian_target(
            100,
            1e4,
            {},
            gains={"reduced": 1.23, "look-ahead 2": 1.62, "look-ahead 4": 2.77},
            gradients=20,
            budget=80_000,
        ),
        "rough well, 2-d": Target(
            rough_well,
            None,
            rough_draws,
            rough_energy(),
            {1: (0.442, 0.558), 4: (0.293, 0.554, 0.099, 0.036, 0.019)},
            {"reduced": 0.78, "look-ahead 2": 1.66, "look-ahead 4": 3.20},
            gradients=100,
            budget=400_000,
        ),
    }


def gaussian_target(
    size: int,
    condition: float,
    published: dict[int, tuple[float, ...]],
    *,
    gradients: int,
    budget: int,
    gains: dict[str, float] | None = None,
) -> Target:
    variances = jnp.asarray(np.geomspace(1, condition, size), float)
    draws = partial(gaussian_draws, variances)
    return Target(
        gaussian,
        variances,
        draws,
        size / 2,
        published,
        gains or {},
        gradients,
        budget,
    )


def gaussian_draws(variances: jax.Array, count: int) -> jax.Array:
    shape = (count, len(variances))
    return jnp.sqrt(variances)[None] * jax.random.normal(jax.random.key(0), shape)


def rough_draws(count: int) -> jax.Array:
    """By rejection from the wide Gaussian: 47 % are accepted."""
    generator = np.random.default_rng(0)
    x = WIDE * generator.standard_normal(6 * count + 1000)
    ripple = np.cos(2 * np.pi / ROUGH * x)
    x = x[generator.random(len(x)) < np.exp(-1 - ripple)]
    return jnp.asarray(x[: 2 * count].reshape(count, 2), float)


def rough_energy() -> float:
    """The mean energy, by sums over a grid."""
    x = np.linspace(-10 * WIDE, 10 * WIDE, 200_001)
    energy = (x / WIDE) ** 2 / 2 + np.cos(2 * np.pi / ROUGH * x)
    weight = np.exp(-energy)
    return float(2 * np.sum(weight * energy) / np.sum(weight))


def fractions(options: Options) -> Table:
    """How far steps from exact draws go: as often as on average over a long chain."""
    count = 20_000 if options.quick else 200_000
    rows = []
    for name, target in targets().items():
        for look_ahead, published in target.published.items():
            far = leaps_taken(target, look_ahead, count)
            for leap, theirs in enumerate(published):
                share = float(np.mean(far == leap))
                error = np.sqrt(max(share, 1 / count) * (1 - share) / count)
                row = (name, look_ahead, LEAPS[leap], share, error, theirs)
                rows.append((*row, share - theirs))
    return Table(
        f"Transitions, of {count:,} independent states",
        ("energy", "look ahead", "transition", "share", "+-", "paper", "difference"),
        rows,
        "F: momentum negated; L2: to where two leaps lead. Look ahead 1: standard "
        "flips. In equilibrium these do not depend on how momentum is refreshed. The "
        "paper's figures, of three digits, come of chains and without errors.",
    )


def leaps_taken(target: Target, look_ahead: int, count: int) -> np.ndarray:
    sampler = LookAheadHMC(
        STEP, num_steps=NUM_STEPS, look_ahead=look_ahead, momentum=MOMENTUM
    )
    draws = sample(
        jax.random.key(1),
        target.energy,
        target.params,
        target.exact(count),
        sampler=sampler,
        num_draws=1,
    )
    return np.asarray(draws.info.num_leaps)


def times(options: Options, name: str, target: Target) -> Table:
    """Autocorrelation times in gradients."""
    num_chains, budget = 100, target.budget
    if options.quick:
        num_chains, budget = 40, budget // 8
        target = target._replace(gradients=NUM_STEPS)
    x = target.exact(num_chains)
    calls = {
        label: partial(run_ours, target, x, sampler, budget)
        for label, sampler in samplers().items()
    }
    calls |= {
        label: partial(run_peer, target, x, peer, budget)
        for label, peer in peers(target, x).items()
    }
    return Table(
        f"{name}: {num_chains} chains of {budget:,} gradients",
        (
            "program",
            "time in gradients",
            "+-",
            "gain",
            "gain, +-",
            "known",
            "gain as made",
            "energy off",
            "energy, +-",
        ),
        time_rows(calls, target, budget),
        "Time: the integrated autocorrelation time of the coordinate that is widest, "
        "or of both in the well, in gradients that a chain needs, its error from "
        "groups of chains. Gain: over standard flips; as made: by the gradients that "
        "were evaluated in the batch, in blocks by `lazily`, by NUTS until the longest "
        "path is done. Known: of other runs. blackjax has our step, path and share "
        "of momentum (GHMC leaps one step), but HMC and NUTS draw it anew, and MCLMC, "
        "of two gradients a step, is as its own tuning leaves it. Energy off: its mean "
        "less the exact one, per dimension.",
    )


def time_rows(
    calls: dict[str, Callable[[], Run]], target: Target, budget: int
) -> list[tuple]:
    rows, base = [], None
    for label, call in calls.items():
        done = call()
        found = correlation(watched(target, done.x))
        off = energy_off(target, done.x)
        if np.isnan(found.time):
            too_long = f"over {budget // WINDOW:,}"
            rows.append((label, too_long, *5 * [""], *off))
            continue
        spent, share = found.time * done.alone, found.stderr / found.time
        base = (spent, share) if label == STANDARD else base
        gained: tuple = ("", "", "")
        if base is not None:
            gain = base[0] / spent
            error = 0.0 if label == STANDARD else gain * np.hypot(base[1], share)
            gained = (gain, float(error), gain * done.alone / done.made)
        known = target.gains.get(label, "")
        rows.append((label, spent, spent * share, *gained[:2], known, gained[2], *off))
    return rows


def watched(target: Target, x: np.ndarray) -> np.ndarray:
    if target.energy is gaussian:
        return x[..., -1]
    return np.moveaxis(x, 2, 1).reshape(-1, x.shape[1])


def energy_off(target: Target, x: np.ndarray) -> tuple[float, float]:
    energy = jax.jit(jax.vmap(jax.vmap(partial(target.energy, target.params))))
    means = np.asarray(energy(x).mean(1), float) / x.shape[2]
    error = means.std(ddof=1) / np.sqrt(len(means))
    return float(means.mean() - target.mean_energy / x.shape[2]), float(error)


def samplers() -> dict[str, Any]:
    leaps = partial(HMC, STEP, num_steps=NUM_STEPS, momentum=MOMENTUM)
    ahead = partial(LookAheadHMC, STEP, num_steps=NUM_STEPS, momentum=MOMENTUM)
    return {
        STANDARD: leaps(flip=standard_flip),
        "reduced": leaps(flip=reduced_flip),
        "slice": leaps(flip=slice_flip),
        "look-ahead 2": ahead(look_ahead=2),
        "look-ahead 4": ahead(look_ahead=4),
    }


def run_ours(target: Target, x: jax.Array, sampler: Any, budget: int) -> Run:
    go = partial(sample, jax.random.key(2), target.energy, target.params, x)
    thin = target.gradients // NUM_STEPS
    draws = go(sampler=sampler, num_draws=budget // target.gradients, thin=thin)
    # Only single steps tell how many lanes of a batch were in need at a time.
    info = draws.info if thin == 1 else go(sampler=sampler, num_draws=200).info
    alone, made = (target.gradients * leaps for leaps in leaps_made(sampler, info))
    return Run(np.asarray(draws.x)[:, : int(budget / alone)], alone, made)


def leaps_made(sampler: Any, info: Any) -> tuple[float, float]:
    """Leaps per step that a chain needs, and those evaluated for it in blocks."""
    if isinstance(sampler, LookAheadHMC):
        taken = np.asarray(info.evaluations)
        needed = [taken > ahead for ahead in range(1, sampler.look_ahead)]
    elif sampler.flip is reduced_flip:
        needed = [np.asarray(info.accept) == 0]
    else:
        needed = []
    alone = sum(float(lanes.mean()) for lanes in needed)
    return 1 + alone, 1 + sum(blocks_made(lanes) for lanes in needed)


def peers(target: Target, x: jax.Array) -> dict[str, Peer]:
    known = untuned_peers(target, x)
    return known | {"blackjax MCLMC": mclmc(target, x)}


def untuned_peers(target: Target, x: jax.Array) -> dict[str, Peer]:
    import blackjax

    unit = jnp.ones(x.shape[1])
    replaced = 1 - (1 - REPLACED) ** (1 / NUM_STEPS)
    return {
        "blackjax HMC": Peer(
            partial(
                blackjax.hmc,
                step_size=STEP,
                inverse_mass_matrix=unit,
                num_integration_steps=NUM_STEPS,
            ),
            target.gradients // NUM_STEPS,
        ),
        "blackjax NUTS": Peer(
            partial(blackjax.nuts, step_size=STEP, inverse_mass_matrix=unit), 1
        ),
        "blackjax GHMC": Peer(
            partial(
                blackjax.ghmc,
                step_size=STEP,
                momentum_inverse_scale=unit,
                alpha=replaced,
                delta=SLICE_DRIFT,
            ),
            target.gradients,
        ),
    }


def mclmc(target: Target, x: jax.Array) -> Peer:
    import blackjax

    length, step = tuned_mclmc(target, x)
    make = partial(blackjax.mclmc, L=length, step_size=step)
    return Peer(make, target.gradients // 2)


def tuned_mclmc(target: Target, x: jax.Array) -> tuple[float, float]:
    import blackjax

    def log_density(x):
        return -target.energy(target.params, x)

    start_key, tune_key = jax.random.split(jax.random.key(3))
    _, found, _ = blackjax.mclmc_find_L_and_step_size(
        mclmc_kernel=blackjax.mclmc.build_kernel(),
        num_steps=20_000,
        state=blackjax.mclmc.init(x[0], log_density, start_key),
        rng_key=tune_key,
        logdensity_fn=log_density,
        diagonal_preconditioning=False,
    )
    return float(found.L), float(found.step_size)


def run_peer(target: Target, x: jax.Array, peer: Peer, budget: int) -> Run:
    algorithm = peer.make(lambda x: -target.energy(target.params, x))
    keys = jax.random.split(jax.random.key(4), len(x))
    states = jax.jit(jax.vmap(algorithm.init))(x, keys)
    chunk, parts, alone, made = 20, [], 0.0, 0.0
    go_on = peer_steps(algorithm.step, chunk, peer.thin)
    while alone < budget:
        key = jax.random.fold_in(jax.random.key(5), len(parts))
        states, draws, *spent = go_on(key, states)
        parts.append(np.asarray(draws))
        alone, made = alone + float(spent[0]), made + float(spent[1])
    num_draws = chunk * len(parts)
    drawn = np.swapaxes(np.concatenate(parts), 0, 1)
    return Run(drawn, alone / num_draws, made / num_draws)


def peer_steps(step: Callable[..., Any], num_draws: int, thin: int):
    """A compiled scan over draws of loops over steps of all chains together."""

    @jax.jit
    def go_on(key, states):
        def one(number, carry):
            states, alone, made = carry
            keys = jax.random.split(jax.random.fold_in(key, number), count)
            states, info = jax.vmap(step)(keys, states)
            spent = getattr(info, "num_integration_steps", jnp.asarray([2.0]))
            spent = jnp.asarray(spent, float)
            return states, alone + spent.mean(), made + spent.max()

        def draw(carry, number):
            carry = jax.lax.fori_loop(number * thin, (number + 1) * thin, one, carry)
            return carry, carry[0].position

        count = len(states.position)
        none = jnp.zeros(())
        carry, draws = jax.lax.scan(draw, (states, none, none), jnp.arange(num_draws))
        return carry[0], draws, carry[1], carry[2]

    return go_on


def speeds(options: Options) -> Table:
    """Seconds of a leapfrog step, beside blackjax's HMC."""
    repeats, num_leaps = (5, 10) if options.quick else (15, 50)
    num_chains, size = 1000, 100
    matrix = jax.random.normal(jax.random.key(6), (4 * size, size)) / 10
    problems = {
        "Gaussian": (gaussian, jnp.asarray(np.geomspace(1, 1e4, size), float), STEP),
        "400 experts": (experts, matrix, 0.1),
    }
    rows = []
    for name, (energy, params, step_size) in problems.items():
        x = jax.random.normal(jax.random.key(7), (num_chains, size))
        for num_steps in (1, NUM_STEPS):
            calls = speed_calls(energy, params, x, step_size, num_steps, num_leaps)
            found = time_together(repeats, **calls)
            ours, theirs = (
                1e6 * found[who].median / (num_leaps * num_steps)
                for who in ("ours", "blackjax")
            )
            faster = ratio(found["blackjax"], found["ours"])
            rows.append((name, num_steps, faster, ours, theirs))
    return Table(
        f"Seconds of a leapfrog step of HMC, {num_chains:,} chains, {size}-d",
        ("energy", "steps of a leap", "times faster", "ours, us", "blackjax, us"),
        rows,
        "All chains together, momentum drawn anew by each leap, no draws kept. Medians "
        "of turns. Target: as fast at least.",
    )


def speed_calls(energy, params, x, step_size, num_steps, num_leaps):
    import blackjax

    sampler = HMC(step_size, num_steps=num_steps, momentum=Momentum(0.0))
    algorithm = blackjax.hmc(
        lambda x: -energy(params, x),
        step_size=step_size,
        inverse_mass_matrix=jnp.ones(x.shape[1]),
        num_integration_steps=num_steps,
    )
    key = jax.random.key(8)
    keys = jax.random.split(key, len(x))
    states = jax.jit(jax.vmap(algorithm.init))(x, keys)
    go_on = peer_steps(algorithm.step, 1, num_leaps)

    start = sample(key, energy, params, x, sampler=sampler, num_draws=1)

    def ours():
        return sample(
            key, energy, params, start, sampler=sampler, num_draws=1, thin=num_leaps
        )

    return {"ours": ours, "blackjax": lambda: go_on(key, states)}


def check_peer() -> None:
    try:
        import blackjax  # noqa: F401
    except ImportError as missing:
        raise SystemExit("lookahead needs a peer: pip install blackjax") from missing
