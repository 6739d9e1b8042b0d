# SPDX-License-Identifier: Apache-2.0
"""Captures a step of training into a CUDA graph, replays it, and compares with the steps run eagerly."""
import os

os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
import torch
from torch import nn

from report import result, timed

torch.use_deterministic_algorithms(True)


def make():
    torch.manual_seed(3)
    model = nn.Sequential(nn.Linear(256, 512), nn.Tanh(), nn.Linear(512, 16)).cuda()
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


batches = [torch.randn(128, 256, generator=torch.Generator().manual_seed(i)) for i in range(20)]
targets = [torch.randn(128, 16, generator=torch.Generator().manual_seed(100 + i)) for i in range(20)]


def eager():
    model, optimizer = make()
    for batch, target in zip(batches, targets):
        optimizer.zero_grad(set_to_none=True)
        nn.functional.mse_loss(model(batch.cuda()), target.cuda()).backward()
        optimizer.step()
    return model


def graphed():
    model, optimizer = make()
    state = {key: value.clone() for key, value in model.state_dict().items()}
    batch, target = torch.empty(128, 256, device="cuda"), torch.empty(128, 16, device="cuda")
    batch.normal_(), target.normal_()
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            optimizer.zero_grad(set_to_none=True)
            nn.functional.mse_loss(model(batch), target).backward()
            optimizer.step()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    optimizer.zero_grad(set_to_none=True)
    with torch.cuda.graph(graph):
        loss = nn.functional.mse_loss(model(batch), target)
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        for key, value in model.state_dict().items():
            value.copy_(state[key])
    for source, wanted in zip(batches, targets):
        batch.copy_(source)
        target.copy_(wanted)
        graph.replay()
    result("last loss", loss.detach().cpu())
    return model


with timed("eager"):
    expected = eager()
    torch.cuda.synchronize()
with timed("graphs"):
    got = graphed()
    torch.cuda.synchronize()
for (name, parameter), other in zip(got.named_parameters(), expected.parameters()):
    torch.testing.assert_close(parameter, other)
    result(name, parameter.detach().cpu())
