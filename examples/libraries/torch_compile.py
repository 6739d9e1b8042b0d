# SPDX-License-Identifier: Apache-2.0
"""Compiles a function with torch.compile (Triton kernels), runs it forward and backward, compares with eager."""
import torch

from report import result, timed

torch.manual_seed(9)
torch.backends.cuda.matmul.allow_tf32 = False


def attention_like(q, k, v):
    weights = torch.softmax(q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5, dim=-1)
    return torch.nn.functional.gelu(weights @ v).square().sum(dim=-1)


q, k, v = (torch.randn(8, 128, 64).cuda().requires_grad_() for _ in range(3))
expected = attention_like(q, k, v)
expected.sum().backward()
gradients = [t.grad.clone() for t in (q, k, v)]
for t in (q, k, v):
    t.grad = None
with timed("compiled"):
    got = torch.compile(attention_like)(q, k, v)
    got.sum().backward()
    torch.cuda.synchronize()
torch.testing.assert_close(got, expected, rtol=1e-4, atol=1e-4)
for name, t, gradient in zip("qkv", (q, k, v), gradients):
    torch.testing.assert_close(t.grad, gradient, rtol=1e-3, atol=1e-3)
    result(f"gradient of {name}", t.grad.cpu())
result("value", got.detach().cpu())
