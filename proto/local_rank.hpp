// SPDX-License-Identifier: Apache-2.0
// By which variables launchers tell a process its number among those that they have started on its machine. No state.
#pragma once

namespace mpsshim::proto {

// Slurm's comes last, since a batch script has it as well, for all that it starts otherwise.
inline constexpr char kSlurmLocalRank[] = "SLURM_LOCALID";
inline constexpr char kSlurmStep[] = "SLURM_STEP_ID";  // of what srun has started, and of nothing else
inline constexpr const char* kLocalRanks[] = {"OMPI_COMM_WORLD_LOCAL_RANK",
                                              "MPI_LOCALRANKID",
                                              "MV2_COMM_WORLD_LOCAL_RANK",
                                              "PALS_LOCAL_RANKID",
                                              "FLUX_TASK_LOCAL_ID",
                                              "JSM_NAMESPACE_LOCAL_RANK",
                                              "LOCAL_RANK",
                                              kSlurmLocalRank};

}  // namespace mpsshim::proto
