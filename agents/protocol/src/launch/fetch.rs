//! The command line and the document of the init container that fetches the uploads of a job into its pod:
//!
//! ```
//! use millrace_protocol::launch::FetchCommand;
//!
//! let command = FetchCommand {
//!     server: "uploads.millrace-system.svc:7300".to_owned(),
//!     identity: "/etc/millrace/fetcher".into(),
//!     document: "/etc/millrace/uploads/uploads.json".into(),
//!     into: vec!["/var/lib/millrace/files".into()],
//! };
//! assert_eq!(command.to_args()[0], "fetch_uploads");
//! assert_eq!(command.to_args()[4], "--into=/var/lib/millrace/files");
//! ```

use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use clap::Args;
use millrace_params::BlobDigest;
use serde::{Deserialize, Serialize};

use super::role_command::{ArgWriter, bounded_path, host_and_port};
use super::version::{DocumentError, VERSION, from_versioned_json};

/// The command of `millrace-agent` that fetches uploads.
pub const FETCH_SUBCOMMAND: &str = "fetch_uploads";
/// Maximum bytes of a [`FetchDocument`]: a ConfigMap has at most 1 MiB.
pub const MAX_FETCH_DOCUMENT_BYTES: u64 = 1 << 20;

/// The arguments of the command [`FETCH_SUBCOMMAND`].
#[derive(Clone, Debug, PartialEq, Eq, Args)]
#[command(rename_all = "snake_case")]
pub struct FetchCommand {
    /// host:port of the server that has the uploads
    #[arg(long, value_name = "HOST:PORT", value_parser = host_and_port)]
    pub server: String,
    /// Directory with tls.crt, tls.key and ca.crt, the certificate of the job's fetchers
    #[arg(long, value_name = "DIR", value_parser = bounded_path())]
    pub identity: PathBuf,
    /// JSON file that lists the uploads of the job
    #[arg(long, value_name = "FILE", value_parser = bounded_path())]
    pub document: PathBuf,
    /// Directory whose files are fetched; may be repeated
    #[arg(long, value_name = "DIR", value_parser = bounded_path(), required = true)]
    pub into: Vec<PathBuf>,
}

impl FetchCommand {
    /// Returns the arguments after the name of the program, [`FETCH_SUBCOMMAND`] included.
    pub fn to_args(&self) -> Vec<OsString> {
        let mut args = ArgWriter(vec![FETCH_SUBCOMMAND.into()]);
        args.flag("server", Some(&self.server));
        args.flag("identity", Some(&self.identity));
        args.flag("document", Some(&self.document));
        self.into.iter().for_each(|dir| args.flag("into", Some(dir)));
        args.0
    }
}

/// The uploads that the pods of a job have as files, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchDocument {
    /// Version of the document.
    pub version: u32,
    /// UID of the job.
    pub job_uid: String,
    /// The files, of all pods.
    pub files: Vec<FetchedFile>,
}

/// An upload as a file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FetchedFile {
    /// Absolute path of the file.
    pub path: PathBuf,
    /// Digest of its content.
    pub digest: BlobDigest,
}

impl FetchDocument {
    /// Returns the document for these files of a job.
    pub const fn new(job_uid: String, files: Vec<FetchedFile>) -> Self {
        Self { version: VERSION, job_uid, files }
    }

    /// Returns the document on one line.
    ///
    /// # Errors
    /// A path is not UTF-8.
    pub fn to_json(&self) -> Result<String, serde_json::Error> {
        serde_json::to_string(self)
    }

    /// Reads a document of this or an earlier version.
    ///
    /// # Errors
    /// [`DocumentError::NewerVersion`], or [`DocumentError::Json`] if the text is not such a document.
    pub fn from_json(json: &str) -> Result<Self, DocumentError> {
        from_versioned_json(json)
    }

    /// Returns the files below the directory `into`, in the order of the document. A path with `..` is below none.
    pub fn files_below<'a>(&'a self, into: &'a Path) -> impl Iterator<Item = &'a FetchedFile> {
        let is_plain = |part: Component<'_>| matches!(part, Component::Normal(_));
        self.files.iter().filter(move |file| match file.path.strip_prefix(into) {
            Ok(inside) => inside.file_name().is_some() && inside.components().all(is_plain),
            Err(_) => false,
        })
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Program {
        #[command(flatten)]
        command: FetchCommand,
    }

    #[test]
    fn fetch_command_is_read_as_written() {
        let command = FetchCommand {
            server: "uploads.system.svc:7300".to_owned(),
            identity: "/i".into(),
            document: "/d.json".into(),
            into: vec!["/a".into(), "-b".into()],
        };
        assert_eq!(Program::try_parse_from(command.to_args()).unwrap().command, command);
        for bad in ["uploads.system.svc", ":7300", "a b:1"] {
            let command = FetchCommand { server: bad.to_owned(), ..command.clone() };
            assert!(Program::try_parse_from(command.to_args()).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_files_below_a_directory_are_its_own() {
        let digest = BlobDigest::new(format!("blake3:{}", "0".repeat(64))).unwrap();
        let paths = ["/files/0/x", "/files/0/../../etc/x", "/files", "/model/graph.json", "/files2/x", "files/x"];
        let file = |path: &&str| FetchedFile { path: path.into(), digest: digest.clone() };
        let document = FetchDocument::new("uid".to_owned(), paths.iter().map(file).collect());
        let below = |dir: &str| document.files_below(dir.as_ref()).map(|file| file.path.clone()).collect::<Vec<_>>();
        assert_eq!(below("/files"), [Path::new("/files/0/x")]);
        assert_eq!(below("/model"), [Path::new("/model/graph.json")]);
        assert_eq!(FetchDocument::from_json(&document.to_json().unwrap()).unwrap(), document);
        let newer = FetchDocument { version: VERSION + 1, ..document };
        let read = FetchDocument::from_json(&newer.to_json().unwrap());
        assert!(matches!(read, Err(DocumentError::NewerVersion { .. })));
    }
}
