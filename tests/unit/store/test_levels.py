"""Levels are written to reports by the names that readers of earlier ones know."""

from __future__ import annotations

import json

from outcrop.store.levels import Level


def test_levels_are_written_as_reports_have_always_named_them():
    written = json.loads(json.dumps({level: level for level in Level}))
    names = ["device", "host", "disk_cache", "packed", "disk", "map"]
    assert written == dict(zip(names, names, strict=True))
    assert f"{Level.HOST}_ids" == "host_ids"  # the array of a plan
