# SPDX-License-Identifier: Apache-2.0
"""ResNet-18 with random weights, one image at a time, eagerly: images per second, GPU time included."""
import argparse
import sys
import time

START = time.perf_counter()
import torch

IMPORTED = time.perf_counter()
torch.zeros(1, device="cuda")
torch.cuda.synchronize()
TOUCHED = time.perf_counter()
import torchvision

from report import result

parser = argparse.ArgumentParser(description=__doc__)
parser.add_argument("--seconds", type=float, default=3.0, help="to measure for (default 3)")
parser.add_argument("--wait", action="store_true",
                    help="when all is warm print \"ready\" to standard output and wait for a line on standard input")
options = parser.parse_args()

torch.manual_seed(1)
model = torchvision.models.resnet18(weights=None).cuda().eval()
image = torch.randn(1, 3, 224, 224).cuda()
with torch.inference_mode():
    for _ in range(20):
        output = model(image)
    torch.cuda.synchronize()
    result("output", output.cpu())
    if options.wait:
        print("ready", flush=True)
        sys.stdin.readline()
    images, begin = 0, time.perf_counter()
    while time.perf_counter() - begin < options.seconds:
        output = model(image)
        torch.cuda.synchronize()
        images += 1
    elapsed = time.perf_counter() - begin
print(f"first touch {TOUCHED - IMPORTED:.3f} s, {images / elapsed:.1f} images/s", file=sys.stderr)
