"""Many devices, many processes: rows, chains and particles live apart.

Whatever has a leading axis of rows, chains or particles can be laid out along a mesh of
devices, each of which then computes with its own, and the numbers are the same:

    mesh = jax.make_mesh((jax.device_count(),), ("rows",))
    fitted = fit(key, MPF(energy), params, spread(data, mesh))

`spread` lays out data, starts of chains or draws, and drivers follow them. What a
driver makes itself, as the particles of `ais`, lives on the mesh in context:

    with jax.set_mesh(mesh):
        annealed = ais(key, energy, params, base, sampler=HMC(0.2), ...)

Random numbers are the same however many devices there are, as every row, chain and
particle has a key by its number. Sums over rows are not taken in the same order, so
they differ by rounding, and long chains by what rounding grows to. Chains never wait
for each other; a fit adds up one gradient for each evaluation; annealing adds up the
share of steps accepted, and moves particles between devices only to resample them.
Parameters are on every device in full.

**Several processes** run the same program, each with its own part of the rows:

    jax.distributed.initialize()     # before anything else
    data = spread(rows_of_this_process)

It finds the others by itself under Slurm (`srun --ntasks-per-node=1 python fit.py`) and
on a TPU pod (the same command on all of its hosts); elsewhere, as on one machine, it is
told `initialize("localhost:1234", num_processes=2, process_id=number)`. All processes
call the same drivers in the same order with the same keys and parameters, and are given
the same results. Of what is spread each has its own part: for all of it,
`jax.experimental.multihost_utils.process_allgather(draws.x, tiled=True)`. Write files
where `jax.process_index() == 0`; a `Checkpoint` sees to that itself, and its path must
lead all processes to the same place. `benchmarks/launch.py` starts processes on a
machine.
"""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from probjax.checks import is_concrete, is_tracing
from probjax.types import Data, PyTree

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Rows = TypeVar("Rows")


def spread(rows: Rows, mesh: Mesh | None = None) -> Rows:
    """`rows`, a tree of arrays or a `Data`, laid out along the devices of a mesh.

    With several processes each passes its own part, and they follow one another.

    Args:
        rows: as many as divide evenly among the devices. A `Data` is filled up with
            rows that weigh nothing.
        mesh: if None, that of the context (`jax.set_mesh`), or of all devices. All of
            its axes are used.

    >>> mesh = jax.make_mesh((jax.device_count(),), ("rows",))
    >>> rows = spread(jnp.ones((4 * jax.device_count(), 2)), mesh)
    >>> len(rows.sharding.device_set) == jax.device_count()
    True
    """
    along = _automatic(_context_mesh() if mesh is None else mesh)
    num_mine = len(along.local_devices)
    if isinstance(rows, Data) and rows.weights is not None:
        rows = rows._replace(weights=np.asarray(rows.weights))
    lengths = sorted({len(leaf) for leaf in jax.tree.leaves(rows)})
    if len(lengths) != 1:
        raise ValueError(f"rows must all be as many, got arrays of lengths {lengths}")
    count = lengths[0]
    counts = np.atleast_1d(multihost_utils.process_allgather(np.asarray(count)))
    full = -(-int(counts.max()) // num_mine) * num_mine
    if (counts != full).any():
        if not isinstance(rows, Data):
            raise ValueError(
                f"rows must divide evenly among {num_mine} devices, and be as many in "
                f"every process, got {counts.tolist()}; as Data(rows) they are filled "
                "up with rows that weigh nothing"
            )
        rows = _filled(rows, full - count)
    where = NamedSharding(along, PartitionSpec(along.axis_names))

    def place(leaf):
        if jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key):
            kind = jax.random.key_impl(leaf)
            return jax.random.wrap_key_data(place(jax.random.key_data(leaf)), impl=kind)
        leaf = np.asarray(leaf, jnp.result_type(leaf))
        return jax.make_array_from_process_local_data(where, leaf)

    return _as_in_context(jax.tree.map(place, rows))


def on_mesh(
    function: Callable[Arguments, Result],
    *args: Arguments.args,
    **kwargs: Arguments.kwargs,
) -> Result:
    """Call `function` on the mesh that its arguments lie on, or that of the context.

    Compiled code reads the mesh from its context. Arguments that are traced have no
    known mesh, so inside `jit` it has to be that of the context, with axes of the type
    Auto.
    """
    _refuse_typed()
    mesh = _mesh_to_set((args, kwargs))
    if mesh is None:
        return function(*args, **kwargs)
    with jax.set_mesh(mesh):
        args, kwargs = jax.tree.map(_untyped, (args, kwargs))
        result = function(*args, **kwargs)
    return _as_in_context(result)


def num_devices() -> int:
    """How many devices there are in the mesh of the context, which `on_mesh` sets."""
    return jax.sharding.get_abstract_mesh().size if _axes() else 1


def each(function: Callable[..., Any], in_axes: Any = 0) -> Callable[..., Any]:
    """`jax.vmap`, in which every device has lanes of its own and no word of others.

    The first argument must have an axis of lanes. If they do not divide evenly, every
    device computes them all.
    """
    mapped = jax.vmap(function, in_axes)

    def call(*args):
        if not _divides(args[0]):
            return mapped(*args)
        mine = PartitionSpec(_axes())
        specs = jax.tree.map(
            lambda axis: PartitionSpec() if axis is None else mine,
            in_axes if isinstance(in_axes, tuple) else (in_axes,) * len(args),
            is_leaf=lambda axis: axis is None,
        )
        apart = jax.shard_map(mapped, in_specs=specs, out_specs=mine, check_vma=False)
        return apart(*args)

    return call


def apart(rows: PyTree, axis: int = 0) -> PyTree:
    """`rows` that code has put together, laid out along the mesh of the context."""
    if not jax.tree.leaves(rows) or not _divides(rows, axis):
        return rows
    where = PartitionSpec(*[None] * axis, _axes())
    return jax.lax.with_sharding_constraint(rows, where)


def placed(rows: PyTree) -> PyTree:
    """`rows` of the host, each part on its device of the mesh of the context."""
    if not _divides(rows):
        return jax.device_put(rows)
    where = NamedSharding(jax.sharding.get_mesh(), PartitionSpec(_axes()))
    return jax.device_put(rows, where)


Layout = list[Any] | None
"""Along which axes of a mesh each axis of an array lies; None if it is on no mesh."""


def layout_of(array: Any) -> Layout:
    """How an array is laid out, in words that can be written down."""
    where = getattr(array, "sharding", None)
    return list(where.spec) if isinstance(where, NamedSharding) else None


def place_of(layout: Layout) -> NamedSharding | None:
    """Where on the mesh of the context a layout is; None if it has no such axes."""
    mesh = jax.sharding.get_mesh()
    if layout is None or mesh.empty:
        return None
    spec = PartitionSpec(
        *(tuple(axes) if isinstance(axes, list) else axes for axes in layout)
    )
    names = {name for axes in spec if axes for name in np.atleast_1d(axes)}
    return NamedSharding(mesh, spec) if names <= set(mesh.axis_names) else None


def laid_out(array: np.ndarray, layout: Layout) -> jax.Array:
    """An array of the host as it lay before, every process putting down its part."""
    where = place_of(layout)
    if where is None:
        return jax.device_put(array)
    return jax.make_array_from_callback(array.shape, where, array.__getitem__)


def on_host(array: Any) -> np.ndarray:
    """All of an array, of which this process may hold a part."""
    here = not isinstance(array, jax.Array) or array.is_fully_addressable
    if here or array.is_fully_replicated:
        return np.asarray(array)
    return multihost_utils.process_allgather(array, tiled=True)


def check_even(name: str, count: int) -> None:
    """Refuse a count that would leave devices of the mesh with unequal parts."""
    if count % num_devices():
        raise ValueError(
            f"{name} must be a multiple of the mesh's {num_devices()} devices, "
            f"got {count}"
        )


def _axes():
    """The axes of the context's mesh; () for none, or inside of a `shard_map`."""
    mesh = jax.sharding.get_abstract_mesh()
    free = mesh.size > 1 and set(mesh.axis_types) == {AxisType.Auto}
    return mesh.axis_names if free else ()


def _divides(rows, axis=0):
    return bool(_axes()) and jax.tree.leaves(rows)[0].shape[axis] % num_devices() == 0


def _mesh_to_set(tree):
    """The mesh of what is spread in a tree; None if the context's will do."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
    if is_tracing() or not is_concrete(leaves):
        return None
    where = [leaf.sharding for leaf in leaves]
    meshes = [each.mesh for each in where if isinstance(each, NamedSharding)]
    for mesh in meshes:
        if mesh.size > 1 or AxisType.Explicit in mesh.axis_types:
            return _automatic(mesh)
    mesh = jax.sharding.get_mesh()
    return _automatic(mesh) if AxisType.Explicit in mesh.axis_types else None


def _refuse_typed():
    """Inside of compiled code a mesh with places in types cannot be exchanged."""
    mesh = jax.sharding.get_abstract_mesh()
    if is_tracing() and mesh.size > 1 and AxisType.Explicit in mesh.axis_types:
        raise ValueError(
            "a driver inside jit needs a mesh with axes of the type Auto: make it by "
            "jax.make_mesh(shape, names, axis_types=(jax.sharding.AxisType.Auto,) * n)"
        )


def _automatic(mesh: Any) -> Any:
    """The mesh with axes along which the compiler lays out what nobody did."""
    return mesh.update(axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def _untyped(leaf):
    """An array whose place is told to the compiler, and is no part of its type."""
    where = getattr(leaf, "sharding", None)
    if not isinstance(where, NamedSharding) or AxisType.Auto in where.mesh.axis_types:
        return leaf
    return _said_to_lie(leaf, NamedSharding(_automatic(where.mesh), where.spec))


def _as_in_context(tree):
    """Arrays with their place in their type, if the context's mesh has it there."""
    mesh = jax.sharding.get_mesh()
    if AxisType.Explicit not in mesh.axis_types:
        return tree

    def typed(leaf):
        where = getattr(leaf, "sharding", None)
        if not isinstance(where, NamedSharding) or where.mesh.empty:
            return leaf
        return _said_to_lie(leaf, NamedSharding(mesh, where.spec))

    return jax.tree.map(typed, tree)


def _said_to_lie(leaf, where):
    """The same array, not copied, by another name of the place where it is."""
    parts = [shard.data for shard in leaf.addressable_shards]
    return jax.make_array_from_single_device_arrays(leaf.shape, where, parts)


def _context_mesh():
    mesh = jax.sharding.get_mesh()
    return Mesh(np.array(jax.devices()), ("rows",)) if mesh.empty else mesh


def _filled(data, missing):
    """Data with so many rows of no weight at the end."""
    weights = data.weights
    if weights is None:
        weights = np.ones(len(jax.tree.leaves(data.x)[0]))

    def fill(leaf):
        leaf = np.asarray(leaf)
        return np.concatenate([leaf, np.repeat(leaf[-1:], missing, axis=0)])

    x, mask = jax.tree.map(fill, (data.x, data.mask))
    return Data(x, jnp.pad(jnp.asarray(weights), (0, missing)), mask)
