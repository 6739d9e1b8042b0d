// SPDX-License-Identifier: Apache-2.0
// What a hostile client does with a session, or with connections. Each function returns the text of its answer ("ok ..."), or throws Failure
// where the broker did not behave as it must. A session that the broker has ended for it is replaced by a new one where the attack goes on.
#pragma once

#include <memory>
#include <random>
#include <string>
#include <vector>

#include "tests/hostile/programs/raw_session.hpp"

namespace mpsshim::test {

struct Hostile {
  std::unique_ptr<RawSession> session;
  std::vector<std::unique_ptr<RawSession>> more_sessions;
  std::vector<std::unique_ptr<RawConnection>> connections;
  std::mt19937_64 random{1};

  RawSession& own() {
    if (!session) session = std::make_unique<RawSession>();
    return *session;
  }
  void renew_if_ended();
};

// Behaves, by the raw protocol: a chunk, a fill, a copy to staging memory, its fence, the bytes compared.
std::string work(Hostile& hostile);

// --- what is not its own (attacks_secrets.cpp) ---
// Everything that a new client is given, looked through: "ok 0" where all of it is blank, else how many bytes are not.
std::string inspect(Hostile& hostile);
// Copies and fills at a foreign address, by forged records: throws where one is not refused, or anything of it is to be seen.
std::string reach(Hostile& hostile, std::uint64_t address);
// A second session of this process names the first one's chunks and segments.
std::string borrow(Hostile& hostile);

// --- memory of other interfaces (attacks_external.cpp) ---
// Descriptors of every kind offered as memory, and memory that is less than was said by the time it is imported.
std::string descriptors_as_memory(Hostile& hostile);
// Imports, maps and ends what is not there, or another session's; all but the right ones are refused. Keeps a buffer: "ok ADDRESS".
std::string external(Hostile& hostile);
// As many as it may have, and more, none of them ended.
std::string externals(Hostile& hostile);

// --- memory of another device (attacks_peers.cpp) ---
// Two sessions on two devices. The second asks for every range that there is, and does with the one that it is given, which is the first one's, what
// it must not. All of it is refused, and the bystander's at `address` above all. Keeps memory of the first one mapped.
std::string peers(Hostile& hostile, std::uint64_t address);

// --- shared pages (attacks_memory.cpp) ---
// Random bytes over one kind of page ("header", "waiters", "replies", "ring", "fences", "segments", "all") while work goes on.
std::string scribble(Hostile& hostile, const std::string& what, int duration_ms);
// Words that might be believed: positions, states, waiters, fences, slots.
std::string forge(Hostile& hostile, int duration_ms);
// Holes in every file it was given; that none of them can be made shorter or longer.
std::string punch(Hostile& hostile);
std::string unmap(Hostile& hostile);
// Doorbells that make whoever writes to them wait, and a wait of which the executor tells its own threads.
std::string jam_doorbells(Hostile& hostile);
// Random records, by a new session whenever one has ended.
std::string random_records(Hostile& hostile, int duration_ms);

// --- socket (attacks_socket.cpp) ---
std::string flood(Hostile& hostile, int duration_ms);
std::string halves(Hostile& hostile);
std::string descriptors(Hostile& hostile);
// Descriptors that take long to close, sent in every way there is, with nobody else to close them: sockets that linger for minutes, alone, by the
// hundred, inside other sockets. `way`: "hello", "garbage", "unread", "refused", "commands".
std::string linger(Hostile& hostile, const std::string& way);
// Asks for an image to be taken while a thread of its own writes to the image's file, and never gets on: the memory that it writes from does not
// come. "ok 0" where the system lets nobody have such memory.
std::string stuck_image(Hostile& hostile);
// A child that keeps everything: "ok PID".
std::string heir(Hostile& hostile);

// --- connections and sessions, many of them or another user's (attacks_connections.cpp) ---
std::string connect(Hostile& hostile, int count);
std::string silent(Hostile& hostile, int count);
std::string commands(Hostile& hostile, int count);
std::string command(Hostile& hostile, const std::string& line);  // "ok done" or "ok refused"
std::string sessions(Hostile& hostile, int count);
std::string churn(Hostile& hostile, int duration_ms);
// What the broker says to a client of another uid: the status of Welcome.
std::string as_user(Hostile& hostile, unsigned uid);

// --- images (attacks_images.cpp); "ok" and what the loads were answered ---
// Whose reader does `what` under mpsbroker --test-image-faults, `count` different ones.
std::string image(Hostile& hostile, const std::string& what, int count);
// The same for whoever compiles it.
std::string text(Hostile& hostile, const std::string& what, int count);
// A program of two objects, which are linked as it is loaded, and stays so.
std::string two_objects(Hostile& hostile);
// A linker, step by step: its creation; an input that defines the function `number`; the completion, and how long the result is.
std::string link_begin(Hostile& hostile);
std::string link_add(Hostile& hostile, int number);
std::string link_end(Hostile& hostile);
// 38 KB that say they are so many bytes.
std::string large_entry(Hostile& hostile, std::uint64_t says_bytes);
// Objects to be linked, of 32 MiB each in a kilobyte.
std::string many_objects(Hostile& hostile, int count);
// The same in one input of a linker.
std::string linked(Hostile& hostile, int count);
// Nothing of the kind: packed texts of so many bytes, each new, loaded one after the other. "ok" and how many microseconds a load took.
std::string new_images(Hostile& hostile, int count, std::size_t bytes);

// --- exhaustion (attacks_exhaustion.cpp) ---
std::string segments(Hostile& hostile, std::uint64_t size_bytes);
std::string images(Hostile& hostile, std::uint64_t size_bytes);
std::string modules(Hostile& hostile, int count);
std::string objects(Hostile& hostile);
// All streams that several sessions of one process may have.
std::string streams(Hostile& hostile, int sessions);
std::string chunks(Hostile& hostile, std::uint64_t size_bytes);
std::string leases(Hostile& hostile);
// Calls that wait in the executor for what never comes.
std::string waits(Hostile& hostile, int count);
// Look-ups of what no module has: each asks for a moment at which nothing runs.
std::string lookups(Hostile& hostile, int duration_ms);
// Calls whose answers it never reads.
std::string deaf(Hostile& hostile, int duration_ms);
// Posts a call and stops itself before it takes the answer.
std::string stop_in_call(Hostile& hostile);

// --- time (attacks_time.cpp): what each does for so long; "ok" and how often ---
// Asks for addresses until there are none, and on.
std::string ranges(Hostile& hostile, int duration_ms);
// Fills that reach over thousands of mappings, and a byte further.
std::string spans(Hostile& hostile, int duration_ms);
// Forbids and allows thousands of mappings at a time, and ends them all at once.
std::string mappings(Hostile& hostile, int duration_ms);
// All streams that there are come behind each other's copies; are tied together; are waited for; wait for each other.
std::string barriers(Hostile& hostile, int duration_ms);
std::string joins(Hostile& hostile, int duration_ms);
std::string standing(Hostile& hostile, int duration_ms);
std::string ladders(Hostile& hostile, int duration_ms);
// Large graphs, made and ended.
std::string graphs(Hostile& hostile, int duration_ms);
// Device memory, pinned memory, events: made and ended.
std::string chunk_storm(Hostile& hostile, int duration_ms);
std::string pins(Hostile& hostile, int duration_ms);
std::string events(Hostile& hostile, int duration_ms);
// One image loaded again and again, never unloaded.
std::string module_handles(Hostile& hostile, int duration_ms);
// Empty kernels in all streams that there are.
std::string launches(Hostile& hostile, int duration_ms);

}  // namespace mpsshim::test
