//! Tests the loader with real workers. `MILLRACE_LOADER_PYTHON` names a Python interpreter with NumPy.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use millrace_data::{PythonPackage, PythonProblem, SampleNumber, SampleReader};
use millrace_loader::{HostLocation, LoaderPool, LoaderServer, LoaderStream};
use serde_json::{Value, json};

fn interpreter() -> PathBuf {
    std::env::var_os("MILLRACE_LOADER_PYTHON").expect("MILLRACE_LOADER_PYTHON").into()
}

/// A package in a directory of its own, and the pool that reads it.
struct Case {
    directory: tempfile::TempDir,
    server: Arc<LoaderServer>,
    workers: u16,
}

impl Case {
    fn new(workers: u16) -> Self {
        Self::with_interpreter(workers, interpreter())
    }

    fn with_interpreter(workers: u16, interpreter: PathBuf) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let module = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/datasets.py");
        let program = "import sys, zipfile; zipfile.ZipFile(sys.argv[1], 'w').write(sys.argv[2], 'datasets.py')";
        let archive = directory.path().join("code.zip");
        let written = Command::new("python3").args(["-c", program]).arg(archive).arg(module).status().unwrap();
        assert!(written.success());
        let server = LoaderServer::open(HostLocation::Process(interpreter)).unwrap();
        Self { directory, server, workers }
    }

    fn pool(&self, function: &str, keywords: Value) -> LoaderPool {
        self.pool_of(json!({"dataset": {"function": format!("datasets:{function}"), "keywords": keywords}}))
    }

    fn pool_of(&self, changes: Value) -> LoaderPool {
        LoaderPool::new(&self.server, &self.package_of(changes)).unwrap()
    }

    fn package_of(&self, changes: Value) -> PythonPackage {
        let mut manifest = json!({
            "version": 1,
            "python": {"version": "3.0", "executable": "/nowhere"},
            "samples": 1000,
            "workers": self.workers,
            "timeout_seconds": 2,
            "fields": ["x", "labels"],
            "inputs": [{"name": "x", "type": "f32", "shape": [2]}, {"name": "labels", "type": "i32", "shape": []}],
            "sources": {"datasets.py": "/home/ann/datasets.py"},
        });
        for (key, value) in changes.as_object().unwrap() {
            manifest[key] = value.clone();
        }
        std::fs::write(self.directory.path().join("manifest.json"), manifest.to_string()).unwrap();
        PythonPackage::open(self.directory.path()).unwrap()
    }

    /// Returns the reader of a dataset that can only be iterated over, of which it keeps the last 40 samples.
    fn stream(&self, function: &str, keywords: Value) -> LoaderStream {
        let dataset = json!({"function": format!("datasets:{function}"), "keywords": keywords});
        let package = self.package_of(json!({"version": 2, "samples": null, "dataset": dataset}));
        LoaderStream::new(&self.server, &package, 10)
    }

    fn marker(&self) -> String {
        self.directory.path().join("marker").display().to_string()
    }
}

fn numbers(indices: impl IntoIterator<Item = u64>) -> Vec<SampleNumber> {
    indices.into_iter().map(|index| SampleNumber { index, seed: index.wrapping_mul(0x9e37_79b9_7f4a_7c15) }).collect()
}

/// Returns the samples of `Numbers` with these indices.
fn expected(indices: impl IntoIterator<Item = u64>) -> Vec<Vec<u8>> {
    let mut arrays = vec![Vec::new(), Vec::new()];
    for index in indices {
        let values = [2.0 * index as f32, 2.0 * index as f32 + 1.0];
        arrays[0].extend(values.iter().flat_map(|value| value.to_le_bytes()));
        arrays[1].extend((index as i32).to_le_bytes());
    }
    arrays
}

fn failure(result: Result<Vec<Vec<u8>>, PythonProblem>) -> String {
    result.unwrap_err().to_string()
}

#[test]
fn samples_arrive_in_the_order_of_the_request() {
    let case = Case::new(3);
    let pool = case.pool("Numbers", json!({}));
    let indices: Vec<u64> = (0..1000).rev().chain(0..300).collect();
    assert_eq!(pool.read(&numbers(indices.clone())).unwrap(), expected(indices));
    assert_eq!(pool.read(&numbers([7])).unwrap(), expected([7]));
}

#[test]
fn random_numbers_depend_on_the_sample_only() {
    let read = |workers, order: Vec<u64>| {
        let case = Case::new(workers);
        let mut arrays = case.pool("RandomNumbers", json!({})).read(&numbers(order)).unwrap();
        arrays.swap_remove(0).chunks(8).map(<[u8]>::to_vec).collect::<Vec<_>>()
    };
    let mut backwards = read(3, (0..60).rev().collect());
    backwards.reverse();
    let forwards = read(1, (0..60).collect());
    assert_eq!(forwards, backwards);
    assert_ne!(forwards[0], forwards[1]);
}

#[test]
fn exception_is_reported_with_its_traceback() {
    let case = Case::new(1);
    let pool = case.pool("Faulty", json!({"fault": "raises"}));
    let error = failure(pool.read(&numbers(0..10)));
    assert!(error.starts_with("failed at sample 5: ValueError: bad row 5\nTraceback"), "{error}");
    assert!(error.contains("File \"/home/ann/datasets.py\", line "), "{error}");
    assert!(error.contains("raise ValueError") && !error.contains("loader.py"), "{error}");
    assert_eq!(pool.read(&numbers([4])).unwrap(), expected([4]));
}

#[test]
fn failed_worker_is_replaced_and_its_samples_read_again() {
    let case = Case::new(2);
    for fault in ["exits", "crashes", "hangs", "kills_host"] {
        let pool = case.pool("Faulty", json!({"fault": fault, "marker": case.marker()}));
        assert_eq!(pool.read(&numbers(0..20)).unwrap(), expected(0..20), "{fault}");
        std::fs::remove_file(case.marker()).unwrap();
    }
}

#[test]
fn sample_that_ends_every_worker_is_named() {
    let case = Case::new(1);
    for (fault, part) in [
        ("exits", "the last one: it ended with exit code 3"),
        ("crashes", "it ended with signal 11"),
        ("hangs", "it has not answered for too long (\"/home"),
    ] {
        let error = failure(case.pool("Faulty", json!({"fault": fault})).read(&numbers(0..7)));
        assert!(error.starts_with("failed at sample 5: 3 workers failed while they read it"), "{error}");
        let part = part.replace("\"/home", "\"/");
        assert!(error.contains(&part), "{error} does not contain {part}");
    }
    // The request with the sample failed, and three more for the sample alone.
    assert_eq!(case.server.replaced_workers(), 3 * 4);
}

#[test]
fn samples_that_the_graph_does_not_read_are_rejected() {
    let case = Case::new(1);
    for (fault, part) in [
        ("other_shape", "x has the shape (3,); the graph reads (2,)"),
        ("other_type", "x is of type float64; the graph reads float32"),
        ("large_integer", "labels has an integer that needs more than 32 bits"),
        ("no_label", "the sample has no 'labels'; it is ['x']"),
    ] {
        let error = failure(case.pool("Faulty", json!({"fault": fault})).read(&numbers(0..7)));
        assert_eq!(error, format!("failed at sample 5: {part}"));
    }
}

/// Whatever the order of the requests, and also where the iterator begins again and after a failure of the worker.
#[test]
fn sample_of_a_stream_is_what_the_iterator_returns_at_its_place() {
    let case = Case::new(1);
    let stream = case.stream("Stream", json!({"count": 300}));
    for range in [10..20, 0..10, 20..30, 15..17, 295..305, 250..252, 4000..4010, 3990..4000, 0..10] {
        let expected = expected(range.clone().map(|number| number % 300));
        assert_eq!(stream.read(&numbers(range.clone())).unwrap(), expected, "{range:?}");
    }
    for fault in ["exits", "hangs"] {
        let stream = case.stream("Stream", json!({"fault": fault, "marker": case.marker()}));
        assert_eq!(stream.read(&numbers(0..10)).unwrap(), expected(0..10), "{fault}");
        std::fs::remove_file(case.marker()).unwrap();
    }
    let random = || case.stream("RandomStream", json!({"count": 100}));
    let [first, again] = [random(), random()].map(|stream| stream.read(&numbers(0..200)).unwrap());
    assert_eq!(first, again);
    assert_ne!(first[0][..800], first[0][800..], "other random numbers in each pass");
}

#[test]
fn stream_that_fails_or_returns_nothing_says_so() {
    let case = Case::new(1);
    let failure = |keywords| failure(case.stream("Stream", keywords).read(&numbers(0..7)));
    let error = failure(json!({"fault": "raises"}));
    assert!(error.starts_with("failed at sample 5: ValueError: bad row 5"), "{error}");
    let error = failure(json!({"count": 0}));
    assert!(error.starts_with("failed at sample 0: ValueError: the iterator returned no sample"), "{error}");
}

#[test]
fn dataset_that_can_not_be_opened_says_why() {
    let case = Case::new(1);
    let failure = |changes| failure(case.pool_of(changes).read(&numbers([0])));
    let error = failure(json!({"dataset": {"function": "datasets:Missing"}}));
    assert!(error.starts_with("can't be opened: ModuleNotFoundError: No module named 'no_such_module'"), "{error}");
    let error = failure(json!({"dataset": {"function": "datasets:Numbers"}, "samples": 999}));
    assert_eq!(error, "can't be opened: it has 1000 samples here, and 999 where it was packed");
    let error = failure(json!({"dataset": {"pickle": "dataset.pickle"}}));
    assert!(error.contains("was pickled by Python 3.0, and this interpreter is Python 3."), "{error}");
    let missing = Case::with_interpreter(1, "/no/python".into());
    let error = self::failure(missing.pool("Numbers", json!({})).read(&numbers([0])));
    assert!(error.contains("can't run /no/python"), "{error}");
    let other = Case::with_interpreter(1, "/bin/false".into());
    let error = self::failure(other.pool("Numbers", json!({})).read(&numbers([0])));
    assert!(error.contains("the host of the data loader ended with exit code 1"), "{error}");
}

#[test]
fn container_has_no_network() {
    let directory = tempfile::tempdir().unwrap();
    let [socket, program] = ["socket", "loader.py"].map(|name| directory.path().join(name));
    let location = HostLocation::Container { socket: socket.clone(), program: program.clone() };
    let case = Case { server: LoaderServer::open(location).unwrap(), ..Case::new(1) };
    let scratch = tempfile::tempdir().unwrap();
    let mut host = Command::new(interpreter());
    let host = host.arg(program).arg("isolated-host").arg(socket).arg(scratch.path()).spawn();
    assert_eq!(case.pool("Numbers", json!({})).read(&numbers([7])).unwrap(), expected([7]));
    let network = case.pool("Network", json!({}));
    for (index, part) in [(0, "PermissionError"), (1, "PermissionError"), (2, "subprocess.CalledProcessError")] {
        let error = failure(network.read(&numbers([index])));
        assert!(error.starts_with(&format!("failed at sample {index}: {part}")), "{error}");
    }
    case.server.close();
    assert!(host.unwrap().wait().unwrap().success());
}

/// Returns the command lines of the running processes that contain `part`.
fn command_lines(part: &str) -> Vec<Vec<String>> {
    let processes = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = processes.filter_map(|process| std::fs::read(process.path().join("cmdline")).ok());
    let lines = lines.map(|line| String::from_utf8_lossy(&line).split('\0').map(str::to_owned).collect::<Vec<_>>());
    lines.filter(|line| line.iter().any(|argument| argument == part)).collect()
}

#[test]
fn host_and_workers_end_with_the_server() {
    let Case { directory, server, workers } = Case::new(2);
    let package = directory.path().display().to_string();
    let case = Case { directory, server, workers };
    let pool = case.pool("Numbers", json!({}));
    assert_eq!(pool.read(&numbers(0..9)).unwrap(), expected(0..9));
    let lines = command_lines(&package);
    let code = lines[0].iter().find(|argument| argument.contains("/code-")).unwrap();
    let scratch = Path::new(code).parent().unwrap();
    assert!(scratch.join("loader.py").exists());
    drop(pool);
    case.server.close();
    while !command_lines(&package).is_empty() {
        std::thread::yield_now();
    }
    drop(case);
    assert!(!scratch.exists());
}
