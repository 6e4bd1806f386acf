//! Prints what an input contains, and its first samples as the model will see them.

use std::fmt::Write as _;

use millrace_data::{Dataset, ElementType, SampleInput, Tokenizer};
use millrace_emulator::report::{format_size, format_thousands};
use millrace_params::{InputSpec, JobSpec};

use super::super::args::DataArgs;
use super::super::error::CliError;
use super::super::print_line;
use crate::dataset_epoch::DatasetEpoch;
use crate::input::{sample_failure, survey, text_tokenizer};
use crate::launch::Exit;

/// Values of an array that are printed.
const SHOWN_VALUES: usize = 16;
/// Characters of a sample's text that are printed.
const SHOWN_CHARACTERS: usize = 240;

/// Prints the input, and its first `samples` samples in the order of training.
pub fn print(args: &DataArgs, samples: u64) -> Result<Exit, CliError> {
    let (job, input, dataset) = super::open(args)?;
    let tokenizer = text_tokenizer(&job, &input)?;
    print_line(summary(&job, &input, &dataset)?.trim_end());
    for number in 0..samples.min(dataset.windows()) {
        let arrays = dataset.read(number, 1).map_err(sample_failure)?;
        print_line(format_args!("\nSample {number}"));
        for (input, bytes) in dataset.inputs().iter().zip(&arrays) {
            print_line(array_line(input, bytes));
        }
        if let Some(text) = tokenizer.as_ref().and_then(|tokenizer| text_of(tokenizer, &dataset.inputs(), &arrays)) {
            print_line(format_args!("  {:<24}{text}", "text"));
        }
    }
    Ok(Exit::Success)
}

fn summary(job: &JobSpec, input: &InputSpec, dataset: &Dataset) -> Result<String, CliError> {
    let (found, _) = survey(input, &job.model)?;
    let mut text = String::new();
    let mut line = |name: &str, value: String| {
        // Writing to a string can't fail.
        let _ = writeln!(text, "  {name:<24}{value}");
    };
    line("source", input.source.description().to_owned());
    if found.files > 0 {
        let bytes = if found.bytes > 0 { format!(", {}", format_size(found.bytes)) } else { String::new() };
        line("files", format!("{}{bytes}", format_thousands(found.files)));
    }
    let epoch = (!dataset.is_endless()).then(|| DatasetEpoch::new(dataset.windows(), input).to_string());
    line("epoch", epoch.unwrap_or_else(|| "without end: the dataset is only iterated over".into()));
    let order = if input.shuffle { format!("random, with seed {}", input.shuffle_seed) } else { "of the data".into() };
    line("order", order);
    line("fingerprint", dataset.fingerprint().iter().map(|byte| format!("{byte:02x}")).collect());
    Ok(text)
}

/// Describes one array of a sample: its type and shape, how many labels count, and its first values.
fn array_line(input: &SampleInput, bytes: &[u8]) -> String {
    let (values, _) = bytes.as_chunks::<4>();
    let element_type = if input.element_type == ElementType::F32 { "f32" } else { "i32" };
    let text = values.iter().take(SHOWN_VALUES).map(|value| match input.element_type {
        ElementType::F32 => format!("{:.3}", f32::from_le_bytes(*value)),
        ElementType::I32 => i32::from_le_bytes(*value).to_string(),
    });
    let text = text.collect::<Vec<_>>().join(" ");
    let more = if values.len() > SHOWN_VALUES { " ..." } else { "" };
    let counted = values.iter().filter(|value| i32::from_le_bytes(**value) >= 0).count();
    let counted = match input.name.as_str() {
        "labels" if input.element_type == ElementType::I32 => format!("{counted} of {} count: ", values.len()),
        _ => String::new(),
    };
    format!("  {:<24}{element_type} {:?}  {counted}{text}{more}", input.name, input.shape)
}

/// Returns the first characters of the text of a sample.
fn text_of(tokenizer: &Tokenizer, inputs: &[SampleInput], arrays: &[Vec<u8>]) -> Option<String> {
    let position = inputs.iter().position(|input| input.name == "input_ids")?;
    let (values, _) = arrays.get(position)?.as_chunks::<4>();
    let tokens: Vec<u32> = values.iter().filter_map(|value| u32::try_from(i32::from_le_bytes(*value)).ok()).collect();
    let text = tokenizer.decode(&tokens);
    let excerpt: String = text.chars().take(SHOWN_CHARACTERS).collect();
    let more = if text.chars().nth(SHOWN_CHARACTERS).is_some() { " ..." } else { "" };
    Some(format!("{excerpt:?}{more}"))
}
