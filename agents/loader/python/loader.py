"""Reads samples of Python datasets for an activation server.

    python loader.py host SOCKET SCRATCH     starts and ends workers as the server requests
    python loader.py isolated-host ...       the same, for a container: without access to the network
    python loader.py worker SOCKET ID ...    a worker: creates the dataset and reads samples

Both connect to the server's Unix socket. A message is a length (u32, of what follows), a kind (u8) and its content:

    kind        direction           content
    HELLO       to the server       JSON {"host": pid} or {"worker": id}
    START       to the host         JSON {"worker": id, "package": directory}
    KILL        to the host         JSON {"worker": id}
    EXITED      from the host       JSON {"worker": id, "status": exit code or -signal, "lines": last lines of stderr}
    READY       from a worker       JSON {"samples": len(dataset)}, null of a dataset that can only be iterated over
    READ        to a worker         (index, seed) for each sample, u64 each
    SAMPLES     from a worker       resident bytes (u64), then the elements of each input, sample after sample
    PROGRESS    from a worker       nothing: it has read another sample
    ERROR       from a worker       JSON {"sample": index or null, "message": text}

Numbers are little-endian. The host runs no code of users. It ends with its connection, and the workers end with it.
"""

import collections
import ctypes
import errno
import faulthandler
import importlib
import json
import os
import pickle
import random
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import zipfile

HELLO, START, KILL, EXITED, READY, READ, SAMPLES, PROGRESS, ERROR = range(9)
HEADER = struct.Struct("<IB")
NUMBERS = struct.Struct("<QQ")
RESIDENT = struct.Struct("<Q")
MAX_CODE_BYTES = 1 << 30
MAX_ERROR_BYTES = 16 << 10
MAX_LAST_LINES = 20
MAX_LINE_BYTES = 4096
ABORT_TIMEOUT_SECONDS = 2.0
PROGRESS_INTERVAL_SECONDS = 1.0
PR_SET_PDEATHSIG = 1
# Filters of system calls: <linux/prctl.h>, <linux/seccomp.h>, <linux/bpf_common.h>, <linux/audit.h>.
PR_SET_SECCOMP, PR_SET_NO_NEW_PRIVS, SECCOMP_MODE_FILTER = 22, 38, 2
SECCOMP_DATA_NUMBER, SECCOMP_DATA_ARCHITECTURE, SECCOMP_DATA_FIRST_ARGUMENT = 0, 4, 16
SECCOMP_KILL, SECCOMP_ERRNO, SECCOMP_ALLOW = 0x80000000, 0x00050000, 0x7FFF0000
BPF_LOAD, BPF_EQUAL, BPF_AT_LEAST, BPF_RETURN = 0x20, 0x15, 0x35, 0x06
X32_SYSTEM_CALLS = 0x40000000
# Architecture, and numbers of the system calls socket and io_uring_setup, which can create sockets, too.
SYSTEM_CALLS = {"x86_64": (0xC000003E, 41, 425), "aarch64": (0xC00000B7, 198, 425)}
PROGRAM = os.path.abspath(__file__)
WORKER_ENVIRONMENT = {
    # The same bits in every worker: one thread, and the same order of sets.
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "PYTHONHASHSEED": "0",
}


class Connection:
    """A connection to the activation server."""

    def __init__(self, path, hello):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.socket.connect(path)
        self.lock = threading.Lock()
        self.send_json(HELLO, hello)

    def send(self, kind, *parts):
        views = [memoryview(part).cast("B") for part in parts if len(part)]
        length = 1 + sum(map(len, views))
        with self.lock:
            self.socket.sendall(HEADER.pack(length, kind))
            for view in views:
                self.socket.sendall(view)

    def send_json(self, kind, document):
        self.send(kind, json.dumps(document).encode())

    def receive(self):
        """Return kind and content of the next message, or None at the end of the connection."""
        header = self._read(HEADER.size)
        if header is None:
            return None
        length, kind = HEADER.unpack(header)
        content = self._read(length - 1)
        return None if content is None else (kind, content)

    def _read(self, size):
        content = bytearray()
        while len(content) < size:
            part = self.socket.recv(size - len(content))
            if not part:
                return None
            content += part
        return bytes(content)


class Host:
    """Starts and ends workers."""

    def __init__(self, path, scratch):
        self.path, self.scratch = path, scratch
        self.workers = {}
        self.code = {}
        self.connection = Connection(path, {"host": os.getpid()})

    def run(self):
        while (message := self.connection.receive()) is not None:
            kind, content = message
            command = json.loads(content)
            if kind == START:
                self.start(command["worker"], command["package"])
            elif kind == KILL and command["worker"] in self.workers:
                end(self.workers[command["worker"]])
        for process in self.workers.values():
            process.kill()
        shutil.rmtree(self.scratch, ignore_errors=True)

    def start(self, worker, package):
        try:
            code = self.code_of(package)
            process = subprocess.Popen(
                [sys.executable, PROGRAM, "worker", self.path, str(worker), package, code],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                cwd=code,
                env=os.environ | WORKER_ENVIRONMENT,
            )
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            report = {"worker": worker, "status": 1, "lines": [f"can't start a worker: {error}"]}
            return self.connection.send_json(EXITED, report)
        self.workers[worker] = process
        threading.Thread(target=self.watch, args=(worker, process), daemon=True).start()

    def code_of(self, package):
        """Unpack the modules of a package, once; return their directory."""
        if package not in self.code:
            directory = tempfile.mkdtemp(prefix="code-", dir=self.scratch)
            archive = os.path.join(package, "code.zip")
            if os.path.exists(archive):
                with zipfile.ZipFile(archive) as files:
                    if sum(entry.file_size for entry in files.infolist()) > MAX_CODE_BYTES:
                        raise ValueError(f"{archive} unpacks to more than {MAX_CODE_BYTES} bytes")
                    files.extractall(directory)
            self.code[package] = directory
        return self.code[package]

    def watch(self, worker, process):
        """Copy the output of a worker to that of the host, and report the worker's end."""
        lines = collections.deque(maxlen=MAX_LAST_LINES)
        while line := process.stderr.readline(MAX_LINE_BYTES):
            text = line.decode(errors="replace").rstrip("\n")
            lines.append(text)
            print(text, file=sys.stderr, flush=True)
        report = {"worker": worker, "status": process.wait(), "lines": list(lines)}
        self.connection.send_json(EXITED, report)


def end(process):
    """End a worker. It prints first where it is, if it can."""
    process.send_signal(signal.SIGABRT)
    try:
        process.wait(ABORT_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


class Worker:
    """Reads samples of one dataset."""

    def __init__(self, path, worker, package, code):
        self.connection = Connection(path, {"worker": worker})
        self.package, self.code = package, code
        self.manifest = {}
        self.dataset = None
        self.inputs = []
        self.reported = time.monotonic()
        self.rewind()

    def run(self):
        try:
            self.open()
        except BaseException as error:
            return self.connection.send_json(ERROR, {"sample": None, "message": self.describe(error)})
        samples = None if self.is_stream() else len(self.dataset)
        self.connection.send_json(READY, {"samples": samples})
        while (message := self.connection.receive()) is not None:
            self.answer([NUMBERS.unpack_from(message[1], at) for at in range(0, len(message[1]), NUMBERS.size)])

    def open(self):
        with open(os.path.join(self.package, "manifest.json"), encoding="utf-8") as file:
            self.manifest = json.load(file)
        sys.path.insert(0, self.code)
        self.dataset = self.create()
        import numpy

        self.numpy = numpy
        types = {"f32": numpy.dtype(numpy.float32), "i32": numpy.dtype(numpy.int32)}
        self.inputs = [
            Input(numpy, field, input["name"], types[input["type"]], tuple(input["shape"]))
            for field, input in zip(self.manifest["fields"], self.manifest["inputs"], strict=True)
        ]
        if torch := sys.modules.get("torch"):
            torch.set_num_threads(1)

    def create(self):
        """Create the dataset."""
        entry = self.manifest["dataset"]
        if "pickle" in entry:
            running, written = "{}.{}".format(*sys.version_info), self.manifest["python"]["version"]
            if running != written:
                raise RuntimeError(
                    f"the dataset was pickled by Python {written}, and this interpreter is Python {running}: use the "
                    "same version, or name a function that creates the dataset"
                )
            with open(os.path.join(self.package, entry["pickle"]), "rb") as file:
                return pickle.load(file)
        module, _, name = entry["function"].partition(":")
        function = importlib.import_module(module)
        for part in name.split("."):
            function = getattr(function, part)
        return function(**entry.get("keywords", {}))

    def is_stream(self):
        return self.manifest["samples"] is None

    def answer(self, numbers):
        arrays = [input.begin(len(numbers)) for input in self.inputs]
        index = None
        try:
            for at, (index, seed) in enumerate(numbers):
                sample = self.nth(index) if self.is_stream() else self.numbered(index, seed)
                for input in self.inputs:
                    input.put(at, sample)
                self.report_progress()
            arrays = [input.elements() for input in self.inputs]
        except (Exception, SystemExit) as error:
            at = getattr(error, "at", None)
            index = index if at is None else numbers[at][0]
            return self.connection.send_json(ERROR, {"sample": index, "message": self.describe(error)})
        self.connection.send(SAMPLES, RESIDENT.pack(resident_bytes()), *arrays)

    def numbered(self, index, seed):
        """Return a sample of a dataset whose samples have numbers."""
        self.seed(seed)
        return self.dataset[index]

    def nth(self, index):
        """Iterate to a sample and return it. An iterator that has passed it begins again."""
        if index < self.position:
            # An iterator may have changed its dataset.
            self.dataset = self.create()
            self.rewind()
        while True:
            try:
                sample = next(self.iterator)
            except StopIteration:
                self.begin_pass()
                continue
            self.position += 1
            self.is_new_pass = False
            if self.position > index:
                return sample
            self.report_progress()

    def rewind(self):
        """Set the iterator of a stream, the number of its next sample, and whether its pass has returned none yet."""
        self.iterator, self.position, self.is_new_pass = iter(()), 0, False

    def begin_pass(self):
        """Begin to iterate. The generators of random numbers are seeded by the number of the first sample."""
        if self.is_new_pass:
            raise ValueError("the iterator returned no sample")
        self.is_new_pass = True
        self.seed(self.position)
        self.iterator = iter(self.dataset)

    def report_progress(self):
        """Tell the activation server once in a while that the worker is not stuck."""
        if time.monotonic() - self.reported > PROGRESS_INTERVAL_SECONDS:
            self.reported = time.monotonic()
            self.connection.send(PROGRESS)

    def seed(self, seed):
        """Seed the global generators of random numbers, so that a sample is a function of its number."""
        random.seed(seed)
        self.numpy.random.seed(seed & 0xFFFFFFFF)
        if torch := sys.modules.get("torch"):
            torch.default_generator.manual_seed(seed & 0x7FFFFFFFFFFFFFFF)

    def describe(self, error):
        """Return the exception in one line, then its traceback without the frames of this program."""
        trace = traceback.TracebackException.from_exception(error)
        frames = trace.stack
        own = next((at for at, frame in enumerate(frames) if frame.filename != PROGRAM), len(frames))
        trace.stack = traceback.StackSummary.from_list(frames[own:])
        summary = "".join(trace.format_exception_only()).strip()
        text = f"{summary}\n{''.join(trace.format()).rstrip()}"
        if isinstance(error, WrongSampleError):
            text = str(error)
        for name, source in self.manifest.get("sources", {}).items():
            # Code that was pickled has a name instead of a file.
            text = text.replace(name if name.startswith("<") else os.path.join(self.code, name), source)
        return text.encode(errors="replace")[:MAX_ERROR_BYTES].decode(errors="ignore")


class WrongSampleError(Exception):
    """A sample is not what the graph reads. `at` is its place in the request, if it is not the last one."""

    def __init__(self, message, at=None):
        super().__init__(message)
        self.at = at

    def __str__(self):
        return self.args[0]


class Input:
    """The elements of one input."""

    def __init__(self, numpy, field, name, dtype, shape):
        self.numpy, self.field, self.name, self.dtype, self.shape = numpy, field, name, dtype, shape
        # Types whose elements are converted after they were checked.
        self.wide = numpy.dtype(numpy.int64)
        self.array = None

    def begin(self, count):
        kind = self.dtype if self.dtype.kind == "f" else self.wide
        self.array = self.numpy.empty((count, *self.shape), kind)

    def put(self, at, sample):
        try:
            # A sample of a single input may be the value itself.
            value = sample if self.field is None else sample[self.field]
        except (KeyError, IndexError, TypeError):
            fields = list(sample) if isinstance(sample, dict) else f"a {type(sample).__name__}"
            raise WrongSampleError(f"the sample has no {self.field!r}; it is {fields}") from None
        if hasattr(value, "detach"):
            value = value.detach().numpy()
        elif not isinstance(value, self.numpy.ndarray):
            value = self.converted(value)
        if value.shape != self.shape:
            raise WrongSampleError(f"{self.name} has the shape {value.shape}; the graph reads {self.shape}")
        if value.dtype != self.array.dtype and not self.accepts(value.dtype):
            raise WrongSampleError(f"{self.name} is of type {value.dtype}; the graph reads {self.dtype}")
        self.array[at] = value

    def converted(self, value):
        """Return a Python number, or a list of them, as an array."""
        array = self.numpy.asarray(value)
        is_python_float = isinstance(value, (float, list, tuple)) and array.dtype == self.numpy.float64
        return array.astype(self.numpy.float32) if is_python_float else array

    def accepts(self, dtype):
        if self.dtype.kind == "f":
            return dtype == self.dtype
        return dtype.kind in "biu" and dtype != self.numpy.uint64

    def elements(self):
        if self.dtype.kind == "f":
            return self.array
        bounds = self.numpy.iinfo(self.dtype)
        outside = (self.array < bounds.min) | (self.array > bounds.max)
        if outside.any():
            at = int(self.numpy.argwhere(outside)[0][0])
            raise WrongSampleError(f"{self.name} has an integer that needs more than 32 bits", at)
        return self.array.astype(self.dtype)


def deny_network():
    """Deny this process, and all that it starts, every socket but Unix sockets.

    The containers of a pod share a network namespace, so a container without network needs a filter of system calls.
    """
    machine = os.uname().machine
    if machine not in SYSTEM_CALLS:
        sys.exit(f"can't deny access to the network on {machine}: use nodes with one of {', '.join(SYSTEM_CALLS)}")
    architecture, socket_call, io_uring_setup = SYSTEM_CALLS[machine]
    program = [
        (BPF_LOAD, 0, 0, SECCOMP_DATA_ARCHITECTURE),
        (BPF_EQUAL, 1, 0, architecture),
        (BPF_RETURN, 0, 0, SECCOMP_KILL),
        (BPF_LOAD, 0, 0, SECCOMP_DATA_NUMBER),
        (BPF_AT_LEAST, 5, 0, X32_SYSTEM_CALLS),
        (BPF_EQUAL, 4, 0, io_uring_setup),
        (BPF_EQUAL, 0, 2, socket_call),
        (BPF_LOAD, 0, 0, SECCOMP_DATA_FIRST_ARGUMENT),
        (BPF_EQUAL, 0, 1, socket.AF_UNIX),
        (BPF_RETURN, 0, 0, SECCOMP_ALLOW),
        (BPF_RETURN, 0, 0, SECCOMP_ERRNO | errno.EACCES),
    ]
    code = b"".join(struct.pack("=HBBI", *instruction) for instruction in program)
    buffer = ctypes.create_string_buffer(code, len(code))
    header = struct.pack("@HP", len(program), ctypes.addressof(buffer))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    if prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) or prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, header, 0, 0):
        sys.exit(f"can't deny access to the network: {os.strerror(ctypes.get_errno())}")


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(arguments):
    role, path, *rest = arguments
    if role == "isolated-host":
        deny_network()
        role = "host"
    # The directory of this program is not the user's.
    sys.path[:] = [entry for entry in sys.path if entry not in ("", os.path.dirname(PROGRAM))]
    if role == "host":
        return Host(path, *rest).run()
    # The kernel ends a worker with its host, even if the host is killed.
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    faulthandler.enable()
    # What a dataset prints goes to the log.
    os.dup2(2, 1)
    worker, package, code = rest
    Worker(path, int(worker), package, code).run()


if __name__ == "__main__":
    main(sys.argv[1:])
