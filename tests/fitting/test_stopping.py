"""Stopping rules: what ends a round, what ends a fit, and what minibatches allow."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_models import AfterSteps, random_ising

from probjax import MPF, ContrastiveDivergence, HeatBath, fit, ising, recipe
from probjax.connectivity import RandomFlips
from probjax.fitting import AnyOf, GradientNorm, StoppingRule

ROWS = np.random.default_rng(0).integers(0, 2, (60, 4))
START = random_ising(0, 4, scale=0.1)
ADAM = optax.adam(0.05)


@recipe
class Never(StoppingRule):
    def is_met(self, progress, data):
        return jnp.asarray(False)


def steps(key, objective=MPF(ising.energy), **options):
    return len(fit(key, objective, START, ROWS, **options).losses)


def test_a_gradient_norm_ends_a_round_and_not_the_fit(key):
    flips = MPF(ising.energy, connectivity=RandomFlips(2))
    one = steps(key, flips, stop=GradientNorm(1e-2))
    both = steps(key, flips, stop=GradientNorm(1e-2), num_rounds=4)
    assert both > one
    with_another = AnyOf((GradientNorm(1e-2), Never()))
    assert steps(key, flips, stop=with_another, num_rounds=4) == both


def test_a_rule_of_ones_own_ends_the_fit_in_any_company(key):
    options = dict(num_rounds=4, steps_per_round=5, optimizer=ADAM)
    assert steps(key, stop=AfterSteps(7), **options) == 7
    assert steps(key, stop=AnyOf((GradientNorm(), AfterSteps(7))), **options) == 7


def test_minibatches_leave_out_the_gradient_norm_alone(key):
    options = dict(optimizer=ADAM, batch_size=10, steps_per_round=20)
    assert steps(key, stop=GradientNorm(1e9), **options) == 20
    assert steps(key, stop=AnyOf((GradientNorm(1e9), Never())), **options) == 20
    assert steps(key, stop=AnyOf((GradientNorm(1e9), AfterSteps(7))), **options) == 7


def test_converged_says_whether_the_rule_is_met(key):
    options = dict(optimizer=ADAM, steps_per_round=20)
    assert fit(
        key, MPF(ising.energy), START, ROWS, stop=AfterSteps(3), **options
    ).converged
    found = fit(key, MPF(ising.energy), START, ROWS, stop=Never(), **options)
    assert not found.converged


def test_a_rule_of_ones_own_is_asked_after_steps_alone(key):
    assert steps(key, stop=AfterSteps(0)) == 1


def test_a_start_at_the_minimum_takes_no_step(key):
    assert steps(key, stop=GradientNorm(1e9)) == 0


def test_rules_are_traced_so_that_new_numbers_compile_nothing(key):
    seen = []

    @recipe
    class Counted(StoppingRule):
        most: int

        def is_met(self, progress, data):
            seen.append(1)
            return progress.step >= self.most

    assert [steps(key, stop=Counted(most)) for most in (2, 3)] == [2, 3]
    traced = len(seen)
    assert steps(key, stop=Counted(4)) == 4
    assert len(seen) == traced


def test_callbacks_count_steps_over_all_rounds(key):
    from probjax import Watch

    seen = []
    objective = ContrastiveDivergence(ising.energy, HeatBath())
    rounds = dict(optimizer=ADAM, num_rounds=7, steps_per_round=3)
    watch = Watch(lambda progress: seen.append(int(progress.step)), every=4)
    watched = fit(key, objective, START, ROWS, watch=watch, **rounds)
    assert seen == [4, 8, 12, 16, 20, 21]
    whole = fit(key, objective, START, ROWS, **rounds)
    jax.tree.map(np.testing.assert_array_equal, watched.params, whole.params)


def test_bad_rules_are_refused_in_a_sentence(key):
    with pytest.raises(ValueError, match="tolerance must be 0 or above, got -1"):
        GradientNorm(-1)
    with pytest.raises(ValueError, match="rules must hold at least one StoppingRule"):
        AnyOf(())
    with pytest.raises(ValueError, match="rules must inherit from probjax"):
        AnyOf((lambda progress, data: True,))
