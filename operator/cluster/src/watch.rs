//! Watches that continue after errors.
//!
//! * An object that does not fit its type, because a newer version wrote it, is reported and ignored; all other objects
//!   are read as usual.
//! * While the API server is unreachable, each watch retries every second by itself: a controller would let all of its
//!   watches wait after a failure of one.

use std::fmt::Debug;
use std::future::ready;
use std::hash::Hash;
use std::time::Duration;

use futures::stream::{BoxStream, Stream, StreamExt};
use kube::core::DeserializeGuard;
use kube::core::error_boundary::InvalidObject;
use kube::runtime::WatchStreamExt;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event, watcher};
use kube::{Api, Client, Resource};
use serde::de::DeserializeOwned;

/// Delay between a failure of a watch and the next try.
const WATCH_RETRY_INTERVAL: Duration = Duration::from_secs(1);

/// A constant backoff. It does not overload an API server, because there are few watches.
struct ConstantBackoff;

impl Iterator for ConstantBackoff {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(WATCH_RETRY_INTERVAL)
    }
}

impl Backoff for ConstantBackoff {
    fn reset(&mut self) {}
}

/// Watches every readable object of the cluster. `store` is the store that follows this stream, and `report` is called
/// for every unreadable object.
pub fn readable_events<K>(
    client: &Client,
    store: Store<K>,
    report: impl Fn(InvalidObject) + Send + 'static,
) -> BoxStream<'static, Event<K>>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + Sync + 'static,
    K::DynamicType: Default + Clone + Eq + Hash + Send + Sync,
{
    watch_selected(client, watcher::Config::default())
        .filter_map(move |event| ready(readable(event, &store, &report)))
        .boxed()
}

/// Watches the objects of a kind in all namespaces that `which` selects.
pub fn watch_selected<K>(client: &Client, config: watcher::Config) -> BoxStream<'static, Event<K>>
where
    K: Resource + Clone + Debug + DeserializeOwned + Send + 'static,
    K::DynamicType: Default + Clone,
{
    let kind = K::kind(&K::DynamicType::default()).into_owned();
    with_retries(watcher(Api::all(client.clone()), config), kind).boxed()
}

/// Continues a watch after failures. Logs the first failure until the next success.
fn with_retries<T: Send>(
    watch: impl Stream<Item = watcher::Result<T>> + Send,
    kind: String,
) -> impl Stream<Item = T> + Send {
    let mut was_ok = true;
    watch.backoff(ConstantBackoff).filter_map(move |event| {
        if let Err(error) = &event
            && was_ok
        {
            tracing::warn!(kind = %kind, "watch of {kind} interrupted, retrying: {error}");
        }
        was_ok = event.is_ok();
        ready(event.ok())
    })
}

/// Converts an event to the one for the store.
fn readable<K>(event: Event<DeserializeGuard<K>>, store: &Store<K>, report: &impl Fn(InvalidObject)) -> Option<Event<K>>
where
    K: Resource + Clone,
    K::DynamicType: Default + Clone + Eq + Hash,
{
    match event {
        Event::Init => Some(Event::Init),
        Event::InitDone => Some(Event::InitDone),
        Event::Apply(DeserializeGuard(Ok(object))) => Some(Event::Apply(object)),
        Event::InitApply(DeserializeGuard(Ok(object))) => Some(Event::InitApply(object)),
        Event::Delete(DeserializeGuard(Ok(object))) => Some(Event::Delete(object)),
        Event::Apply(DeserializeGuard(Err(unreadable))) => {
            report(unreadable);
            None
        }
        Event::InitApply(DeserializeGuard(Err(unreadable))) => {
            let last = last_read(store, &unreadable);
            report(unreadable);
            last.map(Event::InitApply)
        }
        Event::Delete(DeserializeGuard(Err(unreadable))) => last_read(store, &unreadable).map(Event::Delete),
    }
}

/// Returns the version of the object in the store.
fn last_read<K>(store: &Store<K>, unreadable: &InvalidObject) -> Option<K>
where
    K: Resource + Clone,
    K::DynamicType: Default + Clone + Eq + Hash,
{
    let mut object = ObjectRef::new(unreadable.metadata.name.as_deref()?);
    object.namespace.clone_from(&unreadable.metadata.namespace);
    store.get(&object).map(|object| K::clone(&object))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::runtime::reflector::store::Writer;
    use serde_json::{Value, json};

    use super::*;

    fn object(data: Value) -> DeserializeGuard<ConfigMap> {
        serde_json::from_value(json!({"metadata": {"namespace": "n", "name": "a"}, "data": data})).unwrap()
    }

    #[test]
    fn unreadable_object_keeps_its_last_readable_version() {
        let reported = std::cell::Cell::new(0);
        let report = |_| reported.set(reported.get() + 1);
        let mut writer = Writer::<ConfigMap>::default();
        let store = writer.as_reader();
        let (valid, invalid) = (|| object(json!({"key": "value"})), || object(json!(["a list"])));
        assert!(invalid().0.is_err());
        assert!(readable(Event::Apply(invalid()), &store, &report).is_none());
        assert!(readable(Event::Delete(invalid()), &store, &report).is_none(), "it was never there");

        for event in
            [Event::Apply(valid()), Event::Apply(invalid()), Event::Init, Event::InitApply(invalid()), Event::InitDone]
        {
            if let Some(event) = readable(event, &store, &report) {
                writer.apply_watcher_event(&event);
            }
            assert_eq!(store.state()[0].data.as_ref().unwrap()["key"], "value");
        }
        let deleted = readable(Event::Delete(invalid()), &store, &report).unwrap();
        writer.apply_watcher_event(&deleted);
        assert!(store.state().is_empty());
        assert_eq!(reported.get(), 3, "deletions are not reported");
    }
}
