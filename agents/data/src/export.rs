//! Exports samples to a file for other programs.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::{DataError, Dataset, ElementType, SampleInput};

/// Writes `steps` batches of `batch` samples, starting with sample `first_sample`, as safetensors with a tensor
/// for each input, such as `input_ids` and `labels`, each `[steps, batch, T]` of int32.
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
    let inputs = dataset.inputs();
    let too_many = || DataError::FileTooLarge { steps, batch };
    let samples = steps.checked_mul(batch).filter(|n| first_sample.checked_add(*n).is_some()).ok_or_else(too_many)?;
    // All tensors and the header must have lengths that a file position can express.
    let sizes = inputs.iter().map(|input| samples.checked_mul(input.bytes() as u64));
    let sizes: Vec<u64> =
        sizes.map(|size| size.filter(|b| *b < i64::MAX as u64 / 4)).collect::<Option<_>>().ok_or_else(too_many)?;

    let error = |path: &Path| {
        let path = path.to_path_buf();
        move |source| DataError::Write { path, source }
    };
    let unfinished = temporary_name(path);
    let write = || -> Result<(), DataError> {
        let file = File::create(&unfinished).map_err(error(&unfinished))?;
        let mut out = BufWriter::with_capacity(1 << 20, file);
        out.write_all(&header(&inputs, [steps, batch], &sizes)).map_err(error(&unfinished))?;
        for tensor in 0..inputs.len() {
            for number in first_sample..first_sample + samples {
                let arrays = dataset.read(number, 1)?;
                out.write_all(&arrays[tensor]).map_err(error(&unfinished))?;
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
fn header(inputs: &[SampleInput], [steps, batch]: [u64; 2], sizes: &[u64]) -> Vec<u8> {
    let mut from = 0;
    let mut tensors = Vec::with_capacity(inputs.len());
    for (input, size) in inputs.iter().zip(sizes) {
        let shape: Vec<u64> = [steps, batch].into_iter().chain(input.shape.iter().map(|&size| size as u64)).collect();
        let (name, dtype) = (
            serde_json::Value::from(input.name.as_str()),
            if input.element_type == ElementType::F32 { "F32" } else { "I32" },
        );
        let to = from + size;
        tensors.push(format!(r#"{name}:{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{from},{to}]}}"#));
        from = to;
    }
    let mut json = format!("{{{}}}", tensors.join(","));
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
