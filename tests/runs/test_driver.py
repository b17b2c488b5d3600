"""One driver: what a job is, what a watch does, and what a checkpoint is known by."""

import ast
import importlib
import inspect
import warnings
from collections import defaultdict
from contextlib import contextmanager
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from small_models import random_ising

import probjax
from probjax import (
    HMC,
    MPF,
    Checkpoint,
    Gaussian,
    HeatBath,
    ScoreMatching,
    Watch,
    ais,
    ais_until,
    fit,
    ising,
    marginal_log_likelihood,
    sample,
    sample_mean,
    sandwich,
)
from probjax.annealing import reverse_ais
from probjax.fitting import rounds
from probjax.natural import energy_scores, fit_whitened
from probjax.runs import driver
from probjax.runs.driver import Job, run, run_in_turn

PACKAGE = Path(probjax.__file__).parent
# The module: `probjax.fitting.fit` is the function.
FIT = importlib.import_module("probjax.fitting.fit")
KEY = jax.random.key(20120501)
BITS = np.random.default_rng(0).integers(0, 2, (20, 3))
X = np.random.default_rng(1).normal(size=(4, 2))


def quadratic(precision, x):
    return precision * jnp.sum(x**2) / 2


def joint(params, x, a):
    return jnp.sum((x - params * a) ** 2) / 2 + jnp.sum(a**2) / 2


CALLS = {
    fit: ((MPF(ising.energy), random_ising(0, 3), BITS), dict(steps_per_round=3)),
    fit_whitened: (
        (MPF(ising.energy), random_ising(0, 3), BITS, energy_scores(ising.energy)),
        dict(steps_per_round=3, num_turns=2),
    ),
    sample: ((quadratic, 1.0, X), dict(sampler=HMC(0.1), num_draws=2)),
    sample_mean: (
        (quadratic, 1.0, X),
        dict(sampler=HMC(0.1), num_draws=2, statistic=jnp.sum),
    ),
    ais: (
        (quadratic, 1.0, Gaussian(2)),
        dict(sampler=HMC(0.1), num_particles=4, num_steps=3, pilot=None),
    ),
    ais_until: (
        (quadratic, 1.0, Gaussian(2)),
        dict(sampler=HMC(0.1), num_particles=4, num_steps=3, stderr=9.0, pilot=None),
    ),
    reverse_ais: (
        (quadratic, 1.0, Gaussian(2), X),
        dict(sampler=HMC(0.1), num_steps=3, pilot=None),
    ),
    sandwich: (
        (quadratic, 1.0, Gaussian(2), X),
        dict(sampler=HMC(0.1), num_steps=3, pilot=None),
    ),
    marginal_log_likelihood: (
        (joint, 1.0, Gaussian(2), X),
        dict(sampler=HMC(0.1), num_particles=4, num_steps=3, pilot=None),
    ),
}


def name(function):
    return function.__name__


@pytest.mark.filterwarnings("ignore::probjax.ConvergenceWarning")
@pytest.mark.parametrize("call", CALLS, ids=name)
def test_a_checkpoint_is_known_by_every_argument_of_the_call(
    call, monkeypatch, tmp_path
):
    asked = []

    @contextmanager
    def open_checkpoint(checkpoint, name, arguments):
        asked.append((name, set(arguments)))
        yield driver._NoCheckpoint()

    monkeypatch.setattr(driver, "open_checkpoint", open_checkpoint)
    args, options = CALLS[call]
    watch = Watch(checkpoint=Checkpoint(tmp_path / "run.npz"))
    call(KEY, *args, watch=watch, **options)
    parameters = set(inspect.signature(call).parameters) - {"watch"}
    assert asked == [(call.__name__, parameters)]


def test_there_is_one_host_loop_and_one_place_that_makes_digests():
    """Nobody else opens a checkpoint, calls a callback, or makes a digest."""
    callers = defaultdict(set)
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            called = node.func if isinstance(node, ast.Call) else None
            is_method = isinstance(called, ast.Attribute)
            name = called.attr if is_method else getattr(called, "id", None)
            # Hashes and blocks have methods of the name `digest`.
            if not (is_method and name == "digest"):
                callers[name].add(path.name)
    assert callers["open_checkpoint"] == {"driver.py"}
    assert callers["callback"] == {"driver.py"}
    # Blocks of rows on disk are read and digested one by one.
    assert callers["digest"] == {"checkpoint.py", "blocks.py"}


def test_no_function_is_long_and_no_signature_too_long():
    assert len(inspect.signature(fit).parameters) <= 14
    assert len(inspect.signature(ais).parameters) <= 12
    long = []
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef):
                documented = ast.get_docstring(node) is not None
                first = node.body[1] if documented and node.body[1:] else node.body[0]
                if node.end_lineno - first.lineno + 1 > 60:
                    long.append(f"{path.name}:{node.lineno} {node.name}")
    assert long == []


class Counting:
    """A job that counts to ten, and how it was asked to."""

    def __init__(self, **options):
        self.pieces = []
        self.job = Job(
            begin=lambda: 0,
            advance=self.advance,
            is_over=lambda now: now >= 10,
            report=lambda now: now,
            finish=lambda now, stopped: (now, stopped),
            every=4,
            **options,
        )

    def advance(self, now, every):
        self.pieces.append(every)
        return 10 if every is None else min(now + every, 10)


def count(counting, watch):
    return run("count", {"to": 10}, counting.job, watch)


def test_a_run_that_nobody_watches_is_one_piece():
    counting = Counting()
    assert count(counting, None) == (10, False)
    assert counting.pieces == [None]


def test_a_callback_sees_every_piece_and_may_stop():
    counting, seen = Counting(), []
    assert count(counting, Watch(seen.append)) == (10, False)
    assert seen == [4, 8, 10]
    assert count(Counting(), Watch(lambda now: now >= 6, every=3)) == (6, True)
    with pytest.raises(ValueError, match="count has no result before its end"):
        count(Counting(may_stop=False), Watch(lambda now: True))


def test_jobs_in_turn_see_the_results_before_and_end_with_a_stop():
    seen = []

    def next_job(results):
        seen.append(list(results))
        return Counting().job if len(results) < 3 else None

    done = run_in_turn("counts", {}, next_job, None)
    assert done == [(10, False)] * 3
    assert [len(results) for results in seen] == [0, 1, 2, 3]
    calls = iter(range(100))
    done = run_in_turn("counts", {}, next_job, Watch(lambda now: next(calls) == 4))
    assert done == [(10, False), (8, True)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(callback=3), "callback must be a function, got 3"),
        (dict(every=0), "every must be an integer of at least 1, got 0"),
        (dict(checkpoint="fit.npz"), r"checkpoint must be a Checkpoint, got 'fit.npz'"),
    ],
)
def test_bad_watches_are_refused_in_a_sentence(options, message):
    with pytest.raises(ValueError, match=message):
        Watch(**options)


def test_a_function_in_place_of_a_watch_is_refused(key):
    options = dict(sampler=HeatBath(), num_draws=1)
    with pytest.raises(
        ValueError, match=r"watch must be a Watch.*try Watch\(callback\)"
    ):
        sample(key, ising.energy, random_ising(0, 3), BITS, watch=print, **options)


def test_an_equal_optimizer_or_closure_built_anew_compiles_nothing(key, monkeypatch):
    traced = []

    def counted(*args):
        traced.append(1)
        return rounds.advance(*args)

    monkeypatch.setattr(FIT, "advance_compiled", jax.jit(counted))

    def learn(rate, power):
        def energy(scale, x):
            return jnp.sum(jnp.abs(x / scale) ** power)

        optimizer = optax.adam(optax.exponential_decay(rate, 5, 0.5))
        options = dict(optimizer=optimizer, steps_per_round=3)
        return fit(key, ScoreMatching(energy), 1.0, X, **options).params

    first, again = learn(0.1, 4), learn(0.1, 4)
    assert len(traced) == 1
    assert first == again
    assert learn(0.2, 4) != first
    assert learn(0.1, 2) != first
    assert len(traced) == 3


def test_callbacks_that_look_alike_are_not_mistaken_for_each_other(key):
    def watched():
        seen = []
        options = dict(sampler=HMC(0.1), num_draws=2)
        sample(key, quadratic, 1.0, X, watch=Watch(seen.append, every=1), **options)
        sample(key, quadratic, 1.0, X, watch=Watch(lambda d: seen.append(d)), **options)
        return seen

    assert [len(watched()) for _ in range(2)] == [3, 3]


def test_a_run_of_one_distribution_is_reported_and_saved(tmp_path):
    seen, path = [], tmp_path / "ais.npz"
    args, options = CALLS[ais]
    watch = Watch(seen.append, checkpoint=Checkpoint(path))
    found = ais(KEY, *args, watch=watch, **options | {"num_steps": 1})
    assert len(seen) == 1
    assert path.exists()
    assert found.log_z == ais(KEY, *args, **options | {"num_steps": 1}).log_z


def test_the_confirming_run_is_not_cut_by_the_most_steps():
    """A run that is good enough is followed by one of its length, whatever it is."""
    args, options = CALLS[ais_until]
    options = options | {"num_steps": 20, "most_steps": 10}
    seen = []
    watch = Watch(lambda annealed: seen.append(1) and None, every=100)
    ais_until(KEY, *args, watch=watch, **options)
    assert len(seen) == 2


def test_rows_on_disk_are_refused_inside_jit():
    source = probjax.data.blocks.from_array(BITS.astype(np.float32), rows_per_block=10)

    @jax.jit
    def learn(params):
        return fit(KEY, MPF(ising.energy), params, source).params

    with pytest.raises(ValueError, match="data must be rows in memory inside jit"):
        learn(random_ising(0, 3))


def test_warnings_point_to_the_line_that_called():
    never = np.zeros_like(BITS)
    flow, start = MPF(ising.energy), random_ising(0, 3)
    scores = energy_scores(ising.energy)
    for call in (
        lambda: fit(KEY, flow, start, never, steps_per_round=1),
        lambda: fit_whitened(
            KEY, flow, start, never, scores, num_turns=1, steps_per_round=1
        ),
    ):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            call()
        assert {Path(each.filename).name for each in seen} == {Path(__file__).name}
        assert any(each.category is probjax.UnboundedWarning for each in seen)


def test_a_run_is_not_continued_by_another_sampler():
    args, options = CALLS[sample]
    draws = sample(KEY, *args, **options)
    with pytest.raises(ValueError, match="x must be a run of HeatBath to be continued"):
        sample(KEY, *args[:2], draws, **options | {"sampler": HeatBath()})


def test_a_continued_run_is_not_warmed_up_again():
    args, options = CALLS[sample]
    options = options | {"num_warmup": 3}
    draws = sample(KEY, *args, **options)
    more = sample(KEY, *args[:2], draws, **options)
    assert (int(draws.step), int(more.step)) == (5, 7)
