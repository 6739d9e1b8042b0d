#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the PTX of the functions that kernels call when an assertion fails (broker/executor/modules/assertion_code.hpp).

assertion_stubs.py HANDLER COUNT: HANDLER is proto/image/assertion_handler.inc, one function an entry of 16 bytes.
"""
import re
import sys

PARAMETERS = "(.param .b64 message, .param .b64 file, .param .b32 line, .param .b64 function, .param .b64 size)"


def main() -> None:
    handler, count = sys.argv[1], int(sys.argv[2])
    with open(handler, encoding="ascii") as file:
        body = re.fullmatch(r'R"PTX\((.*)\)PTX"\s*', file.read(), re.DOTALL).group(1)
    print(".version 7.0\n.target sm_75\n.address_size 64")
    print(".visible .global .attribute(.managed) .align 16 .b8 mpsshim_entries[16];")
    for index in range(count):
        print(f".func mpsshim_assertion_{index}{PARAMETERS} .noreturn\n{{{body.replace('@ENTRY@', f'mpsshim_entries+{16 * index}')}}}")
    names = ", ".join(f"mpsshim_assertion_{index}" for index in range(count))
    print(f".visible .global .align 8 .u64 mpsshim_assertions[{count}] = {{{names}}};")


main()
