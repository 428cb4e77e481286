"""Calls of commands on their files fail one by one (scripts/fail_calls.py): a share here, all in ``make soak``."""

from __future__ import annotations

import pytest

from artifact_support import script_output
from support import script


@pytest.mark.slow
@pytest.mark.parametrize("share", [["--every", "67"], ["--kinds", "thread", "--every", "8"]])
def test_every_command_survives_or_names_what_failed(share: list[str]) -> None:
    assert " 0 wrong" in script_output("fail_calls", *share)[-1]


def test_what_is_wrong_is_found() -> None:
    """By what a command says and makes after a fault; the library's own part is that calls are counted at all."""
    module = script("fail_calls")
    job = module.Job("import", lambda _: None, ["import", "arrays:source", "g.oc"], lambda _: {})

    def said(status: int | None, text: str, *, made: bool = False) -> str:
        return module.wrong_of(module.Ended(status, text, 1, 1, "read"), made, job)

    assert said(0, "", made=True) == ""
    assert said(0, "") == "status 0, and something else was made"
    assert said(1, "error: g.oc: Input/output error") == ""
    assert said(1, "error: /a/b cannot be read") == ""
    assert said(1, "error: [Errno 12] Cannot allocate memory") == "the error names no file"
    assert said(1, "") == "no error is said"
    assert said(1, "Traceback (most recent call last):") == "a traceback"
    assert (
        said(1, "error: RuntimeError: x.py This was not foreseen and may be a bug of Outcrop")
        == "it was not foreseen"
    )
    assert said(None, "") == "hung for 60 s"
    assert said(-11, "") == "ended by signal 11"
    assert said(3, "") == "status 3"
