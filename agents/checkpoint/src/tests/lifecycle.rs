//! Tests the life cycle from staging to deletion: publication, retention, cleaning up.

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::testing::{adam_moments, facts, lock, plan, section_values, write, write_of_kind};
use crate::{
    Checkpoint, Error, LineagePoint, LockError, LockRequest, ModelDirLock, Moments, RangeWriter, ResumeHistory,
    Section, Staging, VerificationLevel, WriterEpoch, begin_lineage, clean_up, list, newest_complete, retain,
};

const EPOCH: WriterEpoch = WriterEpoch { attempt: 4, number: 1 };

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut all: Vec<String> = entries.filter(|name| name.starts_with("checkpoint_")).collect();
    all.sort();
    all
}

fn steps(dir: &Path) -> Vec<u64> {
    list(dir).unwrap().complete.iter().map(|info| info.step).collect()
}

fn copy(from: &Path, to: PathBuf) {
    fs::create_dir_all(&to).unwrap();
    for entry in fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.path().is_dir() {
            copy(&entry.path(), target);
        } else {
            fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[test]
fn only_complete_checkpoints_are_published() {
    let (dir, plan, moments) = (tempfile::tempdir().unwrap(), plan(), Moments::none());
    let lock = lock(dir.path());
    let mut staging = Staging::create(&lock, &plan, 9, EPOCH, &moments).unwrap();
    let existing = names(dir.path());
    assert!(matches!(&existing[..], [only] if only.starts_with("checkpoint_9.partial-4.1.")), "{existing:?}");
    assert!(matches!(Checkpoint::open(staging.path()), Err(Error::NotACheckpoint { .. })));
    let mut writer = RangeWriter::open(staging.path(), &plan, &moments).unwrap();
    assert!(matches!(writer.write_chunk(0, Section::Parameters, &[1.0]), Err(Error::Argument(_))));
    assert!(matches!(writer.write_chunk(0, Section::Moment(0), &[1.0]), Err(Error::Argument(_))));
    let values = vec![1.0; plan.chunks[0].elements];
    let digest = writer.write_chunk(0, Section::Parameters, &values).unwrap();
    staging.record_digest(Section::Parameters, 0, digest).unwrap();
    assert!(staging.record_digest(Section::Parameters, 0, crate::Digest([0; 32])).is_err());
    assert_eq!(staging.first_missing(), Some((Section::Parameters, 1)));
    let error = staging.publish(facts(&plan)).unwrap_err();
    assert!(error.to_string().contains("no shard has written the parameters of chunk 1"), "{error}");
    assert!(names(dir.path()).is_empty());
    // The shard's late write goes to files that no longer exist.
    writer.write_chunk(0, Section::Parameters, &values).unwrap();
    assert!(writer.finish().is_err());
}

#[test]
fn fenced_run_publishes_nothing() {
    let (dir, plan, moments) = (tempfile::tempdir().unwrap(), plan(), Moments::none());
    let take = |attempt| Arc::new(ModelDirLock::acquire(dir.path(), &LockRequest::job("a", attempt)).unwrap());
    let old = take(1);
    let mut staging = Staging::create(&old, &plan, 9, EPOCH, &moments).unwrap();
    let mut writer = RangeWriter::open(staging.path(), &plan, &moments).unwrap();
    for chunk in 0..plan.chunks.len() {
        let values = vec![0.5; plan.chunks[chunk].elements];
        staging
            .record_digest(Section::Parameters, chunk, writer.write_chunk(chunk, Section::Parameters, &values).unwrap())
            .unwrap();
    }
    writer.finish().unwrap();
    let new = take(2);
    assert!(matches!(staging.publish(facts(&plan)), Err(Error::Lock(LockError::Lost { .. }))));
    assert!(matches!(Staging::create(&old, &plan, 9, EPOCH, &moments), Err(Error::Lock(LockError::Lost { .. }))));
    assert!(names(dir.path()).is_empty());
    write(&new, &plan, 9, &moments);
    assert_eq!(names(dir.path()), ["checkpoint_9"]);
}

#[test]
fn newest_complete_checkpoint_is_found_and_old_ones_deleted() {
    let (dir, plan) = (tempfile::tempdir().unwrap(), plan());
    let lock = lock(dir.path());
    assert!(newest_complete(dir.path(), VerificationLevel::Full).unwrap().0.is_none());
    for step in [2, 10, 9, 100] {
        write(&lock, &plan, step, &Moments::none());
    }
    fs::create_dir(dir.path().join("checkpoint_0100")).unwrap();
    fs::create_dir(dir.path().join("checkpoint_200")).unwrap();
    assert_eq!(steps(dir.path()), [2, 9, 10, 100]);
    // One bit of the data: only a full verification detects it.
    let file = dir.path().join("checkpoint_100/parameters/00001-h.1.safetensors");
    let mut bytes = fs::read(&file).unwrap();
    *bytes.last_mut().unwrap() ^= 1;
    fs::write(&file, bytes).unwrap();
    let newest = |check| {
        let (found, skipped) = newest_complete(dir.path(), check).unwrap();
        (found.unwrap().step(), skipped.iter().map(|broken| broken.step).collect::<Vec<_>>())
    };
    assert_eq!(newest(VerificationLevel::Quick), (100, vec![200]));
    assert_eq!(newest(VerificationLevel::Full), (10, vec![200, 100]));
    let (_, skipped) = newest_complete(dir.path(), VerificationLevel::Full).unwrap();
    assert!(skipped[1].reason.contains("00001-h.1.safetensors") && skipped[0].reason.contains("no manifest.json"));
    assert!(retain(&lock, 0).unwrap().is_empty());
    assert_eq!(retain(&lock, 2).unwrap(), [dir.path().join("checkpoint_2"), dir.path().join("checkpoint_9")]);
    assert_eq!(names(dir.path()), ["checkpoint_0100", "checkpoint_10", "checkpoint_100", "checkpoint_200"]);
}

#[test]
fn recovery_checkpoint_is_kept_until_newer_exists() {
    for (max_checkpoints, kept) in [(0, vec![4, 8]), (1, vec![8])] {
        let (dir, plan) = (tempfile::tempdir().unwrap(), plan());
        let lock = lock(dir.path());
        let write = |step, recovery| {
            write_of_kind(&lock, &plan, step, &Moments::none(), recovery);
            retain(&lock, max_checkpoints).unwrap();
            steps(dir.path())
        };
        assert_eq!(write(4, false), [4]);
        assert_eq!(write(5, true), [4, 5], "it is not counted");
        assert_eq!(write(6, true), [4, 6]);
        assert_eq!(write(8, false), kept);
    }
}

/// Four attempts: the second resumes from step 4 and dies at once, the third tries again, the fourth returns to the
/// abandoned lineage.
#[test]
fn next_run_resumes_from_the_branch_of_the_last_run() {
    let (dir, plan) = (tempfile::tempdir().unwrap(), plan());
    let next = |from, steps: &[u64]| {
        let lock = lock(dir.path());
        let before = begin_lineage(&lock, from).unwrap();
        steps.iter().for_each(|&step| drop(write(&lock, &plan, step, &Moments::none())));
        (before.shared, before.made_by)
    };
    let newest = || {
        let (found, passed) = newest_complete(dir.path(), VerificationLevel::Full).unwrap();
        (found.map(|found| found.lineage_point()), passed.iter().map(|passed| passed.step).collect::<Vec<_>>())
    };
    let point = |attempt, step| Some(LineagePoint { attempt, step });
    assert_eq!(next(None, &[4, 8, 10]), (0, vec![]));
    assert_eq!(newest(), (point(1, 10), vec![]));
    assert_eq!(next(point(1, 4), &[]), (4, vec![]));
    assert_eq!(newest(), (point(1, 4), vec![10, 8]));
    assert_eq!(next(point(1, 4), &[6, 8]), (4, vec![]));
    assert_eq!(newest(), (point(3, 8), vec![10]));
    // The end of a lineage is found even if its checkpoints are damaged.
    fs::remove_file(dir.path().join("checkpoint_8/manifest.json")).unwrap();
    assert_eq!(newest(), (point(3, 6), vec![10, 8]));
    assert_eq!(next(point(1, 10), &[12]), (4, vec![(1, 5..=10)]));
    assert_eq!(newest(), (point(4, 12), vec![]));
    // Checkpoints of abandoned lineages are deleted first.
    let lock = lock(dir.path());
    assert_eq!(retain(&lock, 3).unwrap(), [dir.path().join("checkpoint_6")]);
    assert_eq!(steps(dir.path()), [4, 10, 12]);
    // A new start: nothing in common with existing checkpoints.
    assert_eq!(begin_lineage(&lock, None).unwrap(), ResumeHistory::default());
    assert_eq!(newest().0, None);
    // Without the record, the newest checkpoints are those of the last attempt.
    fs::remove_file(dir.path().join("attempts.json")).unwrap();
    assert_eq!(newest(), (point(4, 12), vec![]));
}

#[test]
fn unreadable_lineage_stops_the_run_with_a_hint() {
    let (dir, plan) = (tempfile::tempdir().unwrap(), plan());
    let lock = lock(dir.path());
    [4, 8].iter().for_each(|&step| drop(write(&lock, &plan, step, &Moments::none())));
    let notes = dir.path().join("attempts.json");
    for damaged in ["", "{", "[]", r#"{"1":{"attempt":-1,"step":0}}"#] {
        fs::write(&notes, damaged).unwrap();
        let errors = [
            newest_complete(dir.path(), VerificationLevel::Quick).map(drop).unwrap_err(),
            begin_lineage(&lock, None).map(drop).unwrap_err(),
            retain(&lock, 1).map(drop).unwrap_err(),
        ];
        for error in errors {
            assert!(error.is_bad_input() && error.to_string().contains("attempts.json"), "{damaged:?}: {error}");
            assert!(error.hint().unwrap().contains("remove it"), "{damaged:?}");
        }
        assert_eq!(fs::read_to_string(&notes).unwrap(), damaged, "what is there is kept");
    }
    assert_eq!(steps(dir.path()), [4, 8], "and no checkpoint is deleted");
}

#[test]
fn rewritten_step_replaces_the_old_and_leftovers_are_removed() {
    let (dir, plan) = (tempfile::tempdir().unwrap(), plan());
    let path = |name: &str| dir.path().join(name);
    let lock = lock(dir.path());
    let first = write(&lock, &plan, 5, &Moments::none());
    write(&lock, &plan, 5, &adam_moments());
    assert_eq!(names(dir.path()), ["checkpoint_5"]);
    assert_eq!(Checkpoint::open(&first).unwrap().moments(), &adam_moments());
    // Leftovers of runs that died while writing, replacing and deleting.
    fs::create_dir_all(path("checkpoint_6.partial-1.1/parameters")).unwrap();
    copy(&first, path("checkpoint_4.replaced-1.1"));
    copy(&first, path("checkpoint_5.replaced-1.1"));
    copy(&first, path("checkpoint_3.deleted"));
    assert_eq!(list(dir.path()).unwrap().partial, [path("checkpoint_6.partial-1.1")]);
    assert_eq!(clean_up(&lock).unwrap().len(), 2);
    assert_eq!(names(dir.path()), ["checkpoint_4", "checkpoint_5"]);
}

/// What a shard has written through open files is lost if storage with other files was mounted in their place.
#[test]
fn files_replaced_while_being_written_are_rejected() {
    let (dir, plan, moments) = (tempfile::tempdir().unwrap(), plan(), Moments::none());
    let lock = lock(dir.path());
    let replace: [fn(&Path); 3] = [
        |staging| fs::remove_dir_all(staging).unwrap(),
        |staging| fs::rename(staging, staging.with_extension("moved")).unwrap(),
        |staging| {
            let moved = staging.with_extension("moved2");
            fs::rename(staging, &moved).unwrap();
            copy(&moved, staging.to_owned());
        },
    ];
    for replace in replace {
        let staging = Staging::create(&lock, &plan, 3, EPOCH, &moments).unwrap();
        let mut writer = RangeWriter::open(staging.path(), &plan, &moments).unwrap();
        let values = section_values(&plan, &moments, 0, Section::Parameters);
        writer.write_chunk(0, Section::Parameters, &values).unwrap();
        replace(staging.path());
        let error = writer.finish().unwrap_err();
        assert!(matches!(error, Error::Io { .. }) && !error.is_bad_input(), "{error}");
    }
}

#[test]
fn full_disk_is_named() {
    let error = crate::files::write_synced(Path::new("/dev/full"), b"x").unwrap_err();
    assert!(matches!(error, Error::NoSpace { .. }) && !error.is_bad_input());
    assert!(error.to_string().starts_with("no space is left for /dev/full; "), "{error}");
}

/// The model_dir of a run of release 0.1.0.
fn model_dir_of_the_first_release() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/0.1.0/model_dir")
}

#[test]
fn v0_1_0_checkpoint_is_readable_and_its_model_dir_usable() {
    let dir = tempfile::tempdir().unwrap();
    copy(&model_dir_of_the_first_release(), dir.path().to_owned());
    let checkpoint = Checkpoint::open_verified(dir.path().join("checkpoint_4")).unwrap();
    let info = checkpoint.info();
    assert_eq!((info.step, info.format, info.optimizer.as_str()), (4, 1, "adamw"));
    let digest = "895ef4dcce8c537f0bc639c69ff60e71592af9c89b2b83f3786e269f086bced8";
    assert_eq!(info.parameters_blake3.to_string(), digest);
    assert_eq!(steps(dir.path()), [4]);
    let (newest, passed) = newest_complete(dir.path(), VerificationLevel::Full).unwrap();
    assert_eq!((newest.unwrap().step(), passed.len()), (4, 0));

    let request = LockRequest::job("04ee1378-51fb-49ca-aa63-bea509db754a", 2);
    let lock = ModelDirLock::acquire(dir.path(), &request).unwrap();
    assert_eq!(
        (lock.attempt(), lock.previous().map(|owner| owner.attempt)),
        (2, Some(1)),
        "its attempts are counted on"
    );
    begin_lineage(&lock, Some(LineagePoint { attempt: 1, step: 4 })).unwrap();
    assert_eq!(newest_complete(dir.path(), VerificationLevel::Quick).unwrap().0.unwrap().step(), 4);
}
