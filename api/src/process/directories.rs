//! Maps the paths of a job to paths on this machine.
//!
//! Params name paths as a pod would see them. An absolute path is in one of the job's `mountDirs`; a relative model_dir
//! is below the server's data directory; other relative paths are below the directory of `--input-dir`.
//!
//! * No other directory of the machine can be reached, so that a user who may submit jobs can't read every file of the
//!   server's user.
//! * Paths are checked here as text only. `millrace_roots` makes sure that no link leads out of a directory when a file
//!   is opened; [`ServerDirectories::roots_of`] returns the directories that the agents of a job are limited to.

use std::io::Read as _;
use std::path::{Component, Path, PathBuf};

use kube::ResourceExt;
use millrace_control::world::MAX_GRAPH_BYTES;
use millrace_control::{DocumentError, JobSite, ModelDirLocation, SiteError};
use millrace_crds::{FILES_DIR, JobVolume, MountedDir, TrainJob};
use millrace_params::{BlobDigest, LabelName, ObjectName};

use super::job_files::JobFiles;
use super::path_error::PathError;
use super::volumes::{ServerVolume, Volumes};
use crate::private_dirs;

/// The server's directories. All paths are real paths, without links.
#[derive(Clone, Debug)]
pub struct ServerDirectories {
    /// The data directory: model_dirs, uploads, last reports.
    pub data: PathBuf,
    /// Directory for relative paths of inputs; `None` if the server offers none.
    pub inputs: Option<PathBuf>,
    /// Volumes that jobs can mount, by the name of their claim.
    pub volumes: Volumes,
}

impl ServerDirectories {
    /// Creates the server's own directories, for its user only.
    ///
    /// # Errors
    /// An error of the file system.
    pub fn make(&self) -> Result<(), PathError> {
        let dirs = ["model_dirs", "texts", "last", "exports", "blobs", "files"].map(|name| self.data.join(name));
        std::iter::once(self.data.clone()).chain(dirs).try_for_each(|directory| {
            private_dirs::make_existing_private(&directory)
                .map_err(|source| PathError::CreateDirectory { directory, source })
        })
    }

    /// Returns the directory with the uploads of a ConfigMap.
    pub fn uploads_dir(&self, namespace: &LabelName, config_map: &ObjectName) -> PathBuf {
        self.namespace_uploads_dir(namespace).join(config_map)
    }

    /// Returns the directory with the uploads of a namespace.
    fn namespace_uploads_dir(&self, namespace: &LabelName) -> PathBuf {
        self.data.join("texts").join(namespace)
    }

    /// Removes the uploads of a deleted job, unless one of `others` uses them too.
    pub async fn remove_uploads(&self, job: &TrainJob, others: &[TrainJob]) {
        let Ok(namespace) = namespace_of(job) else { return };
        let maps = |job: &TrainJob| -> Vec<ObjectName> {
            let maps = job.spec.volumes.iter().filter_map(|volume| volume.config_map.as_ref());
            maps.filter_map(|map| ObjectName::new(&*map.name).ok()).collect()
        };
        let others: Vec<ObjectName> =
            others.iter().filter(|other| other.namespace() == job.namespace()).flat_map(maps).collect();
        for map in maps(job).iter().filter(|map| !others.contains(map)) {
            let dir = self.uploads_dir(&namespace, map);
            if let Err(error) = tokio::fs::remove_dir_all(&dir).await
                && error.kind() != std::io::ErrorKind::NotFound
            {
                tracing::warn!("can't remove the uploaded files of a deleted job in {}: {error}", dir.display());
            }
        }
    }

    /// Returns the directory with the uploaded blobs of all namespaces.
    pub fn blobs(&self) -> PathBuf {
        self.data.join("blobs")
    }

    /// Returns the directories with the uploaded files of jobs.
    pub fn job_files(&self) -> JobFiles {
        JobFiles { dir: self.data.join("files"), blobs: self.blobs() }
    }

    /// Returns the directory with the blobs that the jobs of the job's namespace may read.
    fn job_blobs(&self, job: &TrainJob) -> Result<PathBuf, PathError> {
        Ok(self.blobs().join(namespace_of(job)?))
    }

    /// Returns the path of the last report of an attempt's coordinator.
    pub fn last_report(&self, uid: &ObjectName, attempt: u32) -> PathBuf {
        self.data.join("last").join(format!("{uid}-{attempt}.json"))
    }

    /// Removes the last reports of the coordinators of a deleted job.
    pub async fn remove_termination_reports(&self, job: &TrainJob) {
        let attempts = job.status.as_ref().and_then(|status| status.attempt).unwrap_or(0);
        let Ok(uid) = ObjectName::new(job.uid().unwrap_or_default()) else { return };
        for attempt in 1..=attempts {
            // Not every attempt has written one.
            let _ = tokio::fs::remove_file(self.last_report(&uid, attempt)).await;
        }
    }

    /// Returns the path on this machine of a path in `job`'s params, or of an upload by its digest, for reading.
    ///
    /// # Errors
    /// The path is not available to the job.
    pub fn locate(&self, job: &TrainJob, params_path: &str) -> Result<PathBuf, PathError> {
        Ok(self.locate_in_mounts(job, params_path)?.path)
    }

    fn locate_in_mounts(&self, job: &TrainJob, params_path: &str) -> Result<LocatedPath<'_>, PathError> {
        if let Ok(digest) = BlobDigest::new(params_path) {
            return Ok(LocatedPath::own(self.job_blobs(job)?.join(digest)));
        }
        let path = Path::new(params_path);
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(PathError::ParentDirectory(params_path.to_owned()));
        }
        if params_path.contains('\0') {
            return Err(PathError::NulByte(params_path.to_owned()));
        }
        if path.is_relative() {
            let Some(inputs) = &self.inputs else {
                return Err(PathError::NoInputDirectory(params_path.to_owned()));
            };
            return Ok(LocatedPath::own(self.check_not_private(job, inputs.join(path))?));
        }
        if let Ok(inside) = path.strip_prefix(FILES_DIR)
            && !job.spec.files.is_empty()
        {
            return Ok(LocatedPath::own(self.job_files().dir_of(&namespace_of(job)?, &job.spec.files).join(inside)));
        }
        if path.starts_with(self.model_dirs(job)?) {
            // The status of a job has the paths of its checkpoints in this form.
            return Ok(LocatedPath::own(path.to_owned()));
        }
        let Some(mount) = job.spec.mount_holding(path) else {
            return Err(PathError::NotMounted { path: params_path.to_owned(), inputs: self.inputs.clone() });
        };
        let (dir, volume) = self.mounted(job, mount)?;
        let mut inside = mount.sub_path.as_ref().map(PathBuf::from).unwrap_or_default();
        let escapes = inside.is_absolute() || inside.components().any(|part| part == Component::ParentDir);
        if escapes || inside.as_os_str().as_encoded_bytes().contains(&0) {
            return Err(PathError::SubPath(inside));
        }
        inside.extend(path.strip_prefix(&mount.path).unwrap_or(path).components());
        let path = if inside.as_os_str().is_empty() { dir } else { dir.join(&inside) };
        Ok(LocatedPath { path: self.check_not_private(job, path)?, volume, inside })
    }

    /// Returns where [`ServerDirectories::locate`] looks for a path of `job`'s params, as part of a sentence.
    pub fn search_description(&self, job: &TrainJob, params_path: &str) -> String {
        let path = Path::new(params_path);
        if path.is_relative() {
            let inputs = self.inputs.as_deref().unwrap_or(&self.data).display();
            return format!("in {inputs}, the directory that the server's --input-dir names");
        }
        match job.spec.mount_holding(path) {
            Some(mount) => format!("in the volume {}, which spec.mountDirs has at {}", mount.volume, mount.path),
            None => "in the model_dirs of this namespace's jobs".to_owned(),
        }
    }

    /// Returns the existing directories that the agents of `job` may use.
    pub fn roots_of(&self, job: &TrainJob) -> Vec<PathBuf> {
        let mounted = job.spec.mount_dirs.iter().filter_map(|mount| Some(self.mounted(job, mount).ok()?.0));
        let files = namespace_of(job).map(|namespace| self.job_files().dir_of(&namespace, &job.spec.files));
        let job_dirs = [self.model_dirs(job), self.job_blobs(job), files].into_iter().flatten();
        let mut roots: Vec<PathBuf> =
            mounted.chain(job_dirs).chain(self.inputs.clone()).filter(|dir| dir.is_dir()).collect();
        roots.sort();
        roots.dedup();
        roots
    }

    /// Returns the existing directories that this server may use for the files of users.
    pub fn roots(&self) -> Vec<PathBuf> {
        let data_dirs = ["model_dirs", "exports", "texts", "blobs", "files"].map(|name| self.data.join(name));
        let volumes = self.volumes.values().map(|volume| volume.dir.clone());
        data_dirs.into_iter().chain(volumes).chain(self.inputs.clone()).filter(|dir| dir.is_dir()).collect()
    }

    /// Whether jobs of the job's namespace may still read its model_dir.
    pub fn is_readable(&self, job: &TrainJob, model_dir: &Path) -> bool {
        let Ok(namespace) = namespace_of(job) else { return false };
        let mut volumes = self.volumes.values().filter(|volume| volume.is_granted_to(&namespace));
        self.model_dirs(job).is_ok_and(|dir| model_dir.starts_with(dir))
            || volumes.any(|volume| model_dir.starts_with(&volume.dir))
    }

    /// Returns the path, unless it leads into the data of others: the server's data directory may be below a directory
    /// that it offers. A job may read what jobs of its own namespace have written.
    fn check_not_private(&self, job: &TrainJob, path: PathBuf) -> Result<PathBuf, PathError> {
        if path.starts_with(self.model_dirs(job)?) || path.starts_with(self.namespace_uploads_dir(&namespace_of(job)?))
        {
            return Ok(path);
        }
        let mut parts = path.components();
        for own_part in self.data.components() {
            // A path above the data directory includes it.
            let Some(part) = parts.next() else { break };
            let (part, own_part) = (part.as_os_str().to_string_lossy(), own_part.as_os_str().to_string_lossy());
            if part.contains("**") {
                break;
            }
            if part != own_part && !glob::Pattern::new(&part).is_ok_and(|pattern| pattern.matches(&own_part)) {
                return Ok(path);
            }
        }
        Err(PathError::Private { path, data: self.data.clone() })
    }

    /// Returns the directory with the model_dirs of the job's namespace.
    fn model_dirs(&self, job: &TrainJob) -> Result<PathBuf, PathError> {
        Ok(self.data.join("model_dirs").join(namespace_of(job)?))
    }

    /// Creates the directory of `ServerDirectories::model_dirs`, so that agents can be limited to it.
    ///
    /// # Errors
    /// An error of the file system.
    pub fn make_model_dirs(&self, job: &TrainJob) -> Result<(), PathError> {
        let directory = self.model_dirs(job)?;
        private_dirs::make_dir(&directory).map_err(|source| PathError::CreateDirectory { directory, source })
    }

    /// Returns the directory of a mount's volume, and the volume if it is one of the server's.
    fn mounted(&self, job: &TrainJob, mount: &MountedDir) -> Result<(PathBuf, Option<NamedVolume<'_>>), PathError> {
        let volume = job.spec.volumes.iter().find(|volume| volume.name == mount.volume);
        let volume: &JobVolume = volume.ok_or_else(|| PathError::VolumeNotFound(mount.volume.clone()))?;
        let namespace = namespace_of(job)?;
        if let Some(map) = &volume.config_map {
            let name = ObjectName::new(&*map.name);
            let name = name.map_err(|source| PathError::Name { field: "spec.volumes", source })?;
            return Ok((self.uploads_dir(&namespace, &name), None));
        }
        let claim = volume.persistent_volume_claim.as_ref().map(|claim| claim.claim_name.as_str()).unwrap_or_default();
        let granted = self.volumes_for(&namespace);
        // A volume of other namespaces is reported like one that does not exist.
        let found = granted.iter().find(|(name, _)| name.as_str() == claim);
        found.map(|&(name, volume)| (volume.dir.clone(), Some((name, volume)))).ok_or_else(|| {
            PathError::VolumeNotOffered {
                claim: claim.to_owned(),
                offered: granted.iter().map(|(name, _)| (*name).clone()).collect(),
                namespace: namespace.clone(),
            }
        })
    }

    /// Creates the directory with the uploaded files of `job`, if it names any.
    ///
    /// # Errors
    /// An upload does not exist, or an error of the file system.
    pub fn make_job_files(&self, job: &TrainJob) -> Result<(), PathError> {
        self.job_files().make(&namespace_of(job)?, &job.spec.files)
    }

    /// Returns whether all uploads that `job` names are complete.
    pub fn has_uploads(&self, job: &TrainJob) -> bool {
        let Ok(blobs) = self.job_blobs(job) else { return false };
        let mut digests = job.spec.uploads().map(BlobDigest::new);
        digests.all(|digest| digest.is_ok_and(|digest| millrace_roots::is_file(blobs.join(digest))))
    }

    /// Checks that every volume that `job` mounts exists, also if no path of its params is there.
    ///
    /// # Errors
    /// The server does not offer a volume to the job's namespace.
    pub fn check_mounts(&self, job: &TrainJob) -> Result<(), PathError> {
        job.spec.mount_dirs.iter().try_for_each(|mount| self.mounted(job, mount).map(drop))
    }

    /// Returns the volumes that jobs of a namespace may use.
    pub fn volumes_for(&self, namespace: &LabelName) -> Vec<NamedVolume<'_>> {
        self.volumes.iter().filter(|(_, volume)| volume.is_granted_to(namespace)).collect()
    }
}

/// Name and volume.
type NamedVolume<'a> = (&'a ObjectName, &'a ServerVolume);

/// A path on this machine.
struct LocatedPath<'a> {
    path: PathBuf,
    /// The server's volume that contains it.
    volume: Option<NamedVolume<'a>>,
    /// Path relative to the volume.
    inside: PathBuf,
}

impl LocatedPath<'_> {
    /// Creates one that is in no volume.
    const fn own(path: PathBuf) -> Self {
        Self { path, volume: None, inside: PathBuf::new() }
    }
}

/// Returns the namespace of a job, checked so that it can be part of a path.
fn namespace_of(job: &TrainJob) -> Result<LabelName, PathError> {
    let namespace = LabelName::new(job.namespace().unwrap_or_default());
    namespace.map_err(|source| PathError::Name { field: "metadata.namespace", source })
}

impl JobSite for ServerDirectories {
    fn image(&self) -> Option<String> {
        None
    }

    fn model_dir(&self, job: &TrainJob, params_path: &str) -> Result<ModelDirLocation, SiteError> {
        let path = Path::new(params_path);
        if path.is_absolute() {
            let rejected = |source| PathError::ModelDir { path: params_path.to_owned(), source: Box::new(source) };
            let found = self.locate_in_mounts(job, params_path).map_err(rejected)?;
            match found.volume {
                Some((name, volume)) => {
                    volume.check_writable(name, &namespace_of(job)?, &found.inside).map_err(rejected)?;
                }
                None if found.path.starts_with(self.model_dirs(job)?) => {}
                None => return Err(rejected(PathError::ConfigMap).into()),
            }
            return Ok(ModelDirLocation { path: found.path, claim: None });
        }
        // Named after the job, so that the next job of the same name continues there, as with a claim on a cluster.
        let name = ObjectName::new(job.name_any());
        let name = name.map_err(|source| PathError::Name { field: "metadata.name", source })?;
        let base = self.model_dirs(job)?.join(name);
        let inside = path.components().filter(|part| matches!(part, Component::Normal(_)));
        Ok(ModelDirLocation { path: inside.fold(base, |path, part| path.join(part)), claim: None })
    }

    fn graph_document(&self, job: &TrainJob, digest: &BlobDigest) -> Result<Vec<u8>, DocumentError> {
        let read = || {
            let file = millrace_roots::open(self.job_blobs(job)?.join(digest))?;
            let mut document = Vec::new();
            file.take(MAX_GRAPH_BYTES + 1).read_to_end(&mut document)?;
            Ok(document)
        };
        read().map_err(DocumentError::Unusable)
    }

    fn check_readable(&self, job: &TrainJob, params_path: &str) -> Result<(), SiteError> {
        Ok(self.locate(job, params_path).map(drop)?)
    }
}

#[cfg(test)]
mod tests {
    use millrace_crds::{MountedDir, PersistentVolumeClaimSource, StoredParams, TrainJobSpec};
    use millrace_protocol::error_chain;

    use super::*;

    #[test]
    fn paths_outside_offered_directories_are_rejected() {
        let mut job = TrainJob::new("job", TrainJobSpec::new(1, StoredParams::default()));
        job.metadata.namespace = Some("team".to_owned());
        let claim = |name: &str| Some(PersistentVolumeClaimSource { claim_name: name.to_owned() });
        let volume = |name: &str, target: &str| JobVolume {
            name: name.to_owned(),
            persistent_volume_claim: claim(target),
            config_map: None,
        };
        let mount = |path: &str, target: &str, sub: Option<&str>| MountedDir {
            path: path.to_owned(),
            volume: target.to_owned(),
            sub_path: sub.map(str::to_owned),
        };
        job.spec.volumes = vec![volume("d", "books"), volume("n", "nowhere")];
        job.spec.mount_dirs =
            vec![mount("/data", "d", None), mount("/data/deep", "d", Some("b/c")), mount("/n", "n", None)];
        let directories = ServerDirectories {
            data: "/srv/data".into(),
            inputs: Some("/srv/inputs".into()),
            volumes: [(ObjectName::new("books").unwrap(), volume_at("/vol/books", &["team"]))].into(),
        };
        let locate_text = |path: &str| directories.locate(&job, path).map(|path| path.display().to_string());
        let error = directories.check_mounts(&job).unwrap_err().to_string();
        assert!(error.contains("offers no volume nowhere to namespace team"), "{error}");
        assert_eq!(locate_text("text/*.txt").unwrap(), "/srv/inputs/text/*.txt");
        assert_eq!(locate_text("/data/x.txt").unwrap(), "/vol/books/x.txt");
        assert_eq!(locate_text("/data/deep/x").unwrap(), "/vol/books/b/c/x");
        let written = "/srv/data/model_dirs/team/other/model_dir/checkpoint_3";
        assert_eq!(locate_text(written).unwrap(), written, "the same text as in its status");
        job.spec.volumes.push(JobVolume {
            name: "t".to_owned(),
            persistent_volume_claim: None,
            config_map: Some(millrace_crds::ConfigMapSource { name: "../../../etc".to_owned() }),
        });
        job.spec.mount_dirs.push(mount("/t", "t", None));
        job.spec.volumes.push(JobVolume {
            name: "t2".to_owned(),
            persistent_volume_claim: None,
            config_map: Some(millrace_crds::ConfigMapSource { name: "texts".to_owned() }),
        });
        job.spec.mount_dirs.push(mount("/t2", "t2", None));
        let locate_text = |path: &str| directories.locate(&job, path).map(|path| path.display().to_string());
        for bad in [
            "/srv/data/model_dirs/else/x",
            "/srv/data/millrace.db",
            "/t/passwd",
            "/etc/passwd",
            "/data/../etc",
            "../x",
            "/database",
            "/n/x",
        ] {
            assert!(locate_text(bad).is_err(), "{bad}");
        }
        let offering_parent = ServerDirectories { inputs: Some("/srv".into()), ..directories.clone() };
        let locate_text = |path: &str| offering_parent.locate(&job, path).map(|path| path.display().to_string());
        assert_eq!(
            locate_text("data/model_dirs/team/other/model_dir").unwrap(),
            "/srv/data/model_dirs/team/other/model_dir"
        );
        assert_eq!(locate_text("inputs/*.txt").unwrap(), "/srv/inputs/*.txt");
        assert_eq!(locate_text("data.txt").unwrap(), "/srv/data.txt");
        for bad in
            ["data/model_dirs/teams/x", "data/millrace.db", "d*/model_dirs/else/x", "**/*.jsonl", ".", "*", "[d]ata/x"]
        {
            assert!(locate_text(bad).is_err(), "{bad}");
        }
        let mut bad_mounts = job.clone();
        bad_mounts.spec.mount_dirs = vec![mount("", "d", None), mount("/sub", "d", Some("x\0y"))];
        for (path, message) in [("/etc/passwd", "none of spec.mountDirs"), ("/sub/x", "leads out of its volume")] {
            let error = directories.locate(&bad_mounts, path).unwrap_err().to_string();
            assert!(error.contains(message), "{path}: {error}");
        }
        let model_dir = |path: &str| match directories.model_dir(&job, path) {
            Ok(dir) => Ok(dir.path.display().to_string()),
            Err(error) => Err(error_chain(&*error)),
        };
        assert_eq!(model_dir("./runs/../m").unwrap(), "/srv/data/model_dirs/team/job/runs/m");
        assert_eq!(model_dir("/data/m").unwrap(), "/vol/books/m");
        assert!(model_dir("/root").is_err());
        let rejected = "runconfig.model_dir /t2/x: a ConfigMap is read-only: mount a volume there";
        assert_eq!(model_dir("/t2/x").unwrap_err(), rejected);
    }

    fn volume_at(dir: &str, namespaces: &[&str]) -> ServerVolume {
        let namespaces = namespaces.iter().map(|name| LabelName::new(*name).unwrap()).collect();
        ServerVolume { dir: dir.into(), read_only: false, namespaces: Some(namespaces) }
    }

    #[test]
    fn namespace_uses_its_volumes_only() {
        let mut job = TrainJob::new("job", TrainJobSpec::new(1, StoredParams::default()));
        job.metadata.namespace = Some("team".to_owned());
        let names = ["mine", "shared", "reading", "theirs"];
        job.spec.volumes = names
            .map(|name| JobVolume {
                name: name.to_owned(),
                persistent_volume_claim: Some(PersistentVolumeClaimSource { claim_name: name.to_owned() }),
                config_map: None,
            })
            .into();
        let mount = |path: &str, volume: &str, sub: Option<&str>| MountedDir {
            path: path.to_owned(),
            volume: volume.to_owned(),
            sub_path: sub.map(str::to_owned),
        };
        job.spec.mount_dirs = names.map(|name| mount(&format!("/{name}"), name, None)).into();
        job.spec.mount_dirs.push(mount("/out", "shared", Some("team/runs")));
        let volume = |name: &str, volume: ServerVolume| (ObjectName::new(name).unwrap(), volume);
        let directories = ServerDirectories {
            data: "/srv/data".into(),
            inputs: None,
            volumes: [
                volume("mine", volume_at("/vol/mine", &["team"])),
                volume("shared", volume_at("/vol/shared", &["team", "others"])),
                volume("reading", ServerVolume { read_only: true, ..volume_at("/vol/reading", &["team"]) }),
                volume("theirs", volume_at("/vol/theirs", &["others"])),
            ]
            .into(),
        };
        let model_dir = |path: &str| match directories.model_dir(&job, path) {
            Ok(dir) => Ok(dir.path.display().to_string()),
            Err(error) => Err(error_chain(&*error)),
        };
        assert_eq!(model_dir("/mine/run").unwrap(), "/vol/mine/run");
        assert_eq!(model_dir("/shared/team/run").unwrap(), "/vol/shared/team/run");
        assert_eq!(model_dir("/out/1").unwrap(), "/vol/shared/team/runs/1");
        for (path, message) in [
            ("/shared", "shared with other namespaces"),
            ("/shared/others/run", "shared with other namespaces"),
            ("/reading/run", "read-only"),
            ("/theirs/run", "offers no volume theirs to namespace team (mine, reading, shared)"),
            ("/shared/team/../others", "`..`"),
        ] {
            let error = model_dir(path).unwrap_err();
            assert!(error.contains(message), "{path}: {error}");
        }
        assert_eq!(directories.locate(&job, "/reading/x").unwrap(), Path::new("/vol/reading/x"));
        assert!(directories.locate(&job, "/theirs/x").is_err());
        assert!(directories.locate(&job, "x.txt").unwrap_err().to_string().contains("--input-dir DIR"));
        assert!(directories.locate(&job, "/mine/x\0").unwrap_err().to_string().contains("NUL"));
        assert!(
            directories.is_readable(&job, Path::new("/vol/mine/run"))
                && !directories.is_readable(&job, Path::new("/vol/theirs/run"))
        );
        assert!(!directories.is_readable(&job, Path::new("/srv/data/model_dirs/others/x")));
    }
}
