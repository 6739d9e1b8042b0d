// SPDX-License-Identifier: Apache-2.0
// The executor's side of one argument that is not an array: prepare() checks and translates it, as<Parameter>() is what the driver gets,
// finish() runs after the driver's success. A Slot lives for one call, on the stack of serve().
#pragma once

#include <string>

#include "proto/arguments.hpp"
#include "proto/marshal/bytes.hpp"

namespace mpsshim::proto {

namespace detail {

template <class Descriptor>
struct Slot;

struct SlotBase {
  template <class Context>
  void finish(Context&) {}
};

struct HandleSlot : SlotBase {
  std::uint64_t handle = 0;
  template <class Parameter>
  Parameter as() {
    return handle_from_bits<Parameter>(handle);
  }
};

template <>
struct Slot<InStream> : HandleSlot {
  template <class Context>
  Marshalled prepare(Context& context) {
    return context.session.find(context.stream, handle) ? Marshalled::ok : Marshalled::invalid_handle;
  }
};

template <auto Member>
struct Slot<InHandle<Member>> : HandleSlot {
  template <class Context>
  Marshalled prepare(Context& context) {
    return context.session.find(context.record.*Member, handle) ? Marshalled::ok : Marshalled::invalid_handle;
  }
};

template <class T>
struct ValueSlot : SlotBase {
  T value{};
  template <class Parameter>
  Parameter as() {
    return static_cast<Parameter>(value);
  }
};

template <class>
struct MemberOf;
template <class Class, class T>
struct MemberOf<T Class::*> {
  using type = T;
};
template <auto Member>
using member_type = typename MemberOf<decltype(Member)>::type;

template <auto Member>
struct Slot<InValue<Member>> : ValueSlot<member_type<Member>> {
  template <class Context>
  Marshalled prepare(Context& context) {
    this->value = context.record.*Member;
    return Marshalled::ok;
  }
};

template <auto Member, auto Count>
struct Slot<InRange<Member, Count>> : ValueSlot<member_type<Member>> {
  template <class Context>
  Marshalled prepare(Context& context) {
    this->value = context.record.*Member;
    return context.session.owns(this->value, (context.record.*Count)()) ? Marshalled::ok : Marshalled::invalid_address;
  }
};

// One value that the driver reads or writes through a pointer.
template <class T>
struct PointeeSlot : SlotBase {
  T value{};
  template <class Parameter>
  Parameter as() {
    static_assert(sizeof(std::remove_pointer_t<Parameter>) == sizeof(T));
    return reinterpret_cast<Parameter>(&value);
  }
};

template <auto Member>
struct Slot<InPointee<Member>> : PointeeSlot<member_type<Member>> {
  template <class Context>
  Marshalled prepare(Context& context) {
    if constexpr (kIsId<member_type<Member>>) {
      return context.session.find(context.record.*Member, this->value.value) ? Marshalled::ok : Marshalled::invalid_handle;
    } else {
      this->value = context.record.*Member;
      return Marshalled::ok;
    }
  }
};

template <auto Member>
struct Slot<OutValue<Member>> : PointeeSlot<member_type<Member>> {
  template <class Context>
  Marshalled prepare(Context&) {
    return Marshalled::ok;
  }
  template <class Context>
  void finish(Context& context) {
    context.reply.*Member = this->value;
  }
};

template <auto Member, auto ReplyMember>
struct Slot<InOutValue<Member, ReplyMember>> : PointeeSlot<member_type<Member>> {
  template <class Context>
  Marshalled prepare(Context& context) {
    this->value = context.record.*Member;
    return Marshalled::ok;
  }
  template <class Context>
  void finish(Context& context) {
    context.reply.*ReplyMember = this->value;
  }
};

template <auto Member>
struct Slot<NewHandle<Member>> : PointeeSlot<std::uint64_t> {
  template <class Context>
  Marshalled prepare(Context& context) {
    return context.session.may_bind(context.record.*Member) ? Marshalled::ok : Marshalled::invalid_handle;
  }
  template <class Context>
  void finish(Context& context) {
    context.session.bind(context.record.*Member, this->value);
  }
};

template <auto Member>
struct Slot<InString<Member>> : SlotBase {
  std::string text;
  template <class Context>
  Marshalled prepare(Context& context) {
    std::span<const std::byte> piece;
    if (!context.trailing.take(context.record.*Member, 1, piece)) return Marshalled::too_large;
    text.assign(reinterpret_cast<const char*>(piece.data()), piece.size());
    return Marshalled::ok;
  }
  template <class Parameter>
  Parameter as() {
    return text.c_str();
  }
};

}  // namespace detail

}  // namespace mpsshim::proto
