// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/ptx/special_registers.hpp"

namespace mpsshim::ptx {
namespace {

struct SpecialRow {
  std::string_view name;
  std::string_view component;
  Special row;
  bool is_wide = false;
};

constexpr SpecialRow kSpecialRows[] = {
    {"%tid", "x", Special::tid_x},
    {"%tid", "y", Special::tid_y},
    {"%tid", "z", Special::tid_z},
    {"%ntid", "x", Special::ntid_x},
    {"%ntid", "y", Special::ntid_y},
    {"%ntid", "z", Special::ntid_z},
    {"%ctaid", "x", Special::ctaid_x},
    {"%ctaid", "y", Special::ctaid_y},
    {"%ctaid", "z", Special::ctaid_z},
    {"%nctaid", "x", Special::nctaid_x},
    {"%nctaid", "y", Special::nctaid_y},
    {"%nctaid", "z", Special::nctaid_z},
    {"%laneid", "", Special::laneid},
    {"%warpid", "", Special::warpid},
    {"%nwarpid", "", Special::nwarpid},
    {"%smid", "", Special::smid},
    {"%nsmid", "", Special::nsmid},
    {"%lanemask_eq", "", Special::lanemask_eq},
    {"%lanemask_le", "", Special::lanemask_le},
    {"%lanemask_lt", "", Special::lanemask_lt},
    {"%lanemask_ge", "", Special::lanemask_ge},
    {"%lanemask_gt", "", Special::lanemask_gt},
    {"%envreg1", "", Special::envreg1},
    {"%envreg2", "", Special::envreg2},
    {"%total_smem_size", "", Special::total_smem_size},
    {"%dynamic_smem_size", "", Special::dynamic_smem_size},
    {"%gridid", "", Special::gridid, true},
    {"%reserved_smem_offset_begin", "", Special::reserved_smem},
    {"%reserved_smem_offset_0", "", Special::reserved_smem},
    {"%reserved_smem_offset_1", "", Special::reserved_smem_1},
    {"%reserved_smem_offset_end", "", Special::reserved_smem_end},
    // Every block is a cluster of its own: launches in larger ones are refused.
    {"%cluster_ctarank", "", Special::zero},
    {"%cluster_nctarank", "", Special::one},
    {"%clusterid", "x", Special::ctaid_x},
    {"%nclusterid", "x", Special::nctaid_x},
    {"%cluster_ctaid", "x", Special::zero},
    {"%cluster_nctaid", "x", Special::one},
    {"%clusterid", "y", Special::ctaid_y},
    {"%nclusterid", "y", Special::nctaid_y},
    {"%cluster_ctaid", "y", Special::zero},
    {"%cluster_nctaid", "y", Special::one},
    {"%clusterid", "z", Special::ctaid_z},
    {"%nclusterid", "z", Special::nctaid_z},
    {"%cluster_ctaid", "z", Special::zero},
    {"%cluster_nctaid", "z", Special::one},
};

}  // namespace

std::optional<SpecialRegister> special_register(std::string_view name, std::string_view component) {
  for (const SpecialRow& row : kSpecialRows) {
    if (row.name == name && row.component == component) return SpecialRegister{row.row, row.is_wide};
  }
  return std::nullopt;
}

}  // namespace mpsshim::ptx
