# SPDX-License-Identifier: Apache-2.0
"""Rows for cuGetProcAddress: name, the driver version that brought the variant, which default stream it uses, and the symbol."""

from dataclasses import dataclass

from emit import BANNER


@dataclass(frozen=True, order=True)
class Row:
    name: str
    per_thread: bool
    version: int
    symbol: str


def rows(spec):
    """Sorted by name (as strcmp does), default-stream rows before per-thread ones, versions ascending."""
    found = []
    for function in spec.functions:
        found.append(Row(function.family, False, function.since, function.name))
        if function.per_thread:
            found.append(Row(function.family, True, function.per_thread_since, f"{function.name}_{function.per_thread}"))
    return sorted(found)


def resolve(table, name, version, per_thread):
    """The rule in Python, for the checks: the newest variant not newer than `version`; per-thread ones first where they are asked for."""
    for wanted in ((True, False) if per_thread else (False,)):
        variants = [row for row in table if row.name == name and row.per_thread == wanted and row.version <= version]
        if variants:
            return variants[-1].symbol
    return None


def proc_address(spec):
    return (BANNER + "// MPSSHIM_PROC_ADDRESS(name, version, default_stream|per_thread, symbol), sorted by name, stream, version.\n"
            + "".join(f"MPSSHIM_PROC_ADDRESS({row.name}, {row.version}, {'per_thread' if row.per_thread else 'default_stream'}, {row.symbol})\n"
                      for row in rows(spec)))
