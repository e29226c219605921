"""What the scripts here share: servers of their own, who may join, and clusters of processes that are kept alive."""
import contextlib
import ctypes
import pathlib
import re
import signal
import sys
import tempfile
import threading
import time

ENDS = signal.SIGTERM, signal.SIGINT
PARTS = "version", "model", "kv", "device"


class Refused(Exception):
    """The input, a server or a cluster cannot be used."""


def agree(what, theirs, ours, cure):
    """Refuses an identity that differs from ours, by name."""
    pairs = zip(PARTS, theirs.split(";"), ours.split(";"))
    differ = [f"{part} {their} instead of {our}" for part, their, our in pairs if their != our]
    if differ:
        raise Refused(f"{what} has {', '.join(differ)}: {cure}")


def end_with_parent():
    """Before a process begins: lets it be killed when the thread that started it ends."""
    ctypes.CDLL(None).prctl(1, signal.SIGKILL)


@contextlib.contextmanager
def noted():
    """Delays the signals to end until a process that is started with `OWN` is where `Cluster.end` finds it."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ENDS)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def unblock():
    signal.pthread_sigmask(signal.SIG_UNBLOCK, ENDS)


# How a process is started within `noted`: in a session of its own, so that Ctrl-C reaches only this script.
OWN = {"start_new_session": True, "preexec_fn": unblock}


def address_of(server, what):
    """Waits until a `bitnet serve` says on its stderr where it listens; what it says later is left to read."""
    said = []
    for line in server.stderr:
        if found := re.search(r"is served on http://(\S+)/v1", line):
            return found[1]
        said.append(line)
    raise Refused(f"{what} did not start: {' '.join(said).strip()}")


class Member:
    """A process of a cluster, started by a subclass."""

    def __init__(self, name):
        self.name, self.process = name, None
        self.wait, self.again = 1, 0  # seconds before the next start after a death, and when that is

    def end(self):
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            self.process.wait()


class Cluster:
    """Members of one kind behind a front process. A subclass has `own`, the members that it starts, and `front`."""

    def admit(self, member):
        """Starts a member and lets it take requests, or raises `Refused`."""
        raise NotImplementedError

    def leave(self, member):
        """Lets a member's requests end."""

    def end_front(self):
        raise NotImplementedError

    def join(self, member):
        """Starts a member anew; after a refusal, the next try waits twice as long."""
        try:
            self.admit(member)
        except Refused as problem:
            member.end()
            member.wait, member.again = min(60, 2 * member.wait), time.monotonic() + member.wait
            print(f"error: {problem}: it does not join", file=sys.stderr, flush=True)
            return False
        member.wait = 1
        print(f"{member.name} takes requests again", flush=True)
        return True

    def roll(self):
        """Restarts the members one after another; stops at the first that does not join."""
        for member in self.own:
            self.leave(member)
            member.end()
            if not self.join(member):
                return
        print(f"all {self.kind} were restarted", flush=True)

    def check_front(self):
        if self.front.poll() is not None:
            raise Refused(f"{self.front_name} ended with exit code {self.front.returncode}")

    def watch(self):
        """Restarts members that have died."""
        self.check_front()
        for member in self.own:
            if member.process.poll() is not None and time.monotonic() >= member.again:
                print(f"{member.name} ended with {member.process.returncode}", file=sys.stderr, flush=True)
                self.join(member)

    def end(self):
        self.end_front()
        stops = [threading.Thread(target=member.end) for member in self.own]
        [stop.start() for stop in stops]
        [stop.join() for stop in stops]


def parse(arguments):
    """Reads the command line; what follows -- are flags for `bitnet`."""
    cut = sys.argv.index("--") if "--" in sys.argv else len(sys.argv)
    options = arguments.parse_args(sys.argv[1:cut])
    options.flags = sys.argv[cut + 1 :]
    return options


def keep(make):
    """Makes a cluster with a folder of its own and keeps it until SIGTERM or Ctrl-C; SIGHUP restarts its members."""
    rolls, cluster = [], None

    def end(*_):
        # Also while members start, which may take minutes. The first signal is enough.
        for number in ENDS:
            signal.signal(number, signal.SIG_IGN)
        sys.exit()

    for number in ENDS:
        signal.signal(number, end)
    signal.signal(signal.SIGHUP, lambda *_: rolls.append(True))
    try:
        with tempfile.TemporaryDirectory() as folder:
            try:
                cluster = make(pathlib.Path(folder))
                while True:
                    if rolls:
                        rolls.clear()
                        cluster.roll()
                    cluster.watch()
                    time.sleep(0.1)
            finally:
                if cluster:
                    cluster.end()
    except (Refused, OSError) as problem:
        sys.exit(f"error: {problem}")
