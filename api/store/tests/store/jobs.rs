//! Tests of jobs: names, keys, versions and lists.

use millrace_store::{
    ChangedPart, CreateResult, Error, IdempotencyKey, JobContent, JobFilter, JobRecord, NamespaceVersion, NewJob,
    PageCursor, Store,
};

use crate::scratch::Scratch;

behaviours![
    job_round_trips,
    idempotency_key_is_valid_for_a_day,
    name_is_unique_among_live_jobs,
    write_over_other_version_changes_nothing,
    upsert_never_revives_a_deleted_job,
    pages_hold_while_jobs_are_made,
    filters_leave_out_the_rest,
    history_of_an_earlier_namespace_of_the_name_is_left_out,
    deleting_a_job_deletes_its_records,
    retention_deletes_finished_jobs,
    concurrent_creates_make_one_job,
    only_one_of_many_writers_wins_a_version,
    every_write_notifies_listeners,
];

const HOUR: i64 = 3_600_000;

/// Returns a job with name and UID `uid`, created at `created_ms`.
pub fn job(uid: &str, created_ms: i64) -> NewJob {
    NewJob {
        uid: uid.to_owned(),
        namespace: "team-a".to_owned(),
        name: uid.to_owned(),
        created_ms,
        submitted_by: Some("ada".to_owned()),
        key: None,
        content: content("{}", None),
    }
}

pub fn content(document: &str, state: Option<&str>) -> JobContent {
    JobContent { document: document.to_owned(), state: state.map(str::to_owned), finished_ms: None }
}

pub fn key(key: &str, body: &str) -> Option<IdempotencyKey> {
    Some(IdempotencyKey { key: key.to_owned(), body_hash: body.to_owned() })
}

/// Creates a job that must be new.
pub async fn make(store: &Store, job: &NewJob) -> JobRecord {
    match store.create_job(job).await.unwrap() {
        CreateResult::New(made) => made,
        other => panic!("{other:?}"),
    }
}

async fn job_round_trips(Scratch { store, .. }: &Scratch) {
    let mut new = job("0190-ff", 7);
    new.key = key("k", "h");
    new.content = content(r#"{"spec":{"name":"Müller's \u0000 job"}}"#, Some("Queued"));
    let made = make(store, &new).await;
    assert_eq!((made.version, made.deleted_ms), (1, None));
    assert_eq!(made.content, new.content);
    assert_eq!(made.key, new.key);
    let nothing = NewJob { submitted_by: None, key: None, content: content("[]", None), ..job("bare", 8) };
    let bare = make(store, &nothing).await;
    assert_eq!(store.job("0190-ff").await.unwrap(), Some(made.clone()));
    assert_eq!(store.job("bare").await.unwrap(), Some(bare.clone()));
    assert_eq!(store.live_job("team-a", "bare").await.unwrap(), Some(bare.clone()));
    assert_eq!(store.live_jobs().await.unwrap(), [made, bare]);
    assert_eq!(store.job("other").await.unwrap(), None);
    for bad in ["", "a/b", "ä", &"x".repeat(65)] {
        assert!(matches!(store.create_job(&job(bad, 1)).await, Err(Error::BadUid(_))), "{bad}");
    }
    let again = NewJob { name: "another".to_owned(), ..job("bare", 9) };
    assert!(matches!(store.create_job(&again).await, Err(Error::UidTaken(_))));
}

async fn idempotency_key_is_valid_for_a_day(Scratch { store, .. }: &Scratch) {
    let first = NewJob { key: key("k", "body"), ..job("first", 0) };
    let made = make(store, &first).await;
    let again = NewJob { key: key("k", "body"), ..job("again", HOUR) };
    assert_eq!(store.create_job(&again).await.unwrap(), CreateResult::Replayed(made));
    let other = NewJob { key: key("k", "another body"), ..job("other", HOUR) };
    assert_eq!(store.create_job(&other).await.unwrap(), CreateResult::KeyReused);
    let elsewhere = NewJob { namespace: "team-b".to_owned(), ..again.clone() };
    make(store, &elsewhere).await;

    // Deleting the job does not release its key.
    assert!(store.mark_deleted("first", 2 * HOUR).await.unwrap());
    let CreateResult::Replayed(gone) =
        store.create_job(&NewJob { created_ms: 24 * HOUR - 1, ..again.clone() }).await.unwrap()
    else {
        panic!("the key was forgotten")
    };
    assert_eq!((gone.uid.as_str(), gone.deleted_ms), ("first", Some(2 * HOUR)));
    assert_eq!(store.keyed_job("team-a", "k", 24 * HOUR - 1).await.unwrap(), Some(gone));
    assert_eq!(store.keyed_job("team-a", "k", 24 * HOUR).await.unwrap(), None);
    let next = NewJob { uid: "next".to_owned(), created_ms: 24 * HOUR, ..other };
    assert_eq!(make(store, &next).await.key, next.key);
    assert_eq!(store.job("first").await.unwrap().unwrap().key, None);
}

async fn name_is_unique_among_live_jobs(Scratch { store, .. }: &Scratch) {
    let named = |uid, created_ms| NewJob { name: "gpt2".to_owned(), ..job(uid, created_ms) };
    make(store, &named("a", 1)).await;
    assert_eq!(store.create_job(&named("b", 2)).await.unwrap(), CreateResult::NameTaken);
    assert_eq!(store.job("b").await.unwrap(), None);
    make(store, &NewJob { namespace: "team-b".to_owned(), ..named("b", 2) }).await;
    assert!(store.mark_deleted("a", 3).await.unwrap());
    assert!(!store.mark_deleted("a", 4).await.unwrap());
    assert_eq!(store.live_job("team-a", "gpt2").await.unwrap(), None);
    let newest = async || store.newest_job("team-a", "gpt2").await.unwrap().unwrap();
    assert_eq!((newest().await.uid.as_str(), newest().await.deleted_ms, newest().await.version), ("a", Some(3), 2));
    // The clock went back: a live job is the newest nevertheless.
    make(store, &named("c", 0)).await;
    assert_eq!(newest().await.uid, "c");
}

async fn write_over_other_version_changes_nothing(Scratch { store, .. }: &Scratch) {
    make(store, &job("a", 1)).await;
    let queued = JobContent { finished_ms: Some(9), ..content("{1}", Some("Queued")) };
    assert_eq!(store.replace_job("a", 1, &queued).await.unwrap(), Some(2));
    assert_eq!(store.replace_job("a", 1, &content("{2}", None)).await.unwrap(), None);
    assert_eq!(store.job("a").await.unwrap().unwrap().content, queued);
    assert_eq!(store.replace_job("b", 1, &queued).await.unwrap(), None);
    assert!(matches!(store.replace_job("a", u64::MAX, &queued).await, Err(Error::TooLarge(..))));
    store.mark_deleted("a", 5).await.unwrap();
    assert_eq!(store.replace_job("a", 3, &content("{3}", None)).await.unwrap(), None, "it is gone");
}

async fn upsert_never_revives_a_deleted_job(Scratch { store, .. }: &Scratch) {
    let seen = |uid, created_ms, document| NewJob {
        name: "gpt2".to_owned(),
        content: content(document, Some("Training")),
        ..job(uid, created_ms)
    };
    let get = async |uid| store.job(uid).await.unwrap().unwrap();
    assert!(store.upsert_job(&NewJob { key: key("k", "b"), ..seen("a", 10, "1") }, 11).await.unwrap());
    assert!(!store.upsert_job(&seen("a", 10, "1"), 12).await.unwrap(), "nothing is new");
    assert!(store.upsert_job(&seen("a", 10, "2"), 13).await.unwrap());
    assert_eq!((get("a").await.version, get("a").await.content.document.as_str()), (2, "2"));
    assert_eq!(get("a").await.key, key("k", "b"));

    // The deletion of `a` was missed: another job has its name. The key stays with the job that was created first.
    assert!(store.upsert_job(&NewJob { key: key("k", "c"), ..seen("b", 20, "1") }, 21).await.unwrap());
    assert_eq!((get("a").await.deleted_ms, get("a").await.key), (Some(21), key("k", "b")));
    assert_eq!(get("b").await.key, None);
    // A late version of a deleted job changes its content and does not make it live.
    assert!(store.upsert_job(&seen("a", 10, "3"), 22).await.unwrap());
    assert_eq!(get("a").await.deleted_ms, Some(21));
    // The first version of a job that was created earlier.
    assert!(store.upsert_job(&seen("0", 5, "1"), 23).await.unwrap());
    assert_eq!(get("0").await.deleted_ms, Some(23));
    let first = NewJob { key: key("k", "d"), name: "bert".to_owned(), ..seen("1", 6, "1") };
    assert!(store.upsert_job(&first, 24).await.unwrap());
    assert_eq!((get("1").await.key, get("a").await.key), (key("k", "d"), None), "it was made before");
    assert_eq!(store.live_job("team-a", "gpt2").await.unwrap().unwrap().uid, "b");
}

/// Returns all pages of a list as UIDs.
async fn pages(store: &Store, filter: &JobFilter, limit: u32) -> Vec<Vec<String>> {
    let (mut pages, mut after) = (Vec::new(), None::<PageCursor>);
    loop {
        let page = store.jobs(filter, after.as_ref(), limit).await.unwrap();
        pages.push(page.items.into_iter().map(|job| job.uid).collect());
        // Through its text, as a client returns it.
        let Some(next) = page.next else { return pages };
        after = Some(next.to_string().parse().unwrap());
    }
}

async fn pages_hold_while_jobs_are_made(Scratch { store, .. }: &Scratch) {
    assert_eq!(pages(store, &JobFilter::default(), 3).await, [[""; 0]]);
    // Several jobs with the same time of creation.
    for (uid, created_ms) in [("a", 1), ("b", 2), ("c", 2), ("d", 2), ("e", -3)] {
        make(store, &job(uid, created_ms)).await;
    }
    let everything = JobFilter::default();
    assert_eq!(pages(store, &everything, 2).await, [vec!["d", "c"], vec!["b", "a"], vec!["e"]]);
    assert_eq!(pages(store, &everything, 5).await, [["d", "c", "b", "a", "e"]]);
    let first = store.jobs(&everything, None, 2).await.unwrap();
    make(store, &job("f", 9)).await;
    let second = store.jobs(&everything, first.next.as_ref(), 2).await.unwrap();
    assert_eq!(second.items.iter().map(|job| job.uid.as_str()).collect::<Vec<_>>(), ["b", "a"]);
    for bad in ["", "1", ".", "1.", "x.a", "1.a b", "1.a.b", "99999999999999999999.a"] {
        assert!(matches!(bad.parse::<PageCursor>(), Err(Error::BadCursor)), "{bad}");
    }
}

async fn filters_leave_out_the_rest(Scratch { store, .. }: &Scratch) {
    let over = JobContent { finished_ms: Some(5), ..content("{}", Some("Succeeded")) };
    make(store, &job("a", 1)).await;
    make(store, &NewJob { namespace: "team-b".to_owned(), content: over, ..job("b", 2) }).await;
    make(
        store,
        &NewJob {
            submitted_by: Some("bob".to_owned()),
            name: "a".to_owned(),
            namespace: "c".to_owned(),
            ..job("c", 3)
        },
    )
    .await;
    make(store, &job("d", 4)).await;
    store.mark_deleted("d", 5).await.unwrap();
    let which = async |filter: JobFilter| pages(store, &filter, 9).await.concat().concat();
    let some = |text: &str| Some(text.to_owned());
    assert_eq!(which(JobFilter::default()).await, "cba");
    assert_eq!(which(JobFilter { include_deleted: true, ..JobFilter::default() }).await, "dcba");
    let both = Some(vec!["team-a".to_owned(), "c".to_owned()]);
    assert_eq!(which(JobFilter { namespaces: both, ..JobFilter::default() }).await, "ca");
    assert_eq!(which(JobFilter { namespaces: Some(Vec::new()), ..JobFilter::default() }).await, "");
    assert_eq!(which(JobFilter { name: some("a"), ..JobFilter::default() }).await, "ca");
    assert_eq!(which(JobFilter { state: some("Succeeded"), ..JobFilter::default() }).await, "b");
    assert_eq!(
        which(JobFilter { submitted_by: some("ada"), finished: Some(false), ..JobFilter::default() }).await,
        "a"
    );
    assert_eq!(which(JobFilter { finished: Some(true), ..JobFilter::default() }).await, "b");
    // A deleted job counts as finished, and has no state.
    let training = content("{}", Some("Training"));
    make(store, &NewJob { content: training, ..job("e", 5) }).await;
    store.mark_deleted("e", 6).await.unwrap();
    let history = |filter: JobFilter| which(JobFilter { include_deleted: true, ..filter });
    assert_eq!(history(JobFilter { finished: Some(true), ..JobFilter::default() }).await, "edb");
    assert_eq!(history(JobFilter { finished: Some(false), ..JobFilter::default() }).await, "ca");
    assert_eq!(history(JobFilter { state: some("Training"), ..JobFilter::default() }).await, "");
    // A deleted job that finalizers hold still exists: it is listed, and has a state.
    make(store, &NewJob { content: content("{}", Some("Deleting")), ..job("f", 7) }).await;
    store.mark_deleted("f", 8).await.unwrap();
    let existing = |filter: JobFilter| which(JobFilter { held_state: some("Deleting"), ..filter });
    assert_eq!(which(JobFilter::default()).await, "cba");
    assert_eq!(existing(JobFilter::default()).await, "fcba");
    assert_eq!(existing(JobFilter { state: some("Deleting"), ..JobFilter::default() }).await, "f");
    assert_eq!(existing(JobFilter { finished: Some(false), ..JobFilter::default() }).await, "ca");
}

async fn history_of_an_earlier_namespace_of_the_name_is_left_out(Scratch { store, .. }: &Scratch) {
    // The namespace team-a was deleted and created again at 10.
    let now = NamespaceVersion { namespace: "team-a".to_owned(), uid: "second".to_owned(), since_ms: 10 };
    for (uid, created, namespace, deleted) in [
        ("former", 5, Some("first"), true),
        ("former-unknown", 6, None, true),
        ("new", 11, Some("second"), true),
        ("new-unknown", 12, None, true),
        ("alive", 13, None, false),
    ] {
        make(store, &job(uid, created)).await;
        if let Some(namespace) = namespace {
            store.put_namespace_uid(uid, namespace).await.unwrap();
            store.put_namespace_uid(uid, "another").await.unwrap();
        }
        if deleted {
            assert!(store.mark_deleted(uid, 20).await.unwrap());
        }
    }
    make(store, &NewJob { namespace: "team-b".to_owned(), ..job("elsewhere", 1) }).await;
    store.mark_deleted("elsewhere", 20).await.unwrap();
    let filter = JobFilter { include_deleted: true, incarnations: vec![now.clone()], ..JobFilter::default() };
    let page = store.jobs(&filter, None, 10).await.unwrap();
    let listed: Vec<&str> = page.items.iter().map(|job| job.uid.as_str()).collect();
    assert_eq!(listed, ["alive", "new-unknown", "new", "elsewhere"]);
    for (uid, visible) in [("former", false), ("former-unknown", false), ("new", true), ("new-unknown", true)] {
        assert_eq!(now.contains(&store.job(uid).await.unwrap().unwrap()), visible, "{uid}");
    }
}

async fn deleting_a_job_deletes_its_records(Scratch { store, .. }: &Scratch) {
    let new = NewJob { key: key("k", "b"), ..job("a", 1) };
    make(store, &new).await;
    crate::journal::append_steps(store, "a", 1..=3).await;
    store.add_event("a", &crate::events_appliances_tokens::event("Started")).await.unwrap();
    assert!(store.delete_job("a").await.unwrap());
    assert!(!store.delete_job("a").await.unwrap());
    // A later job, even with the same UID, has none of the records.
    make(store, &new).await;
    assert_eq!(store.newest_entry("a").await.unwrap(), 0);
    assert_eq!(store.entries("a", &Default::default()).await.unwrap(), []);
    assert_eq!(store.metrics("a", millrace_store::MetricMode::Train, 9).await.unwrap(), []);
    assert_eq!(store.events("a", 0, 9).await.unwrap(), []);
}

async fn retention_deletes_finished_jobs(Scratch { store, .. }: &Scratch) {
    for (uid, finished_ms) in [("a", Some(50)), ("b", Some(60)), ("c", None), ("d", None), ("e", Some(40))] {
        make(store, &NewJob { content: JobContent { finished_ms, ..content("{}", None) }, ..job(uid, 1) }).await;
    }
    store.mark_deleted("c", 55).await.unwrap();
    make(store, &job("f", 1)).await;
    store.mark_deleted("f", 54).await.unwrap();
    assert_eq!(store.delete_deleted_before(55, 9).await.unwrap(), ["f"], "what is over and there stays");
    assert_eq!(store.delete_finished_before(60, 2).await.unwrap(), ["a", "c"]);
    assert_eq!(store.delete_finished_before(60, 2).await.unwrap(), ["e"]);
    assert_eq!(store.delete_finished_before(60, 2).await.unwrap(), [""; 0]);
    assert_eq!(pages(store, &JobFilter { include_deleted: true, ..JobFilter::default() }, 9).await, [["d", "b"]]);
}

async fn concurrent_creates_make_one_job(scratch: &Scratch) {
    let stores = [scratch.store.clone(), scratch.again().await];
    let asking = (0..16).map(|asker| {
        let store = stores[asker % 2].clone();
        // Half of them conflict by key, half by name.
        let by_key = asker % 4 < 2;
        let name = if by_key { format!("job-{asker}") } else { "one".to_owned() };
        let new = NewJob { name, key: by_key.then(|| key("k", "b")).flatten(), ..job(&format!("uid-{asker}"), 1) };
        tokio::spawn(async move { store.create_job(&new).await.unwrap() })
    });
    let (mut made, mut replayed, mut taken) = (Vec::new(), Vec::new(), 0);
    for asker in asking.collect::<Vec<_>>() {
        match asker.await.unwrap() {
            CreateResult::New(job) => made.push(job),
            CreateResult::Replayed(job) => replayed.push(job),
            CreateResult::NameTaken => taken += 1,
            CreateResult::KeyReused => panic!("it was the same body"),
        }
    }
    assert_eq!((made.len(), replayed.len(), taken), (2, 7, 7));
    assert!(replayed.iter().all(|job| made.contains(job)));
    stores[1].close().await;
}

async fn only_one_of_many_writers_wins_a_version(scratch: &Scratch) {
    make(&scratch.store, &job("a", 1)).await;
    let stores = [scratch.store.clone(), scratch.again().await];
    for version in 1..=5 {
        let writing = (0..8).map(|writer| {
            let store = stores[writer % 2].clone();
            let content = content(&writer.to_string(), None);
            tokio::spawn(async move { store.replace_job("a", version, &content).await.unwrap() })
        });
        let mut won = 0;
        for writer in writing.collect::<Vec<_>>() {
            won += u32::from(writer.await.unwrap() == Some(version + 1));
        }
        assert_eq!(won, 1, "of version {version}");
    }
    stores[1].close().await;
}

async fn every_write_notifies_listeners(Scratch { store, .. }: &Scratch) {
    let mut changes = store.changes();
    make(store, &job("a", 1)).await;
    store.replace_job("a", 9, &content("{}", None)).await.unwrap();
    crate::journal::append_steps(store, "a", 1..=2).await;
    crate::journal::append_steps(store, "a", 1..=2).await;
    store.add_event("a", &crate::events_appliances_tokens::event("Started")).await.unwrap();
    store.replace_job("a", 1, &content("{}", None)).await.unwrap();
    store.mark_deleted("a", 3).await.unwrap();
    let told = std::iter::from_fn(|| changes.try_recv().ok()).map(|change| change.what).collect::<Vec<_>>();
    assert_eq!(
        told,
        [ChangedPart::Job, ChangedPart::Entries, ChangedPart::Events, ChangedPart::Job, ChangedPart::Job],
        "and nothing that wrote nothing"
    );
}
