import jax
import jax.numpy as jnp

from probjax import MPF, fit, ising, progress_bar


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
