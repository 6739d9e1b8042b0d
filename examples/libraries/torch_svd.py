# SPDX-License-Identifier: Apache-2.0
"""Singular values, eigenvalues, QR and a linear solve by cuSOLVER through PyTorch, checked against the matrices."""
import torch

from report import close, result, timed

torch.manual_seed(5)
a = torch.randn(512, 384, dtype=torch.float64).cuda()
with timed("decompositions"):
    u, s, vh = torch.linalg.svd(a, full_matrices=False)
    values, vectors = torch.linalg.eigh(a.T @ a)
    q, r = torch.linalg.qr(a)
    x = torch.linalg.solve(a.T @ a, a.T @ torch.ones(512, dtype=torch.float64, device="cuda"))
close("SVD", ((u * s) @ vh).cpu(), a.cpu(), 1e-12)
close("eigenvectors", ((vectors * values) @ vectors.T).cpu(), (a.T @ a).cpu(), 1e-12)
close("QR", (q @ r).cpu(), a.cpu(), 1e-12)
close("singular values", (s**2).cpu(), values.flip(0).cpu(), 1e-10)
result("singular values", s.cpu())
result("solution", x.cpu())
