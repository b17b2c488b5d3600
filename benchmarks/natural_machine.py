"""A machine of 10^5 parameters by the natural gradient, in minibatches of its rows.

With fewer rows than parameters all of the metric is in the products of its rows, and
parameters x parameters is never made. What is left of a step are four parts: scores,
their products with each other, a Cholesky solve as large as there are rows, and a
product back.
"""

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.scipy.linalg import cho_factor, cho_solve

from benchmarks.harness import Options, Table, Timing, peak_memory, ratio, time_together
from probjax import MPF, Watch, fit, loss, plots, rbm
from probjax.natural import (
    ConjugateGradient,
    Diagonal,
    LowRank,
    energy_scores,
    natural_gradient,
)
from probjax.plots import BLUE, GREY, ORANGE

FIGURE = Path("out/natural_machine.png")
LINES, COLOURS = ("-", "--", ":"), {"natural": GREY, "natural with momentum": BLUE}
START_KEY, ROW_KEY, FIT_KEY = jax.random.split(jax.random.key(0), 3)
MOMENTUM, NUM_JUDGED, FEW_STEPS = 0.9, 1000, 5
WITHOUT_AND_WITH = {"natural": 0.0, "natural with momentum": MOMENTUM}
ADAM_RATES = (3e-3, 1e-2, 3e-2)
RATES, DAMPINGS = (0.1, 0.5, 2.5), (1.0, 30.0)
TALL, WIDE = 400, 250


class Course(NamedTuple):
    """A descent as it went."""

    steps: np.ndarray
    losses: np.ndarray


def run(options: Options) -> Iterator[Table]:
    yield many_parameters(options)
    yield step_seconds(options)
    yield memory()


def digits(options: Options) -> tuple[jax.Array, int]:
    """Binarised digits, and how many hidden units make 10^5 parameters."""
    if options.data is not None:
        with np.load(options.data / "mnist10k.npz") as file:
            images, hidden = file["train"].reshape(-1, 784) > 127, 128
    else:
        try:
            from sklearn.datasets import load_digits
        except ImportError as error:
            raise SystemExit(
                "natural-gradient learns digits: give --data, a folder that holds "
                "mnist10k.npz, or pip install scikit-learn"
            ) from error
        images, hidden = load_digits().data > 7, 1500  # pyright: ignore
    return jnp.asarray(images, float), hidden // 8 if options.quick else hidden


def many_parameters(options: Options) -> Table:
    """Minibatches, judged by the first rows."""
    x, hidden = digits(options)
    batch, few, many = (100, 10, 100) if options.quick else (500, 30, 600)
    odds = (x.sum(0) + 1) / (len(x) + 2)
    start = rbm.init(START_KEY, x.shape[1], hidden)
    start = start._replace(visible_bias=jnp.log(odds / (1 - odds)))
    descend = partial(fit, FIT_KEY, MPF(rbm.energy), start, x, batch_size=batch)
    follow = partial(followed, descend, start, x[:NUM_JUDGED])
    scores = energy_scores(rbm.energy)

    def natural(momentum, setting):
        rate, damping = setting
        by = natural_gradient(
            scores, solve=LowRank(), damping=damping, momentum=momentum
        )
        return optax.chain(by, optax.sgd(rate))

    rates = ADAM_RATES[1:2] if options.quick else ADAM_RATES
    # Where the metric says nothing, a step is as long as the rate over the damping.
    grid = [(rate * damping, damping) for damping in DAMPINGS for rate in RATES]
    grid = grid[:1] if options.quick else grid
    courses = {f"Adam, {rate}": follow(optax.adam(rate), many) for rate in rates}
    calls = {"Adam": optax.adam(rates[0])}
    for name, momentum in WITHOUT_AND_WITH.items():
        make = partial(natural, momentum)
        tried = {each: follow(make(each), few) for each in grid}
        best = min(tried, key=lambda each: last_loss(tried[each]))
        courses[f"{name}, {best[0]:g} and {best[1]:g}"] = tried[best]
        calls[name] = make(best)
    times = time_together(
        2 if options.quick else 5,
        **{
            name: partial(descend, optimizer=each, steps_per_round=FEW_STEPS)
            for name, each in calls.items()
        },
    )
    seconds = {
        name: times[name.partition(",")[0]].median / FEW_STEPS for name in courses
    }
    draw(courses, seconds)
    return learned(courses, seconds, start, batch)


def last_loss(course: Course) -> float:
    last = course.losses[-1]
    # Not -inf either: of weights so large that gaps overflow.
    return float(last) if np.isfinite(last) else np.inf


def learned(courses, seconds, start, batch) -> Table:
    ends = {name: seconds[name] * one.steps[-1] for name, one in courses.items()}
    fewest, shared = min(one.steps[-1] for one in courses.values()), min(ends.values())
    rows = []
    for name, course in courses.items():
        takes = steps_of_adam(courses, course.losses[-1])
        rows.append(
            (
                name,
                1e3 * seconds[name],
                np.interp(fewest, course.steps, course.losses),
                np.interp(shared / seconds[name], course.steps, course.losses),
                course.losses[-1],
                ends[name],
                takes,
                takes * next(iter(seconds.values())),
            )
        )
    return Table(
        f"MPF of a machine of {' x '.join(map(str, start.weight.shape))} units, "
        f"{sum(leaf.size for leaf in start):,} parameters, {batch} rows a step",
        (
            "descent, rate and damping",
            "ms a step",
            f"loss, {fewest:.0f} steps",
            f"loss, {shared:.0f} s",
            "loss in the end",
            "after s",
            "Adam takes, steps",
            "Adam takes, s",
        ),
        rows,
        f"Losses of {NUM_JUDGED:,} rows, always the same, interpolated. Adam takes: to "
        "a loss as low as the end of this one, by its best rate. Natural settings: the "
        f"lowest in the end of dampings of {DAMPINGS} and rates of {RATES} times them, "
        "with --quick the first. Seconds: steps times "
        "what a step takes, all timed in turns, after compiling. Figure: "
        f"{FIGURE}.",
    )


def steps_of_adam(courses: dict[str, Course], goal: float) -> float:
    """The fewest of any rate; infinite if none came there."""
    counts = [
        one.steps[one.losses <= goal].min(initial=np.inf)
        for name, one in courses.items()
        if name.startswith("Adam")
    ]
    return float(min(counts))


def followed(descend, start, x, optimizer, num_steps) -> Course:
    """The losses of the same rows along a descent."""
    steps, losses = [], []

    def note(step, params):
        finite = all(np.isfinite(leaf).all() for leaf in params)
        steps.append(int(step))
        found = loss(FIT_KEY, MPF(rbm.energy), params, x) if finite else np.inf
        losses.append(float(found))
        return not np.isfinite(losses[-1])

    note(0, start)
    with warnings.catch_warnings():
        # Of rates that are too large.
        warnings.simplefilter("ignore")
        descend(
            optimizer=optimizer,
            steps_per_round=num_steps,
            watch=Watch(
                lambda progress: note(progress.step, progress.params),
                every=max(1, num_steps // 30),
            ),
        )
    return Course(np.array(steps, float), np.array(losses))


def step_problem(count: int) -> tuple[Any, jax.Array, Any]:
    """A machine of 10^5 parameters, rows, and a gradient to be made natural."""
    params = rbm.init(START_KEY, TALL, WIDE, scale=0.1)
    x = jax.random.bernoulli(ROW_KEY, 0.2, (count, TALL)).astype(float)
    gradient = jax.grad(lambda p: jax.vmap(rbm.energy, (None, 0))(p, x).mean())
    return params, x, gradient(params)


def natural_step(count: int, **settings: Any) -> Callable[[], Any]:
    params, x, gradient = step_problem(count)
    way = natural_gradient(energy_scores(rbm.energy), **settings)
    update = jax.jit(lambda g, state, p, x: way.update(g, state, p, data=x))
    return partial(update, gradient, way.init(params), params, x)


def step_seconds(options: Options) -> Table:
    """A step beside its four parts, bare."""
    count, repeats = (200, 3) if options.quick else (500, 15)
    params, x, _ = step_problem(count)
    jacobian = jax.jit(jax.vmap(jax.grad(rbm.energy), (None, 0)))
    leaves = jax.tree.leaves(jacobian(params, x))
    rows = jnp.concatenate([leaf.reshape(count, -1) for leaf in leaves], 1)
    gram = jax.jit(lambda rows: rows @ rows.T)
    matrix, right = gram(rows) + jnp.eye(count), jnp.ones(count)
    back = jax.jit(lambda rows, right: rows.T @ right)
    solve = jax.jit(lambda matrix, right: cho_solve(cho_factor(matrix), right))
    parts = {
        "scores of all rows": partial(jacobian, params, x),
        "rows x parameters x rows": partial(gram, rows),
        "parameters x rows": partial(back, rows, right),
        f"{count} x {count} Cholesky": partial(solve, matrix, right),
    }
    low, iterated = LowRank(), ConjugateGradient(20, tolerance=0.0)
    steps = {
        "LowRank": natural_step(count, solve=low),
        "LowRank, momentum": natural_step(count, solve=low, momentum=MOMENTUM),
        "ConjugateGradient, 20": natural_step(count, solve=iterated),
        "Diagonal": natural_step(count, solve=Diagonal()),
    }
    times = time_together(repeats, **parts, **steps)
    bare = Timing(np.sum([times[name].seconds for name in parts], 0))
    least = sum(times[name].seconds.min() for name in parts)
    times = {**times, "the four together": bare}
    return Table(
        f"A natural step: {rows.shape[1]:,} parameters, {count} rows",
        (
            "part or step",
            "ms",
            "of the four parts",
            "quickest, ms",
            "of their quickest",
        ),
        [
            (
                name,
                1e3 * times[name].median,
                ratio(times[name], bare),
                1e3 * times[name].seconds.min(),
                times[name].seconds.min() / least,
            )
            for name in (*parts, "the four together", *steps)
        ],
        f"Medians and quickest of {repeats} turns, after compiling, the gradient being "
        "given. Where others use the machine too, a Cholesky waits for its threads, in "
        "a step as in its parts, and the quickest turns say more. Target: LowRank at "
        "most 1.3 by either.",
    )


def memory() -> Table:
    """Peak memory of a process that takes one step."""
    program = """
import sys, jax
from benchmarks import natural_machine
from probjax.natural import ConjugateGradient, LowRank
solve = {"LowRank": LowRank(), "ConjugateGradient": ConjugateGradient(20)}[sys.argv[1]]
jax.block_until_ready(natural_machine.natural_step(500, solve=solve)())
"""
    size = TALL * WIDE + TALL + WIDE
    return Table(
        f"Peak memory of a process that takes a step: {size:,} parameters, 500 rows",
        ("solve", "GB"),
        [(way, peak_memory(program, way)) for way in ("LowRank", "ConjugateGradient")],
        f"Parameters x parameters would be {4e-9 * size**2:.0f} GB and is never made; "
        f"the scores of all rows are {4e-9 * 500 * size:.1g} GB.",
    )


def draw(courses: dict[str, Course], seconds: dict[str, float]) -> None:
    """Losses against steps and against seconds."""
    figure, axes = plots.load_pyplot().subplots(
        1, 2, figsize=(8, 3.4), sharey=True, layout="constrained"
    )
    for number, (name, course) in enumerate(courses.items()):
        colour = COLOURS.get(name.partition(",")[0], ORANGE)
        line = LINES[number % 3] if colour == ORANGE else "-"
        axes[0].plot(course.steps, course.losses, line, color=colour, label=name)
        axes[1].plot(seconds[name] * course.steps, course.losses, line, color=colour)
    axes[0].set_xscale("symlog", linthresh=1)
    axes[0].set_xlabel("steps")
    axes[1].set_xlabel("seconds")
    axes[0].set_ylabel("log K")
    axes[0].legend(frameon=False)
    for ax in axes:
        ax.spines[["top", "right"]].set_visible(False)
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=150)
