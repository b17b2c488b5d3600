from functools import partial

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from annealing_models import GAUSSIAN, PARAMS, crooked, crooked_log_z

from probjax import HMC, Checkpoint, HeatBath, Metropolis, Watch, experts
from probjax.annealing import Straight, ais, ais_until, linear, log_likelihood
from probjax.bases import Bernoulli, Categorical, Gaussian, Product
from probjax.connectivity import BallSteps, BitFlips, GaussianSteps, SiteChanges
from probjax.samplers import ColourGibbs, LookAheadHMC, Tempered


@pytest.mark.parametrize("below", [None, 0.95], ids=["plain", "resampled"])
def test_a_run_that_ended_goes_on_from_its_checkpoint_to_the_bit(below, key, tmp_path):
    run = partial(
        ais,
        key,
        crooked,
        PARAMS,
        GAUSSIAN,
        sampler=HMC(0.6),
        num_particles=50,
        num_steps=60,
        resample_below=below,
    )
    whole = run()
    kept = Checkpoint(tmp_path / "ais.npz")

    def end(annealed):
        return int(annealed.particles.step) >= 30

    partly = run(watch=Watch(end, every=10, checkpoint=kept))
    assert partly.describe().startswith("stopped at distribution 30 of 60")
    with pytest.raises(ValueError, match="stopped at distribution 30 of 60"):
        log_likelihood(crooked, PARAMS, jnp.zeros((3, 2)), partly)
    rest = run(watch=Watch(every=10, checkpoint=kept))
    if below is not None:
        assert 0 < partly.particles.num_resampled < rest.particles.num_resampled
    chex.assert_trees_all_equal(rest, whole)


@pytest.mark.statistics
def test_work_doubles_until_the_error_is_small(key):
    found = ais_until(
        key,
        crooked,
        PARAMS,
        GAUSSIAN,
        stderr=0.02,
        sampler=HMC(0.6),
        num_particles=100,
        num_steps=10,
    )
    assert found.stderr < 0.02
    assert len(found.schedule.betas) - 1 > 10
    assert abs(found.log_z - crooked_log_z(PARAMS)) < 5 * found.stderr
    with pytest.warns(UserWarning, match="stderr=1e-05, .* after 20 distributions"):
        ais_until(
            key,
            crooked,
            PARAMS,
            GAUSSIAN,
            stderr=1e-5,
            sampler=HMC(0.6),
            num_particles=100,
            num_steps=10,
            most_steps=20,
        )


def test_a_callback_ends_the_doubling(key):
    lengths = []

    def end_in_the_second(annealed):
        lengths.append(len(annealed.schedule.betas) - 1)
        return lengths[-1] == 20

    found = ais_until(
        key,
        crooked,
        PARAMS,
        GAUSSIAN,
        stderr=1e-5,
        sampler=HMC(0.6),
        num_particles=10,
        num_steps=10,
        most_steps=40,
        pilot=None,
        watch=Watch(end_in_the_second, every=5),
    )
    assert lengths == [10, 10, 20]
    assert found.describe().startswith("stopped at distribution 5 of 20")


def test_trouble_is_said_in_words(key):
    narrow, wide = Gaussian(2, scale=0.05), Gaussian(2, scale=50.0)
    run = partial(ais, key, crooked, PARAMS, sampler=HMC(0.6), pilot=None)
    said = run(wide, num_particles=100, num_steps=2).describe()
    assert "too few distributions; try num_steps=8" in said
    assert (
        "acceptance falls to"
        in run(narrow, num_particles=100, num_steps=50, betas=linear(50)).describe()
    )
    away = Gaussian(1, 50.0)
    found = ais(
        key, half_line, 0.0, away, sampler=HMC(0.1), num_particles=9, num_steps=5
    )
    assert "the base does not cover the target" in found.describe()
    assert found.ess == 0
    assert np.isnan(found.stderr)


def half_line(params, x):
    return jnp.where(x[0] > 0, jnp.inf, x[0] ** 2)


def test_bad_input_is_refused_in_a_sentence(key):
    options = dict(sampler=HMC(0.1), num_particles=10, num_steps=2)
    run = partial(ais, key, crooked, PARAMS)
    for wrong, message in [
        (
            dict(betas=[0.1, 0.5, 1.0]),
            r"must rise from 0 to 1, got betas\[0\]=0.1",
        ),
        (dict(betas=[0.0, 0.5, 0.9]), r"got betas\[-1\]=0.8999"),
        (dict(betas=[0.0, 1.5, 1.0]), r"got betas\[1\]=1.5 before betas\[2\]=1.0"),
        (dict(betas=[0.0, jnp.nan, 1.0]), r"got betas\[0\]=0.0 before betas\[1\]=nan"),
        (dict(path=Straight(1.0)), "start must have the form of params"),
        (dict(betas=[0.0, 1.0]), r"betas must be num_steps \+ 1 = 3 numbers, got 2"),
        (dict(num_particles=0), "num_particles must be an integer of at least 1"),
        (dict(num_steps=0), "num_steps must be an integer of at least 1"),
        (dict(resample_below=2.0), "resample_below must be above 0 .*, got 2.0"),
    ]:
        with pytest.raises(ValueError, match=message):
            run(GAUSSIAN, **options | wrong)
    endless = experts.Params(jnp.eye(2), jnp.array([0.4, 1.0]))
    with pytest.raises(ValueError, match="the model has no partition function"):
        ais(key, experts.student_t, endless, Gaussian(2), **options)
    with pytest.raises(ValueError, match="energy must return a scalar"):
        ais(key, lambda params, x: x, 0.0, GAUSSIAN, **options)


@pytest.mark.parametrize(
    ("sampler", "name"),
    [
        (HMC(0.1), "HMC"),
        (LookAheadHMC(0.1, num_steps=1), "LookAheadHMC"),
        (Tempered(HMC(0.1), 0.7 ** jnp.arange(2)), "Tempered"),
        (Metropolis(GaussianSteps(0.1)), "Metropolis"),
        (Metropolis(BallSteps(0.1)), "Metropolis"),
    ],
)
def test_discrete_states_are_not_moved_continuously(sampler, name, key):
    for base in (Bernoulli(2), Product((Bernoulli(1), Gaussian(1)))):
        options = dict(sampler=sampler, num_particles=10, num_steps=2)
        message = f"draws, got {name}, which moves reals"
        with pytest.raises(ValueError, match=message):
            ais(key, anything, 0.0, base, **options)


def test_letters_that_the_base_does_not_draw_are_refused(key):
    options = dict(num_particles=10, num_steps=2, pilot=None)
    for base, sampler, kinds in (
        (Bernoulli(2), Metropolis(SiteChanges(3)), "move bits, .* moves 3 letters"),
        (Categorical(2, 3), Metropolis(SiteChanges(4)), "move 3 letters.*4 letters"),
        (Categorical(2, 3), HeatBath(), r"move 3.*moves bits; try HeatBath\(3\)"),
    ):
        with pytest.raises(ValueError, match=f"sampler must {kinds}"):
            ais(key, coin, 0.0, base, sampler=sampler, **options)
    bits = Product((Bernoulli(2), Categorical(2, 2)))
    found = ais(key, pair, 0.0, bits, sampler=HeatBath(), **options)
    np.testing.assert_allclose(found.log_z, 4 * np.log(2), rtol=1e-6)


def coin(params, x):
    return params * jnp.sum(x)


def pair(params, x):
    return params * (jnp.sum(x[0]) + jnp.sum(x[1]))


@pytest.mark.parametrize(
    ("sampler", "name"),
    [
        (HeatBath(), "HeatBath"),
        (HeatBath(num_states=3), "HeatBath"),
        (ColourGibbs(jnp.eye(2)), "ColourGibbs"),
        (Metropolis(BitFlips()), "Metropolis"),
        (Metropolis(SiteChanges(3)), "Metropolis"),
    ],
)
def test_continuous_states_are_not_flipped(sampler, name, key):
    message = f"must move reals, which Gaussian draws, got {name}, which moves .*HMC"
    with pytest.raises(ValueError, match=message):
        ais(
            key,
            crooked,
            PARAMS,
            GAUSSIAN,
            sampler=sampler,
            num_particles=5,
            num_steps=2,
        )


def anything(params, x):
    return params * sum(jnp.sum(leaf) for leaf in jax.tree.leaves(x))
