//! Where the paths of a job lie on this machine.
//!
//! What params name is what a pod would see: an absolute path lies in one of the job's `mountDirs`, a relative model_dir below
//! the server's data, other relative paths below the directory that the server offers. Nothing else of the machine is
//! reached, so that whoever may submit a job may not read every file of the server's user.

use std::collections::BTreeMap;
use std::path::{Component, Path, PathBuf};

use kube::ResourceExt;
use millrace_control::{ModelDir, Site};
use millrace_crds::{JobVolume, TrainJob};
use millrace_params::{LabelName, ObjectName};

/// The server's directories.
#[derive(Clone, Debug)]
pub struct Directories {
    /// The server's own: model_dirs, small texts, last words.
    pub data: PathBuf,
    /// What relative paths of inputs are relative to.
    pub inputs: PathBuf,
    /// What jobs can mount, by the name of a claim.
    pub volumes: BTreeMap<String, PathBuf>,
}

impl Directories {
    /// Where the small texts of a ConfigMap lie.
    pub fn texts(&self, namespace: &LabelName, config_map: &ObjectName) -> PathBuf {
        self.texts_of(namespace).join(config_map)
    }

    fn texts_of(&self, namespace: &LabelName) -> PathBuf {
        self.data.join("texts").join(namespace)
    }

    /// Removes the small texts that travelled with a job, which is gone, unless one of `others` names them too.
    pub async fn remove_texts(&self, job: &TrainJob, others: &[TrainJob]) {
        let Ok(namespace) = namespace_of(job) else { return };
        let maps = |job: &TrainJob| -> Vec<ObjectName> {
            let maps = job.spec.volumes.iter().filter_map(|volume| volume.config_map.as_ref());
            maps.filter_map(|map| ObjectName::new(&*map.name).ok()).collect()
        };
        let others: Vec<ObjectName> =
            others.iter().filter(|other| other.namespace() == job.namespace()).flat_map(maps).collect();
        for map in maps(job).iter().filter(|map| !others.contains(map)) {
            let dir = self.texts(&namespace, map);
            if let Err(error) = tokio::fs::remove_dir_all(&dir).await
                && error.kind() != std::io::ErrorKind::NotFound
            {
                log::warn!("the texts of a job that is gone stay in {}: {error}", dir.display());
            }
        }
    }

    /// Where the coordinator of an attempt leaves its last report.
    pub fn last_report(&self, uid: &str, attempt: u32) -> PathBuf {
        self.data.join("last").join(format!("{uid}-{attempt}.json"))
    }

    /// Removes what the coordinators of a job, which is gone, have left behind.
    pub async fn remove_reports(&self, job: &TrainJob) {
        let attempts = job.status.as_ref().and_then(|status| status.attempt).unwrap_or(0);
        for attempt in 1..=attempts {
            // Not every attempt had a coordinator that came so far.
            let _ = tokio::fs::remove_file(self.last_report(&job.uid().unwrap_or_default(), attempt)).await;
        }
    }

    /// Where a path of `job`'s params lies.
    ///
    /// # Errors
    /// It lies nowhere: a sentence for the user.
    pub fn place(&self, job: &TrainJob, written: &str) -> Result<PathBuf, String> {
        let path = Path::new(written);
        if path.components().any(|part| part == Component::ParentDir) {
            return Err(format!("the path {written} leaves its directory by `..`: write it without"));
        }
        if path.is_relative() {
            return self.not_of_others(job, self.inputs.join(path));
        }
        if path.starts_with(self.model_dirs(job)?) {
            // As a job's status tells where its checkpoints are.
            return Ok(path.to_owned());
        }
        let Some(mount) = job.spec.mount_holding(path) else {
            return Err(format!(
                "the path {written} lies in none of spec.mountDirs: mount a volume there, or give a path relative to {}",
                self.inputs.display()
            ));
        };
        let volume = job.spec.volumes.iter().find(|volume| volume.name == mount.volume);
        let dir =
            volume.map_or_else(|| Err(format!("there is no volume {}", mount.volume)), |it| self.volume(job, it))?;
        let rest = path.strip_prefix(&mount.path).unwrap_or(path);
        let dir = mount.sub_path.as_ref().map_or_else(|| dir.clone(), |sub| dir.join(sub));
        self.not_of_others(job, if rest.as_os_str().is_empty() { dir } else { dir.join(rest) })
    }

    /// The path, unless it leads to what the server keeps for others: its data may lie below what it offers. A job may read
    /// what jobs of its own namespace have written.
    fn not_of_others(&self, job: &TrainJob, path: PathBuf) -> Result<PathBuf, String> {
        if path.starts_with(self.model_dirs(job)?) || path.starts_with(self.texts_of(&namespace_of(job)?)) {
            return Ok(path);
        }
        let mut asked = path.components();
        for own in self.data.components() {
            // Whoever names a folder above them means what is in it, too.
            let Some(part) = asked.next() else { break };
            let (part, own) = (part.as_os_str().to_string_lossy(), own.as_os_str().to_string_lossy());
            if part.contains("**") {
                break;
            }
            if part != own && !glob::Pattern::new(&part).is_ok_and(|pattern| pattern.matches(&own)) {
                return Ok(path);
            }
        }
        let own = self.data.display();
        Err(format!("the path {} leads to what the server keeps for others in {own}: name another one", path.display()))
    }

    /// Where jobs of the same namespace keep what they write.
    fn model_dirs(&self, job: &TrainJob) -> Result<PathBuf, String> {
        Ok(self.data.join("model_dirs").join(namespace_of(job)?))
    }

    fn volume(&self, job: &TrainJob, volume: &JobVolume) -> Result<PathBuf, String> {
        if let Some(map) = &volume.config_map {
            let name = ObjectName::new(&*map.name).map_err(|error| format!("spec.volumes: {error}"))?;
            return Ok(self.texts(&namespace_of(job)?, &name));
        }
        let claim = volume.persistent_volume_claim.as_ref().map(|claim| claim.claim_name.as_str()).unwrap_or_default();
        self.volumes.get(claim).cloned().ok_or_else(|| {
            let known: Vec<&str> = self.volumes.keys().map(String::as_str).collect();
            let known = if known.is_empty() { "none".to_owned() } else { known.join(", ") };
            format!("the server offers no volume {claim} ({known}): start it with --volume {claim}=DIR")
        })
    }
}

/// The namespace of a job, as a part of paths.
fn namespace_of(job: &TrainJob) -> Result<LabelName, String> {
    LabelName::new(job.namespace().unwrap_or_default()).map_err(|error| format!("metadata.namespace: {error}"))
}

impl Site for Directories {
    fn image(&self) -> Option<String> {
        None
    }

    fn model_dir(&self, job: &TrainJob, written: &str) -> Result<ModelDir, String> {
        let path = Path::new(written);
        if path.is_absolute() {
            let path = self.place(job, written).map_err(|error| format!("runconfig.model_dir: {error}"))?;
            return Ok(ModelDir { path, claim: None });
        }
        // By the job's name, so that the next job of the name goes on from there, as with a claim on a cluster.
        let name = ObjectName::new(job.name_any()).map_err(|error| format!("metadata.name: {error}"))?;
        let own = self.model_dirs(job)?.join(name);
        let inside = path.components().filter(|part| matches!(part, Component::Normal(_)));
        Ok(ModelDir { path: inside.fold(own, |path, part| path.join(part)), claim: None })
    }

    fn readable(&self, job: &TrainJob, written: &str) -> Result<(), String> {
        self.place(job, written).map(drop)
    }
}

#[cfg(test)]
mod tests {
    use millrace_crds::{ClaimSource, MountDir, StoredParams, TrainJobSpec};

    use super::*;

    #[test]
    fn nothing_of_the_machine_is_reached_but_what_is_offered() {
        let mut job = TrainJob::new("job", TrainJobSpec::new(1, StoredParams::default()));
        job.metadata.namespace = Some("team".to_owned());
        let claim = |name: &str| Some(ClaimSource { claim_name: name.to_owned() });
        let volume = |name: &str, of: &str| JobVolume {
            name: name.to_owned(),
            persistent_volume_claim: claim(of),
            config_map: None,
        };
        let mount = |path: &str, of: &str, sub: Option<&str>| MountDir {
            path: path.to_owned(),
            volume: of.to_owned(),
            sub_path: sub.map(str::to_owned),
        };
        job.spec.volumes = vec![volume("d", "books"), volume("n", "nowhere")];
        job.spec.mount_dirs =
            vec![mount("/data", "d", None), mount("/data/deep", "d", Some("b/c")), mount("/n", "n", None)];
        let site = Directories {
            data: "/srv/data".into(),
            inputs: "/srv/inputs".into(),
            volumes: [("books".to_owned(), PathBuf::from("/vol/books"))].into(),
        };
        let place = |path: &str| site.place(&job, path).map(|path| path.display().to_string());
        assert_eq!(place("text/*.txt").unwrap(), "/srv/inputs/text/*.txt");
        assert_eq!(place("/data/x.txt").unwrap(), "/vol/books/x.txt");
        assert_eq!(place("/data/deep/x").unwrap(), "/vol/books/b/c/x");
        let written = "/srv/data/model_dirs/team/other/model_dir/checkpoint_3";
        assert_eq!(place(written).unwrap(), written, "as its status tells it");
        job.spec.volumes.push(JobVolume {
            name: "t".to_owned(),
            persistent_volume_claim: None,
            config_map: Some(millrace_crds::ConfigSource { name: "../../../etc".to_owned() }),
        });
        job.spec.mount_dirs.push(mount("/t", "t", None));
        let place = |path: &str| site.place(&job, path).map(|path| path.display().to_string());
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
            assert!(place(bad).is_err(), "{bad}");
        }
        let beside = Directories { inputs: "/srv".into(), ..site.clone() };
        let place = |path: &str| beside.place(&job, path).map(|path| path.display().to_string());
        assert_eq!(place("data/model_dirs/team/other/model_dir").unwrap(), "/srv/data/model_dirs/team/other/model_dir");
        assert_eq!(place("inputs/*.txt").unwrap(), "/srv/inputs/*.txt");
        assert_eq!(place("data.txt").unwrap(), "/srv/data.txt");
        for bad in
            ["data/model_dirs/teams/x", "data/millrace.db", "d*/model_dirs/else/x", "**/*.jsonl", ".", "*", "[d]ata/x"]
        {
            assert!(place(bad).is_err(), "{bad}");
        }
        let model_dir = |path: &str| site.model_dir(&job, path).map(|dir| dir.path.display().to_string());
        assert_eq!(model_dir("./runs/../m").unwrap(), "/srv/data/model_dirs/team/job/runs/m");
        assert_eq!(model_dir("/data/m").unwrap(), "/vol/books/m");
        assert!(model_dir("/root").is_err());
    }
}
