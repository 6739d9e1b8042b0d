// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/ptx/opcodes.hpp"

#include <unordered_map>

namespace mpsshim::ptx {
namespace {

constexpr ModSet kNothing;
constexpr ModSet kRounding = ModSet::of(Mod::rn, Mod::rz, Mod::rm, Mod::rp);
constexpr ModSet kFloat = kRounding | ModSet::of(Mod::ftz, Mod::sat);
constexpr ModSet kApprox = ModSet::of(Mod::approx, Mod::ftz);
constexpr ModSet kExtreme = ModSet::of(Mod::ftz, Mod::NaN, Mod::xorsign, Mod::abs, Mod::relu);
constexpr ModSet kHalves = ModSet::of(Mod::lo, Mod::hi, Mod::wide);
constexpr ModSet kCompare = ModSet::of(Mod::eq, Mod::ne, Mod::lt, Mod::le, Mod::gt, Mod::ge, Mod::lo, Mod::ls, Mod::hi, Mod::hs, Mod::equ, Mod::neu,
                                       Mod::ltu, Mod::leu, Mod::gtu, Mod::geu, Mod::num, Mod::nan, Mod::and_, Mod::or_, Mod::xor_, Mod::ftz);
constexpr ModSet kSpaces = ModSet::of(Mod::global, Mod::constant, Mod::shared, Mod::shared_cta, Mod::local, Mod::param);
constexpr ModSet kScopes = ModSet::of(Mod::cta, Mod::cluster, Mod::gpu, Mod::sys);
constexpr ModSet kOrders = ModSet::of(Mod::weak, Mod::volatile_, Mod::relaxed, Mod::acquire, Mod::release);
constexpr ModSet kCaching =
    ModSet::of(Mod::ca, Mod::cg, Mod::cs, Mod::lu, Mod::cv, Mod::wb, Mod::wt, Mod::nc, Mod::evict_normal, Mod::evict_unchanged, Mod::evict_first,
               Mod::evict_last, Mod::no_allocate, Mod::prefetch64, Mod::prefetch128, Mod::prefetch256);
constexpr ModSet kMemory = kSpaces | kScopes | kOrders | kCaching | ModSet::of(Mod::v2, Mod::v4);
constexpr ModSet kAtomic =
    kScopes | ModSet::of(Mod::global, Mod::shared, Mod::shared_cta, Mod::relaxed, Mod::acquire, Mod::release, Mod::acq_rel, Mod::noftz, Mod::add,
                         Mod::min, Mod::max, Mod::inc, Mod::dec, Mod::and_, Mod::or_, Mod::xor_, Mod::exch, Mod::cas);
constexpr ModSet kBarrier = ModSet::of(Mod::sync, Mod::arrive, Mod::red, Mod::warp, Mod::cta, Mod::aligned, Mod::popc, Mod::and_, Mod::or_);

const OpcodeRow kRows[] = {
    {"abs", Op::abs, 1, "tt", ModSet::of(Mod::ftz)},
    {"activemask", Op::activemask, 1, "u", kNothing},
    {"add", Op::add, 1, "ttt", kFloat | ModSet::of(Mod::cc)},
    {"addc", Op::addc, 1, "ttt", ModSet::of(Mod::cc)},
    {"and", Op::and_, 1, "ttt", kNothing},
    {"atom", Op::atom, 1, "", kAtomic},
    {"bar", Op::bar, 0, "", kBarrier},
    {"barrier", Op::bar, 0, "", kBarrier | ModSet::of(Mod::cluster, Mod::wait, Mod::acquire, Mod::release, Mod::relaxed)},
    {"bfe", Op::bfe, 1, "ttuu", kNothing},
    {"bfi", Op::bfi, 1, "tttuu", kNothing},
    {"bfind", Op::bfind, 1, "ut", ModSet::of(Mod::shiftamt)},
    {"bmsk", Op::bmsk, 1, "ttt", ModSet::of(Mod::wrap, Mod::clamp)},
    {"bra", Op::bra, 0, "", ModSet::of(Mod::uni)},
    {"brev", Op::brev, 1, "tt", kNothing},
    {"call", Op::call, 0, "", ModSet::of(Mod::uni)},
    {"clz", Op::clz, 1, "ut", kNothing},
    {"cnot", Op::cnot, 1, "tt", kNothing},
    {"copysign", Op::copysign, 1, "ttt", kNothing},
    {"cos", Op::cos, 1, "tt", kApprox},
    {"cvt", Op::cvt, 2, "2t", kFloat | ModSet::of(Mod::rni, Mod::rzi, Mod::rmi, Mod::rpi, Mod::relu)},
    {"cvta", Op::cvta, 1, "", kSpaces | ModSet::of(Mod::to)},
    {"div", Op::div, 1, "ttt", kRounding | ModSet::of(Mod::approx, Mod::full, Mod::ftz)},
    {"dp2a", Op::dp2a, 2, "uuuu", ModSet::of(Mod::lo, Mod::hi)},
    {"dp4a", Op::dp4a, 2, "uuuu", kNothing},
    {"ex2", Op::ex2, 1, "tt", kApprox},
    {"exit", Op::exit, 0, "", kNothing},
    {"fence", Op::fence, 0, "", kScopes | ModSet::of(Mod::sc, Mod::acq_rel, Mod::acquire, Mod::release)},
    {"fma", Op::fma, 1, "tttt", kFloat | ModSet::of(Mod::relu)},
    {"fns", Op::fns, 1, "ttuu", kNothing},
    {"griddepcontrol", Op::griddepcontrol, 0, "", ModSet::of(Mod::wait, Mod::launch_dependents)},
    {"isspacep", Op::isspacep, 0, "", kSpaces},
    {"ld", Op::ld, 1, "", kMemory},
    {"ldu", Op::ld, 1, "", ModSet::of(Mod::global, Mod::v2, Mod::v4)},
    {"lg2", Op::lg2, 1, "tt", kApprox},
    {"lop3", Op::lop3, 1, "tttti", kNothing},
    {"mad", Op::mad, 1, "tttt", kFloat | kHalves | ModSet::of(Mod::cc)},
    {"mad24", Op::mad24, 1, "tttt", ModSet::of(Mod::lo, Mod::hi, Mod::sat)},
    {"madc", Op::madc, 1, "tttt", ModSet::of(Mod::lo, Mod::hi, Mod::cc)},
    {"match", Op::match, 1, "", ModSet::of(Mod::any, Mod::all, Mod::sync)},
    {"max", Op::max, 1, "ttt", kExtreme},
    {"membar", Op::fence, 0, "", ModSet::of(Mod::cta, Mod::gl, Mod::sys)},
    {"min", Op::min, 1, "ttt", kExtreme},
    {"mov", Op::mov, 1, "", kNothing},
    {"mul", Op::mul, 1, "ttt", kFloat | kHalves},
    {"mul24", Op::mul24, 1, "ttt", ModSet::of(Mod::lo, Mod::hi)},
    {"nanosleep", Op::nanosleep, 1, "", kNothing},
    {"neg", Op::neg, 1, "tt", ModSet::of(Mod::ftz)},
    {"not", Op::not_, 1, "tt", kNothing},
    {"or", Op::or_, 1, "ttt", kNothing},
    {"popc", Op::popc, 1, "ut", kNothing},
    {"prefetch", Op::prefetch, 0, "", ModSet::of(Mod::global, Mod::local, Mod::L1, Mod::L2)},
    {"prefetchu", Op::prefetch, 0, "", ModSet::of(Mod::L1)},
    {"prmt", Op::prmt, 1, "tttt", ModSet::of(Mod::f4e, Mod::b4e, Mod::rc8, Mod::ecl, Mod::ecr, Mod::rc16)},
    {"rcp", Op::rcp, 1, "tt", kRounding | kApprox},
    {"red", Op::red, 1, "", kAtomic},
    {"redux", Op::redux, 1, "", ModSet::of(Mod::sync, Mod::add, Mod::min, Mod::max, Mod::and_, Mod::or_, Mod::xor_)},
    {"rem", Op::rem, 1, "ttt", kNothing},
    {"ret", Op::ret, 0, "", ModSet::of(Mod::uni)},
    {"rsqrt", Op::rsqrt, 1, "tt", kApprox},
    {"sad", Op::sad, 1, "tttt", kNothing},
    {"selp", Op::selp, 1, "tttP", kNothing},
    {"set", Op::set, 2, "", kCompare},
    {"setp", Op::setp, 1, "", kCompare},
    {"shf", Op::shf, 1, "tttu", ModSet::of(Mod::left, Mod::right, Mod::wrap, Mod::clamp)},
    {"shfl", Op::shfl, 1, "", ModSet::of(Mod::sync, Mod::up, Mod::down, Mod::bfly, Mod::idx)},
    {"shl", Op::shl, 1, "ttu", kNothing},
    {"shr", Op::shr, 1, "ttu", kNothing},
    {"sin", Op::sin, 1, "tt", kApprox},
    {"slct", Op::slct, 2, "222t", kNothing},
    {"sqrt", Op::sqrt, 1, "tt", kRounding | kApprox},
    {"st", Op::st, 1, "", kMemory},
    {"sub", Op::sub, 1, "ttt", kFloat | ModSet::of(Mod::cc)},
    {"subc", Op::subc, 1, "ttt", ModSet::of(Mod::cc)},
    {"tanh", Op::tanh, 1, "tt", ModSet::of(Mod::approx)},
    {"testp", Op::testp, 1, "pt", ModSet::of(Mod::finite, Mod::infinite, Mod::number, Mod::notanumber, Mod::normal, Mod::subnormal)},
    {"trap", Op::trap, 0, "", kNothing},
    {"vote", Op::vote, 1, "", ModSet::of(Mod::sync, Mod::all, Mod::any, Mod::uni, Mod::ballot)},
    {"xor", Op::xor_, 1, "ttt", kNothing},
};

}  // namespace

const OpcodeRow* find_opcode(std::string_view name) {
  static const auto* kByName = [] {
    auto* map = new std::unordered_map<std::string_view, const OpcodeRow*>;
    for (const OpcodeRow& row : kRows) (*map)[row.name] = &row;
    return map;  // Kept for good: loads may run while the process ends.
  }();
  const auto found = kByName->find(name);
  return found == kByName->end() ? nullptr : found->second;
}

}  // namespace mpsshim::ptx
