//! Writes samples as HDF5 files that the public model zoo reads.

use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::path::Path;

use hdf5_writer::{
    AttributeBuilder, DatasetBuilder, FILTER_DEFLATE, FilterDescription, Hdf5Builder, Hdf5WritePlan, WriteOptions,
};

use super::file::{DATASET, SAMPLE_ROWS};
use crate::{DataError, Dataset};

/// Level of the compression. Token ids shrink to about a third at any level, and the first is the fastest.
const DEFLATE_LEVEL: u32 = 1;

/// Writes samples `numbers` of a decoder as a new file: a dataset `data` of int32 and shape (samples, 3, length), with
/// the rows input_ids, loss mask and labels, and an attribute `n_examples`. Labels that do not count are 0, as is their
/// mask. The samples are held in memory.
///
/// # Errors
/// A sample can't be read, the samples are not those of a decoder, or the file exists or can't be written.
pub fn write_hdf5(dataset: &Dataset, numbers: Range<u64>, path: &Path) -> Result<(), DataError> {
    let length = dataset.seq_len();
    let mut values: Vec<i32> = Vec::new();
    let [mut input_ids, mut labels] = [vec![0; length], vec![0; length]];
    for number in numbers.clone() {
        dataset.sample(number, &mut input_ids, &mut labels)?;
        values.extend_from_slice(&input_ids);
        values.extend(labels.iter().map(|label| i32::from(*label >= 0)));
        values.extend(labels.iter().map(|label| (*label).max(0)));
    }
    let plan = plan(numbers.end - numbers.start, length as u64, &values);
    let bytes = plan.and_then(|plan| plan.encode(WriteOptions::default()));
    let bytes = bytes.map_err(|source| DataError::Encode { path: path.into(), source: Box::new(source) })?;
    let write = || {
        let mut file = File::create_new(path)?;
        file.write_all(&bytes)?;
        file.sync_all()
    };
    write().map_err(|source| DataError::Write { path: path.into(), source })
}

fn plan(samples: u64, length: u64, values: &[i32]) -> hdf5_writer::Result<Hdf5WritePlan> {
    let deflate = FilterDescription { id: FILTER_DEFLATE, name: None, client_data: vec![DEFLATE_LEVEL] };
    let data = DatasetBuilder::typed_data(DATASET, vec![samples, SAMPLE_ROWS, length], values)?
        .chunked(vec![1, SAMPLE_ROWS, length])
        .filter(deflate);
    let count = AttributeBuilder::scalar("n_examples", samples as i64)?;
    Hdf5Builder::new().dataset(data).attribute(count).into_plan()
}
