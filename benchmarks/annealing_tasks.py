"""Tasks of annealing where the answer is known, of 36 sites and as many filters.

    laplace      Laplace experts
    student      Student's t experts, first moments infinite for some of them
    hard         the same, of condition about 100
    generative   x = B a + s n, a and n normal: log p(x), row by row

They are made here, with filters of geometric mean 1, or read from a file with the
answers beside them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from probjax.annealing import Pilot, ais, marginal_log_likelihood, sandwich
from probjax.bases import Gaussian
from probjax.interfaces import Sampler
from probjax.models import experts, linear
from probjax.types import Array, Energy, PRNGKeyArray

FILE = "annealing_tasks.npz"
SIZE, NUM_PARTICLES = 36, 200
BASE = Gaussian(SIZE)
NUM_PLAUSIBLE = 1000


class Outcome(NamedTuple):
    """What one run came to."""

    error: np.ndarray
    """Estimate less truth, of every row."""
    stderr: float
    """Of a row, as the run has it."""
    ess: float
    """Effective particles, of a row."""


class Runs(NamedTuple):
    """The outcomes of one program at one N, a key each."""

    error: np.ndarray
    """`(key, row)`"""
    stderr: np.ndarray
    """`(key,)`"""
    ess: np.ndarray
    """`(key,)`"""

    @property
    def rms(self) -> float:
        """The root-mean-square error."""
        return float(np.sqrt(np.mean(self.error**2)))

    @property
    def rms_stderr(self) -> float:
        """Its standard error."""
        squares = np.mean(self.error**2, 1)
        return float(np.std(squares, ddof=1) / np.sqrt(len(squares)) / (2 * self.rms))

    def plausible(self, rng: np.random.Generator) -> np.ndarray:
        """What it may be in truth: draws, for normal errors and flat priors."""
        count, rows = self.error.shape
        freedom = rng.chisquare(count - 1, (NUM_PLAUSIBLE, rows))
        variance = (count - 1) * np.var(self.error, 0, ddof=1) / freedom
        noise = rng.normal(size=variance.shape) * np.sqrt(variance / count)
        return np.sqrt(np.mean((self.error.mean(0) + noise) ** 2 + variance, 1))


def repeat(outcome: Callable[[PRNGKeyArray], Outcome], num_keys: int) -> Runs:
    every = [outcome(key) for key in jax.random.split(jax.random.key(1), num_keys)]
    return Runs(*map(np.array, zip(*every, strict=True)))


class Interval(NamedTuple):
    """From both sides, less the truth."""

    lower: float
    upper: float
    ess: float
    """Of the particles that went back."""


class Experts(NamedTuple):
    """As many experts as sites, their log Z, and how to draw from them."""

    energy: Energy
    params: experts.Params
    truth: float
    draw: Callable[..., Array]

    def run(
        self,
        key: PRNGKeyArray,
        sampler: Sampler,
        pilot: Pilot | None,
        num_steps: int,
    ) -> Outcome:
        found = ais(
            key,
            self.energy,
            self.params,
            BASE,
            sampler=sampler,
            num_particles=NUM_PARTICLES,
            num_steps=num_steps,
            pilot=pilot,
        )
        error = np.array([float(found.log_z) - self.truth])
        return Outcome(error, float(found.stderr), float(found.ess))

    def interval(self, key: PRNGKeyArray, sampler: Sampler, num_steps: int) -> Interval:
        draw_key, run_key = jax.random.split(key)
        found = sandwich(
            run_key,
            self.energy,
            self.params,
            BASE,
            self.draw(draw_key, self.params, num_draws=NUM_PARTICLES),
            sampler=sampler,
            num_steps=num_steps,
        )
        ends = (float(found.lower) - self.truth, float(found.upper) - self.truth)
        return Interval(*ends, float(found.reverse.ess))


class Generative(NamedTuple):
    """A linear model with a normal prior, rows of it, and their log p(x)."""

    params: linear.Params
    rows: Array
    truth: np.ndarray

    def run(
        self,
        key: PRNGKeyArray,
        sampler: Sampler,
        pilot: Pilot | None,
        num_steps: int,
    ) -> Outcome:
        found = marginal_log_likelihood(
            key,
            linear.gaussian,
            self.params,
            BASE,
            self.rows,
            sampler=sampler,
            num_particles=NUM_PARTICLES,
            num_steps=num_steps,
            pilot=pilot,
        )
        error = np.asarray(found.per_row) - self.truth
        stderr = float(found.stderr) * np.sqrt(len(error))
        return Outcome(error, stderr, float(np.mean(found.ess)))


Task = Experts | Generative


def tasks(num_rows: int, folder: Path | None) -> dict[str, Task]:
    """By name: those of a folder, if there is one."""
    return made(num_rows) if folder is None else read(folder / FILE, num_rows)


def made(num_rows: int) -> dict[str, Task]:
    """Condition 3, and first moments infinite for 6 experts; 100, and for 4."""
    params = linear.Params(filters(2, 3), jnp.asarray(0.1))
    rows, _ = linear.sample_gaussian(jax.random.key(0), params, num_draws=num_rows)
    truth = jax.vmap(linear.gaussian_log_likelihood, (None, 0))(params, rows)
    laplace = experts.Params(filters(0, 3), jnp.ones(SIZE))
    student = experts.Params(filters(1, 3), strengths(1, 6))
    hard = experts.Params(filters(3, 100), strengths(3, 4))
    return {
        "generative": Generative(params, rows, np.asarray(truth)),
        "laplace": of_laplace(laplace, float(experts.laplace_log_z(laplace))),
        "student": of_student(student, float(experts.student_t_log_z(student))),
        "hard": of_student(hard, float(experts.student_t_log_z(hard))),
    }


def read(path: Path, num_rows: int) -> dict[str, Task]:
    """Those of a file, with its answers: the first rows of `generative`."""
    with np.load(path) as file:
        laplace = experts.Params(jnp.asarray(file["Phi_laplace"]), jnp.ones(SIZE))
        student, hard = (
            experts.Params(jnp.asarray(file[f"Phi_{n}"]), jnp.asarray(file[f"lam_{n}"]))
            for n in ("student", "hard")
        )
        params = linear.Params(jnp.asarray(file["Phi_gen"]), jnp.asarray(file["sigma"]))
        rows = jnp.asarray(file["X_gen"][:num_rows])
        return {
            "generative": Generative(params, rows, file["logL_gen"][:num_rows]),
            "laplace": of_laplace(laplace, float(file["logZ_laplace"])),
            "student": of_student(student, float(file["logZ_student"])),
            "hard": of_student(hard, float(file["logZ_hard"])),
        }


def of_laplace(params: experts.Params, log_z: float) -> Experts:
    return Experts(experts.laplace, params, log_z, experts.sample_laplace)


def of_student(params: experts.Params, log_z: float) -> Experts:
    return Experts(experts.student_t, params, log_z, experts.sample_student_t)


def filters(seed: int, condition: float) -> Array:
    """Singular values spaced evenly in their logarithms, between random rotations."""
    rng = np.random.default_rng(seed)
    left, right = (np.linalg.qr(rng.normal(size=(SIZE, SIZE)))[0] for _ in range(2))
    values = np.exp(np.linspace(-0.5, 0.5, SIZE) * np.log(condition))
    return jnp.asarray(left * values @ right)


def strengths(seed: int, num_heavy: int) -> Array:
    """From .8 to 1 for experts without a mean, from 1.2 to 3 for the others."""
    rng = np.random.default_rng(seed)
    heavy = rng.uniform(0.8, 1, num_heavy)
    return jnp.asarray(np.concatenate([heavy, rng.uniform(1.2, 3, SIZE - num_heavy)]))
