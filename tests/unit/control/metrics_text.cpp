// SPDX-License-Identifier: Apache-2.0
// The broker's figures as text. How parsers that are not ours read it: process_metrics.
#include "broker/control/server/metrics_text.hpp"

#include <string>

#include "tests/unit/control/support/control_fixture.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

namespace {

std::string line_with(const std::string& text, const std::string& begin) {
  const std::size_t at = text.find("\n" + begin);
  return at == std::string::npos ? "" : text.substr(at + 1, text.find('\n', at + 1) - at - 1);
}

}  // namespace

TEST_CASE("metrics: families, labels and values") {
  MetricsText text;
  text.family("a_total", MetricsText::Type::counter, "What it is.");
  text.sample({}, std::uint64_t{18'446'744'073'709'551'615u});
  text.sample({{"one", "x"}, {"none", ""}, {"two", "y"}}, 1.5);
  text.sample({{"none", ""}}, std::uint64_t{7});
  text.family("b", MetricsText::Type::gauge, "Another.");
  text.sample({{"hard", "a\"b\\c\nd\x1b[31m\xff"}}, 0.0000004);
  CHECK(text.text() ==
        "# HELP a_total What it is.\n# TYPE a_total counter\na_total 18446744073709551615\na_total{one=\"x\",two=\"y\"} 1.500000\na_total 7\n"
        "# HELP b Another.\n# TYPE b gauge\nb{hard=\"a\\\"b\\\\c\\\\x0ad\\\\x1b[31m\\\\xff\"} 0.000000\n");
}

TEST_CASE("metrics: of a client what its executor has counted") {
  ControlFixture broker;
  broker.serve();
  proto::Attached attached;
  const TestClient client = broker.attach(&attached);
  broker.executor().counts(attached.session).gpu_ns = 1'234'567'000;
  broker.executor().counts(attached.session).waits = 17;
  broker.executor().counts(attached.session).wait_ns = 2'500'000'000;
  broker.executor().counts(attached.session).launches = 99;
  broker.executor().set_progress(3, attached.session, 10, 4);
  const std::string text = metrics_of(broker.manager, 3);
  const std::string labels = "{session=\"" + std::to_string(attached.session) + "\",pid=\"" + std::to_string(getpid()) + "\",uid=\"" +
                             std::to_string(geteuid()) + "\",device=\"0\",uuid=\"GPU-00000000-0000-0000-0000-000000000000\"";
  CHECK(line_with(text, "mpsshim_client_gpu_seconds_total" + labels).ends_with("} 1.234567"));
  CHECK(line_with(text, "mpsshim_client_waits_total" + labels).ends_with("} 17"));
  CHECK(line_with(text, "mpsshim_client_wait_seconds_total" + labels).ends_with("} 2.500000"));
  CHECK(line_with(text, "mpsshim_client_launches_total" + labels).ends_with("} 99"));
  CHECK(line_with(text, "mpsshim_client_operations_in_flight" + labels).ends_with("} 6"));
  CHECK(line_with(text, "mpsshim_client_info{session=\"" + std::to_string(attached.session) + "\",server=\"").ends_with("} 1"));
  CHECK(line_with(text, "mpsshim_server_up{server=\"").ends_with("} 1"));
  CHECK(line_with(text, "mpsshim_server_clients{server=\"").ends_with("} 1"));
  CHECK(line_with(text, "mpsshim_user_sessions{uid=\"").ends_with("} 1"));
  CHECK(line_with(text, "mpsshim_metrics_dropped_total") == "mpsshim_metrics_dropped_total 3");
  CHECK(line_with(text, "mpsshim_client_device_memory_limit_bytes").empty());
  CHECK(line_with(text, "mpsshim_client_active_thread_percentage" + labels).ends_with("} 100.000000"));
  CHECK(line_with(text, "mpsshim_client_priority" + labels).ends_with("} 0"));
}
