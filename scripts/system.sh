# What Outcrop needs from the operating system; sourced by setup.sh after common.sh.
# As root on Debian or Ubuntu the packages are installed; otherwise the command to run is printed, and set-up goes on if
# the missing package is optional.

have_uring() { compiles '#include <liburing.h>'; }
have_gtest() { compiles '#include <gtest/gtest.h>'; }
have_xfs() { command -v mkfs.xfs >/dev/null || [ -x /usr/sbin/mkfs.xfs ]; }
have_chromium() { command -v chromedriver >/dev/null && command -v chromium >/dev/null; }
have_fuzzer() { # of Clang
  local found
  found=$(find_clang) && printf 'extern "C" int LLVMFuzzerTestOneInput(const char*, unsigned long) { return 0; }\n' |
    "$found" -fsanitize=fuzzer,address -x c++ - -o /dev/null 2>/dev/null
}
find_clang() {
  local name
  for name in clang++ clang++-{20,19,18,17,16,15,14}; do command -v "$name" && return; done
  return 1
}
have_cxx20() { compiles '#include <bit>
#include <span>
static_assert(std::bit_ceil(3u) == 4);'; }
have_python_headers() {
  [ -e "$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("include"))')/Python.h" ]
}
compiles() { printf '%s\nint main() {}\n' "$1" | "${CXX:-g++}" -std=c++20 -fsyntax-only -x c++ - 2>/dev/null; }

find_python() {
  local candidate
  for candidate in "${PYTHON:-}" python3 python3.13 python3.12 python3.11; do
    [ -n "$candidate" ] || continue
    if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
      echo "$candidate"
      return
    fi
  done
  die "Python 3.11 or newer is needed and was not found; install it or name it: make PYTHON=/path/to/python3.12"
}

need_venv() {
  "$1" -c 'import ensurepip, venv' 2>/dev/null && return
  apt_install needed python3-venv
}

# system_packages PURPOSE: a C++20 compiler and Python's headers are needed; liburing, GoogleTest and Chromium are not.
system_packages() {
  have_cxx20 || apt_install needed g++
  have_cxx20 || die "${CXX:-g++} does not compile C++20: install g++ 11 or newer, or name a compiler: make CXX=clang++-16"
  have_python_headers || apt_install needed python3-dev
  have_uring || apt_install optional liburing-dev "reads and writes use pread instead of io_uring"
  [ "$1" != test ] || have_gtest || apt_install optional libgtest-dev "the C++ tests are left out"
  [ "$1" != test ] || have_xfs || apt_install optional xfsprogs "power is not cut on xfs"
  [ "$1" != test ] || have_chromium || apt_install optional chromium-driver "the tests of reports in a browser are left out"
  [ "$1" != fuzz ] || have_fuzzer || apt_install needed clang
  [ "$1" != fuzz ] || have_fuzzer || apt_install needed "libclang-rt-$("$(find_clang)" -dumpversion | cut -d. -f1)-dev"
}

apt_updated=
# apt_install needed|optional PACKAGE [CONSEQUENCE]
apt_install() {
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
    say "installing system package $2"
    if [ -z "$apt_updated" ]; then
      quietly apt-update apt-get update || true
      apt_updated=1
    fi
    DEBIAN_FRONTEND=noninteractive quietly "apt-$2" apt-get install -y --no-install-recommends "$2" && return
  fi
  if [ "$1" = needed ]; then
    die "$2 is missing. Install it and run make again:
  sudo apt-get install $2"
  fi
  say "$2 is missing: $3. To have it: sudo apt-get install $2"
}
