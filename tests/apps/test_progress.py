import io
import sys
import time

import jax.numpy as jnp
import numpy as np
import pytest

from probjax import (
    MPF,
    Watch,
    ais,
    fit,
    ising,
    progress_bar,
    sample,
)
from probjax.annealing import ais_until, marginal_log_likelihood
from probjax.bases import Bernoulli
from probjax.connectivity import BitFlips
from probjax.fitting import Progress
from probjax.samplers import HeatBath, Metropolis

COUPLED = ising.from_matrix([[0.3, -0.4], [-0.4, -0.7]])


def test_bar_counts_the_steps_and_shows_the_loss(key, capsys):
    rows = np.random.default_rng(0).random((100, 2)) < 0.4
    found = fit(
        key,
        MPF(ising.energy),
        COUPLED,
        rows,
        watch=Watch(progress_bar(file=sys.stderr), every=2),
    )
    shown = capsys.readouterr().err
    assert f"{len(found.losses)}step" in shown
    assert f"loss {float(found.losses[-1]):.6g}" in shown
    assert f"{float(found.distance):.2g} standard errors from the minimum" in shown


def test_bar_counts_the_draws_and_shows_their_acceptance(key, capsys):
    sample(
        key,
        ising.energy,
        COUPLED,
        np.zeros((2, 2)),
        sampler=HeatBath(),
        num_draws=5,
        watch=Watch(progress_bar(5, file=sys.stderr), every=2),
    )
    shown = capsys.readouterr().err
    assert "5/5" in shown
    assert "accepted 1.000" in shown


def annealed(key, **options):
    return ais(
        key,
        ising.energy,
        COUPLED,
        Bernoulli(2),
        sampler=HeatBath(),
        num_particles=50,
        num_steps=7,
        pilot=None,
        **options,
    )


def test_bar_counts_the_distributions_and_shows_effective_particles(key, capsys):
    found = annealed(key, watch=Watch(progress_bar(file=sys.stderr), every=3))
    shown = capsys.readouterr().err
    assert "7/7" in shown
    assert f"ESS {float(found.ess):.3g} of 50" in shown


def test_bar_is_silent_without_a_terminal(key, monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stderr", stream)
    found = annealed(key, watch=Watch(progress_bar(), every=3))
    assert found.log_z == annealed(key).log_z
    assert stream.getvalue() == ""


def test_bar_without_any_stream_changes_nothing(key, monkeypatch):
    monkeypatch.setattr(sys, "stderr", None)
    found = annealed(key, watch=Watch(progress_bar(), every=3))
    assert found.log_z == annealed(key).log_z


def test_bar_is_drawn_on_a_terminal(key, monkeypatch):
    terminal = io.StringIO()
    terminal.isatty = lambda: True
    monkeypatch.setattr(sys, "stderr", terminal)
    annealed(key, watch=Watch(progress_bar(), every=3))
    assert "7/7" in terminal.getvalue()


def test_bar_tells_compiling_from_running():
    drawn = io.StringIO()
    show = progress_bar(1000, file=drawn)
    assert "compiling" in drawn.getvalue()
    assert "0/1000" in drawn.getvalue()
    time.sleep(1.0)
    told = Progress(0, 100, 1.0, 1.0, None, ())
    before = len(drawn.getvalue())
    show(told)
    begun = time.monotonic()
    assert "compiling" not in drawn.getvalue()[before:]
    assert "100/1000 [00:00<" in drawn.getvalue()[before:]
    time.sleep(0.2)
    before = len(drawn.getvalue())
    show(told._replace(step=300))
    # 200 steps in 0.2 s or as long as it took; with the first second, 250 a second.
    elapsed = time.monotonic() - begun
    rate = float(drawn.getvalue()[before:].partition("step/s")[0].rpartition(" ")[2])
    assert 0.9 * 200 / elapsed < rate < 1.1 * 200 / 0.2


def test_bar_follows_runs_that_double(key, capsys):
    with pytest.warns(UserWarning, match="after 14 distributions"):
        ais_until(
            key,
            ising.energy,
            COUPLED,
            Bernoulli(2),
            stderr=1e-6,
            sampler=HeatBath(),
            num_particles=50,
            num_steps=7,
            most_steps=14,
            pilot=None,
            watch=Watch(progress_bar(file=sys.stderr), every=5),
        )
    assert "14/14" in capsys.readouterr().err


def test_bar_counts_the_rows_and_shows_their_mean(key, capsys):
    found = marginal_log_likelihood(
        key,
        coin,
        0.5,
        Bernoulli(1),
        np.array([[0.0], [1.0], [1.0]]),
        sampler=Metropolis(BitFlips()),
        num_particles=5,
        num_steps=4,
        chunk_size=1,
        pilot=None,
        watch=Watch(progress_bar(file=sys.stderr), every=3),
    )
    shown = capsys.readouterr().err
    assert "3/3" in shown
    assert f"log p {np.asarray(found.per_row).mean():.6g}" in shown


def coin(params, x, a):
    return params * jnp.sum((x - a) ** 2) + jnp.log(2.0)


def test_bar_refuses_what_is_not_a_report():
    show = progress_bar(file=io.StringIO())
    with pytest.raises(TypeError, match="cannot show a int"):
        show(3)
