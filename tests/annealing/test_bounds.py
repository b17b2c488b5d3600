import jax
import numpy as np
import pytest
from scipy.special import gammaln
from small_models import drawn_from, log_probs_of, random_ising

from probjax import HMC, Data, HeatBath, Watch, ising
from probjax.annealing import bounds, log_likelihood, reverse_ais, sandwich
from probjax.annealing.estimate import Annealed, estimate
from probjax.bases import Bernoulli, Gaussian
from probjax.models import experts
from probjax.random import split
from probjax.trees import as_array

SPINS = random_ising(3, 4, scale=0.7)
ROWS = drawn_from(0, SPINS, 1024)
# Heavy tails, of which a run from a Gaussian misses most.
FILTERS = np.eye(6) + 0.3 * np.random.default_rng(1).normal(size=(6, 6))
STRENGTH = np.linspace(0.8, 2.0, 6)
STUDENT = experts.Params(as_array(FILTERS), as_array(STRENGTH))
STUDENT_LOG_Z = (
    np.sum(np.log(np.pi) / 2 + gammaln(STRENGTH - 0.5) - gammaln(STRENGTH))
    - np.linalg.slogdet(FILTERS)[1]
)


def student_draws(generator, count):
    chi = 2 * generator.gamma(STRENGTH - 0.5, size=(count, 6))
    responses = generator.normal(size=(count, 6)) / np.sqrt(chi)
    return (responses @ np.linalg.inv(FILTERS).T).astype(np.float32)


@pytest.fixture(scope="module")
def spins():
    """Both sides of log Z of a model of spins."""
    return sandwich(
        jax.random.key(0),
        ising.energy,
        SPINS,
        Bernoulli(4),
        ROWS,
        sampler=HeatBath(),
        num_steps=100,
    )


def test_both_sides_meet_on_spins(spins):
    found, truth = spins, -log_probs_of(SPINS)[0]
    # One run in twenty misses its interval: a margin of its width makes it certain.
    width = found.upper - found.lower
    assert found.lower - width < truth < found.upper + width
    assert width < 0.1
    assert found.forward.bound < truth < found.reverse.bound
    assert abs(found.log_z - truth) < 0.05
    assert "forward run: log Z" in found.describe()


def test_by_its_own_error_one_side_would_be_wrong():
    """What makes two sides worth having; from draws made anew every time."""
    generator, keys = np.random.default_rng(0), split(jax.random.key(0), 20)
    args = experts.student_t, STUDENT, Gaussian(6)
    options = dict(sampler=HMC(0.5), num_steps=100, pilot=None)
    tails = [
        sandwich(key, *args, student_draws(generator, 50), **options) for key in keys
    ]
    missed = [
        abs(float(found.forward.log_z) - STUDENT_LOG_Z) > 2 * found.forward.stderr
        for found in tails
    ]
    assert np.mean(missed) > 0.3


def test_likelihoods_have_both_sides_of_log_z(spins):
    x, found = ROWS, spins
    numbers = (x @ 2 ** np.arange(4)[::-1]).astype(int)
    truth = log_probs_of(SPINS)[numbers]
    both = log_likelihood(ising.energy, SPINS, x, found)
    width = np.subtract(found.upper, found.lower)
    assert both.lower - width < truth.mean() < both.upper + width
    np.testing.assert_allclose(np.subtract(both.upper, both.lower), width)
    np.testing.assert_allclose(both.per_row, truth, atol=0.05)
    np.testing.assert_allclose(np.mean(both.per_row), both.value, rtol=1e-5)
    one = log_likelihood(ising.energy, SPINS, x, found.forward)
    assert np.isnan(one.lower)
    assert np.isnan(one.upper)
    assert abs(one.value - truth.mean()) < 5 * one.stderr
    assert "from one side only" in one.describe()


def test_sides_that_contradict_are_told(key):
    x = normal_rows(1.0)
    found = sandwich(
        key, narrow, 1.0, Gaussian(4, scale=0.9), x, sampler=HMC(0.3), num_steps=20
    )
    crossed = found._replace(lower=np.float32(1), upper=np.float32(0))
    assert np.isnan(crossed.stderr)
    assert "probably not a sample of the target" in crossed.describe()
    crossed = crossed._replace(log_z=np.float32(np.nan))
    likelihood = log_likelihood(narrow, 1.0, x, crossed)
    assert np.isnan(likelihood.value)
    assert "the bounds on log Z contradict each other" in likelihood.describe()


@jax.jit
@jax.vmap
def interval_of(forward, reverse):
    """Interval from log weights of both runs, and both estimates of log Z."""

    def annealed(log_weights, sign):
        log_mean, stderr, ess = estimate(log_weights, np.arange(len(log_weights)), 0)
        bound = sign * log_weights.mean()
        found = (sign * log_mean, stderr, bound, stderr, ess, log_weights)
        return Annealed(*found, x=(), accept=(), schedule=(), particles=())

    sides = annealed(forward, 1), annealed(reverse, -1)
    return bounds._interval(*sides), [side.log_z for side in sides]


def gaussian_works(generator, num_runs, variance, log_z=2.0):
    """Log weights of both runs: Gaussian, and consistent with each other."""
    shape, spread = (num_runs, 50), np.sqrt(variance)
    forward = generator.normal(log_z - variance / 2, spread, shape)
    reverse = generator.normal(-log_z - variance / 2, spread, shape)
    return np.float32(forward), np.float32(reverse)


@pytest.mark.parametrize("variance", [0.5, 4.0])
def test_estimates_lie_inside_their_intervals_which_cover(variance):
    """Also if noise has put the forward estimate above the reverse one."""
    works = gaussian_works(np.random.default_rng(0), 400, variance)
    (log_z, lower, upper), (forward, reverse) = map(np.asarray, interval_of(*works))
    crossed = forward > reverse
    assert 0.1 < crossed.mean() < 0.9
    agree = lower <= upper
    assert agree.mean() > 0.98
    inside = (lower <= log_z) & (log_z <= upper)
    assert inside[agree].all()
    covers = (lower < 2) & (upper > 2)
    assert covers[agree & crossed].mean() > 0.9
    assert covers[agree].mean() > 0.93
    assert np.median(upper - lower) < 0.7 * variance + 0.5


def test_single_precision_draws_of_a_double_precision_model(x64):
    params = jax.tree.map(lambda leaf: np.asarray(leaf, float), SPINS)
    found = sandwich(
        jax.random.key(0),
        ising.energy,
        params,
        Bernoulli(4),
        ROWS.astype(np.float32),
        sampler=HeatBath(),
        num_steps=20,
    )
    assert abs(found.log_z + log_probs_of(SPINS)[0]) < 0.3


def test_bounds_that_contradict_each_other_have_no_value():
    forward, reverse = gaussian_works(np.random.default_rng(0), 5, 0.5)
    (log_z, lower, upper), _ = interval_of(forward + 3, reverse)
    assert (np.asarray(lower) > np.asarray(upper)).all()
    assert np.isnan(log_z).all()


def test_draws_that_are_not_of_the_base_are_refused(key):
    with pytest.raises(ValueError, match="plain draws of the target, without weights"):
        reverse_ais(
            key,
            ising.energy,
            SPINS,
            Bernoulli(4),
            Data(np.zeros((3, 4)), np.ones(3)),
            sampler=HeatBath(),
            num_steps=3,
        )
    with pytest.raises(ValueError, match="x must be draws of the target, got NaN"):
        reverse_ais(
            key,
            ising.energy,
            SPINS,
            Bernoulli(4),
            np.full((3, 4), np.inf),
            sampler=HeatBath(),
            num_steps=3,
        )
    with pytest.raises(ValueError, match="data must have the 4 entries of the base"):
        reverse_ais(
            key,
            ising.energy,
            SPINS,
            Bernoulli(4),
            np.zeros((3, 5)),
            sampler=HeatBath(),
            num_steps=3,
        )


def test_few_weights_back_leave_a_bound_that_needs_no_error(key):
    """Ten particles, a target far narrower than its base, in a single step."""
    x = normal_rows(0.01)
    found = sandwich(
        key,
        narrow,
        1e4,
        Gaussian(4),
        x,
        sampler=HMC(0.1),
        num_steps=1,
        num_particles=10,
    )
    truth = 2 * np.log(2 * np.pi) - 2 * np.log(1e4)
    assert found.reverse.ess > 1
    assert found.lower < truth < found.upper
    far = normal_rows(100.0)
    back = sandwich(
        key,
        narrow,
        1e-4,
        Gaussian(4),
        far,
        sampler=HMC(0.1),
        num_steps=1,
        num_particles=10,
    )
    assert back.reverse.bound > back.reverse.log_z + 100
    assert back.upper <= back.reverse.log_z + np.log(40) + 1e-4
    assert "a looser bound that does not depend on" in back.describe()


def narrow(params, x):
    return params * x @ x / 2


def normal_rows(scale):
    """Ten, of four entries."""
    return np.random.default_rng(0).normal(scale=scale, size=(10, 4)).astype(np.float32)


def test_a_callback_sees_both_ways_and_may_not_end_them(key):
    told = []
    args = (key, narrow, 1.0, Gaussian(4, scale=0.9), normal_rows(1.0))
    options = dict(sampler=HMC(0.3), num_steps=20, pilot=None)
    found = sandwich(*args, watch=Watch(told.append, every=8), **options)
    assert [int(each.particles.step) for each in told] == [8, 16, 20, 8, 16, 20]
    np.testing.assert_array_equal(told[2].log_weights, found.forward.log_weights)
    np.testing.assert_array_equal(told[5].log_weights, found.reverse.log_weights)
    np.testing.assert_array_equal(sandwich(*args, **options).upper, found.upper)
    with pytest.raises(ValueError, match="sandwich has no result before its end"):
        sandwich(*args, watch=Watch(lambda annealed: True), **options)
