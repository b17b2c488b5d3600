"""Trials of estimates of log-likelihoods, on rows that are drawn anew in every run."""

from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.scipy.stats import multivariate_normal

from benchmarks.coverage_claims import (
    AT_LEAST,
    EXACT,
    TOO_SMALL,
    Case,
    Kind,
    by_ends,
    by_stderr,
)
from probjax import (
    HMC,
    Bernoulli,
    Gaussian,
    HeatBath,
    ais,
    dbn,
    exact,
    ising,
    linear,
    log_likelihood,
    marginal_log_likelihood,
    rbm,
    sandwich,
)
from probjax.annealing import compare

SIZE, NUM_ROWS, NUM_PARTICLES = 5, 200, 100
STATES = exact.states(SIZE)
FIRST, SECOND = (ising.init(jax.random.key(seed), SIZE, scale=0.7) for seed in (3, 4))
BASIS = np.array([[1.0, 0.3], [0.5, -0.4], [-0.7, 1.0]], np.float32)
LINEAR = linear.Params(jnp.asarray(BASIS), jnp.asarray(0.8))
COVARIANCE = BASIS @ BASIS.T + 0.64 * np.eye(3, dtype=np.float32)
# The second machine changes the likelihood of a row as much as the first.
LAYERS = (
    rbm.init(jax.random.key(3), SIZE, 3, scale=1.0),
    rbm.init(jax.random.key(13), 3, 4, scale=2.0),
)


def log_p(params):
    return exact.log_probs(ising.energy, params, SIZE)


def estimated(key, params, x, two_sided):
    """Log-likelihood of an Ising model, by annealing with few particles."""
    draw_key, key = jax.random.split(key)
    args = ising.energy, params, Bernoulli(SIZE)
    options: dict[str, Any] = dict(sampler=HeatBath(), num_steps=8, pilot=None)
    if two_sided:
        draws = exact.sample(draw_key, *args[:2], SIZE, num_draws=NUM_PARTICLES)
        annealed = sandwich(key, *args, draws, **options)
    else:
        annealed = ais(key, *args, num_particles=NUM_PARTICLES, **options)
    return log_likelihood(*args[:2], x, annealed)


def rows(key):
    """Indices in STATES of rows of the first model."""
    return jax.random.categorical(key, log_p(FIRST), shape=(NUM_ROWS,))


def estimate_claims(found, per_state, chosen, p, two_sided):
    """Claims for the chosen rows, and for newly drawn rows of probabilities `p`."""
    here, everywhere = per_state[chosen].mean(), p @ per_state
    ends = [by_ends(found.value, found.lower, found.upper, here)] if two_sided else []
    return [
        by_stderr(found.value, found.stderr, here),
        by_stderr(here, found.row_stderr, everywhere),
        by_stderr(found.value, found.total_stderr, everywhere),
        *ends,
    ]


def two_models(key, two_sided):
    data_key, *keys = jax.random.split(key, 3)
    chosen, p = rows(data_key), jnp.exp(log_p(FIRST))
    first, second = (
        estimated(key, params, STATES[chosen], two_sided)
        for key, params in zip(keys, (FIRST, SECOND), strict=True)
    )
    difference = log_p(FIRST) - log_p(SECOND)
    return [
        *estimate_claims(first, log_p(FIRST), chosen, p, two_sided),
        *estimate_claims(compare(first, second), difference, chosen, p, two_sided),
    ]


def network(key):
    data_key, annealing_key, key = jax.random.split(key, 3)
    top = LAYERS[-1]
    p = jnp.exp(jax.vmap(dbn.log_prob, (None, 0))(LAYERS, STATES))
    chosen = jax.random.categorical(data_key, jnp.log(p), shape=(NUM_ROWS,))
    base, path = rbm.start_growth(top, exact.states(3))
    annealed = ais(
        annealing_key,
        rbm.energy,
        top,
        base,
        path=path,
        sampler=rbm.BlockGibbs(),
        num_particles=NUM_PARTICLES,
        num_steps=4,
        pilot=None,
    )
    found = dbn.log_likelihood_bound(key, LAYERS, STATES[chosen], annealed, num_draws=5)
    stderr, _, total = estimate_claims(found, network_bounds(), chosen, p, False)
    return [stderr, total]


def network_bounds():
    """Means of -F(x, h) - log Z over all h, for all x."""
    first, hidden = LAYERS[0], exact.states(3)

    def of_state(x):
        on = rbm.hidden_means(first, x)[None]
        chances = jnp.prod(jnp.where(hidden == 1, on, 1 - on), axis=1)
        return chances @ jax.vmap(lambda h: dbn.bound_energy(LAYERS, (x, h)))(hidden)

    return -jax.vmap(of_state)(STATES) - rbm.log_z(LAYERS[-1])


def latents(key, num_rows, num_particles, num_steps):
    """A model twice on the same rows, so that the truth of the difference is 0."""
    data_key, *keys = jax.random.split(key, 3)
    x, _ = linear.sample_gaussian(data_key, LINEAR, num_draws=num_rows)
    found, again = (
        marginal_log_likelihood(
            key,
            linear.gaussian,
            LINEAR,
            Gaussian(2),
            x,
            sampler=HMC(0.3),
            num_particles=num_particles,
            num_steps=num_steps,
            pilot=None,
        )
        for key in keys
    )
    difference = compare(found, again)
    log_density = partial(multivariate_normal.logpdf, mean=np.zeros(3), cov=COVARIANCE)
    here = jnp.mean(jax.vmap(log_density)(x))
    entropy = np.linalg.slogdet(2 * np.pi * np.e * COVARIANCE)[1] / 2
    return [
        by_stderr(found.value, found.stderr, here),
        by_stderr(found.value, found.total_stderr, -float(entropy)),
        by_ends(found.value, found.lower, found.upper, here),
        by_stderr(difference.value, difference.stderr, 0),
        by_stderr(difference.value, difference.total_stderr, 0),
    ]


ONE_SIDED = {
    f"{name}.{error}": EXACT
    for name in ("log_likelihood", "compare")
    for error in ("stderr", "row_stderr", "total_stderr")
}
# The error of a bracket includes its bias.
TWO_SIDED = {
    f"{name}.{error}": EXACT if error == "row_stderr" else AT_LEAST
    for name in ("log_likelihood", "compare")
    for error in ("stderr", "row_stderr", "total_stderr", "lower, upper")
}
MARGINAL = {
    "stderr": EXACT,
    "total_stderr": Kind(dof=19),
    "lower": AT_LEAST,
    "compare.stderr": EXACT,
    "compare.total_stderr": Kind(dof=19),
}
BIASED = MARGINAL | dict.fromkeys(
    ("stderr", "total_stderr", "compare.stderr"), TOO_SMALL
)
CASES = {
    "likelihoods of ais": Case(partial(two_models, two_sided=False), ONE_SIDED),
    "likelihoods of sandwich": Case(partial(two_models, two_sided=True), TWO_SIDED),
    "marginal_log_likelihood, 20 rows, 100 particles": Case(
        partial(latents, num_rows=20, num_particles=100, num_steps=20), MARGINAL
    ),
    "marginal_log_likelihood, 500 rows, 20 particles": Case(
        partial(latents, num_rows=500, num_particles=20, num_steps=2),
        BIASED,
    ),
    "dbn.log_likelihood_bound": Case(network, {"stderr": EXACT, "total_stderr": EXACT}),
}
