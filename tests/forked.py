"""Python children by fork of a process that has imported what they need: a hundredth of a second, not seconds.

``python(code)`` of artifact_support starts a Python for every call; most of that time goes into importing torch and
torch_geometric. Here one process per kind and session, the *stem*, imports once and then waits: it has one thread and
has run nothing. Every call forks it; the child takes the arguments and variables of the call, runs ``code`` as its main
program and ends as any Python does (exit status, traceback, threads joined, finalisation). The stem is reached by a
socket of a name without a file, so that between calls no descriptor is open here; it dies with this process.

Not for what is about starting or importing, nor for code that looks at its parent.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from artifact_support import child_environment
from support import HANGS_SECONDS

LIGHT = "import outcrop.api.prepare, outcrop.importing.generate, outcrop.importing.graph"
HEAVY = (
    LIGHT
    + ", torch, torch_geometric, outcrop.api.train, outcrop.training.learn, outcrop.loading.transfer"
    + ", outcrop.api.infer, outcrop.api.run, outcrop.cli.main, outcrop.cli.commands\n"
    + "for module in outcrop.cli.commands.MODULES.values(): outcrop.cli.commands.commands_of(module)\ndel module"
)
STEM = """
import ctypes, gc, json, os, signal, socket, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG
{imports}

def serve(name):
    listening = socket.socket(socket.AF_UNIX)
    listening.bind(name)
    listening.listen()
    while True:
        connection, _ = listening.accept()
        with connection.makefile() as file:
            line = file.readline()
        if not line:  # somebody looked whether it is there
            connection.close()
            continue
        request = json.loads(line)
        child = os.fork()
        if child == 0:
            break
        connection.sendall(b"%d\\n" % child)
        connection.sendall(b"%d\\n" % os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
        connection.close()
    connection.close()
    listening.close()
    for number in (1, 2):
        file = os.open(request["output"][number - 1], os.O_WRONLY | os.O_CREAT)
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.argv = ["-c", *request["arguments"]]
    return request["code"]

gc.freeze()  # what was imported is not collected at the end of every child, which takes a second; or: gc.unfreeze()
_code = serve("\\0" + sys.argv[1][1:])
del serve, ctypes, gc, json, os, signal, socket
exec(compile(_code, "<string>", "exec"))
"""


@functools.cache
def _stem(imports: str) -> str:
    """Name of the socket of a stem, which is started at the first call."""
    name = f"\0outcrop-test-{os.getpid()}-{len(imports)}"
    stem = subprocess.Popen(
        [sys.executable, "-c", STEM.replace("{imports}", imports), name.replace("\0", "@")],
        stdin=subprocess.DEVNULL,
        env=child_environment(),
    )

    def end() -> None:
        stem.kill()
        stem.wait()

    atexit.register(end)
    deadline = time.monotonic() + HANGS_SECONDS
    while True:
        try:
            _connect(name).close()
            return name
        except ConnectionRefusedError:
            assert stem.poll() is None, "the stem died"
            assert time.monotonic() < deadline, "the stem does not answer"
            time.sleep(0.01)


def _connect(name: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    try:
        connection.connect(name)
    except OSError:
        connection.close()
        raise
    return connection


def python(
    code: str, *arguments: object, timeout: float = HANGS_SECONDS, imports: str = HEAVY, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Runs ``code`` to its end in a child of the stem that has done ``imports``."""
    name = _stem(imports)
    with tempfile.TemporaryDirectory() as folder, _connect(name) as connection:
        output = [str(Path(folder) / stream) for stream in ("out", "err")]
        request = {
            "code": code,
            "arguments": [str(a) for a in arguments],
            "environment": child_environment(**variables),
            "output": output,
        }
        connection.settimeout(timeout)
        connection.sendall(json.dumps(request).encode() + b"\n")
        with connection.makefile() as answers:
            child = int(answers.readline())
            try:
                status = int(answers.readline())
            except TimeoutError:
                os.kill(child, signal.SIGKILL)
                raise subprocess.TimeoutExpired("python", timeout) from None
        texts = [Path(path).read_text() for path in output]
    return subprocess.CompletedProcess([code], status, *texts)
