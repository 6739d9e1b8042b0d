# SPDX-License-Identifier: Apache-2.0
"""Reads the functions that a toolkit's headers declare, in the form that the spec keeps them.

Nothing is preprocessed: the headers keep to one form, `CUresult CUDAAPI name(arguments);`, and say by macros which ABI version and
which per-thread variant a plain name stands for. cuda.h declares the older versions once more behind __CUDA_API_VERSION_INTERNAL.
"""

import re
from dataclasses import dataclass
from pathlib import Path

HEADERS = ("cuda.h", "cudaProfiler.h", "cudaGL.h", "cudaEGL.h", "cudaVDPAU.h")
TYPEDEF_HEADERS = ("cudaTypedefs.h", "cudaProfilerTypedefs.h", "cudaGLTypedefs.h", "cudaEGLTypedefs.h", "cudaVDPAUTypedefs.h")

# Types of GL, EGL and VDPAU, by what they are in the x86-64 ABI: their headers need not be installed.
FOREIGN_TYPES = {
    "GLuint": "unsigned int", "GLenum": "unsigned int", "CUGLDeviceList": "int",
    "EGLImageKHR": "void*", "EGLStreamKHR": "void*", "EGLSyncKHR": "void*", "EGLint": "int",
    "VdpDevice": "unsigned int", "VdpVideoSurface": "unsigned int", "VdpOutputSurface": "unsigned int",
    "VdpGetProcAddress*": "void*",
}


@dataclass
class HeaderArgument:
    type: str
    name: str


@dataclass
class HeaderFunction:
    symbol: str
    arguments: list[HeaderArgument]
    module: str               # the manual's module, such as CUDA_STREAM
    per_thread: str = ""      # ptsz, ptds or nothing
    since: int = 0            # driver version that has it first, from the Typedefs headers

    def types(self):
        return [argument.type for argument in self.arguments]


def _without_comments(text):
    return re.sub(r"//[^\n]*", "", re.sub(r"/\*.*?\*/", "", text, flags=re.S))


def _without_windows(text):
    return re.sub(r"^#ifdef _WIN32.*?^#endif[^\n]*", "", text, flags=re.S | re.M)


def normalise_type(text):
    """One space between words, stars at the type: `const void  *` becomes `const void*`."""
    text = re.sub(r"\bCUDAAPI\b", " ", text)
    text = re.sub(r"\s+", " ", text).strip()
    text = re.sub(r"\s*\*\s*", "*", text)
    text = re.sub(r"\*(const)\b", r"* \1", text)
    if text in FOREIGN_TYPES:
        return FOREIGN_TYPES[text]
    for foreign, own in FOREIGN_TYPES.items():
        text = re.sub(rf"\b{re.escape(foreign)}(?=\W|$)", own, text)
    return text


def parse_argument(text):
    match = re.fullmatch(r"\s*(.*?[\s*])(\w+)\s*(\[\d*\])?\s*", text, flags=re.S)
    if not match:
        raise ValueError(f"argument {text!r} was not understood")
    type_text = match[1] + ("*" if match[3] else "")
    return HeaderArgument(normalise_type(type_text), match[2])


_DECLARATION = re.compile(r"(?:__CUDA_DEPRECATED\s+)?CUresult\s+CUDAAPI\s+(cu\w+)\s*\(([^;]*?)\)\s*;", re.S)
_TOKEN = re.compile(r"/\*\*(?P<comment>.*?)\*/|(?P<declaration>(?:__CUDA_DEPRECATED\s+)?CUresult\s+CUDAAPI\s+cu\w+\s*\([^;]*?\)\s*;)", re.S)


def _aliases(text):
    """Macro name -> (symbol, per-thread suffix), as the headers' own #define lines say."""
    lines = re.findall(r"^\s*#define\s+(cu\w+)\s+(?:__CUDA_API_PT(DS|SZ)\()?(cu\w+)\)?[ \t]*$", text, flags=re.M)
    return {name: (symbol, f"pt{suffix.lower()}" if suffix else "") for name, suffix, symbol in lines}


def read_functions(include_dir):
    """Every function of the headers that are present: symbol -> HeaderFunction, per-thread variants folded into their base."""
    functions = {}
    for header in HEADERS:
        path = Path(include_dir) / header
        if path.exists():
            _read_header(_without_windows(path.read_text(encoding="utf-8", errors="replace")), functions)
    _set_since(functions, read_introductions(include_dir))
    return functions


def _read_header(text, functions):
    public, _, internal = text.partition("#if defined(__CUDA_API_VERSION_INTERNAL)\n    #undef")
    internal, _, after = internal.partition("#elif defined(__CUDA_API_PER_THREAD_DEFAULT_STREAM)")
    aliases = _aliases(public)
    module = ""
    for match in _TOKEN.finditer(public + after):
        if match["comment"] is not None:
            group = re.search(r"\\(?:defgroup|addtogroup)\s+(CUDA_\w+)", match["comment"])
            module = group[1] if group else module
            continue
        name, arguments = _parse_declaration(match["declaration"])
        symbol, per_thread = aliases.get(name, (name, ""))
        second = aliases.get(symbol)  # cuStreamGetCtx_v2 is itself a macro where streams are per thread
        per_thread = per_thread or (second[1] if second else "")
        functions[symbol] = HeaderFunction(symbol, arguments, module, per_thread)
    for match in _DECLARATION.finditer(_without_comments(internal)):
        _add_older(match, functions)


def _parse_declaration(text):
    match = _DECLARATION.search(_without_comments(text))
    arguments = match[2].strip()
    if arguments in ("", "void"):
        return match[1], []
    return match[1], [parse_argument(part) for part in arguments.split(",")]


def _add_older(match, functions):
    """A declaration from behind __CUDA_API_VERSION_INTERNAL: an older ABI version, or the name of a per-thread variant."""
    symbol, arguments = _parse_declaration(match[0])
    base, _, suffix = symbol.partition("_pt")
    if suffix and base in functions:
        functions[base].per_thread = f"pt{suffix}"
    elif not suffix and symbol not in functions:
        functions[symbol] = HeaderFunction(symbol, arguments, _newer_version(symbol, functions).module)


def _newer_version(symbol, functions):
    """The documented function of the same family; cuGraphInstantiate went on as cuGraphInstantiateWithFlags."""
    family = family_of(symbol)
    same = [f for f in functions.values() if family_of(f.symbol) == family]
    return (same or [f for f in functions.values() if f.symbol.startswith(family)])[-1]


def read_introductions(include_dir):
    """Name -> versions in which a variant of it came, ascending: the PFN_<name>_v<version> typedefs; per-thread ones in a second table."""
    plain, per_thread = {}, {}
    for header in TYPEDEF_HEADERS:
        path = Path(include_dir) / header
        if not path.exists():
            continue
        text = _without_windows(_without_comments(path.read_text(encoding="utf-8", errors="replace")))
        for name, version, suffix in re.findall(r"\*PFN_(cu\w+?)_v(\d+)(_ptsz|_ptds)?\)", text):
            (per_thread if suffix else plain).setdefault(name, set()).add(int(version))
    return ({name: sorted(found) for name, found in table.items()} for table in (plain, per_thread))


def version_suffix(symbol):
    match = re.search(r"_v(\d+)$", symbol)
    return int(match[1]) if match else 1


def family_of(symbol):
    """The name that cuGetProcAddress is asked for."""
    return re.sub(r"_v\d+$", "", symbol)


def pair_versions(symbols, versions):
    """The newest variant came with the newest version, and so on down; symbols of one family."""
    symbols = sorted(symbols, key=version_suffix, reverse=True)
    return dict(zip(symbols, sorted(versions, reverse=True)))


def _set_since(functions, introductions):
    plain, _ = introductions
    families = {}
    for symbol in functions:
        families.setdefault(family_of(symbol), []).append(symbol)
    for family, symbols in families.items():
        for symbol, version in pair_versions(symbols, plain.get(family, [])).items():
            functions[symbol].since = version
