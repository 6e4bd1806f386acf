//! Measures how many samples per second the workers of a package read: `loader_rate PACKAGE BATCH SECONDS`.
//!
//! Prints one number. Requests of BATCH samples follow each other, two at a time, as systems send them.

use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use millrace_data::{PythonPackage, SampleNumber, SampleReader};
use millrace_loader::{HostLocation, LoaderPool, LoaderServer};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [package, batch, seconds] = arguments.as_slice() else { return Err("expected PACKAGE BATCH SECONDS".into()) };
    let (batch, limit) = (batch.parse::<u64>()?, Duration::from_secs(seconds.parse()?));
    let package = PythonPackage::open(Path::new(package))?;
    let server = LoaderServer::open(HostLocation::Process(package.interpreter().executable.clone()))?;
    let pool = LoaderPool::new(&server, &package)?;
    let samples = |request: u64| {
        let numbers = (request * batch..(request + 1) * batch).map(|n| n % package.samples());
        numbers.map(|index| SampleNumber { index, seed: index }).collect::<Vec<_>>()
    };
    // Starts the workers.
    for request in 0..u64::from(package.workers()) * 4 {
        pool.read(&samples(request)).map_err(|problem| problem.to_string())?;
    }
    let (next, begin) = (AtomicU64::new(0), Instant::now());
    std::thread::scope(|scope| {
        let readers = [(); 2].map(|()| {
            scope.spawn(|| {
                while begin.elapsed() < limit {
                    pool.read(&samples(next.fetch_add(1, Ordering::Relaxed))).map_err(|problem| problem.to_string())?;
                }
                Ok::<_, String>(())
            })
        });
        readers.into_iter().try_for_each(|reader| reader.join().unwrap_or_else(|_| Err("a reader panicked".to_owned())))
    })?;
    println!("{:.0}", (next.load(Ordering::Relaxed) * batch) as f64 / begin.elapsed().as_secs_f64());
    Ok(())
}
