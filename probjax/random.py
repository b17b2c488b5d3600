"""Random numbers from the keys of `jax.random`, in fewer instructions on a CPU.

On a CPU, JAX runs the twenty rounds of threefry as a loop over arrays. Here the rounds
are unrolled, so that XLA fuses them into one pass over the numbers: six times as fast,
with the same bits. Programs for other platforms use JAX's own threefry: it is unrolled
there, or one kernel on a GPU if the option `jax_threefry_gpu_kernel_lowering` is set.

Normal numbers are computed in pairs from the two words that threefry returns, by the
method of Box and Muller:

    sqrt(-2 log u) (cos 2 pi t, sin 2 pi t),    u from 0 to 1, t from -1/2 to 1/2,

with polynomials for |t| <= 1/4 and a random sign of the cosine for the other half. This
is twice as fast as inverting the distribution function, and reaches 5.9 standard
deviations.

A key has several streams, numbered by the upper half of threefry's counter, which
`jax.random` leaves at 0. Streams of a key are as independent as keys made by splitting,
and need no new key.

Keys that are not threefry keys, and dtypes other than float32, are passed to JAX.

**Keys of `rbg` and `unsafe_rbg`** are accepted everywhere, typed (`jax.random.key(0,
impl="rbg")`) or as legacy keys of the option `jax_default_prng_impl`. Set this option
before the first call, because JAX does not compile again when it changes. Under `vmap`,
JAX draws the numbers of all keys of a batch from the first key of the batch. So the
numbers of a chain, particle or row depend on which others are computed with it on the
same device: on the number of devices, of chains or particles, and on the chunk size of
`marginal_log_likelihood`. A run is repeated exactly only with all of these, the same
platform and the same version of XLA. Chains stay independent of each other.

Reference: Salmon, Moraes, Dror and Shaw, "Parallel random numbers: as easy as 1, 2, 3",
SC 2011; Box and Muller, Ann. Math. Statist. 29, 610 (1958).
"""

import math
from functools import reduce
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.extend.random import threefry2x32_p

from probjax.checks import is_concrete, is_eager
from probjax.types import Array, Float, PRNGKeyArray

ROTATIONS = ((13, 15, 26, 6), (17, 29, 16, 24))
# Coefficients of sin(2 pi t) / t and cos(2 pi t) in powers of t^2, highest power first;
# the error is at most 5e-8 for t^2 up to 1/16.
SINE = (39.7598271, -76.5811726, 81.6024764, -41.3416806, 6.28318528)
COSINE = (56.2387004, -85.2398703, 64.9345727, -19.7391712, 0.999999953)


def fold_in(key: PRNGKeyArray, number: Array | int) -> PRNGKeyArray:
    """Return the same key as `jax.random.fold_in`.

    It is also the key at index `number` of `jax.random.split`. Outside traced code it
    is computed with NumPy, so that drivers compile nothing.
    """
    if not _is_threefry(key):
        return jax.random.fold_in(key, number)
    if _is_readable(key) and is_concrete(number):
        return _fold_in_numpy(key, np.asarray(number, np.uint32))
    low = jnp.asarray(number).astype(jnp.uint32)
    words = jax.random.key_data(key)
    words = jnp.stack(_hashed(words, jnp.zeros_like(low), low), -1)
    # Otherwise XLA would derive the key again for each number that is drawn with it.
    return _wrapped(jax.lax.optimization_barrier(words), key)


def split(key: PRNGKeyArray, count: int = 2) -> tuple[PRNGKeyArray, ...]:
    """Return the keys of `jax.random.split` as a tuple.

    In compiled code, keys that are not used are not computed.
    """
    return tuple(fold_in(key, number) for number in range(count))


def split_array(key: PRNGKeyArray, count: int) -> PRNGKeyArray:
    """Return the keys of `jax.random.split`, without compiling outside traced code."""
    if not _is_readable(key):
        return jax.random.split(key, count)
    return _fold_in_numpy(key, np.arange(count, dtype=np.uint32))


def numpy_generator(key: PRNGKeyArray) -> np.random.Generator:
    """Return a generator of NumPy with a key as its seed, for the host.

    >>> round(numpy_generator(jax.random.key(0)).random(), 3)
    0.637
    """
    return np.random.default_rng(np.asarray(jax.random.key_data(key)))


def _is_readable(key):
    """Whether NumPy can compute with a key."""
    return is_eager(key) and _is_threefry(key) and key.is_fully_addressable


def _fold_in_numpy(key, numbers):
    words = np.asarray(jax.random.key_data(key))
    # Integer overflow is part of threefry.
    with np.errstate(over="ignore"):
        new = np.stack(_threefry(words, np.zeros_like(numbers), numbers), -1)
    return _wrapped(jax.device_put(new), key)


def _wrapped(words, key):
    """Key of the given words, typed if `key` is typed and legacy otherwise."""
    if jnp.issubdtype(key.dtype, jax.dtypes.prng_key):
        return jax.random.wrap_key_data(words, impl="threefry2x32")
    return words


def uniform(
    key: PRNGKeyArray,
    shape: tuple[int, ...] = (),
    dtype: Any = float,
    *,
    stream: int = 0,
) -> Float[Array, "..."]:
    """Draw from the uniform distribution on (0, 1), without 0 and 1.

    In stream 0 the numbers are those of `jax.random.uniform` plus half of their spacing
    (2^-24 in float32). A number of exactly 0, one in 2^23, would accept any move,
    however improbable.
    """
    if not _is_supported(key, dtype):
        numbers = jax.random.uniform(_stream_key(key, stream), shape, dtype)
        return numbers + jnp.finfo(numbers.dtype).eps / 2
    count = math.prod(shape)
    counters = jax.lax.iota(np.uint32, count).reshape(shape)
    words = jax.random.key_data(key)
    first, second = _hashed(words, jnp.full_like(counters, stream), counters)
    # 23 random mantissa bits with the exponent of 1 are a number from 1 to 2.
    bits = (first ^ second) >> 9 | np.float32(1).view(np.uint32)
    return jax.lax.bitcast_convert_type(bits, np.float32) - np.float32(1 - 2**-24)


def normal(
    key: PRNGKeyArray,
    shape: tuple[int, ...] = (),
    dtype: Any = float,
    *,
    stream: int = 0,
) -> Float[Array, "..."]:
    """Draw from the standard normal distribution.

    The numbers differ from those of `jax.random.normal`.
    """
    if not _is_supported(key, dtype):
        return jax.random.normal(_stream_key(key, stream), shape, dtype)
    count = math.prod(shape)
    counters = jax.lax.iota(np.uint32, (count + 1) // 2)
    words = jax.random.key_data(key)
    first, second = _hashed(words, jnp.full_like(counters, stream), counters)
    # 24 bits of each word are used: signed for the angle, t from -1/4 to 1/4. The
    # lowest bit of the second word is the sign of the cosine.
    u = ((first >> 8).astype(np.int32).astype(np.float32) + 0.5) * 2**-24
    t = (second.astype(np.int32) >> 8).astype(np.float32) * 2**-25
    sign = 1 - 2 * (second & 1).astype(np.int32).astype(np.float32)
    radius = jnp.sqrt(-2 * jnp.log(u))
    pair = (
        sign * radius * _polynomial(COSINE, t**2),
        radius * t * _polynomial(SINE, t**2),
    )
    # Otherwise XLA would compute the factors that a pair shares twice.
    pair = jax.lax.optimization_barrier(pair)
    return jnp.concatenate(pair)[:count].reshape(shape)


def _is_threefry(key):
    return str(jax.random.key_impl(key)) == "threefry2x32"


def _is_supported(key, dtype):
    return _is_threefry(key) and jnp.result_type(dtype) == jnp.float32


def _stream_key(key, stream):
    # Numbers this large are not folded in elsewhere, so that streams do not collide.
    return jax.random.fold_in(key, 2**32 - 1 - stream) if stream else key


@jax.jit
def _hashed(words, high, low):
    """Threefry of 64-bit counters, in the form for the platform of the program.

    It is a function of its own under `jit`, so that both forms are traced once for each
    shape and not once for each call.
    """
    return jax.lax.platform_dependent(
        words, high, low, cpu=_threefry, default=_threefry_of_jax
    )


def _threefry_of_jax(words, high, low):
    first, second = threefry2x32_p.bind(words[0], words[1], high, low)
    # Inside `shard_map` the primitive's results lack the axes along which its operands
    # vary. XLA removes this 0.
    zero = (words[0] | high | low) & np.uint32(0)
    return first | zero, second | zero


def _threefry(words, high, low):
    """Twenty rounds on 64-bit counters; a key is added after every fourth round."""
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
