// SPDX-License-Identifier: Apache-2.0
#include "broker/control/server/http_request.hpp"

#include <random>
#include <string>

#include "tests/support/catch.hpp"

using namespace mpsshim::broker::control;

namespace {

std::string with_fields(const std::string& line) { return line + "\r\nHost: localhost:9400\r\nAccept: */*\r\n\r\n"; }

}  // namespace

TEST_CASE("http: requests that are answered, and how") {
  const struct {
    std::string request;
    unsigned status;
    bool is_head = false;
  } cases[] = {
      {with_fields("GET /metrics HTTP/1.1"), 200},
      {"GET /metrics HTTP/1.0\r\n\r\n", 200},
      {"GET /metrics HTTP/1.1\n\n", 200},
      {with_fields("HEAD /metrics HTTP/1.1"), 200, true},
      {with_fields("GET /metrics?name[]=up HTTP/1.1"), 200},
      {with_fields("GET http://localhost:9400/metrics HTTP/1.1"), 200},
      {"GET /metrics HTTP/1.1\r\nX-Tabs:\ta\tb\r\nX-Empty:\r\n\r\nwhat follows is nobody's", 200},
      {"GET /metrics HTTP/1.1\r\nContent-Length: 5\r\n\r\nhello", 200},
      {with_fields("GET / HTTP/1.1"), 404},
      {with_fields("GET /metrics/ HTTP/1.1"), 404},
      {with_fields("GET //metrics HTTP/1.1"), 404},
      {with_fields("GET /../metrics HTTP/1.1"), 404},
      {with_fields("GET http:// HTTP/1.1"), 404},
      {with_fields("HEAD /nothing HTTP/1.1"), 404, true},
      {with_fields("POST /metrics HTTP/1.1"), 405},
      {with_fields("get /metrics HTTP/1.1"), 405},
      {with_fields("CONNECT localhost:80 HTTP/1.1"), 405},
      {with_fields("GET /metrics HTTP/2.0"), 505},
      {"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 505},
      {with_fields("GET /metrics HTTP/0.9"), 505},
      {with_fields("GET /metrics"), 400},
      {with_fields("GET  /metrics HTTP/1.1"), 400},
      {with_fields("GET /metrics HTTP/1.1 "), 400},
      {with_fields("GET /met rics HTTP/1.1"), 400},
      {with_fields("GET\t/metrics HTTP/1.1"), 400},
      {with_fields(" GET /metrics HTTP/1.1"), 400},
      {with_fields("GET /metrics HTTP/1.x"), 400},
      {with_fields("GET /metrics http/1.1"), 400},
      {with_fields("GET /metrics HTTP/1.10"), 400},
      {with_fields("G@T /metrics HTTP/1.1"), 400},
      {with_fields(""), 400},
      {"\r\nGET /metrics HTTP/1.1\r\n\r\n", 400},
      {"GET /metrics HTTP/1.1\r\nno colon\r\n\r\n", 400},
      {"GET /metrics HTTP/1.1\r\n: no name\r\n\r\n", 400},
      {"GET /metrics HTTP/1.1\r\nHost : blank before\r\n\r\n", 400},
      {"GET /metrics HTTP/1.1\r\nHost: a\r\n folded\r\n\r\n", 400},
      {"GET /metrics HTTP/1.1\r\nHost: a\rb\r\n\r\n", 400},
      {"GET /metrics HTTP/1.1\r\r\n\r\n", 400},
      {std::string("GET /metrics\0 HTTP/1.1\r\n\r\n", 26), 400},
      {"GET /metrics HTTP/1.1\r\nX: \x1b[31m\r\n\r\n", 400},
      {"\x16\x03\x01\x02", 400},  // TLS, told before all of it is there
      {"GET /metrics HTTP/1.1\r\nX: \x7f", 400},
      {"GET " + std::string(2 * kMostRequestBytes, 'a'), 414},
      {"GET /metrics HTTP/1.1\r\nX: " + std::string(kMostRequestBytes, 'a') + "\r\n\r\n", 431},
      {"", 0},
      {"GET /metrics HTTP/1.1", 0},
      {"GET /metrics HTTP/1.1\r", 0},
      {"GET /metrics HTTP/1.1\r\n", 0},
      {"GET /metrics HTTP/1.1\r\n\r", 0},
      {"GET /nothing HTTP/1.1\r\nHost:", 0},
  };
  for (const auto& tried : cases) {
    INFO(tried.request.substr(0, 80));
    const HttpVerdict verdict = judge_request(tried.request);
    CHECK(verdict.status == tried.status);
    CHECK(verdict.is_head == tried.is_head);
  }
}

TEST_CASE("http: the last byte that is allowed, and one more") {
  const std::string begin = "GET /metrics HTTP/1.1\r\nX: ", end = "\r\n\r\n";
  const auto filled = [&](std::size_t bytes) { return begin + std::string(bytes - begin.size() - end.size(), 'a') + end; };
  CHECK(judge_request(filled(kMostRequestBytes)).status == 200);
  CHECK(judge_request(filled(kMostRequestBytes + 1)).status == 431);
}

TEST_CASE("http: however a request is cut, what came so far is not told to be another") {
  const std::string request = with_fields("GET /metrics HTTP/1.1");
  for (std::size_t bytes = 0; bytes < request.size(); ++bytes) CHECK(judge_request(request.substr(0, bytes)).status == 0);
}

TEST_CASE("http: any bytes are judged, and a request that is spoilt is never taken for a longer one") {
  std::mt19937 lots(4711);
  const std::string good = with_fields("GET /metrics HTTP/1.1");
  const std::string stuff(
      "\0\r\n\t :/?%\x7f\xff\xc3"
      "Aa1",
      15);
  std::size_t refused = 0;
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = good;
    for (unsigned changes = 1 + lots() % 4; changes > 0; --changes) {
      const std::size_t at = lots() % bytes.size();
      switch (lots() % 3) {
        case 0: bytes[at] = stuff[lots() % stuff.size()]; break;
        case 1: bytes.erase(at, 1 + lots() % 3); break;
        default: bytes.insert(at, 1, stuff[lots() % stuff.size()]);
      }
      if (bytes.empty()) bytes = "x";
    }
    const HttpVerdict verdict = judge_request(bytes);
    const bool is_known = verdict.status == 0 || reason_of(verdict.status) != "Error";
    if (!is_known) FAIL("a status without a name: " << verdict.status);
    // What was judged stays so, whatever follows; but for what is too long there is nothing to follow.
    if (verdict.status != 0 && judge_request(bytes + "more").status != verdict.status) FAIL("judged anew: " << bytes);
    refused += verdict.status >= 400 ? 1 : 0;
  }
  CHECK(refused > 5'000);
}

TEST_CASE("http: heads of answers") {
  CHECK(response_head(200, "text/plain", 12) == "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 12\r\nConnection: close\r\n\r\n");
  CHECK(response_head(405, "text/plain", 0).find("\r\nAllow: GET, HEAD\r\n") != std::string::npos);
}
