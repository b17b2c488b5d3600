from functools import partial

import jax
import numpy as np
import optax
import pytest
from small_models import LINEAR

from probjax import Data, PseudoLikelihood, fit
from probjax.fitting.minibatches import initial_batches, next_batch, next_round

KEY = jax.random.key(0)
ADAM, ADD_UP = optax.adam(0.02), optax.sgd(-1.0)


def descend(size, optimizer, **options):
    """Fit the linear loss to one row per unit; `ADD_UP` sums the rows seen."""
    return fit(
        KEY, LINEAR, np.zeros(size), np.eye(size), optimizer=optimizer, **options
    )


def test_minibatches_visit_every_row_of_a_pass_once():
    """Plain steps of unit length on linear losses add up the rows they saw."""
    seen = descend(12, ADD_UP, batch_size=3, num_rounds=2, steps_per_round=4)
    np.testing.assert_allclose(seen.params, 2 / 3 * np.ones(12), rtol=1e-5)


def test_minibatches_within_a_round_pass_over_all_rows_again_and_again():
    seen = descend(12, ADD_UP, batch_size=4, steps_per_round=9)
    np.testing.assert_allclose(seen.params, 3 / 4 * np.ones(12), rtol=1e-5)


def test_rows_that_fill_no_batch_have_their_turn_after_the_next_shuffle():
    seen = descend(10, ADD_UP, batch_size=4, num_rounds=20, steps_per_round=2)
    assert np.min(seen.params) > 0
    np.testing.assert_allclose(np.sum(seen.params), 40, rtol=1e-5)


def test_a_round_refreshes_only_the_rows_its_steps_will_visit():
    found = descend(12, optax.sgd(1.0), batch_size=2, num_rounds=5, steps_per_round=1)
    counts = np.asarray(found.context.rows)
    assert counts.sum() == 10
    assert counts.max() == 1


def test_every_round_is_refreshed_with_a_key_of_its_own():
    found = descend(3, ADAM, num_rounds=2, steps_per_round=1)
    first, second = np.asarray(found.context.shared)
    assert first != second


def test_the_hand_is_shuffled_for_every_pass():
    batches = jax.jit(lambda key: next_round(key, None, initial_batches(12, 12)))(KEY)
    following = jax.jit(partial(next_batch, KEY, None, size=4))
    order = []
    for step in range(6):
        batches, rows_ = following(batches, step)
        order += rows_.tolist()
    assert sorted(order[:12]) == sorted(order[12:]) == list(range(12))
    assert order[:12] != order[12:]


@pytest.mark.parametrize(("num_rounds", "steps"), [(1, 2000), (200, 10), (2000, 1)])
@pytest.mark.parametrize("batch_size", [1, 7])
def test_minibatches_honour_weights(batch_size, num_rounds, steps):
    """A logistic mean: with weights 9 and 1, unit 0 is on a tenth of the time."""
    data = Data(np.array([[0.0], [1.0]] * 10), np.array([9.0, 1.0] * 10))
    found = fit(
        KEY,
        PseudoLikelihood(independent),
        np.zeros(1),
        data,
        optimizer=optax.sgd(optax.linear_schedule(2.0, 0.01, 2000)),
        batch_size=batch_size,
        num_rounds=num_rounds,
        steps_per_round=steps,
    )
    on = 1 / (1 + np.exp(np.asarray(found.params)[0]))
    assert abs(on - 0.1) < 0.02


def independent(params, x):
    return params @ x


def test_one_long_round_of_minibatches_sees_every_row():
    """Six of ten rows fill the only batch of a pass; the others come in later ones."""
    seen = descend(10, ADD_UP, batch_size=6, steps_per_round=300)
    counts = np.asarray(seen.params)
    np.testing.assert_allclose(counts.sum(), 300, rtol=1e-5)
    assert np.abs(counts - 30).max() < 5 * np.sqrt(300 * 0.6 * 0.4 / 36)


def test_optimizers_are_given_the_rows_of_their_step():
    def update(updates, state, params=None, *, data, value, grad, value_fn):
        assert value_fn(params, data=data).shape == ()
        return jax.tree.map(lambda leaf: -data.x.sum(0), updates), state

    optimizer = optax.GradientTransformationExtraArgs(lambda params: (), update)
    found = descend(6, optimizer, batch_size=2, steps_per_round=3)
    np.testing.assert_allclose(found.params, -1)
