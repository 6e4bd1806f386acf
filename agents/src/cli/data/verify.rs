//! Reads every sample of an epoch, as training would.

use indicatif::{ProgressBar, ProgressStyle};
use millrace_data::{ElementType, SampleInput};
use millrace_emulator::report::format_thousands;

use super::super::args::DataArgs;
use super::super::error::CliError;
use super::super::print_line;
use crate::input::sample_failure;
use crate::launch::Exit;

/// Reads the samples, and prints how many labels count. The first sample that can't be used is an error with exit code
/// 1, which names its file and number.
pub fn run(args: &DataArgs) -> Result<Exit, CliError> {
    let (_, _, dataset) = super::open(args)?;
    let samples = dataset.windows();
    let style = ProgressStyle::with_template("Reading {wide_bar} {human_pos}/{human_len} samples {eta}");
    let bar = ProgressBar::new(samples).with_style(style.unwrap_or_else(|_| ProgressStyle::default_bar()));
    let labels = dataset.inputs().iter().position(is_labels);
    let (mut counting, mut all) = (0, 0);
    for number in 0..samples {
        let arrays = dataset.read(number, 1).map_err(sample_failure)?;
        if let Some(labels) = labels.and_then(|labels| arrays.get(labels)) {
            let (values, _) = labels.as_chunks::<4>();
            all += values.len() as u64;
            counting += values.iter().filter(|value| i32::from_le_bytes(**value) >= 0).count() as u64;
        }
        bar.inc(1);
    }
    bar.finish_and_clear();
    let percent = 100.0 * counting as f64 / all.max(1) as f64;
    let [samples, counting, all] = [samples, counting, all].map(format_thousands);
    print_line(format_args!("All {samples} samples can be used; {counting} of {all} labels count ({percent:.1}%)"));
    Ok(Exit::Success)
}

fn is_labels(input: &SampleInput) -> bool {
    input.name == "labels" && input.element_type == ElementType::I32
}
