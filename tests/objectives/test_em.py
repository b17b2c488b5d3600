import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from probjax import EM, HMC, Data, Gaussian, HeatBath, Watch, fit, linear
from probjax.bases import Exponential
from probjax.fitting import GradientNorm, charts
from probjax.random import split_array
from probjax.samplers import Bounds
from probjax.trees import as_array

SIZE = 4


def model(seed):
    basis = np.random.default_rng(seed).normal(size=(SIZE, 2)) / np.sqrt(SIZE)
    return linear.Params(as_array(basis), as_array(0.5))


def drawn(seed, params, count):
    """Rows of a model: basis times normal latents, plus noise."""
    generator = np.random.default_rng(seed)
    basis, noise = map(np.asarray, params)
    latents = generator.normal(size=(count, basis.shape[1]))
    rows = latents @ basis.T + noise * generator.normal(size=(count, SIZE))
    return rows.astype(np.float32)


def likelihood(params, x):
    """Its mean over rows, which are normal with covariance BB' + noise^2."""
    basis, noise = (np.asarray(leaf, float) for leaf in params)
    covariance = basis @ basis.T + noise**2 * np.eye(SIZE)
    square = np.einsum("ri,ri->r", x, np.linalg.solve(covariance, x.T).T)
    return -(np.linalg.slogdet(2 * np.pi * covariance)[1] + square.mean()) / 2


def most_likely(x):
    """Tipping and Bishop: the largest axes, and the mean of the rest as noise."""
    values, axes = np.linalg.eigh(x.T @ x / len(x))
    rest = values[:-2].mean()
    basis = axes[:, -2:] * np.sqrt(values[-2:] - rest)
    return linear.Params(basis, np.sqrt(rest))


def objective(**knobs):
    knobs = {"base": Gaussian(2), "sampler": HMC(1.0, num_steps=3)} | knobs
    return EM(linear.gaussian, **knobs)


@jax.jit
def sampled(em, key, params, data):
    return em.refresh(key, params, data, em.init(key, params, data))


def test_latents_become_draws_of_the_posterior(key):
    """Of two rows, each many times: mean and covariance against the closed form."""
    params = model(0)
    x = drawn(0, params, 2)
    data = Data(np.tile(x, (250, 1)))
    context = sampled(objective(num_chains=8, num_moves=60), key, params, data)
    basis, noise = map(np.asarray, params)
    precision = np.eye(2) + basis.T @ basis / noise**2
    covariance = np.linalg.inv(precision)
    for row in range(2):
        draws = np.asarray(context.rows)[row::2].reshape(-1, 2)
        mean = np.linalg.solve(precision, basis.T @ x[row] / noise**2)
        error = np.sqrt(np.diag(covariance) / len(draws))
        assert np.all(np.abs(draws.mean(0) - mean) < 5 * error)
        np.testing.assert_allclose(
            np.cov(draws.T), covariance, atol=0.1 * covariance.max()
        )
    assert 0.7 < float(context.shared.accept) < 0.9


def scaled_exponential(params, x, a):
    """x = a + noise, a exponential: -log p(x, a)."""
    return (x - params * a) @ (x - params * a) / 2 + jnp.log(2 * jnp.pi) / 2 + a[0]


def test_latents_that_may_not_be_negative_are_reflected(key):
    """The mean of p(a|x) by quadrature, most of it at the boundary."""
    x = np.array([-0.5])
    em = EM(
        scaled_exponential,
        base=Exponential(1),
        sampler=HMC(0.5, bounds=Bounds(lower=as_array(np.zeros(1)))),
        num_moves=60,
    )
    data = Data(np.repeat(x[None], 4000, axis=0))
    draws = np.asarray(sampled(em, key, as_array(1.0), data).rows).ravel()
    grid = np.linspace(0, 10, 10_001)
    density = np.exp(-((x[0] - grid) ** 2) / 2 - grid)
    mean = (grid * density).sum() / density.sum()
    spread = np.sqrt((grid**2 * density).sum() / density.sum() - mean**2)
    assert draws.min() >= 0
    assert abs(draws.mean() - mean) < 5 * spread / np.sqrt(4000)


def test_the_mean_gradient_is_that_of_the_likelihood(key):
    """Fisher's identity, with latents from the posterior itself."""
    params = model(1)
    x, chains, em = drawn(0, model(2), 3), 20_000, objective()

    @jax.jit
    def slopes(keys, params, x):
        draw = jax.vmap(linear.gaussian_posterior_sample, (0, None, None))
        latents = jax.vmap(draw, (0, None, 0))(keys.reshape(3, -1), params, x)
        each = jax.vmap(jax.grad(em.row), (None, None, 0))
        each = jax.vmap(each, (None, 0, 0))(params, x, latents[:, :, None])

        def loss(params):
            rows = jax.vmap(linear.gaussian_log_likelihood, (None, 0))(params, x)
            return -rows.mean()

        return each, jax.grad(loss)(params)

    found = slopes(split_array(key, 3 * chains), params, x)
    for leaves in zip(*map(jax.tree.leaves, found), strict=True):
        mine, theirs = map(np.asarray, leaves)
        error = mine.std(1).mean(0) / np.sqrt(3 * chains)
        assert np.all(np.abs(mine.mean((0, 1)) - theirs) < 5 * error)


@pytest.mark.statistics
def test_rounds_do_not_lower_the_likelihood_beyond_noise(key):
    """EM with exact M-steps, each round's likelihood in closed form."""
    x = drawn(0, model(3), 2000)
    start = model(4)
    seen = [likelihood(start, x)]
    found = fit(
        key,
        objective(num_moves=20),
        start,
        x,
        num_rounds=40,
        steps_per_round=100,
        stop=GradientNorm(1e-4),
        watch=Watch(
            lambda progress: seen.append(likelihood(progress.params, x)), every=100
        ),
    )
    seen = np.array(seen)
    assert seen[-1] - seen[0] > 0.1
    # A parameter's share of noise is half a nat over all rows, and there are nine.
    noise = 9 / 2 / 2000
    assert np.diff(seen).min() > -3 * noise
    assert likelihood(most_likely(x), x) - seen[-1] < 0.03
    assert found.context.rows.shape == (2000, 1, 2)


@pytest.mark.statistics
def test_batches_of_rows_with_weights_do_as_well(key):
    x = drawn(0, model(7), 2000)
    start, far = model(4), np.abs(x[:, 0]) > 0.5
    found = fit(
        key,
        objective(num_chains=2),
        start,
        Data(x, 1.0 + 3 * far),
        chart=charts.Positive(linear.Params(False, True)),
        optimizer=optax.adam(optax.cosine_decay_schedule(0.05, 600)),
        batch_size=250,
        num_rounds=600,
        steps_per_round=1,
    )
    repeated = np.concatenate([x, *3 * [x[far]]])
    best = likelihood(most_likely(repeated), repeated)
    assert best - likelihood(most_likely(x), repeated) > 0.03
    assert best - likelihood(found.params, repeated) < 0.005


def test_bad_input_is_refused_in_a_sentence(key):
    x = np.zeros((5, SIZE))
    params = model(0)
    with pytest.raises(ValueError, match="num_chains must be .* at least 1, got 0"):
        objective(num_chains=0)
    with pytest.raises(ValueError, match="num_moves must be .* at least 1, got 0"):
        objective(num_moves=0)
    with pytest.raises(ValueError, match="target must be between 0 and 1"):
        objective(target=1.5)
    with pytest.raises(ValueError, match="4 sites and 2 latents of params, got shapes"):
        fit(key, objective(base=Gaussian(3)), params, x)
    with pytest.raises(ValueError, match="sampler must move reals, which Gaussian"):
        fit(key, objective(sampler=HeatBath()), params, x)
    with pytest.raises(ValueError, match="sampling latents needs complete rows"):
        fit(key, objective(), params, Data(x, mask=np.ones(x.shape, bool)))
