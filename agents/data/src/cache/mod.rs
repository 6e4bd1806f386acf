//! Caches tokenized text on disk, by content.
//!
//! There is one file per key, `<key>.tokens`: a header of 128 bytes and the tokens. It is written under a temporary
//! name and renamed when complete, so a reader sees all of it or nothing; a file in use is replaced, never modified.
//! Concurrent processes that need the same tokens use a lock (`<key>.lock`): the first one builds, the others read the
//! result. Every time a file is opened, its header, length and digest are checked; a damaged file is rebuilt.
//!
//! Header, little-endian: magic (8 bytes), format version (u32), largest token (u32), count of tokens (u64), bytes of a
//! token (u64), key (32), blake3 of the tokens' bytes (32), blake3 of the preceding 96 bytes (32).

use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};

use crate::DataError;
use crate::text::TokenSink;
use crate::token_store::{Segment, TokenBytes, TokenElement, TokenStore};

const MAGIC: [u8; 8] = *b"MRTOKENS";
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 128;

/// What the cache did for a data set, for display by a launcher.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum CacheOutcome {
    /// The source needs no cache: its tokens are given or synthetic.
    NotNeeded,
    /// A valid file was found.
    Hit,
    /// The text was tokenized and the tokens cached.
    Built,
    /// A damaged file was found and rebuilt.
    Repaired {
        /// What was damaged.
        damage: String,
    },
    /// The default directory can't be used. The tokens are in memory and will be computed again next time.
    Skipped { reason: String },
}

/// The cache directory, if any.
pub(crate) enum CacheDir {
    /// The user's directory: errors are fatal.
    Required(PathBuf),
    /// The default directory: errors disable the cache.
    Preferred(PathBuf),
    /// There is no cache directory.
    Disabled,
}

impl CacheDir {
    /// Returns the directory of the user, or the default of this environment.
    pub(crate) fn from_environment(explicit: Option<&Path>) -> Self {
        Self::choose(explicit, std::env::var_os("XDG_CACHE_HOME"), std::env::var_os("HOME"))
    }

    fn choose(explicit: Option<&Path>, xdg: Option<OsString>, home: Option<OsString>) -> Self {
        if let Some(path) = explicit {
            return CacheDir::Required(path.into());
        }
        // The XDG specification: a relative path is invalid and ignored.
        let absolute = |p: Option<OsString>| p.map(PathBuf::from).filter(|p| p.is_absolute());
        match absolute(xdg).or_else(|| Some(absolute(home)?.join(".cache"))) {
            Some(base) => CacheDir::Preferred(base.join("millrace")),
            None => CacheDir::Disabled,
        }
    }
}

/// Returns the directory for what can be fetched or computed again, `$XDG_CACHE_HOME/millrace` or `~/.cache/millrace`;
/// `None` if the environment names none.
pub fn default_cache_dir() -> Option<PathBuf> {
    match CacheDir::from_environment(None) {
        CacheDir::Required(path) | CacheDir::Preferred(path) => Some(path),
        CacheDir::Disabled => None,
    }
}

/// Computes the tokens and sends them to the given sink. May be called again if the sink failed.
pub(crate) type TokenBuilder<'a> = dyn FnMut(&mut TokenSink) -> Result<(), DataError> + 'a;

/// What a cached file contains.
#[derive(Clone, Copy)]
pub(crate) struct CacheKey {
    /// Digest of everything that the tokens depend on.
    pub digest: [u8; 32],
    /// How the tokens are stored.
    pub element: TokenElement,
}

/// Returns the tokens for `key`, from the cache or computed.
pub(crate) fn open(
    dir: &CacheDir,
    key: CacheKey,
    build: &mut TokenBuilder,
) -> Result<(TokenStore, CacheOutcome), DataError> {
    let reason = match dir {
        CacheDir::Required(dir) => return open_in(dir, key, build),
        CacheDir::Preferred(dir) => match open_in(dir, key, build) {
            Err(error @ DataError::Cache { .. }) => error.to_string(),
            done => return done,
        },
        CacheDir::Disabled => "neither XDG_CACHE_HOME nor HOME names a directory".into(),
    };
    let mut writer = TokenWriter::new(Vec::new(), key.element);
    #[allow(clippy::expect_used, reason = "writing to a Vec never fails")]
    build(&mut |tokens| {
        writer.push(tokens).expect("writing to a Vec never fails");
        Ok(())
    })?;
    let max = writer.max;
    let segment = Segment { bytes: TokenBytes::Owned(writer.out), header: 0, element: key.element };
    Ok((TokenStore::new(vec![segment], max, key.digest), CacheOutcome::Skipped { reason }))
}

fn open_in(dir: &Path, key: CacheKey, build: &mut TokenBuilder) -> Result<(TokenStore, CacheOutcome), DataError> {
    let name = blake3::Hash::from_bytes(key.digest).to_hex();
    let path = dir.join(format!("{name}.tokens"));
    let cache_error = |path: &Path| {
        let path = path.to_path_buf();
        move |source| DataError::Cache { path, source }
    };
    if let CacheLookup::Valid(store) = load(&path, key).map_err(cache_error(&path))? {
        return Ok((store, CacheOutcome::Hit));
    }
    std::fs::create_dir_all(dir).map_err(cache_error(dir))?;
    let _guard = lock(&dir.join(format!("{name}.lock"))).map_err(cache_error(dir))?;
    let outcome = match load(&path, key).map_err(cache_error(&path))? {
        CacheLookup::Valid(store) => return Ok((store, CacheOutcome::Hit)),
        CacheLookup::Missing => CacheOutcome::Built,
        CacheLookup::Damaged(damage) => CacheOutcome::Repaired { damage },
    };
    // The lock makes the temporary name exclusive; leftovers of a killed process are overwritten.
    let unfinished = dir.join(format!("{name}.unfinished"));
    let result =
        write(&unfinished, key, build).and_then(|()| std::fs::rename(&unfinished, &path).map_err(cache_error(&path)));
    if let Err(error) = result {
        // Best effort: the original error is more important than a failure to clean up.
        let _ = std::fs::remove_file(&unfinished);
        return Err(error);
    }
    match load(&path, key).map_err(cache_error(&path))? {
        CacheLookup::Valid(store) => Ok((store, outcome)),
        CacheLookup::Missing => Err(cache_error(&path)(io::Error::other("the file just written is missing"))),
        CacheLookup::Damaged(damage) => {
            Err(cache_error(&path)(io::Error::other(format!("the file just written is damaged: {damage}"))))
        }
    }
}

/// Waits for the lock. It is released when the file is dropped or the process ends.
fn lock(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    loop {
        match file.lock() {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            locked => return locked.map(|()| file),
        }
    }
}

enum CacheLookup {
    Valid(TokenStore),
    Missing,
    Damaged(String),
}

fn load(path: &Path, key: CacheKey) -> io::Result<CacheLookup> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(CacheLookup::Missing),
        Err(e) => return Err(e),
    };
    if file.metadata()?.len() < HEADER_BYTES as u64 {
        return Ok(CacheLookup::Damaged("shorter than its header".into()));
    }
    let bytes = TokenBytes::map(&file)?;
    Ok(match check(&bytes, key) {
        Ok(max) => {
            let segment = Segment { bytes, header: HEADER_BYTES, element: key.element };
            CacheLookup::Valid(TokenStore::new(vec![segment], max, key.digest))
        }
        Err(damage) => CacheLookup::Damaged(damage.into()),
    })
}

/// Returns the largest token, if `bytes` is a valid cache file for `key`.
fn check(bytes: &[u8], key: CacheKey) -> Result<u32, &'static str> {
    let (header, payload) = bytes.split_at_checked(HEADER_BYTES).ok_or("shorter than its header")?;
    let token_bytes = key.element.bytes();
    let count = (payload.len() / token_bytes) as u64;
    // The header is a function of the tokens, so comparing with the expected header checks every field. The order of
    // the comparisons only decides which damage is reported.
    let max = u32::from_le_bytes([header[12], header[13], header[14], header[15]]);
    if header[..12] != [&MAGIC[..], &VERSION.to_le_bytes()].concat() {
        return Err("not a token file of this version");
    }
    if header[16..24] != count.to_le_bytes() || payload.len() % token_bytes != 0 {
        return Err("its length differs from the one in its header");
    }
    if header != self::header(max, count, key, blake3::hash(payload)) {
        return Err("its content differs from the digest in its header");
    }
    Ok(max)
}

fn header(max: u32, count: u64, key: CacheKey, payload: blake3::Hash) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..8].copy_from_slice(&MAGIC);
    header[8..12].copy_from_slice(&VERSION.to_le_bytes());
    header[12..16].copy_from_slice(&max.to_le_bytes());
    header[16..24].copy_from_slice(&count.to_le_bytes());
    header[24..32].copy_from_slice(&(key.element.bytes() as u64).to_le_bytes());
    header[32..64].copy_from_slice(&key.digest);
    header[64..96].copy_from_slice(payload.as_bytes());
    let digest = blake3::hash(&header[..96]);
    header[96..].copy_from_slice(digest.as_bytes());
    header
}

/// Writes tokens to a file and computes its header.
struct TokenWriter<W> {
    out: W,
    element: TokenElement,
    bytes: Vec<u8>,
    hasher: blake3::Hasher,
    max: u32,
    count: u64,
}

impl<W: Write> TokenWriter<W> {
    fn new(out: W, element: TokenElement) -> Self {
        Self { out, element, bytes: Vec::new(), hasher: blake3::Hasher::new(), max: 0, count: 0 }
    }

    fn push(&mut self, tokens: &[u32]) -> io::Result<()> {
        self.bytes.clear();
        self.element.write(tokens, &mut self.bytes);
        self.hasher.update(&self.bytes);
        self.max = tokens.iter().copied().fold(self.max, u32::max);
        self.count += tokens.len() as u64;
        self.out.write_all(&self.bytes)
    }
}

fn write(path: &Path, key: CacheKey, build: &mut TokenBuilder) -> Result<(), DataError> {
    let error = |source| DataError::Cache { path: path.into(), source };
    let mut file = File::create(path).map_err(error)?;
    file.write_all(&[0; HEADER_BYTES]).map_err(error)?;
    let mut writer = TokenWriter::new(BufWriter::new(file), key.element);
    build(&mut |tokens| writer.push(tokens).map_err(error))?;
    let header = header(writer.max, writer.count, key, writer.hasher.finalize());
    let mut file = writer.out.into_inner().map_err(|e| error(e.into_error()))?;
    // The header is written last, because it makes the file valid. Not synced: after a crash of the machine, the digest
    // detects a damaged file.
    file.rewind().and_then(|()| file.write_all(&header)).map_err(error)
}

#[cfg(test)]
mod tests;
