//! `millrace-api backup` and `restore`: the persistent state of a server as one file, a tar archive.
//!
//! ```text
//! millrace.db     jobs, curves, logs, events, tokens: a consistent copy, also while the server runs
//! texts/ last/    uploads of jobs, last reports of coordinators
//! tls/            the server's self-signed certificate with its key
//! .machine        the UID that ties database and directory together
//! backup.json     version, time, data directory, and the blake3 of every other file; the last entry, so a truncated
//!                 archive has none
//! ```
//!
//! Not included: `model_dirs`, which are as large as all checkpoints together and are copied like any other data, and
//! `exports`, which can be regenerated. A backup holds digests of tokens and a private key; only its owner may read it.
//!
//! Guarantees:
//! * `restore` writes only into an empty directory, and only files of the names above, whatever the archive says. An
//!   archive that is incomplete, or differs from its `backup.json`, leaves neither a file nor a new directory.

use std::collections::BTreeMap;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use anyhow::{Context as _, anyhow, bail, ensure};
use k8s_openapi::jiff::Timestamp;
use serde::{Deserialize, Serialize};
use tar::{Archive, EntryType, Header};

use crate::database_args::DatabaseArgs;

/// Version of the format. `restore` rejects any other version.
const BACKUP_VERSION: u32 = 1;
const MANIFEST_NAME: &str = "backup.json";
const DATABASE_NAME: &str = "millrace.db";
/// Paths that are copied besides the database: a file, and directories.
const MACHINE_ID_FILE: &str = ".machine";
/// Directory of the jobs' files, which is not copied.
const MODEL_DIRS_NAME: &str = "model_dirs";
const BACKED_UP_DIRS: [&str; 3] = ["texts", "last", "tls"];
/// Directory in which restored files are collected before they are moved into place.
const RESTORE_STAGING_DIR: &str = ".restoring";
/// Stands for standard input or output.
const STDIO: &str = "-";

/// Flags of `backup`.
#[derive(Clone, Debug, clap::Args)]
pub struct BackupArgs {
    /// File to write, which must not exist; - for standard output
    file: PathBuf,
    #[command(flatten)]
    database: DatabaseArgs,
}

/// Flags of `restore`.
#[derive(Clone, Debug, clap::Args)]
pub struct RestoreArgs {
    /// File to read; - for standard input
    file: PathBuf,
    /// Data directory to create; an existing one must be empty
    #[arg(long, env = "MILLRACE_DATA", default_value = "millrace-data")]
    data: PathBuf,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct BackupManifest {
    version: u32,
    created: Timestamp,
    /// The data directory that was backed up.
    data: PathBuf,
    /// blake3 of each file, by its name in the archive.
    files: BTreeMap<String, String>,
}

/// Writes a backup.
///
/// # Errors
/// The database is not SQLite, or a file can't be read or written: a sentence.
pub async fn backup(args: BackupArgs) -> anyhow::Result<()> {
    let BackupArgs { file, database } = args;
    if let Some(url) = database.database.as_deref().filter(|url| !url.starts_with("sqlite:")) {
        let scheme = url.split(':').next().unwrap_or_default();
        bail!(
            "the database is a {scheme} server: back it up with its own tools, as `pg_dump`, and copy the data directory"
        );
    }
    let data = database.data.canonicalize().with_context(|| format!("{} does not exist", database.data.display()))?;
    let scratch = data.join(format!(".backup-{}", uuid::Uuid::new_v4()));
    private_directory(&scratch)?;
    let result = write(&file, &data, &scratch.join(DATABASE_NAME), &database).await;
    // The scratch directory only holds the copy of the database.
    let _ = fs::remove_dir_all(&scratch);
    let (files, bytes) = result?;
    eprintln!("wrote a backup of {}: {files} file(s), {bytes} bytes", data.display());
    let model_dirs = data.join(MODEL_DIRS_NAME);
    if model_dirs.is_dir() {
        eprintln!("checkpoints are not included: copy {} as well", model_dirs.display());
    }
    Ok(())
}

async fn write(file: &Path, data: &Path, snapshot: &Path, database: &DatabaseArgs) -> anyhow::Result<(usize, u64)> {
    let store = database.open().await?;
    let copied = store.copy_to(snapshot).await;
    store.close().await;
    copied.context("can't copy the database")?;
    let (file, data, snapshot) = (file.to_owned(), data.to_owned(), snapshot.to_owned());
    tokio::task::spawn_blocking(move || {
        let out: Box<dyn Write> = if file.as_os_str() == STDIO {
            Box::new(io::stdout().lock())
        } else {
            let opened = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&file);
            Box::new(opened.with_context(|| format!("can't make the file {}", file.display()))?)
        };
        pack(out, &data, &snapshot)
    })
    .await?
}

/// Writes the archive; returns the number of files and of bytes.
fn pack(out: impl Write, data: &Path, snapshot: &Path) -> anyhow::Result<(usize, u64)> {
    let mut out = tar::Builder::new(io::BufWriter::new(out));
    let (mut files, mut bytes) = (BTreeMap::new(), 0);
    let mut add = |out: &mut tar::Builder<_>, name: &str, path: &Path| -> anyhow::Result<()> {
        let mut file = match File::open(path) {
            // The file of a job that was deleted meanwhile.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            opened => opened.with_context(|| format!("can't read {}", path.display()))?,
        };
        // A file that grows meanwhile is copied up to its length at this time.
        let length = file.metadata()?.len();
        let mut reader = HashingReader { inner: (&mut file).take(length), digest: blake3::Hasher::new() };
        append(out, name, length, &mut reader).with_context(|| format!("can't copy {}", path.display()))?;
        files.insert(name.to_owned(), reader.digest.finalize().to_string());
        bytes += length;
        Ok(())
    };
    add(&mut out, DATABASE_NAME, snapshot)?;
    add(&mut out, MACHINE_ID_FILE, &data.join(MACHINE_ID_FILE))?;
    for directory in BACKED_UP_DIRS {
        for (name, path) in files_below(data, directory)? {
            add(&mut out, &name, &path)?;
        }
    }
    let count = files.len();
    let manifest = BackupManifest { version: BACKUP_VERSION, created: Timestamp::now(), data: data.to_owned(), files };
    let text = serde_json::to_vec_pretty(&manifest)?;
    append(&mut out, MANIFEST_NAME, text.len() as u64, &mut text.as_slice())?;
    out.into_inner()?.flush()?;
    Ok((count, bytes))
}

fn append(out: &mut tar::Builder<impl Write>, name: &str, length: u64, content: &mut dyn Read) -> io::Result<()> {
    let mut header = Header::new_gnu();
    header.set_entry_type(EntryType::Regular);
    header.set_mode(0o600);
    header.set_size(length);
    out.append_data(&mut header, name, content)
}

/// Returns every file in a directory of the data, with its name in the archive. Links are skipped.
fn files_below(data: &Path, directory: &str) -> anyhow::Result<Vec<(String, PathBuf)>> {
    let (mut found, mut open) = (Vec::new(), vec![data.join(directory)]);
    while let Some(dir) = open.pop() {
        let entries = match fs::read_dir(&dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            entries => entries.with_context(|| format!("can't read {}", dir.display()))?,
        };
        for entry in entries {
            let (path, kind) = entry.and_then(|entry| Ok((entry.path(), entry.file_type()?)))?;
            if kind.is_dir() {
                open.push(path);
            } else if kind.is_file()
                && let Some(name) = path.strip_prefix(data)?.to_str()
            {
                found.push((name.to_owned(), path));
            }
        }
    }
    found.sort();
    Ok(found)
}

/// A reader that computes the digest of what was read.
struct HashingReader<R> {
    inner: R,
    digest: blake3::Hasher,
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.inner.read(buffer)?;
        self.digest.update(&buffer[..count]);
        Ok(count)
    }
}

/// Restores a backup into an empty directory.
///
/// # Errors
/// The directory is not empty, or the archive is incomplete or invalid: a sentence.
pub fn restore(args: &RestoreArgs) -> anyhow::Result<()> {
    let RestoreArgs { file, data } = args;
    let input: Box<dyn Read> = if file.as_os_str() == STDIO {
        Box::new(io::stdin().lock())
    } else {
        Box::new(File::open(file).with_context(|| format!("can't read {}", file.display()))?)
    };
    let manifest = unpack(input, data).with_context(|| format!("{} was not restored", data.display()))?;
    let data = data.canonicalize()?;
    eprintln!(
        "restored {} from the backup of {} made at {:.0}",
        data.display(),
        manifest.data.display(),
        manifest.created
    );
    if manifest.data != data {
        eprintln!(
            "its jobs have their files in {0}: make {0} a link to {1}, and serve with --data {0}",
            manifest.data.display(),
            data.display()
        );
    }
    // The server of a cluster has no model_dirs: those of its jobs are on their claims.
    if manifest.files.contains_key(MACHINE_ID_FILE) {
        let model_dirs = data.join(MODEL_DIRS_NAME);
        eprintln!("copy its {MODEL_DIRS_NAME} to {} before you start the server", model_dirs.display());
    }
    Ok(())
}

fn unpack(input: impl Read, data: &Path) -> anyhow::Result<BackupManifest> {
    let missing: Vec<&Path> = data.ancestors().take_while(|dir| !exists(dir)).collect();
    private_directory(data)?;
    let mut existing = fs::read_dir(data)?.flatten().filter(|entry| entry.file_name() != "lost+found");
    if let Some(entry) = existing.next() {
        bail!("it is not empty, it contains {}: choose another --data, or move that away", entry.path().display());
    }
    let restored = restore_into(input, data);
    if restored.is_err() {
        // The state before this call is restored, for the next try or for a server. Directories that are not empty,
        // because others use them by now, stay.
        for dir in missing {
            let _ = fs::remove_dir(dir);
        }
    }
    restored
}

/// Whether there is something at a path. The empty path, which is the parent of a relative one, is the current
/// directory.
fn exists(path: &Path) -> bool {
    path.as_os_str().is_empty() || path.exists()
}

/// Restores into an empty directory, or leaves it empty.
fn restore_into(input: impl Read, data: &Path) -> anyhow::Result<BackupManifest> {
    let staging = data.join(RESTORE_STAGING_DIR);
    private_directory(&staging)?;
    let extracted = extract(input, &staging).and_then(|(manifest, files)| {
        check(&manifest, &files)?;
        if let Err(error) = move_all(&staging, data) {
            remove_all_of_backup(data);
            return Err(error.into());
        }
        Ok(manifest)
    });
    let removed = fs::remove_dir_all(&staging);
    let manifest = extracted?;
    removed?;
    Ok(manifest)
}

/// Moves all files and directories into another directory, and syncs that directory to disk.
fn move_all(from: &Path, to: &Path) -> io::Result<()> {
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        fs::rename(entry.path(), to.join(entry.file_name()))?;
    }
    File::open(to)?.sync_all()
}

/// Removes the paths of a backup from a directory that was empty before.
fn remove_all_of_backup(data: &Path) {
    for file in [DATABASE_NAME, MACHINE_ID_FILE] {
        let _ = fs::remove_file(data.join(file));
    }
    for directory in BACKED_UP_DIRS {
        let _ = fs::remove_dir_all(data.join(directory));
    }
}

/// Limit on the characters of a damaged file that an error quotes.
const MAX_QUOTED_CHARS: usize = 100;

/// Writes the files of an archive into a directory; returns its description and the digest of each file.
fn extract(input: impl Read, into: &Path) -> anyhow::Result<(BackupManifest, BTreeMap<String, String>)> {
    let (mut manifest, mut files) = (None, BTreeMap::new());
    for entry in Archive::new(io::BufReader::new(input)).entries().context("not a backup file")? {
        // The error quotes bytes of the file unchanged, which a terminal could take for control sequences.
        let mut entry = entry.map_err(|error| {
            let cause: String = error.to_string().escape_debug().take(MAX_QUOTED_CHARS).collect();
            match files.is_empty() && manifest.is_none() {
                true => anyhow!("the file is not a backup of millrace-api, or truncated"),
                false => anyhow!("the backup is damaged, or truncated: {cause}"),
            }
        })?;
        let path = entry.path()?.into_owned();
        ensure!(entry.header().entry_type() == EntryType::Regular, "{} is not a regular file", path.display());
        if path == Path::new(MANIFEST_NAME) {
            manifest = Some(serde_json::from_reader(&mut entry).context("its description can't be read")?);
            continue;
        }
        ensure!(is_backup_path(&path), "a backup can't contain the file {}", path.display());
        let (place, name) = (into.join(&path), path.to_str().context("a name is not UTF-8")?.to_owned());
        if let Some(directory) = place.parent() {
            private_directory(directory)?;
        }
        let mut out = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&place)?;
        let mut reader = HashingReader { inner: &mut entry, digest: blake3::Hasher::new() };
        io::copy(&mut reader, &mut out).with_context(|| format!("can't write {}", place.display()))?;
        out.sync_all()?;
        files.insert(name, reader.digest.finalize().to_string());
    }
    Ok((manifest.context("not a backup file, or truncated: it has no description at its end")?, files))
}

/// Whether a backup may contain a file with this path.
fn is_backup_path(path: &Path) -> bool {
    let mut parts = path.components();
    let first = match parts.next() {
        Some(Component::Normal(first)) => first,
        _ => return false,
    };
    let below = parts.clone().count();
    let plain = parts.all(|part| matches!(part, Component::Normal(_)));
    let alone = first == DATABASE_NAME || first == MACHINE_ID_FILE;
    plain && (alone && below == 0 || below > 0 && BACKED_UP_DIRS.iter().any(|directory| first == *directory))
}

fn check(manifest: &BackupManifest, files: &BTreeMap<String, String>) -> anyhow::Result<()> {
    let BackupManifest { version, .. } = manifest;
    ensure!(
        *version == BACKUP_VERSION,
        "the backup has version {version}, but this program reads version {BACKUP_VERSION}"
    );
    ensure!(files.contains_key(DATABASE_NAME), "the backup has no database");
    let mismatch = manifest.files.iter().find(|(name, digest)| files.get(*name) != Some(digest)).map(|(name, _)| name);
    let mismatch = mismatch.or_else(|| files.keys().find(|name| !manifest.files.contains_key(*name)));
    ensure!(
        mismatch.is_none(),
        "{} is damaged: its digest differs from the backup's",
        mismatch.map_or("a file", String::as_str)
    );
    Ok(())
}

fn private_directory(dir: &Path) -> anyhow::Result<()> {
    let created = DirBuilder::new().recursive(true).mode(0o700).create(dir);
    created.with_context(|| format!("can't make the directory {}", dir.display()))
}

#[cfg(test)]
mod tests;
