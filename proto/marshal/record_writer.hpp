// SPDX-License-Identifier: Apache-2.0
// First pass of encode(): what lies in the record itself. The lengths of arrays are known after it.
#pragma once

#include <type_traits>
#include <utility>

#include "proto/arguments.hpp"
#include "proto/marshal/bytes.hpp"

namespace mpsshim::proto {

template <class Record>
struct Encoded {
  Record record{};
  StreamId stream{};  // for the header; {0} where no argument is a stream
  std::size_t trailing_bytes = 0;
};

namespace detail {

template <class Client, class Record>
class RecordWriter {
 public:
  RecordWriter(Client& client, Encoded<Record>& out) : client_(client), out_(out) {}

  template <class Handle>
  Marshalled put(InStream, Handle handle) {
    return client_.stream(handle_bits(handle), out_.stream) ? Marshalled::ok : Marshalled::invalid_handle;
  }
  template <auto Member, class T>
  Marshalled put(InValue<Member>, T value) {
    return set<Member>(value);
  }
  template <auto Member, auto Count, class T>
  Marshalled put(InRange<Member, Count>, T address) {
    return set<Member>(address);
  }
  template <auto Member, class Handle>
  Marshalled put(InHandle<Member>, Handle handle) {
    return put_id(out_.record.*Member, handle);
  }
  template <auto Member, class T>
  Marshalled put(InPointee<Member>, const T* value) {
    if (value == nullptr) return Marshalled::null_pointer;
    if constexpr (kIsId<member_t<Member>>) {
      return put_id(out_.record.*Member, *value);
    } else {
      return set<Member>(*value);
    }
  }
  template <auto Member, auto ReplyMember, class T>
  Marshalled put(InOutValue<Member, ReplyMember>, const T* value) {
    return value == nullptr ? Marshalled::null_pointer : set<Member>(*value);
  }
  template <auto Member, class Handle>
  Marshalled put(NewHandle<Member>, const Handle* handle) {
    if (handle == nullptr) return Marshalled::null_pointer;
    auto& id = out_.record.*Member;
    id = client_.template choose<kind_of(member_t<Member>{})>();
    return id.has_kind() ? Marshalled::ok : Marshalled::out_of_ids;
  }
  template <auto Member>
  Marshalled put(InString<Member>, const char* text) {
    if (text == nullptr) return Marshalled::null_pointer;
    const std::size_t length = std::strlen(text);
    if (length > std::numeric_limits<std::uint32_t>::max()) return Marshalled::too_large;
    return set<Member>(length);
  }
  template <template <class, auto, auto...> class Array, class Element, auto Count, auto... Present, class T>
  Marshalled put(Array<Element, Count, Present...>, const T* elements) {
    if constexpr (sizeof...(Present) != 0) {
      ((out_.record.*Present = elements != nullptr ? 1 : 0), ...);
      return Marshalled::ok;
    } else {
      return elements != nullptr ? Marshalled::ok : Marshalled::null_pointer;
    }
  }
  template <auto ReplyMember, class T>
  Marshalled put(OutValue<ReplyMember>, const T*) {
    return Marshalled::ok;
  }

 private:
  template <auto Member>
  using member_t = std::remove_cvref_t<decltype(std::declval<Record>().*Member)>;

  template <HandleKind Kind>
  static constexpr HandleKind kind_of(Id<Kind>) {
    return Kind;
  }
  template <auto Member, class T>
  Marshalled set(T value) {
    out_.record.*Member = static_cast<member_t<Member>>(value);
    return Marshalled::ok;
  }
  template <HandleKind Kind, class Handle>
  Marshalled put_id(Id<Kind>& id, Handle handle) {
    if constexpr (Kind == HandleKind::stream) {
      return client_.stream(handle_bits(handle), id) ? Marshalled::ok : Marshalled::invalid_handle;
    } else {
      id = Id<Kind>{handle_bits(handle)};
      return client_.knows(id) ? Marshalled::ok : Marshalled::invalid_handle;
    }
  }

  Client& client_;
  Encoded<Record>& out_;
};

}  // namespace detail

}  // namespace mpsshim::proto
