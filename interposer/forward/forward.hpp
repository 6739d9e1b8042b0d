// SPDX-License-Identifier: Apache-2.0
// Included by gen/api_forwards.hpp for automatic calls (modes post and call of the spec). The spec has none today: every forwarded function
// is written by hand in this folder. A first automatic call needs forward_post and forward_call here, which marshal by gen/arguments.hpp.
#pragma once
