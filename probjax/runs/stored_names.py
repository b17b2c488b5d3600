"""Names of classes in saved files, independent of the source tree.

Every record and recipe of the library that can occur in a saved tree has a registered
name. After a class has moved, edit its entry in `NAMES`; a registered name itself never
changes. Classes that hold functions cannot be saved and have no name.

Files of version 0.1.0 refer to classes by module instead, see
`probjax.runs.names_of_0_1_0`.
"""

import dataclasses
import importlib
from typing import Any

NAMES: dict[str, str] = {
    "AllFlips": "probjax.connectivity.flips:AllFlips",
    "Annealed": "probjax.annealing.estimate:Annealed",
    "annealing.Geometric": "probjax.annealing.paths:Geometric",
    "annealing.Particles": "probjax.annealing.particles:Particles",
    "annealing.Pilot": "probjax.annealing.pilot:Pilot",
    "annealing.Plan": "probjax.annealing.schedule:Schedule",
    "annealing.Straight": "probjax.annealing.paths:Straight",
    "AnyOf": "probjax.fitting.stopping:AnyOf",
    "Bernoulli": "probjax.bases.discrete:Bernoulli",
    "bilinear.Latents": "probjax.models.bilinear:Latents",
    "bilinear.Params": "probjax.models.bilinear:Params",
    "BitFlips": "probjax.connectivity.flips:BitFlips",
    "blackjax.State": "probjax.apps.interop:BlackjaxState",
    "BlockChanges": "probjax.connectivity.blocks:BlockChanges",
    "blocks.Moments": "probjax.data.blocks:ColumnMoments",
    "blocks.PackedBits": "probjax.data.blocks:PackedBits",
    "Bracket": "probjax.annealing.bounds:Bracket",
    "Categorical": "probjax.bases.discrete:Categorical",
    "charts.Affine": "probjax.fitting.charts:Affine",
    "charts.Composed": "probjax.fitting.charts:Composed",
    "charts.Frozen": "probjax.fitting.charts:Frozen",
    "charts.Positive": "probjax.fitting.charts:Positive",
    "checkpoint.FirstHeader": "probjax.runs.checkpoint_files:FirstHeader",
    "cluster.State": "probjax.models.ising.clusters:ClusterState",
    "ColourGibbs": "probjax.samplers.gibbs:ColourGibbs",
    "Comparison": "probjax.diagnostics.goodness:Comparison",
    "Conditioned": "probjax.types:Conditioned",
    "Context": "probjax.types:Context",
    "corruption.FixedFlips": "probjax.data.corruption:FixedFlips",
    "corruption.GreyLevels": "probjax.data.corruption:GreyLevels",
    "corruption.IndependentFlips": "probjax.data.corruption:IndependentFlips",
    "Couplings": "probjax.apps.couplings:Couplings",
    "Data": "probjax.types:Data",
    "datasets.Digits": "probjax.data.datasets:Digits",
    "datasets.NaturalImages": "probjax.data.datasets:NaturalImages",
    "dbn.Generated": "probjax.models.dbn:Generated",
    "demo.Outcome": "probjax.apps.demo:Outcome",
    "descent.OptaxState": "probjax.fitting.optimisers:OptaxState",
    "Divergence": "probjax.annealing.entropies:Divergence",
    "Draws": "probjax.samplers.draws:Draws",
    "Edges": "probjax.models.pairs:Edges",
    "em.Context": "probjax.objectives.em:LatentSampling",
    "Entropy": "probjax.diagnostics.entropy:Entropy",
    "Estimate": "probjax.annealing.likelihood:Estimate",
    "exact.Moments": "probjax.exact.enumeration:Moments",
    "exact.Spectrum": "probjax.exact.dynamics:Spectrum",
    "experts.Params": "probjax.models.experts:Params",
    "Exponential": "probjax.bases.continuous:Exponential",
    "families.Normaliser": "probjax.apps.fitted_models:Normaliser",
    "families.Space": "probjax.apps.families:StateSpace",
    "FarModes": "probjax.fitting.check_modes:FarModes",
    "Fit": "probjax.fitting.result:Fit",
    "fit.Progress": "probjax.fitting.stopping:Progress",
    "FitCheck": "probjax.fitting.check:FitCheck",
    "Gaps": "probjax.types:Gaps",
    "gaps.Context": "probjax.objectives.gaps:GapContext",
    "gaps.ObservedRows": "probjax.objectives.exclude_data:ObservedRows",
    "Gaussian": "probjax.bases.continuous:Gaussian",
    "gaussian_rbm.BlockGibbs": "probjax.models.gaussian_rbm:GaussianBlockGibbs",
    "gaussian_rbm.Centred": "probjax.models.gaussian_rbm:CentredGaussianRBM",
    "gaussian_rbm.Params": "probjax.models.gaussian_rbm:Params",
    "gaussian_rbm.State": "probjax.models.gaussian_rbm:GaussianBlockState",
    "gibbs.State": "probjax.samplers.gibbs:GibbsState",
    "GradientNorm": "probjax.fitting.stopping:GradientNorm",
    "GroupL1": "probjax.objectives.penalty:GroupL1",
    "Hamiltonian": "probjax.connectivity.trajectories:Hamiltonian",
    "Hamiltonian.Ends": "probjax.connectivity.trajectories:TrajectoryEnd",
    "hmc.Bounds": "probjax.leapfrog:Bounds",
    "hmc.Jitter": "probjax.samplers.hmc:Jitter",
    "hmc.Momentum": "probjax.samplers.momentum:Momentum",
    "hmc.Phase": "probjax.leapfrog:Phase",
    "hmc.State": "probjax.samplers.hmc:HMCState",
    "hopfield.AllStored": "probjax.models.hopfield.rules:AllStored",
    "hopfield.Capacity": "probjax.models.hopfield.memory:Capacity",
    "hopfield.Centred": "probjax.models.hopfield.network:CentredHopfield",
    "hopfield.Learned": "probjax.models.hopfield.rules:Learned",
    "hopfield.Params": "probjax.models.hopfield.network:Params",
    "hopfield.Recall": "probjax.models.hopfield.network:Recall",
    "hopfield.Recovery": "probjax.models.hopfield.memory:Recovery",
    "ica.Params": "probjax.models.ica:Params",
    "Info": "probjax.types:Info",
    "informed.State": "probjax.samplers.informed:InformedState",
    "ising.Centred": "probjax.models.ising.centring:CentredIsing",
    "ising.CouplingTable": "probjax.models.ising.table:CouplingTable",
    "ising.Params": "probjax.models.ising.parameters:Params",
    "ising.Spins": "probjax.models.ising.fields:Fields",
    "ising.UnitParams": "probjax.models.ising.parameters:UnitParams",
    "Joined": "probjax.connectivity.general:Joined",
    "kinetic_ising.Centred": "probjax.models.kinetic_ising.centring:CentredKinetic",
    "kinetic_ising.Inputs": "probjax.models.kinetic_ising.parameters:Inputs",
    "kinetic_ising.Params": "probjax.models.kinetic_ising.parameters:Params",
    "L1": "probjax.objectives.penalty:L1",
    "L2": "probjax.objectives.penalty:L2",
    "Laplace": "probjax.bases.continuous:Laplace",
    "lbfgs.Memory": "probjax.fitting.history:Memory",
    "lbfgs.QuasiNewton": "probjax.fitting.lbfgs:QuasiNewton",
    "lbfgs.State": "probjax.fitting.lbfgs:QuasiNewtonState",
    "lbfgs.Trial": "probjax.fitting.lbfgs:Trial",
    "likelihood.Space": "probjax.objectives.likelihood:Enumeration",
    "linear.Params": "probjax.models.linear:Params",
    "LookAheadHMC": "probjax.samplers.lookahead:LookAheadHMC",
    "marginal.Progress": "probjax.annealing.marginal:RowsDone",
    "mcrbm.Params": "probjax.models.mcrbm:Params",
    "Means": "probjax.samplers.draws:Means",
    "means.Running": "probjax.samplers.draws:Running",
    "Measured": "probjax.annealing.measured:Measured",
    "Metropolis": "probjax.samplers.metropolis:Metropolis",
    "metropolis.State": "probjax.samplers.metropolis:MetropolisState",
    "Model": "probjax.apps.fitted_models:Model",
    "MultiInformation": "probjax.diagnostics.entropy:MultiInformation",
    "natural.BlockFactor": "probjax.natural.factors:BlockFactor",
    "natural.Blocks": "probjax.natural.structures:BlockDiagonal",
    "natural.ConjugateGradient": "probjax.natural.structures:ConjugateGradient",
    "natural.Dense": "probjax.natural.structures:Dense",
    "natural.Diagonal": "probjax.natural.structures:Diagonal",
    "natural.DiagonalFactor": "probjax.natural.factors:DiagonalFactor",
    "natural.IterativeFactor": "probjax.natural.factors:IterativeFactor",
    "natural.LowRank": "probjax.natural.structures:LowRank",
    "natural.MatrixMetric": "probjax.natural.operators:MatrixOperator",
    "natural.PseudoInverse": "probjax.natural.regularisers:PseudoInverse",
    "natural.Report": "probjax.natural.factors:Report",
    "natural.Ridge": "probjax.natural.regularisers:Ridge",
    "natural.Robust": "probjax.natural.regularisers:Robust",
    "natural.RowMetric": "probjax.natural.operators:RowTable",
    "natural.State": "probjax.natural.transform:NaturalState",
    "natural.Whitening": "probjax.natural.whitening:WhitenedCoordinates",
    "natural.WoodburyFactor": "probjax.natural.factors:WoodburyFactor",
    "Neighbours": "probjax.types:Neighbours",
    "Normalised": "probjax.objectives.noise_contrastive:Normalised",
    "NormalisedChart": "probjax.objectives.noise_contrastive:NormalisedChart",
    "objectives.Explorers": "probjax.objectives.explorers:Explorers",
    "objectives.ModelChains": "probjax.objectives.model_chains:ModelChains",
    "objectives.Particles": "probjax.objectives.particles:PersistentParticles",
    "OneFlip": "probjax.connectivity.flips:OneFlip",
    "Path": "probjax.fitting.path:RegularisationPath",
    "Patterns": "probjax.diagnostics.patterns:Patterns",
    "penalty.Both": "probjax.objectives.penalty:PenaltySum",
    "population.Params": "probjax.models.population:Params",
    "potts.Centred": "probjax.models.potts.centring:CentredPotts",
    "potts.Params": "probjax.models.potts.parameters:Params",
    "Product": "probjax.bases.continuous:Product",
    "products.Params": "probjax.models.products:Params",
    "projections.Params": "probjax.models.projections:Params",
    "proximal.Evaluation": "probjax.fitting.proximal:Evaluation",
    "proximal.State": "probjax.fitting.proximal:ProximalState",
    "RandomFlips": "probjax.connectivity.flips:RandomFlips",
    "rbm.BlockGibbs": "probjax.models.rbm.gibbs:BlockGibbs",
    "rbm.Centred": "probjax.models.rbm.centring:CentredRBM",
    "rbm.Grown": "probjax.models.rbm.gibbs:Grown",
    "rbm.Growth": "probjax.models.rbm.gibbs:Growth",
    "rbm.Params": "probjax.models.rbm.machine:Params",
    "rbm.State": "probjax.models.rbm.gibbs:BlockState",
    "Refits": "probjax.fitting.refits:Refits",
    "SiteBlock": "probjax.types:SiteBlock",
    "SiteChanges": "probjax.connectivity.sites:SiteChanges",
    "SiteGrid": "probjax.connectivity.grid:SiteGrid",
    "spikes.DichotomisedGaussian": "probjax.data.spikes.gaussian:DichotomisedGaussian",
    "spikes.Recording": "probjax.data.spikes.recordings:Recording",
    "spikes.Words": "probjax.data.spikes.words:Words",
    "StandardErrors": "probjax.fitting.stopping:StandardErrors",
    "stochastic.Approximation": "probjax.fitting.stochastic:StochasticApproximation",
    "stochastic.Metric": "probjax.fitting.metric:StepMetric",
    "stochastic.State": "probjax.fitting.stochastic:StochasticState",
    "StudentT": "probjax.bases.continuous:StudentT",
    "sums.Chart": "probjax.models.sums:ChartOfParts",
    "SwendsenWang": "probjax.models.ising.clusters:SwendsenWang",
    "tables.Table": "probjax.apps.tables:Table",
    "TemperatureCurve": "probjax.annealing.temperatures:TemperatureCurve",
    "Tempered": "probjax.samplers.tempering:Tempered",
    "tempering.State": "probjax.samplers.tempering:TemperedState",
    "Tuned": "probjax.samplers.tuning:Tuned",
    "Uncertainty": "probjax.fitting.uncertainty:Uncertainty",
    "Validation": "probjax.fitting.cross_validation:Validation",
    "Verdict": "probjax.diagnostics.summary:Verdict",
    "Whitening": "probjax.data.preprocessing:Whitening",
    "Wolff": "probjax.models.ising.clusters:Wolff",
}
"""Location of each class that can occur in a file, by registered name."""

_NAMES_BY_LOCATION = {location: name for name, location in NAMES.items()}


def location_of(kind: type) -> str:
    """Location of a class, `module:qualname`."""
    return f"{kind.__module__}:{kind.__qualname__}"


def name_of(kind: type) -> str:
    """Name of a record or a recipe in files.

    >>> from probjax import ising
    >>> name_of(ising.Params)
    'ising.Params'
    """
    location = location_of(kind)
    if not _is_in(location, "probjax"):
        return location
    if location not in _NAMES_BY_LOCATION:
        raise ValueError(
            f"tree must hold classes with a registered name, got a {location}; save "
            "its fields instead"
        )
    return _NAMES_BY_LOCATION[location]


def class_of(name: str) -> type:
    """Class with the given name; only registered and optax classes are imported.

    >>> class_of("ising.Params").__name__
    'Params'
    """
    if name in NAMES:
        return _imported(NAMES[name])
    if ":" not in name or _is_in(name, "probjax"):
        raise ValueError(f"it holds a {name}, unknown to this version of probjax")
    if not _is_in(name, "optax"):
        raise ValueError(f"it holds a {name}; pass like= to read it")
    found = _imported(name)
    if not (isinstance(found, type) and field_names(found) is not None):
        raise ValueError(f"it names {name}, which is not a record")
    return found


def field_names(kind: Any) -> list[str] | None:
    """Names of the fields of a record or a dataclass; None for any other class."""
    if dataclasses.is_dataclass(kind):
        return [field.name for field in dataclasses.fields(kind)]
    return list(kind._fields) if hasattr(kind, "_fields") else None


def _is_in(location: str, package: str) -> bool:
    module, colon, _ = location.partition(":")
    return bool(colon) and module.partition(".")[0] == package


def _imported(location: str) -> Any:
    module, _, path = location.partition(":")
    found = importlib.import_module(module)
    for part in path.split("."):
        found = getattr(found, part)
    return found
