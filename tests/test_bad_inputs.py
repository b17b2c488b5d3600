"""One table of bad inputs, each refused by every driver that receives it.

Every message is one of ours: it names the argument and what to do.
"""

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pandas as pd
import pytest
import scipy.sparse
from small_models import random_ising

from probjax import (
    HMC,
    L1,
    L2,
    MPF,
    Bernoulli,
    Data,
    Gaussian,
    HeatBath,
    ais,
    fit,
    goodness,
    ising,
    log_likelihood,
    loss,
    potts,
    sample,
    sandwich,
    uncertainty,
)
from probjax.fitting import (
    ConvergenceWarning,
    GradientNorm,
    cross_validate,
    fit_path,
)

KEY = jax.random.key(0)
BITS = np.random.default_rng(0).binomial(1, 0.4, (20, 4)).astype(np.float32)
PARAMS = random_ising(0, 4)
OBJECTIVE = MPF(ising.energy)
MISSING = pd.DataFrame(BITS.astype(int)).astype("Int64")
MISSING.iloc[0, 0] = pd.NA

TABLES = {
    "strings": (np.array([["a", "b", "c", "d"]] * 3), "must be real numbers"),
    "a column of strings": (pd.DataFrame([["a", 1, 0, 1]] * 3), "got strings"),
    "integers with missing values": (MISSING, "mark missing entries"),
    "dates": (pd.DataFrame({"a": pd.date_range("2020", periods=3)}), "got dates"),
    "complex numbers": (BITS.astype(complex), "got complex numbers"),
    "a sparse matrix": (scipy.sparse.csr_matrix(BITS), "try x.toarray"),
    "a sparse array": (scipy.sparse.csr_array(BITS), "try x.toarray"),
    "a masked array": (np.ma.array(BITS, mask=BITS == 1), "with Data\\(x, mask=\\)"),
    "a transposed table": (BITS.T, "did you mean data.T"),
    "counts": (2 * BITS, "try x > 0 to binarise"),
    "spins": (2 * BITS - 1, "ising.bits"),
    "not whole": (BITS / 2, "not whole"),
    "nan": (np.where(BITS == 1, np.nan, 0), "must be finite"),
    "infinity": (np.where(BITS == 1, np.inf, 0), "must be finite"),
    "no rows": (BITS[:0], "must not be empty"),
    "one row without its axis": (BITS[0], "must accept one state of shape"),
    "nothing": (None, "leading axis of rows"),
    "ragged lists": ([[0, 1], [1, 0, 0, 1]], "leading axis of rows"),
    "too many weights": (Data(BITS, np.ones(21)), "weights must have one entry"),
    "negative weights": (Data(BITS, -np.ones(20)), "weights must not be negative"),
    "weights of nan": (Data(BITS, np.full(20, np.nan)), "weights must not be"),
    "weights of zero": (Data(BITS, np.zeros(20)), "weights must not all be zero"),
    "huge weights": (Data(BITS, np.full(20, 1e38)), "weights must have a finite sum"),
}
WITH_DATA = {
    "fit": lambda x: fit(KEY, OBJECTIVE, PARAMS, x),
    "loss": lambda x: loss(KEY, OBJECTIVE, PARAMS, x),
    "fit_path": lambda x: fit_path(KEY, OBJECTIVE, PARAMS, x, penalty=L1(1.0)),
    "cross_validate": lambda x: cross_validate(
        KEY, OBJECTIVE, PARAMS, x, penalty=L2(1.0), strengths=[1.0, 0.1], num_folds=2
    ),
}


@pytest.mark.parametrize("driver", WITH_DATA)
@pytest.mark.parametrize("table", TABLES)
def test_bad_tables_are_refused_by_every_driver_of_data(table, driver):
    data, message = TABLES[table]
    with pytest.raises(ValueError, match=message):
        WITH_DATA[driver](data)


chains = partial(sample, KEY, ising.energy, PARAMS)
anneal = partial(ais, KEY, ising.energy, PARAMS, pilot=None)
both = partial(sandwich, KEY, ising.energy, PARAMS, sampler=HeatBath(), num_steps=4)
FEW = dict(num_particles=4, num_steps=4)


def in_dtype(dtype):
    return jax.tree.map(lambda leaf: leaf.astype(dtype), PARAMS)


def network(scale, x):
    return scale * jnp.sum(jnp.tanh(x))


def rotor(scale, x):
    return scale * jnp.sum(jnp.cos(x))


OTHERS = {
    "fit without a key": (
        lambda: fit(OBJECTIVE, PARAMS, BITS),
        "requires a random key",
    ),
    "sample without a key": (
        lambda: sample(ising.energy, PARAMS, BITS, sampler=HeatBath(), num_draws=2),
        "requires a random key",
    ),
    "a seed": (lambda: fit(0, OBJECTIVE, PARAMS, BITS), "must be a random key"),
    "tolerance of nan": (lambda: GradientNorm(np.nan), "tolerance must be 0 or above"),
    "infinite penalty": (lambda: L1(np.inf), "strength must be 0 or above and finite"),
    "penalty of nan": (lambda: L2(np.nan), "strength must be 0 or above and finite"),
    "a number as penalty": (
        lambda: fit(KEY, OBJECTIVE, PARAMS, BITS, penalty=0.1),
        "penalty must inherit",
    ),
    "the name of an optimizer": (
        lambda: fit(KEY, OBJECTIVE, PARAMS, BITS, optimizer="adam"),
        "optimizer must be",
    ),
    "an energy as objective": (
        lambda: fit(KEY, ising.energy, PARAMS, BITS),
        "objective must inherit",
    ),
    "the name of an energy": (
        lambda: fit(KEY, MPF("ising"), PARAMS, BITS),
        "energy must be a function",
    ),
    "an energy that returns nothing": (
        lambda: fit(KEY, MPF(lambda params, x: None), PARAMS, BITS),
        "energy must return a scalar, got None",
    ),
    "an energy that returns a vector": (
        lambda: fit(KEY, MPF(lambda params, x: x * 1.0), PARAMS, BITS),
        "energy must return a scalar, got shape",
    ),
    "parameters that are integers": (
        lambda: fit(KEY, OBJECTIVE, [1, 2], BITS),
        "params must be floating",
    ),
    "parameters of 16 bits": (
        lambda: fit(KEY, OBJECTIVE, in_dtype(jnp.bfloat16), BITS),
        "params must be float32 or float64, got bfloat16",
    ),
    "a model of 16 bits": (
        lambda: sample(
            KEY,
            ising.energy,
            in_dtype(jnp.float16),
            BITS,
            sampler=HeatBath(),
            num_draws=2,
        ),
        "params must be float32 or float64, got float16",
    ),
    "statistics of batches": (
        lambda: fit(KEY, OBJECTIVE, {"params": PARAMS, "batch_stats": PARAMS}, BITS),
        "params must hold only what is fitted, got the collection batch_stats",
    ),
    "an energy without walls": (
        lambda: ais(KEY, network, 1.0, Gaussian(3), sampler=HMC(0.1), **FEW),
        "weights would grow without bound; try adding a term that confines x",
    ),
    "angles on the line": (
        lambda: ais(KEY, rotor, 1.0, Gaussian(3), sampler=HMC(0.1), **FEW),
        "in 10 of 10 random directions it does not",
    ),
    "a class as sampler": (
        lambda: chains(BITS, sampler=HeatBath, num_draws=2),
        "sampler must inherit",
    ),
    "no draws": (
        lambda: chains(BITS, sampler=HeatBath(), num_draws=0),
        "num_draws must be an integer",
    ),
    "half a draw": (
        lambda: chains(BITS, sampler=HeatBath(), num_draws=2.5),
        "num_draws must be an integer",
    ),
    "HMC on integers": (
        lambda: chains(BITS.astype(int), sampler=HMC(0.1), num_draws=2),
        "HMC requires continuous states",
    ),
    "labels beside real numbers": (
        lambda: sample(
            KEY,
            lambda params, x: params * jnp.sum(x["image"] ** 2) * x["label"],
            1.0,
            {"image": BITS, "label": np.arange(len(BITS))},
            sampler=HMC(0.1),
            num_draws=2,
        ),
        "HMC requires continuous states, got x of int32",
    ),
    "clusters of a Potts model": (
        lambda: sample(
            KEY,
            potts.energy,
            potts.init(KEY, 4, 3),
            BITS,
            sampler=ising.SwendsenWang(),
            num_draws=2,
        ),
        "ising.energy",
    ),
    "a step of nan": (lambda: HMC(np.nan), "step_size must be positive"),
    "a base of another size": (
        lambda: anneal(Bernoulli(5), sampler=HeatBath(), num_particles=4, num_steps=4),
        "must accept one state of shape",
    ),
    "a base of another kind": (
        lambda: anneal(Gaussian(4), sampler=HeatBath(), num_particles=4, num_steps=4),
        "sampler must move reals",
    ),
    "few particles to resample": (
        lambda: anneal(
            Bernoulli(4),
            sampler=HeatBath(),
            num_particles=19,
            num_steps=4,
            resample_below=0.5,
        ),
        "num_particles, if particles are resampled, must be an integer of at least 20",
    ),
    "one particle for an interval": (
        lambda: both(Bernoulli(4), BITS[:1]),
        "at least two particles",
    ),
    "a number as log Z": (
        lambda: log_likelihood(ising.energy, PARAMS, BITS, 3.0),
        "must be the result of ais",
    ),
    "error bars of an array": (
        lambda: uncertainty(OBJECTIVE, np.ones(3), BITS),
        "fitted must be the result of fit",
    ),
    "draws of another size": (
        lambda: goodness.third_moments(BITS, np.zeros((2, 5, 3), np.float32)),
        "states like the data's",
    ),
    "adam as a class": (
        lambda: fit(KEY, OBJECTIVE, PARAMS, BITS, optimizer=optax.adam),
        "optimizer must be",
    ),
}


@pytest.mark.parametrize("case", OTHERS)
def test_other_mistakes_are_refused_in_a_sentence(case):
    call, message = OTHERS[case]
    with pytest.raises((ValueError, TypeError), match=message):
        call()


@pytest.mark.parametrize("kind", [object, "Int64", bool, int, "float32"])
def test_tables_of_numbers_are_accepted_in_any_form(kind):
    table = pd.DataFrame(BITS).astype(kind)
    found = loss(KEY, OBJECTIVE, PARAMS, table)
    np.testing.assert_array_equal(found, loss(KEY, OBJECTIVE, PARAMS, BITS))


def test_one_particle_has_no_error():
    found = anneal(Bernoulli(4), sampler=HeatBath(), num_particles=1, num_steps=4)
    assert "one particle has no standard error" in found.describe()


def test_parameters_of_two_dtypes_are_refused(x64):
    mixed = ising.Params(jnp.zeros(4, jnp.float64), PARAMS.coupling)
    with pytest.raises(ValueError, match="one dtype, got float32 and float64"):
        fit(KEY, OBJECTIVE, mixed, BITS)


def test_a_loss_that_rises_is_reported():
    with pytest.warns(ConvergenceWarning, match="loss rose from .* too long"):
        fit(KEY, OBJECTIVE, PARAMS, BITS, optimizer=optax.sgd(1e3), steps_per_round=20)


@pytest.mark.parametrize("power", [1, 2, 4])
def test_energies_that_grow_are_annealed(power):
    def energy(scale, x):
        return scale * jnp.sum(jnp.abs(x) ** power)

    found = ais(KEY, energy, 0.01, Gaussian(3), sampler=HMC(0.1), **FEW)
    assert np.isfinite(found.log_z)
