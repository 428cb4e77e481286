#!/usr/bin/env bash
# The suite again under conditions that shake out assumptions (tests/conftest.py reads the variables):
#   pread   tests that build a Runtime, without io_uring (the command line chooses the backend as the library does)
#   tiny    the same tests: requests of at most 4 KiB, two in flight, a small default budget
#   faults  the same tests: random short transfers and EAGAIN, repeatable from the test's name
source "$(dirname "$0")/common.sh"
export OUTCROP_ALLOW_EMPTY=1
status=0
say "torture: pread backend"
OUTCROP_TORTURE=pread OUTCROP_IO_BACKEND=pread scripts/py-tests.sh torture-pread -m "not slow and not torture and not gpu" "$@" || status=1
say "torture: tiny requests and budgets"
OUTCROP_TORTURE=tiny scripts/py-tests.sh torture-tiny -m "not slow and not gpu" "$@" || status=1
say "torture: random short reads"
OUTCROP_TORTURE=faults scripts/py-tests.sh torture-faults -m "not slow and not gpu" "$@" || status=1
exit $status
