// SPDX-License-Identifier: Apache-2.0
// How the arguments of an automatic call travel. gen/arguments.hpp lists, for each automatic record and in the order of the C function,
// one of these types for each argument; client and executor both work through that list (proto/marshal). They hold no data.
//
//   value behind a pointer      Pointee in the record, Value in the reply
//   arrays and strings          trailing bytes, in the order of the arguments, each beginning at a multiple of 8
//   count members               functions of the record, so client and executor compute a length from the same bytes
//
// Nothing here trusts anything: what the executor must check (ids, device ranges, lengths) is visible in the descriptor's type.
#pragma once

#include <cstdint>

#include "proto/ids.hpp"

namespace mpsshim::proto {

// Where the record's header carries the stream.
struct InStream {};

// A number, as it is.
template <auto RecordMember>
struct InValue {};

// An id of the session; its kind is the member's type.
template <auto RecordMember>
struct InHandle {};

// A device address whose next `Count(record)` bytes the call uses; the executor checks that they are the session's.
template <auto RecordMember, auto Count>
struct InRange {};

// const T*: one T, by value in the record.
template <auto RecordMember>
struct InPointee {};

// CUxxx*: the client chooses the id, puts it in the record, and stores it where the pointer says once the record is accepted.
template <auto RecordMember>
struct NewHandle {};

// T*: from the reply; not stored where the pointer is null.
template <auto ReplyMember>
struct OutValue {};

// T*: its value goes out in the record and comes back in the reply.
template <auto RecordMember, auto ReplyMember>
struct InOutValue {};

// const char*, NUL-terminated: its bytes without the terminator as trailing bytes, their number in the record.
template <auto BytesMember>
struct InString {};

// const T*: `(record.*Count)()` elements as trailing bytes. Present, where given, is the member that is 0 for a null pointer.
template <class Element, auto Count, auto... Present>
struct InArray {};

// T*: as many elements as trailing bytes of the reply.
template <class Element, auto Count, auto... Present>
struct OutArray {};

// T*: there and back.
template <class Element, auto Count, auto... Present>
struct InOutArray {};

// A post's reply.
struct NoReply {
  static constexpr std::size_t kBodyBytes = 0;
  static constexpr bool kHasTrailing = false;
};

// Arguments<CuXRecord>: `Reply`, and `kList`, a std::tuple of the types above. Only automatic records have one.
template <class Record>
struct Arguments;

}  // namespace mpsshim::proto
