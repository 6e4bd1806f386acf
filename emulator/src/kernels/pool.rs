//! A fixed pool of threads that flush denormals, and work divided into numbered tiles.
//!
//! The thread that computes a tile is not determined, so the result of a tile must not depend on it. A pool of one
//! thread runs everything inline. No call allocates.

use std::sync::atomic::{AtomicUsize, Ordering};

use super::ftz;

/// A pool of compute threads.
#[derive(Debug)]
pub struct ComputeThreads {
    /// `None` for one thread: the caller's.
    workers: Option<rayon::ThreadPool>,
    threads: usize,
}

/// Threads could not be started.
#[derive(Debug, thiserror::Error)]
#[error("cannot start {threads} compute threads: {source}; ask for fewer or raise the limit on processes")]
pub struct PoolError {
    threads: usize,
    source: rayon::ThreadPoolBuildError,
}

impl ComputeThreads {
    /// Creates a pool of `threads` (at least one). With more than one, the calling thread only waits.
    pub fn new(threads: usize) -> Result<Self, PoolError> {
        let threads = threads.max(1);
        if threads == 1 {
            return Ok(ComputeThreads::inline());
        }
        let workers = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .thread_name(|i| format!("compute-{i}"))
            .start_handler(|_| ftz::enable())
            .build()
            .map_err(|source| PoolError { threads, source })?;
        Ok(ComputeThreads { workers: Some(workers), threads })
    }

    /// Creates a pool of one thread: the caller's.
    pub const fn inline() -> Self {
        ComputeThreads { workers: None, threads: 1 }
    }

    /// Returns the number of threads.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Runs `f` on a thread of the pool, with denormals flushed.
    ///
    /// Run a whole step in one call: calls of the other methods from inside `f` do not have to wake up a thread.
    pub fn install<R: Send>(&self, f: impl FnOnce() -> R + Send) -> R {
        match &self.workers {
            Some(workers) => workers.install(f),
            None => {
                let _flush = ftz::scoped();
                f()
            }
        }
    }

    /// Calls `f(tile)` for every tile in `0..tiles`.
    pub fn for_each_tile(&self, tiles: usize, f: impl Fn(usize) + Sync) {
        // One unit state per thread without an allocation: a slice of a zero-sized type.
        const MAX_TILES_PER_SPLIT: usize = 1024;
        let mut units = [(); MAX_TILES_PER_SPLIT];
        self.run_tiles(&mut units[..self.threads.min(MAX_TILES_PER_SPLIT)], tiles, &|(): &mut (), tile| f(tile));
    }

    /// Calls `f(state, tile)` for every tile in `0..tiles`; no two concurrent calls share a state.
    ///
    /// # Panics
    /// If there are fewer states than threads.
    pub fn for_each_tile_with<S: Send>(&self, states: &mut [S], tiles: usize, f: impl Fn(&mut S, usize) + Sync) {
        assert!(states.len() >= self.threads, "{} states for {} threads", states.len(), self.threads);
        self.run_tiles(&mut states[..self.threads], tiles, &f);
    }

    fn run_tiles<S: Send>(&self, states: &mut [S], tiles: usize, f: &(impl Fn(&mut S, usize) + Sync)) {
        let team = states.len().min(tiles);
        if team <= 1 {
            if let (Some(state), true) = (states.first_mut(), tiles > 0) {
                let _flush = ftz::scoped();
                (0..tiles).for_each(|tile| f(state, tile));
            }
            return;
        }
        let next = AtomicUsize::new(0);
        self.install(|| run_worker(&mut states[..team], &next, tiles, f));
    }

    /// Divides `data` into runs of at most `grain` rows and calls `f(first row, run)` for each.
    pub fn for_each_rows<D: SplitRows>(&self, rows: usize, grain: usize, data: D, f: impl Fn(usize, D) + Sync) {
        let grain = grain.max(1);
        if self.threads == 1 || rows <= grain {
            let _flush = ftz::scoped();
            return split_serially(0, rows, grain, data, &f);
        }
        self.install(|| split_in_halves(0, rows, grain, data, &f));
    }
}

/// Each state belongs to one thread, which takes the next tile until none is left.
fn run_worker<S: Send>(states: &mut [S], next: &AtomicUsize, tiles: usize, f: &(impl Fn(&mut S, usize) + Sync)) {
    if let [state] = states {
        loop {
            let tile = next.fetch_add(1, Ordering::Relaxed);
            if tile >= tiles {
                return;
            }
            f(state, tile);
        }
    }
    let (left, right) = states.split_at_mut(states.len() / 2);
    rayon::join(|| run_worker(left, next, tiles, f), || run_worker(right, next, tiles, f));
}

fn split_serially<D: SplitRows>(mut first: usize, mut rows: usize, grain: usize, mut data: D, f: &impl Fn(usize, D)) {
    while rows > grain {
        let (head, tail) = data.split_rows(grain);
        f(first, head);
        (first, rows, data) = (first + grain, rows - grain, tail);
    }
    if rows > 0 {
        f(first, data);
    }
}

fn split_in_halves<D: SplitRows>(first: usize, rows: usize, grain: usize, data: D, f: &(impl Fn(usize, D) + Sync)) {
    if rows <= grain {
        return split_serially(first, rows, grain, data, f);
    }
    let first_half = rows.div_ceil(grain) / 2 * grain;
    let (head, tail) = data.split_rows(first_half);
    rayon::join(
        || split_in_halves(first, first_half, grain, head, f),
        || split_in_halves(first + first_half, rows - first_half, grain, tail, f),
    );
}

/// Data made of rows, for [`ComputeThreads::for_each_rows`]: [`rows`], [`rows_mut`] and tuples of them.
pub trait SplitRows: Send + Sized {
    /// The first `rows` rows and the rest.
    fn split_rows(self, rows: usize) -> (Self, Self);
}

/// A slice cut into rows of `width` elements.
#[derive(Clone, Copy, Debug)]
pub struct Rows<'a, T> {
    /// All rows, one after the other.
    pub data: &'a [T],
    width: usize,
}

/// A mutable slice cut into rows of `width` elements.
#[derive(Debug)]
pub struct RowsMut<'a, T> {
    /// All rows, one after the other.
    pub data: &'a mut [T],
    width: usize,
}

/// `data` as rows of `width` elements.
pub fn rows<T>(data: &[T], width: usize) -> Rows<'_, T> {
    Rows { data, width }
}

/// `data` as mutable rows of `width` elements.
pub fn rows_mut<T>(data: &mut [T], width: usize) -> RowsMut<'_, T> {
    RowsMut { data, width }
}

impl<T: Sync> SplitRows for Rows<'_, T> {
    fn split_rows(self, rows: usize) -> (Self, Self) {
        let (head, tail) = self.data.split_at(rows * self.width);
        (Rows { data: head, ..self }, Rows { data: tail, ..self })
    }
}

impl<T: Send> SplitRows for RowsMut<'_, T> {
    fn split_rows(self, rows: usize) -> (Self, Self) {
        let (head, tail) = self.data.split_at_mut(rows * self.width);
        (RowsMut { data: head, width: self.width }, RowsMut { data: tail, width: self.width })
    }
}

macro_rules! split_tuples {
    ($(($($part:ident),+))+) => {$(
        impl<$($part: SplitRows),+> SplitRows for ($($part,)+) {
            fn split_rows(self, rows: usize) -> (Self, Self) {
                #[allow(non_snake_case)]
                let ($($part,)+) = self;
                $(
                    #[allow(non_snake_case)]
                    let $part = $part.split_rows(rows);
                )+
                (($($part.0,)+), ($($part.1,)+))
            }
        }
    )+};
}
split_tuples! { (A) (A, B) (A, B, C) (A, B, C, D) (A, B, C, D, E) (A, B, C, D, E, F) }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_tile_once_and_states_are_not_shared() {
        for threads in [1, 2, 3] {
            let pool = ComputeThreads::new(threads).unwrap();
            for tiles in [0, 1, 2, 7, 100] {
                let hits: Vec<AtomicUsize> = (0..tiles).map(|_| AtomicUsize::new(0)).collect();
                pool.for_each_tile(tiles, |tile| {
                    hits[tile].fetch_add(1, Ordering::Relaxed);
                });
                let mut counts = vec![0; threads];
                pool.for_each_tile_with(&mut counts, tiles, |count, tile| {
                    *count += 1;
                    hits[tile].fetch_add(1, Ordering::Relaxed);
                });
                assert!(hits.iter().all(|h| h.load(Ordering::Relaxed) == 2));
                assert_eq!(counts.iter().sum::<usize>(), tiles);
            }
        }
    }

    #[test]
    fn rows_are_cut_alike_for_any_team() {
        let source: Vec<u32> = (0..23).collect();
        for threads in [1, 2, 4] {
            let pool = ComputeThreads::new(threads).unwrap();
            let mut out = vec![(0, 0); 23 * 2];
            pool.for_each_rows(23, 4, (rows(&source, 1), rows_mut(&mut out, 2)), |first, (src, dst)| {
                assert_eq!(first % 4, 0);
                assert!(src.data.len() <= 4);
                for (d, s) in dst.data.chunks_mut(2).zip(src.data) {
                    d.fill((first, *s));
                }
            });
            let expected: Vec<_> = (0..46u32).map(|i| (i as usize / 8 * 4, i / 2)).collect();
            assert_eq!(out, expected);
        }
    }

    #[cfg(any(target_arch = "x86_64", target_arch = "aarch64"))]
    #[test]
    fn every_thread_flushes_denormals() {
        for threads in [1, 3] {
            let pool = ComputeThreads::new(threads).unwrap();
            pool.for_each_tile(64, |_| assert!(ftz::is_enabled()));
            assert!(pool.install(ftz::is_enabled));
            pool.for_each_rows(64, 1, (), |_, ()| assert!(ftz::is_enabled()));
        }
        assert!(!ftz::is_enabled());
    }

    impl SplitRows for () {
        fn split_rows(self, _: usize) -> ((), ()) {
            ((), ())
        }
    }
}
