#include <gtest/gtest.h>

#include "io/pace.h"

namespace outcrop {
namespace {

using std::chrono::milliseconds;

TEST(PaceTest, AJobBeginsWhenThoseBeforeItHaveEnded) {
  Pace pace(1000);
  const Pace::Clock::time_point now{milliseconds(5000)};
  const auto expect = [](Pace::Turn turn, Pace::Clock::time_point begin, int milliseconds_long) {
    EXPECT_EQ(turn.begin, begin);
    EXPECT_EQ(turn.end, begin + milliseconds(milliseconds_long));
  };
  expect(pace.next(now, 500), now, 500);
  expect(pace.next(now, 250), now + milliseconds(500), 250);
  expect(pace.next(now + milliseconds(100), 1), now + milliseconds(750), 1);
  // Time that nobody used is not saved up.
  expect(pace.next(now + milliseconds(9000), 1000), now + milliseconds(9000), 1000);
  expect(pace.next(now + milliseconds(9000), 1), now + milliseconds(10000), 1);
}

TEST(PaceTest, RequestsTakeTheirTimeToo) {
  const Pace::Clock::time_point now{milliseconds(5000)};
  Pace of_requests(0, 100);
  EXPECT_TRUE(of_requests.limited());
  EXPECT_EQ(of_requests.next(now, 1 << 30, 3).end, now + milliseconds(30));
  EXPECT_EQ(of_requests.next(now, 1, 1).begin, now + milliseconds(30));
  Pace both(1000, 100);
  EXPECT_EQ(both.next(now, 500, 2).end, now + milliseconds(520));
}

TEST(PaceTest, WithoutALimitNothingWaits) {
  Pace pace(0);
  const Pace::Clock::time_point now{milliseconds(7)};
  EXPECT_FALSE(pace.limited());
  EXPECT_EQ(pace.next(now, 1 << 30).end, now);
  EXPECT_EQ(pace.next(now, 1).begin, now);
}

}  // namespace
}  // namespace outcrop
