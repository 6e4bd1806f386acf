//! Tests of events, appliances and tokens.

use millrace_store::{ConnectionCounts, Error, NewEvent, TokenRecord, failures};

use crate::jobs::{job, make};
use crate::scratch::Scratch;

behaviours![
    events_are_numbered_by_job,
    appliance_is_written_over_the_version_read,
    token_is_found_by_hash,
    tokens_that_ended_long_ago_are_forgotten,
    connections_bytes_and_failures_are_counted,
];

pub fn event(reason: &str) -> NewEvent {
    NewEvent { at_ms: 5, warning: false, reason: reason.to_owned(), message: "It began.".to_owned() }
}

async fn events_are_numbered_by_job(Scratch { store, .. }: &Scratch) {
    assert!(matches!(store.add_event("a", &event("Lost")).await, Err(Error::JobNotFound(_))));
    make(store, &job("a", 1)).await;
    make(store, &job("b", 1)).await;
    // PostgreSQL can't store NUL in texts; an event with one is recorded nevertheless.
    let bad = NewEvent { warning: true, message: "a\0b".to_owned(), ..event("Failed") };
    assert_eq!(store.add_event("a", &event("Started")).await.unwrap(), 1);
    assert_eq!(store.add_event("b", &event("Started")).await.unwrap(), 1);
    assert_eq!(store.add_event("a", &bad).await.unwrap(), 2);
    let all = store.events("a", 0, 9).await.unwrap();
    assert_eq!((all[0].number, &all[0].event), (1, &event("Started")));
    assert_eq!((all[1].event.warning, all[1].event.message.as_str()), (true, "a\u{fffd}b"));
    assert_eq!(store.events("a", 1, 9).await.unwrap(), all[1..]);
    assert_eq!(store.events("a", 0, 1).await.unwrap(), all[..1]);
    assert_eq!(store.events("a", u64::MAX, 1).await.unwrap(), []);
    assert!(
        !store.insert_event_if_new("a", &event("Started")).await.unwrap()
            && !store.insert_event_if_new("a", &bad).await.unwrap()
    );
    assert!(
        store.insert_event_if_new("a", &NewEvent { at_ms: 6, ..event("Started") }).await.unwrap(),
        "it happened again"
    );
    assert_eq!(store.events("a", 2, 9).await.unwrap()[0].number, 3, "what was known has taken no number");
}

async fn appliance_is_written_over_the_version_read(Scratch { store, .. }: &Scratch) {
    assert_eq!(store.appliance("default").await.unwrap(), None);
    assert!(store.create_appliance("default", "1").await.unwrap());
    assert!(!store.create_appliance("default", "2").await.unwrap());
    assert!(store.create_appliance("b", "2").await.unwrap());
    assert_eq!(store.replace_appliance("default", 1, "3").await.unwrap(), Some(2));
    assert_eq!(store.replace_appliance("default", 1, "4").await.unwrap(), None);
    assert_eq!(store.replace_appliance("none", 1, "4").await.unwrap(), None);
    let default = store.appliance("default").await.unwrap().unwrap();
    assert_eq!((default.version, default.document.as_str()), (2, "3"));
    let names = store.appliances().await.unwrap().into_iter().map(|appliance| appliance.name).collect::<Vec<_>>();
    assert_eq!(names, ["b", "default"]);
}

fn token(id: &str, hash: &str) -> TokenRecord {
    TokenRecord {
        id: id.to_owned(),
        hash: hash.to_owned(),
        name: "ci".to_owned(),
        role: "editor".to_owned(),
        namespaces: vec!["*".to_owned(), "\"quoted\"".to_owned()],
        created_ms: 1,
        expires_ms: Some(1_000_000),
        revoked_ms: None,
        last_used_ms: None,
    }
}

async fn token_is_found_by_hash(Scratch { store, .. }: &Scratch) {
    let token = token("t1", "abc");
    let get = async || store.token_by_hash("abc").await.unwrap().unwrap();
    assert!(store.add_token(&token).await.unwrap());
    assert!(
        !store.add_token(&TokenRecord { id: "t2".to_owned(), ..token.clone() }).await.unwrap(),
        "the hash is taken"
    );
    assert_eq!(get().await, token);
    assert_eq!(store.token_by_hash("abd").await.unwrap(), None);

    for (used, noted) in [(100, 100), (60_099, 100), (60_100, 60_100), (5, 60_100)] {
        store.touch_token(&get().await, used).await.unwrap();
        assert_eq!(get().await.last_used_ms, Some(noted), "used at {used}");
    }
    assert!(store.revoke_token("t1", 7).await.unwrap());
    assert!(!store.revoke_token("t1", 8).await.unwrap());
    assert!(!store.revoke_token("t9", 8).await.unwrap());
    assert_eq!(get().await.revoked_ms, Some(7));
    assert_eq!(store.tokens().await.unwrap(), [get().await]);
}

async fn tokens_that_ended_long_ago_are_forgotten(Scratch { store, .. }: &Scratch) {
    let ended = |id: &str, expires_ms, revoked_ms| TokenRecord { expires_ms, revoked_ms, ..token(id, id) };
    for token in [
        ended("good", None, None),
        ended("expired", Some(9), None),
        ended("revoked", Some(99), Some(9)),
        ended("expires", Some(10), None),
        ended("good.expired", Some(9), None),
    ] {
        store.add_token(&token).await.unwrap();
    }
    assert_eq!(store.delete_expired_tokens(Some("."), 10).await.unwrap(), 1);
    assert_eq!(store.tokens().await.unwrap().len(), 4);
    assert_eq!(store.delete_expired_tokens(None, 10).await.unwrap(), 2);
    let left: Vec<String> = store.tokens().await.unwrap().into_iter().map(|token| token.id).collect();
    assert_eq!(left, ["expires", "good"]);
}

async fn connections_bytes_and_failures_are_counted(scratch: &Scratch) {
    make(&scratch.store, &job("a", 1)).await;
    // A connection may still be on its way back to the pool from the last call.
    let ConnectionCounts { busy, idle } = scratch.store.connections();
    assert!((1..=10).contains(&(busy + idle)), "{busy} and {idle}");
    assert!(scratch.store.size_bytes().await.unwrap() > 4096);

    let broken = || failures().into_iter().find(|(kind, _)| *kind == "broken").unwrap().1;
    let before = broken();
    let closed = scratch.again().await;
    closed.close().await;
    assert!(matches!(closed.ping().await, Err(Error::ConnectionLost(_))));
    assert!(broken() > before, "other tests of this process may fail calls, too");
}
