#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What the generator refuses (of messages: test_messages.py), what it lays out, and how look-ups by version are answered. Needs neither CUDA nor a
compiler."""

import contextlib
import io
import sys
import tempfile
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.dont_write_bytecode = True

import cuda_header
import emit_addresses
import emit_enums
import emit_exports
import emit_proc_address
import emit_records
import generate
import import_header
from model import SpecError
from spec_texts import ENUMS, TYPES, entry, load_text, record

SPEC_FOLDER = Path(__file__).parent.parent / "spec"


class Refusals(unittest.TestCase):
    def refuse(self, words, *args, **kwargs):
        with self.assertRaises(SpecError) as caught:
            load_text(*args, **kwargs)
        self.assertIn(words, str(caught.exception))

    def test_duplicate_id(self):
        self.refuse("belongs to cuOne for ever; the next free one is 2", entry("cuOne", 1) + entry("cuTwo", 1))
        self.refuse("the next free one is 8", entry("cuOne", 1) + entry("cuTwo", 1) + entry("cuThree", 7))

    def test_duplicate_name(self):
        self.refuse("stands in things.toml already", entry("cuOne", 1) + entry("cuOne", 2))

    def test_id_out_of_range(self):
        load_text(entry(id=0x7FFF))
        self.refuse("outside 1..32767", entry(id=0x8000))
        self.refuse("outside 1..32767", entry(id=0))

    def test_unknown_type(self):
        self.refuse("type 'CUnothing' is not in types.toml", entry(arguments=["CUnothing x"]))

    def test_malformed_argument(self):
        for text in ("CUstream", "CUstream stream[4]", "CUstream  stream", "out", "CUstream *stream"):
            self.refuse("was not understood", entry(arguments=[text]))

    def test_out(self):
        self.refuse("only a pointer to addresses", entry(arguments=["out int* x"]))
        self.refuse("only a pointer to addresses", entry(arguments=["out CUdeviceptr x"]))
        self.refuse("cannot be out", entry(arguments=["out const CUdeviceptr* x"]))
        self.refuse("type 'into CUstream'", entry(arguments=["into CUstream stream"]))

    def test_opaque_by_value(self):
        self.refuse("only behind a pointer", entry(arguments=["void x"]))

    def test_choices(self):
        self.refuse("per_thread 'pts' is none of", entry(per_thread="pts"))
        self.refuse("unknown key 'colour'", entry(colour="red"))

    def test_missing_key(self):
        self.refuse("'since' is missing", '[[function]]\nname = "cuThing"\nid = 1\n')
        self.refuse("'arguments' is missing", '[[function]]\nname = "cuThing"\nid = 1\nsince = 2000\n')

    def test_reason(self):
        self.refuse("needs a reason", entry(reason=""))
        self.assertEqual([f.is_supported for f in load_text(entry("cuOne", 1) + entry("cuTwo", 2, reason="why")).functions], [True, False])

    def test_same_as(self):
        same = '[[function]]\nname = "cuThing"\nid = 2\nsince = 2000\nsame_as = "{}"\n'
        self.refuse("not an entry with arguments of its own", same.format("cuNothing"))
        self.refuse("not an entry with arguments of its own", same.format("cuThing"))
        self.refuse("remove it here", entry("cuThing_v2") + same.format("cuThing_v2") + 'reason = "planned"\n')
        spec = load_text(entry("cuThing_v2", since=4000, arguments=["int x"]) + same.format("cuThing_v2"))
        self.assertEqual(spec.by_name()["cuThing"].parameters(), "int x")
        self.assertIn("&DriverTable::cuThing, &api::cuThing_v2, x", emit_exports.exports(spec))

    def test_same_as_with_narrower_arguments(self):
        wide = entry("cuThing_v2", since=4000, arguments=["CUdeviceptr at", "size_t n", "int x"])
        same = '[[function]]\nname = "cuThing"\nid = 2\nsince = 2000\nsame_as = "cuThing_v2"\narguments = {}\n'
        spec = load_text(wide + same.format('["CUdeviceptr_v1 at", "unsigned int n", "int x"]'))
        self.assertEqual(spec.by_name()["cuThing"].parameters(), "CUdeviceptr_v1 at, unsigned int n, int x")
        self.assertIn("&DriverTable::cuThing, &widened<&api::cuThing_v2, CUdeviceptr_v1, unsigned int, int>, at, n, x", emit_exports.exports(spec))
        for arguments in ('["CUdeviceptr_v1 at", "unsigned int n"]',                    # one less
                          '["CUdeviceptr_v1 at", "unsigned int n", "unsigned int x"]',  # to int: narrower
                          '["CUdeviceptr_v1 at", "unsigned int n", "int y"]'):
            self.refuse("do not widen to those of cuThing_v2", wide + same.format(arguments))
        given = entry("cuThing_v2", since=4000, arguments=["size_t* n"])
        self.refuse("do not widen to those of cuThing_v2", given + same.format('["unsigned int* n"]'))

    def test_addresses(self):
        functions = entry("cuCopy", arguments=["CUdeviceptr to", "const void* from", "size_t n", "out CUdeviceptr* found"])
        self.refuse("from is an address: say what must hold of it", functions, addresses='[cuCopy]\nto = "bytes(n)"\n')
        self.refuse("no function has that name", functions, addresses='[cuMove]\nto = "bytes(n)"\n')
        both = '[cuCopy]\nto = "bytes(n)"\nfrom = "host(n)"\n'
        self.refuse("n is no address of that function", functions, addresses=both + 'n = "value()"\n')
        self.refuse("is no rule", functions, addresses=both.replace("host(n)", "host"))
        self.refuse("'hosts(n)' is no rule: write name(arguments), with one of bytes, ", functions, addresses=both.replace("host(n)", "hosts(n)"))
        spec = load_text(functions, addresses=both)
        self.assertIn('oracle.bytes("cuCopy: to", to, n);', emit_addresses.address_rows(spec))
        self.assertIn('oracle.host("cuCopy: from", from, n);', emit_addresses.address_rows(spec))
        self.assertIn("AddressCall<CUresult(CUDAAPI*)(CUdeviceptr, const void*, size_t, CUdeviceptr*)> cuCopy;", emit_addresses.checked_driver(spec))

    def test_functions_without_rules_are_withheld(self):
        spec = load_text(entry("cuFill", 1, arguments=["CUdeviceptr to", "size_t n"], per_thread="ptsz") +
                         entry("cuPlace", 2, arguments=["const CUDA_PLACE* place"]) +
                         entry("cuLook", 3, arguments=["out CUDA_PLACE* place", "out CUdeviceptr* found"]),
                         addresses='[cuFill]\nto = "bytes(n)"\n')
        driver = emit_addresses.checked_driver(spec)
        self.assertIn("WithheldCall cuPlace;", driver)
        self.assertIn("WithheldCall cuFill_ptsz;", driver)
        self.assertIn("cuLook)(CUDA_PLACE* place, CUdeviceptr* found) = nullptr;", driver)

    def test_broken_toml(self):
        self.refuse("things.toml", "[[function]\n")

    def test_record(self):
        self.refuse("outside 0x8000..0xffff", records=record(id=0x7FFF))
        self.refuse("belongs to Thing for ever; the next free one is 0x800a", records=record() + record("Other") + record("Third", id=0x8009))
        self.refuse("the name stands twice", records=record() + record(id=0x8002))
        self.refuse("type 'u24' is none of", records=record(fields='[{ type = "u24", name = "x" }]'))
        self.refuse("a post has no reply", records=record(more="reply_trailing = 'text'"))
        self.refuse("work of a stream is a post", records=record(more="reply = []").replace("session", "stream"))
        self.refuse("unknown key 'note'", records=record(more='note = "x"'))


class Limits(unittest.TestCase):
    def test_repeat_and_recipe(self):
        with self.assertRaisesRegex(SpecError, "repeat '' is none of harmless, never"):
            load_text(records=record(more="reply = []"))
        with self.assertRaisesRegex(SpecError, "a post is not repeated"):
            load_text(records=record(more='repeat = "never"'))
        with self.assertRaisesRegex(SpecError, "needs a bool `restores`"):
            load_text(records=record(more='recipe = "restoring"'))
        spec = load_text(records=record(more='reply = []\nrepeat = "harmless"\nrecipe = "restoring"',
                                        fields='[{ type = "bool", name = "restores" }]'))
        self.assertIn("kRecipe = RecordRecipe::restoring;", emit_records.records(spec))
        self.assertIn("kMayRepeat = true;", emit_records.records(spec))
        self.assertIn("MPSSHIM_KEPT(ThingRecord)\n", emit_records.kept_recipes(spec))
        self.assertNotIn("MPSSHIM_KEPT(ThingRecord)\n", emit_records.kept_recipes(load_text(records=record())))

    def refuse(self, words, fields="[]", enums=ENUMS):
        with self.assertRaises(SpecError) as caught:
            load_text(records=record(fields=fields), enums=enums)
        self.assertIn(words, str(caught.exception))

    def test_refused(self):
        self.refuse("nowhere is no value of Place", '[{ type = "Place", name = "x", of = ["nowhere"] }]')
        self.refuse("does not hold Wish", '[{ type = "Wish:u16", name = "x" }]')
        self.refuse("does not hold Place", '[{ type = "Place:f32", name = "x" }]')
        self.refuse("flags have one width", '[{ type = "Wish:u64", name = "x" }]')
        self.refuse("limits an enum", '[{ type = "u32", name = "x", of = ["here"] }]')
        self.refuse("only one unsigned number", '[{ type = "i32", name = "x", max = 4 }]')
        self.refuse("only one unsigned number", '[{ type = "u32[2]", name = "x", max = 4 }]')
        self.refuse("nor in enums.toml", '[{ type = "Elsewhere", name = "x" }]')
        self.refuse("a flag is one bit", enums=ENUMS.replace("value = 4 } ]", "value = 5 } ]"))
        self.refuse("the name stands twice", enums=ENUMS.replace('"Wish"', '"Place"'))
        self.refuse("two of its values are the same", enums=ENUMS.replace("gone", "here"))
        self.refuse("does not fit u8", enums=ENUMS.replace("value = 4 } ]", "value = 256 } ]"))

    def test_checks_and_rows(self):
        spec = load_text(records=record(fields='[{ type = "Place:u32", name = "all" }, { type = "Place", name = "some", of = ["here", "there"] }, '
                                               '{ type = "u8[3]", name = "reserved" }, { type = "Wish", name = "wish" }, '
                                               '{ type = "bool", name = "sure" }, '
                                               '{ type = "u32", name = "rank", max = 5 }, { type = "u32", name = "size", one_of = [4, 8] }]'))
        text = emit_records.records(spec)
        for line in ('if (!(number_in(all) == 0 || number_in(all) == 1 || number_in(all) == 4)) return "all";',
                     'if (!(number_in(some) <= 1)) return "some";',
                     'if (!((number_in(wish) & ~std::uint64_t{0x5}) == 0)) return "wish";', 'if (!(number_in(sure) <= 1)) return "sure";',
                     'if (!(number_in(rank) <= 5)) return "rank";', 'if (!(number_in(size) == 4 || number_in(size) == 8)) return "size";',
                     "static constexpr std::uint32_t kMaxRank = 5;", "Wide<Place, std::uint32_t> all;", "Place some;", "Flags<Wish> wish;",
                     "Wide<bool, std::uint32_t> sure;"):
            self.assertIn(line, text)
        rows = emit_records.ranges(spec)
        for row in ("all, 0u, (0x2u, 0x3u, 0x5u, 0xffffffffu)", "some, 0u, (0x2u, 0xffu)", "wish, 0u, (0x2u, 0x80000000u)",
                    "size, 4u, (0x3u, 0x5u, 0x7u, 0x9u, 0xffffffffu)"):
            self.assertIn(f"MPSSHIM_RANGE(ThingRecord, {row})", rows)
        self.assertIn("constexpr Flags<Wish> operator|(Wish a, Wish b)", emit_enums.enums(spec))


class Layout(unittest.TestCase):
    def test_holes_are_refused(self):
        with self.assertRaisesRegex(SpecError, "y would begin behind a hole of 4 bytes at 4"):
            load_text(records=record(fields='[{ type = "u32", name = "x" }, { type = "u64", name = "y" }]'))
        with self.assertRaisesRegex(SpecError, "4 bytes of padding would follow at 12"):
            load_text(records=record(fields='[{ type = "u64", name = "y" }, { type = "u32", name = "x" }]'))
        with self.assertRaisesRegex(SpecError, "reply: 4 bytes of padding"):
            load_text(records=record(more='repeat = "never"\nreply = [{ type = "id:event", name = "y" }, { type = "i32", name = "x" }]'))

    def test_arrays(self):
        spec = load_text(records=record(fields='[{ type = "i32[3]", name = "x" }, { type = "u32", name = "y" }]'))
        self.assertIn("std::int32_t x[3];", emit_records.records(spec))
        self.assertIn("kBodyBytes = 16;", emit_records.records(spec))

    def test_empty_record_has_no_bytes(self):
        text = emit_records.records(load_text(records=record()))
        self.assertIn("kBodyBytes = 0;", text)
        self.assertIn("std::is_empty_v<ThingRecord>", text)


class Lookup(unittest.TestCase):
    def setUp(self):
        entries = (entry("cuCopy", 1, 2000) + entry("cuCopy_v2", 2, 3020, per_thread="ptds") + entry("cuWait", 3, 11030, per_thread="ptsz")
                   + entry("cuCopyAll", 4, 9000))
        self.table = emit_proc_address.rows(load_text(entries))

    def test_newest_that_is_not_newer(self):
        for version, symbol in ((1999, None), (2000, "cuCopy"), (3019, "cuCopy"), (3020, "cuCopy_v2"), (13000, "cuCopy_v2")):
            self.assertEqual(emit_proc_address.resolve(self.table, "cuCopy", version, False), symbol)

    def test_per_thread(self):
        for name, version, symbol in (("cuCopy", 6050, "cuCopy_v2"), ("cuCopy", 7000, "cuCopy_v2_ptds"), ("cuWait", 11030, "cuWait_ptsz"),
                                      ("cuCopyAll", 9000, "cuCopyAll"), ("cuNothing", 13000, None)):
            self.assertEqual(emit_proc_address.resolve(self.table, name, version, True), symbol)

    def test_sorted_for_binary_search(self):
        self.assertEqual([row.name for row in self.table], sorted(row.name for row in self.table))


class Exports(unittest.TestCase):
    def test_per_thread_variants(self):
        spec = load_text(entry("cuWait", 1, arguments=["CUstream hStream", "int x"], per_thread="ptsz")
                         + entry("cuCopy", 2, arguments=["size_t n"], per_thread="ptds", reason="planned"))
        text = emit_exports.exports(spec)
        self.assertIn("CUresult CUDAAPI cuWait_ptsz(CUstream hStream, int x) { return entry<ApiId::cuWait>(&DriverTable::cuWait_ptsz, &api::cuWait, "
                      "per_thread_stream(hStream), x); }", text)
        self.assertIn("{ const PerThreadDefaultStream scope; return entry<ApiId::cuCopy>(&DriverTable::cuCopy_ptds, &api::cuCopy, n); }", text)
        self.assertIn("    cuCopy_ptds;\n    cuWait;\n    cuWait_ptsz;\n  local:\n    *;", emit_exports.version_script(spec))
        self.assertIn("CUresult cuWait(CUstream hStream, int x);", emit_exports.api_declarations(spec))
        self.assertIn("\nCUresult cuCopy(size_t) { return unsupported(ApiId::cuCopy); }", text)
        self.assertNotIn("CUresult cuWait(CUstream, int)", text)


class Hash(unittest.TestCase):
    def test_follows_the_wire_alone(self):
        base = emit_records.protocol_hash(load_text(entry(), record()))
        self.assertEqual(base, emit_records.protocol_hash(load_text(entry() + entry("cuOther", 2), record())))
        self.assertNotEqual(base, emit_records.protocol_hash(load_text(entry(), record(fields='[{ type = "u64", name = "x" }]'))))
        self.assertNotEqual(base, emit_records.protocol_hash(load_text(entry(), record(more='repeat = "never"\nreply = []'))))


class HeaderReader(unittest.TestCase):
    def test_types(self):
        for text, expected in (("const void  *", "const void*"), ("CUstream CUDAAPI *", "CUstream*"), ("GLuint", "unsigned int"),
                               ("EGLStreamKHR", "void*"), ("const CUgraphNode **", "const CUgraphNode**")):
            self.assertEqual(cuda_header.normalise_type(text), expected)

    def test_declarations(self):
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "cuda.h").write_text(
                "#define cuCopy __CUDA_API_PTDS(cuCopy_v2)\n#define cuOpen cuOpen_v2\n/** \\defgroup CUDA_MEM Memory\n*/\n"
                "/**\n * \\param n - Returned count\n */\nCUresult CUDAAPI cuCopy(size_t *n, const char *name);\nCUresult CUDAAPI cuOpen(void);\n"
                "#if defined(__CUDA_API_VERSION_INTERNAL)\n    #undef cuCopy\nCUresult CUDAAPI cuCopy(unsigned int *n, const char *name);\n"
                "CUresult CUDAAPI cuOpen_ptsz(void);\n#elif defined(__CUDA_API_PER_THREAD_DEFAULT_STREAM)\n#endif\n", encoding="utf-8")
            Path(folder, "cudaTypedefs.h").write_text(
                "typedef CUresult (CUDAAPI *PFN_cuCopy_v2000)(unsigned int *n);\ntypedef CUresult (CUDAAPI *PFN_cuCopy_v3020)(size_t *n);\n",
                encoding="utf-8")
            functions = cuda_header.read_functions(folder)
        self.assertEqual(sorted(functions), ["cuCopy", "cuCopy_v2", "cuOpen_v2"])
        self.assertEqual((functions["cuCopy"].since, functions["cuCopy_v2"].since, functions["cuCopy_v2"].per_thread), (2000, 3020, "ptds"))
        self.assertEqual([f"{a.type} {a.name}" for a in functions["cuCopy_v2"].arguments], ["size_t* n", "const char* name"])


class WholeSpec(unittest.TestCase):
    def test_generates_and_is_stable(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()):
            command = ["--spec", str(SPEC_FOLDER), "--out", folder]
            self.assertEqual(generate.main(command), 0)
            before = {path: path.stat().st_mtime_ns for path in Path(folder, "gen").iterdir()}
            self.assertEqual({path.name for path in before}, set(generate.OUTPUTS))
            self.assertEqual(generate.main(command), 0)
            self.assertEqual(before, {path: path.stat().st_mtime_ns for path in before})

    def test_a_wrong_spec_ends_with_a_sentence(self):
        with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stderr(io.StringIO()) as errors:
            Path(folder, "types.toml").write_text(TYPES, encoding="utf-8")
            Path(folder, "things.toml").write_text(entry(arguments=["CUnothing x"]), encoding="utf-8")
            self.assertEqual(generate.main(["--spec", folder, "--out", folder]), 1)
        self.assertIn("error: things.toml, cuThing, x: type 'CUnothing'", errors.getvalue())
        self.assertFalse(Path(folder, "gen").exists())


if __name__ == "__main__":
    unittest.main()
