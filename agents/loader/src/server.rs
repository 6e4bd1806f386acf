//! The socket of an activation server, to which the host and its workers connect.

use std::collections::HashMap;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::{CONNECT_TIMEOUT, HOST, LoaderError, WORKER, spawn};
use crate::host::{HostLauncher, PROGRAM_FILE, write_program};
use crate::message::{self, MAX_REPORT_BYTES, Message, WorkerExit};

/// Time for a new connection to say what it is.
const HELLO_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum references to a server: those of its pools and threads, and of connections that have not said what they are.
const MAX_REFERENCES: usize = 1024;
/// Time for a worker to end.
const END_TIMEOUT: Duration = Duration::from_secs(10);

/// Where the host runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum HostLocation {
    /// In a process that the server starts, with this interpreter.
    Process(PathBuf),
    /// In a container that shares a directory with the server.
    Container {
        /// The socket in that directory.
        socket: PathBuf,
        /// The program there, which the server writes when the socket exists. The container waits for it.
        program: PathBuf,
    },
}

/// The socket that host and workers connect to.
pub struct LoaderServer {
    /// How the host is started; `None` if it is in a container.
    launcher: Option<HostLauncher>,
    socket: PathBuf,
    state: Mutex<HostState>,
    changed: Condvar,
    /// Number of workers that failed and were replaced.
    replaced_workers: AtomicU64,
}

#[derive(Default)]
struct HostState {
    /// The connection to the host; `None` while no host is connected.
    host: Option<UnixStream>,
    process: Option<Child>,
    /// Workers that have connected and were not taken yet.
    arrived: HashMap<u64, UnixStream>,
    /// Workers that have ended and whose end was not taken yet.
    ended: HashMap<u64, WorkerExit>,
    next_worker: u64,
    /// Why the host can't be started.
    failure: Option<LoaderError>,
    is_closed: bool,
}

impl LoaderServer {
    /// Opens the socket. The host is started with the first worker.
    ///
    /// # Errors
    /// The socket or its directory can't be created.
    pub fn open(location: HostLocation) -> Result<Arc<Self>, LoaderError> {
        let (socket, program, launcher) = match location {
            HostLocation::Process(interpreter) => {
                let launcher = HostLauncher::new(interpreter)?;
                let [socket, program] = ["socket", PROGRAM_FILE].map(|name| launcher.directory().join(name));
                (socket, program, Some(launcher))
            }
            HostLocation::Container { socket, program } => (socket, program, None),
        };
        // A socket of an earlier process of this pod.
        let _ = std::fs::remove_file(&socket);
        let opened = UnixListener::bind(&socket);
        let listener = opened.map_err(LoaderError::system(format!("open the socket {}", socket.display())))?;
        write_program(&program)?;
        let server = Arc::new(Self {
            launcher,
            socket,
            state: Mutex::default(),
            changed: Condvar::new(),
            replaced_workers: AtomicU64::new(0),
        });
        let accepting = Arc::downgrade(&server);
        spawn("loader-accept", move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let Some(server) = accepting.upgrade().filter(|server| !server.lock().is_closed) else { return };
                // Each has a thread until it says what it is, so that none delays the others.
                if Arc::strong_count(&server) < MAX_REFERENCES {
                    let _ = spawn("loader-hello", move || server.greet(stream));
                }
            }
        })?;
        Ok(server)
    }

    fn lock(&self) -> MutexGuard<'_, HostState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Receives what a new connection is. Follows it, if it is a host.
    fn greet(self: Arc<Self>, mut stream: UnixStream) {
        let _ = stream.set_read_timeout(Some(HELLO_TIMEOUT));
        match message::receive(&mut stream, MAX_REPORT_BYTES) {
            Ok(Message::WorkerHello(worker)) => {
                let mut state = self.lock();
                // Only workers that were requested.
                if worker < state.next_worker {
                    state.arrived.insert(worker, stream);
                    self.changed.notify_all();
                }
            }
            Ok(Message::HostHello) => self.follow_host(stream),
            _ => tracing::warn!("a connection to the loader socket sent no valid greeting"),
        }
    }

    /// Receives the ends of workers until the host ends.
    fn follow_host(self: Arc<Self>, mut stream: UnixStream) {
        let _ = stream.set_read_timeout(None);
        let Ok(sender) = stream.try_clone() else { return };
        self.lock().host = Some(sender);
        self.changed.notify_all();
        // The server must not exist for as long as its host.
        let server = Arc::downgrade(&self);
        drop(self);
        while let Ok(Message::Exited(exit)) = message::receive(&mut stream, MAX_REPORT_BYTES) {
            let Some(server) = server.upgrade() else { return };
            let mut state = server.lock();
            if exit.worker < state.next_worker {
                state.ended.insert(exit.worker, exit);
                server.changed.notify_all();
            }
        }
        if let Some(server) = server.upgrade() {
            tracing::warn!("the host of the data loader has ended");
            let mut state = server.lock();
            state.host = None;
            let process = state.process.take();
            server.changed.notify_all();
            drop(state);
            // It has ended, or closed its connection to end.
            let _ = process.map(|mut process| process.wait());
        }
    }

    /// Starts a worker of the package in `directory`; returns its number and its connection.
    ///
    /// # Errors
    /// The host can't be started, or the worker ends before it connects.
    pub(crate) fn start_worker(&self, directory: &Path) -> Result<(u64, UnixStream), LoaderError> {
        let deadline = Instant::now() + CONNECT_TIMEOUT;
        let mut state = self.lock();
        if let Some(error) = &state.failure {
            return Err(error.clone());
        }
        if let (Some(launcher), None, None) = (&self.launcher, &state.host, &state.process) {
            state.process = Some(launcher.start(&self.socket).inspect_err(|error| {
                state.failure = Some(error.clone());
                // No host will remove it if this process ends without dropping the server.
                let _ = std::fs::remove_dir_all(launcher.directory());
            })?);
        }
        let mut state = self.wait_for(state, deadline, HOST, |state| state.host.is_some())?;
        let worker = state.next_worker;
        state.next_worker += 1;
        // Workers have another working directory.
        let directory = std::path::absolute(directory).map_err(LoaderError::system("find the package"))?;
        if let Some(host) = &mut state.host {
            let sent = message::send_start(host, worker, &directory.display().to_string());
            sent.map_err(LoaderError::system("start a worker"))?;
        }
        let has_result = |state: &HostState| state.arrived.contains_key(&worker) || state.ended.contains_key(&worker);
        let mut state = self.wait_for(state, deadline, WORKER, has_result)?;
        match (state.arrived.remove(&worker), state.ended.remove(&worker)) {
            (Some(stream), _) => Ok((worker, stream)),
            (None, Some(exit)) => Err(LoaderError::Ended { process: WORKER, exit }),
            (None, None) => Err(LoaderError::NotConnected { process: WORKER }),
        }
    }

    /// Waits until `is_done`, or until the host has ended.
    fn wait_for<'a>(
        &self,
        mut state: MutexGuard<'a, HostState>,
        deadline: Instant,
        process: &'static str,
        is_done: impl Fn(&HostState) -> bool,
    ) -> Result<MutexGuard<'a, HostState>, LoaderError> {
        while !is_done(&state) {
            let remaining = deadline.saturating_duration_since(Instant::now());
            // The host may have ended before it connected.
            let has_ended = state.process.as_mut().and_then(|process| process.try_wait().ok().flatten());
            if let Some(status) = has_ended {
                state.process = None;
                let exit = WorkerExit { worker: 0, status: status.code().unwrap_or(-1), lines: Vec::new() };
                return Err(LoaderError::Ended { process: HOST, exit });
            }
            if remaining.is_zero() || state.is_closed {
                return Err(LoaderError::NotConnected { process });
            }
            let step = remaining.min(Duration::from_millis(200));
            state = self.changed.wait_timeout(state, step).unwrap_or_else(PoisonError::into_inner).0;
        }
        Ok(state)
    }

    /// Waits for the end of a worker that ends by itself, and ends it if it does not.
    pub(crate) fn await_end(&self, worker: u64) -> Option<WorkerExit> {
        self.wait_for_end(self.lock(), worker).or_else(|| self.end_worker(worker))
    }

    /// Ends a worker, and waits for its end, which says what it printed last. Returns `None` if that is not known.
    pub(crate) fn end_worker(&self, worker: u64) -> Option<WorkerExit> {
        let mut state = self.lock();
        if !state.ended.contains_key(&worker) {
            let _ = state.host.as_mut().map(|host| message::send_kill(host, worker));
        }
        self.wait_for_end(state, worker)
    }

    fn wait_for_end(&self, state: MutexGuard<'_, HostState>, worker: u64) -> Option<WorkerExit> {
        let deadline = Instant::now() + END_TIMEOUT;
        let has_ended = |state: &HostState| state.ended.contains_key(&worker) || state.host.is_none();
        self.wait_for(state, deadline, WORKER, has_ended).ok()?.ended.remove(&worker)
    }

    /// Counts and logs that a worker failed by `reason` and is replaced, at the sample with this index if it is known.
    pub(crate) fn record_replacement(&self, reason: &str, sample: Option<u64>) {
        self.replaced_workers.fetch_add(1, Ordering::Relaxed);
        tracing::warn!(sample, "a worker of the data loader is replaced: {reason}");
    }

    /// Returns the number of workers that failed and were replaced.
    pub fn replaced_workers(&self) -> u64 {
        self.replaced_workers.load(Ordering::Relaxed)
    }

    /// Ends host and workers.
    pub fn close(&self) {
        let mut state = self.lock();
        state.is_closed = true;
        // The host ends with its connection, and kills its workers first.
        if let Some(host) = state.host.take() {
            let _ = host.shutdown(std::net::Shutdown::Both);
        }
        if let Some(mut process) = state.process.take() {
            drop(state);
            let _ = process.wait();
        }
        // Wakes the thread that accepts connections.
        let _ = UnixStream::connect(&self.socket);
        self.changed.notify_all();
    }
}

impl Drop for LoaderServer {
    fn drop(&mut self) {
        self.close();
    }
}
