# SPDX-License-Identifier: Apache-2.0
"""CuPy: a RawKernel compiled by NVRTC, FFT, sort, reductions, streams and the asynchronous allocator."""
import cupy
import numpy

from report import close, result, timed

rng = numpy.random.default_rng(2)
host = rng.standard_normal(1 << 18).astype(numpy.float32)
saxpy = cupy.RawKernel(r"""
extern "C" __global__ void saxpy(float a, const float *x, float *y, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) y[i] = a * x[i] + y[i];
}""", "saxpy")
with timed("CuPy"):
    x, y = cupy.asarray(host), cupy.ones(host.size, dtype=cupy.float32)
    saxpy(((host.size + 255) // 256,), (256,), (numpy.float32(2.5), x, y, numpy.int32(host.size)))
    spectrum = cupy.fft.fft(x.astype(cupy.complex64))
    ordered = cupy.sort(x)
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(4)]
    cupy.cuda.Device().synchronize()
    parts = []
    for index, stream in enumerate(streams):
        with stream:
            parts.append(cupy.square(x[index::4]).sum())
    for stream in streams:
        stream.synchronize()
    with cupy.cuda.using_allocator(cupy.cuda.MemoryAsyncPool().malloc):
        z = cupy.arange(1 << 20, dtype=cupy.int64)
        total = int((z * 3).sum())
close("saxpy", cupy.asnumpy(y), 2.5 * host + 1, 1e-6)
close("FFT", numpy.abs(cupy.asnumpy(spectrum)), numpy.abs(numpy.fft.fft(host)), 1e-4)
if not (cupy.asnumpy(ordered) == numpy.sort(host)).all():
    raise SystemExit("sort: the order is wrong")
if total != 3 * ((1 << 20) - 1) * (1 << 20) // 2:
    raise SystemExit(f"sum over memory of the asynchronous pool: {total}")
result("saxpy", cupy.asnumpy(y))
result("FFT", cupy.asnumpy(spectrum))
result("sort", cupy.asnumpy(ordered))
result("sums on four streams", [cupy.asnumpy(part) for part in parts])
