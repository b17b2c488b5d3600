import jax
import jax.numpy as jnp

from probjax import MPF, draws_bar, fit, ising, progress_bar, sample
from probjax.samplers import HeatBath


def test_bar_counts_the_steps_and_shows_the_loss(key, capsys):
    rows = jax.random.bernoulli(key, 0.4, (100, 4))
    start = ising.from_matrix(jnp.zeros((4, 4)))
    found = fit(
        key,
        MPF(ising.energy),
        start,
        rows,
        callback=progress_bar(),
        callback_every=2,
    )
    shown = capsys.readouterr().err
    assert f"{len(found.losses)}step" in shown
    assert f"loss {float(found.losses[-1]):.6g}" in shown


def test_bar_counts_the_draws_and_shows_their_acceptance(key, capsys):
    start = ising.from_matrix(jnp.zeros((4, 4)))
    sample(
        key,
        ising.energy,
        start,
        jnp.zeros((2, 4)),
        sampler=HeatBath(),
        num_draws=5,
        callback=draws_bar(5),
        callback_every=2,
    )
    shown = capsys.readouterr().err
    assert "5/5" in shown
    assert "accepted 1.000" in shown
