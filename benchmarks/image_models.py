"""How likely natural image patches are under six models, and under larger ones.

16 x 16 patches of log intensities, their 36 largest principal components, white:
10,000 to learn from and 100 of other images to judge by. Analysis models have one
partition function each, by Hamiltonian annealed importance sampling; generative ones
are integrated over their latents, patch by patch.

Patches differ much more from each other than models do: the standard error over patches
is that of a mean over all such patches, and the differences between models on the same
patches are known much better.

With --data DIR the images are those of natural_images.npz; without, scikit-learn's two
photographs, of which one can learn how it works and not which model is better.

Reference: thesis, "Hamiltonian Annealed Importance Sampling", "Models", "Training" and
"Results": its table of log-likelihoods, and its figures of basis functions and of
likelihood against model size.
"""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from benchmarks import image_fits
from benchmarks.harness import Options, Table, timed
from benchmarks.image_fits import Learned, Patches
from probjax import (
    HMC,
    Gaussian,
    ais,
    bilinear,
    experts,
    linear,
    log_likelihood,
    marginal_log_likelihood,
    mcrbm,
    plots,
    sandwich,
)
from probjax.annealing import Estimate, compare
from probjax.data import preprocessing
from probjax.samplers import Momentum

FIELDS, SIZES = Path("out/image_fields.png"), Path("out/image_sizes.png")
NUM_PARTICLES, NUM_EXPERTS, NUM_UNITS = 200, 144, 432
BILINEAR = (72, 72, 26)
GAUSSIAN, SPARSE = "linear, Gaussian prior", "linear, Laplace prior"
LAPLACE, STUDENT = "Laplace experts", "Student's t experts"
MACHINE, BILINEAR_NAME = "mcRBM", "bilinear"
PUBLISHED = {
    GAUSSIAN: "-49.15 +- 2.31",
    SPARSE: "-42.85 +- 2.41",
    LAPLACE: "-41.54 +- 2.46",
    MACHINE: "-36.01 +- 2.57",
    STUDENT: "-34.01 +- 2.68",
    BILINEAR_NAME: "-32.69 +- 2.56",
}
SHOWN = 16


class Effort(NamedTuple):
    """How much is spent."""

    num_rounds: int
    """Of learning analysis models."""
    share: float
    """Of the rounds of EM that are planned for the bilinear model."""
    analysis_steps: int
    """Distributions of annealing, for one log Z."""
    generative_steps: int
    """And for each patch."""
    generative_particles: int
    """Of each patch."""


class Judged(NamedTuple):
    """A model, and what test patches are worth to it."""

    size: int
    learned: Learned
    estimate: Estimate
    """By particles from the base."""
    interval: str
    """From both sides, where there are two."""
    seconds: float
    """That the estimate took, compiling included."""


def run(options: Options) -> Iterator[Table]:
    plots.load_pyplot()
    effort = Effort(60, 1.0, 100_000, 10_000, NUM_PARTICLES)
    if options.quick:
        effort = Effort(20, 0.5, 2_000, 4_000, 50)
    data = image_fits.load(
        options, size=16, num_components=36, num_patches=10_000, num_test=100
    )
    judged = dict(six_models(data, effort))
    yield likelihoods(judged, effort)
    yield differences(judged)
    draw_fields(data, judged)
    if not options.quick:
        yield other_ways(data, effort, judged)
        found = by_size(data, effort)
        yield sizes(found)
        draw_sizes(found)


def six_models(data: Patches, effort: Effort) -> Iterator[tuple[str, Judged]]:
    x, rounds = data.train, effort.num_rounds
    for name, joint in ((GAUSSIAN, linear.gaussian), (SPARSE, linear.laplace)):
        learned = image_fits.linear_model(x, joint)
        prior = image_fits.PRIORS[joint](learned.params)
        yield name, generative(joint, learned, prior, None, data, effort)
    learned = image_fits.laplace_experts(x, NUM_EXPERTS, rounds)
    yield LAPLACE, analysis(experts.laplace, NUM_EXPERTS, learned, data, effort)
    learned = image_fits.covariance_machine(x, NUM_UNITS, rounds)
    energy = mcrbm.energy_by_mean_square
    yield MACHINE, analysis(energy, NUM_UNITS, learned, data, effort)
    learned = image_fits.student_t_experts(x, NUM_EXPERTS, rounds)
    yield STUDENT, analysis(experts.student_t, NUM_EXPERTS, learned, data, effort)
    learned = image_fits.bilinear_model(x, BILINEAR, effort.share)
    params = learned.params
    prior, bounds = bilinear.prior(params), bilinear.bounds(params)
    yield (
        BILINEAR_NAME,
        generative(bilinear.joint, learned, prior, bounds, data, effort),
    )


def analysis(
    energy: Callable, size: int, learned: Learned, data: Patches, effort: Effort
) -> Judged:
    key, both_key = jax.random.split(jax.random.key(3))
    base, params = Gaussian(data.train.shape[1]), learned.params
    count = effort.analysis_steps
    annealed, seconds = timed(
        lambda: ais(
            key,
            energy,
            params,
            base,
            sampler=HMC(0.2),
            num_particles=NUM_PARTICLES,
            num_steps=count,
        )
    )
    estimate = log_likelihood(energy, params, data.test, annealed)
    interval = ""
    if learned.particles is not None:
        # Back from the particles that the model was learned with: about its draws.
        both = sandwich(
            both_key,
            energy,
            params,
            base,
            learned.particles[:NUM_PARTICLES],
            sampler=HMC(0.2),
            num_steps=max(count // 10, 1000),
        )
        bounds = log_likelihood(energy, params, data.test, both)
        interval = f"{float(bounds.lower):.2f} to {float(bounds.upper):.2f}"
    return Judged(size, learned, estimate, interval, seconds)


def generative(
    joint: Callable,
    learned: Learned,
    prior: Any,
    bounds: Any,
    data: Patches,
    effort: Effort,
) -> Judged:
    estimate, seconds = timed(
        lambda: marginal_log_likelihood(
            jax.random.key(3),
            joint,
            learned.params,
            prior,
            data.test,
            sampler=HMC(0.1, bounds=bounds, momentum=Momentum(every=5)),
            num_particles=effort.generative_particles,
            num_steps=effort.generative_steps,
        )
    )
    interval = f"{float(estimate.lower):.2f} at least"
    if joint is linear.gaussian:
        exactly = jax.vmap(linear.gaussian_log_likelihood, (None, 0))
        interval = f"{float(exactly(learned.params, data.test).mean()):.2f} exactly"
    latents = jax.eval_shape(prior.sample, jax.random.key(0))
    size = sum(leaf.size for leaf in jax.tree.leaves(latents))
    return Judged(size, learned, estimate, interval, seconds)


def likelihoods(judged: dict[str, Judged], effort: Effort) -> Table:
    rows = []
    for name, (size, learned, estimate, interval, seconds) in judged.items():
        over = float(np.std(estimate.per_row, ddof=1) / np.sqrt(len(estimate.per_row)))
        rows.append(
            (
                name,
                size,
                f"{float(estimate.value):.2f} +- {over:.2f}",
                f"{float(estimate.stderr):.3f}",
                float(np.median(estimate.ess)),
                interval,
                PUBLISHED[name],
                learned.seconds,
                seconds,
            )
        )
    return Table(
        "100 test patches, 36 components: mean log-likelihood in nats",
        (
            "model",
            "size",
            "nats",
            "by particles",
            "effective",
            "both sides",
            "thesis",
            "s to learn",
            "s to judge",
        ),
        rows,
        "+-: standard error over patches; by particles: of the mean of these very "
        f"patches. {NUM_PARTICLES} particles and {effort.analysis_steps:,} "
        f"distributions for experts and the mcRBM, {effort.generative_particles} and "
        f"{effort.generative_steps:,} for each patch under generative models. "
        "Effective: particles, a median over patches. Both sides: an interval from "
        "particles that go both ways, with a tenth of the distributions. The thesis' "
        "images were others: compare the order, and the steps from one to the next.",
    )


def differences(judged: dict[str, Judged]) -> Table:
    rows = []
    names = list(judged)
    for first, second in zip(names, names[1:], strict=False):
        gain = compare(judged[second].estimate, judged[first].estimate)
        rows.append((first, second, gain.value, gain.stderr))
    return Table(
        "What the next model has more, in nats, on the same patches",
        ("model", "next", "more", "+-"),
        rows,
        "In the order of the thesis. +-: as `compare` has it, over patches and "
        "particles together.",
    )


def other_ways(data: Patches, effort: Effort, judged: dict[str, Judged]) -> Table:
    """Trajectories in place of particles, and the mcRBM as printed."""
    x, rounds = data.train, effort.num_rounds
    short = effort._replace(analysis_steps=effort.analysis_steps // 10)
    laplace = experts.init(jax.random.key(1), x.shape[1], NUM_EXPERTS)
    student = image_fits.student_t_start(x, NUM_EXPERTS)
    learn = image_fits.by_trajectories
    ways = {
        f"{LAPLACE}, trajectories": (
            experts.laplace,
            learn(
                experts.laplace, laplace, experts.laplace_chart(laplace), x, 3 * rounds
            ),
        ),
        f"{STUDENT}, trajectories": (
            experts.student_t,
            learn(
                experts.student_t,
                student,
                experts.student_t_chart(student),
                x,
                3 * rounds,
            ),
        ),
        f"{MACHINE}, as printed": (
            mcrbm.energy,
            image_fits.printed_machine(x, NUM_UNITS, rounds),
        ),
    }
    rows = []
    for name, (energy, learned) in ways.items():
        found = analysis(energy, 0, learned, data, short)
        usual = judged[name.split(",")[0]].estimate.value
        value = found.estimate.value
        rows.append((name, value, found.estimate.stderr, value - usual, found.interval))
    return Table(
        "Learned in other ways",
        ("model", "nats", "+-", "more than above", "both sides"),
        rows,
        "Trajectories: flow to the ends of Hamiltonian trajectories from the patches, "
        "as the thesis learned, in place of particles; three times as many rounds of a "
        "third of the steps. As printed: covariance units see squares of filters over "
        "|x|^2 + 1/2, in place of the mean square of x.",
    )


def by_size(
    data: Patches, effort: Effort
) -> dict[str, list[tuple[int, Estimate, float]]]:
    """Of each analysis model, by its size: test and training likelihood."""
    learners = {
        LAPLACE: (experts.laplace, image_fits.laplace_experts, (36, 72, 144, 288)),
        STUDENT: (
            experts.student_t,
            image_fits.student_t_experts,
            (36, 72, 144, 288, 576),
        ),
        MACHINE: (
            mcrbm.energy_by_mean_square,
            image_fits.covariance_machine,
            (54, 108, 216, 432),
        ),
    }
    short = effort._replace(analysis_steps=effort.analysis_steps // 10)
    found = {}
    for name, (energy, learn, counts) in learners.items():
        found[name] = []
        for count in counts:
            learned = learn(data.train, count, effort.num_rounds)
            alone = learned._replace(particles=None)
            test = analysis(energy, count, alone, data, short).estimate
            energies = jax.vmap(partial(energy, learned.params))
            more = energies(data.test).mean() - energies(data.train).mean()
            found[name].append((count, test, float(test.value + more)))
    return found


def sizes(found: dict[str, list[tuple[int, Estimate, float]]]) -> Table:
    return Table(
        "Mean log-likelihood in nats by the size of a model",
        ("model", "size", "test", "+-", "training", "apart"),
        [
            (name, count, test.value, test.stderr, train, train - float(test.value))
            for name, rows in found.items()
            for count, test, train in rows
        ],
        "Test: of the same 100 patches, +- by particles alone. Apart: what training "
        "patches have more; as the test patches have a mean of their own, it is its "
        "growth with size that tells of overfitting.",
    )


def draw_sizes(found: dict[str, list[tuple[int, Estimate, float]]]) -> None:
    _, ax = plots.load_pyplot().subplots(figsize=(6, 4), layout="constrained")
    colours = {LAPLACE: plots.GREY, STUDENT: plots.BLUE, MACHINE: plots.ORANGE}
    for name, rows in found.items():
        counts, tests, trains = zip(*rows, strict=True)
        values = [float(test.value) for test in tests]
        errors = [float(test.stderr) for test in tests]
        ax.errorbar(counts, values, errors, color=colours[name], label=name, marker="o")
        ax.plot(counts, trains, ":", color=colours[name], label=f"{name}, training")
    ax.set_xscale("log", base=2)
    ticks = sorted({row[0] for rows in found.values() for row in rows})
    ax.set_xticks(ticks, [str(count) for count in ticks], minor=False)
    ax.set_xlabel("experts, or hidden units")
    ax.set_ylabel("nats per patch")
    ax.spines[["top", "right"]].set_visible(False)
    ax.legend(frameon=False, fontsize="small")
    SIZES.parent.mkdir(exist_ok=True)
    ax.figure.savefig(SIZES, dpi=150)


def draw_fields(data: Patches, judged: dict[str, Judged]) -> None:
    """The nine rows of the thesis' figure."""
    params = {name: one.learned.params for name, one in judged.items()}
    white = data.whitening

    def bases(basis):
        return preprocessing.pixel_bases(white, basis).T

    def filters(rows):
        return preprocessing.pixel_filters(white, rows)

    two, machine = bilinear.canonical(params[BILINEAR_NAME]), params[MACHINE]
    machine = mcrbm.canonical(machine)
    pooled = np.abs(machine.pooling)
    widest = int(np.argmax(pooled.sum(0) ** 2 / (pooled**2).sum(0)))
    panels = {
        f"{GAUSSIAN}: bases": bases(params[GAUSSIAN].basis),
        f"{SPARSE}: bases": bases(params[SPARSE].basis),
        f"{LAPLACE}: filters": filters(params[LAPLACE].filters),
        f"{STUDENT}: filters": filters(params[STUDENT].filters),
        "bilinear: bases": bases(two.basis),
        "bilinear: what one positive latent modulates": (
            bases(two.basis),
            two.modulation[:, :1],
        ),
        "mcRBM: filters C": filters(machine.filters),
        "mcRBM: filters of mean units W": filters(machine.mean_filters),
        "mcRBM: what the covariance unit pools that pools most": (
            filters(machine.filters),
            machine.pooling[:, [widest]],
        ),
    }
    figure, axes = plots.load_pyplot().subplots(
        len(panels), figsize=(9, 0.8 * len(panels)), layout="constrained"
    )
    for ax, (name, shown) in zip(axes, panels.items(), strict=True):
        if isinstance(shown, tuple):
            plots.groupings(*shown, num_columns=SHOWN, ax=ax)
        else:
            plots.receptive_fields(shown[:SHOWN], num_columns=SHOWN, ax=ax)
        ax.set_title(name, fontsize="small")
    FIELDS.parent.mkdir(exist_ok=True)
    figure.savefig(FIELDS, dpi=150)
