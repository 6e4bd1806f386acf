//! The graph of a job's model: built from its params, or read from the document that they name.

use std::io::Read as _;
use std::path::Path;

use millrace_data::{ElementType, SampleInput};
use millrace_emulator::compile;
use millrace_emulator::graph::{DType, DocumentError, Graph, MAX_DOCUMENT_BYTES, Value};
use millrace_params::JobSpec;

use crate::error::AgentError;

/// Returns the graph of the model of `job`.
///
/// # Errors
/// The params are inconsistent; the document can't be read, or is not that of a valid graph.
pub fn job_graph(job: &JobSpec) -> Result<Graph, AgentError> {
    match &job.model.graph {
        Some(path) => read_graph(Path::new(path)),
        None => Ok(compile::graph(job)?),
    }
}

fn read_graph(path: &Path) -> Result<Graph, AgentError> {
    let name = path.display();
    let unreadable = |error: std::io::Error| {
        AgentError::bad_input(error).context(format!("can't read model.graph {name}")).hint(
            "check the spelling; relative paths are resolved from the params file's directory, then from the working \
             directory",
        )
    };
    let file = millrace_roots::open(path).map_err(unreadable)?;
    let mut document = Vec::new();
    file.take(MAX_DOCUMENT_BYTES + 1).read_to_end(&mut document).map_err(unreadable)?;
    Graph::read(&document).map_err(|error: DocumentError| {
        let hint = error.hint();
        AgentError::bad_input(format!("model.graph {name} {error}")).hint(hint)
    })
}

/// Checks that the samples of an input are what the graph reads: arrays of the same names, types and shapes.
///
/// # Errors
/// They are not.
pub fn check_samples(input: &str, found: &[SampleInput], graph: &Graph) -> Result<(), AgentError> {
    let expected: Vec<&Value> = graph.inputs.iter().map(|&input| &graph.values[input]).collect();
    let agrees = |value: &&Value| found.iter().any(|array| is_input(array, value));
    let is_read = |array: &SampleInput| expected.iter().any(|value| value.name == array.name);
    if expected.iter().all(agrees) && found.iter().all(is_read) {
        return Ok(());
    }
    let found: Vec<String> = found.iter().map(describe_array).collect();
    let expected: Vec<String> = expected.iter().map(|value| format!("{} {}", value.name, value.shape)).collect();
    Err(AgentError::bad_input(format!(
        "samples of {input} consist of {}, but the model's graph reads {}",
        found.join(", "),
        expected.join(", ")
    ))
    .hint("prepare samples with exactly these names, types and shapes"))
}

fn is_input(array: &SampleInput, value: &Value) -> bool {
    let is_float = value.shape.dtype() == DType::F32;
    array.name == value.name
        && (array.element_type == ElementType::F32) == is_float
        && array.shape == value.shape.dimensions()
}

fn describe_array(array: &SampleInput) -> String {
    let element_type = if array.element_type == ElementType::F32 { "f32" } else { "i32" };
    format!("{} {element_type} {:?}", array.name, array.shape)
}
