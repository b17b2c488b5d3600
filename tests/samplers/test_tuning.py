import jax
import jax.numpy as jnp
import numpy as np
import pytest

from probjax import sample, samplers

SCALES = np.geomspace(0.01, 10, 20)
MIX = np.eye(20) + 0.9 * np.eye(20, k=1)
COVARIANCE = SCALES[:, None] * (MIX @ MIX.T) * SCALES[None]


def gaussian(precision, x):
    return x @ precision @ x / 2


def tuned(key, **options):
    precision = jnp.asarray(np.linalg.inv(COVARIANCE))
    sampler = samplers.HMC(0.01, num_steps=5, flip=samplers.reduced_flip)
    start = 0.01 * jax.random.normal(key, (50, 20))
    return precision, samplers.tune(
        key, gaussian, precision, start, sampler=sampler, **options
    )


def test_lengths_and_step_come_to_the_target(key):
    precision, found = tuned(key, target=0.7)
    lengths = np.sqrt(np.diagonal(COVARIANCE))
    np.testing.assert_allclose(found.sampler.metric, lengths, rtol=0.2)
    draws = sample(
        key, gaussian, precision, found.x, sampler=found.sampler, num_draws=500
    )
    assert abs(draws.info.accept.mean() - 0.7) < 0.08
    assert abs(found.accept - 0.7) < 0.08
    assert found.sampler.flip is samplers.reduced_flip


def test_a_matrix_takes_the_covariance_out(key):
    precision, found = tuned(key, spread=samplers.MATRIX)
    metric = np.asarray(found.sampler.metric)
    whitened = metric.T @ np.asarray(precision) @ metric
    np.testing.assert_allclose(whitened, np.eye(20), atol=0.3)
    # One step in the metric that fits is far longer than one of lengths alone.
    _, other = tuned(key)
    assert found.sampler.step_size > 1.5 * other.sampler.step_size


def test_the_metric_may_be_left_alone(key):
    _, found = tuned(key, spread=None)
    assert found.sampler.metric is None
    assert abs(found.accept - 0.8) < 0.08


@pytest.mark.parametrize(("sd", "step_size"), [(1e-4, 10.0), (1.0, 1e4), (1e3, 0.01)])
def test_chains_at_one_point_with_steps_far_off_are_tuned(sd, step_size, key):
    found = samplers.tune(
        key,
        isotropic,
        1 / sd**2,
        jnp.zeros((20, 3)),
        sampler=samplers.HMC(step_size),
        target=0.8,
    )
    lengths = found.sampler.metric * found.sampler.step_size / sd
    assert np.all((lengths > 0.5) & (lengths < 2))
    assert abs(found.accept - 0.8) < 0.1


def isotropic(params, x):
    return params * x @ x / 2


def test_bad_tuning_is_refused(key):
    with pytest.raises(ValueError, match="sampler must have a target_acceptance"):
        samplers.tune(
            key, isotropic, 1.0, jnp.zeros((2, 2)), sampler=samplers.HeatBath()
        )
    with pytest.raises(ValueError, match="target must be between 0 and 1, got 1.0"):
        tuned(key, target=1.0)
    with pytest.raises(ValueError, match="num_steps must be an integer of at least"):
        tuned(key, num_steps=10)


def test_stages_alike_compile_once(key):
    jax.clear_caches()
    compiled = []

    def listen(event, duration_secs, **told):
        if event.endswith("backend_compile_duration") and "_stage" in told["fun_name"]:
            compiled.append(told["fun_name"])

    jax.monitoring.register_event_duration_secs_listener(listen)
    try:
        tuned(key, num_steps=320, spread=None)
    finally:
        jax.monitoring.unregister_event_duration_listener(listen)
    assert len(compiled) == 1
