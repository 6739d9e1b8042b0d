// SPDX-License-Identifier: Apache-2.0
// Arrays and mipmapped arrays of this process: ids with the descriptions that the driver gave of them, so that queries and the bounds of copies
// need nobody. Levels and planes are arrays that end with their parents.
//
// Any thread. CUDA forbids using a handle while it is destroyed. What an array holds is lost with its executor: a process that has arrays is
// then told so (recover = none).
#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "gen/cuda_api.hpp"
#include "interposer/forward/begin.hpp"
#include "interposer/local/acting_session.hpp"
#include "proto/handle_table.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

struct Array {
  proto::ArrayId id;
  CUDA_ARRAY3D_DESCRIPTOR descriptor{};
  std::uint32_t levels = 0;  // of a mipmapped array
  bool is_part = false;
  CUcontext context = nullptr;
  RecipeBook::Key recipe = 0;
  Mutex mutex;
  std::map<std::uint32_t, Array*> parts GUARDED_BY(mutex);  // by level or plane

  [[nodiscard]] bool is_mipmapped() const { return levels != 0; }
};

// Bytes of one element; 0: a format whose blocks are not elements (compressed, planar).
[[nodiscard]] std::uint32_t element_bytes(const CUDA_ARRAY3D_DESCRIPTOR& descriptor);

class Arrays {
 public:
  [[nodiscard]] static Arrays& instance();

  // Null if the handle is none of that kind.
  [[nodiscard]] Array* resolve(CUarray handle);
  [[nodiscard]] Array* resolve(CUmipmappedArray handle);

  // `levels` 0: a plain array.
  [[nodiscard]] CUresult create(const CUDA_ARRAY3D_DESCRIPTOR& descriptor, std::uint32_t levels, CUcontext context, Array*& array);
  // A mipmapped array in memory of another interface (ExternalMemories).
  [[nodiscard]] CUresult map(proto::ExternalMemoryId memory, std::uint64_t offset, const CUDA_ARRAY3D_DESCRIPTOR& descriptor, std::uint32_t levels,
                             CUcontext context, Array*& array);
  // A level of a mipmapped array or a plane of an array; asked for twice it is the same.
  [[nodiscard]] CUresult part(Array& parent, std::uint32_t number, Array*& array);
  // CUDA_ERROR_INVALID_HANDLE: there is none, or another thread was faster.
  [[nodiscard]] CUresult destroy(proto::ArrayId id);
  void destroy_all_of(CUcontext context);

 private:
  [[nodiscard]] CUresult make(const proto::ArrayCreateRecord& what, CUcontext context, Array*& array);
  // `record` is its own recipe; the array is in the table where this is CUDA_SUCCESS.
  template <typename Record, typename Reply>
  [[nodiscard]] CUresult add(std::unique_ptr<Array> object, Record record, Reply& reply, Array*& array);

  Mutex ending_mutex_;  // one array ends at a time
  Mutex mutex_;         // while arrays come and go
  proto::HandleTable<proto::HandleKind::array, Array> table_{ActingSession::index()};
};

// What cuTexObject and cuSurfObject calls have made of this context ends with it.
void destroy_samplers_of(CUcontext context);

}  // namespace mpsshim::interposer::forward
