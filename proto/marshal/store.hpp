// SPDX-License-Identifier: Apache-2.0
// The client's half of automatic calls, homeward: a reply into the caller's memory. Called by the thread that made the call.
// The reply comes from shared memory, so its length is checked; what it says is the executor's word.
#pragma once

#include <tuple>

#include "proto/marshal/record_writer.hpp"

namespace mpsshim::proto {

namespace detail {

// Which arguments bring something back. Said by type, so that no overload is chosen by the constness of a pointer.
template <class Descriptor>
inline constexpr bool kHasOutput = false;
template <auto Member>
inline constexpr bool kHasOutput<OutValue<Member>> = true;
template <auto Member, auto ReplyMember>
inline constexpr bool kHasOutput<InOutValue<Member, ReplyMember>> = true;
template <auto Member>
inline constexpr bool kHasOutput<NewHandle<Member>> = true;
template <class Element, auto Count, auto... Present>
inline constexpr bool kHasOutput<OutArray<Element, Count, Present...>> = true;
template <class Element, auto Count, auto... Present>
inline constexpr bool kHasOutput<InOutArray<Element, Count, Present...>> = true;

template <class Record>
class ResultReader {
 public:
  using Reply = typename Arguments<Record>::Reply;
  ResultReader(const Record& record, const Reply& reply, std::span<const std::byte> trailing) : record_(record), reply_(reply), cursor_(trailing) {}

  template <class Descriptor, class T>
  requires(!kHasOutput<Descriptor>) void get(Descriptor, const T&) {}
  template <auto Member, class T>
  void get(OutValue<Member>, T* value) {
    if (value != nullptr) *value = static_cast<T>(reply_.*Member);
  }
  template <auto Member, auto ReplyMember, class T>
  void get(InOutValue<Member, ReplyMember>, T* value) {
    *value = static_cast<T>(reply_.*ReplyMember);
  }
  template <auto Member, class Handle>
  void get(NewHandle<Member>, Handle* handle) {
    *handle = handle_from_bits<Handle>((record_.*Member).value);
  }
  template <class Element, auto Count, auto... Present, class T>
  void get(OutArray<Element, Count, Present...>, T* elements) {
    if (is_present<Present...>(record_)) copy(elements, (record_.*Count)(), sizeof(Element));
  }
  template <class Element, auto Count, auto... Present, class T>
  void get(InOutArray<Element, Count, Present...>, T* elements) {
    if (is_present<Present...>(record_)) copy(elements, (record_.*Count)(), sizeof(Element));
  }

 private:
  void copy(void* to, std::uint64_t count, std::size_t element_bytes) {
    std::span<const std::byte> piece;
    if (cursor_.take(count, element_bytes, piece) && !piece.empty()) std::memcpy(to, piece.data(), piece.size());
  }

  const Record& record_;
  const Reply& reply_;
  TrailingCursor<const std::byte> cursor_;
};

}  // namespace detail

// A reply shorter than promised leaves the caller's memory as it was from there on.
template <class Record, class... Args>
void store(const Encoded<Record>& encoded, const typename Arguments<Record>::Reply& reply, std::span<const std::byte> reply_trailing,
           const Args&... args) {
  detail::ResultReader<Record> reader(encoded.record, reply, reply_trailing);
  std::apply([&](auto... descriptors) { (reader.get(descriptors, args), ...); }, Arguments<Record>::kList);
}

}  // namespace mpsshim::proto
