// SPDX-License-Identifier: Apache-2.0
// What the shadow of NVIDIA's management library asks of this one (proto/management_table.hpp). Any thread; constant.
#pragma once

#include "proto/management_table.hpp"

namespace mpsshim::interposer::forward {

[[nodiscard]] const proto::ManagementTable& management_table();

}  // namespace mpsshim::interposer::forward
