"""Random numbers from the keys of `jax.random`, in fewer instructions on a CPU.

There JAX runs the twenty rounds of threefry as a loop over arrays. Written out they
fuse into one pass over the numbers that are wanted, six times as fast, with the same
bits. Normals come in pairs, one of each word that threefry gives (Box and Muller):

    sqrt(-2 log u) (cos 2 pi t, sin 2 pi t),    u from 0 to 1, t from -1/2 to 1/2,

with polynomials for half a turn and a random sign for the other half. That is twice as
fast as the inverse of their distribution, and reaches 5.9 standard deviations.

A key has streams, counted by the upper half of threefry's counter, which `jax.random`
leaves at 0. They are as independent as keys that are split off, and cost nothing.

Keys of another kind than threefry, and numbers that are not float32, are left to JAX.

Reference: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
SC 2011; Box and Muller, Ann. Math. Statist. 29, 610 (1958).
"""

import math
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from probjax.checks import is_eager
from probjax.types import Array, Float, PRNGKeyArray

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
# Of sin(2 pi t) / t and cos(2 pi t), in t^2 up to 1/16, to 5e-8.
SINE = (39.7598271, -76.5811726, 81.6024764, -41.3416806, 6.28318528)
COSINE = (56.2387004, -85.2398703, 64.9345727, -19.7391712, 0.999999953)


def fold_in(key: PRNGKeyArray, number: Array | int) -> PRNGKeyArray:
    """The key of a number, as `jax.random.fold_in`; also the one of that place in
    `jax.random.split`.
    """
    if not _is_threefry(key):
        return jax.random.fold_in(key, number)
    low = jnp.asarray(number).astype(jnp.uint32)
    words = jax.random.key_data(key)
    words = jnp.stack(_threefry(words, jnp.zeros_like(low), low), -1)
    # Else it would be derived again for each number that is drawn with it.
    words = jax.lax.optimization_barrier(words)
    return jax.random.wrap_key_data(words, impl="threefry2x32")


def key_of(key: PRNGKeyArray, number: int) -> PRNGKeyArray:
    """The key of a number, as `jax.random.fold_in`.

    It is computed by NumPy if the key can be read, so that nothing is compiled: to be
    called by drivers, on the host.
    """
    if not _is_readable(key):
        return jax.random.fold_in(key, number)
    return _on_host(key, np.asarray(number, np.uint32))


def parts_of(key: PRNGKeyArray, count: int) -> tuple[PRNGKeyArray, ...]:
    """A few keys as those of `jax.random.split`, by NumPy if the key can be read."""
    return tuple(key_of(key, number) for number in range(count))


def keys_of(key: PRNGKeyArray, count: int) -> PRNGKeyArray:
    """Keys as those of `jax.random.split`, by NumPy if the key can be read."""
    if not _is_readable(key):
        return jax.random.split(key, count)
    return _on_host(key, np.arange(count, dtype=np.uint32))


def _is_readable(key):
    """Whether NumPy can compute with a key."""
    return is_eager(key) and _is_threefry(key) and key.is_fully_addressable


def _on_host(key, numbers):
    words = np.asarray(jax.random.key_data(key))
    # Sums of words are meant to overflow.
    with np.errstate(over="ignore"):
        new = np.stack(_threefry(words, np.zeros_like(numbers), numbers), -1)
    new = jax.device_put(new)
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(new, impl="threefry2x32")
    return new


def split(key: PRNGKeyArray, count: int = 2) -> tuple[PRNGKeyArray, ...]:
    """Keys as those of `jax.random.split`, of which only those used cost anything."""
    return tuple(fold_in(key, number) for number in range(count))


def uniform(
    key: PRNGKeyArray,
    shape: tuple[int, ...] = (),
    dtype: Any = float,
    *,
    stream: int = 0,
) -> Float[Array, "..."]:
    """Numbers from 0 to 1, without 1, as `jax.random.uniform` in stream 0."""
    if not _is_ours(key, dtype):
        return jax.random.uniform(_streamed(key, stream), shape, dtype)
    return _unit(key, shape, stream)


def normal(
    key: PRNGKeyArray,
    shape: tuple[int, ...] = (),
    dtype: Any = float,
    *,
    stream: int = 0,
) -> Float[Array, "..."]:
    """Normal numbers: independent, and others than `jax.random.normal` has."""
    if not _is_ours(key, dtype):
        return jax.random.normal(_streamed(key, stream), shape, dtype)
    count = math.prod(shape)
    places = jax.lax.iota(np.uint32, (count + 1) // 2)
    words = jax.random.key_data(key)
    first, second = _threefry(words, jnp.full_like(places, stream), places)
    # 24 bits of each word, about 0 for the angle; one more for the side.
    share = ((first >> 8).astype(np.int32).astype(np.float32) + 0.5) * 2**-24
    turn = (second.astype(np.int32) >> 8).astype(np.float32) * 2**-25
    side = 1 - 2 * (second & 1).astype(np.int32).astype(np.float32)
    radius = jnp.sqrt(-2 * jnp.log(share))
    pair = (
        side * radius * _polynomial(COSINE, turn**2),
        radius * turn * _polynomial(SINE, turn**2),
    )
    # Else what is common to a pair would be computed for each of its two again.
    pair = jax.lax.optimization_barrier(pair)
    return jnp.concatenate(pair)[:count].reshape(shape)


def _is_threefry(key):
    return str(jax.random.key_impl(key)) == "threefry2x32"


def _is_ours(key, dtype):
    return _is_threefry(key) and jnp.result_type(dtype) == jnp.float32


def _streamed(key, stream):
    # Far above the places of any numbers that are drawn with the key itself.
    return jax.random.fold_in(key, 2**32 - 1 - stream) if stream else key


def _unit(key, shape, stream):
    count = math.prod(shape)
    places = jax.lax.iota(np.uint32, count).reshape(shape)
    words = jax.random.key_data(key)
    first, second = _threefry(words, jnp.full_like(places, stream), places)
    # 23 random bits behind the exponent of 1 are a number from 1 to 2.
    bits = (first ^ second) >> 9 | np.float32(1).view(np.uint32)
    return jax.lax.bitcast_convert_type(bits, np.float32) - 1


def _threefry(words, high, low):
    """Twenty rounds over counters of 64 bits, with keys put in after every fourth."""
    parts = [words[0], words[1], words[0] ^ words[1] ^ np.uint32(0x1BD11BDA)]
    high, low = high + parts[0], low + parts[1]
    for turn in range(5):
        for rotation in ROTATIONS[turn % 2]:
            high = high + low
            low = high ^ (low << rotation | low >> 32 - rotation)
        high = high + parts[(turn + 1) % 3]
        low = low + parts[(turn + 2) % 3] + np.uint32(turn + 1)
    return high, low


def _polynomial(coefficients, x):
    return reduce(lambda value, part: value * x + np.float32(part), coefficients)
