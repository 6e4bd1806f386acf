"""Datasets of the tests of the loader."""

import os
import random
import signal
import socket
import subprocess
import sys
import time

import numpy as np


class Numbers:
    """Sample n has the numbers 2n and 2n + 1, and the label n."""

    def __len__(self):
        return 1000

    def __getitem__(self, index):
        return {"x": np.array([2 * index, 2 * index + 1], np.float32), "labels": index}


class RandomNumbers(Numbers):
    def __getitem__(self, index):
        return {"x": np.array([random.random(), np.random.rand()], np.float32), "labels": np.int64(index)}


class Faulty(Numbers):
    """Fails at sample 5: the first time only, if `marker` is the path of a new file."""

    def __init__(self, fault, marker=None):
        self.fault, self.marker = fault, marker

    def __getitem__(self, index):
        if index == 5 and not (self.marker and os.path.exists(self.marker)):
            if self.marker:
                open(self.marker, "w").close()
            return getattr(self, self.fault)(index)
        return super().__getitem__(index)

    def raises(self, index):
        raise ValueError(f"bad row {index}")

    def exits(self, index):
        os._exit(3)

    def crashes(self, index):
        print("about to crash")
        os.kill(os.getpid(), signal.SIGSEGV)

    def hangs(self, index):
        time.sleep(3600)

    def other_shape(self, index):
        return {"x": np.zeros(3, np.float32), "labels": 0}

    def other_type(self, index):
        return {"x": np.zeros(2), "labels": 0}

    def large_integer(self, index):
        return {"x": np.zeros(2, np.float32), "labels": 1 << 40}

    def no_label(self, index):
        return {"x": np.zeros(2, np.float32)}

    def kills_host(self, index):
        os.kill(os.getppid(), signal.SIGKILL)
        time.sleep(3600)


class Stream:
    """Returns the samples of `Numbers`, and fails as `Faulty`. A pass has `count` samples."""

    def __init__(self, count=1000, **faults):
        self.count = count
        self.source = Faulty(**faults) if faults else Numbers()

    def __iter__(self):
        return map(self.source.__getitem__, range(self.count))


class RandomStream(Stream):
    def __iter__(self):
        return map(RandomNumbers().__getitem__, range(self.count))


class Network(Numbers):
    """Tries to reach the network in several ways."""

    def __getitem__(self, index):
        if index == 0:
            socket.create_connection(("127.0.0.1", 80))
        if index == 1:
            socket.socket(socket.AF_INET6, socket.SOCK_DGRAM)
        subprocess.run(
            [sys.executable, "-c", "import socket; socket.socket(socket.AF_NETLINK, socket.SOCK_RAW)"], check=True
        )


class Missing:
    def __init__(self):
        import no_such_module  # noqa: F401
