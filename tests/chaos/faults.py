"""Faults of other kinds than signals: a stopped thread, cut connections, and storage that fails or does not respond."""

import contextlib
import ctypes
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import threading

PTRACE_SEIZE, PTRACE_INTERRUPT = 0x4206, 0x4207
# Waits for threads, too.
WALL = 0x40000000
# Number of the system call in all architectures.
PIDFD_GETFD = 438

# System calls that create, name or save files. Reads and sockets are not among them.
FILE_CALLS = "openat,mkdir,mkdirat,rename,renameat,renameat2,fsync,fdatasync"
# Instead of an error, "stall": writes to metrics.jsonl take 4 s.
STORAGE_FAULTS = ["EIO", "ESTALE", "ENOSPC", "EROFS", "stall"]
STALL_MICROSECONDS = 4_000_000


def stop_thread(pid, name):
    """Stops the thread of this name until its process ends; returns whether there is one."""
    stopped = threading.Event()
    is_stopped = []

    def trace():
        # Only the thread that traces another one may control it, so this one stays as long as the process.
        ptrace = ctypes.CDLL(None, use_errno=True).ptrace
        ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
        with contextlib.suppress(OSError, StopIteration):
            tasks = pathlib.Path(f"/proc/{pid}/task").iterdir()
            thread = next(int(task.name) for task in tasks if task.joinpath("comm").read_text().strip() == name)
            if ptrace(PTRACE_SEIZE, thread, None, None) == 0 and ptrace(PTRACE_INTERRUPT, thread, None, None) == 0:
                is_stopped.append(thread)
        stopped.set()
        # The end of a traced thread must be received by its tracer.
        with contextlib.suppress(ChildProcessError):
            while is_stopped and not os.WIFSIGNALED(os.waitpid(thread, WALL)[1]):
                pass

    threading.Thread(target=trace, daemon=True).start()
    stopped.wait()
    return bool(is_stopped)


def cut_connections(pid):
    """Shuts down every TCP connection of a process, in both directions; returns how many."""
    count = 0
    with contextlib.suppress(OSError):
        process = os.pidfd_open(pid)
        for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir():
            with contextlib.suppress(OSError):
                if not os.readlink(entry).startswith("socket:"):
                    continue
                descriptor = ctypes.CDLL(None).syscall(PIDFD_GETFD, process, int(entry.name), 0)
                if descriptor < 0:
                    continue
                with socket.socket(fileno=descriptor) as connection:
                    # Pairs of Unix sockets are not of the network; a runtime wakes itself by them.
                    if connection.family not in (socket.AF_INET, socket.AF_INET6):
                        continue
                    # Fails for sockets that listen.
                    connection.getpeername()
                    connection.shutdown(socket.SHUT_RDWR)
                    count += 1
        os.close(process)
    return count


def can_fail_storage():
    """Returns whether this machine has strace, which injects errors into system calls."""
    return shutil.which("strace") is not None


def fail_storage(pid, fault, model_dir, seconds):
    """Makes the system calls of a process that change files fail with an error, or take long, for some seconds."""
    if fault == "stall":
        calls, effect, paths = "write", f"delay_enter={STALL_MICROSECONDS}", ["-P", str(model_dir / "metrics.jsonl")]
    else:
        calls, effect, paths = FILE_CALLS, f"error={fault}", []
    options = ["-f", "-qq", "-o", "/dev/null", *paths, "-e", f"trace={calls}", "-e", f"inject={calls}:{effect}"]
    tracer = subprocess.Popen(["strace", *options, "-p", str(pid)], stderr=subprocess.DEVNULL)

    def end():
        # It detaches from the process, which continues.
        tracer.send_signal(signal.SIGINT)
        tracer.wait()

    threading.Timer(seconds, end).start()
