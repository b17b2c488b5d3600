"""The plain call `fit(key, objective, start, x)` beside the best that is known.

Excess is the loss above its float64 minimum, in units of 1 / (2 rows). The plain call
runs to its own end. Its excess there, but at least `LEAST_EXCESS`, is what all programs
are then timed to reach: the plain call, the best explicit chart, plain coordinates, and
a NumPy program with SciPy's L-BFGS. The distance is that to the minimum in standard
errors in the worst direction, sqrt(rows g'V^-1 g), with g the gradient and V the
covariance of row gradients at the minimum.
"""

import warnings
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks import defaults_errors
from benchmarks.defaults_numpy import minimise
from benchmarks.defaults_tasks import KEY, Task, pairwise, tasks
from benchmarks.harness import Options, Table, Timing, time_together, timed
from benchmarks.ising_speed import shared_out
from benchmarks.mpf_cost import drawn_torus, read
from benchmarks.peer_packages import why_missing
from probjax import L1, fit, ising, recipe
from probjax.fitting import Fit, StoppingRule
from probjax.fitting.charts import Affine
from probjax.runs import Watch

LEAST_EXCESS = 0.01
FARTHEST, MOST_GAIN = 0.25, 0.02
MOST_EVALUATIONS, MOST_SECONDS, LEAST_FEWER = 1.1, 1.3, 3.0
MAX_STEPS, CHECK_EVERY = 2000, 10
# Numbers in the snapshots of one trace.
MAX_SNAPSHOT = 10**8
L1_STRENGTH = 2e-3
# Seconds of a first call above which times are medians of fewer turns.
SLOW = 60
PLAIN, CHARTED, UNCHARTED = "plain call", "best chart", "plain coordinates"
NUMPY, PEER = "NumPy, SciPy L-BFGS", "scikit-learn, regressions"
COLUMNS = (
    "task",
    "program",
    "steps",
    "evaluations",
    "seconds",
    "times NumPy",
    "steps, times best chart",
    "seconds, times best chart",
    "loss",
    "excess",
    "distance reported",
    "distance",
    "sqrt(excess)",
    "verdict",
)
NOTE = (
    "Excess: (loss - float64 minimum) x 2 rows. Rows after the first of a task are at "
    f"equal excess: that of the first, but at least {LEAST_EXCESS}. Seconds after "
    "compiling, medians of turns. Evaluations: steps, where a program does not count "
    "them. Distance: sqrt(rows g'V^-1 g), in float64; for the Potts model V is too "
    "large, so the verdict is on sqrt(excess), and rows are the sum of weights; for "
    "the RBM, which has several minima, it is on the loss that float64 descent from "
    "the same end still gains. scikit-learn minimises its own untied loss to a "
    "gradient of 1e-5. Targets: not slower than NumPy; evaluations within "
    f"{MOST_EVALUATIONS} and seconds within {MOST_SECONDS} times those of the best "
    f"chart; distance at most {FARTHEST}; gain of the RBM at most {MOST_GAIN} / rows."
)


@recipe
class AfterSteps(StoppingRule):
    """End a fit after a number of steps."""

    most: int

    def is_met(self, progress, data):
        return progress.step >= self.most


class Reached(NamedTuple):
    """The first point of a program at which the excess is as required."""

    steps: int
    evaluations: int
    point: np.ndarray


class Trace:
    """Points of a descent, which is stopped once its excess is at most `target`."""

    def __init__(self, excess: Callable[[np.ndarray], float], target: float):
        self.excess, self.target = excess, target
        self.found: list[Reached] = []

    def add(self, found: Reached) -> bool:
        """Record a point, and return whether the descent is over."""
        self.found.append(found)
        is_checked = len(self.found) % CHECK_EVERY == 0
        return is_checked and self.excess(found.point) <= self.target

    def first(self) -> Reached | None:
        """Return the first point that reaches the target, by bisection."""
        low, high = 0, len(self.found) - 1
        if high < 0 or self.excess(self.found[high].point) > self.target:
            return None
        while low < high:
            middle = (low + high) // 2
            if self.excess(self.found[middle].point) <= self.target:
                high = middle
            else:
                low = middle + 1
        return self.found[high]


def run(options: Options) -> Iterator[Table]:
    note = NOTE
    made = "" if options.data else " (no data were given: generated ones)"
    for task in tasks(options):
        title = f"Fits at equal excess loss: {task.name}{made}"
        yield Table(title, COLUMNS, task_rows(options, task), note)
        note = "Columns are those of the first table."
    yield sparse(options)
    yield from defaults_errors.run(options)


def task_rows(options: Options, task: Task) -> list[tuple]:
    """Rows of a task: the plain call to its end, and all programs at equal excess."""
    ended, seconds = timed(descend, task)
    end = task.vector(ended.params)
    minimum = task.minimum(end)
    least = task.reference(minimum)[0]

    def excess(point):
        return 2 * task.num_rows * (task.reference(point)[0] - least)

    target = max(excess(end), LEAST_EXCESS)
    found = traced(task, excess, target)
    calls = {
        name: partial(replay, task, name, place.steps)
        for name, place in found.items()
        if place is not None
    }
    turns = 3 if options.quick else 5 if seconds < SLOW else 2
    times = time_together(turns, own_end=partial(descend, task), **calls)
    first = end_row(task, ended, end, excess(end), minimum, times["own_end"])
    rest = [equal_row(task, name, found, times, excess, target) for name in (*found,)]
    return [first, *rest, *peer_rows(task, times)]


def descend(task: Task, **settings: Any) -> Fit:
    """Return a fit of the task, without warnings about where it ends."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        start, penalty = task.start, task.penalty
        found = fit(KEY, task.objective, start, task.data, penalty=penalty, **settings)
        return jax.block_until_ready(found)


def coordinates(task: Task, name: str) -> dict[str, Any]:
    """Return the setting of `fit` that selects a program's coordinates."""
    charts = {PLAIN: {}, CHARTED: {"chart": task.best_chart}}
    return charts.get(name, {"chart": Affine()})


def traced(
    task: Task, excess: Callable[[np.ndarray], float], target: float
) -> dict[str, Reached | None]:
    """Return, by program, the first point that reaches the target."""
    found = {}
    for name in (PLAIN, CHARTED, UNCHARTED):
        trace = Trace(excess, target)
        size = len(task.vector(task.start))
        every = max(1, MAX_STEPS * size // MAX_SNAPSHOT)

        def record(progress, trace=trace):
            steps = int(progress.step)
            return trace.add(Reached(steps, steps, task.vector(progress.params)))

        watch, stop = Watch(record, every=every), AfterSteps(MAX_STEPS)
        descend(task, stop=stop, watch=watch, **coordinates(task, name))
        found[name] = trace.first()
    trace, calls = Trace(excess, target), [0]

    def counted(vector):
        calls[0] += 1
        return task.program(vector)

    def watched(point):
        place = Reached(len(trace.found) + 1, calls[0], point.copy())
        if trace.add(place):
            raise StopIteration

    start = task.vector(task.start)
    minimise(counted, start, num_steps=MAX_STEPS, callback=watched)
    found[NUMPY] = trace.first()
    return found


def replay(task: Task, name: str, steps: int) -> Any:
    """Run a program for a number of steps."""
    if name == NUMPY:
        start = task.vector(task.start)
        return minimise(task.program, start, num_steps=steps).x
    return descend(task, stop=AfterSteps(steps), **coordinates(task, name)).params


def end_row(
    task: Task,
    ended: Fit,
    end: np.ndarray,
    excess: float,
    minimum: np.ndarray,
    timing: Timing,
) -> tuple:
    """The row of the plain call at its own end, with the verdict on its distance."""
    value, gradient = task.reference(end)
    root, distance = float(np.sqrt(max(excess, 0))), ""
    if task.variance is not None:
        distance = standard_errors(gradient, task.variance(minimum), task.num_rows)
        verdict = judged(distance <= FARTHEST, f"distance at most {FARTHEST}")
    elif task.name.startswith("RBM"):
        gain = MOST_GAIN / task.num_rows
        verdict = judged(excess <= 2 * MOST_GAIN, f"gains at most {gain:.1g}")
    else:
        verdict = judged(root <= FARTHEST, f"sqrt(excess) at most {FARTHEST}")
    steps = len(ended.losses)
    known = ended._asdict()
    counted = int(known.get("evaluations", steps))
    reported = float(known["distance"]) if "distance" in known else "not reported"
    ratios = ("", "", "")
    return (
        task.name,
        f"{PLAIN}, to its end",
        steps,
        counted,
        timing.median,
        *ratios,
        value,
        excess,
        reported,
        distance,
        root,
        verdict,
    )


def standard_errors(
    gradient: np.ndarray, variance: np.ndarray, num_rows: float
) -> float:
    """Return sqrt(rows g'V^-1 g)."""
    from scipy.linalg import solve

    # The distance does not depend on scales, and rounding does.
    scale = np.sqrt(np.diag(variance))
    scaled = gradient / scale
    correlation = variance / np.outer(scale, scale)
    return float(
        np.sqrt(num_rows * scaled @ solve(correlation, scaled, assume_a="pos"))
    )


def equal_row(
    task: Task,
    name: str,
    found: dict[str, Reached | None],
    times: dict[str, Timing],
    excess: Callable[[np.ndarray], float],
    target: float,
) -> tuple:
    """The row of a program at equal excess; verdicts are on the plain call."""
    place = found[name]
    if place is None:
        blanks = ("",) * (len(COLUMNS) - 3)
        return (task.name, name, *blanks, f"does not reach an excess of {target:.2g}")
    by_numpy, by_chart, steps = "", "", ""
    if NUMPY in times:
        by_numpy = ratio(times, name, NUMPY)
    if (charted := found[CHARTED]) is not None:
        by_chart = ratio(times, name, CHARTED)
        steps = place.evaluations / charted.evaluations
    value = task.reference(place.point)[0]
    away = excess(place.point)
    return (
        task.name,
        name,
        place.steps,
        place.evaluations,
        times[name].median,
        by_numpy,
        steps,
        by_chart,
        value,
        away,
        "",
        "",
        float(np.sqrt(max(away, 0))),
        verdicts(by_numpy, steps, by_chart) if name == PLAIN else "",
    )


def ratio(times: dict[str, Timing], name: str, other: str) -> float:
    """Return the median over turns of how many times longer a program took."""
    return float(np.median(times[name].seconds / times[other].seconds))


def verdicts(by_numpy: float | str, steps: float | str, by_chart: float | str) -> str:
    """Return the verdicts on the plain call; ratios to absent programs are empty."""
    limits = {
        "time of NumPy": (by_numpy, 1.0),
        "evaluations": (steps, MOST_EVALUATIONS),
        "seconds": (by_chart, MOST_SECONDS),
    }
    said = [
        judged(value <= most, f"{name} x {most}")
        for name, (value, most) in limits.items()
        if not isinstance(value, str)
    ]
    return ", ".join(said)


def judged(holds: bool, claim: str) -> str:
    """Return a claim, marked if it does not hold."""
    return claim if holds else f"NOT {claim}"


def peer_rows(task: Task, times: dict[str, Timing]) -> list[tuple]:
    """The row of scikit-learn, where it fits the same model."""
    if task.regressed is None:
        return []
    blanks = ("",) * 6
    if missing := why_missing("scikit-learn"):
        return [(task.name, PEER, *("",) * 11, missing)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        found, seconds = timed(shared_out, task.regressed)
    by_numpy = seconds / times[NUMPY].median if NUMPY in times else ""
    by_chart = seconds / times[CHARTED].median if CHARTED in times else ""
    steps = found.steps
    return [(task.name, PEER, steps, steps, seconds, by_numpy, "", by_chart, *blanks)]


def sparse(options: Options) -> Table:
    """L1 on T1-demo, in default and in plain coordinates."""
    if options.data is None or options.quick:
        shape, count = ((4, 4), 1000) if options.quick else ((10, 10), 5000)
        name, (_, x) = "generated", drawn_torus(shape, 1.125, count)
    else:
        name, (_, x) = "T1-demo", read(options.data / "ising_t1_demo.npz")
    task = pairwise(name, "MPF", x, strength=0.0)
    weights = ising.couplings_only(task.start)
    task = task._replace(penalty=L1(L1_STRENGTH, weights=weights))
    rows, refused = [], ""
    for label, settings in ((PLAIN, {}), (UNCHARTED, {"chart": Affine()})):
        try:
            descend(task, **settings)
        except ValueError as error:
            refused = f" {UNCHARTED}: {error}."
            continue
        found, seconds = timed(partial(descend, task, **settings))
        zeros = int(np.sum(np.asarray(found.params.coupling) == 0))
        steps = len(found.losses)
        rows.append((label, steps, seconds, float(found.loss), zeros))
    verdict = "no comparison"
    if len(rows) == 2:
        fewer = rows[1][1] / rows[0][1]
        verdict = judged(fewer >= LEAST_FEWER, f"{LEAST_FEWER} times fewer steps")
        verdict += f" ({fewer:.2g})"
    rows = [(*row, verdict if row[0] == PLAIN else "") for row in rows]
    columns = ("program", "steps", "seconds", "loss", "zeros", "verdict")
    note = f"Each to its own end. Target: {LEAST_FEWER} times fewer steps.{refused}"
    return Table(f"L1 of {L1_STRENGTH} on couplings, MPF, {name}", columns, rows, note)
