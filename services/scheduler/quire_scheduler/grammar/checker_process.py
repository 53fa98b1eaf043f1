"""The process in which constraints are tried first: `python -m quire_scheduler.grammar.checker_process`.

A compiler may loop, exhaust memory or overflow its stack on a text made for that: here it takes down nobody but itself.
Frames on stdin and stdout (checker_frames.py): first a Setup, answered by True; then constraints, each
answered by a Checked. Ends with stdin.
"""

from __future__ import annotations

import os
import pickle
import resource
import signal
import sys
import threading
from pathlib import Path
from typing import IO, Any

from quire_scheduler.errors import InvalidRequest
from quire_scheduler.grammar.checker_frames import HEADER, STACK_BYTES, Checked, Setup, frame
from quire_scheduler.grammar.constraint import Constraint
from quire_scheduler.grammar.prototype import PrototypeMaker

# Behind the model's worker, whose processors it may share.
NICENESS = 5
# Above what the tables take; beyond, an allocation fails and the process ends.
MAX_MORE_BYTES = 2 << 30
PARENT_CHECK_INTERVAL_S = 1.0


def _read(stream: IO[bytes]) -> Any:
    header = stream.read(HEADER.size)
    if len(header) < HEADER.size:
        return None
    return pickle.loads(stream.read(HEADER.unpack(header)[0]))


def check(maker: PrototypeMaker, constraint: Constraint) -> Checked:
    """Compile a constraint, its first mask included."""
    try:
        grammar = maker.grammar_of(constraint)
        maker.make(constraint, grammar)
    except InvalidRequest as error:
        return Checked(message=str(error))
    return Checked(grammar=grammar)


def _limit_memory() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    resource.setrlimit(resource.RLIMIT_AS, (used + MAX_MORE_BYTES, used + MAX_MORE_BYTES))


def _serve() -> None:
    stdin, stdout = sys.stdin.buffer, sys.stdout.buffer
    setup: Setup | None = _read(stdin)
    if setup is None:
        return
    maker = PrototypeMaker(setup.vocabulary, setup.vocab_size, setup.eos_token_ids)
    _limit_memory()
    answer: object = True
    while True:
        stdout.write(frame(answer))
        stdout.flush()
        constraint: Constraint | None = _read(stdin)
        if constraint is None:
            return
        answer = check(maker, constraint)


def main() -> None:
    """Serve until stdin ends, or the parent has gone: a compiler that runs away must not outlive it."""
    # A Ctrl-C is for the parent, which ends us in order.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = os.getppid()
    os.nice(NICENESS)
    # A stack as deep as that of the thread which compiles it again.
    threading.stack_size(STACK_BYTES)
    thread = threading.Thread(target=_serve, daemon=True)
    thread.start()
    while thread.is_alive() and os.getppid() == parent:
        thread.join(PARENT_CHECK_INTERVAL_S)


if __name__ == "__main__":
    main()
