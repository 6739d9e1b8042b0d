// SPDX-License-Identifier: Apache-2.0
// A library that is only to be found.
extern "C" __attribute__((visibility("default"))) int found_library() { return 1; }
