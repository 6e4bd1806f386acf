//! The volumes of a server: directories of its machine that jobs can mount.
//!
//! `--volume NAME=DIR[:ro][:NAMESPACE,...]` offers the directory as the claim NAME, to jobs of all namespaces or of
//! those listed. With `ro`, no job writes there.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use millrace_params::{InvalidName, LabelName, ObjectName};

use super::path_error::PathError;

/// Syntax of `--volume`.
pub const VOLUME_SYNTAX: &str = "NAME=DIR[:ro][:NAMESPACE,...]";

/// Volumes by their names.
pub type Volumes = BTreeMap<ObjectName, ServerVolume>;

/// A directory that jobs can mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerVolume {
    /// The directory on this machine, a real path.
    pub dir: PathBuf,
    /// Whether jobs can only read it.
    pub read_only: bool,
    /// Namespaces whose jobs may use it; `None` means all.
    pub namespaces: Option<BTreeSet<LabelName>>,
}

impl ServerVolume {
    /// Whether jobs of `namespace` may use it.
    pub fn is_granted_to(&self, namespace: &LabelName) -> bool {
        self.namespaces.as_ref().is_none_or(|granted| granted.contains(namespace))
    }

    /// Checks that a job of `namespace` may write at `inside`, a path relative to the volume. In a volume that other
    /// namespaces may use, too, a job writes only below the directory named after its namespace.
    ///
    /// # Errors
    /// It may not.
    pub fn check_writable(&self, name: &ObjectName, namespace: &LabelName, inside: &Path) -> Result<(), PathError> {
        if self.read_only {
            return Err(PathError::ReadOnlyVolume(name.clone()));
        }
        let is_alone = self.namespaces.as_ref().is_some_and(|granted| granted.len() == 1);
        if !is_alone && !inside.starts_with(namespace.as_str()) {
            return Err(PathError::SharedVolume { volume: name.clone(), namespace: namespace.clone() });
        }
        Ok(())
    }

    /// Returns a description for users.
    pub fn description(&self) -> String {
        let access = if self.read_only { ", read-only" } else { "" };
        format!("{} of the server{access}", self.dir.display())
    }
}

/// A `--volume` that can't be used. `Display` is all that the parser of the command line prints, so it includes causes.
#[derive(Debug, thiserror::Error)]
pub enum VolumeError {
    /// It has no `=`.
    #[error("write {VOLUME_SYNTAX}")]
    Syntax,
    /// Its name is not valid.
    #[error(transparent)]
    Name(#[from] InvalidName),
    /// The name of a namespace is not valid.
    #[error("namespace {0}")]
    Namespace(#[source] InvalidName),
    /// It has more parts than the syntax.
    #[error("{0:?} has too many colons: write {VOLUME_SYNTAX}, with a directory that has none in its path")]
    TooManyColons(String),
    /// It is the root directory.
    #[error("the root directory can't be a volume: name a directory below it")]
    RootDirectory,
    /// The directory does not exist.
    #[error("directory {0} not found")]
    DirectoryNotFound(String),
    /// Two volumes have this name.
    #[error("there are two volumes {0}: give each --volume another name")]
    Duplicate(ObjectName),
}

/// Parses one `--volume`.
///
/// # Errors
/// The syntax is wrong, or the directory does not exist.
pub fn parse_volume(text: &str) -> Result<(ObjectName, ServerVolume), VolumeError> {
    let (name, rest) = text.split_once('=').ok_or(VolumeError::Syntax)?;
    let name = ObjectName::new(name)?;
    let mut parts = rest.split(':');
    let dir = parts.next().unwrap_or_default();
    let mut options: Vec<&str> = parts.collect();
    let read_only = match options.first() {
        Some(&"ro") => true,
        Some(&"rw") => false,
        _ => {
            options.insert(0, "rw");
            false
        }
    };
    let namespaces = match options[1..] {
        [] => None,
        [list] => {
            let names = list.split(',').map(|name| LabelName::new(name).map_err(VolumeError::Namespace));
            Some(names.collect::<Result<BTreeSet<_>, _>>()?)
        }
        _ => {
            return Err(VolumeError::TooManyColons(text.to_owned()));
        }
    };
    match Path::new(dir).canonicalize() {
        Ok(dir) if dir.is_dir() && dir.parent().is_some() => Ok((name, ServerVolume { dir, read_only, namespaces })),
        Ok(dir) if dir.is_dir() => Err(VolumeError::RootDirectory),
        _ => Err(VolumeError::DirectoryNotFound(dir.to_owned())),
    }
}

/// Collects the volumes by name.
///
/// # Errors
/// Two volumes have the same name.
pub fn collect_unique(list: &[(ObjectName, ServerVolume)]) -> Result<Volumes, VolumeError> {
    let mut volumes = Volumes::new();
    for (name, volume) in list {
        if volumes.insert(name.clone(), volume.clone()).is_some() {
            return Err(VolumeError::Duplicate(name.clone()));
        }
    }
    Ok(volumes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn volume_has_directory_mode_and_namespaces() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().canonicalize().unwrap();
        let read = |options: &str| parse_volume(&format!("data={}{options}", dir.display()));
        let volume = |options: &str| read(options).unwrap().1;
        assert_eq!(volume(""), ServerVolume { dir: dir.clone(), read_only: false, namespaces: None });
        assert!(volume(":ro").read_only && volume(":ro").namespaces.is_none());
        let label = |name: &str| LabelName::new(name).unwrap();
        assert_eq!(volume(":ro:a,b").namespaces, Some([label("a"), label("b")].into()));
        assert_eq!(volume(":a").namespaces, Some([label("a")].into()));
        assert!(!volume(":a").read_only && volume(":a").is_granted_to(&label("a")));
        assert!(!volume(":a").is_granted_to(&label("b")) && volume("").is_granted_to(&label("b")));
        assert!(volume(":ro:ro").read_only && !volume(":rw:ro").read_only, "a namespace may be called so");
        for bad in [":", ":a,", ":../x", ":a:b:c", ":a:b", ":RO"] {
            assert!(read(bad).is_err(), "{bad}");
        }
        for bad in ["data", "=x", "Data=/tmp", "../x=/tmp", "x=/", "x=/nowhere/at/all"] {
            assert!(parse_volume(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn namespace_writes_to_its_directory_of_shared_volume() {
        let volume = |read_only, namespaces: Option<&[&str]>| ServerVolume {
            dir: "/vol".into(),
            read_only,
            namespaces: namespaces.map(|names| names.iter().map(|name| LabelName::new(*name).unwrap()).collect()),
        };
        let a = LabelName::new("a").unwrap();
        let name = ObjectName::new("v").unwrap();
        let check = |volume: ServerVolume, inside: &str| volume.check_writable(&name, &a, Path::new(inside));
        for shared in [None, Some(["a", "b"].as_slice())] {
            assert!(check(volume(false, shared), "a/run").is_ok() && check(volume(false, shared), "a").is_ok());
            for bad in ["", "run", "b/run", "ab/run"] {
                assert!(
                    check(volume(false, shared), bad).unwrap_err().to_string().contains("below its directory a/"),
                    "{bad}"
                );
            }
        }
        assert!(check(volume(false, Some(&["a"])), "").is_ok());
        assert!(check(volume(true, Some(&["a"])), "a/run").unwrap_err().to_string().contains("read-only"));
    }
}
