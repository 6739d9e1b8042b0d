#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which messages the generator refuses, and what it writes of the others. Needs neither CUDA nor a compiler."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
sys.dont_write_bytecode = True

import emit_messages
from model import SpecError
from spec_texts import load_text


def message(name="Thing", id=1, direction="to_executor", fields="[]", more=""):
    return f'[[message]]\nname = "{name}"\nid = {id}\ndirection = "{direction}"\ndoc = "A thing."\nfields = {fields}\n{more}\n'


class Messages(unittest.TestCase):
    def refuse(self, words, text):
        with self.assertRaises(SpecError) as caught:
            load_text(messages=text)
        self.assertIn(words, str(caught.exception))

    def test_refused(self):
        self.refuse("direction 'sideways' is none of", message(direction="sideways"))
        self.refuse("unknown key 'note'", message(more='note = "x"'))
        self.refuse("'doc' is missing", message().replace('doc = "A thing."\n', ""))
        self.refuse("says in a sentence", message().replace("A thing.", "a thing"))
        self.refuse("of words with a capital each", message("thing"))
        self.refuse("ids count from 1", message(id=0))
        self.refuse("has more than 4096 bytes", message(fields='[{ type = "char[4096]", name = "x" }]'))
        self.refuse("4 bytes of padding would follow", message(fields='[{ type = "u64", name = "y" }, { type = "u32", name = "x" }]'))
        self.refuse("type 'u24' is none of", message(fields='[{ type = "u24", name = "x" }]'))

    def test_ids_are_for_ever(self):
        self.refuse("belongs to Thing for ever; the next free one is 10", message() + message("Other") + message("Third", 9))
        self.refuse("was another message's, for ever; the next free one is 8", "[retired]\nexecutor = [1, 7]\n" + message())
        self.refuse("the name stands twice", message() + message(id=2))
        load_text(messages=message() + message(direction="from_client"))  # each link counts its own

    def test_descriptors(self):
        two = 'descriptors = [ {{ name = "{}", kind = "file", optional = {} }}, {{ name = "b", kind = "file" }} ]'
        self.refuse("two descriptors are called b", message(more=two.format("b", "false")))
        self.refuse("stands behind one that may be missing", message(more=two.format("a", "true")))
        text = emit_messages.executor_messages(load_text(messages=message(more=two.format("a", "false"))))
        self.assertIn('proto::MessageDirection::to_executor, message::Thing::kBytes, 2, 2, nullptr}', text)
        self.assertIn("constexpr std::array<File*, 2> list() { return {&a, &b}; }", text)

    def test_structures(self):
        fields = '[{ type = "Lease", name = "lease" }, { type = "Place", name = "place" }, { type = "u8[3]", name = "reserved" }, { type = "text[12]", name = "text" }]'
        lease = '[[structure]]\nname = "Lease"\ndoc = "A range."\nfields = [ { type = "u64", name = "address" }, { type = "u64", name = "size_bytes" } ]\n'
        spec = load_text(messages=lease + message(fields=fields) + message("Ask", 3, "from_client"))
        text = emit_messages.executor_messages(spec)
        for line in ("static constexpr std::size_t kBytes = 32;", "proto::Lease lease{};", "char text[12]{};", "text[sizeof text - 1] = 0;",
                     'if (!(number_in(place) == 0 || number_in(place) == 1 || number_in(place) == 4)) return "place";', "&proto::out_of_range_in<message::Thing>}"):
            self.assertIn(line, text)
        self.assertIn("static_assert(sizeof(Lease) == 16", emit_messages.client_messages(spec))
        self.assertIn("MessageHeader header{.type = MessageType::ask};", emit_messages.client_messages(spec))
        self.assertIn("MPSSHIM_TO_EXECUTOR(thing, Thing)", emit_messages.message_names(spec))
        self.assertIn("| 1 | Thing | → executor | 40 |", emit_messages.documentation(spec))


if __name__ == "__main__":
    unittest.main()
