//! Imports and exports directories of the Hugging Face `transformers` library.
//!
//! Such a directory has `model.safetensors` (or several files with an index) and `config.json`. The tensors of a
//! GPT-2 differ from those of a graph in three ways: names; `Conv1D` weights are `[in, out]`, the transpose of the
//! graph's; and there is always a bias. Other models are recognized by `structure` and described by `families`. The
//! graph's operators decide what a model is, not tensor names, so any graph with such a structure can be exported.
//!
//! Both directions hold one tensor in memory at a time, and leave no incomplete files.

mod config;
mod directory;
mod export;
mod families;
mod family_import;
mod gpt2;
mod gpt2_import;
mod import;
mod json_file;
mod mapping;
mod model_params;
mod params;
mod settings;
mod structure;
mod tokenizer;

pub use export::export_hf;
pub use import::import_hf;
pub use params::{Choices, params_text};
pub use tokenizer::{ExportedTokenizer, SpecialToken, SpecialTokens};

/// Reads every tensor of the Hugging Face directory `dir`, of any model.
///
/// # Errors
/// [`Error::NotImportable`](crate::Error::NotImportable) if the directory can't be read, or a tensor has an unsupported
/// type.
pub fn tensors(dir: &std::path::Path) -> crate::Result<Vec<(String, Vec<f32>)>> {
    let source = directory::HfDirectory::open(dir)?;
    source.names().map(|name| Ok((name.to_owned(), source.read(name)?))).collect()
}

/// Transposes a row-major `[rows, columns]` matrix.
fn transpose(values: &[f32], rows: usize, columns: usize) -> Vec<f32> {
    // Square tiles, so that cache lines of both sides are used completely.
    const TILE: usize = 32;
    let mut out = vec![0.0; values.len()];
    for top in (0..rows).step_by(TILE) {
        for first_column in (0..columns).step_by(TILE) {
            for row in top..(top + TILE).min(rows) {
                for column in first_column..(first_column + TILE).min(columns) {
                    out[column * rows + row] = values[row * columns + column];
                }
            }
        }
    }
    out
}

#[cfg(test)]
mod tests;
