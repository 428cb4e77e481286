"""Profiles of machines: kept, measured again where they must be, refused where they are of another machine."""

from __future__ import annotations

import json
import time

import pytest

from advisor_support import a_profile
from outcrop.errors import FormatError
from outcrop.store import profile


def test_a_profile_is_kept_and_measured_again_where_it_must(tmp_path, monkeypatch):
    monkeypatch.setenv("OUTCROP_CACHE", str(tmp_path / "cache"))
    key = profile.key_of(tmp_path, {"cpu": "c", "cores": 2, "memory_bytes": 1})
    calls = []

    def measure() -> profile.Profile:
        calls.append(1)
        return a_profile(key)

    first = profile.load_or_measure(key, measure)
    assert profile.load_or_measure(key, measure) == first
    assert len(calls) == 1
    assert first.hardware().disk.bytes_per_s == 1000 * 2**20
    assert profile.load_or_measure(key, measure, now=time.time() + 90 * 86400) != 0
    assert len(calls) == 2  # too old
    kept = profile.default_path(key)
    kept.write_text(kept.read_text().replace('"version": 2', '"version": 1'))
    profile.load_or_measure(key, measure)
    assert len(calls) == 3
    other = {**key, "device": -1}
    named = tmp_path / "p.json"
    profile.write(named, a_profile(other))
    with pytest.raises(FormatError, match="device is -1 there"):
        profile.load_or_measure(key, measure, path=named)
    assert profile.load_or_measure(other, measure, path=named) == profile.read(named)
    for damage in ("{", "[]", json.dumps({**profile.read(named).to_json(), "reads": [[1, 0]]})):
        named.write_text(damage)
        with pytest.raises(FormatError, match="measure again"):
            profile.read(named)
    with pytest.raises(FormatError, match="doctor --save"):
        profile.read(tmp_path / "none.json")
