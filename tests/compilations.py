"""Print how many programs the main drivers compile: a script for one process."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import optax

from probjax import (
    HMC,
    MPF,
    Bernoulli,
    Gaussian,
    HeatBath,
    ais,
    fit,
    ising,
    log_likelihood,
    sample,
    sample_mean,
    sandwich,
)

SIZE = 50
ROWS = (np.random.default_rng(0).random((500, SIZE)) < 0.3).astype(np.float32)
KEY = jax.random.key(0)
FLAT = ising.from_matrix(np.zeros((SIZE, SIZE)))

num_compilations = 0


def count(event, duration, **details):
    global num_compilations
    if event == "/jax/core/compile/backend_compile_duration":
        num_compilations += 1


def laplace(scale, x):
    return jnp.sum(jnp.abs(x) / scale)


def fitted(**options):
    return fit(KEY, MPF(ising.energy), FLAT, ROWS, **options)


def descended(**options):
    adam = optax.adam(1e-2)
    return fit(KEY, MPF(ising.energy), FLAT, ROWS, optimizer=adam, **options)


def sampled(**options):
    options = dict(sampler=HeatBath(), num_draws=50) | options
    return sample(KEY, ising.energy, FLAT, ROWS[:100], **options)


def averaged(**options):
    options = dict(sampler=HeatBath(), num_draws=50, statistic=jnp.sum) | options
    return sample_mean(KEY, ising.energy, FLAT, ROWS[:100], **options)


def annealed(**options):
    options = dict(sampler=HeatBath(), num_particles=100, num_steps=50) | options
    return ais(KEY, ising.energy, FLAT, Bernoulli(SIZE), **options)


def hamiltonian(**options):
    options = dict(sampler=HMC(0.2), num_particles=100, num_steps=50) | options
    return ais(KEY, laplace, 2.0, Gaussian(10), **options)


def bracketed(**options):
    options = dict(sampler=HeatBath(), num_steps=50) | options
    return sandwich(KEY, ising.energy, FLAT, Bernoulli(SIZE), ROWS[:100], **options)


def likely(**options):
    return log_likelihood(ising.energy, FLAT, ROWS, bracketed(**options))


CALLS = {
    "fit": (fitted, dict(num_rounds=2, steps_per_round=100)),
    "fit by adam": (descended, dict(num_rounds=2, steps_per_round=10)),
    "sample": (sampled, dict(num_warmup=10, thin=2, num_draws=60)),
    "sample_mean": (averaged, dict(num_warmup=10, thin=2, num_draws=60)),
    "ais": (annealed, dict(num_steps=70)),
    "ais by HMC": (hamiltonian, dict(num_steps=70)),
    "sandwich": (bracketed, dict(num_steps=70)),
    "log_likelihood": (likely, dict(num_steps=70)),
}


def compilations(call, **options):
    before = num_compilations
    jax.block_until_ready(call(**options))
    return num_compilations - before


if __name__ == "__main__":
    jax.monitoring.register_event_duration_secs_listener(count)
    counts = {
        name: [compilations(call), compilations(call), compilations(call, **others)]
        for name, (call, others) in CALLS.items()
    }
    print(json.dumps(counts))
