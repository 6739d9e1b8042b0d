// SPDX-License-Identifier: Apache-2.0
// One node of a graph of the program's own that is set to kernels with more and more parameters.
#pragma once

#include <cstddef>

namespace mpsshim::test {

// Made with the one of kBlobWords' kernels that has so many bytes of parameters, then set to each of them, launched, and compared with the model.
// Throws Failure, for a driver's error as for a wrong word. The calling thread's context is current.
void use_own_node(std::size_t parameter_bytes);

}  // namespace mpsshim::test
