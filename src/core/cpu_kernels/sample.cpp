#include "cpu_kernels/sample.h"

#include "base/error.h"
#include "cpu_kernels/lanes.h"
#include "kernels/lookup.h"
#include "kernels/sample.h"

namespace outcrop {
namespace {

using kernels::int64;
using kernels::Lane;

// The arguments of a launch, one after the other.
class Arguments {
 public:
  explicit Arguments(std::span<const int64_t> values) : values_(values) {}
  operator int64() { return values_[next_++]; }
  operator kernels::uint64() { return static_cast<kernels::uint64>(values_[next_++]); }
  template <typename T>
  operator T*() {
    return reinterpret_cast<T*>(values_[next_++]);
  }

 private:
  std::span<const int64_t> values_;
  size_t next_ = 0;
};

// Braces evaluate from left to right.
kernels::Frontier frontier_of(Arguments& a) { return {a, a, a}; }
kernels::Sorted sorted_of(Arguments& a) { return {a, a, a, a}; }

template <typename Index>
kernels::Fetch<Index> fetch_of(Arguments a) {
  return {a, a, a, a, frontier_of(a), {a, a}, a, a, a, a, a, a};
}

template <typename Body>
void run(int64_t warps, bool backwards, const Body& body) {
  every_lane(warps, [&](const Lane& me) {
    body(backwards ? Lane{kernels::kWarp - 1 - me.lane, warps - 1 - me.warp, warps} : me);
  });
}

// Whether `entry` is one of the kernels that number nodes.
template <typename Each, typename Expect>
bool cpu_numbering(const std::string& entry, const Each& each, const Expect& expect) {
  if (entry == "sample_compact") {
    Arguments a = expect(7);
    const kernels::Compact c{a, a, a, a, a, a, a};
    each([&](const Lane& me) { kernels::compact(c, me); });
  } else if (entry == "sample_mark") {
    Arguments a = expect(5);
    const kernels::Sorted s = sorted_of(a);
    int64* marks = a;
    each([&](const Lane& me) { kernels::mark(s, marks, me); });
  } else if (entry == "sample_number") {
    Arguments a = expect(10);
    const kernels::Number n{sorted_of(a), a, a, a, a, a, a};
    each([&](const Lane& me) { kernels::number(n, me); });
  } else if (entry == "sample_relabel") {
    Arguments a = expect(13);
    const kernels::RelabelHop r{sorted_of(a), a, a, frontier_of(a), a, a, a, a};
    each([&](const Lane& me) { kernels::relabel(r, me); });
  } else if (entry == "sample_advance") {
    Arguments a = expect(7);
    const kernels::Advance v{a, a, a, a, a, a, a};
    each([&](const Lane& me) { kernels::advance(v, me); });
  } else {
    return false;
  }
  return true;
}

// Whether `entry` is one of the kernels that find rows.
template <typename Each, typename Expect>
bool cpu_lookup(const std::string& entry, const Each& each, const Expect& expect) {
  if (entry == "sample_look_up") {
    Arguments a = expect(7);
    const kernels::LookUp l{a, a, a, a, a, a, a};
    each([&](const Lane& me) { kernels::look_up(l, me); });
  } else if (entry == "sample_list_missing") {
    Arguments a = expect(7);
    const kernels::ListMissing l{a, a, a, a, a, a, a};
    each([&](const Lane& me) { kernels::list_missing(l, me); });
  } else {
    return false;
  }
  return true;
}

}  // namespace

void cpu_sample(const std::string& entry, int64_t warps, std::span<const int64_t> arguments, bool backwards) {
  const auto expect = [&](size_t count) {
    if (arguments.size() != count)
      throw Error(ErrorKind::argument, entry + " takes " + std::to_string(count) + " arguments, not " +
                                           std::to_string(arguments.size()));
    return Arguments(arguments);
  };
  const auto each = [&](const auto& body) { run(warps, backwards, body); };
  if (entry == "sample_count") {
    Arguments a = expect(14);
    const kernels::CountRows c{a, a, a, a, frontier_of(a), a, {a, a}, a, a, a, a};
    each([&](const Lane& me) { kernels::count_rows(c, me); });
  } else if (entry == "sample_draw") {
    Arguments a = expect(9);
    const kernels::DrawPlaces d{a, frontier_of(a), {a, a}, a, a, a};
    each([&](const Lane& me) { kernels::draw_places(d, me); });
  } else if (entry == "sample_fetch_32") {
    const auto f = fetch_of<kernels::uint32>(expect(15));
    each([&](const Lane& me) { kernels::fetch(f, me); });
  } else if (entry == "sample_fetch_64") {
    const auto f = fetch_of<int64>(expect(15));
    each([&](const Lane& me) { kernels::fetch(f, me); });
  } else if (entry == "sample_labor") {
    Arguments a = expect(9);
    const kernels::KeepLabor k{a, frontier_of(a), {a, 0}, a, a, a, a};
    each([&](const Lane& me) { kernels::keep_labor(k, me); });
  } else if (!cpu_numbering(entry, each, expect) && !cpu_lookup(entry, each, expect)) {
    throw Error(ErrorKind::argument, "there is no sampling kernel " + entry);
  }
}

}  // namespace outcrop
