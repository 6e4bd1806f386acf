//! Reads a document that a user wrote.

use super::{Graph, GraphError};

/// Maximum bytes of the document of a graph. A model of 100 transformer blocks, traced operator by operator, takes
/// about 2 MiB without its constants.
pub const MAX_DOCUMENT_BYTES: u64 = 32 << 20;

/// Why a file is not the document of a valid graph, as the end of a sentence that names the file.
#[allow(missing_docs, reason = "the messages describe variants and fields")]
#[derive(Debug, thiserror::Error)]
pub enum DocumentError {
    #[error("has more than {MAX_DOCUMENT_BYTES} bytes")]
    TooLarge,
    #[error("is not the document of a graph: {0}")]
    Syntax(#[source] serde_json::Error),
    #[error("does not describe a valid model: {0}")]
    Graph(#[source] GraphError),
}

impl DocumentError {
    /// Returns what the user can do about the error.
    pub const fn hint(&self) -> &'static str {
        match self {
            Self::TooLarge => "describe large constants as tensors, or the model by fewer operators",
            Self::Syntax(_) | Self::Graph(_) => "docs/reference/graph.md describes documents, operators and limits",
        }
    }
}

impl Graph {
    /// Reads a document and validates its graph.
    ///
    /// # Errors
    /// The document is larger than [`MAX_DOCUMENT_BYTES`], is not JSON of a supported version, or its graph is invalid.
    pub fn read(document: &[u8]) -> Result<Self, DocumentError> {
        if document.len() as u64 > MAX_DOCUMENT_BYTES {
            return Err(DocumentError::TooLarge);
        }
        let graph: Self = serde_json::from_slice(document).map_err(DocumentError::Syntax)?;
        graph.validate().map_err(DocumentError::Graph)?;
        Ok(graph)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::TINY;

    #[test]
    fn documents_are_read_and_others_are_named() {
        let graph = TINY.graph();
        assert_eq!(Graph::read(&serde_json::to_vec(&graph).unwrap()).unwrap(), graph);
        let mut invalid = graph.clone();
        invalid.nodes.pop();
        invalid.layers.last_mut().unwrap().nodes.end -= 1;
        let large = vec![b' '; MAX_DOCUMENT_BYTES as usize + 1];
        for (document, part) in [
            (serde_json::to_vec(&invalid).unwrap(), "does not describe a valid model: the last operator"),
            (b"{\"version\": 2".to_vec(), "is not the document of a graph: EOF while parsing"),
            (large, "has more than 33554432 bytes"),
        ] {
            let error = Graph::read(&document).unwrap_err().to_string();
            assert!(error.contains(part), "{error} does not contain {part:?}");
        }
    }
}
