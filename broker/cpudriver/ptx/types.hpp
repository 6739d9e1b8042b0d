// SPDX-License-Identifier: Apache-2.0
//
// The vocabulary of PTX instructions: types, state spaces and modifiers. Modifier order is free in hand-written
// PTX, so an instruction is an opcode, a set of modifiers and a short list of types in order.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string_view>

namespace mpsshim::ptx {

enum class Type : std::uint8_t { none, pred, b8, b16, b32, b64, u8, u16, u32, u64, s8, s16, s32, s64, f16, f16x2, bf16, bf16x2, f32, f64 };

enum class Space : std::uint8_t { none, reg, global, constant, shared, local, param };

[[nodiscard]] std::optional<Type> type_by_name(std::string_view name);
[[nodiscard]] std::uint32_t size_of(Type type);  // Bytes in memory; 0 for pred and none.

// Bytes of one lane in a register row: 8- and 16-bit values are kept in 32.
[[nodiscard]] inline std::uint32_t lane_bytes(Type type) { return size_of(type) == 8 ? 8 : 4; }

// clang-format off: it makes a staircase of the table
#define MPSSHIM_PTX_MODIFIERS(X) \
  X(global, "global") X(constant, "const") X(shared, "shared") X(shared_cta, "shared::cta") X(local, "local") X(param, "param") \
  X(rn, "rn") X(rz, "rz") X(rm, "rm") X(rp, "rp") X(rna, "rna") X(rni, "rni") X(rzi, "rzi") X(rmi, "rmi") X(rpi, "rpi") \
  X(approx, "approx") X(full, "full") X(ftz, "ftz") X(sat, "sat") X(lo, "lo") X(hi, "hi") X(wide, "wide") X(cc, "cc") \
  X(eq, "eq") X(ne, "ne") X(lt, "lt") X(le, "le") X(gt, "gt") X(ge, "ge") X(ls, "ls") X(hs, "hs") X(equ, "equ") X(neu, "neu") \
  X(ltu, "ltu") X(leu, "leu") X(gtu, "gtu") X(geu, "geu") X(num, "num") X(nan, "nan") X(NaN, "NaN") X(xorsign, "xorsign") \
  X(abs, "abs") X(and_, "and") X(or_, "or") X(xor_, "xor") X(add, "add") X(inc, "inc") X(dec, "dec") X(min, "min") X(max, "max") \
  X(exch, "exch") X(cas, "cas") X(popc, "popc") X(v2, "v2") X(v4, "v4") X(nc, "nc") X(volatile_, "volatile") X(weak, "weak") \
  X(relaxed, "relaxed") X(acquire, "acquire") X(release, "release") X(acq_rel, "acq_rel") X(sc, "sc") X(cta, "cta") \
  X(cluster, "cluster") X(gpu, "gpu") X(sys, "sys") X(gl, "gl") X(uni, "uni") X(sync, "sync") X(arrive, "arrive") X(red, "red") \
  X(warp, "warp") X(aligned, "aligned") X(up, "up") X(down, "down") X(bfly, "bfly") X(idx, "idx") X(all, "all") X(any, "any") \
  X(ballot, "ballot") X(left, "l") X(right, "r") X(wrap, "wrap") X(clamp, "clamp") X(shiftamt, "shiftamt") X(to, "to") \
  X(finite, "finite") X(infinite, "infinite") X(number, "number") X(notanumber, "notanumber") X(normal, "normal") \
  X(subnormal, "subnormal") X(f4e, "f4e") X(b4e, "b4e") X(rc8, "rc8") X(ecl, "ecl") X(ecr, "ecr") X(rc16, "rc16") X(ca, "ca") \
  X(cg, "cg") X(cs, "cs") X(lu, "lu") X(cv, "cv") X(wb, "wb") X(wt, "wt") X(evict_normal, "L1::evict_normal") \
  X(evict_unchanged, "L1::evict_unchanged") X(evict_first, "L1::evict_first") X(evict_last, "L1::evict_last") \
  X(no_allocate, "L1::no_allocate") X(prefetch64, "L2::64B") X(prefetch128, "L2::128B") X(prefetch256, "L2::256B") \
  X(noftz, "noftz") X(relu, "relu") X(async, "async") X(commit_group, "commit_group") X(wait_group, "wait_group") \
  X(wait_all, "wait_all") X(L1, "L1") X(L2, "L2") X(wait, "wait") X(launch_dependents, "launch_dependents")
// clang-format on

enum class Mod : std::uint8_t {
#define X(id, text) id,
  MPSSHIM_PTX_MODIFIERS(X)
#undef X
      count_
};

[[nodiscard]] std::optional<Mod> modifier_by_name(std::string_view name);
[[nodiscard]] std::string_view name_of(Mod mod);

class ModSet {
 public:
  constexpr ModSet() = default;
  template <class... Mods>
  static constexpr ModSet of(Mods... mods) {
    ModSet set;
    (set.add(mods), ...);
    return set;
  }
  constexpr void add(Mod m) { words_[index(m) / 64] |= std::uint64_t{1} << (index(m) % 64); }
  [[nodiscard]] constexpr bool has(Mod m) const { return (words_[index(m) / 64] >> (index(m) % 64) & 1) != 0; }
  [[nodiscard]] constexpr ModSet operator|(const ModSet& o) const {
    ModSet set;
    for (std::size_t i = 0; i < words_.size(); ++i) set.words_[i] = words_[i] | o.words_[i];
    return set;
  }
  [[nodiscard]] constexpr ModSet operator&(const ModSet& o) const {
    ModSet set;
    for (std::size_t i = 0; i < words_.size(); ++i) set.words_[i] = words_[i] & o.words_[i];
    return set;
  }
  [[nodiscard]] constexpr bool empty() const { return (words_[0] | words_[1]) == 0; }
  [[nodiscard]] constexpr bool contains(const ModSet& o) const { return ((o.words_[0] & ~words_[0]) | (o.words_[1] & ~words_[1])) == 0; }

 private:
  static constexpr std::size_t index(Mod m) { return static_cast<std::size_t>(m); }
  std::array<std::uint64_t, 2> words_{};
};
static_assert(static_cast<int>(Mod::count_) <= 128, "ModSet holds 128 modifiers");

}  // namespace mpsshim::ptx
