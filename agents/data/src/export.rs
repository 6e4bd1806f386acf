//! Exports samples to a file for other programs.

use std::fs::File;
use std::io::{self, BufWriter, Write};
use std::path::{Path, PathBuf};

use crate::{DataError, Dataset};

/// Writes `steps` batches of `batch` samples, starting with sample `first_sample`, as safetensors with `input_ids` and
/// `labels`, each `[steps, batch, T]` of int32.
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
    let seq_len = dataset.seq_len() as u64;
    let too_many = || DataError::FileTooLarge { steps, batch };
    let samples = steps.checked_mul(batch).filter(|n| first_sample.checked_add(*n).is_some()).ok_or_else(too_many)?;
    // Both tensors and the header must have lengths that a file position can express.
    let bytes = samples.checked_mul(seq_len * 4).filter(|b| *b < i64::MAX as u64 / 4).ok_or_else(too_many)?;

    let error = |path: &Path| {
        let path = path.to_path_buf();
        move |source| DataError::Write { path, source }
    };
    let unfinished = temporary_name(path);
    let write = || -> Result<(), DataError> {
        let file = File::create(&unfinished).map_err(error(&unfinished))?;
        let mut out = BufWriter::with_capacity(1 << 20, file);
        out.write_all(&header([steps, batch, seq_len], bytes)).map_err(error(&unfinished))?;
        for tensor in [SampleTensor::InputIds, SampleTensor::Labels] {
            for number in first_sample..first_sample + samples {
                let bytes = sample_bytes(dataset, number, tensor)?;
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

#[derive(Clone, Copy)]
enum SampleTensor {
    InputIds,
    Labels,
}

/// Returns one of the tensors of a sample as little-endian int32.
fn sample_bytes(dataset: &Dataset, number: u64, tensor: SampleTensor) -> Result<Vec<u8>, DataError> {
    let (mut input_ids, mut labels) = (vec![0; dataset.seq_len()], vec![0; dataset.seq_len()]);
    dataset.sample(number, &mut input_ids, &mut labels)?;
    let tokens = match tensor {
        SampleTensor::InputIds => input_ids,
        SampleTensor::Labels => labels,
    };
    Ok(tokens.iter().flat_map(|token| token.to_le_bytes()).collect())
}

/// Returns the header of a safetensors file: its length, then JSON, padded so that the tensors are aligned to 8 bytes.
fn header(shape: [u64; 3], bytes: u64) -> Vec<u8> {
    let tensor =
        |name, from, to| format!(r#""{name}":{{"dtype":"I32","shape":{shape:?},"data_offsets":[{from},{to}]}}"#);
    let mut json = format!("{{{},{}}}", tensor("input_ids", 0, bytes), tensor("labels", bytes, 2 * bytes));
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
