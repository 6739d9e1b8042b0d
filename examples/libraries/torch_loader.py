# SPDX-License-Identifier: Apache-2.0
"""Feeds the GPU from worker processes through pinned memory, with copies that overlap the work."""
import torch
from torch.utils.data import DataLoader, Dataset

from report import result, timed


class Numbers(Dataset):
    """1,024 samples of 4,096 floats, each from its own seed."""

    def __len__(self):
        return 1024

    def __getitem__(self, index):
        return torch.randn(4096, generator=torch.Generator().manual_seed(index)), index


def main():
    torch.zeros(1, device="cuda")  # before the workers are forked, as programs do
    loader = DataLoader(Numbers(), batch_size=64, num_workers=2, pin_memory=True)
    total, indices = torch.zeros(4096, device="cuda", dtype=torch.float64), []
    with timed("an epoch"):
        for batch, index in loader:
            if not batch.is_pinned():
                raise SystemExit("a batch is not in pinned memory")
            total += batch.to("cuda", non_blocking=True).double().sum(dim=0)
            indices.append(index.to("cuda", non_blocking=True))
        torch.cuda.synchronize()
    result("sums", total.cpu())
    result("order", torch.cat(indices).cpu())


if __name__ == "__main__":
    main()
