// SPDX-License-Identifier: Apache-2.0
//
// From what a load call was given to the PTX texts to compile. The pointer is trusted as far as the driver API must
// trust it: its headers say how long it is. Whoever has the image from elsewhere checks image::length_of first.
#pragma once

#include <cuda.h>

#include <cstddef>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace mpsshim::cpudriver {

// CUDA_SUCCESS: one text for each container. CUDA_ERROR_NO_BINARY_FOR_GPU: well formed, but cubins only;
// CUDA_ERROR_INVALID_IMAGE: not an image, or broken. `why` then holds a sentence.
CUresult read_image_texts(const void* image, std::vector<std::string>& texts, std::string& why);

// The same of a host object or an archive of such (a file of nvcc -dc, libcudadevrt.a): the fat binaries that lie in it.
CUresult read_object_texts(std::span<const std::byte> object, std::vector<std::string>& texts, std::string& why);

// Among several texts, NVIDIA's device runtime gives way to the engine's own.
void leave_out_device_runtime(std::vector<std::string>& texts);

// The texts as one container that read_image_texts takes back, whole: what cuLinkComplete calls a cubin.
std::vector<std::byte> write_linked_image(std::span<const std::string> texts);

}  // namespace mpsshim::cpudriver
