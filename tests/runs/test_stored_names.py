"""Names of classes in files, and files that version 0.1.0 wrote."""

import importlib
import json
import pkgutil
from operator import attrgetter
from pathlib import Path

import jax
import numpy as np
import pytest

import probjax
from probjax import Checkpoint, ising, storage
from probjax.runs import stored_names
from probjax.runs.checkpoint import open_checkpoint
from probjax.runs.names_of_0_1_0 import FIELDS_OF_0_1_0, NAMES_OF_0_1_0
from probjax.runs.stored_names import NAMES

FILES = Path(__file__).parents[1] / "version_0_1_0"
EXPECTED = json.loads((FILES / "expected.json").read_text())

HOLD_FUNCTIONS = """
    annealing.adaptation:Adaptation annealing.ais:Settings annealing.bridge:Bridge
    annealing.particles:AnnealingRun annealing.paths:Ends apps.estimators:Hopfield
    apps.estimators:Ising apps.estimators:Potts apps.estimators:RBM apps.families:Family
    apps.interop:Blackjax connectivity.general:Listed connectivity.general:Proposal
    connectivity.steps:Shape connectivity.steps:Steps data.blocks:Blocks
    data.blocks:Surveyed fitting.optimisers:Optax fitting.optimisers:Problem
    fitting.gradient_noise:RowLoss fitting.plan:Coordinates fitting.plan:RoundsPlan
    fitting.proximal:Proximal fitting.sandwich:FittedLoss types:UnitLosses
    natural.scores:Given natural.scores:Metric natural.scores:Scores
    natural.streamed:Streamed objectives.corrupted:Corrupted
    objectives.divergence:ContrastiveDivergence
    objectives.divergence:PersistentDivergence objectives.em:EM
    objectives.flow:PersistentMPF objectives.gaps:GapObjective
    objectives.likelihood:MaximumLikelihood objectives.noise_contrastive:NoiseContrast
    objectives.score:DrawnScoreMatching objectives.score:ScoreMatching
    objectives.score:ScoreMatchingBySteps objectives.sparse:Sparse
    objectives.velocity:MinimumVelocity potential:Conditional potential:Posterior
    potential:Potential
    runs.checkpoint_files:FileFormat runs.driver:Job runs.driver:Watch
    samplers.chain_loop:Chains samplers.discrete_langevin:DiscreteLangevin
    samplers.gibbs:HeatBath samplers.gibbs_with_gradients:GibbsWithGradients
    samplers.hmc:HMC
    samplers.hmc:Leap samplers.observers:Average samplers.tuning:Spread
"""
INTERNAL = """
    annealing.adaptation:KnotStatistics annealing.adaptation:Tuning apps.density:Bits
    apps.density:Density data.blocks:Block data.clusters:Clusters
    exact.lattice_graph:Graph exact.lattice_graph:Terms exact.transfer_matrix:Rows
    fitting.check_statistics:SampleMoments fitting.check_statistics:Values
    fitting.curvature:CurvedFactor fitting.distance:Descent
    fitting.distance:RowSample fitting.minibatches:Batches fitting.evaluation:Evaluated
    fitting.rounds:Run
    leapfrog:Geometry
    models.ising.clusters:Bonds models.ising.joint_counts:JointCounts
    models.sparse_pairs:Incidence models.sparse_pairs:SiteNeighbours
    models.sparse_pairs:Shifts runs.checkpoint:Checkpoint runs.checkpoint_files:Header
    runs.checkpoint_files:Saved runs.contents:Content runs.contents:Names
    samplers.adaptation:Moved samplers.chain_loop:Counts samplers.chain_loop:RunState
    samplers.momentum:Choice samplers.observers:Averaged samplers.observers:Store
    samplers.observers:Stored
"""
NOT_STORED = {f"probjax.{name}" for name in (HOLD_FUNCTIONS + INTERNAL).split()}


def records_and_recipes():
    modules = pkgutil.walk_packages(probjax.__path__, "probjax.")
    for module in [importlib.import_module(each.name) for each in modules]:
        for name, kind in vars(module).items():
            if (
                isinstance(kind, type)
                and kind.__module__ == module.__name__
                and stored_names.field_names(kind) is not None
                and not name.startswith("_")
            ):
                yield kind


def test_every_class_has_a_stored_name_or_cannot_be_stored():
    locations = {stored_names.location_of(kind) for kind in records_and_recipes()}
    assert locations - set(NAMES.values()) - NOT_STORED == set(), "add them to NAMES"
    assert set(NAMES.values()) - locations == set(), "these have moved"
    assert NOT_STORED - locations == set(), "these have moved"
    assert not NOT_STORED & set(NAMES.values())


def test_stored_names_are_unique_and_resolve_to_their_classes():
    assert len(set(NAMES.values())) == len(NAMES)
    for name, location in NAMES.items():
        kind = stored_names.class_of(name)
        assert stored_names.location_of(kind) == location
        assert stored_names.name_of(kind) == name


def test_every_name_of_0_1_0_has_a_class():
    assert set(NAMES_OF_0_1_0.values()) <= set(NAMES)
    assert set(FIELDS_OF_0_1_0) <= set(NAMES)


def test_tables_are_sorted():
    for table in (NAMES, NAMES_OF_0_1_0):
        names = list(table)
        assert names == sorted(names, key=str.lower)


def test_files_hold_registered_names(tmp_path):
    storage.save(tmp_path / "model", ising.from_matrix([[1.0]]))
    with np.load(tmp_path / "model") as file:
        header = json.loads(str(file["structure"]))
    assert header["format"] == "probjax 2"
    assert header["tree"]["record"] == "ising.Params"


def test_a_class_without_a_name_is_rejected(tmp_path, monkeypatch):
    location = "probjax.models.ising.parameters:Params"
    monkeypatch.delitem(stored_names._NAMES_BY_LOCATION, location)
    with pytest.raises(ValueError, match=f"registered name, got a {location}"):
        storage.save(tmp_path / "model", ising.from_matrix([[1.0]]))


@pytest.mark.parametrize("name", EXPECTED)
def test_files_of_0_1_0_hold_the_same_numbers(name):
    tree = storage.load(FILES / f"{name}.npz")
    for path, expected in EXPECTED[name].items():
        value = np.asarray(attrgetter(path)(tree))
        np.testing.assert_array_equal(value, np.asarray(expected))


def test_files_of_0_1_0_can_be_saved_again(tmp_path):
    for name in EXPECTED:
        tree = storage.load(FILES / f"{name}.npz")
        storage.save(tmp_path / name, tree)
        again = storage.load(tmp_path / name)
        assert jax.tree.structure(again) == jax.tree.structure(tree)


def test_a_checkpoint_of_0_1_0_is_rejected(tmp_path, monkeypatch):
    monkeypatch.setattr(probjax, "__version__", "0.9.1")
    path = tmp_path / "fit.npz"
    path.write_bytes((FILES / "checkpoint.npz").read_bytes())
    message = (
        "fit.npz is a checkpoint written by probjax 0.1.0, but this is probjax 0.9.1: "
        "remove it to start again"
    )
    with (
        pytest.raises(ValueError, match=message),
        open_checkpoint(Checkpoint(path), "fit", {}),
    ):
        pass
    assert path.read_bytes() == (FILES / "checkpoint.npz").read_bytes()


def forged(path, form, name, fields):
    """File with a record of some fields, all of the value 1."""
    values = {field: {"value": 1} for field in fields}
    tree = {"record": name, "fields": values}
    structure = json.dumps({"format": form, "tree": tree})
    np.savez(path, structure=np.array(structure))
    return path


def test_fields_that_a_class_gained_have_their_defaults(tmp_path):
    path = forged(tmp_path / "data.npz", "probjax 2", "Data", ["x"])
    assert storage.load(path) == (1, None, None)


def test_fields_that_a_class_lost_are_named(tmp_path):
    path = forged(tmp_path / "data.npz", "probjax 2", "Data", ["x", "colour"])
    with pytest.raises(
        ValueError, match="a Data with colour, which Data does not have"
    ):
        storage.load(path)


def test_fields_of_0_1_0_that_were_renamed_or_removed_are_translated(
    tmp_path, monkeypatch
):
    renamed = {"Data": {"rows": "x", "colour": None, "gone": "mask"}}
    monkeypatch.setattr(storage, "FIELDS_OF_0_1_0", renamed)
    given = "probjax.types:Data", ["rows", "weights", "colour"]
    path = forged(tmp_path / "data.npz", "probjax 1", *given)
    assert storage.load(path) == (1, 1, None)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("potts.Gone", "it holds a potts.Gone, unknown to this version"),
        ("probjax.potts:Gone", "unknown to this version"),
        ("probjax.runs.stored_names:NAMES", "unknown to this version"),
        ("os:getcwd", "pass like="),
        ("optax:adam", "not a record"),
    ],
)
@pytest.mark.parametrize("form", ["probjax 1", "probjax 2"])
def test_other_names_are_rejected(form, name, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        storage.load(forged(tmp_path / "forged.npz", form, name, []))
