# SPDX-License-Identifier: Apache-2.0
"""The driver API itself: its types, ids, the function table, and the static assertions that compare the spec with cuda.h."""

from emit import BANNER, header, if_toolkit_has, if_toolkit_lacks, namespace, source
from model import OLDEST_TOOLKIT

CUDA_API = '''
#if defined(__cuda_cuda_h__) && !defined(__CUDA_API_VERSION_INTERNAL)
#error "include gen/cuda_api.hpp before cuda.h: without __CUDA_API_VERSION_INTERNAL its macros rename what is declared here"
#endif
#ifndef __CUDA_API_VERSION_INTERNAL
#define __CUDA_API_VERSION_INTERNAL
#endif
'''


def cuda_api(spec):
    """cuda.h without its renaming macros, and what an older one lacks."""
    body = CUDA_API + "#include <cuda.h>\n"
    body += "#if __has_include(<cudaProfiler.h>)\n#include <cudaProfiler.h>\n#else\nenum CUoutput_mode : unsigned int {};\n#endif\n\n"
    for entry in spec.types.newer:
        body += if_toolkit_lacks(entry["since"], entry["declaration"])
    body += "\n" + "\n".join(entry["declaration"].strip() for entry in spec.types.foreign)
    return header(body, (), "The driver's types under their plain names: cuMemAlloc is the old ABI, cuMemAlloc_v2 the new one.\n"
                            "Include this where driver functions are named; cuda.h alone gives the same in targets that link mpsshim_generated.")


def api_ids(spec):
    rows = "\n".join(f"  {function.name} = {function.id}," for function in spec.functions)
    names = "\n".join(f'    {{ApiId::{function.name}, "{function.name}"}},' for function in spec.functions)
    body = f'''enum class ApiId : std::uint16_t {{
{rows}
}};

inline constexpr std::size_t kApiCount = {len(spec.functions)};
inline constexpr int kNewestApiVersion = {max((function.since for function in spec.functions), default=0)};  // as CUDA_VERSION: the newest function's

struct ApiName {{
  ApiId id;
  std::string_view name;
}};

inline constexpr std::array<ApiName, kApiCount> kApiNames{{{{
{names}
}}}};

// The name of a function; empty for a number that is none. Ids ascend, so it is a binary search.
constexpr std::string_view name_of(ApiId id) {{
  const auto found = std::lower_bound(kApiNames.begin(), kApiNames.end(), id, [](const ApiName& row, ApiId wanted) {{ return row.id < wanted; }});
  return found != kApiNames.end() && found->id == id ? found->name : std::string_view{{}};
}}
'''
    return header(namespace("mpsshim", body), ("<algorithm>", "<array>", "<cstddef>", "<cstdint>", "<string_view>"),
                  "One number for each driver function, for ever.")


def driver_table(spec):
    symbols = [(symbol, function) for function in spec.functions for symbol in function.symbols()]
    members = "\n".join(f"  CUresult(CUDAAPI* {symbol})({function.parameters()}) = nullptr;" for symbol, function in symbols)
    rows = "\n".join(f'    {{"{symbol}", offsetof(DriverTable, {symbol})}},' for symbol, _ in symbols)
    body = f'''struct DriverTable {{
{members}
}};
static_assert(std::is_standard_layout_v<DriverTable>);

struct DriverSymbol {{
  const char* name;
  std::size_t offset;  // of the pointer in DriverTable
}};

inline constexpr std::array<DriverSymbol, {len(symbols)}> kDriverSymbols{{{{
{rows}
}}}};
static_assert(sizeof(DriverTable) == kDriverSymbols.size() * sizeof(void*));
'''
    return header(namespace("mpsshim", body), ("<array>", "<cstddef>", "<type_traits>", '"gen/cuda_api.hpp"'),
                  "Every function of a driver, by symbol and exact type. A pointer is null where the loaded driver lacks the function.")


def checks(spec):
    """The compiler compares each entry with the toolkit's own declaration."""
    rows = ""
    for function in spec.functions:
        if function.group in ("opengl", "egl", "vdpau"):
            continue  # their headers need GL, EGL and VDPAU
        for symbol in function.symbols():
            check = (f'static_assert(std::is_same_v<decltype(&::{symbol}), decltype(DriverTable::{symbol})>, '
                     f'"proto/spec/{function.group}.toml: {function.name}");')
            if function.group == "profiler":
                check = f"#if __has_include(<cudaProfiler.h>)\n{check}\n#endif"
            rows += if_toolkit_has(function.since, OLDEST_TOOLKIT, check)
    return source(namespace("mpsshim", rows), ("<type_traits>", '"gen/driver_table.hpp"'), "Compiled for its assertions alone.")


def device_attributes(spec):
    return (BANNER + "// MPSSHIM_DEVICE_ATTRIBUTE(number, value), ascending.\n"
            + "".join(f"MPSSHIM_DEVICE_ATTRIBUTE({row.number}, {row.value})  // {row.name}\n" for row in spec.attribute_overrides))
