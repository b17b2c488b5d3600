import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probjax.leapfrog import (
    Bounds,
    Geometry,
    drift_kick_drift,
    hamiltonian,
    kick_drift_kick,
    phase_at,
)
from probjax.potential import potential

DENSE = np.array([[0.9, 0.0], [0.4, 1.3]])
SPACES = {
    "plain": Geometry(),
    "lengths": Geometry(np.array([0.7, 1.6])),
    "matrix": Geometry(DENSE),
    "bounds": Geometry(np.array([0.7, 1.6]), Bounds(np.array([-0.2, -np.inf]), 0.9)),
}


def banana(params, x):
    """Asymmetric, not quadratic."""
    return params * (x[1] - x[0] ** 2) ** 2 + (x[0] - 0.3) ** 2 / 2 + jnp.exp(-x[1])


def leap(integrator, space, num_steps, state):
    """L of a state (x, v) in one vector."""
    model = potential(banana, jnp.asarray(1.5))
    start = phase_at(model, state[:2], state[2:])
    space = jax.tree.map(jnp.asarray, space)
    end = integrator(space, model, start, jnp.asarray(0.11), num_steps)
    return jnp.concatenate([end.x, end.v]), end, hamiltonian(model, end)


@pytest.mark.parametrize("space", SPACES.values(), ids=SPACES)
@pytest.mark.parametrize("integrator", [kick_drift_kick, drift_kick_drift])
def test_leapfrog_reverses_and_keeps_volume(integrator, space, x64):
    start = jnp.array([0.5, 0.8, -1.1, 0.7])
    turn = jnp.array([1.0, 1.0, -1.0, -1.0])

    @jax.jit
    def there_and_back(start):
        there = leap(integrator, space, 7, start)[0]
        back = turn * leap(integrator, space, 7, turn * there)[0]
        slopes = jax.jacfwd(lambda s: leap(integrator, space, 7, s)[0])(start)
        return there, back, jnp.linalg.det(slopes)

    there, back, volume = there_and_back(start)
    assert np.abs(there - start).max() > 0.1
    np.testing.assert_allclose(back, start, atol=1e-12)
    np.testing.assert_allclose(np.abs(volume), 1, rtol=1e-10)


@pytest.mark.parametrize("integrator", [kick_drift_kick, drift_kick_drift])
def test_leapfrog_is_of_second_order_and_knows_where_it_ends(integrator, x64):
    start = jnp.array([0.5, 0.8, -1.1, 0.7])
    model = potential(banana, jnp.asarray(1.5))
    begin = phase_at(model, start[:2], start[2:])
    ends = [
        integrator(Geometry(), model, begin, jnp.asarray(0.2 / 2**k), 5 * 2**k)
        for k in (1, 2, 3)
    ]
    drifts = [hamiltonian(model, e) - hamiltonian(model, begin) for e in ends]
    np.testing.assert_allclose(drifts[0] / drifts[1], 4, rtol=0.15)
    np.testing.assert_allclose(drifts[1] / drifts[2], 4, rtol=0.05)
    fresh = phase_at(model, ends[0].x, ends[0].v)
    np.testing.assert_allclose(ends[0].terms, fresh.terms)
    np.testing.assert_allclose(ends[0].gradients, fresh.gradients)


def test_metric_is_a_change_of_coordinates(x64):
    """Steps in the metric A are plain steps of y with x = Ay."""
    model = potential(banana, jnp.asarray(1.5))

    def stretched(params, y):
        return banana(params, DENSE @ y)

    v = jnp.array([-1.1, 0.7])
    y = jnp.array([0.4, 0.2])
    mine = kick_drift_kick(
        Geometry(jnp.asarray(DENSE)), model, phase_at(model, DENSE @ y, v), 0.1, 4
    )
    other = potential(stretched, jnp.asarray(1.5))
    plain = kick_drift_kick(Geometry(), other, phase_at(other, y, v), 0.1, 4)
    np.testing.assert_allclose(mine.x, DENSE @ plain.x, rtol=1e-12)
    np.testing.assert_allclose(mine.v, plain.v, rtol=1e-12)


def test_bounds_fold_a_free_flight(x64):
    space = Geometry(
        None,
        Bounds(
            np.array([0.0, 0, -np.inf, -np.inf]), np.array([1.0, np.inf, 2, np.inf])
        ),
    )
    v = jnp.array([2.7, -1.4, 3.0, -5.0])
    x, turned = space.drift(jnp.array([0.5, 0.3, 1.0, 0.0]), v, jnp.asarray(1.0))
    # 0.5 + 2.7 = 3.2 is reflected at 1, 0 and 1 again; -1.1 at 0; 4.0 at 2.
    np.testing.assert_allclose(x, [0.8, 1.1, 0.0, -5.0], atol=1e-12)
    np.testing.assert_array_equal(turned, [-2.7, 1.4, -3.0, -5.0])


def test_bounds_that_cross_are_refused():
    with pytest.raises(ValueError, match="lower must be below upper, got 1.0 and 0.0"):
        Bounds(1.0, 0.0)
