# SPDX-License-Identifier: Apache-2.0
"""Prints results so that two runs of one program can be compared bit for bit, and times beside them.

Results go to standard output, one line each; times go to standard error, where nobody compares them.
"""
import contextlib
import hashlib
import sys
import time

import numpy


def result(name, array):
    """Prints name, shape, element type and a digest of the bytes of `array` (anything numpy.asarray takes)."""
    host = numpy.ascontiguousarray(numpy.asarray(array))
    if host.dtype.kind in "fc" and not numpy.isfinite(host).all():
        sys.exit(f"{name}: holds values that are not finite")
    digest = hashlib.sha256(host.tobytes()).hexdigest()[:16]
    print(f"{name} {host.dtype}{list(host.shape)} {digest}", flush=True)


def close(name, array, expected, tolerance):
    """Prints whether `array` agrees with `expected` to `tolerance` (relative, in the 2-norm); exits where it does not."""
    got, want = numpy.asarray(array, dtype=numpy.float64), numpy.asarray(expected, dtype=numpy.float64)
    error = numpy.linalg.norm(got - want) / max(numpy.linalg.norm(want), 1e-300)
    if not error <= tolerance:
        sys.exit(f"{name}: relative error {error:.3e}, more than {tolerance:g}")
    print(f"{name} agrees with the reference to {tolerance:g}", flush=True)


@contextlib.contextmanager
def timed(name):
    """Prints the seconds that the block took, to standard error."""
    start = time.perf_counter()
    yield
    print(f"{name}: {time.perf_counter() - start:.4f} s", file=sys.stderr, flush=True)
