# SPDX-License-Identifier: Apache-2.0
"""Trains a small convolutional network with cuDNN's deterministic algorithms and prints the weights' digests."""
import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch
from torch import nn

from report import result, timed

torch.manual_seed(7)
torch.use_deterministic_algorithms(True)
torch.backends.cudnn.benchmark = False

model = nn.Sequential(
    nn.Conv2d(3, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
    nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
    nn.Conv2d(64, 64, 3, stride=2, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(64 * 8 * 8, 10),
).cuda()
optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
generator = torch.Generator().manual_seed(11)
losses = []
with timed("30 steps"):
    for step in range(30):
        images = torch.randn(64, 3, 32, 32, generator=generator).cuda()
        labels = torch.randint(0, 10, (64,), generator=generator).cuda()
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
result("losses", losses)
for name, parameter in model.named_parameters():
    result(name, parameter.detach().cpu())
