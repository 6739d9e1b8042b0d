# SPDX-License-Identifier: Apache-2.0
"""JAX: jit and grad of a small network, a scan, and a random key's numbers."""
import os

os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ.setdefault("XLA_FLAGS", "--xla_gpu_deterministic_ops=true")
import jax
import jax.numpy as jnp

from report import result, timed


def loss(weights, x, y):
    hidden = jnp.tanh(x @ weights[0])
    return jnp.mean((hidden @ weights[1] - y) ** 2)


@jax.jit
def step(weights, x, y):
    value, gradient = jax.value_and_grad(loss)(weights, x, y)
    return [w - 0.1 * g for w, g in zip(weights, gradient)], value


keys = jax.random.split(jax.random.key(0), 4)
weights = [jax.random.normal(keys[0], (128, 256)) * 0.1, jax.random.normal(keys[1], (256, 8)) * 0.1]
x, y = jax.random.normal(keys[2], (512, 128)), jax.random.normal(keys[3], (512, 8))
print(f"on {jax.devices()[0].device_kind}")
with timed("20 steps"):
    values = []
    for _ in range(20):
        weights, value = step(weights, x, y)
        values.append(value)
    jax.block_until_ready(weights)
if not values[-1] < values[0]:
    raise SystemExit(f"the loss did not fall: {values[0]} to {values[-1]}")
_, sums = jax.lax.scan(lambda carry, row: (carry + row, carry.sum()), jnp.zeros(128), x)
result("losses", jnp.stack(values))
for index, w in enumerate(weights):
    result(f"weights {index}", w)
result("scan", sums)
