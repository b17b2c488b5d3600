"""Reweighting of draws of several distributions, against closed forms and Bennett."""

import jax
import numpy as np
import pytest

from probjax.annealing.bennett import bennett
from probjax.annealing.mbar import mbar

WIDTHS = np.array([1.0, 1.5, 2.5, 4.0])
COUNTS = np.array([4000, 1000, 2000, 3000])


def widened(seed):
    """Draws of Gaussians of different widths, and their energies at all widths."""
    generator = np.random.default_rng(seed)
    parts = zip(COUNTS, WIDTHS, strict=True)
    x = np.concatenate([generator.normal(0, width, count) for count, width in parts])
    return x, x[None] ** 2 / (2 * WIDTHS[:, None] ** 2)


def test_log_z_of_gaussians_is_log_of_their_widths():
    _, energies = widened(0)
    log_z, _ = mbar(energies, COUNTS)
    np.testing.assert_allclose(log_z, np.log(WIDTHS), atol=0.03)


def test_every_distribution_receives_as_many_draws_as_it_gave():
    _, energies = widened(1)
    log_z, log_mixture = mbar(energies, COUNTS)
    shares = COUNTS[:, None] * np.exp(-energies - log_z[:, None] - log_mixture)
    np.testing.assert_allclose(shares.sum(1), COUNTS, rtol=1e-6)


def test_draws_are_reweighted_to_a_distribution_between():
    x, energies = widened(2)
    _, log_mixture = mbar(energies, COUNTS)
    terms = -(x**2) / (2 * 2.0**2) - log_mixture
    log_z = np.logaddexp.reduce(terms)
    assert abs(log_z - np.log(2.0)) < 0.03
    assert abs(np.exp(terms - log_z) @ x**2 - 4.0) < 0.2


def test_two_distributions_are_bennett(x64):
    generator = np.random.default_rng(3)
    forward, backward = generator.normal(0.5, 1.0, 900), generator.normal(1.5, 1.0, 700)
    both = np.concatenate([forward, backward])
    log_z, _ = mbar(np.stack([0 * both, -both]), [900, 700])
    found, _ = jax.jit(bennett)(forward, backward)
    assert abs(log_z[1] - float(found)) < 1e-6


def test_weights_are_numbers_of_draws():
    _, energies = widened(4)
    order = np.repeat(np.arange(len(COUNTS)), COUNTS)
    weights = np.random.default_rng(0).integers(0, 3, energies.shape[1])
    counts = np.bincount(order, weights)
    repeated, _ = mbar(np.repeat(energies, weights, axis=1), counts)
    weighted, _ = mbar(energies, counts, weights.astype(float))
    np.testing.assert_allclose(weighted, repeated, atol=1e-9)


@pytest.mark.parametrize("offset", [0.0, 1e4])
def test_far_starts_and_offsets_do_not_matter(offset):
    _, energies = widened(5)
    near, _ = mbar(energies, COUNTS)
    shift = offset * np.arange(4)[:, None]
    far, _ = mbar(energies + shift, COUNTS, start=[0.0, 30.0, -20.0, 5.0] - shift[:, 0])
    np.testing.assert_allclose(far + shift[:, 0], near, atol=1e-6)
