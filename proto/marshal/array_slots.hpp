// SPDX-License-Identifier: Apache-2.0
// The executor's side of an array argument (see slots.hpp). Elements are copied to aligned memory of their own; ids among them are translated
// one by one. Room for what comes back is taken before the driver is called, so that nothing is done whose answer does not fit.
#pragma once

#include <vector>

#include "proto/marshal/slots.hpp"

namespace mpsshim::proto {

namespace detail {

template <class Element>
struct ArraySlot : SlotBase {
  using Stored = std::conditional_t<kIsId<Element>, std::uint64_t, Element>;
  std::vector<Stored> elements;
  bool present = false;

  template <class Parameter>
  Parameter as() {
    return present ? reinterpret_cast<Parameter>(const_cast<std::remove_const_t<Stored>*>(elements.data())) : nullptr;
  }
  template <class Context>
  Marshalled read(Context& context, std::uint64_t count) {
    std::span<const std::byte> piece;
    if (!context.trailing.take(count, sizeof(Element), piece)) return Marshalled::too_large;
    elements.resize(static_cast<std::size_t>(count));
    if (!piece.empty()) std::memcpy(static_cast<void*>(elements.data()), piece.data(), piece.size());
    if constexpr (kIsId<Element>) {
      for (std::uint64_t& element : elements) {
        if (!context.session.find(Element{element}, element)) return Marshalled::invalid_handle;
      }
    }
    return Marshalled::ok;
  }
  template <class Context>
  Marshalled reserve(Context& context, std::uint64_t count) {
    if (!context.reply_trailing.take(count, sizeof(Element), room)) return Marshalled::too_large;
    if (elements.empty()) elements.resize(static_cast<std::size_t>(count));  // zeroed: never bytes of another session
    return Marshalled::ok;
  }
  void write() {
    if (present && !room.empty()) std::memcpy(room.data(), elements.data(), room.size());
  }
  std::span<std::byte> room;
};

template <class Element, auto Count, auto... Present>
struct Slot<InArray<Element, Count, Present...>> : ArraySlot<Element> {
  template <class Context>
  Marshalled prepare(Context& context) {
    this->present = is_present<Present...>(context.record);
    return this->present ? this->read(context, (context.record.*Count)()) : Marshalled::ok;
  }
};

template <class Element, auto Count, auto... Present>
struct Slot<OutArray<Element, Count, Present...>> : ArraySlot<Element> {
  static_assert(!kIsId<Element>, "ids that the driver gives back are bound one by one: write the function by hand");
  template <class Context>
  Marshalled prepare(Context& context) {
    this->present = is_present<Present...>(context.record);
    return this->present ? this->reserve(context, (context.record.*Count)()) : Marshalled::ok;
  }
  template <class Context>
  void finish(Context&) {
    this->write();
  }
};

template <class Element, auto Count, auto... Present>
struct Slot<InOutArray<Element, Count, Present...>> : ArraySlot<Element> {
  static_assert(!kIsId<Element>, "ids that the driver gives back are bound one by one: write the function by hand");
  template <class Context>
  Marshalled prepare(Context& context) {
    this->present = is_present<Present...>(context.record);
    if (!this->present) return Marshalled::ok;
    const Marshalled outcome = this->read(context, (context.record.*Count)());
    return outcome == Marshalled::ok ? this->reserve(context, (context.record.*Count)()) : outcome;
  }
  template <class Context>
  void finish(Context&) {
    this->write();
  }
};

}  // namespace detail

}  // namespace mpsshim::proto
