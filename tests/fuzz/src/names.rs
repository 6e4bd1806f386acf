//! Targets for names and paths given by users, which become path components, names of objects, or paths in a directory.

use std::path::{Component, Path, PathBuf};
use std::sync::LazyLock;

use millrace_api::process::{ServerDirectories, ServerVolume, parse_volume};
use millrace_control::JobSite;
use millrace_crds::{
    ConfigMapSource, JobVolume, MountedDir, PersistentVolumeClaimSource, StoredParams, TrainJob, TrainJobSpec,
};
use millrace_data::MATCH_OPTIONS;
use millrace_params::{BlobDigest, FileName, LabelName, ObjectName};
use regex::Regex;
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Checks a type of names with `text`; `accepted` is the name that the constructor returned, `None` if it rejected
/// `text`.
fn check<T>(text: &str, accepted: Option<T>, max_bytes: usize, pattern: &Regex)
where
    T: AsRef<Path> + ToString + PartialEq + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let matches = text.len() <= max_bytes && pattern.is_match(text);
    assert_eq!(accepted.is_some(), matches, "the constructor and the schema's pattern agree about {text:?}");
    let json = serde_json::Value::from(text);
    let read = serde_json::from_value::<T>(json.clone()).ok();
    assert_eq!(read, accepted, "serde and the constructor agree about {text:?}");
    let Some(name) = accepted else { return };
    assert_eq!(name.to_string(), text, "a name is the text it was made of");
    assert_eq!(serde_json::to_value(&name).expect("a name is written"), json);
    assert!(!text.contains(['/', '\\', '\0']) && !text.starts_with('.'), "{text:?}");
    let mut components = name.as_ref().components();
    assert!(matches!(components.next(), Some(Component::Normal(part)) if part == text), "one component: {text:?}");
    assert_eq!(components.next(), None, "one component: {text:?}");
}

/// Returns whether `text` is a label as defined by RFC 1123.
fn is_dns_label(text: &str) -> bool {
    let is_inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=63).contains(&text.len()) && text.bytes().all(is_inner) && !text.starts_with('-') && !text.ends_with('-')
}

/// Checks a name of each type, and the option for a volume of the server.
pub fn names(bytes: &[u8]) {
    static PATTERNS: LazyLock<[Regex; 4]> = LazyLock::new(|| {
        [ObjectName::PATTERN, LabelName::PATTERN, FileName::PATTERN, BlobDigest::PATTERN]
            .map(|pattern| Regex::new(pattern).expect("the patterns are constants"))
    });
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let [object_pattern, label_pattern, file_pattern, digest_pattern] = &*PATTERNS;
    let (object, label, file) = (ObjectName::new(text).ok(), LabelName::new(text).ok(), FileName::new(text).ok());
    assert_eq!(label.is_some(), is_dns_label(text), "{text:?}");
    assert!(label.is_none() || (object.is_some() && file.is_some()), "a label is a name of every type: {text:?}");
    if object.is_some() {
        assert!(!text.contains(".."), "{text:?}");
    }
    check(text, object, ObjectName::MAX_BYTES, object_pattern);
    check(text, label, LabelName::MAX_BYTES, label_pattern);
    check(text, file, FileName::MAX_BYTES, file_pattern);
    check(text, BlobDigest::new(text).ok(), BlobDigest::MAX_BYTES, digest_pattern);
    if let Ok((name, volume)) = parse_volume(text) {
        assert!(volume.dir.is_absolute() && volume.dir.is_dir() && volume.dir.parent().is_some(), "{text:?}");
        let again = parse_volume(&volume_option(&name, &volume)).expect("what was parsed is parsed again");
        assert_eq!(again, (name, volume), "{text:?}");
    }
}

/// Returns the option that defines a volume.
fn volume_option(name: &ObjectName, volume: &ServerVolume) -> String {
    let access = if volume.read_only { "ro" } else { "rw" };
    let mut option = format!("{name}={}:{access}", volume.dir.display());
    if let Some(namespaces) = &volume.namespaces {
        let names: Vec<&str> = namespaces.iter().map(LabelName::as_str).collect();
        option = format!("{option}:{}", names.join(","));
    }
    option
}

/// Returns the directories of a server. None of them exists, because paths are resolved as text.
fn directories() -> &'static ServerDirectories {
    static DIRECTORIES: LazyLock<ServerDirectories> = LazyLock::new(|| {
        let label = |name: &str| LabelName::new(name).expect("a label");
        let volume = |name: &str, read_only, namespaces: &[&str]| {
            let dir = Path::new("/volumes").join(name);
            let namespaces = Some(namespaces.iter().map(|name| label(name)).collect());
            (ObjectName::new(name).expect("a name"), ServerVolume { dir, read_only, namespaces })
        };
        ServerDirectories {
            data: "/nowhere/data".into(),
            inputs: Some("/nowhere".into()),
            volumes: [
                volume("own", false, &["team"]),
                volume("shared", false, &["team", "others"]),
                volume("books", true, &["team"]),
                volume("theirs", false, &["others"]),
            ]
            .into(),
        }
    });
    &DIRECTORIES
}

/// Returns a job of the namespace `team` with every volume of [`directories`] and a ConfigMap. The input determines a
/// mount's path, its subPath and the ConfigMap's name.
fn job(mounted_at: &str, sub_path: &str, config_map: &str) -> TrainJob {
    let mut job = TrainJob::new("job", TrainJobSpec::new(1, StoredParams::default()));
    job.metadata.namespace = Some("team".to_owned());
    let claim = |name: &str| JobVolume {
        name: name.to_owned(),
        persistent_volume_claim: Some(PersistentVolumeClaimSource { claim_name: name.to_owned() }),
        config_map: None,
    };
    let names = ["own", "shared", "books", "theirs"];
    job.spec.volumes = names.map(claim).into();
    job.spec.volumes.push(JobVolume {
        name: "texts".to_owned(),
        persistent_volume_claim: None,
        config_map: Some(ConfigMapSource { name: config_map.to_owned() }),
    });
    let mount = |path: &str, volume: &str, sub_path: Option<&str>| MountedDir {
        path: path.to_owned(),
        volume: volume.to_owned(),
        sub_path: sub_path.map(str::to_owned),
    };
    job.spec.mount_dirs = names.map(|name| mount(&format!("/{name}"), name, None)).into();
    job.spec.mount_dirs.push(mount("/texts", "texts", None));
    job.spec.mount_dirs.push(mount(mounted_at, "shared", Some(sub_path)));
    job
}

/// Files of other namespaces, or of the server itself, in the data directory of [`directories`].
const PRIVATE_FILES: [&str; 4] = [
    "/nowhere/data/millrace.db",
    "/nowhere/data/model_dirs/else/job/model_dir/metrics.jsonl",
    "/nowhere/data/texts/else/texts/0-0000-x.txt",
    "/nowhere/data/exports/1/model.safetensors",
];

/// Returns whether `pattern` matches one of [`PRIVATE_FILES`] for the readers of data. They reject a pattern with a
/// component that is not a pattern by itself, such as `[a/b]`.
fn matches_private_file(pattern: &str) -> bool {
    let is_read = pattern.split('/').all(|component| glob::Pattern::new(component).is_ok());
    let matches = |pattern: glob::Pattern| PRIVATE_FILES.iter().any(|file| pattern.matches_with(file, MATCH_OPTIONS));
    is_read && glob::Pattern::new(pattern).is_ok_and(matches)
}

/// Returns whether `path` is in `directory` and has no `..`.
fn is_inside(path: &Path, directory: &str) -> bool {
    path.starts_with(directory) && !path.components().any(|part| part == Component::ParentDir)
}

/// Resolves paths of a job, one per line: a path in the params, a mount's path, its subPath, the name of a ConfigMap.
pub fn paths(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let mut lines = text.splitn(4, '\n');
    let mut line = || lines.next().unwrap_or_default();
    let (written, mounted_at, sub_path, config_map) = (line(), line(), line(), line());
    let (site, job) = (directories(), job(mounted_at, sub_path, config_map));
    if let Ok(path) = site.locate(&job, written) {
        assert!(
            !path.to_str().is_some_and(matches_private_file),
            "{written:?} is {}, which matches files of others",
            path.display()
        );
        let offered = ["/nowhere", "/volumes/own", "/volumes/shared", "/volumes/books"];
        assert!(offered.iter().any(|dir| is_inside(&path, dir)), "{written:?} is {}", path.display());
        let own = ["/nowhere/data/model_dirs/team", "/nowhere/data/texts/team"];
        assert!(
            !path.starts_with("/nowhere/data") || own.iter().any(|dir| is_inside(&path, dir)),
            "{written:?} is {}, which the server keeps for others",
            path.display()
        );
        assert!(!path.as_os_str().as_encoded_bytes().contains(&0), "{written:?}");
    }
    if let Ok(found) = site.model_dir(&job, written) {
        let writable = ["/nowhere/data/model_dirs/team", "/volumes/own", "/volumes/shared/team"];
        assert!(writable.iter().any(|dir| is_inside(&found.path, dir)), "{written:?} is {}", found.path.display());
        assert!(found.claim.is_none());
    }
    let roots = site.roots_of(&job);
    assert_eq!(roots, Vec::<PathBuf>::new(), "none of the directories exists");
}
