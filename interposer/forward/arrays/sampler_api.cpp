// SPDX-License-Identifier: Apache-2.0
// Texture and surface objects (CUDA Driver API manual, "Texture Object Management", "Surface Object Management"). A handle is the driver's own:
// kernels get it as an argument. What a program asks about one is what it gave.
#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <vector>

#include "gen/api_declarations.hpp"
#include "interposer/forward/arrays/arrays.hpp"
#include "interposer/forward/memory/copy.hpp"
#include "interposer/local/acting_session.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

namespace {

struct Sampler {
  CUDA_RESOURCE_DESC resource{};
  CUDA_TEXTURE_DESC texture{};
  std::optional<CUDA_RESOURCE_VIEW_DESC> view;
  CUcontext context = nullptr;
  RecipeBook::Key recipe = 0;
};

// Textures and surfaces count in one number space each.
class Samplers {
 public:
  [[nodiscard]] static Samplers& of(bool are_surfaces) {
    using Both = std::array<Samplers, 2>;
    Both& both = PerSession<Both>::get([] {
      auto* made = new Both();
      (*made)[1].are_surfaces_ = true;
      return made;
    });
    return both[are_surfaces ? 1 : 0];
  }

  [[nodiscard]] CUresult create(Sampler sampler, std::uint64_t& handle);
  [[nodiscard]] CUresult destroy(std::uint64_t handle);
  [[nodiscard]] std::optional<Sampler> find(std::uint64_t handle) {
    const std::lock_guard lock(mutex_);
    const auto found = samplers_.find(handle);
    return found != samplers_.end() ? std::optional(found->second) : std::nullopt;
  }
  void destroy_all_of(CUcontext context);

 private:
  bool are_surfaces_ = false;  // always the same
  Mutex mutex_;
  std::map<std::uint64_t, Sampler> samplers_ GUARDED_BY(mutex_);
};

// CUDA_ERROR_INVALID_VALUE: no resource of this process. `array` is its id where it is an array. Linear memory must begin in the process's own:
// as natively it may be declared longer than that is (programs count padding that they do not allocate); what is fetched beyond is the kernel's
// affair, like any of its loads.
CUresult check_resource(const CUDA_RESOURCE_DESC& resource, bool is_surface, proto::ArrayId& array) {
  const Array* found = nullptr;
  Space space{};
  if (resource.flags != 0) return CUDA_ERROR_INVALID_VALUE;
  switch (resource.resType) {
    case CU_RESOURCE_TYPE_ARRAY: found = Arrays::instance().resolve(resource.res.array.hArray); break;
    case CU_RESOURCE_TYPE_MIPMAPPED_ARRAY: found = is_surface ? nullptr : Arrays::instance().resolve(resource.res.mipmap.hMipmappedArray); break;
    case CU_RESOURCE_TYPE_LINEAR: return is_surface ? CUDA_ERROR_INVALID_VALUE : classify_fixed(resource.res.linear.devPtr, 1, Named::device, space);
    case CU_RESOURCE_TYPE_PITCH2D:
      return is_surface ? CUDA_ERROR_INVALID_VALUE : classify_fixed(resource.res.pitch2D.devPtr, 1, Named::device, space);
  }
  if (found == nullptr) return CUDA_ERROR_INVALID_VALUE;
  array = found->id;
  return CUDA_SUCCESS;
}

template <typename T>
void append(std::vector<std::byte>& bytes, const T& description) {
  const auto more = std::as_bytes(std::span(&description, 1));
  bytes.insert(bytes.end(), more.begin(), more.end());
}

CUresult Samplers::create(Sampler sampler, std::uint64_t& handle) {
  proto::SamplerCreateRecord record{};
  if (const CUresult error = check_resource(sampler.resource, are_surfaces_, record.array); error != CUDA_SUCCESS) return error;
  record.is_surface = are_surfaces_;
  record.has_view = sampler.view.has_value();
  std::vector<std::byte> trailing;
  append(trailing, sampler.resource);
  if (!are_surfaces_) append(trailing, sampler.texture);
  if (sampler.view) append(trailing, *sampler.view);
  proto::SamplerCreateReply reply{};
  if (const CUresult error = session().call_kept(record, trailing, reply, sampler.recipe); error != CUDA_SUCCESS) return error;
  handle = reply.handle;
  const std::lock_guard lock(mutex_);
  samplers_[handle] = sampler;
  return CUDA_SUCCESS;
}

CUresult Samplers::destroy(std::uint64_t handle) {
  RecipeBook::Key recipe = 0;
  {
    const std::lock_guard lock(mutex_);
    const auto found = samplers_.find(handle);
    if (found == samplers_.end()) return CUDA_SUCCESS;
    recipe = found->second.recipe;
    samplers_.erase(found);
  }
  return session().channel().post<proto::ArrayObjectDestroyRecord>({}, 0, [&](proto::ArrayObjectDestroyRecord& record, std::byte*, Place place) {
    record.object = handle;
    record.kind = are_surfaces_ ? proto::ArrayObject::surface : proto::ArrayObject::texture;
    session().end_recipe(recipe, place);
  });
}

void Samplers::destroy_all_of(CUcontext context) {
  std::vector<std::uint64_t> ended;
  {
    const std::lock_guard lock(mutex_);
    for (const auto& [handle, sampler] : samplers_) {
      if (sampler.context == context) ended.push_back(handle);
    }
  }
  for (const std::uint64_t handle : ended) (void)destroy(handle);
}

// As natively, ending what is no object, or is none any more, is no error: programs keep handles that they have never made, and end some twice.
CUresult destroy_sampler(bool is_surface, std::uint64_t handle) {
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  return Samplers::of(is_surface).destroy(handle);
}

template <typename F>
CUresult with_sampler(bool is_surface, std::uint64_t handle, F&& f) {
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  const std::optional<Sampler> sampler = Samplers::of(is_surface).find(handle);
  return sampler ? f(*sampler) : CUDA_ERROR_INVALID_VALUE;
}

}  // namespace

void destroy_samplers_of(CUcontext context) {
  for (const bool are_surfaces : {false, true}) Samplers::of(are_surfaces).destroy_all_of(context);
}

}  // namespace mpsshim::interposer::forward

namespace mpsshim::interposer::api {

using namespace forward;

CUresult cuTexObjectCreate(CUtexObject* pTexObject, const CUDA_RESOURCE_DESC* pResDesc, const CUDA_TEXTURE_DESC* pTexDesc,
                           const CUDA_RESOURCE_VIEW_DESC* pResViewDesc) {
  if (pTexObject == nullptr || pResDesc == nullptr || pTexDesc == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  Sampler sampler{*pResDesc, *pTexDesc, std::nullopt, owning_context(), 0};
  if (pResViewDesc != nullptr) sampler.view = *pResViewDesc;
  std::uint64_t handle = 0;
  const CUresult error = Samplers::of(false).create(sampler, handle);
  if (error == CUDA_SUCCESS) *pTexObject = handle;
  return error;
}

CUresult cuTexObjectDestroy(CUtexObject texObject) { return destroy_sampler(false, texObject); }

CUresult cuTexObjectGetResourceDesc(CUDA_RESOURCE_DESC* pResDesc, CUtexObject texObject) {
  if (pResDesc == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_sampler(false, texObject, [&](const Sampler& sampler) {
    *pResDesc = sampler.resource;
    return CUDA_SUCCESS;
  });
}

CUresult cuTexObjectGetTextureDesc(CUDA_TEXTURE_DESC* pTexDesc, CUtexObject texObject) {
  if (pTexDesc == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_sampler(false, texObject, [&](const Sampler& sampler) {
    *pTexDesc = sampler.texture;
    return CUDA_SUCCESS;
  });
}

CUresult cuTexObjectGetResourceViewDesc(CUDA_RESOURCE_VIEW_DESC* pResViewDesc, CUtexObject texObject) {
  if (pResViewDesc == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_sampler(false, texObject, [&](const Sampler& sampler) {
    if (!sampler.view) return CUDA_ERROR_INVALID_VALUE;  // none was given
    *pResViewDesc = *sampler.view;
    return CUDA_SUCCESS;
  });
}

CUresult cuSurfObjectCreate(CUsurfObject* pSurfObject, const CUDA_RESOURCE_DESC* pResDesc) {
  if (pSurfObject == nullptr || pResDesc == nullptr) return CUDA_ERROR_INVALID_VALUE;
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  std::uint64_t handle = 0;
  const CUresult error = Samplers::of(true).create({*pResDesc, {}, std::nullopt, owning_context(), 0}, handle);
  if (error == CUDA_SUCCESS) *pSurfObject = handle;
  return error;
}

CUresult cuSurfObjectDestroy(CUsurfObject surfObject) { return destroy_sampler(true, surfObject); }

CUresult cuSurfObjectGetResourceDesc(CUDA_RESOURCE_DESC* pResDesc, CUsurfObject surfObject) {
  if (pResDesc == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_sampler(true, surfObject, [&](const Sampler& sampler) {
    *pResDesc = sampler.resource;
    return CUDA_SUCCESS;
  });
}

}  // namespace mpsshim::interposer::api
