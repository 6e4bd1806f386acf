//! Exports samples to a file for other programs.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::{DataError, Dataset};

/// Writes `steps` batches of `batch` samples, starting with sample `first_sample`, as safetensors with the
/// [arrays](Dataset::arrays) of samples, each `[steps, batch, elements]` of int32.
///
/// Sample `first_sample + step * batch + i` is element `[step, i]`. A file at `path` is replaced atomically. Samples
/// are written as they are computed: memory use does not grow with the file.
pub fn write_samples(
    dataset: &Dataset,
    batch: u64,
    steps: u64,
    first_sample: u64,
    path: &Path,
) -> Result<(), DataError> {
    let arrays = dataset.arrays();
    let elements = arrays.iter().map(|(_, elements)| *elements as u64).sum::<u64>();
    let too_many = || DataError::FileTooLarge { steps, batch };
    let samples = steps.checked_mul(batch).filter(|n| first_sample.checked_add(*n).is_some()).ok_or_else(too_many)?;
    // All tensors and the header must have lengths that a file position can express.
    samples.checked_mul(elements * 4).filter(|bytes| *bytes < i64::MAX as u64 / 2).ok_or_else(too_many)?;

    let error = |path: &Path| {
        let path = path.to_path_buf();
        move |source| DataError::Write { path, source }
    };
    let unfinished = temporary_name(path);
    let write = || -> Result<(), DataError> {
        let file = File::create(&unfinished).map_err(error(&unfinished))?;
        let mut out = BufWriter::with_capacity(1 << 20, file);
        out.write_all(&header(&arrays, steps, batch)).map_err(error(&unfinished))?;
        let mut sample: Vec<Vec<i32>> = arrays.iter().map(|(_, elements)| vec![0; *elements]).collect();
        for array in 0..arrays.len() {
            for number in first_sample..first_sample + samples {
                dataset.read(number, &mut sample)?;
                let bytes: Vec<u8> = sample[array].iter().flat_map(|element| element.to_le_bytes()).collect();
                out.write_all(&bytes).map_err(error(&unfinished))?;
            }
        }
        let written = out.into_inner().map_err(io::IntoInnerError::into_error).and_then(|file| file.sync_all());
        written.map_err(error(&unfinished))?;
        std::fs::rename(&unfinished, path).map_err(error(path))
    };
    let done = write();
    if done.is_err() {
        // Best effort: the first error is more important.
        let _ = std::fs::remove_file(&unfinished);
    }
    done
}

/// Returns the header of a safetensors file: its length, then JSON, padded so that the tensors are aligned to 8 bytes.
fn header(arrays: &[(&'static str, usize)], steps: u64, batch: u64) -> Vec<u8> {
    let mut from = 0;
    let tensors = arrays.iter().map(|&(name, elements)| {
        let to = from + steps * batch * elements as u64 * 4;
        let tensor = format!(
            r#""{name}":{{"dtype":"I32","shape":[{steps}, {batch}, {elements}],"data_offsets":[{from},{to}]}}"#
        );
        from = to;
        tensor
    });
    let mut json = format!("{{{}}}", tensors.collect::<Vec<_>>().join(","));
    while json.len() % 8 != 0 {
        json.push(' ');
    }
    [&(json.len() as u64).to_le_bytes(), json.as_bytes()].concat()
}

/// Returns a name next to `path`, so that a rename suffices, and unique to this process.
fn temporary_name(path: &Path) -> PathBuf {
    let mut name = path.file_name().unwrap_or_default().to_os_string();
    name.push(format!(".{}.unfinished", std::process::id()));
    path.with_file_name(name)
}
