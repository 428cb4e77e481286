#include <gtest/gtest.h>

#include "io/pace.h"

namespace outcrop {
namespace {

using std::chrono::milliseconds;

TEST(PaceTest, EachJobWaitsForThoseBeforeIt) {
  Pace pace(1000);
  const Pace::Clock::time_point now{milliseconds(5000)};
  EXPECT_EQ(pace.start(now, 500), now);
  EXPECT_EQ(pace.start(now, 250), now + milliseconds(500));
  EXPECT_EQ(pace.start(now + milliseconds(100), 1), now + milliseconds(750));
  // Time that nobody used is not saved up.
  EXPECT_EQ(pace.start(now + milliseconds(9000), 1000), now + milliseconds(9000));
  EXPECT_EQ(pace.start(now + milliseconds(9000), 1), now + milliseconds(10000));
}

TEST(PaceTest, WithoutALimitNothingWaits) {
  Pace pace(0);
  const Pace::Clock::time_point now{milliseconds(7)};
  EXPECT_FALSE(pace.limited());
  EXPECT_EQ(pace.start(now, 1 << 30), now);
  EXPECT_EQ(pace.start(now, 1), now);
}

}  // namespace
}  // namespace outcrop
