// SPDX-License-Identifier: Apache-2.0
// The attacks of a siege: commands of hostile_client (programs/attacks.hpp), each with what it is given.
#pragma once

namespace mpsshim::test {

struct Attack {
  const char* command;
  bool fills_device = false;  // not beside others' work on a GPU
};
inline constexpr Attack kAttacks[] = {{"scribble header 2000"},
                                      {"scribble waiters 2000"},
                                      {"scribble replies 2000"},
                                      {"scribble ring 2000"},
                                      {"scribble fences 2000"},
                                      {"scribble all 2000"},
                                      {"forge 2000"},
                                      {"punch"},
                                      {"unmap"},
                                      {"jam_doorbells"},
                                      {"random_records 2000"},
                                      {"deaf 2000"},
                                      {"flood 2000"},
                                      {"halves"},
                                      {"descriptors"},
                                      {"linger hello"},
                                      {"linger garbage"},
                                      {"linger unread"},
                                      {"linger refused"},
                                      {"linger commands"},
                                      {"stuck_image"},
                                      {"churn 2000"},
                                      {"connect 500"},
                                      {"sessions 100"},
                                      {"silent 300"},
                                      {"commands 200"},
                                      {"heir"},
                                      {"segments 4096"},
                                      {"images 1048576"},
                                      {"modules 100"},
                                      {"objects"},
                                      {"streams 4"},
                                      {"leases"},
                                      {"waits 600"},
                                      {"lookups 2000"},
                                      {"chunks 2097152", true},
                                      {"descriptors_as_memory"},
                                      {"external"},
                                      {"externals"},
                                      {"borrow"},
                                      {"inspect"},
                                      {"large_entry 5000000000"},
                                      {"many_objects 4"},
                                      {"linked 4"},
                                      {"new_images 4 4194304"},
                                      {"stop_in_call"}};

}  // namespace mpsshim::test
