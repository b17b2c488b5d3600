"""What the natural gradient is worth, in steps and in seconds.

    d theta ~ -G^-1 dJ,    G = <d log q d log q'>,

on the thesis' Gaussian, whose parameters are badly chosen; on independent components,
where G^-1 is two products with W; on a lattice whose energies are linear in their
parameters; and on a machine of 10^5 parameters, of which G is never made.

Rates are the best of a grid, for every way its own: the one that takes the fewest steps
to the loss asked for, or that comes lowest.

Reference: thesis, "The Natural Gradient by Analogy to Signal Whitening, and Recipes and
Tricks for its Use".
"""

import math
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from benchmarks import natural_machine
from benchmarks.harness import Options, Table, ratio, time_together
from benchmarks.mpf_cost import read
from probjax import (
    MPF,
    Data,
    Fit,
    MaximumLikelihood,
    exact,
    experts,
    fit,
    ising,
    plots,
    recipe,
)
from probjax.fitting import Progress, StoppingRule
from probjax.fitting.charts import Frozen
from probjax.natural import (
    BlockDiagonal,
    Diagonal,
    energy_scores,
    fit_whitened,
    likelihood_scores,
    metric,
    natural_gradient,
    relative_gradient,
    whitened,
)
from probjax.plots import BLUE, GREY, ORANGE

FIGURE = Path("out/natural_gradient.png")
KEY = jax.random.key(0)
MIXING = jnp.array([[3.0, 1 / 3], [1 / 3, 0.0]])
# Of mean 0 and covariance 1, as the Gaussian itself: all that its scores see of it.
CORNERS = math.sqrt(2) * jnp.array([[1.0, 0], [-1, 0], [0, 1], [0, -1]])
SHOWN = (10, 100, 1000)
CONDITION = 100.0
SHAPE, LATTICE_RATES = (10, 10), ((1.0, 4.0, 10.0), (10.0, 30.0, 60.0))
COMPONENT_RATES = (0.1, 0.3, 1.0)
NUM_SHOWN = 200
STYLES = ((ORANGE, "-"), (GREY, ":"), (BLUE, "--"))


class Way(NamedTuple):
    """A way down to some loss."""

    call: Callable[[], Fit]
    rate: float | str
    found: Fit
    reached: bool

    @property
    def steps(self) -> int:
        """Updates; losses of a named optimizer begin with that of the start."""
        return len(self.found.losses) - (self.rate != "")


def run(options: Options) -> Iterator[Table]:
    plots.load_pyplot()
    yield two_parameters()
    yield components(options)
    yield lattice(options)
    yield from natural_machine.run(options)


def log_prob(theta: jax.Array, x: jax.Array) -> jax.Array:
    away = x - MIXING @ theta
    return -(away @ away) / 2 - math.log(2 * math.pi)


def objective(theta: jax.Array) -> jax.Array:
    return -jax.vmap(log_prob, (None, 0))(theta, CORNERS).mean()


def model_rows(key, theta, data):
    """What stands for draws of the model."""
    return CORNERS + (MIXING @ theta)[None]


def two_parameters() -> Table:
    scores, centre = likelihood_scores(log_prob), jnp.zeros(2)
    fisher = metric(scores, centre, CORNERS)
    least, largest = np.linalg.eigvalsh(fisher)
    natural = natural_gradient(scores, damping=0.0, rows=model_rows, key=KEY)
    ways = {
        "steepest, rate .1": optax.sgd(0.1),
        "steepest, rate .2": optax.sgd(0.2),
        "natural, rate .1": optax.chain(natural, optax.sgd(0.1)),
    }
    paths = {name: descent_path(way, max(SHOWN)) for name, way in ways.items()}
    chart = whitened(scores, centre, CORNERS, damping=0.0)

    def white_objective(phi):
        return objective(chart.inverse(phi))

    directions = {
        r"\theta": lambda theta: -jax.vmap(jax.grad(objective))(theta),
        r"\phi": lambda phi: -jax.vmap(jax.grad(white_objective))(phi),
    }
    draw(paths, directions)
    errors = jnp.abs(fisher - jnp.array([[9 + 1 / 9, 1], [1, 1 / 9]])).max()
    return Table(
        "Two parameters: KL divergence from the data",
        ("descent", *(f"after {count:,} steps" for count in SHOWN)),
        [
            (name, *(divergence(path)[count] for count in SHOWN))
            for name, path in paths.items()
        ],
        f"From {divergence(paths['natural, rate .1'])[0]:.3g}. The metric is of "
        f"condition {largest / least:.0f}, and the thesis' to {errors:.1g}. Steepest "
        f"descent is stable below {2 / largest:.2g}; natural descent at rate 1 is "
        f"there in one step. Figure: {FIGURE}.",
    )


def descent_path(way: optax.GradientTransformation, num_steps: int) -> np.ndarray:
    """Parameters from [1, -1] on, a row a step."""
    way = optax.with_extra_args_support(way)
    start = jnp.array([1.0, -1.0])

    def step(carry, _):
        theta, state = carry
        updates, state = way.update(
            jax.grad(objective)(theta), state, theta, data=CORNERS
        )
        theta = optax.apply_updates(theta, updates)
        return (theta, state), theta

    _, path = jax.jit(
        lambda: jax.lax.scan(step, (start, way.init(start)), length=num_steps)
    )()
    return np.concatenate([start[None], path])


def divergence(theta: np.ndarray) -> np.ndarray:
    return np.sum((theta @ np.asarray(MIXING).T) ** 2, 1) / 2


@recipe
class Below(StoppingRule):
    """Stop as soon as the loss is at most `target`."""

    target: float

    def is_met(self, progress: Progress, data: Data) -> jax.Array:
        return progress.loss <= self.target


def descended(
    descend: Callable[..., Fit],
    stop: Below,
    *before: optax.GradientTransformation,
    rates: tuple[float, ...],
) -> Way:
    """By the best of some rates."""

    def tried(rate):
        optimizer = optax.chain(*before, optax.sgd(rate))
        return walked(partial(descend, optimizer=optimizer), stop, rate)

    def merit(way):
        return not way.reached, way.steps if way.reached else last_loss(way.found)

    return min(map(tried, rates), key=merit)


def walked(descend: Callable[..., Fit], stop: Below, rate: float | str = "") -> Way:
    call = partial(descend, stop=stop)
    with warnings.catch_warnings():
        # Of rates that are too large, and of fits that are not meant to converge.
        warnings.simplefilter("ignore")
        found = call()
    return Way(call, rate, found, bool(found.losses[-1] <= stop.target))


def last_loss(found: Fit) -> float:
    last = float(found.losses[-1])
    return last if math.isfinite(last) else math.inf


def compared(ways: dict[str, Way], repeats: int) -> list[tuple]:
    """Steps and seconds of those that came there, beside the fastest."""
    calls = {name: way.call for name, way in ways.items() if way.reached}
    times = time_together(repeats, **calls)
    fastest = min(times.values(), key=lambda each: each.median, default=None)
    rows = []
    for name, way in ways.items():
        if way.reached and fastest is not None:
            seconds = (times[name].median, ratio(times[name], fastest))
            rows.append((name, way.rate, way.steps, *seconds))
        else:
            rows.append((name, way.rate, f"over {way.steps}", "", ""))
    return rows


def components(options: Options) -> Table:
    """Laplace sources, mixed by a matrix of some condition."""
    size, count, most = (6, 2000, 300) if options.quick else (20, 10_000, 1500)
    random = np.random.default_rng(0)
    first, second = (np.linalg.qr(random.normal(size=(size, size)))[0] for _ in "12")
    mixing = first * np.geomspace(1, 1 / CONDITION, size) @ second
    x = jnp.asarray(random.laplace(size=(count, size)) @ mixing.T, float)
    ones = jnp.ones(size)
    truth = experts.Params(jnp.asarray(np.linalg.inv(mixing), float), ones)
    start = experts.Params(jnp.eye(size), ones)
    likelihood = MaximumLikelihood(experts.laplace, log_z=experts.laplace_log_z)
    # A strength and the length of its filter are one parameter, written as two.
    chart = Frozen(start, free=experts.Params(*map(jnp.asarray, (True, False))))
    descend = partial(fit, KEY, likelihood, data=x, chart=chart, steps_per_round=most)
    bottom = walked(partial(descend, params=truth), Below(-math.inf))
    minimum = float(bottom.found.losses.min())
    stop, descend = Below(minimum + 1e-2), partial(descend, params=start)
    rates = COMPONENT_RATES[1:2] if options.quick else COMPONENT_RATES
    by = partial(descended, descend, stop, rates=rates)
    ways = {
        "steepest": by(),
        "relative, W'W": by(relative_gradient()),
        "L-BFGS": walked(descend, stop),
    }
    rows = compared(ways, 3)
    recovered = amari(bottom.found.params.filters @ mixing)
    return Table(
        f"Independent components: {size} sources, mixing of condition "
        f"{CONDITION:.0f}, {count:,} rows",
        ("descent", "rate", "steps", "seconds", "of fastest", "Amari", "above minimum"),
        [
            (
                *row,
                amari(ways[row[0]].found.params.filters @ mixing),
                last_loss(ways[row[0]].found) - minimum,
            )
            for row in rows
        ],
        "From W = 1 to within 1e-2 nats of the minimum, which L-BFGS finds from the "
        f"truth; Amari distance there: {recovered:.2g}"
        " (0 if recovered, 1 at most). Rates: best of "
        f"{rates}. Seconds after compiling, medians of turns.",
    )


def amari(product: Any) -> float:
    """How far the filters times the mixing are from a scaled permutation, 0 to 1."""
    size, found = len(product), np.abs(np.asarray(product))
    across = (found / found.max(1, keepdims=True)).sum(1) - 1
    down = (found / found.max(0, keepdims=True)).sum(0) - 1
    return float((across.sum() + down.sum()) / (2 * size * (size - 1)))


def glass_states(options: Options, count: int) -> jax.Array:
    if options.data is not None:
        return jnp.asarray(read(options.data / "ising_t1.npz")[1][:count])
    glass_key, state_key = jax.random.split(KEY)
    matrix = exact.lattice.spin_glass(glass_key, SHAPE, variance=2.5)
    draw_states = partial(exact.lattice.sample, num_draws=count, periodic=True)
    return draw_states(state_key, matrix, SHAPE)


def lattice(options: Options) -> Table:
    """MPF of a spin glass by its edges: 100 biases and 200 couplings."""
    count, most = (4000, 200) if options.quick else (20_000, 500)
    x, edges = glass_states(options, count), exact.lattice.edges(SHAPE, periodic=True)
    start = ising.init(KEY, x.shape[1], edges=edges, scale=0.0)
    flow, scores = MPF(ising.energy), energy_scores(ising.energy)
    minimum = last_loss(fit(KEY, flow, start, x, chart=ising.centred(x)))
    stop = Below(minimum + 1e-4 * abs(minimum))
    descend = partial(fit, KEY, flow, start, x, steps_per_round=most)
    white = partial(
        fit_whitened, KEY, flow, start, x, scores, num_turns=1, steps_per_round=most
    )
    rates, steepest = LATTICE_RATES
    by = partial(descended, descend, stop, rates=rates[1:2] if options.quick else rates)
    ways = {
        "steepest": by(rates=steepest[1:2] if options.quick else steepest),
        "natural": by(natural_gradient(scores)),
        "natural, not centred": by(natural_gradient(scores, centred=False)),
        "L-BFGS": walked(descend, stop),
        "L-BFGS in phi": walked(white, stop),
        "L-BFGS, centred": walked(partial(descend, chart=ising.centred(x)), stop),
    }
    if not options.quick:
        kept, rate = natural_gradient(scores, every=10), float(ways["natural"].rate)
        ways |= {
            "natural, of 2,000 rows": by(natural_gradient(scores, num_rows=2000)),
            "natural, every 10 steps": by(kept, rates=(rate,)),
            "natural, diagonal": by(natural_gradient(scores, solve=Diagonal())),
            "natural, two blocks": by(natural_gradient(scores, solve=BlockDiagonal())),
        }
    rows = compared(ways, 3)
    times = time_together(3, metric=lambda: metric(scores, start, x))
    values = np.linalg.eigvalsh(metric(scores, start, x))
    return Table(
        f"MPF on a {SHAPE[0]} x {SHAPE[1]} torus, its {len(edges)} edges, {count:,} "
        "states",
        ("descent", "rate", "steps", "seconds", "of fastest", "gradient", "above"),
        [
            (
                *row,
                ways[row[0]].found.gradient_norm,
                last_loss(ways[row[0]].found) / minimum - 1,
            )
            for row in rows
        ],
        "From no couplings to within 1e-4 of the minimum, relative to it; above: where "
        "it ended. Two blocks: of biases and of couplings. The metric is of condition "
        f"{values[-1] / values[0]:.0f}, damped by 1e-2. Rates: best of {rates}, "
        f"for steepest descent of {steepest}, or with --quick the second. The energy "
        "is linear, so that the metric never changes: the compiler makes it once, but "
        "not if asked for every 10 steps, and one turn in phi is enough. It takes "
        f"{times['metric'].median:.2g} s.",
    )


def draw(paths: dict[str, np.ndarray], directions: dict[str, Callable]) -> None:
    """The thesis' figure: paths, divergences, and which way is down."""
    figure, axes = plots.load_pyplot().subplots(
        2, 2, figsize=(8, 7), layout="constrained"
    )
    for (name, path), (colour, line) in zip(paths.items(), STYLES, strict=True):
        if name != "steepest, rate .2":
            axes[0, 0].plot(*path.T, ".-", color=colour, markersize=4, linewidth=0.8)
        shown = divergence(path)[:NUM_SHOWN]
        axes[0, 1].semilogy(shown, line, color=colour, label=name)
    mark_path(axes[0, 0], paths["steepest, rate .1"])
    axes[0, 1].set_ylim(1e-9, 10)
    axes[0, 1].set_xlabel("steps")
    axes[0, 1].set_ylabel("KL divergence, nats")
    axes[0, 1].legend(frameon=False, loc="upper right")
    for ax, (symbol, descent) in zip(axes[1], directions.items(), strict=True):
        draw_arrows(ax, descent)
        name_axes(ax, symbol)
    titles = ("paths", "divergence", r"descent in $\theta$", r"descent in $\phi$")
    for letter, title, ax in zip("abcd", titles, axes.flat, strict=True):
        ax.set_title(f"({letter}) {title}", loc="left")
        ax.spines[["top", "right"]].set_visible(False)
    FIGURE.parent.mkdir(exist_ok=True)
    figure.savefig(FIGURE, dpi=150)


def mark_path(ax, steepest):
    ax.plot(*steepest[0], "ko", markersize=5)
    ax.plot(0, 0, "k*", markersize=10)
    ax.annotate("start", steepest[0], (-20, -16), textcoords="offset points")
    ax.annotate("truth", (0, 0), (10, -2), textcoords="offset points")
    ax.annotate("natural", (0.55, -0.5), color=BLUE)
    ax.annotate(f"steepest,\n{len(steepest) - 1:,} steps", (0.05, -0.9), color=ORANGE)
    name_axes(ax, r"\theta")


def draw_arrows(ax, descent):
    ticks = np.linspace(-1, 1, 9)
    grid = np.stack(np.meshgrid(ticks, ticks), -1).reshape(-1, 2)
    ax.quiver(*grid.T, *np.asarray(descent(grid)).T, color=BLUE, width=0.004)
    ax.plot(0, 0, "k*", markersize=10)
    ax.set_aspect("equal")
    ax.margins(0.1)


def name_axes(ax, symbol):
    ax.set_xlabel(f"${symbol}_1$")
    ax.set_ylabel(f"${symbol}_2$")
