"""Ising models: energy, parameters, charts, cluster samplers and mean-field fits."""

from probjax.models.ising.centring import (
    CentredIsing,
    centred,
    centred_at,
    data_chart,
)
from probjax.models.ising.clusters import SwendsenWang, Wolff
from probjax.models.ising.fields import Fields, bits, from_fields, spins, to_fields
from probjax.models.ising.mean_field import mean_field, tap
from probjax.models.ising.model import (
    bit_block,
    energy,
    flip_gap,
    flip_gaps,
    mirror_gap,
    unbounded,
    unit_energy,
)
from probjax.models.ising.parameters import (
    Params,
    UnitParams,
    coupling_matrix,
    couplings_only,
    from_matrix,
    init,
    symmetrised,
    unit_params,
)
from probjax.models.ising.table import CouplingTable, coupling_table
from probjax.models.pairs import Edges, checked_edges, pair_indices

__all__ = [
    "bit_block",
    "bits",
    "CentredIsing",
    "centred",
    "centred_at",
    "checked_edges",
    "coupling_matrix",
    "coupling_table",
    "couplings_only",
    "CouplingTable",
    "data_chart",
    "Edges",
    "energy",
    "Fields",
    "flip_gap",
    "flip_gaps",
    "from_fields",
    "from_matrix",
    "init",
    "mean_field",
    "mirror_gap",
    "pair_indices",
    "Params",
    "spins",
    "SwendsenWang",
    "symmetrised",
    "tap",
    "to_fields",
    "unbounded",
    "unit_energy",
    "unit_params",
    "UnitParams",
    "Wolff",
]
