"""Several devices and several processes: rows, chains and particles are sharded.

Arrays with a leading axis of rows, chains or particles can be laid out along a mesh of
devices. Each device then computes with its own part, and the results are the same:

    mesh = jax.make_mesh((jax.device_count(),), ("rows",))
    fitted = fit(key, MPF(energy), params, spread(data, mesh))

`spread` lays out data, initial states of chains or draws, and drivers use the mesh of
these arrays. Arrays that a driver makes itself, such as the particles of `ais`, are
laid out on the mesh in context:

    with jax.set_mesh(mesh):
        annealed = ais(key, energy, params, base, sampler=HMC(0.2), ...)

Random numbers do not depend on the number of devices, because each row, chain and
particle derives its key from its index. Keys of `rbg` and `unsafe_rbg` are an
exception: their numbers depend on which chains or particles share a device (see
`probjax.random`), so that results agree within their errors only.

Sums over rows are computed in another order, so that results differ by rounding, and
long chains by the growth of such differences. Chains do not communicate. A fit sums one
gradient over devices for each evaluation, and rows stay where they are, except those of
minibatches. Annealing communicates after its last step only, unless a pilot run adapts
the sampler or particles are resampled, which moves them between devices. Every device
holds all parameters.

**Several processes** run the same program, each with its own part of the rows:

    jax.distributed.initialize()     # before anything else
    data = spread(rows_of_this_process)

Under Slurm (`srun --ntasks-per-node=1 python fit.py`) and on a TPU pod (the same
command on all hosts) `initialize` finds the other processes. Elsewhere, such as on one
machine, call `initialize("localhost:1234", num_processes=2, process_id=number)`. All
processes call the same drivers in the same order with the same keys and parameters, and
receive the same results. Each process holds only its part of a sharded array;
`jax.experimental.multihost_utils.process_allgather(draws.x, tiled=True)` returns the
whole. Write files only if `jax.process_index() == 0`. A `Checkpoint` does so itself;
its path must be the same file for all processes. `benchmarks/launch.py` starts several
processes on one machine.
"""

from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.core import Tracer
from jax.experimental import multihost_utils
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from probjax.checks import is_concrete, is_tracing
from probjax.types import Data, PyTree

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")
Rows = TypeVar("Rows")


def spread(rows: Rows, mesh: Mesh | None = None) -> Rows:
    """Lay out `rows`, a tree of arrays or a `Data`, along the devices of a mesh.

    With several processes, each process passes its own rows, and the result holds the
    rows of all processes in the order of the processes.

    Args:
        rows: arrays with a leading axis of rows, whose number must be a multiple of the
            number of devices. A `Data` is padded with rows of weight 0 instead.
        mesh: mesh of devices, all axes of which are used; if None, the mesh in context
            (`jax.set_mesh`), or else a mesh of all devices.

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
        raise ValueError(
            f"rows must be arrays of one length, got arrays of lengths {lengths}"
        )
    count = lengths[0]
    counts = np.atleast_1d(multihost_utils.process_allgather(np.asarray(count)))
    full = -(-int(counts.max()) // num_mine) * num_mine
    if (counts != full).any():
        if not isinstance(rows, Data):
            raise ValueError(
                f"rows must be a multiple of {num_mine} devices, and equally many in "
                f"every process, got {counts.tolist()}; try Data(rows), to which rows "
                "of weight 0 are added"
            )
        rows = _padded(rows, full - count)
    sharding = NamedSharding(along, PartitionSpec(along.axis_names))

    def place(leaf):
        if jnp.issubdtype(jnp.result_type(leaf), jax.dtypes.prng_key):
            impl = jax.random.key_impl(leaf)
            return jax.random.wrap_key_data(place(jax.random.key_data(leaf)), impl=impl)
        leaf = np.asarray(leaf, jnp.result_type(leaf))
        return jax.make_array_from_process_local_data(sharding, leaf)

    return _typed_as_context(jax.tree.map(place, rows))


def on_mesh(
    function: Callable[Arguments, Result],
    *args: Arguments.args,
    **kwargs: Arguments.kwargs,
) -> Result:
    """Call `function` with the mesh of its arguments, or that in context, set.

    Compiled code reads the mesh from the context. Traced arguments have no known mesh,
    so inside `jit` the mesh in context is used, whose axes must have the type Auto.
    """
    _check_axis_types()
    mesh = _mesh_to_set((args, kwargs))
    if mesh is None:
        return function(*args, **kwargs)
    with jax.set_mesh(mesh):
        args, kwargs = jax.tree.map(_untyped, (args, kwargs))
        result = function(*args, **kwargs)
    return _typed_as_context(result)


def num_devices() -> int:
    """Return the number of devices of the mesh in context, which `on_mesh` sets."""
    return jax.sharding.get_abstract_mesh().size if _axes() else 1


def sharded_vmap(function: Callable[..., Any], in_axes: Any = 0) -> Callable[..., Any]:
    """`jax.vmap` sharded over devices, without communication between them.

    The first argument must have a mapped axis. If its length is not a multiple of the
    number of devices, every device computes all lanes.
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
        sharded = jax.shard_map(mapped, in_specs=specs, out_specs=mine, check_vma=False)
        return sharded(*args)

    return call


def platform(tree: PyTree = ()) -> str:
    """Return the platform for which a program of these arrays is compiled: "cpu", ...

    It is that of the mesh in context, or else of the devices to which an array of the
    tree is committed, or else of the default device (`jax.default_device`), in this
    order. A program can also be lowered for platforms that are not known while it is
    traced, as by `jax.export`. So a choice that depends on the result must be valid
    everywhere, and only its speed may differ.
    """
    found = [_platform_of_mesh(jax.sharding.get_abstract_mesh())]
    found += map(_platform_of_array, jax.tree.leaves(tree))
    return next(filter(None, found), None) or _default_platform()


def _platform_of_mesh(mesh):
    """Platform of the devices of an abstract mesh; None if it has none."""
    device = mesh.abstract_device
    if device is None:
        return None
    # JAX 0.9 states only the kind of a device, which is "cpu" for CPUs.
    return getattr(device, "platform", device.device_kind)


def _platform_of_array(array):
    """Platform of the devices of an array; None if it can be on any device."""
    if not isinstance(array, jax.Array):
        return None
    if isinstance(array, Tracer):
        return _platform_of_mesh(jax.typeof(array).sharding.mesh)
    if not array.committed:
        return None
    return next(iter(array.sharding.device_set)).platform


def _default_platform():
    device = jax.config.jax_default_device  # pyright: ignore
    if device is None:
        return jax.default_backend()
    return device if isinstance(device, str) else device.platform


def shard_rows(rows: PyTree, axis: int = 0) -> PyTree:
    """Lay out `rows`, made in traced code, along `axis` on the mesh in context."""
    if not jax.tree.leaves(rows) or not _divides(rows, axis):
        return rows
    spec = PartitionSpec(*[None] * axis, _axes())
    return jax.lax.with_sharding_constraint(rows, spec)


def put_rows(rows: PyTree) -> PyTree:
    """Copy `rows` from the host to the devices of the mesh in context."""
    if not _divides(rows):
        return jax.device_put(rows)
    sharding = NamedSharding(jax.sharding.get_mesh(), PartitionSpec(_axes()))
    return jax.device_put(rows, sharding)


Layout = list[Any] | None
"""Axes of a mesh along which each axis of an array is laid out; None without a mesh."""


def layout_of(array: Any) -> Layout:
    """Return the layout of an array as a list that can be written to a file."""
    sharding = getattr(array, "sharding", None)
    return list(sharding.spec) if isinstance(sharding, NamedSharding) else None


def sharding_of(layout: Layout) -> NamedSharding | None:
    """Return the sharding of a layout on the mesh in context.

    None if there is no mesh in context, or it does not have all axes of the layout.
    """
    mesh = jax.sharding.get_mesh()
    if layout is None or mesh.empty:
        return None
    spec = PartitionSpec(
        *(tuple(axes) if isinstance(axes, list) else axes for axes in layout)
    )
    names = {name for axes in spec if axes for name in np.atleast_1d(axes)}
    return NamedSharding(mesh, spec) if names <= set(mesh.axis_names) else None


def put_with_layout(array: np.ndarray, layout: Layout) -> jax.Array:
    """Copy an array from the host to devices in a layout; each process its part."""
    sharding = sharding_of(layout)
    if sharding is None:
        return jax.device_put(array)
    return jax.make_array_from_callback(array.shape, sharding, array.__getitem__)


def on_host(array: Any) -> np.ndarray:
    """Return all of an array as a NumPy array, gathered from all processes."""
    is_local = not isinstance(array, jax.Array) or array.is_fully_addressable
    if is_local or array.is_fully_replicated:
        return np.asarray(array)
    return multihost_utils.process_allgather(array, tiled=True)


def check_even(name: str, count: int) -> None:
    """Raise if `count` is not a multiple of the number of devices of the mesh."""
    if count % num_devices():
        raise ValueError(
            f"{name} must be a multiple of the mesh's {num_devices()} devices, "
            f"got {count}"
        )


def _axes():
    """Axes of the mesh in context; () without a mesh or inside `shard_map`."""
    mesh = jax.sharding.get_abstract_mesh()
    is_automatic = mesh.size > 1 and set(mesh.axis_types) == {AxisType.Auto}
    return mesh.axis_names if is_automatic else ()


def _divides(rows, axis=0):
    return bool(_axes()) and jax.tree.leaves(rows)[0].shape[axis] % num_devices() == 0


def _mesh_to_set(tree):
    """Mesh of the sharded arrays in a tree; None if the mesh in context can be kept."""
    leaves = [leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, jax.Array)]
    if is_tracing() or not is_concrete(leaves):
        return None
    shardings = [leaf.sharding for leaf in leaves]
    meshes = [each.mesh for each in shardings if isinstance(each, NamedSharding)]
    for mesh in meshes:
        if mesh.size > 1 or AxisType.Explicit in mesh.axis_types:
            return _automatic(mesh)
    mesh = jax.sharding.get_mesh()
    return _automatic(mesh) if AxisType.Explicit in mesh.axis_types else None


def _check_axis_types():
    """Raise inside traced code if the mesh has axes of the type Explicit.

    Traced code cannot replace the mesh in context by one with other axis types.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if is_tracing() and mesh.size > 1 and AxisType.Explicit in mesh.axis_types:
        raise ValueError(
            "the mesh of a driver inside jit must have axes of the type Auto, got "
            "Explicit; try jax.make_mesh(shape, names, "
            "axis_types=(jax.sharding.AxisType.Auto,) * n)"
        )


def _automatic(mesh: Any) -> Any:
    """Return the mesh with axes of the type Auto, for which XLA chooses layouts."""
    return mesh.update(axis_types=(AxisType.Auto,) * len(mesh.axis_names))


def _untyped(leaf):
    """Return an array whose sharding is not part of its type (axes of type Auto)."""
    sharding = getattr(leaf, "sharding", None)
    if not isinstance(sharding, NamedSharding):
        return leaf
    if AxisType.Auto in sharding.mesh.axis_types:
        return leaf
    return _with_sharding(leaf, NamedSharding(_automatic(sharding.mesh), sharding.spec))


def _typed_as_context(tree):
    """Make the sharding part of the types of arrays if the mesh in context does so."""
    mesh = jax.sharding.get_mesh()
    if AxisType.Explicit not in mesh.axis_types:
        return tree

    def typed(leaf):
        sharding = getattr(leaf, "sharding", None)
        if not isinstance(sharding, NamedSharding) or sharding.mesh.empty:
            return leaf
        return _with_sharding(leaf, NamedSharding(mesh, sharding.spec))

    return jax.tree.map(typed, tree)


def _with_sharding(leaf, sharding):
    """Return the same buffers, not copied, with an equivalent sharding."""
    parts = [shard.data for shard in leaf.addressable_shards]
    return jax.make_array_from_single_device_arrays(leaf.shape, sharding, parts)


def _context_mesh():
    mesh = jax.sharding.get_mesh()
    if not mesh.empty:
        return mesh
    return Mesh(np.array(jax.devices(_default_platform())), ("rows",))


def _padded(data, missing):
    """Append `missing` rows of weight 0, copies of the last row."""
    weights = data.weights
    if weights is None:
        weights = np.ones(len(jax.tree.leaves(data.x)[0]))

    def pad(leaf):
        leaf = np.asarray(leaf)
        return np.concatenate([leaf, np.repeat(leaf[-1:], missing, axis=0)])

    x, mask = jax.tree.map(pad, (data.x, data.mask))
    return Data(x, jnp.pad(jnp.asarray(weights), (0, missing)), mask)
