// SPDX-License-Identifier: Apache-2.0
// The client's half of automatic calls, outward: C arguments into a record with trailing bytes.
// Called by the application's thread, under no lock; nothing is kept. The caller's pointers are trusted as the driver trusts them.
//
//   Encoded<Record> encoded;
//   encode(client, encoded, trailing, arguments...)              -> Marshalled::ok: write the record and send it
//   store(encoded, reply, reply_trailing, arguments...)          after the reply, or at once for a post (proto/marshal/store.hpp)
//
// `client` offers: bool stream(std::uint64_t handle, StreamId&) (NULL and the two special streams included), bool knows(Id<Kind>),
// Id<Kind> choose<Kind>() ({0}: none left).
#pragma once

#include <tuple>

#include "proto/marshal/record_writer.hpp"

namespace mpsshim::proto {

namespace detail {

// Which arguments have trailing bytes. Said by type, so that no overload is chosen by the constness of a pointer.
template <class Descriptor>
inline constexpr bool kHasInputBytes = false;
template <auto Member>
inline constexpr bool kHasInputBytes<InString<Member>> = true;
template <class Element, auto Count, auto... Present>
inline constexpr bool kHasInputBytes<InArray<Element, Count, Present...>> = true;
template <class Element, auto Count, auto... Present>
inline constexpr bool kHasInputBytes<InOutArray<Element, Count, Present...>> = true;

// Second pass: the arrays and strings.
template <class Record>
class TrailingWriter {
 public:
  TrailingWriter(const Record& record, std::span<std::byte> trailing) : record_(record), cursor_(trailing) {}

  template <class Descriptor, class T>
  requires(!kHasInputBytes<Descriptor>) Marshalled put(Descriptor, const T&) { return Marshalled::ok; }
  template <auto Member>
  Marshalled put(InString<Member>, const char* text) {
    return copy(text, record_.*Member, 1);
  }
  template <class Element, auto Count, auto... Present, class T>
  Marshalled put(InArray<Element, Count, Present...>, const T* elements) {
    return is_present<Present...>(record_) ? copy(elements, (record_.*Count)(), sizeof(Element)) : Marshalled::ok;
  }
  template <class Element, auto Count, auto... Present, class T>
  Marshalled put(InOutArray<Element, Count, Present...>, const T* elements) {
    return is_present<Present...>(record_) ? copy(elements, (record_.*Count)(), sizeof(Element)) : Marshalled::ok;
  }
  [[nodiscard]] std::size_t used() const { return cursor_.used(); }

 private:
  Marshalled copy(const void* from, std::uint64_t count, std::size_t element_bytes) {
    std::span<std::byte> piece;
    if (!cursor_.take(count, element_bytes, piece)) return Marshalled::too_large;
    if (!piece.empty()) std::memcpy(piece.data(), from, piece.size());
    return Marshalled::ok;
  }

  const Record& record_;
  TrailingCursor<std::byte> cursor_;
};

// Calls put(descriptor, argument) for each pair until one fails.
template <class Record, class Writer, class... Args>
Marshalled put_all(Writer& writer, const Args&... args) {
  Marshalled outcome = Marshalled::ok;
  std::apply([&](auto... descriptors) { static_cast<void>((((outcome = writer.put(descriptors, args)) == Marshalled::ok) && ...)); },
             Arguments<Record>::kList);
  return outcome;
}

}  // namespace detail

template <class Record, class Client, class... Args>
[[nodiscard]] Marshalled encode(Client& client, Encoded<Record>& out, std::span<std::byte> trailing, const Args&... args) {
  detail::RecordWriter<Client, Record> fields(client, out);
  if (const Marshalled outcome = detail::put_all<Record>(fields, args...); outcome != Marshalled::ok) return outcome;
  detail::TrailingWriter<Record> arrays(out.record, trailing);
  const Marshalled outcome = detail::put_all<Record>(arrays, args...);
  out.trailing_bytes = arrays.used();
  return outcome;
}

}  // namespace mpsshim::proto
