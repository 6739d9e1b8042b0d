# SPDX-License-Identifier: Apache-2.0
"""One worker of several that share a GPU: products of two random 4096 x 4096 matrices, each waited for."""
import argparse
import os
import sys

import torch

from report import result, timed

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--size", type=int, default=4096, help="rows and columns of the matrices (default 4096)")
parser.add_argument("--iterations", type=int, default=10, help="products (default 10)")
parser.add_argument("--seed", type=int, default=1, help="of the matrices (default 1)")
options = parser.parse_args()

print(f"[worker] PID = {os.getpid()}", file=sys.stderr)
torch.manual_seed(options.seed)
a = torch.randn(options.size, options.size, device="cuda:0")
b = torch.randn(options.size, options.size, device="cuda:0")
with timed(f"{options.iterations} products"):
    for i in range(options.iterations):
        c = a @ b
        torch.cuda.synchronize()
        print(f"[worker] iteration {i + 1} of {options.iterations} done", flush=True)
result("product", c.cpu())
