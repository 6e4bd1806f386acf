use millrace_store::{JobContent, NewEvent, NewJob};

use super::*;

fn data() -> tempfile::TempDir {
    let home = tempfile::TempDir::new().unwrap();
    let data = home.path().join("data");
    for (name, content) in [
        ("snapshot", "the database"),
        (".machine", "uid\n"),
        ("texts/team/texts-1/0-0000-a.txt", "text"),
        ("tls/key.pem", "key"),
        ("model_dirs/team/job/checkpoint_1/weights", "large"),
        ("exports/x/y", "again"),
    ] {
        fs::create_dir_all(data.join(name).parent().unwrap()).unwrap();
        fs::write(data.join(name), content).unwrap();
    }
    home
}

fn packed(data: &Path) -> Vec<u8> {
    let mut archive = Vec::new();
    pack(&mut archive, data, &data.join("snapshot")).unwrap();
    archive
}

#[test]
fn backup_round_trips() {
    let home = data();
    let archive = packed(&home.path().join("data"));
    let into = home.path().join("new");
    let manifest = unpack(archive.as_slice(), &into).unwrap();
    assert_eq!(manifest.data, home.path().join("data"));
    let read = |name: &str| fs::read_to_string(into.join(name)).unwrap();
    assert_eq!([read("millrace.db"), read(".machine"), read("tls/key.pem")], ["the database", "uid\n", "key"]);
    assert_eq!(read("texts/team/texts-1/0-0000-a.txt"), "text");
    for other in ["model_dirs", "exports", RESTORE_STAGING_DIR, MANIFEST_NAME] {
        assert!(!into.join(other).exists(), "{other}");
    }
    let twice = unpack(archive.as_slice(), &into).unwrap_err();
    assert!(format!("{twice:#}").contains("not empty"), "{twice:#}");
}

/// Returns the error of an invalid archive, after checks that nothing is left of it in a new or an empty directory.
fn refusal(home: &Path, archive: &[u8]) -> String {
    let new = home.join("new");
    let error = format!("{:#}", unpack(archive, &new.join("deep")).unwrap_err());
    assert!(!new.exists(), "{error}");
    let empty = home.join("empty");
    private_directory(&empty).unwrap();
    assert_eq!(format!("{:#}", unpack(archive, &empty).unwrap_err()), error);
    assert_eq!(fs::read_dir(&empty).unwrap().count(), 0, "{error}");
    error
}

#[test]
fn incomplete_archive_leaves_nothing() {
    let home = data();
    let (home, archive) = (home.path(), packed(&home.path().join("data")));
    for cut in [0, 1, 511, 512, archive.len() / 4, archive.len() / 2, archive.len() - 2048] {
        let error = refusal(home, &archive[..cut]);
        assert!(error.contains("truncated"), "{cut}: {error}");
    }
    let mut changed = archive.clone();
    let at = changed.windows(12).position(|bytes| bytes == b"the database").unwrap();
    changed[at] = b'T';
    assert!(refusal(home, &changed).contains("millrace.db is damaged"));
    refusal(home, b"no archive at all");
    let other = refusal(home, &[0xa5; 4096]);
    assert_eq!(other, "the file is not a backup of millrace-api, or truncated");
    for name in ["../evil", "/etc/cron.d/evil", "model_dirs/x", "millrace.db/x", "texts", ".ssh/authorized_keys"] {
        let mut out = tar::Builder::new(Vec::new());
        let mut header = Header::new_gnu();
        // The header is written byte by byte because the library rejects such names.
        header.as_gnu_mut().unwrap().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(EntryType::Regular);
        header.set_mode(0o600);
        header.set_size(4);
        header.set_cksum();
        out.append(&header, &b"evil"[..]).unwrap();
        refusal(home, &out.into_inner().unwrap());
        assert!(!home.join("evil").exists());
    }
}

#[test]
fn non_empty_directory_is_unchanged() {
    let home = data();
    let (archive, used) = (packed(&home.path().join("data")), home.path().join("used"));
    fs::create_dir(&used).unwrap();
    fs::write(used.join("millrace.db"), "in use").unwrap();
    let error = format!("{:#}", unpack(archive.as_slice(), &used).unwrap_err());
    assert!(error.contains("not empty"), "{error}");
    assert_eq!(fs::read_to_string(used.join("millrace.db")).unwrap(), "in use");
    assert_eq!(fs::read_dir(&used).unwrap().count(), 1);
}

#[tokio::test]
async fn backup_of_a_running_server_is_consistent() {
    let home = tempfile::TempDir::new().unwrap();
    let (data, file, into) = (home.path().join("data"), home.path().join("backup"), home.path().join("new"));
    let database = DatabaseArgs { data, database: None };
    let store = database.open().await.unwrap();
    let event =
        |number| NewEvent { at_ms: number, warning: false, reason: "Written".to_owned(), message: "x".repeat(10_000) };
    store.create_job(&job()).await.unwrap();
    let mut event_count = 0;
    let mut writes = async || {
        store.add_event(UID, &event(event_count)).await.unwrap();
        event_count += 1;
    };
    for _ in 0..50 {
        writes().await;
    }
    let backing_up = backup(BackupArgs { file: file.clone(), database: database.clone() });
    tokio::pin!(backing_up);
    loop {
        tokio::select! {
            done = &mut backing_up => break done.unwrap(),
            () = writes() => {}
        }
    }
    restore(&RestoreArgs { file, data: into.clone() }).unwrap();
    let restored = DatabaseArgs { data: into, database: None }.open().await.unwrap();
    let events = restored.events(UID, 0, 10_000).await.unwrap();
    assert!((50..=event_count).contains(&(events.len() as i64)), "{} of {event_count}", events.len());
    assert!(events.iter().zip(0..).all(|(event, number)| event.event.at_ms == number), "none is missing in between");
    assert_eq!(restored.job(UID).await.unwrap().unwrap().name, "job");
}

const UID: &str = "0190-ff";

fn job() -> NewJob {
    NewJob {
        uid: UID.to_owned(),
        namespace: "team".to_owned(),
        name: "job".to_owned(),
        created_ms: 1,
        submitted_by: None,
        key: None,
        content: JobContent { document: "{}".to_owned(), state: None, finished_ms: None },
    }
}
