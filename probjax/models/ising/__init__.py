"""Ising models: energy, parameters, charts, cluster samplers and mean-field fits."""

from probjax.models.ising.centring import CentredIsing, centred, centred_at
from probjax.models.ising.clusters import SwendsenWang, Wolff
from probjax.models.ising.mean_field import mean_field, tap
from probjax.models.ising.model import (
    energy,
    flip_gap,
    flip_gaps,
    mirror_gap,
    unbounded,
)
from probjax.models.ising.parameters import (
    Edges,
    Params,
    checked_edges,
    coupling_matrix,
    couplings_only,
    from_matrix,
    init,
    pair_indices,
    symmetrised,
)
from probjax.models.ising.spin_form import Spins, bits, from_spins, spins, to_spins

__all__ = [
    "bits",
    "CentredIsing",
    "centred",
    "centred_at",
    "checked_edges",
    "coupling_matrix",
    "couplings_only",
    "Edges",
    "energy",
    "flip_gap",
    "flip_gaps",
    "from_matrix",
    "from_spins",
    "init",
    "mean_field",
    "mirror_gap",
    "pair_indices",
    "Params",
    "Spins",
    "spins",
    "SwendsenWang",
    "symmetrised",
    "tap",
    "to_spins",
    "unbounded",
    "Wolff",
]
