from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.stats import norm

from probjax import random, sample, sample_mean
from probjax.leapfrog import (
    Bounds,
    drift_kick_drift,
    hamiltonian,
    kick_drift_kick,
    phase_at,
)
from probjax.potential import potential
from probjax.samplers.chain_loop import run_steps
from probjax.samplers.hmc import HMC, HMCState, Jitter
from probjax.samplers.lookahead import LookAheadHMC
from probjax.samplers.momentum import (
    Momentum,
    reduced_flip,
    slice_flip,
    standard_flip,
)

FLIPS = [standard_flip, reduced_flip, slice_flip]


def crooked(params, x):
    """Asymmetric in both coordinates, which are not independent."""
    return jnp.exp(-x[0]) + 0.8 * x[0] + (x[1] - 0.5 * x[0] ** 2) ** 2 + 0.1 * x[1]


def line(params, x):
    return params * x[0]


def half_line(params, x):
    """Without energy to the left of -1."""
    return jnp.where(x[0] < -1, jnp.nan, jnp.sum(x**2) / 2)


def bottomless(params, x):
    return jnp.where(x[0] > 1, -jnp.inf, jnp.sum(x**2) / 2)


MODEL = potential(crooked, 0.0)


def phases(count):
    """Anywhere in phase space: balance is to hold at every point of it."""
    generator = np.random.default_rng(0)
    return generator.normal(size=(count, 2)), generator.normal(size=(count, 2))


def probabilities(flip, sampler, x, v):
    """How likely a leap is from (x, v), and a flip, by bisection over the chance."""
    state = HMCState(None, jnp.zeros(()), jnp.asarray(0))
    leap = sampler.draw_leap(jax.random.key(0), x.dtype)
    start = phase_at(MODEL, x, v)
    ratio = hamiltonian(MODEL, start) - hamiltonian(MODEL, leap(MODEL, start))
    turned = phase_at(MODEL, x, -v)
    back = hamiltonian(MODEL, turned) - hamiltonian(MODEL, leap(MODEL, turned))

    def choose(chance):
        return flip(chance, state.slice, ratio, lambda needed: back)

    def edge(test):
        def halve(_, ends):
            low, high = ends
            middle = (low + high) / 2
            return jax.tree.map(
                lambda a, b: jnp.where(test(choose(middle)), a, b),
                (middle, high),
                (low, middle),
            )

        return jax.lax.fori_loop(0, 60, halve, (jnp.zeros(()), jnp.ones(())))[0]

    leaps = edge(lambda choice: choice.leap)
    moves = edge(lambda choice: choice.leap | choice.flip)
    return leaps, moves - leaps


@pytest.mark.parametrize("flip", [standard_flip, reduced_flip])
@pytest.mark.parametrize("integrator", [kick_drift_kick, drift_kick_drift])
def test_what_flows_into_a_state_flows_out_of_it(flip, integrator, x64):
    sampler = HMC(0.6, num_steps=2, flip=flip, integrator=integrator)

    @jax.jit
    @jax.vmap
    def imbalance(x, v):
        leap = sampler.draw_leap(jax.random.key(0), x.dtype)
        before = leap(MODEL, phase_at(MODEL, x, -v))  # F L F is the inverse of L
        origin = (before.x, -before.v)
        p = jnp.exp(-hamiltonian(MODEL, phase_at(MODEL, x, v)))
        p_origin = jnp.exp(-hamiltonian(MODEL, phase_at(MODEL, *origin)))
        leaps, flips = probabilities(flip, sampler, x, v)
        from_origin, _ = probabilities(flip, sampler, *origin)
        _, from_turned = probabilities(flip, sampler, x, -v)
        out = p * (leaps + flips)
        return (p_origin * from_origin + p * from_turned - out) / p, flips

    difference, flips = imbalance(*phases(200))
    assert np.abs(np.asarray(difference)).max() < 1e-11
    assert 0.02 < np.asarray(flips).mean() < 0.5


def test_reduced_flips_are_never_both_ways(x64):
    sampler = HMC(0.6, flip=reduced_flip)
    flips = jax.jit(jax.vmap(partial(probabilities, reduced_flip, sampler)))
    x, v = phases(200)
    _, there = flips(x, v)
    _, back = flips(x, -v)
    assert np.minimum(there, back).max() < 1e-12
    assert np.maximum(there, back).max() > 0.1


def test_slice_is_uniform_below_the_density_wherever_it_goes(x64):
    """An accepted leap keeps p |s|, so its way back is accepted too."""
    chosen = jax.jit(lambda *values: slice_flip(*values, None))
    for ratio in (-0.7, 0.4):
        choice = chosen(0.3, 0.2, ratio)
        moved = 0.2 + 2 * 0.05 * 0.3
        assert choice.leap == (np.log(moved) < ratio)
        np.testing.assert_allclose(
            float(choice.slice) * np.exp(ratio), moved, rtol=1e-12
        )
        assert abs(float(choice.slice)) < np.exp(-ratio)
    wrapped = chosen(0.5, 0.98, -9.0)
    np.testing.assert_allclose(wrapped.slice, -0.97, rtol=1e-12)
    assert wrapped.flip


@pytest.fixture(scope="module")
def truth():
    """Cells of a grid in x with their probabilities, and draws from it."""
    edges = (np.linspace(-3, 6, 181), np.linspace(-5, 15, 401))
    centres = [(e[1:] + e[:-1]) / 2 for e in edges]
    grid = np.stack(np.meshgrid(*centres, indexing="ij"), -1).reshape(-1, 2)
    energy = jax.jit(jax.vmap(crooked, (None, 0)))(0.0, grid)
    p = np.exp(-np.asarray(energy, float))
    return grid, p / p.sum(), np.array([e[1] - e[0] for e in edges])


@pytest.mark.parametrize(
    "sampler",
    [
        *(HMC(0.7, num_steps=2, flip=flip) for flip in FLIPS),
        HMC(0.6, num_steps=3, momentum=Momentum(0.0), integrator=drift_kick_drift),
        HMC(0.5, num_steps=4, metric=np.array([0.8, 1.3]), jitter=Jitter(0.3, 2)),
        HMC(0.5, num_steps=2, metric=np.array([[0.8, 0.0], [0.5, 1.1]])),
        LookAheadHMC(0.7, num_steps=2, look_ahead=3),
    ],
    ids=["standard", "reduced", "slice", "drift", "jitter", "dense", "look-ahead"],
)
@pytest.mark.parametrize(
    "count", [20_000, pytest.param(60_000, marks=pytest.mark.statistics)]
)
def test_exact_draws_stay_exact(sampler, count, truth, key):
    """Draws spread over all of the target are still so, cell by cell, after steps."""
    grid, p, widths = truth
    generator = np.random.default_rng(0)
    cells = generator.choice(len(p), size=count, p=p)
    within = generator.uniform(-0.5, 0.5, size=(count, 2)) * widths
    start = (grid[cells] + within).astype(np.float32)
    # A slice has to go round to tell whether it stays uniform.
    thin = 50 if getattr(sampler, "flip", None) is slice_flip else 3
    draws = sample(key, crooked, 0.0, start, sampler=sampler, num_draws=1, thin=thin)
    moved = np.asarray(draws.x)[:, 0]
    assert np.mean(moved[:, 0] != start[:, 0]) > 0.2
    coarse = lambda x: (  # noqa: E731
        np.digitize(x[:, 0], [-0.3, 0.2, 0.6, 1.1, 1.7]) * 6
        + np.digitize(x[:, 1] - 0.5 * x[:, 0] ** 2, [-0.9, -0.4, 0.0, 0.3, 0.8])
    )
    expected = np.bincount(coarse(grid), p, minlength=36) * count
    counts = np.bincount(coarse(moved), minlength=36)
    z = (counts - expected) / np.sqrt(expected)
    # 36 cells; the grid's own error is a fraction of a standard error.
    assert np.sum(z**2) < 36 + 5 * np.sqrt(2 * 36)


def test_refresh_leaves_unit_variance_and_keeps_its_share(x64, key):
    sampler = HMC(0.25, num_steps=2, momentum=Momentum(0.3, every=2))

    @jax.jit
    def found(key):
        state = sampler.init(key, MODEL, jnp.zeros(2))

        def refreshed(v, age):
            phase = state.phase._replace(v=v)
            state_then = HMCState(phase, state.slice, jnp.asarray(age))
            return sampler.begin(key, state_then)[0].v

        slope = jax.jacfwd(refreshed)(jnp.ones(2), 0)
        noise, fresh = refreshed(jnp.zeros(2), 0), jax.random.normal(key, (2,))
        return slope, noise, fresh, refreshed(jnp.ones(2), 1)

    slope, noise, fresh, kept = found(key)
    np.testing.assert_allclose(slope, np.sqrt(0.3) * np.eye(2), rtol=1e-12)
    np.testing.assert_allclose(noise, np.sqrt(0.7) * np.asarray(fresh), rtol=1e-12)
    np.testing.assert_array_equal(kept, 1)


def test_without_memory_it_is_plain_hmc(x64, key):
    sampler = HMC(0.3, num_steps=3, momentum=Momentum(0.0))
    energy = lambda x: crooked(0.0, x)  # noqa: E731

    @jax.jit
    def both(key, x):
        after, info = sampler.step(key, MODEL, sampler.init(key, MODEL, x))
        v = jax.random.normal(key, (2,))
        y, w = x, v
        for _ in range(3):
            w = w - 0.15 * jax.grad(energy)(y)
            y = y + 0.3 * w
            w = w - 0.15 * jax.grad(energy)(y)
        ratio = jnp.exp(energy(x) + v @ v / 2 - energy(y) - w @ w / 2)
        accepted = random.uniform(key, stream=1) < ratio
        expected = jnp.where(accepted, y, x), jnp.minimum(1, ratio)
        return (after.x, info.chance), expected

    found, expected = both(key, np.array([0.4, 0.1]))
    for mine, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(mine, other, rtol=1e-10)


@pytest.mark.parametrize(
    ("energy", "params", "bounds", "distribution"),
    [
        (line, 1.5, Bounds(lower=0.0), lambda x: 1 - np.exp(-1.5 * x)),
        (
            lambda params, x: x[0] ** 2 / 2,
            0.0,
            Bounds(-0.5, 1.2),
            lambda x: (norm.cdf(x) - norm.cdf(-0.5)) / (norm.cdf(1.2) - norm.cdf(-0.5)),
        ),
    ],
    ids=["exponential", "truncated normal"],
)
def test_reflection_gives_confined_distributions(
    energy, params, bounds, distribution, key
):
    start = np.full((4000, 1), 0.4)
    sampler = HMC(0.6, num_steps=5, momentum=Momentum(0.0), bounds=bounds)
    draws = sample(
        key, energy, params, start, sampler=sampler, num_draws=1, num_warmup=40
    )
    x = np.sort(np.asarray(draws.x).ravel())
    assert x[0] >= bounds.lower
    assert x[-1] <= bounds.upper
    away = np.abs(distribution(x) - (np.arange(len(x)) + 0.5) / len(x)).max()
    assert away < 1.95 / np.sqrt(len(x))  # Kolmogorov, one in a thousand


def test_what_is_no_number_is_rejected_counted_and_forgotten(key):
    start = np.zeros((50, 1))
    cases = [(HMC(1.0, flip=flip), 0.5) for flip in FLIPS]
    for sampler, most in [*cases, (LookAheadHMC(1.0), 1)]:
        draws = sample(key, half_line, 0.0, start, sampler=sampler, num_draws=100)
        x, diverged = np.asarray(draws.x), np.asarray(draws.info.diverged)
        assert np.isfinite(x).all()
        assert x.min() >= -1
        assert 0.05 < diverged.mean() < most


def test_a_slice_of_nothing_accepts_no_divergence():
    """-1/16 drifts to 0, which is below any share of p but that of a divergence."""
    chosen = jax.jit(lambda *values: slice_flip(*values, None))
    choice = chosen(0.625, -0.0625, -1500.0)
    assert not choice.leap
    assert choice.slice == 0


def test_energies_without_bottom_are_no_place_to_go(key):
    for sampler in (HMC(1.0), HMC(1.0, flip=reduced_flip), LookAheadHMC(1.0)):
        draws = sample(
            key, bottomless, 0.0, np.zeros((50, 1)), sampler=sampler, num_draws=100
        )
        assert np.asarray(draws.x).max() <= 1
        assert np.isfinite(np.asarray(draws.info.energy)).all()
        assert np.asarray(draws.info.diverged).mean() > 0.05


@pytest.mark.parametrize("flip", FLIPS)
def test_leaps_are_counted_and_those_back_too(key, flip):
    start = np.zeros((50, 2))
    sampler = HMC(1.5, flip=flip)
    info = sample(key, crooked, 1.0, start, sampler=sampler, num_draws=20).info
    accept = np.asarray(info.accept)
    assert 0.1 < accept.mean() < 0.9
    behind = 1 - accept if flip is reduced_flip else 0 * accept
    np.testing.assert_array_equal(info.evaluations, 1 + behind)


def test_wide_bounds_leave_what_they_do_not_touch(key):
    """In float32: an exponential that never sees its far bound."""
    start = np.random.default_rng(0).exponential(size=(2000, 1))
    sampler = HMC(1.0, num_steps=3, bounds=Bounds(0.0, 1e7))
    draws = sample(key, line, 1.0, start, sampler=sampler, num_draws=50).x
    draws = np.asarray(draws)
    means = draws[..., 0].mean(1)
    assert abs(means.mean() - 1) < 5 * means.std() / np.sqrt(len(means))
    assert len(np.unique(draws)) > 0.1 * draws.size


def test_states_and_parameters_may_differ_in_precision(key, x64):
    start = np.zeros((3, 2), np.float32)
    draws = sample(key, crooked, 1.0, start, sampler=HMC(0.3), num_draws=2)
    assert draws.x.dtype == jnp.float64


def test_states_may_be_trees(key):
    def energy(params, x):
        return jnp.sum((x["a"] - 1) ** 2) + jnp.sum((x["b"] + 2 * x["a"][0]) ** 2)

    start = {"a": np.zeros((200, 2)), "b": np.zeros((200, 2, 2))}
    means = sample_mean(
        key,
        energy,
        0.0,
        start,
        statistic=dict,
        sampler=HMC(0.3, num_steps=5),
        num_draws=100,
        num_warmup=50,
    )
    for name, value in (("a", 1.0), ("b", -2.0)):
        away = (np.asarray(means.mean[name]) - value) / np.asarray(means.stderr[name])
        assert np.abs(away).max() < 5


def test_new_steps_metrics_and_parameters_compile_nothing_anew():
    count = run_steps._cache_size()
    for seed in range(3):
        sampler = HMC(
            0.1 + 0.1 * seed,
            momentum=Momentum(0.2 * seed),
            metric=np.full(2, 1.0 + seed),
            bounds=Bounds(-5.0 - seed, 5.0),
        )
        start = np.full((3, 2), 0.1 * seed)
        sample(
            jax.random.key(seed), line, 1.0 * seed, start, sampler=sampler, num_draws=2
        )
    assert run_steps._cache_size() == count + 1


def test_energy_is_that_of_the_state_and_its_momentum(key):
    draws = sample(key, crooked, 0.0, np.zeros((4, 2)), sampler=HMC(0.3), num_draws=5)
    v, x = np.asarray(draws.state.phase.v), np.asarray(draws.x)[:, -1]
    expected = np.asarray(jax.jit(jax.vmap(MODEL))(x)) + np.sum(v**2, 1) / 2
    energy = np.asarray(draws.info.energy)[:, -1]
    np.testing.assert_allclose(energy, expected, rtol=1e-5)


def test_bad_samplers_and_starts_are_refused(key):
    start = partial(sample, key, num_draws=1)
    with pytest.raises(ValueError, match="positive and finite, got 0.0"):
        HMC(0)
    with pytest.raises(ValueError, match="kept must be from 0 to 1, got 2.0"):
        Momentum(2)
    with pytest.raises(ValueError, match="bounds require a metric of lengths"):
        HMC(0.1, metric=np.eye(2), bounds=Bounds(0.0))
    with pytest.raises(ValueError, match="jitter.num_steps must be below the 1 steps"):
        HMC(0.1, jitter=Jitter(num_steps=1))
    for wrong, message in [
        (dict(momentum=0.5), "momentum must be a Momentum, got 0.5"),
        (dict(bounds=(0, 1)), "bounds must be a Bounds"),
        (dict(jitter=0.1), "jitter must be a Jitter"),
        (dict(flip="reduced"), "flip must be a function, .* try reduced_flip"),
    ]:
        with pytest.raises(ValueError, match=message):
            HMC(0.1, **wrong)
    with pytest.raises(ValueError, match="its lengths positive"):
        start(crooked, 1.0, np.ones((2, 2)), sampler=HMC(0.1, metric=[1.0, 0.0]))
    wide = HMC(0.1, bounds=Bounds(np.zeros(3)))
    with pytest.raises(ValueError, match="lower must be one number or one for each"):
        start(crooked, 1.0, np.ones((2, 2)), sampler=wide)
    with pytest.raises(ValueError, match="must accept one state of shape"):
        start(crooked, 1.0, np.ones(2), sampler=HMC(0.1))
    with pytest.raises(ValueError, match="chains must start at finite states"):
        start(crooked, 1.0, np.array([[np.nan, 0.0]]), sampler=HMC(0.1))
    bounded = HMC(0.1, bounds=Bounds(0.0, 1.0))
    with pytest.raises(ValueError, match="within the bounds, got 2.0 at coordinate 0"):
        start(line, 1.0, np.array([[0.5], [2.0]]), sampler=bounded)
    with pytest.raises(ValueError, match="at a finite energy, got nan in chain 1"):
        start(half_line, 1.0, np.array([[0.5], [-2.0]]), sampler=HMC(0.1))
    with pytest.raises(ValueError, match="energy must return a scalar"):
        start(lambda params, x: x, 1.0, np.ones((2, 2)), sampler=HMC(0.1))
    with pytest.raises(ValueError, match="metric must be one length, 2 lengths"):
        start(crooked, 1.0, np.ones((2, 2)), sampler=HMC(0.1, metric=np.ones(3)))
    with pytest.raises(ValueError, match="look_ahead must be an integer of at least 1"):
        LookAheadHMC(0.1, look_ahead=0)
