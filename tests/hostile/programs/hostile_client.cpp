// SPDX-License-Identifier: Apache-2.0
// A client that speaks the protocol by itself and misbehaves as its test asks: a command a line on standard input, an answer a line on
// standard output (tests/process/programs/conversation.hpp). The commands are the functions of attacks.hpp, by their names.
#include <sstream>

#include "tests/hostile/programs/attacks.hpp"
#include "tests/process/programs/conversation.hpp"

namespace mpsshim::test {
namespace {

class Client {
 public:
  std::string answer(const std::string& line) {
    std::istringstream words(line);
    std::string name, what;
    words >> name;
    if (name == "scribble" || name == "command" || name == "linger" || name == "image" || name == "text") words >> what;
    std::uint64_t number = 0;
    if (name == "reach" || name == "peers") words >> std::hex;
    words >> number;
    const int count = static_cast<int>(number);
    if (name == "seed") return hostile_.random.seed(number), "ok";
    if (name == "work") return work(hostile_);
    if (name == "inspect") return inspect(hostile_);
    if (name == "reach") return reach(hostile_, number);
    if (name == "borrow") return borrow(hostile_);
    if (name == "scribble") return scribble(hostile_, what, count);
    if (name == "forge") return forge(hostile_, count);
    if (name == "punch") return punch(hostile_);
    if (name == "jam_doorbells") return jam_doorbells(hostile_);
    if (name == "unmap") return unmap(hostile_);
    if (name == "random_records") return random_records(hostile_, count);
    if (name == "descriptors_as_memory") return descriptors_as_memory(hostile_);
    if (name == "peers") return peers(hostile_, number);
    if (name == "external") return external(hostile_);
    if (name == "externals") return externals(hostile_);
    if (name == "flood") return flood(hostile_, count);
    if (name == "halves") return halves(hostile_);
    if (name == "descriptors") return descriptors(hostile_);
    if (name == "connect") return connect(hostile_, count);
    if (name == "silent") return silent(hostile_, count);
    if (name == "commands") return commands(hostile_, count);
    if (name == "command") return command(hostile_, what);
    if (name == "sessions") return sessions(hostile_, count);
    if (name == "churn") return churn(hostile_, count);
    if (name == "linger") return linger(hostile_, what);
    if (name == "stuck_image") return stuck_image(hostile_);
    if (name == "heir") return heir(hostile_);
    if (name == "as_user") return as_user(hostile_, static_cast<unsigned>(number));
    if (name == "image") return image(hostile_, what, count);
    if (name == "text") return text(hostile_, what, count);
    if (name == "two_objects") return two_objects(hostile_);
    if (name == "link_begin") return link_begin(hostile_);
    if (name == "link_add") return link_add(hostile_, count);
    if (name == "link_end") return link_end(hostile_);
    if (name == "large_entry") return large_entry(hostile_, number);
    if (name == "new_images") {
      std::size_t bytes = 0;
      words >> bytes;
      return new_images(hostile_, count, bytes);
    }
    if (name == "linked") return linked(hostile_, count);
    if (name == "many_objects") return many_objects(hostile_, count);
    if (name == "segments") return segments(hostile_, number);
    if (name == "images") return images(hostile_, number);
    if (name == "modules") return modules(hostile_, count);
    if (name == "objects") return objects(hostile_);
    if (name == "streams") return streams(hostile_, count);
    if (name == "chunks") return chunks(hostile_, number);
    if (name == "leases") return leases(hostile_);
    if (name == "waits") return waits(hostile_, count);
    if (name == "lookups") return lookups(hostile_, count);
    if (name == "deaf") return deaf(hostile_, count);
    if (name == "stop_in_call") return stop_in_call(hostile_);
    if (name == "ranges") return ranges(hostile_, count);
    if (name == "spans") return spans(hostile_, count);
    if (name == "mappings") return mappings(hostile_, count);
    if (name == "barriers") return barriers(hostile_, count);
    if (name == "joins") return joins(hostile_, count);
    if (name == "standing") return standing(hostile_, count);
    if (name == "ladders") return ladders(hostile_, count);
    if (name == "graphs") return graphs(hostile_, count);
    if (name == "chunk_storm") return chunk_storm(hostile_, count);
    if (name == "pins") return pins(hostile_, count);
    if (name == "events") return events(hostile_, count);
    if (name == "module_handles") return module_handles(hostile_, count);
    if (name == "launches") return launches(hostile_, count);
    throw Failure("unknown command " + line);
  }

 private:
  Hostile hostile_;
};

}  // namespace
}  // namespace mpsshim::test

int main() { return mpsshim::test::converse<mpsshim::test::Client>(); }
