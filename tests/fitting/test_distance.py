"""Distance from the minimum in standard errors, and charts that fits use by default."""

import jax
import numpy as np
import pytest
from small_models import all_states, drawn_from, flat_ising, log_probs_of, random_ising

from probjax import (
    L1,
    MPF,
    Bernoulli,
    Data,
    NoiseContrast,
    PseudoLikelihood,
    fit,
    gaussian_rbm,
    hopfield,
    ising,
    potts,
    rbm,
)
from probjax.data import blocks
from probjax.fitting import GradientNorm, StandardErrors, charts
from probjax.fitting.distance import WINDOW, Descent, RowSample, row_variances
from probjax.fitting.distance import _remaining_decrease as remaining_decrease
from probjax.objectives.noise_contrastive import Normalised
from probjax.trees import as_array

SIZE = 12
PLAIN = charts.Affine()


def rows(count=2000):
    return drawn_from(0, random_ising(0, SIZE, scale=0.5), count)


def worst_distance(objective, params, x):
    """Distance sqrt(n g'V^-1 g) in the direction in which it is largest, in float64."""
    with jax.enable_x64(True):
        params = jax.tree.map(lambda leaf: as_array(np.asarray(leaf, float)), params)
        flat, unravel = jax.flatten_util.ravel_pytree(params)

        def value(point, x):
            return objective.row(unravel(point), x, ())

        evaluate = jax.jit(jax.vmap(jax.value_and_grad(value), (None, 0)))
        values, slopes = map(np.asarray, evaluate(flat, np.asarray(x, float)))
    factors = np.ones(len(values))
    if objective.reduction.__name__ == "log_mean_exp":
        factors = np.exp(values - values.max())
        factors /= factors.mean()
    gradient = (factors[:, None] * slopes).mean(0)
    influence = factors[:, None] * (slopes - gradient)
    variance = influence.T @ influence / len(values)
    return np.sqrt(len(values) * gradient @ np.linalg.solve(variance, gradient))


@pytest.mark.parametrize("objective", [MPF, PseudoLikelihood])
def test_a_fit_ends_within_a_quarter_of_a_standard_error_in_any_direction(
    objective, key
):
    data, used = rows(), objective(ising.energy)
    found = fit(key, used, flat_ising(SIZE), data)
    assert found.converged
    assert found.distance < 0.05
    assert worst_distance(used, found.params, data) < 0.25


def test_the_distance_does_not_depend_on_the_scale_of_the_coordinates(key):
    data, objective = rows(), MPF(ising.energy)
    centred = ising.centred(data)
    scaled = charts.Composed((centred, charts.Affine(scale=1.7)))
    ends = [
        fit(key, objective, flat_ising(SIZE), data, chart=c).distance
        for c in (centred, scaled)
    ]
    assert 0.2 < ends[0] / ends[1] < 5


def test_the_remaining_decrease_of_a_geometric_series_is_its_sum():
    decreases = np.float32(0.9) ** np.arange(2 * WINDOW, dtype=np.float32)
    zero = np.zeros(1, np.float32)
    descent = Descent(decreases, np.asarray(100), zero, zero, zero, zero, zero)
    expected = 0.9 ** (2 * WINDOW) / (1 - 0.9)
    np.testing.assert_allclose(remaining_decrease(descent), expected, rtol=1e-4)


@pytest.mark.parametrize("objective", [MPF, PseudoLikelihood])
def test_variances_along_a_direction_are_those_of_all_row_gradients(objective, x64):
    data, params = rows(50).astype(float), random_ising(1, SIZE, scale=0.2)
    used = objective(ising.energy)
    flat, unravel = jax.flatten_util.ravel_pytree(params)
    direction = np.random.default_rng(0).normal(size=flat.size)
    counts = np.random.default_rng(1).integers(0, 4, 50).astype(float)

    def slope(weights):
        def total(point):
            values = jax.vmap(lambda x: used.row(unravel(point), x, ()))(data)
            return used.reduce(values, weights)

        return jax.grad(total)(flat) @ direction

    influence = counts.sum() * np.asarray(jax.jit(jax.grad(slope))(as_array(counts)))
    expected = counts @ influence**2 / counts.sum()
    sample = RowSample(Data(data, as_array(counts)), (), counts.sum())
    (found,) = row_variances(used, unravel, flat, sample, as_array(direction)[None])
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_probabilities_as_weights_are_fitted_to_the_gradient_norm(key):
    truth = random_ising(0, 4, scale=0.4)
    data = Data(all_states(4), np.exp(log_probs_of(truth)))
    found = fit(key, MPF(ising.energy), flat_ising(4), data)
    assert found.converged
    assert found.gradient_norm < 1e-5


def test_counted_rows_end_where_repeated_rows_end(key):
    data = rows()
    twice = np.concatenate([data, data])
    counted = Data(data, np.full(len(data), 2.0))
    ends = [fit(key, MPF(ising.energy), flat_ising(SIZE), d) for d in (twice, counted)]
    assert abs(len(ends[0].losses) - len(ends[1].losses)) <= 1
    assert all(end.distance < 0.05 for end in ends)


def test_fewer_independent_rows_end_a_fit_earlier(key):
    args = MPF(ising.energy), flat_ising(SIZE), rows()
    all_rows = fit(key, *args)
    clusters = fit(key, *args, stop=StandardErrors(rows=20))
    assert len(clusters.losses) < len(all_rows.losses)


@pytest.mark.parametrize("bad", [dict(tolerance=0.0), dict(tolerance=-1), dict(rows=0)])
def test_rules_without_sense_are_refused(bad):
    with pytest.raises(ValueError, match="must be above 0"):
        StandardErrors(**bad)


def test_the_default_chart_is_that_of_the_data_and_saves_steps(key):
    data = rows()
    args = MPF(ising.energy), flat_ising(SIZE), data
    default = fit(key, *args)
    charted = fit(key, *args, chart=ising.centred(data))
    plain = fit(key, *args, chart=PLAIN)
    assert len(default.losses) == len(charted.losses)
    assert len(default.losses) < len(plain.losses)
    np.testing.assert_allclose(default.loss, plain.loss, rtol=1e-6)


def test_blocks_use_a_chart_of_rows_of_all_blocks(key):
    data = rows()
    args = MPF(ising.energy), flat_ising(SIZE)
    in_memory = fit(key, *args, data)
    out_of_core = fit(key, *args, blocks.from_array(data, rows_per_block=300))
    assert abs(len(in_memory.losses) - len(out_of_core.losses)) <= 3
    np.testing.assert_allclose(out_of_core.loss, in_memory.loss, rtol=1e-6)
    assert out_of_core.distance < 0.05


@pytest.mark.parametrize("num_blocks", [1, 3, 17, 40])
def test_a_sample_of_blocks_has_rows_at_equal_distances(num_blocks, key):
    x = np.arange(1000 * num_blocks, dtype=np.float32)[:, None]
    sample = blocks._Sample()
    for block in blocks.padded(blocks.from_array(x, rows_per_block=1000)):
        sample.add(block)
    found = sample.rows().x[:, 0]
    assert len(set(np.diff(found))) <= 1
    assert min(len(x), blocks.SAMPLE_ROWS) <= len(found) < 2 * blocks.SAMPLE_ROWS


def test_l1_descends_in_the_chart_and_finds_the_same_zeros(key):
    data, penalty = rows(), L1(0.02, weights=ising.Params(0.0, 1.0))
    args = PseudoLikelihood(ising.energy), flat_ising(SIZE), data
    exact = dict(penalty=penalty, stop=GradientNorm(1e-6))
    charted, plain = fit(key, *args, **exact), fit(key, *args, chart=PLAIN, **exact)
    assert len(charted.losses) < len(plain.losses)
    np.testing.assert_allclose(
        charted.params.coupling, plain.params.coupling, atol=1e-3
    )
    zeros = [np.asarray(f.params.coupling) == 0 for f in (charted, plain)]
    np.testing.assert_array_equal(*zeros)
    assert 0 < zeros[0].sum() < zeros[0].size


def test_l1_of_biases_keeps_plain_coordinates(key):
    args = PseudoLikelihood(ising.energy), flat_ising(SIZE), rows()
    everything = L1(0.02, weights=1.0)
    assert fit(key, *args, penalty=everything).converged
    with pytest.raises(ValueError, match="chart must scale each penalised entry"):
        fit(key, *args, penalty=everything, chart=ising.centred(rows()))


def letters(count=200):
    return np.random.default_rng(0).integers(0, 3, (count, 4)).astype(np.float32)


CHARTED = {
    "ising": (ising.energy, random_ising(0, 4, scale=0.5), all_states(4)),
    "edges": (
        ising.energy,
        ising.init(jax.random.key(0), 4, edges=[(0, 1), (2, 3)], scale=0.5),
        all_states(4),
    ),
    "hopfield": (
        hopfield.energy,
        hopfield.init(jax.random.key(0), 4, scale=0.5),
        all_states(4),
    ),
    "potts": (potts.energy, potts.init(jax.random.key(0), 4, 3, scale=0.5), letters()),
    "rbm": (rbm.energy, rbm.init(jax.random.key(0), 4, 3, scale=0.5), all_states(4)),
    "gaussian_rbm": (
        gaussian_rbm.energy,
        gaussian_rbm.init(jax.random.key(0), 4, 3, scale=0.5),
        letters(),
    ),
}


@pytest.mark.parametrize("model", CHARTED)
def test_default_charts_are_bijections(model):
    energy, params, x = CHARTED[model]
    chart = MPF(energy).chart(params, Data(as_array(np.asarray(x, np.float32))))
    back = chart.inverse(chart.forward(params))
    for found, expected in zip(*map(jax.tree.leaves, (back, params)), strict=True):
        np.testing.assert_allclose(found, expected, atol=1e-5)
    scales = chart.scales(params)
    pairs = zip(
        *map(jax.tree.leaves, (params, chart.forward(params), scales)), strict=True
    )
    for param, coordinate, scale in pairs:
        if np.any(scale):
            np.testing.assert_allclose(param, scale * coordinate, atol=1e-5)


def test_noise_contrast_uses_the_chart_for_its_parameters():
    objective = NoiseContrast(ising.energy, Bernoulli(4))
    start = objective.start(random_ising(0, 4, scale=0.5))
    chart = objective.chart(start, Data(as_array(all_states(4))))
    coordinates = chart.forward(start)
    assert isinstance(coordinates, Normalised)
    assert coordinates.log_z == start.log_z
    back = chart.inverse(coordinates)
    np.testing.assert_allclose(back.params.bias, start.params.bias, atol=1e-5)
